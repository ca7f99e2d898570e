# SPDX-License-Identifier: Apache-2.0
"""fio over its NBD engine: many requests in flight, each read checked against its own header."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from nbd_support import MIB, SCALE, NbdServer, cowshed, needs, run

pytestmark = needs("fio")

SIZE_BYTES = 32 * MIB


def fio(uri: str, directory: Path, *options: str, seed: int = 1) -> dict[str, Any]:
    """Runs one job, which must end without an error. Returns what it counted."""
    told = run(
        "fio", "--name=job", "--ioengine=nbd", f"--uri={uri}", "--output-format=json",
        f"--randseed={seed}", f"--size={SIZE_BYTES}", *options,
        cwd=directory,
    )  # fmt: skip
    job = json.loads(told[told.index("{") :])["jobs"][0]
    assert job["error"] == 0
    assert isinstance(job, dict)
    return job


@pytest.mark.parametrize(
    "options",
    [
        "--rw=randwrite --bs=4k --iodepth=16",
        "--rw=randwrite --bs=16k --iodepth=16 --fsync=32",
        "--rw=randrw --bsrange=512-128k --bs_unaligned=1 --iodepth=16 --verify_backlog=256",
        "--rw=write --bs=1M --iodepth=4",
    ],
)
def test_everything_written_is_read_back(
    server: NbdServer, client: cowshed.Client, base: str, tmp_path: Path, options: str
) -> None:
    client.create(base, SIZE_BYTES)
    job = fio(
        server.uri(base), tmp_path, *options.split(),
        f"--io_size={8 * SCALE}M", "--verify=crc32c", "--verify_fatal=1", "--do_verify=1",
    )  # fmt: skip
    assert job["write"]["total_ios"] > 0
    assert job["read"]["total_ios"] > 0
    # What fio has not written is untouched, what it has is there for others, too.
    held = client.read(base)
    assert len(held) == SIZE_BYTES and any(held)


def test_trims_read_as_zeros(
    server: NbdServer, client: cowshed.Client, base: str, tmp_path: Path
) -> None:
    client.create(base, SIZE_BYTES)
    client.write(base, 0, b"x" * SIZE_BYTES)
    job = fio(server.uri(base), tmp_path, "--rw=randtrim", "--bs=64k", "--iodepth=16")
    assert job["trim"]["total_ios"] == SIZE_BYTES // (64 << 10)
    assert not any(client.read(base))
    job = fio(server.uri(base), tmp_path, "--rw=randtrimwrite", "--bs=16k", "--iodepth=16")
    assert job["trim"]["total_ios"] > 0 and job["write"]["total_ios"] > 0


def test_wrong_bytes_are_found(
    server: NbdServer, client: cowshed.Client, base: str, tmp_path: Path
) -> None:
    client.create(base, SIZE_BYTES)
    options = ["--rw=write", "--bs=64k", "--iodepth=4", "--verify=crc32c"]
    fio(server.uri(base), tmp_path, *options)
    (byte,) = client.read(base, 5 * MIB + 100, 1)
    client.write(base, 5 * MIB + 100, bytes([byte ^ 1]))
    with pytest.raises(AssertionError, match="verify"):
        fio(server.uri(base), tmp_path, *options, "--verify_only")


def test_four_jobs_share_a_dataset(
    server: NbdServer, client: cowshed.Client, base: str, tmp_path: Path
) -> None:
    client.create(base, SIZE_BYTES)
    # Jobs are threads of one process: of one holder.
    fio(
        server.uri(base), tmp_path, "--thread", "--numjobs=4", "--rw=randwrite", "--bs=4k",
        "--iodepth=8", "--io_size=2M", f"--size={SIZE_BYTES // 4}",
        f"--offset_increment={SIZE_BYTES // 4}", "--verify=crc32c", "--verify_fatal=1",
        "--group_reporting",
    )  # fmt: skip

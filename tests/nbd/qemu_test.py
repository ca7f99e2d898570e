# SPDX-License-Identifier: Apache-2.0
"""qemu-img and qemu-io: a dataset as a disk of QEMU, through the driver that its machines use."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from nbd_support import BLOCK_BYTES, MIB, NbdServer, cowshed, needs, run

pytestmark = needs("qemu-img", "qemu-io")

SIZE_BYTES = 16 * MIB


def io(uri: str, *commands: str, options: tuple[str, ...] = ()) -> str:
    """What qemu-io prints for these commands; a pattern that is not there fails."""
    script = [part for command in commands for part in ("-c", command)]
    return run("qemu-io", "-f", "raw", *options, *script, uri)


@pytest.fixture
def qcow2(tmp_path: Path, rng: random.Random) -> Path:
    """An image with islands of data."""
    raw = tmp_path / "image.raw"
    with raw.open("wb") as file:
        file.truncate(SIZE_BYTES)
        for at in (0, 5 * MIB, 11 * MIB):
            file.seek(at)
            file.write(rng.randbytes(MIB + 100_000))
    path = tmp_path / "image.qcow2"
    run("qemu-img", "convert", "-f", "raw", "-O", "qcow2", raw, path)
    return path


def test_info_tells_size_and_format(
    server: NbdServer, client: cowshed.Client, base: str
) -> None:
    client.create(base, SIZE_BYTES)
    told = json.loads(run("qemu-img", "info", "--output=json", server.uri(base)))
    assert told["virtual-size"] == SIZE_BYTES
    assert told["format"] == "raw"


@pytest.mark.parametrize("options", ["", "-W -m 16", "-m 1", "-S 0", "-n --target-is-zero"])
def test_image_is_converted_in_and_out(
    server: NbdServer,
    client: cowshed.Client,
    base: str,
    qcow2: Path,
    tmp_path: Path,
    options: str,
) -> None:
    client.create(base, SIZE_BYTES)
    uri = server.uri(base)
    arguments = options.split() if "-n" in options else ["-n", *options.split()]
    run("qemu-img", "convert", "-f", "qcow2", "-O", "raw", *arguments, qcow2, uri)
    assert client.read(base) == (tmp_path / "image.raw").read_bytes()
    assert "Images are identical" in run(
        "qemu-img", "compare", "-f", "qcow2", "-F", "raw", qcow2, uri
    )
    back = tmp_path / "back.qcow2"
    run("qemu-img", "convert", "-f", "raw", "-O", "qcow2", uri, back)
    run("qemu-img", "compare", qcow2, back)
    run("qemu-img", "check", back)


def test_compare_finds_one_byte(
    server: NbdServer, client: cowshed.Client, base: str, qcow2: Path
) -> None:
    client.create(base, SIZE_BYTES)
    run("qemu-img", "convert", "-n", "-O", "raw", qcow2, server.uri(base))
    client.write(base, 9 * MIB + 1, b"!")
    said = run("qemu-img", "compare", "-F", "raw", qcow2, server.uri(base), status=1)
    assert "Content mismatch at offset" in said


def test_map_shows_data_and_holes(
    server: NbdServer, client: cowshed.Client, base: str
) -> None:
    client.create(base, SIZE_BYTES)
    client.write(base, MIB, b"x" * MIB)
    found = json.loads(run("qemu-img", "map", "--output=json", "-f", "raw", server.uri(base)))
    shown = [(one["start"], one["length"], one["data"], one["zero"]) for one in found]
    assert shown == [
        (0, MIB, False, True),
        (MIB, MIB, True, False),
        (2 * MIB, SIZE_BYTES - 2 * MIB, False, True),
    ]


def test_map_shows_changes_as_a_dirty_bitmap(
    server: NbdServer, client: cowshed.Client, base: str
) -> None:
    client.create(base, SIZE_BYTES)
    client.write(base, 0, b"x" * SIZE_BYTES)
    client.snapshot(f"{base}@s1")
    client.write(base, 3 * MIB, b"y" * MIB)
    options = (
        f"driver=nbd,server.type=unix,server.path={server.socket},export={base},"
        "x-dirty-bitmap=cowshed:changed-since:@s1"
    )
    found = json.loads(run("qemu-img", "map", "--output=json", "--image-opts", options))
    # It reads the context in place of base:allocation, so that what is dirty is `not data`.
    assert [(one["start"], one["length"]) for one in found if not one["data"]] == [(3 * MIB, MIB)]


def test_io_of_every_kind(server: NbdServer, client: cowshed.Client, base: str) -> None:
    client.create(base, SIZE_BYTES)
    io(
        server.uri(base),
        "write -P 0x5a 0 64k",
        "write -P 0xa5 -f 1000 3000",  # FUA, across no boundary of blocks
        "write -z 16k 16k",
        "write -z -u 32k 8k",
        "write -P 7 1M 8M",
        "discard 2M 2M",
        "flush",
        "read -P 0x5a 0 1000",
        "read -P 0xa5 1000 3000",
        "read -P 0x5a 4000 12384",
        "read -P 0 16k 24k",
        "read -P 0x5a 40k 24k",
        "read -P 0 2M 2M",
        "read -P 7 4M 5M",
        options=("--discard=unmap",),
    )
    expected = bytearray(SIZE_BYTES)
    expected[0 : 64 << 10] = b"\x5a" * (64 << 10)
    expected[1000:4000] = b"\xa5" * 3000
    expected[16 << 10 : 40 << 10] = bytes(24 << 10)
    expected[MIB : 9 * MIB] = b"\x07" * (8 * MIB)
    expected[2 * MIB : 4 * MIB] = bytes(2 * MIB)
    assert client.read(base) == expected


def test_io_in_flight_at_once(server: NbdServer, client: cowshed.Client, base: str) -> None:
    client.create(base, SIZE_BYTES)
    writes = [f"aio_write -q -P {n + 1} {n * BLOCK_BYTES} 16k" for n in range(200)]
    io(server.uri(base), *writes, "aio_flush", "flush")
    expected = b"".join(bytes([n + 1]) * BLOCK_BYTES for n in range(200))
    assert client.read(base, 0, len(expected)) == expected
    reads = [f"aio_read -q -P {n + 1} {n * BLOCK_BYTES} 16k" for n in range(200)]
    assert "verification failed" not in io(server.uri(base), *reads, "aio_flush")


def test_pattern_that_is_not_there_is_told(
    server: NbdServer, client: cowshed.Client, base: str
) -> None:
    client.create(base, SIZE_BYTES)
    said = run("qemu-io", "-f", "raw", "-c", "read -P 1 0 4k", server.uri(base), status=1)
    assert "Pattern verification failed" in said


def test_snapshot_is_the_backing_file_of_an_overlay(
    server: NbdServer, client: cowshed.Client, base: str, tmp_path: Path
) -> None:
    client.create(base, SIZE_BYTES)
    client.write(base, 0, b"\x11" * MIB)
    client.snapshot(f"{base}@golden")
    overlay = tmp_path / "overlay.qcow2"
    uri = server.uri(f"{base}@golden")
    run("qemu-img", "create", "-f", "qcow2", "-b", uri, "-F", "raw", overlay)
    run("qemu-io", "-c", "write -P 0x22 64k 64k", "-c", "read -P 0x11 0 64k", overlay)
    run("qemu-io", "-c", "read -P 0x22 64k 64k", "-c", "read -P 0x11 128k 64k", overlay)
    assert client.read(f"{base}@golden", 0, MIB) == b"\x11" * MIB


def test_write_to_a_snapshot_is_refused(
    server: NbdServer, client: cowshed.Client, base: str
) -> None:
    client.create(base, SIZE_BYTES)
    client.snapshot(f"{base}@s")
    uri = server.uri(f"{base}@s")
    said = run("qemu-io", "-f", "raw", "-c", "write 0 4k", uri, status=1)
    assert "Permission denied" in said
    io(uri, "read -P 0 0 1M", options=("-r",))


def bench(uri: str, *options: str) -> str:
    """qemu-img bench, which also checks that each request ends well."""
    return run("qemu-img", "bench", "-f", "raw", "-t", "none", *options, uri)


def test_bench_runs_with_flushes(
    server: NbdServer, client: cowshed.Client, base: str
) -> None:
    client.create(base, SIZE_BYTES)
    assert "Run completed" in bench(
        server.uri(base), "-w", "-c", "500", "-d", "16", "-s", "4k", "--flush-interval=50"
    )
    assert "Run completed" in bench(server.uri(base), "-c", "1000", "-d", "16", "-s", "16k")


def _extents(value: Any) -> list[tuple[int, int]]:
    return [(one["start"], one["length"]) for one in value if one["data"]]


def test_disk_of_one_machine_is_cloned_while_it_runs(
    server: NbdServer, client: cowshed.Client, base: str
) -> None:
    client.create(base, SIZE_BYTES)
    io(server.uri(base), "write -P 1 0 1M", "flush")
    client.snapshot(f"{base}@s")
    client.clone(f"{base}@s", f"{base}/clone")
    io(server.uri(f"{base}/clone"), "write -P 2 1M 1M", "flush")
    uris = [server.uri(name) for name in (base, f"{base}/clone")]
    maps = [json.loads(run("qemu-img", "map", "--output=json", uri)) for uri in uris]
    assert [_extents(one) for one in maps] == [[(0, MIB)], [(0, 2 * MIB)]]

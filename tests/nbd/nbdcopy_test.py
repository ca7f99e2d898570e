# SPDX-License-Identifier: Apache-2.0
"""nbdcopy: images into datasets and out of them, beside the same bytes through gRPC."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path

import pytest
from nbd_support import BLOCK_BYTES, MIB, NbdServer, cowshed, needs, run

pytestmark = needs("nbdcopy", "nbdinfo")

# Not a multiple of anything: the last block is short.
SIZE_BYTES = 12 * MIB + 4321


def sparse_image(rng: random.Random, size: int = SIZE_BYTES) -> bytes:
    """Islands of random bytes in a sea of zeros."""
    image = bytearray(size)
    for _ in range(20):
        length = rng.randrange(1, 300_000)
        at = rng.randrange(size - length)
        image[at : at + length] = rng.randbytes(length)
    return bytes(image)


@pytest.fixture
def image(rng: random.Random, tmp_path: Path) -> Path:
    """A sparse image in a file."""
    path = tmp_path / "image"
    path.write_bytes(sparse_image(rng))
    return path


@pytest.mark.parametrize(
    "options",
    [
        "--flush",
        "--flush --connections=4 --requests=64 --threads=2",
        "--flush --connections=1 --requests=1 --request-size=4096",
        "--flush --request-size=33554432 --queue-size=67108864",
        "--flush --allocated",
        "--flush --synchronous",
        "--flush --destination-is-zero",
        "--flush --sparse=0",
    ],
)
def test_image_goes_in_whole(
    server: NbdServer, client: cowshed.Client, base: str, image: Path, options: str
) -> None:
    client.create(base, SIZE_BYTES)
    run("nbdcopy", *options.split(), image, server.uri(base))
    assert client.read(base) == image.read_bytes()


@pytest.mark.parametrize(
    "options",
    [
        "",
        "--connections=4 --requests=64 --threads=2",
        "--request-size=33554432 --queue-size=67108864",
        "--no-extents",
        "--synchronous",
    ],
)
def test_image_comes_out_whole(
    server: NbdServer,
    client: cowshed.Client,
    base: str,
    image: Path,
    tmp_path: Path,
    options: str,
) -> None:
    client.create(base, SIZE_BYTES)
    client.write(base, 0, image.read_bytes())
    client.snapshot(f"{base}@s")
    for export in (base, f"{base}@s"):
        out = tmp_path / "out"
        run("nbdcopy", *options.split(), server.uri(export), out)
        assert out.read_bytes() == image.read_bytes()
        out.unlink()


def test_holes_stay_holes_on_both_ways(
    server: NbdServer, client: cowshed.Client, base: str, tmp_path: Path
) -> None:
    size = 600 * MIB
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(size)
        file.seek(300 * MIB)
        file.write(b"x" * MIB)
    client.create(base, size)
    # Every block holds something else that must go.
    client.write(base, 500 * MIB, b"y" * MIB)
    run("nbdcopy", "--flush", image, server.uri(base))
    found = json.loads(run("nbdinfo", "--map", "--json", server.uri(base)))
    data = [(one["offset"], one["length"]) for one in found if not one["type"] & 1]
    assert data == [(300 * MIB, MIB)]
    assert client.get(base).referenced_bytes < 2 * MIB
    out = tmp_path / "out"
    run("nbdcopy", server.uri(base), out)
    assert out.stat().st_size == size
    assert out.stat().st_blocks * 512 < 2 * MIB
    with out.open("rb") as file:
        file.seek(300 * MIB - 1)
        assert file.read(MIB + 2) == b"\0" + b"x" * MIB + b"\0"


def test_from_one_dataset_into_another(
    server: NbdServer, client: cowshed.Client, base: str, image: Path
) -> None:
    for name in ("from", "to"):
        client.create(f"{base}/{name}", SIZE_BYTES)
    client.write(f"{base}/from", 0, image.read_bytes())
    run("nbdcopy", "--flush", server.uri(f"{base}/from"), server.uri(f"{base}/to"))
    assert client.read(f"{base}/to") == image.read_bytes()


def test_stream_from_stdin_and_to_stdout(
    server: NbdServer, client: cowshed.Client, base: str, image: Path
) -> None:
    client.create(base, SIZE_BYTES)
    run("sh", "-c", f"nbdcopy --flush - '{server.uri(base)}' < {image}")
    summed = run("sh", "-c", f"nbdcopy '{server.uri(base)}' - | sha256sum")
    assert summed.split()[0] == hashlib.sha256(image.read_bytes()).hexdigest()


def test_image_that_is_too_large_is_refused(
    server: NbdServer, client: cowshed.Client, base: str, image: Path
) -> None:
    client.create(base, SIZE_BYTES - 1)
    assert "nbdcopy: " in run("nbdcopy", image, server.uri(base), status=1)


def test_snapshot_takes_no_copy(
    server: NbdServer, client: cowshed.Client, base: str, image: Path
) -> None:
    client.create(base, SIZE_BYTES)
    client.snapshot(f"{base}@s")
    assert "read-only" in run("nbdcopy", image, server.uri(f"{base}@s"), status=1)
    assert client.read(f"{base}@s") == bytes(SIZE_BYTES)


def test_increment_by_the_map_of_changes(
    server: NbdServer,
    client: cowshed.Client,
    base: str,
    image: Path,
    tmp_path: Path,
    rng: random.Random,
) -> None:
    client.create(base, SIZE_BYTES)
    client.write(base, 0, image.read_bytes())
    client.snapshot(f"{base}@monday")
    backup = tmp_path / "backup"
    run("nbdcopy", server.uri(f"{base}@monday"), backup)
    for _ in range(10):
        client.write(base, rng.randrange(SIZE_BYTES - 9999), rng.randbytes(9999))
    client.discard(base, 3 * MIB, MIB)
    client.snapshot(f"{base}@tuesday")

    tuesday = server.uri(f"{base}@tuesday")
    found = json.loads(
        run("nbdinfo", "--map=cowshed:changed-since:@monday", "--json", tuesday)
    )
    changed = [one for one in found if one["type"] & 1]
    assert 0 < sum(one["length"] for one in changed) <= MIB + 20 * BLOCK_BYTES
    import nbd

    source = nbd.NBD()
    source.connect_uri(tuesday)
    with backup.open("r+b") as file:
        for one in changed:
            file.seek(one["offset"])
            file.write(source.pread(one["length"], one["offset"]))
    source.shutdown()
    assert backup.read_bytes() == client.read(f"{base}@tuesday")

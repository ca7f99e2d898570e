# SPDX-License-Identifier: Apache-2.0
"""A dataset as a file, through nbdfuse: for programs that know nothing of NBD. File systems in a
loop device on it, SQLite databases in it, and the server's death beneath them."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from nbd_support import (
    BLOCK_BYTES,
    MIB,
    SCALE,
    NbdServer,
    cowshed,
    needs,
    needs_fuse,
    needs_loop,
    run,
    shown_as_file,
)

pytestmark = [needs("nbdfuse"), needs_fuse]

DATABASE_BYTES = 8 * MIB


@contextlib.contextmanager
def mounted(image: Path, directory: Path, *options: str) -> Iterator[Path]:
    """A file system in a file, mounted."""
    directory.mkdir(exist_ok=True)
    device = run("losetup", "-f", "--show", image).strip()
    try:
        run("mount", *options, device, directory)
        try:
            yield directory
        finally:
            run("umount", directory)
    finally:
        run("losetup", "-d", device)


def test_file_is_the_dataset(
    server: NbdServer, client: cowshed.Client, base: str, tmp_path: Path, rng: random.Random
) -> None:
    size = 3 * MIB + 100
    client.create(base, size)
    with shown_as_file(server.uri(base), tmp_path / "disk") as shown:
        assert shown.path.stat().st_size == size
        content = bytearray(size)
        with shown.path.open("r+b", buffering=0) as file:
            for _ in range(50):
                at, data = rng.randrange(size - 70_000), rng.randbytes(rng.randrange(1, 70_000))
                file.seek(at)
                assert file.write(data) == len(data)
                content[at : at + len(data)] = data
            os.fsync(file.fileno())
        assert client.read(base) == content
        assert shown.path.read_bytes() == content
    assert client.read(base) == content


def test_hole_punched_into_the_file_is_a_hole(
    server: NbdServer, client: cowshed.Client, base: str, tmp_path: Path
) -> None:
    client.create(base, 4 * MIB)
    client.write(base, 0, b"x" * (4 * MIB))
    with shown_as_file(server.uri(base), tmp_path / "disk") as shown:
        run("fallocate", "--punch-hole", "--offset", MIB, "--length", MIB, shown.path)
    assert client.read(base) == b"x" * MIB + bytes(MIB) + b"x" * (2 * MIB)
    client.sync()
    assert client.get(base).referenced_bytes < 3 * MIB + 64 * BLOCK_BYTES


def test_snapshot_is_a_file_that_cannot_be_written(
    server: NbdServer, client: cowshed.Client, base: str, tmp_path: Path
) -> None:
    client.create(base, MIB)
    client.write(base, 0, b"frozen")
    client.snapshot(f"{base}@s")
    with shown_as_file(server.uri(f"{base}@s"), tmp_path / "disk") as shown:
        assert shown.path.read_bytes()[:6] == b"frozen"
        with pytest.raises(OSError), shown.path.open("r+b", buffering=0) as file:
            file.write(b"x")
    assert client.read(f"{base}@s", 0, 6) == b"frozen"


@needs("mkfs.ext4", "e2fsck", "losetup")
@needs_loop
def test_ext4_in_a_clone(
    server: NbdServer, client: cowshed.Client, base: str, tmp_path: Path, rng: random.Random
) -> None:
    client.create(f"{base}/golden", 64 * MIB)
    data = rng.randbytes(3 * MIB)
    with shown_as_file(server.uri(f"{base}/golden"), tmp_path / "golden") as shown:
        run("mkfs.ext4", "-q", "-F", "-b", "4096", shown.path)
        with mounted(shown.path, tmp_path / "mnt") as directory:
            (directory / "file").write_bytes(data)
    client.snapshot(f"{base}/golden@v1")
    client.clone(f"{base}/golden@v1", f"{base}/clone")
    with shown_as_file(server.uri(f"{base}/clone"), tmp_path / "clone") as shown:
        with mounted(shown.path, tmp_path / "mnt") as directory:
            assert (directory / "file").read_bytes() == data
            (directory / "more").write_bytes(data[::-1])
            (directory / "file").unlink()
            # Discards go all the way down.
            run("fstrim", directory)
        run("e2fsck", "-f", "-n", shown.path)
    client.sync()
    assert client.get(f"{base}/clone").used_bytes < 8 * MIB
    with shown_as_file(server.uri(f"{base}/golden@v1"), tmp_path / "golden") as shown:
        with mounted(shown.path, tmp_path / "mnt", "-o", "ro,noload") as directory:
            assert sorted(p.name for p in directory.iterdir()) == ["file", "lost+found"]
            assert (directory / "file").read_bytes() == data


@needs("mkfs.ext4", "e2fsck", "losetup")
@needs_loop
def test_ext4_after_the_server_was_killed_beneath_it(
    own_server: NbdServer, tmp_path: Path, rng: random.Random
) -> None:
    with cowshed.connect(own_server.unix) as client:
        client.create("disk", 64 * MIB)
    files = {f"file{n}": rng.randbytes(rng.randrange(1, 200_000)) for n in range(20)}
    with contextlib.ExitStack() as stack:
        shown = stack.enter_context(shown_as_file(own_server.uri("disk"), tmp_path / "disk"))
        run("mkfs.ext4", "-q", "-F", "-b", "4096", shown.path)
        directory = stack.enter_context(mounted(shown.path, tmp_path / "mnt"))
        for name, data in files.items():
            with (directory / name).open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        descriptor = os.open(directory, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        own_server.kill()
        # The guest sees errors, not a wait without end.
        with contextlib.suppress(OSError):
            with (directory / "late").open("wb") as file:
                file.write(b"x" * MIB)
                file.flush()
                with pytest.raises(OSError):
                    os.fsync(file.fileno())
    own_server.start()
    with shown_as_file(own_server.uri("disk"), tmp_path / "disk") as shown:
        with mounted(shown.path, tmp_path / "mnt") as directory:  # replays its journal
            for name, data in files.items():
                assert (directory / name).read_bytes() == data, name
        run("e2fsck", "-f", "-n", shown.path)


# SQLite -------------------------------------------------------------------------------------------


def make_database(path: Path) -> None:
    """A database of exactly DATABASE_BYTES, nearly all of them free pages: a device does not grow,
    and a rollback would cut a longer file down to the database's size."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA page_size = 4096")
        database.execute("CREATE TABLE done (number INTEGER PRIMARY KEY, text TEXT)")
        database.execute("CREATE TABLE room (bytes BLOB)")
        database.execute("INSERT INTO room VALUES (zeroblob(?))", (DATABASE_BYTES,))
        database.execute("DROP TABLE room")
    assert path.stat().st_size >= DATABASE_BYTES


def committed(path: Path) -> list[int]:
    """What a database holds, after its own check of itself."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        rows = database.execute("SELECT number, text FROM done ORDER BY number").fetchall()
    assert all(text == f"transaction {number}" * 20 for number, text in rows)
    return [number for number, _ in rows]


WRITER = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("PRAGMA synchronous = FULL")
database.execute("PRAGMA cache_size = 20")  # pages go to the file before their transaction ends
number = int(sys.argv[2])
try:
    while True:
        database.execute("BEGIN IMMEDIATE")
        for _ in range(25):
            number += 1
            row = (number, f"transaction {number}" * 20)
            database.execute("INSERT INTO done VALUES (?, ?)", row)
        database.execute("COMMIT")
        print(number, flush=True)
except sqlite3.Error as error:
    print("lost", error, flush=True)
"""


def write_until_the_server_dies(path: Path, first: int, server: NbdServer, seconds: float) -> int:
    """Transactions by another process. Returns the last number that was committed."""
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, path, str(first)], stdout=subprocess.PIPE, text=True
    )
    killer = threading.Timer(seconds, server.kill)
    killer.start()
    assert writer.stdout is not None
    last = first
    for line in writer.stdout:
        if line.startswith("lost"):
            break
        last = int(line)
    writer.kill()  # what it had not committed is left to the journal
    writer.wait()
    killer.join()
    return last


def test_sqlite_in_place_through_the_death_of_the_server(
    own_server: NbdServer, tmp_path: Path, rng: random.Random
) -> None:
    image = tmp_path / "image"
    make_database(image)
    size = image.stat().st_size
    with cowshed.connect(own_server.unix) as client:
        client.create("golden", size, block_size=4096)
        client.write("golden", 0, image.read_bytes())
        client.snapshot("golden@v1")
        client.clone("golden@v1", "clone")
    path = tmp_path / "db"  # its journal is beside it, on this machine, which does not die
    last = 0
    for _ in range(3 * SCALE):
        with shown_as_file(own_server.uri("clone"), path):
            first = last
            last = write_until_the_server_dies(path, first, own_server, rng.uniform(0.3, 1.2))
        own_server.start()
        with shown_as_file(own_server.uri("clone"), path):
            rows = committed(path)
        # All that was acknowledged, and perhaps the one whose answer was lost.
        assert rows == list(range(1, len(rows) + 1))
        assert last <= len(rows) <= last + 25
        last = len(rows)
    assert last > 0
    with cowshed.connect(own_server.unix) as client:
        assert client.read("golden@v1") == image.read_bytes()


def test_sqlite_clone_exported_is_the_same_database(
    server: NbdServer, client: cowshed.Client, base: str, tmp_path: Path
) -> None:
    image = tmp_path / "image"
    make_database(image)
    client.create(base, image.stat().st_size, block_size=4096)
    client.write(base, 0, image.read_bytes())
    with shown_as_file(server.uri(base), tmp_path / "db") as shown:
        with contextlib.closing(sqlite3.connect(shown.path)) as database, database:
            database.execute("INSERT INTO done VALUES (1, ?)", ("transaction 1" * 20,))
        assert committed(shown.path) == [1]
    exported = tmp_path / "exported"
    exported.write_bytes(client.read(base))
    assert committed(exported) == [1]


def test_unmounting_ends_the_attachment(
    server: NbdServer, client: cowshed.Client, base: str, tmp_path: Path
) -> None:
    client.create(base, MIB)
    for n in range(3):
        with shown_as_file(server.uri(base), tmp_path / f"disk{n}") as shown:
            with shown.path.open("r+b", buffering=0) as file:
                file.write(bytes([n + 1]))
        until = time.monotonic() + 10
        while list(client.attachments(base)):
            assert time.monotonic() < until
        assert client.read(base, 0, 1) == bytes([n + 1])


def test_file_whose_export_is_missing_is_told(server: NbdServer, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="nbdfuse: "):
        with shown_as_file(server.uri("no/such"), tmp_path / "disk"):
            pass
    assert shutil.which("nbdfuse") is not None

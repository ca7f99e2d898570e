# SPDX-License-Identifier: Apache-2.0
"""Bytes through the blocking client: files, streams, diffs."""

from __future__ import annotations

import io
import os
import random

import cowshed
import pytest

from client_support import MIB


def noise(count: int, seed: int = 1) -> bytes:
    """Bytes that no hole looks like."""
    return random.Random(seed).randbytes(count)


def test_file_object_keeps_the_rules_of_io(client: cowshed.Client, base: str) -> None:
    client.create(base, MIB + 10)
    with client.open(base, "r+b") as f:
        assert isinstance(f, io.RawIOBase)
        assert f.readable() and f.writable() and f.seekable() and not f.closed
        assert f.size_bytes == MIB + 10
        assert f.seek(-10, os.SEEK_END) == MIB
        assert f.write(b"0123456789") == 10
        assert f.tell() == MIB + 10
        assert f.read(5) == b""
        f.seek(MIB + 4)
        assert f.read(100) == b"456789"
        assert f.seek(MIB + 1) and f.seek(2, os.SEEK_CUR) == MIB + 3
        buffer = bytearray(4)
        assert f.readinto(buffer) == 4 and buffer == b"3456"
        with pytest.raises(ValueError):
            f.seek(-1)
        assert f.write(b"") == 0
    assert f.closed
    with pytest.raises(ValueError):
        f.write(b"x")
    with pytest.raises(ValueError):
        f.read(1)


def test_fdatasync_is_durable_without_a_txg(client: cowshed.Client, base: str) -> None:
    client.create(base, MIB)
    client.write(base, 0, b"x")
    client.fdatasync(base)
    with client.open(base, "r+b") as f:
        f.write(b"moo")
        f.fdatasync()
        assert not f._unflushed
        f.fdatasync()
        assert client.read(base, 0, 3) == b"moo"
    with pytest.raises(ValueError):
        f.fdatasync()


def test_file_modes(client: cowshed.Client, base: str) -> None:
    client.create(base, MIB)
    client.snapshot(f"{base}@s")
    with client.open(base) as f, pytest.raises(io.UnsupportedOperation):
        f.write(b"x")
    with pytest.raises(io.UnsupportedOperation):
        client.open(f"{base}@s", "r+b")
    with pytest.raises(ValueError, match="mode"):
        client.open(base, "w")
    with pytest.raises(cowshed.NotFoundError):
        client.open(f"{base}/none")
    with pytest.raises(cowshed.PreconditionError) as caught:
        client.write(f"{base}@s", 0, b"x")
    assert caught.value.reason == "SNAPSHOT_IS_READ_ONLY"


def test_large_transfers_use_streams_and_match(client: cowshed.Client, base: str) -> None:
    data = noise(5 * MIB + 333)
    client.create(base, 8 * MIB)
    with client.open(base, "r+b") as f:
        f.seek(4097)
        assert f.write(data) == len(data)
        f.seek(0)
        stored = f.read(8 * MIB)
        f.seek(0)
        assert f.readall() == stored
    assert stored == bytes(4097) + data + bytes(8 * MIB - 4097 - len(data))
    assert client.read(base) == stored


def test_buffered_file_is_durable_after_flush(client: cowshed.Client, base: str) -> None:
    client.create(base, MIB)
    with client.open(base, "r+b", buffering=65536) as f:
        assert isinstance(f, cowshed.BufferedDatasetFile)
        for i in range(100):
            f.write(f"{i:04}".encode())
        assert client.read(base, 0, 4) == bytes(4), "still in the buffer"
        f.flush()
        assert client.read(base, 0, 8) == b"00000001"
        assert not f.raw._unflushed  # type: ignore[attr-defined]
        f.seek(396)
        assert f.read(4) == b"0099"
        f.write(b"end")
    assert client.read(base, 400, 3) == b"end"
    with client.open(base, "rb", buffering=4096) as reader:
        assert isinstance(reader, io.BufferedReader)
        assert reader.read(4) == b"0000"


def test_ranges_beyond_the_size_are_refused(client: cowshed.Client, base: str) -> None:
    client.create(base, 1000)
    for attempt in (
        lambda: client.write(base, 999, b"ab"),
        lambda: client.read(base, 0, 1001),
        lambda: client.discard(base, 1000, 1),
    ):
        with pytest.raises(cowshed.OutOfRangeError) as caught:
            attempt()
        assert caught.value.reason == "BEYOND_SIZE"
    with client.open(base, "r+b") as f:
        f.seek(2000)
        assert f.read(1) == b""
        with pytest.raises(cowshed.OutOfRangeError):
            f.write(b"x")
        f.seek(0)
    assert client.read(base, 1000, 0) == b""


def test_zero_and_discard_read_as_zeros(client: cowshed.Client, base: str) -> None:
    data = noise(2 * MIB)
    client.create(base, 2 * MIB)
    client.write(base, 0, data)
    assert client.zero(base, 100, 50_000) > 0
    client.discard(base, MIB, MIB)
    with client.open(base, "r+b") as f:
        f.seek(60_000)
        f.zero(10)
        f.discard(20)
        assert f.tell() == 60_030
    expected = bytearray(data)
    expected[100:50_100] = bytes(50_000)
    expected[60_000:60_030] = bytes(30)
    expected[MIB:] = bytes(MIB)
    assert client.read(base) == expected


def test_holes_travel_as_holes(client: cowshed.Client, base: str) -> None:
    client.create(base, 64 * MIB)
    client.write(base, 33 * MIB, b"x")
    chunks = list(client.read_chunks(base))
    assert sum(c.length_bytes for c in chunks) == 64 * MIB
    assert sum(c.length_bytes for c in chunks if c.data is not None) <= MIB
    ends = [c.offset_bytes + c.length_bytes for c in chunks]
    assert [c.offset_bytes for c in chunks[1:]] == ends[:-1], "no gaps"


def test_write_stream_counts_and_flushes(client: cowshed.Client, base: str) -> None:
    client.create(base, 64 * MIB)
    data = noise(24 * MIB)
    with client.write_stream(base) as stream:
        stream.write(0, data)
        stream.zero(24 * MIB, 30 * MIB)
        first = stream.flush()
        assert stream.accepted_bytes == 54 * MIB
        stream.write(63 * MIB, b"last")
        second = stream.flush()
        assert second >= first > 0
        assert stream.boot_id == client.server_info().boot_id
    assert stream.accepted_bytes == 54 * MIB + 4
    assert client.read(base, 0, 24 * MIB) == data
    with pytest.raises(ValueError):
        stream.write(0, b"x")


def test_failed_stream_says_what_was_accepted(client: cowshed.Client, base: str) -> None:
    client.create(base, MIB)
    with pytest.raises(cowshed.OutOfRangeError) as caught:
        with client.write_stream(base) as stream:
            stream.write(0, b"x" * 1000)
            stream.write(MIB, b"beyond")
            stream.flush()
    assert caught.value.metadata["accepted_bytes"] == "1000"
    assert stream.accepted_bytes == 1000
    with pytest.raises(cowshed.NotFoundError):
        with client.write_stream(f"{base}/none") as stream:
            stream.flush()


def test_file_is_pinned_to_its_object(client: cowshed.Client, base: str) -> None:
    client.create(base, MIB)
    f = client.open(base, "r+b")
    client.destroy(base)
    with pytest.raises(cowshed.NotFoundError):
        f.read(1)
    client.create(base, MIB)
    with pytest.raises(cowshed.EtagMismatchError):
        f.read(1)
    with pytest.raises(cowshed.EtagMismatchError):
        f.write(b"never into the successor")
    with pytest.raises(cowshed.EtagMismatchError):
        f.close()
    assert client.read(base, 0, 24) == bytes(24)


def test_stream_ends_with_its_dataset(client: cowshed.Client, base: str) -> None:
    client.create(base, MIB)
    with pytest.raises(cowshed.DatasetDestroyedError):
        with client.write_stream(base) as stream:
            stream.write(0, b"x")
            stream.flush()
            client.destroy(base)
            while True:
                stream.write(0, b"y")
                stream.flush()


def test_snapshot_does_not_change(client: cowshed.Client, base: str) -> None:
    client.create(base, MIB)
    client.write(base, 0, b"before")
    client.snapshot(f"{base}@s")
    client.write(base, 0, b"after!")
    with client.open(f"{base}@latest") as f:
        assert f.name == f"{base}@s"
        assert f.read(6) == b"before"
    assert client.read(base, 0, 6) == b"after!"


def test_diff_lists_what_changed(client: cowshed.Client, base: str) -> None:
    client.create(base, MIB, block_size=4096)
    client.write(base, 0, noise(MIB))
    client.snapshot(f"{base}@a")
    client.write(base, 8192, b"new")
    client.zero(base, 40960, 8192)
    client.snapshot(f"{base}@b")
    extents = list(client.diff(f"{base}@a", f"{base}@latest"))
    assert [(e.offset_bytes, e.length_bytes, e.data) for e in extents] == [
        (8192, 4096, True),
        (40960, 8192, False),
    ]
    assert [e.offset_bytes for e in client.diff(f"{base}@a", f"{base}@b", 40960)] == [40960]
    assert sum(e.length_bytes for e in client.diff("", f"{base}@a")) == MIB
    client.create(f"{base}/other", MIB)
    client.snapshot(f"{base}/other@s")
    with pytest.raises(cowshed.PreconditionError) as caught:
        list(client.diff(f"{base}@b", f"{base}/other@s"))
    assert caught.value.reason == "SNAPSHOTS_UNRELATED"

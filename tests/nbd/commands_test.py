# SPDX-License-Identifier: Apache-2.0
"""libnbd, the library beneath nbdsh: every command and every flag, beside gRPC."""

from __future__ import annotations

import random
from typing import Any

import pytest
from nbd_support import BLOCK_BYTES, MIB, NbdServer, connected, cowshed, extents, whole_map

nbd = pytest.importorskip("nbd", reason="not installed: python3-libnbd")

SIZE_BYTES = 4 * MIB + 777
ALLOCATION = "base:allocation"
DATA, HOLE = 0, 3


@pytest.fixture
def export(client: cowshed.Client, base: str) -> str:
    """An empty dataset."""
    client.create(base, SIZE_BYTES)
    return base


def written_by_grpc(client: cowshed.Client, name: str, rng: random.Random) -> bytes:
    """Half of a dataset filled; returns all of it."""
    content = bytearray(SIZE_BYTES)
    content[: SIZE_BYTES // 2] = rng.randbytes(SIZE_BYTES // 2)
    client.write(name, 0, bytes(content))
    return bytes(content)


@pytest.mark.parametrize("structured", [False, True])
def test_read_of_any_range(
    server: NbdServer, client: cowshed.Client, export: str, rng: random.Random, structured: bool
) -> None:
    content = written_by_grpc(client, export, rng)
    with connected(server, export, structured=structured) as h:
        assert h.get_structured_replies_negotiated() is structured
        assert h.pread(SIZE_BYTES, 0) == content
        assert h.pread(1, SIZE_BYTES - 1) == content[-1:]
        for _ in range(200):
            start, end = sorted(rng.randrange(SIZE_BYTES + 1) for _ in range(2))
            if start < end:
                assert h.pread(end - start, start) == content[start:end]


def chunks_of(h: Any, count: int, offset: int, flags: int = 0) -> list[tuple[int, int, int]]:
    """The chunks of one structured read: offset, length and status."""
    chunks: list[tuple[int, int, int]] = []

    def learn(subbuf: bytes, at: int, status: int, _error: object) -> int:
        chunks.append((at, len(subbuf), status))
        return 0

    h.pread_structured(count, offset, learn, flags)
    return sorted(chunks)


def test_holes_are_read_as_holes(
    server: NbdServer, client: cowshed.Client, export: str
) -> None:
    client.write(export, 10 * BLOCK_BYTES, b"x" * BLOCK_BYTES)
    client.write(export, 20 * BLOCK_BYTES, b"y" * BLOCK_BYTES)
    with connected(server, export) as h:
        chunks = chunks_of(h, 40 * BLOCK_BYTES, 0)
        # They cover the range once, and the holes travel as such.
        at = 0
        for offset, length, _ in chunks:
            assert offset == at
            at += length
        assert at == 40 * BLOCK_BYTES
        holes = sum(length for _, length, status in chunks if status == nbd.READ_HOLE)
        assert holes == 38 * BLOCK_BYTES


def test_df_is_answered_in_one_piece(
    server: NbdServer, client: cowshed.Client, export: str
) -> None:
    for n in range(0, 64, 2):
        client.write(export, n * BLOCK_BYTES, b"x" * BLOCK_BYTES)
    with connected(server, export) as h:
        assert h.can_df() is True
        assert len(chunks_of(h, 64 * BLOCK_BYTES, 0)) > 1
        assert len(chunks_of(h, 64 * BLOCK_BYTES, 0, nbd.CMD_FLAG_DF)) == 1


@pytest.mark.parametrize("structured", [False, True])
@pytest.mark.parametrize("flags", [0, nbd.CMD_FLAG_FUA])
def test_write_of_any_range(
    server: NbdServer,
    client: cowshed.Client,
    export: str,
    rng: random.Random,
    flags: int,
    structured: bool,
) -> None:
    content = bytearray(SIZE_BYTES)
    with connected(server, export, structured=structured) as h:
        for _ in range(40):
            length = rng.choice([1, 511, 4096, BLOCK_BYTES, rng.randrange(1, 200_000)])
            at = rng.randrange(SIZE_BYTES - length + 1)
            data = rng.randbytes(length)
            h.pwrite(data, at, flags)
            content[at : at + length] = data
            # Seen at once by others, flushed or not.
            assert client.read(export, at, length) == data
        h.pwrite(b"!", SIZE_BYTES - 1, flags)
        content[-1:] = b"!"
        h.flush()
        assert h.pread(SIZE_BYTES, 0) == content
    assert client.read(export) == content


def test_largest_requests(server: NbdServer, client: cowshed.Client, base: str) -> None:
    client.create(base, 33 * MIB)
    data = random.Random(1).randbytes(32 * MIB)
    with connected(server, base) as h:
        assert h.get_block_size(nbd.SIZE_MAXIMUM) == 32 * MIB
        h.pwrite(data, MIB)
        assert h.pread(32 * MIB, MIB) == data
        # What carries no data may be longer.
        h.cache(33 * MIB, 0)
        h.zero(33 * MIB, 0)
        assert whole_map_is_hole(h, base, server)


def whole_map_is_hole(h: Any, base: str, server: NbdServer) -> bool:
    """Whether nothing is allocated any more."""
    h.flush()
    with connected(server, base, ALLOCATION) as mapped:
        return whole_map(mapped, ALLOCATION) == [(0, mapped.get_size(), HOLE)]


@pytest.mark.parametrize("flags", [0, nbd.CMD_FLAG_FUA])
def test_trim_reads_as_zeros_at_once(
    server: NbdServer, client: cowshed.Client, export: str, rng: random.Random, flags: int
) -> None:
    content = bytearray(written_by_grpc(client, export, rng))
    with connected(server, export) as h:
        for start, end in ((0, 1), (5000, 70_000), (MIB, 2 * MIB), (SIZE_BYTES - 9, SIZE_BYTES)):
            h.trim(end - start, start, flags)
            content[start:end] = bytes(end - start)
            assert h.pread(SIZE_BYTES, 0) == content
    assert client.read(export) == content


@pytest.mark.parametrize(
    "flags",
    [
        0,
        nbd.CMD_FLAG_FUA,
        nbd.CMD_FLAG_NO_HOLE,
        nbd.CMD_FLAG_FAST_ZERO,
        nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FUA,
    ],
)
def test_zeros_are_zeros(
    server: NbdServer, client: cowshed.Client, export: str, rng: random.Random, flags: int
) -> None:
    content = bytearray(written_by_grpc(client, export, rng))
    with connected(server, export) as h:
        for start, end in ((3, 4), (BLOCK_BYTES - 1, 3 * BLOCK_BYTES + 1), (MIB, SIZE_BYTES)):
            h.zero(end - start, start, flags)
            content[start:end] = bytes(end - start)
            assert h.pread(SIZE_BYTES, 0) == content
    assert client.read(export) == content


def test_block_status_tells_data_from_holes(
    server: NbdServer, client: cowshed.Client, export: str
) -> None:
    client.write(export, 4 * BLOCK_BYTES, b"x" * (2 * BLOCK_BYTES))
    with connected(server, export, ALLOCATION) as h:
        assert h.can_meta_context(ALLOCATION) is True
        assert extents(h, 16 * BLOCK_BYTES)[ALLOCATION][:2] == [
            (4 * BLOCK_BYTES, HOLE),
            (2 * BLOCK_BYTES, DATA),
        ]
        # From the middle of a block, and only one.
        (one,) = extents(h, 16 * BLOCK_BYTES, 5 * BLOCK_BYTES + 7, nbd.CMD_FLAG_REQ_ONE)[ALLOCATION]
        assert one == (BLOCK_BYTES - 7, DATA)
        (one,) = extents(h, 100, 0, nbd.CMD_FLAG_REQ_ONE)[ALLOCATION]
        assert one == (100, HOLE)
        assert whole_map(h, ALLOCATION)[-1] == (
            6 * BLOCK_BYTES,
            SIZE_BYTES - 6 * BLOCK_BYTES,
            HOLE,
        )


def test_several_contexts_in_one_reply(
    server: NbdServer, client: cowshed.Client, export: str
) -> None:
    client.write(export, 0, b"x" * BLOCK_BYTES)
    client.snapshot(f"{export}@s1")
    client.write(export, 2 * BLOCK_BYTES, b"y" * BLOCK_BYTES)
    client.snapshot(f"{export}@s2")
    since = [f"cowshed:changed-since:{name}" for name in ("@s1", f"{export}@s2")]
    with connected(server, export, ALLOCATION, *since) as h:
        assert all(h.can_meta_context(context) for context in (ALLOCATION, *since))
        found = extents(h, SIZE_BYTES)
        assert set(found) == {ALLOCATION, *since}
        assert found[ALLOCATION][:2] == [(BLOCK_BYTES, DATA), (BLOCK_BYTES, HOLE)]
        assert found[since[0]][:2] == [(2 * BLOCK_BYTES, 0), (BLOCK_BYTES, 1)]
        assert {flags for _, flags in found[since[1]]} == {0}
        # A write through this very connection is a change, too, once it is durable.
        h.pwrite(b"z", 5 * BLOCK_BYTES, nbd.CMD_FLAG_FUA)
    client.sync()
    with connected(server, export, *since) as h:
        assert (5 * BLOCK_BYTES, BLOCK_BYTES, 1) in whole_map(h, since[1])


def test_contexts_are_listed(server: NbdServer, client: cowshed.Client, export: str) -> None:
    client.snapshot(f"{export}@s1")

    def listed(*queries: str) -> set[str]:
        h = nbd.NBD()
        h.set_opt_mode(True)
        h.set_export_name(export)
        for query in queries:
            h.add_meta_context(query)
        h.connect_unix(server.socket)
        found: set[str] = set()

        def learn(name: str) -> int:
            found.add(name)
            return 0

        h.opt_list_meta_context(learn)
        h.opt_abort()
        return found

    assert ALLOCATION in listed()
    assert listed("base:") == {ALLOCATION}
    assert f"cowshed:changed-since:{export}@s1" in listed("cowshed:")
    assert listed("cowshed:changed-since:@missing") == set()
    assert listed("qemu:") == set()


def test_cache_is_a_promise_without_bytes(
    server: NbdServer, client: cowshed.Client, export: str, rng: random.Random
) -> None:
    content = written_by_grpc(client, export, rng)
    with connected(server, export) as h:
        assert h.can_cache() is True
        h.cache(SIZE_BYTES, 0)
        h.cache(1, SIZE_BYTES - 1)
        assert h.pread(SIZE_BYTES, 0) == content


def test_list_and_info_without_attaching(
    server: NbdServer, client: cowshed.Client, export: str
) -> None:
    h = nbd.NBD()
    h.set_opt_mode(True)
    h.connect_unix(server.socket)
    names: set[str] = set()

    def learn(name: str, _description: str) -> int:
        names.add(name)
        return 0

    h.opt_list(learn)
    assert export in names
    h.set_export_name("no/such")
    with pytest.raises(nbd.Error):
        h.opt_info()
    # A refusal ends nothing: the next name may be right.
    h.set_export_name(export)
    h.opt_info()
    assert h.get_size() == SIZE_BYTES
    h.opt_go()
    assert h.pread(1, 0) == b"\0"
    h.shutdown()


def test_many_in_flight_are_answered_each(
    server: NbdServer, client: cowshed.Client, export: str, rng: random.Random
) -> None:
    content = written_by_grpc(client, export, rng)
    with connected(server, export) as h:
        wanted = []
        for _ in range(500):
            at = rng.randrange(SIZE_BYTES - 5000)
            buffer = nbd.Buffer(5000)
            wanted.append((at, buffer, h.aio_pread(buffer, at)))
        while h.aio_in_flight():
            h.poll(10_000)
        for at, buffer, cookie in wanted:
            assert h.aio_command_completed(cookie)
            assert buffer.to_bytearray() == content[at : at + 5000]


def test_reads_see_the_writes_that_were_acknowledged_before(
    server: NbdServer, client: cowshed.Client, export: str, rng: random.Random
) -> None:
    with connected(server, export) as one, connected(server, export) as two:
        for n in range(300):
            at = rng.randrange(SIZE_BYTES - 100)
            data = rng.randbytes(100)
            (one, two)[n % 2].pwrite(data, at)
            assert (two, one)[n % 2].pread(100, at) == data
            assert client.read(export, at, 100) == data


def test_disconnect_in_order_waits_for_nothing(
    server: NbdServer, client: cowshed.Client, export: str
) -> None:
    with connected(server, export) as h:
        h.pwrite(b"x" * MIB, 0)
        h.shutdown()
        assert h.aio_is_closed()
    assert client.read(export, 0, MIB) == b"x" * MIB

# SPDX-License-Identifier: Apache-2.0
"""The asyncio client: the same things, awaited."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable
from typing import Any

import cowshed
import pytest
from cowshed import aio

from client_support import MIB
from server_process import Server

Body = Callable[[aio.AsyncClient], Awaitable[None]]


def run(server: Server, body: Body) -> None:
    """Runs a coroutine with a client of its own."""

    async def main() -> None:
        async with await aio.connect(server.unix) as client:
            await body(client)

    asyncio.run(main())


def public_methods(cls: type[Any]) -> dict[str, list[str]]:
    """The public methods of a class, inherited ones too, and their parameters."""
    return {
        name: list(inspect.signature(member).parameters)
        for name, member in inspect.getmembers(cls, callable)
        if not name.startswith("_")
    }


def test_mirror_is_complete() -> None:
    blocking, mirrored = public_methods(cowshed.Client), public_methods(aio.AsyncClient)
    assert blocking.pop("open") == [*mirrored.pop("open"), "buffering"]
    assert mirrored == blocking
    blocking, mirrored = public_methods(cowshed.Operation), public_methods(aio.AsyncOperation)
    assert set(mirrored) == set(blocking)
    blocking, mirrored = public_methods(cowshed.WriteStream), public_methods(aio.AsyncWriteStream)
    assert set(blocking) - set(mirrored) == {"close"}


def test_life_of_a_clone(server: Server, base: str) -> None:
    async def body(c: aio.AsyncClient) -> None:
        golden, alice = f"{base}/golden", f"{base}/alice"
        await c.create(golden, MIB, labels={"k": "v"})
        await c.write(golden, 0, b"golden")
        await c.snapshot(f"{golden}@v1")
        clone = await c.clone(f"{golden}@latest", alice, ttl=60)
        assert clone.origin == f"{golden}@v1"
        async with await c.open(alice, "r+b") as f:
            f.seek(3)
            await f.write(b"goose")
            await f.flush()
            f.seek(0)
            assert await f.read(8) == b"golgoose"
            assert f.tell() == 8
        assert [d.name async for d in c.list(base, page_size=1)] == [alice, golden]
        assert [s.name async for s in c.list_snapshots(golden)] == [f"{golden}@v1"]
        assert await c.exists(f"{golden}@v1") and not await c.exists(f"{golden}@v2")
        await c.hold(f"{golden}@v1", "tag")
        assert [h.tag async for h in c.list_holds(prefix=base)] == ["tag"]
        await c.release(f"{golden}@v1", "tag")
        operation = await c.destroy(alice)
        assert (await operation.wait(60)).done
        assert operation.name in [o.name async for o in c.operations()]
        assert (await c.server_info()).version and (await c.pool()).uid

    run(server, body)


def test_scratch_and_errors(server: Server, base: str) -> None:
    async def body(c: aio.AsyncClient) -> None:
        await c.create(base, MIB)
        for i in range(25):
            await c.snapshot(f"{base}@s{i:02}")
        async with c.scratch(f"{base}@latest", prefix=f"{base}/tmp") as ds:
            assert await c.exists(ds)
        assert [d.name async for d in c.list(base)] == [base]
        with pytest.raises(cowshed.BlockedError) as caught:
            await c.destroy(base)
        assert caught.value.blockers.total == 25
        assert len([b async for b in caught.value.blockers]) == 25
        with pytest.raises(cowshed.NotFoundError):
            await c.get(f"{base}/none")
        with pytest.raises(cowshed.OutOfRangeError):
            await c.read(base, 0, MIB + 1)
        assert (await (await c.destroy(base, recursive=True)).wait(60)).done

    run(server, body)


def test_streams(server: Server, base: str) -> None:
    data = os.urandom(20 * MIB)

    async def body(c: aio.AsyncClient) -> None:
        await c.create(base, 32 * MIB)
        async with c.write_stream(base) as stream:
            await stream.write(0, data)
            await stream.zero(20 * MIB, MIB)
            assert await stream.flush() > 0
            assert stream.accepted_bytes == 21 * MIB
            await stream.write(31 * MIB, b"last")
            await stream.fdatasync()
            await stream.fdatasync()
        assert await c.read(base, 0, len(data)) == data
        assert await c.read(base, 31 * MIB, 4) == b"last"
        with pytest.raises(cowshed.OutOfRangeError) as caught:
            async with c.write_stream(base) as stream:
                await stream.write(0, b"x" * 1000)
                await stream.write(32 * MIB, b"beyond")
                await stream.flush()
        assert caught.value.metadata["accepted_bytes"] == "1000"
        async with await c.open(base, "r+b") as f:
            assert await f.write(data[: 3 * MIB]) == 3 * MIB
            f.seek(0)
            assert await f.read(3 * MIB) == data[: 3 * MIB]
        await c.snapshot(f"{base}@s")
        await c.discard(base, 0, MIB)
        await c.snapshot(f"{base}@t")
        extents = [e async for e in c.diff(f"{base}@s", f"{base}@t")]
        assert sum(e.length_bytes for e in extents) == MIB
        assert not any(e.data for e in extents)

    run(server, body)


def test_many_calls_at_once(server: Server, base: str) -> None:
    async def body(c: aio.AsyncClient) -> None:
        await c.create(base, MIB)
        await c.snapshot(f"{base}@s")
        names = [f"{base}/c{i:02}" for i in range(50)]
        await asyncio.gather(*(c.clone(f"{base}@s", name) for name in names))
        assert sorted([d.name async for d in c.list(origin=f"{base}@s")]) == names
        operation = await c.destroy(*names)
        assert (await operation.wait(60)).target_count == 50

    run(server, body)


def test_lost_writes(own_server: Server) -> None:
    async def body(c: aio.AsyncClient) -> None:
        await c.create("a", MIB)
        f = await c.open("a", "r+b")
        await f.write(b"lost")
        own_server.kill()
        own_server.start()
        with pytest.raises(cowshed.LostWritesError) as caught:
            await f.flush()
        assert caught.value.ranges == ((0, 4),)
        f.seek(0)
        await f.write(b"kept")
        await f.close()
        assert await c.read("a", 0, 4) == b"kept"

    run(own_server, body)


def test_unreachable() -> None:
    async def main() -> None:
        await aio.connect("unix:/nonexistent/socket", wait_ready=0.3)

    with pytest.raises(cowshed.UnavailableError, match="nonexistent"):
        asyncio.run(main())

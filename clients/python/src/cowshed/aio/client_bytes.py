# SPDX-License-Identifier: Apache-2.0
"""The asyncio client: bytes."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Awaitable, Callable

from cowshed import calls
from cowshed.aio.file import AsyncDatasetFile
from cowshed.aio.client_snapshots import AsyncSnapshotMethods
from cowshed.aio.streams import AsyncWriteStream, read_chunks, write_all
from cowshed.file import MODES
from cowshed.types import Chunk, Dataset, Extent, Name, Snapshot, name_of


class AsyncBytesMethods(AsyncSnapshotMethods):
    """Reads and writes what datasets and snapshots hold."""

    async def open(self, name: Name, mode: str = "rb") -> AsyncDatasetFile:
        """Opens a dataset or snapshot as a file object: "rb", or "r+b" to write, too."""
        if mode not in MODES:
            raise ValueError(f"mode {mode!r} is none of {', '.join(MODES)}")
        target: Dataset | Snapshot
        if "@" in name_of(name):
            if "+" in mode:
                raise io.UnsupportedOperation("a snapshot cannot be written")
            target = await self.get_snapshot(name)
        else:
            target = await self.get(name)
        return AsyncDatasetFile(self.transport, target.name, target.uid, target.size_bytes, mode)

    async def read(self, name: Name, offset: int = 0, length: int | None = None) -> bytes:
        """Returns a range of bytes. Raises OutOfRangeError if it passes the end."""
        pieces = [
            chunk.data if chunk.data is not None else bytes(chunk.length_bytes)
            async for chunk in self.read_chunks(name, offset, length)
        ]
        return b"".join(pieces)

    def read_chunks(
        self, name: Name, offset: int = 0, length: int | None = None, *, uid: str = ""
    ) -> AsyncIterator[Chunk]:
        """Streams a range as chunks; holes come as chunks without data."""
        return read_chunks(self.transport, name, offset, length, uid)

    def write_stream(self, dataset: Name, *, uid: str = "", boot_id: str = "") -> AsyncWriteStream:
        """Opens a stream for big writes: `async with c.write_stream(name) as w: ...`."""
        return AsyncWriteStream(self.transport, dataset, uid=uid, boot_id=boot_id)

    async def write(self, dataset: Name, offset: int, data: bytes) -> int:
        """Writes bytes and makes them durable. Returns the txg."""
        return await self._flushed(dataset, lambda stream: stream.write(offset, data))

    async def zero(self, dataset: Name, offset: int, length: int) -> int:
        """Makes a range zeros, durably, without sending them. Returns the txg."""
        return await self._flushed(dataset, lambda stream: stream.zero(offset, length))

    async def discard(self, dataset: Name, offset: int, length: int) -> int:
        """Gives up a range, durably: it reads as zeros, its blocks are freed. Returns the txg."""
        return await self._flushed(dataset, lambda stream: stream.discard(offset, length))

    async def _flushed(
        self, dataset: Name, action: Callable[[AsyncWriteStream], Awaitable[None]]
    ) -> int:
        async def act_and_flush(stream: AsyncWriteStream) -> int:
            await action(stream)
            return await stream.flush()

        return (await write_all(self.transport, dataset, act_and_flush))[0]

    async def flush(self, dataset: Name, *, boot_id: str = "") -> int:
        """Makes all acknowledged writes to a dataset durable. Returns the txg."""
        return (await self.call(calls.flush(dataset, boot_id=boot_id))).txg

    async def diff(self, older: Name, newer: Name, start: int = 0) -> AsyncIterator[Extent]:
        """Streams the extents that differ between two snapshots; `older` "" means nothing."""
        async for chunk in self.transport.stream(calls.diff(older, newer, start)):
            for extent in chunk.extents:
                yield Extent.from_proto(extent)

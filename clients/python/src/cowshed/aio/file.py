# SPDX-License-Identifier: Apache-2.0
"""A dataset or snapshot as an asyncio file object."""

from __future__ import annotations

import io
import os
from types import TracebackType

from cowshed import calls, channel, errors
from cowshed.aio.streams import read_chunks, write_all
from cowshed.aio.transport import AsyncTransport
from cowshed.file import UnflushedRanges, seek_target


class AsyncDatasetFile:
    """As `cowshed.DatasetFile`, with methods to await: `async with await c.open(name) as f: ...`.

    Raises LostWritesError by `write`, `flush` and `close`, when the server restarted before earlier
    writes were flushed. One task at a time may use it.
    """

    def __init__(
        self, transport: AsyncTransport, name: str, uid: str, size: int, mode: str
    ) -> None:
        self.name = name
        self.uid = uid
        self.mode = mode
        self.size_bytes = size
        self.closed = False
        self._transport = transport
        self._position = 0
        self._unflushed = UnflushedRanges()

    async def __aenter__(self) -> AsyncDatasetFile:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def writable(self) -> bool:
        """Whether the file was opened for writing."""
        return "+" in self.mode

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Moves the position; it may lie beyond the end."""
        self._check_open()
        self._position = seek_target(self._position, self.size_bytes, offset, whence)
        return self._position

    def tell(self) -> int:
        """The position."""
        self._check_open()
        return self._position

    async def read(self, length: int = -1) -> bytes:
        """Reads `length` bytes, less only at the end; -1: to the end."""
        self._check_open()
        left = max(0, self.size_bytes - self._position)
        length = left if length < 0 else min(length, left)
        if length == 0:
            return b""
        if length <= channel.CHUNK_BYTES:
            call = calls.read_range(self.name, self._position, length, uid=self.uid)
            data = (await self._transport.unary(call)).data
        else:
            chunks = read_chunks(self._transport, self.name, self._position, length, self.uid)
            pieces = [
                chunk.data if chunk.data is not None else bytes(chunk.length_bytes)
                async for chunk in chunks
            ]
            data = b"".join(pieces)
        self._position += length
        return data

    async def write(self, data: bytes | bytearray | memoryview) -> int:
        """Writes all of the data at the position, or raises."""
        self._check_writable()
        view = memoryview(data).cast("B")
        if not view:
            return 0
        boot_id = self._unflushed.boot_id
        self._unflushed.add(self._position, self._position + len(view))
        try:
            if len(view) > channel.CHUNK_BYTES:
                _, accepted_by = await write_all(
                    self._transport,
                    self.name,
                    lambda stream: stream.write(self._position, view),
                    uid=self.uid,
                    boot_id=boot_id,
                )
                self._unflushed.accepted_by(accepted_by)
            else:
                call = calls.write_range(
                    self.name, self._position, data=bytes(view), uid=self.uid, boot_id=boot_id
                )
                self._unflushed.accepted_by((await self._transport.unary(call)).boot_id)
        except errors.ServerRestartedError:
            raise self._unflushed.lost(self.name) from None
        self._position += len(view)
        return len(view)

    async def flush(self) -> None:
        """Makes every write through this file durable; returns when it is."""
        await self._make_durable(data_only=False)

    async def fdatasync(self) -> None:
        """Makes every write through this file survive a crash.

        Cheaper than `flush` for little data; no query need show it yet.
        """
        await self._make_durable(data_only=True)

    async def _make_durable(self, *, data_only: bool) -> None:
        self._check_open()
        if not self._unflushed:
            return
        boot_id = self._unflushed.boot_id
        call = calls.flush(self.name, uid=self.uid, boot_id=boot_id, data_only=data_only)
        try:
            await self._transport.unary(call)
        except errors.ServerRestartedError:
            raise self._unflushed.lost(self.name) from None
        self._unflushed.clear()

    async def close(self) -> None:
        """Flushes and closes the file."""
        if self.closed:
            return
        try:
            await self.flush()
        finally:
            self.closed = True

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def _check_writable(self) -> None:
        self._check_open()
        if not self.writable():
            raise io.UnsupportedOperation("not writable")

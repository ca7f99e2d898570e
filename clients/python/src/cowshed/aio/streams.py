# SPDX-License-Identifier: Apache-2.0
"""Big transfers over asyncio streams; the rules are those of `cowshed.streams`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import TypeVar

import grpc

from cowshed import calls, channel, errors
from cowshed.aio.transport import AsyncTransport
from cowshed.streams import cut
from cowshed.types import Chunk, Name, name_of
from cowshed.v1 import data_pb2

T = TypeVar("T")


async def read_chunks(
    transport: AsyncTransport, name: Name, offset: int, length: int | None, uid: str
) -> AsyncIterator[Chunk]:
    """Yields the range as chunks, ascending and without gaps; takes up a broken stream again."""
    end = None if length is None else offset + length
    deadline: float | None = None
    attempt = 0
    while True:
        left = None if end is None else end - offset
        try:
            async for message in transport.stream(calls.read(name, offset, left, uid=uid)):
                uid = message.uid or uid
                end = message.size_bytes if end is None and message.uid else end
                attempt, deadline = 0, None
                chunk = Chunk.from_proto(message)
                offset = chunk.offset_bytes + chunk.length_bytes
                if chunk.length_bytes:
                    yield chunk
            return
        except errors.CowshedError as error:
            if error.reason == "READER_STALLED":
                continue  # our consumer was slow, not the server: go on where it stopped
            deadline = deadline or time.monotonic() + transport.timeout
            delay = channel.retry_delay(error, attempt)
            if delay is None or time.monotonic() + delay >= deadline:
                raise
            if end is not None and offset >= end:
                return
            await asyncio.sleep(delay)
            attempt += 1


async def write_all(
    transport: AsyncTransport,
    dataset: Name,
    action: Callable[[AsyncWriteStream], Awaitable[T]],
    *,
    uid: str = "",
    boot_id: str = "",
) -> tuple[T, str]:
    """Runs `action` on a Write stream; on a new one again, should the server go away meanwhile."""

    async def attempt(remaining: float) -> tuple[T, str]:
        async with AsyncWriteStream(transport, dataset, uid=uid, boot_id=boot_id) as stream:
            result = await action(stream)
        return result, stream.boot_id

    return await transport.retry(attempt, transport.timeout)


class AsyncWriteStream:
    """Writes to one dataset through one stream: `async with c.write_stream(name) as w: ...`.

    Everything is volatile until `flush` or `fdatasync`. Leaving the context ends the stream and
    waits for the last ack; it does neither. One task at a time may use it.
    """

    def __init__(
        self, transport: AsyncTransport, dataset: Name, *, uid: str = "", boot_id: str = ""
    ) -> None:
        self.accepted_bytes = 0
        self.boot_id = ""
        self._transport = transport
        self._name = name_of(dataset)
        self._header = calls.write_header(dataset, uid=uid, boot_id=boot_id)
        self._sent_bytes = 0
        self._flushes_sent = 0
        self._flushed_txgs: list[int] = []
        self._fdatasyncs_sent = 0
        self._fdatasyncs_done = 0
        self._ended = False
        self._error: errors.CowshedError | None = None
        self._changed = asyncio.Condition()

    async def __aenter__(self) -> AsyncWriteStream:
        assert isinstance(self._header.request, data_pb2.WriteRequest)
        self._call = self._transport.open_write(self._header)
        self._reader = asyncio.create_task(self._read_acks())
        await self._write(self._header.request)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._call.cancel()
            await self._reader
            return
        if not self._ended:
            await self._call.done_writing()
        await self._wait(lambda: self._ended)

    async def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Writes bytes at an offset. Waits while more than the window is unacknowledged."""
        for piece in cut(data):
            await self._send(data_pb2.WriteChunk(offset_bytes=offset, data=piece), len(piece))
            offset += len(piece)

    async def zero(self, offset: int, length: int) -> None:
        """Writes zeros without sending them; whole blocks become holes."""
        await self._send(data_pb2.WriteChunk(offset_bytes=offset, zero_bytes=length), length)

    async def discard(self, offset: int, length: int) -> None:
        """Says that a range is no longer needed: it reads as zeros, its blocks are freed."""
        await self._send(data_pb2.WriteChunk(offset_bytes=offset, discard_bytes=length), length)

    async def flush(self) -> int:
        """Makes everything written so far durable. Returns the txg in which it is."""
        await self._send(data_pb2.WriteChunk(flush=True), 0)
        self._flushes_sent += 1
        await self._wait(lambda: len(self._flushed_txgs) >= self._flushes_sent)
        return self._flushed_txgs[-1]

    async def fdatasync(self) -> None:
        """Sees to it that everything written so far survives a crash: cheaper than `flush` where it
        is little, and in no txg yet."""
        await self._send(data_pb2.WriteChunk(make_durable=True), 0)
        self._fdatasyncs_sent += 1
        await self._wait(lambda: self._fdatasyncs_done >= self._fdatasyncs_sent)

    async def _read_acks(self) -> None:
        error: errors.CowshedError | None = None
        try:
            async for ack in self._call:
                async with self._changed:
                    self.accepted_bytes = ack.accepted_bytes
                    self.boot_id = ack.boot_id
                    if ack.HasField("flushed_txg"):
                        self._flushed_txgs.append(ack.flushed_txg)
                    self._fdatasyncs_done += ack.durable
                    self._changed.notify_all()
        except grpc.RpcError as e:
            error = self._transport.error(e)
        except asyncio.CancelledError:
            # The call was cancelled, by us; a cancelled reader task would have no one to tell.
            error = errors.CancelledError("the stream was cancelled")
        async with self._changed:
            self._error = error
            self._ended = True
            self._changed.notify_all()

    async def _send(self, chunk: data_pb2.WriteChunk, length: int) -> None:
        await self._wait(lambda: self._sent_bytes - self.accepted_bytes < channel.WINDOW_BYTES)
        await self._write(data_pb2.WriteRequest(chunk=chunk))
        self._sent_bytes += length

    async def _write(self, request: data_pb2.WriteRequest) -> None:
        try:
            await self._call.write(request)
        except (grpc.RpcError, asyncio.InvalidStateError):
            # The call has failed; why, the reader learns.
            await self._wait(lambda: False)

    async def _wait(self, condition: Callable[[], bool]) -> None:
        timeout = self._transport.timeout
        async with self._changed:
            while not condition() and not self._ended:
                accepted = self.accepted_bytes
                try:
                    await asyncio.wait_for(self._changed.wait(), timeout)
                except asyncio.TimeoutError:
                    if self.accepted_bytes == accepted:
                        self._call.cancel()
                        raise errors.DeadlineExceededError(
                            f"no ack for a write to {self._name} within {timeout:g} s"
                        ) from None
        if not self._ended:
            return
        if self._error is not None:
            raise self._error
        if not condition():
            raise errors.InternalError("the server ended the stream before all was accepted")

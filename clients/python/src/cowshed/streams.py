# SPDX-License-Identifier: Apache-2.0
"""Big transfers over streams: reading with resume, writing ahead of the acks."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TypeVar

import grpc

from cowshed import calls, channel, errors
from cowshed.transport import Transport
from cowshed.types import Chunk, Name, name_of
from cowshed.v1 import data_pb2

T = TypeVar("T")

_Condition = Callable[[], bool]

_STOP = None
_QUEUE_CHUNKS = 4
"""Keeps gRPC's sender busy; what is under way is bounded by WINDOW_BYTES."""


def read_chunks(
    transport: Transport, name: Name, offset: int, length: int | None, uid: str
) -> Iterator[Chunk]:
    """Yields the range as chunks, ascending and without gaps.

    A stream that breaks because the server went away is taken up again behind the last chunk, of
    the same object (its uid is pinned by the first chunk).
    """
    end = None if length is None else offset + length
    deadline: float | None = None
    attempt = 0
    while True:
        left = None if end is None else end - offset
        try:
            call = calls.read(name, offset, left, uid=uid)
            for message in transport.stream(call, wait_for_ready=attempt > 0):
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
            time.sleep(delay)
            attempt += 1


def cut(data: bytes | bytearray | memoryview) -> Iterator[bytes]:
    """Cuts data into the chunks of a stream. What fits one as it is, is not copied."""
    if isinstance(data, bytes) and 0 < len(data) <= channel.CHUNK_BYTES:
        yield data
        return
    view = memoryview(data).cast("B")
    for start in range(0, len(view), channel.CHUNK_BYTES):
        yield bytes(view[start : start + channel.CHUNK_BYTES])


def write_all(
    transport: Transport,
    dataset: Name,
    action: Callable[[WriteStream], T],
    *,
    uid: str = "",
    boot_id: str = "",
) -> tuple[T, str]:
    """Runs `action` on a Write stream; on a new one again, should the server go away meanwhile.

    Safe because writes are idempotent by offset, as long as `action` does all of them each time.

    Returns:
        what `action` returned, and the boot_id of the server that accepted it all.
    """

    def attempt(remaining: float, again: bool) -> tuple[T, str]:
        with WriteStream(
            transport, dataset, uid=uid, boot_id=boot_id, wait_for_ready=again
        ) as stream:
            result = action(stream)
        return result, stream.boot_id

    return transport.retry(attempt, transport.timeout)


class WriteStream:
    """Writes to one dataset through one stream; use it as a context manager.

    Everything is volatile until `flush` or `fdatasync`. Leaving the context ends the stream and
    waits for the last ack; it does neither. One thread at a time may use it.

    Attributes:
        accepted_bytes: bytes the server has acknowledged, in the order they were written.
        boot_id: the server's start that the stream belongs to; "" before the first ack.
    """

    def __init__(
        self,
        transport: Transport,
        dataset: Name,
        *,
        uid: str = "",
        boot_id: str = "",
        wait_for_ready: bool = False,
    ) -> None:
        self.accepted_bytes = 0
        self.boot_id = ""
        self._name = name_of(dataset)
        self._transport = transport
        self._sent_bytes = 0
        self._flushes_sent = 0
        self._flushed_txgs: list[int] = []
        self._fdatasyncs_sent = 0
        self._fdatasyncs_done = 0
        self._error: errors.CowshedError | None = None
        self._ended = False
        self._closed = False
        self._changed = threading.Condition()
        call = calls.write_header(dataset, uid=uid, boot_id=boot_id)
        assert isinstance(call.request, data_pb2.WriteRequest)
        self._pending: deque[data_pb2.WriteRequest | None] = deque([call.request])
        self._call = transport.open_write(self._requests(), call, wait_for_ready)
        self._reader = threading.Thread(target=self._read_acks, name="cowshed-acks", daemon=True)
        self._reader.start()

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Writes bytes at an offset. Waits while more than the window is unacknowledged."""
        for piece in cut(data):
            self._send(data_pb2.WriteChunk(offset_bytes=offset, data=piece), len(piece))
            offset += len(piece)

    def zero(self, offset: int, length: int) -> None:
        """Writes zeros without sending them; whole blocks become holes."""
        self._send(data_pb2.WriteChunk(offset_bytes=offset, zero_bytes=length), length)

    def discard(self, offset: int, length: int) -> None:
        """Says that a range is no longer needed: it reads as zeros, its blocks are freed."""
        self._send(data_pb2.WriteChunk(offset_bytes=offset, discard_bytes=length), length)

    def flush(self) -> int:
        """Makes everything written so far durable.

        Returns:
            the txg in which it is.
        """
        self._send(data_pb2.WriteChunk(flush=True), 0)
        self._flushes_sent += 1
        self._wait(lambda: len(self._flushed_txgs) >= self._flushes_sent)
        return self._flushed_txgs[-1]

    def fdatasync(self) -> None:
        """Sees to it that everything written so far survives a crash: cheaper than `flush` where it
        is little, and in no txg yet."""
        self._send(data_pb2.WriteChunk(make_durable=True), 0)
        self._fdatasyncs_sent += 1
        self._wait(lambda: self._fdatasyncs_done >= self._fdatasyncs_sent)

    def close(self) -> None:
        """Ends the stream and waits until all was accepted."""
        if self._closed:
            return
        self._closed = True
        self._put(_STOP)
        self._wait(lambda: self._ended)

    def __enter__(self) -> WriteStream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._closed = True
            self._call.cancel()

    def _requests(self) -> Iterator[data_pb2.WriteRequest]:
        """What gRPC's sending thread takes. Ends with _STOP, or when the stream has ended."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._ended)
                request = self._pending.popleft() if self._pending else _STOP
                self._changed.notify_all()
            if request is _STOP:
                return
            yield request

    def _read_acks(self) -> None:
        error: errors.CowshedError | None = None
        try:
            for ack in self._call:
                with self._changed:
                    self.accepted_bytes = ack.accepted_bytes
                    self.boot_id = ack.boot_id
                    if ack.HasField("flushed_txg"):
                        self._flushed_txgs.append(ack.flushed_txg)
                    self._fdatasyncs_done += ack.durable
                    self._changed.notify_all()
        except grpc.RpcError as e:
            error = self._transport.error(e)
        with self._changed:
            self._error = error
            if error is not None:
                accepted = error.metadata.get("accepted_bytes", "")
                self.accepted_bytes = max(
                    self.accepted_bytes, int(accepted) if accepted.isdigit() else 0
                )
            self._ended = True
            self._pending.clear()
            self._changed.notify_all()

    def _send(self, chunk: data_pb2.WriteChunk, length: int) -> None:
        if self._closed:
            raise ValueError("the stream is closed")
        self._wait(lambda: self._sent_bytes - self.accepted_bytes < channel.WINDOW_BYTES)
        self._put(data_pb2.WriteRequest(chunk=chunk))
        self._sent_bytes += length

    def _put(self, request: data_pb2.WriteRequest | None) -> None:
        self._wait(lambda: len(self._pending) < _QUEUE_CHUNKS)
        with self._changed:
            if not self._ended:
                self._pending.append(request)
                self._changed.notify_all()

    def _wait(self, condition: _Condition) -> None:
        timeout = self._transport.timeout
        with self._changed:
            last = self.accepted_bytes
            while not condition() and not self._ended:
                if not self._changed.wait(timeout) and self.accepted_bytes == last:
                    self._call.cancel()
                    raise errors.DeadlineExceededError(
                        f"no ack for a write to {self._name} within {timeout:g} s"
                    )
                last = self.accepted_bytes
        self._raise_if_ended(unless=condition)

    def _raise_if_ended(self, unless: _Condition = lambda: False) -> None:
        if not self._ended:
            return
        if self._error is not None:
            raise self._error
        if not unless():
            raise errors.InternalError("the server ended the stream before all was accepted")


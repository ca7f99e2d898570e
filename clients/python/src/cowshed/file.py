# SPDX-License-Identifier: Apache-2.0
"""A dataset or snapshot as a file object."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from cowshed import calls, channel, errors
from cowshed.streams import read_chunks, write_all

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

    from cowshed.transport import Transport

MODES = ("rb", "r+b", "rb+")

_STREAM_BYTES = 2 * channel.CHUNK_BYTES
"""From here on a transfer is worth a stream of its own."""


_MERGE_AT = 1024


class UnflushedRanges:
    """The ranges written since the last flush, and the server's start that accepted them.

    A sequential writer costs one entry. Others are merged whenever their number has doubled, so that
    a writer who goes over the same places again and again does not pile them up.
    """

    def __init__(self) -> None:
        self.boot_id = ""
        self._ranges: list[tuple[int, int]] = []
        self._merge_at = _MERGE_AT

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def add(self, start: int, end: int) -> None:
        """Adds a range that was, or is about to be, written."""
        if self._ranges and self._ranges[-1][0] <= start <= self._ranges[-1][1]:
            last = self._ranges[-1]
            self._ranges[-1] = (last[0], max(last[1], end))
        elif start < end:
            self._ranges.append((start, end))
            if len(self._ranges) >= self._merge_at:
                self._ranges = merge(self._ranges)
                self._merge_at = max(_MERGE_AT, 2 * len(self._ranges))

    def accepted_by(self, boot_id: str) -> None:
        """The server's start that accepted the ranges added so far."""
        self.boot_id = self.boot_id or boot_id

    def clear(self) -> None:
        """All is durable, or given up."""
        self.boot_id = ""
        self._ranges = []

    def lost(self, name: str) -> errors.LostWritesError:
        """The error for a server that restarted; the ranges are given up."""
        ranges = merge(self._ranges)
        self.clear()
        total = sum(end - start for start, end in ranges)
        return errors.LostWritesError(
            f"the server restarted before {total} bytes written to {name} were flushed;"
            f" write these ranges again: {format_ranges(ranges)}",
            ranges,
        )


def merge(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same bytes as ascending, disjoint ranges."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def format_ranges(ranges: list[tuple[int, int]]) -> str:
    """Ranges for people; the first ten."""
    shown = ", ".join(f"[{start}, {end})" for start, end in ranges[:10])
    return shown + (f" and {len(ranges) - 10} more" if len(ranges) > 10 else "")


def seek_target(position: int, size: int, offset: int, whence: int) -> int:
    """Where a seek leads."""
    base = {os.SEEK_SET: 0, os.SEEK_CUR: position, os.SEEK_END: size}.get(whence)
    if base is None:
        raise ValueError(f"invalid whence: {whence}")
    if base + offset < 0:
        raise ValueError(f"negative seek position: {base + offset}")
    return base + offset


class DatasetFile(io.RawIOBase):
    """Reads and writes a dataset at a position, as any raw file object does.

    Reads end at the size; a write that would pass it is refused with OutOfRangeError. `flush` makes
    all writes durable, and so does `close`. The object is pinned by its uid: if it is destroyed and
    another one takes its name, the file raises EtagMismatchError or NotFoundError instead of
    touching the successor. One thread at a time may use it.

    Raises:
        LostWritesError: by `write`, `flush` and `close`, when the server restarted before earlier
            writes were flushed. It names the ranges; write them again through the same file.
    """

    def __init__(self, transport: Transport, name: str, uid: str, size: int, mode: str) -> None:
        super().__init__()
        self.name = name
        self.uid = uid
        self.mode = mode
        self._transport = transport
        self._size = size
        self._position = 0
        self._unflushed = UnflushedRanges()

    @property
    def size_bytes(self) -> int:
        """The size when the file was opened."""
        return self._size

    def readable(self) -> bool:
        """True."""
        return True

    def writable(self) -> bool:
        """Whether the file was opened for writing."""
        return "+" in self.mode

    def seekable(self) -> bool:
        """True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Moves the position; it may lie beyond the end."""
        self._check_open()
        self._position = seek_target(self._position, self._size, offset, whence)
        return self._position

    def tell(self) -> int:
        """The position."""
        self._check_open()
        return self._position

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Reads into the buffer; less than its length only at the end."""
        self._check_open()
        view = memoryview(buffer).cast("B")
        length = max(0, min(len(view), self._size - self._position))
        if length > _STREAM_BYTES:
            self._stream_into(view[:length])
        else:
            for start in range(0, length, channel.CHUNK_BYTES):
                step = min(channel.CHUNK_BYTES, length - start)
                call = calls.read_range(self.name, self._position + start, step, uid=self.uid)
                view[start : start + step] = self._transport.unary(call).data
        self._position += length
        return length

    def _stream_into(self, view: memoryview) -> None:
        base = self._position
        for chunk in read_chunks(self._transport, self.name, base, len(view), self.uid):
            start = chunk.offset_bytes - base
            data = chunk.data if chunk.data is not None else bytes(chunk.length_bytes)
            view[start : start + chunk.length_bytes] = data

    def readall(self) -> bytes:
        """Reads from the position to the end."""
        data = bytearray(max(0, self._size - self._position))
        self.readinto(data)
        return bytes(data)

    def write(self, data: ReadableBuffer) -> int:
        """Writes all of the data at the position, or raises."""
        self._check_writable()
        view = memoryview(data).cast("B")
        if not view:
            return 0
        boot_id = self._unflushed.boot_id
        self._unflushed.add(self._position, self._position + len(view))
        try:
            if len(view) > channel.CHUNK_BYTES:
                _, accepted_by = write_all(
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
                self._unflushed.accepted_by(self._transport.unary(call).boot_id)
        except errors.ServerRestartedError:
            raise self._unflushed.lost(self.name) from None
        self._position += len(view)
        return len(view)

    def zero(self, length: int) -> None:
        """Makes the next `length` bytes zeros, without sending them; moves past them."""
        self._empty(length, discard=False)

    def discard(self, length: int) -> None:
        """As `zero`, for data that is no longer needed; its blocks are freed in the background."""
        self._empty(length, discard=True)

    def _empty(self, length: int, *, discard: bool) -> None:
        self._check_writable()
        boot_id = self._unflushed.boot_id
        self._unflushed.add(self._position, self._position + length)
        call = calls.write_range(
            self.name,
            self._position,
            zero=None if discard else length,
            discard=length if discard else None,
            uid=self.uid,
            boot_id=boot_id,
        )
        try:
            self._unflushed.accepted_by(self._transport.unary(call).boot_id)
        except errors.ServerRestartedError:
            raise self._unflushed.lost(self.name) from None
        self._position += length

    def flush(self) -> None:
        """Makes every write through this file durable; returns when it is."""
        super().flush()
        self._make_durable(data_only=False)

    def fdatasync(self) -> None:
        """Makes every write through this file survive a crash.

        Cheaper than `flush` for little data; no query need show it yet.
        """
        self._check_open()
        self._make_durable(data_only=True)

    def _make_durable(self, *, data_only: bool) -> None:
        if not self._unflushed:
            return
        boot_id = self._unflushed.boot_id
        call = calls.flush(self.name, uid=self.uid, boot_id=boot_id, data_only=data_only)
        try:
            self._transport.unary(call)
        except errors.ServerRestartedError:
            raise self._unflushed.lost(self.name) from None
        self._unflushed.clear()

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def _check_writable(self) -> None:
        self._check_open()
        if not self.writable():
            raise io.UnsupportedOperation("not writable")


class BufferedDatasetFile(io.BufferedRandom):
    """A DatasetFile behind a buffer. `flush` empties the buffer *and* makes it durable."""

    def flush(self) -> None:
        """Empties the buffer and makes all writes durable."""
        super().flush()
        # BufferedRandom stops at the raw file's write; durability needs its flush.
        if not self.raw.closed:
            self.raw.flush()

    def fdatasync(self) -> None:
        """Empties the buffer and makes all writes survive a crash."""
        super().flush()
        raw = self.raw
        assert isinstance(raw, DatasetFile)
        raw.fdatasync()

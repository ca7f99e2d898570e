# SPDX-License-Identifier: Apache-2.0
"""The blocking client: bytes."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Literal, overload

from cowshed import calls
from cowshed.client_snapshots import SnapshotMethods
from cowshed.file import MODES, BufferedDatasetFile, DatasetFile
from cowshed.streams import WriteStream, read_chunks, write_all
from cowshed.types import Chunk, Dataset, Extent, Name, Snapshot, name_of


class BytesMethods(SnapshotMethods):
    """Reads and writes what datasets and snapshots hold."""

    @overload
    def open(self, name: Name, mode: str = "rb", buffering: Literal[0] = 0) -> DatasetFile: ...

    @overload
    def open(
        self, name: Name, mode: str = "rb", buffering: int = 0
    ) -> DatasetFile | io.BufferedIOBase: ...

    def open(
        self, name: Name, mode: str = "rb", buffering: int = 0
    ) -> DatasetFile | io.BufferedIOBase:
        """Opens a dataset or snapshot as a file object.

        Args:
            mode: "rb", or "r+b" to write, too (datasets only).
            buffering: bytes of buffer; 0: none.

        Raises NotFoundError.
        """
        if mode not in MODES:
            raise ValueError(f"mode {mode!r} is none of {', '.join(MODES)}")
        target: Dataset | Snapshot
        if "@" in name_of(name):
            if "+" in mode:
                raise io.UnsupportedOperation("a snapshot cannot be written")
            target = self.get_snapshot(name)
        else:
            target = self.get(name)
        raw = DatasetFile(self.transport, target.name, target.uid, target.size_bytes, mode)
        if buffering <= 0:
            return raw
        if raw.writable():
            return BufferedDatasetFile(raw, buffering)
        return io.BufferedReader(raw, buffering)

    def read(self, name: Name, offset: int = 0, length: int | None = None) -> bytes:
        """Returns a range of bytes. Raises OutOfRangeError if it passes the end."""
        return b"".join(
            chunk.data if chunk.data is not None else bytes(chunk.length_bytes)
            for chunk in self.read_chunks(name, offset, length)
        )

    def read_chunks(
        self, name: Name, offset: int = 0, length: int | None = None, *, uid: str = ""
    ) -> Iterator[Chunk]:
        """Streams a range as chunks; holes come as chunks without data."""
        return read_chunks(self.transport, name, offset, length, uid)

    def write_stream(self, dataset: Name, *, uid: str = "", boot_id: str = "") -> WriteStream:
        """Opens a stream for big writes: `with c.write_stream(name) as w: w.write(0, data)`."""
        return WriteStream(self.transport, dataset, uid=uid, boot_id=boot_id)

    def write(self, dataset: Name, offset: int, data: bytes) -> int:
        """Writes bytes and makes them durable. Returns the txg."""
        return self._flushed(dataset, lambda stream: stream.write(offset, data))

    def zero(self, dataset: Name, offset: int, length: int) -> int:
        """Makes a range zeros, durably, without sending them. Returns the txg."""
        return self._flushed(dataset, lambda stream: stream.zero(offset, length))

    def discard(self, dataset: Name, offset: int, length: int) -> int:
        """Gives up a range, durably: it reads as zeros, its blocks are freed. Returns the txg."""
        return self._flushed(dataset, lambda stream: stream.discard(offset, length))

    def _flushed(self, dataset: Name, action: Callable[[WriteStream], None]) -> int:
        def act_and_flush(stream: WriteStream) -> int:
            action(stream)
            return stream.flush()

        return write_all(self.transport, dataset, act_and_flush)[0]

    def flush(self, dataset: Name, *, boot_id: str = "") -> int:
        """Makes all acknowledged writes to a dataset durable. Returns the txg."""
        return self.call(calls.flush(dataset, boot_id=boot_id)).txg

    def diff(self, older: Name, newer: Name, start: int = 0) -> Iterator[Extent]:
        """Streams the extents that differ between two snapshots; `older` "" means nothing."""
        for chunk in self.transport.stream(calls.diff(older, newer, start)):
            yield from map(Extent.from_proto, chunk.extents)

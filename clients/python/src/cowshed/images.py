# SPDX-License-Identifier: Apache-2.0
"""Whole images: a file into a dataset, a dataset into a file. Both keep holes holes."""

from __future__ import annotations

import errno
import io
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cowshed.channel import CHUNK_BYTES
from cowshed.client import Client
from cowshed.errors import InternalError, NotFoundError, OutOfRangeError
from cowshed.streams import WriteStream
from cowshed.types import Dataset, Name

Progress = Callable[[int], None]
"""Called with the number of bytes dealt with since the last time."""

_ZEROS = bytes(CHUNK_BYTES)
_HOLE_BYTES = 4096  # what file systems can leave out of a file


def _is_zero(data: bytes, start: int, end: int) -> bool:
    """Whether a range is all zeros. The first byte mostly tells, and spares a copy of the range."""
    return start == end or (data[start] == 0 and data[start:end] == _ZEROS[: end - start])


@dataclass(frozen=True)
class ImportResult:
    """What an import did; the byte counts add up to the size of the file."""

    dataset: Dataset
    created: bool
    written_bytes: int
    zeroed_bytes: int
    unchanged_bytes: int
    txg: int


@dataclass(frozen=True)
class ExportResult:
    """What an export wrote; the byte counts add up to the size."""

    name: str
    uid: str
    size_bytes: int
    data_bytes: int
    hole_bytes: int


def import_image(
    client: Client,
    path: str | os.PathLike[str],
    name: str,
    *,
    block_size: int | None = None,
    changed_only: bool = False,
    resize: bool = False,
    progress: Progress = lambda count: None,
) -> ImportResult:
    """Makes a dataset hold what a file holds, byte for byte, durably.

    Args:
        block_size: of a dataset that has to be created; default: the server's.
        changed_only: compare with what is stored and write only the blocks that differ.
        resize: give an existing dataset the file's size; else another size is refused.

    Raises:
        OSError: the file cannot be read, is empty, or is neither a file nor a block device.

    A dataset that was created for the import is destroyed again if the import fails. An existing
    one may be left half overwritten: take a snapshot first, or repeat with `changed_only`.
    """
    with _open_image(path) as file:
        size = os.lseek(file.fileno(), 0, os.SEEK_END)
        if size == 0:
            raise OSError(errno.EINVAL, "an empty file is no image", os.fspath(path))
        dataset, created = _target(client, name, size, block_size, resize)
        importer = _Importer(file.fileno(), size, dataset, created, progress)
        try:
            with client.write_stream(dataset, uid=dataset.uid) as stream:
                if changed_only and not created:
                    importer.run_changed(client, stream)
                else:
                    importer.run_all(stream)
                txg = stream.flush()
        except BaseException:
            if created:
                client.destroy(dataset, allow_missing=True, etags={name: dataset.etag})
            raise
    return ImportResult(
        client.get(name), created, importer.written, importer.zeroed, importer.unchanged, txg
    )


def _open_image(path: str | os.PathLike[str]) -> io.FileIO:
    """Opens what has a size and can be read at any place; a FIFO does not wait for its writer."""
    file = open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb", buffering=0)
    mode = os.fstat(file.fileno()).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISBLK(mode)):
        file.close()
        message = "an image is a file or a block device; write a pipe's bytes to a file first"
        raise OSError(errno.EINVAL, message, os.fspath(path))
    return file


def _target(
    client: Client, name: str, size: int, block_size: int | None, resize: bool
) -> tuple[Dataset, bool]:
    try:
        dataset = client.get(name)
    except NotFoundError:
        return client.create(name, size, block_size=block_size), True
    if dataset.size_bytes != size:
        if not resize:
            raise OutOfRangeError(
                f"the file has {size} bytes and {name} has {dataset.size_bytes}; resize it first"
            )
        dataset = client.resize(name, size, etag=dataset.etag)
    return dataset, False


class _Importer:
    """Cuts a file into what to write, what to zero and what to leave alone, and counts it."""

    def __init__(
        self, fd: int, size: int, dataset: Dataset, created: bool, progress: Progress
    ) -> None:
        self._fd = fd
        self._size = size
        self._block = dataset.block_size_bytes
        self._name = dataset.name
        self._uid = dataset.uid
        self._fresh = created
        self._progress = progress
        self.written = 0
        self.zeroed = 0
        self.unchanged = 0

    def run_all(self, stream: WriteStream) -> None:
        """Sends the whole file."""
        for offset, length, is_data in file_extents(self._fd, 0, self._size):
            if not is_data:
                self._send(stream, offset, None, length)
                continue
            for start in range(offset, offset + length, CHUNK_BYTES):
                data = self._pread(start, min(CHUNK_BYTES, offset + length - start))
                for at, piece in runs(data, self._block):
                    self._send(stream, start + at, piece)

    def run_changed(self, client: Client, stream: WriteStream) -> None:
        """Sends the blocks that differ from what is stored. Writes stay behind the reads."""
        for chunk in client.read_chunks(self._name, uid=self._uid):
            end = chunk.offset_bytes + chunk.length_bytes
            if chunk.data is not None:
                data = self._pread(chunk.offset_bytes, chunk.length_bytes)
                self._send_changed(stream, chunk.offset_bytes, data, chunk.data)
                continue
            for offset, length, is_data in file_extents(self._fd, chunk.offset_bytes, end):
                if not is_data:  # a hole in both
                    self._keep(length)
                    continue
                for start in range(offset, offset + length, CHUNK_BYTES):
                    data = self._pread(start, min(CHUNK_BYTES, offset + length - start))
                    self._send_changed(stream, start, data, _ZEROS[: len(data)])

    def _send_changed(self, stream: WriteStream, start: int, data: bytes, stored: bytes) -> None:
        for same, begin, end in differing_runs(data, stored, self._block):
            if same:
                self._keep(end - begin)
                continue
            for at, piece in runs(data[begin:end], self._block):
                self._send(stream, start + begin + at, piece)

    def _keep(self, length: int) -> None:
        self.unchanged += length
        self._progress(length)

    def _send(
        self, stream: WriteStream, offset: int, data: bytes | None, length: int = 0
    ) -> None:
        """Writes data, or zeros where it is None or holds nothing else."""
        length = length if data is None else len(data)
        if data is not None and not _is_zero(data, 0, length):
            stream.write(offset, data)
            self.written += length
        else:
            if not self._fresh:  # a new dataset is all zeros already
                stream.zero(offset, length)
            self.zeroed += length
        self._progress(length)

    def _pread(self, offset: int, length: int) -> bytes:
        data = os.pread(self._fd, length, offset)
        while len(data) < length:
            more = os.pread(self._fd, length - len(data), offset + len(data))
            if not more:
                raise OSError(errno.EIO, "the file was cut short while it was read")
            data += more
        return data


def file_extents(fd: int, start: int, end: int) -> Iterator[tuple[int, int, bool]]:
    """Yields (offset, length, is_data) of a range of a file, holes where the system knows them."""
    offset = start
    while offset < end:
        try:
            data = min(end, os.lseek(fd, offset, os.SEEK_DATA))
        except OSError as error:
            # ENXIO: a hole to the end. Anything else: the file (a device) cannot tell.
            data = end if error.errno == errno.ENXIO else offset
        if data > offset:
            yield offset, data - offset, False
            offset = data
            continue
        try:
            hole = min(end, os.lseek(fd, offset, os.SEEK_HOLE))
        except OSError:
            hole = end
        yield offset, hole - offset, True
        offset = hole


def runs(data: bytes, block: int) -> Iterator[tuple[int, bytes]]:
    """Cuts data at multiples of the block size into runs of all-zero blocks and runs of others."""
    if _is_zero(data, 0, len(data)):
        yield 0, data
        return
    start, start_zero = 0, False
    for at in range(0, len(data), block):
        end = min(at + block, len(data))
        zero = _is_zero(data, at, end)
        if at and zero != start_zero:
            yield start, data[start:at]
            start = at
        start_zero = zero
    yield start, data[start:]  # of all of it: no copy


def differing_runs(data: bytes, stored: bytes, block: int) -> Iterator[tuple[bool, int, int]]:
    """Yields (same, start, end) over data, at multiples of the block size."""
    if data == stored:
        yield True, 0, len(data)
        return
    start, start_same = 0, False
    for at in range(0, len(data), block):
        same = data[at : at + block] == stored[at : at + block]
        if at and same != start_same:
            yield start_same, start, at
            start = at
        start_same = same
    yield start_same, start, len(data)


def _export_target(path: str | os.PathLike[str]) -> Path:
    """The regular file to make or replace, links followed."""
    target = Path(os.path.realpath(path))
    if os.fspath(path) == "-" or (target.exists() and not target.is_file()):
        message = "only regular files can be exported to"
        raise OSError(errno.EINVAL, message, os.fspath(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(target.parent))
    return target


def export_image(
    client: Client,
    name: Name,
    path: str | os.PathLike[str],
    *,
    progress: Progress = lambda count: None,
) -> ExportResult:
    """Writes a dataset or snapshot into a sparse file, byte for byte.

    The file appears under its name only once it is complete and on disk; a symbolic link is
    followed. A head that is written to meanwhile is consistent per chunk only: export a snapshot.

    Raises:
        OSError: The target exists and is not a regular file (a device, a FIFO, a directory): it
            would be replaced, not written to.
    """
    target = _export_target(path)
    source = client.open(name)
    fd, partial = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    data_bytes = offset = 0
    try:
        os.ftruncate(fd, source.size_bytes)
        for chunk in client.read_chunks(source.name, uid=source.uid):
            offset = chunk.offset_bytes + chunk.length_bytes
            if chunk.data is not None:
                for at, piece in runs(chunk.data, _HOLE_BYTES):
                    if not _is_zero(piece, 0, len(piece)):
                        _pwrite(fd, piece, chunk.offset_bytes + at)
                        data_bytes += len(piece)
            progress(chunk.length_bytes)
        if offset != source.size_bytes:
            raise InternalError(f"{source.name} ended at {offset} of {source.size_bytes} bytes")
        umask = os.umask(0)
        os.umask(umask)
        os.fchmod(fd, 0o666 & ~umask)
        os.fsync(fd)
        os.replace(partial, target)
    except BaseException:
        os.unlink(partial)
        raise
    finally:
        os.close(fd)
    _sync_directory(target.parent)
    hole_bytes = source.size_bytes - data_bytes
    return ExportResult(source.name, source.uid, source.size_bytes, data_bytes, hole_bytes)


def _pwrite(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(fd, view, offset)
        view, offset = view[count:], offset + count


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

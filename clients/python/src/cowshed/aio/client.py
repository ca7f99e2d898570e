# SPDX-License-Identifier: Apache-2.0
"""The asyncio client. Every method does what its namesake of `cowshed.Client` does."""

from __future__ import annotations

import io
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from types import TracebackType
from typing import TypeVar

from google.protobuf.message import Message

from cowshed import calls, errors, types
from cowshed.aio.file import AsyncDatasetFile
from cowshed.aio.operation import AsyncOperation
from cowshed.aio.streams import AsyncWriteStream, read_chunks, write_all
from cowshed.aio.transport import AsyncTransport
from cowshed.calls import KEEP, Keep, Labels, Span
from cowshed.channel import Tls, resolve_address
from cowshed.file import MODES
from cowshed.operation import info_of
from cowshed.types import (
    Chunk,
    Dataset,
    Extent,
    Hold,
    Name,
    OperationInfo,
    Snapshot,
    SnapshotSet,
    name_of,
)
from cowshed.v1 import dataset_pb2, operation_pb2, pool_pb2

R = TypeVar("R", bound=Message)


async def connect(
    address: str | None = None,
    timeout: float = 30.0,
    wait_ready: float = 10.0,
    tls: Tls | None = None,
) -> AsyncClient:
    """Connects to a server.

    Args:
        address: `host:port`, `host`, `unix:path` or `/path`. None: $COWSHED_ADDRESS, else
            127.0.0.1:7420.
        timeout: seconds after which a call fails with DeadlineExceededError, retries included. For
            streams it is the longest wait for the next message.
        wait_ready: seconds to wait for the server; 0: do not wait, the first call connects.
        tls: how to trust the server; None: no TLS.

    Raises:
        UnavailableError: the server could not be reached within wait_ready.
    """
    client = AsyncClient(AsyncTransport(resolve_address(address), timeout, tls))
    if wait_ready > 0:
        try:
            await client.transport.wait_ready(wait_ready)
        except BaseException:
            await client.close()
            raise
    return client


class AsyncClient:
    """A connection to a server; see `connect`. For the event loop it was made in.

    Wherever a name is asked for, an object that has one (a Dataset, a Snapshot) will do. Every
    method may raise the errors of `cowshed.errors`; those listed are the ones to expect.
    """

    def __init__(self, transport: AsyncTransport) -> None:
        self.transport = transport

    async def close(self) -> None:
        """Closes the connection."""
        await self.transport.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def call(self, call: calls.Call[R], timeout: float | None = None) -> R:
        """Sends a call made by `cowshed.calls` and returns the reply as it is on the wire."""
        return await self.transport.unary(call, timeout)

    # Datasets ---------------------------------------------------------------------------------

    async def create(
        self,
        name: Name,
        size: int,
        *,
        block_size: int | None = None,
        labels: Labels | None = None,
        quota: int | None = None,
        expire_time: datetime | None = None,
        ttl: Span | None = None,
    ) -> Dataset:
        """Creates an empty dataset of `size` bytes. Raises AlreadyExistsError."""
        call = calls.create(
            name,
            size,
            block_size=block_size,
            labels=labels,
            quota=quota,
            expire_time=expire_time,
            ttl=ttl,
        )
        return Dataset.from_proto((await self.call(call)).dataset)

    async def get(self, name: Name) -> Dataset:
        """Returns a dataset. Raises NotFoundError."""
        return Dataset.from_proto(await self.call(calls.get(name)))

    async def exists(self, name: Name) -> bool:
        """Whether there is a dataset, or with an `@` a snapshot, of this name."""
        try:
            if "@" in name_of(name):
                await self.get_snapshot(name)
            else:
                await self.get(name)
        except errors.NotFoundError:
            return False
        return True

    def list(
        self,
        prefix: str = "",
        *,
        origin: Name = "",
        state: types.DatasetState = types.DatasetState.UNSPECIFIED,
        labels: Labels | None = None,
        page_size: int = 0,
    ) -> AsyncIterator[Dataset]:
        """Yields datasets by name: of a subtree, of an origin, in a state, with labels."""

        async def page(token: str) -> dataset_pb2.ListDatasetsResponse:
            call = calls.list_datasets(
                prefix,
                origin=origin,
                state=state.value,
                labels=labels,
                page_size=page_size,
                page_token=token,
            )
            return await self.call(call)

        return (Dataset.from_proto(m) async for reply in _pages(page) for m in reply.datasets)

    async def update(
        self,
        name: Name,
        *,
        size: int | None = None,
        quota: int | None | Keep = KEEP,
        expire_time: datetime | None | Keep = KEEP,
        ttl: Span | None = None,
        set_labels: Labels | None = None,
        remove_labels: Iterable[str] = (),
        etag: str = "",
    ) -> Dataset:
        """Changes a dataset in one step: what is not given stays, None takes away.

        Raises NotFoundError, and EtagMismatchError if `etag` is given and not the dataset's.
        """
        call = calls.update(
            name,
            size=size,
            quota=quota,
            expire_time=expire_time,
            ttl=ttl,
            set_labels=set_labels,
            remove_labels=remove_labels,
            etag=etag,
        )
        return Dataset.from_proto((await self.call(call)).dataset)

    async def resize(self, name: Name, size: int, *, etag: str = "") -> Dataset:
        """Changes the size of a dataset; a smaller one cuts off what lies beyond."""
        return await self.update(name, size=size, etag=etag)

    async def renew(self, name: Name, ttl: Span | None) -> Dataset:
        """Lets a dataset live that long from now; None: for ever."""
        if ttl is None:
            return await self.update(name, expire_time=None)
        return await self.update(name, ttl=ttl)

    async def clone(
        self,
        source: Name,
        name: Name,
        *,
        replace: bool = False,
        replace_etag: str = "",
        labels: Labels | None = None,
        quota: int | None = None,
        expire_time: datetime | None = None,
        ttl: Span | None = None,
    ) -> Dataset:
        """Clones a snapshot (`golden@v1`, `golden@latest`) or a head (`golden`).

        Args:
            replace: destroy a dataset of that name in the same step, if there is one.

        Raises NotFoundError, AlreadyExistsError.
        """
        call = calls.clone(
            source,
            name,
            replace=replace,
            replace_etag=replace_etag,
            labels=labels,
            quota=quota,
            expire_time=expire_time,
            ttl=ttl,
        )
        return Dataset.from_proto((await self.call(call)).dataset)

    @asynccontextmanager
    async def scratch(
        self, source: Name, *, prefix: str = "scratch", ttl: Span | None = None
    ) -> AsyncIterator[Dataset]:
        """A clone for a while: `async with c.scratch("golden@latest") as ds:` destroys it on exit.

        Args:
            prefix: the clone is named below it, with a name of its own.
            ttl: lets the server destroy it if this process does not live to.
        """
        dataset = await self.clone(source, f"{prefix}/{uuid.uuid4().hex}", ttl=ttl)
        try:
            yield dataset
        finally:
            await self.destroy(dataset, recursive=True, allow_missing=True)

    async def destroy(
        self,
        *names: Name,
        recursive: bool = False,
        cascade: bool = False,
        allow_missing: bool = False,
        plan_etag: str = "",
        etags: Mapping[str, str] | None = None,
        keep: Span = 0.0,
    ) -> AsyncOperation:
        """Destroys datasets, all or none. Their names are free at once.

        Args:
            recursive: their snapshots too.
            cascade: also the clones of these, wherever they are named.
            allow_missing: names that do not exist are fine.
            plan_etag: of `plan_destroy`: only if that plan still holds.
            etags: expected etags by name.
            keep: for how long `undestroy` can bring them back, at most 30 days.

        Returns:
            the operation that gives their space back; `await op.wait(60)` waits for it.

        Raises BlockedError (`.blockers` says by what), NotFoundError, PlanChangedError.
        """
        call = calls.destroy(
            names,
            recursive=recursive,
            cascade=cascade,
            allow_missing=allow_missing,
            plan_etag=plan_etag,
            etags=etags,
            keep=keep,
        )
        reply = await self.call(call)
        return self._operation(reply.operation if reply.HasField("operation") else None)

    async def destroy_prefix(
        self,
        prefix: str,
        *,
        recursive: bool = False,
        cascade: bool = False,
        allow_missing: bool = False,
        plan_etag: str = "",
        keep: Span = 0.0,
    ) -> AsyncOperation:
        """Destroys a whole subtree: `prefix` and everything below it. See `destroy`."""
        call = calls.destroy(
            prefix=prefix,
            recursive=recursive,
            cascade=cascade,
            allow_missing=allow_missing,
            plan_etag=plan_etag,
            keep=keep,
        )
        reply = await self.call(call)
        return self._operation(reply.operation if reply.HasField("operation") else None)

    async def plan_destroy(
        self,
        *names: Name,
        prefix: str = "",
        recursive: bool = False,
        cascade: bool = False,
        allow_missing: bool = False,
    ) -> dataset_pb2.DestroyPlan:
        """What `destroy` or `destroy_prefix` would do, and what stands in its way."""
        call = calls.destroy(
            names,
            prefix=prefix,
            recursive=recursive,
            cascade=cascade,
            allow_missing=allow_missing,
            validate_only=True,
        )
        return (await self.call(call)).plan

    async def undestroy(self, operation: str) -> tuple[Dataset, ...]:
        """Brings back what a `destroy` with `keep` took away, all of it; its name is `operation`.

        Returns:
            the datasets (of very many the first 100).

        Raises PreconditionError once reclaim has begun or the origin of one has gone,
        AlreadyExistsError where a name is taken.
        """
        reply = await self.call(calls.undestroy(operation))
        return tuple(map(Dataset.from_proto, reply.datasets))

    async def rollback(
        self,
        name: Name,
        to: Name = "",
        *,
        expected_target: Name = "",
        destroy_newer: bool = False,
        etag: str = "",
    ) -> Dataset:
        """Takes a dataset back to its newest snapshot, or to `to`.

        Raises BlockedError if there are newer snapshots (`destroy_newer` destroys them), and
        AbortedError if the target is not `expected_target`.
        """
        call = calls.rollback(
            name, to=to, expected_target=expected_target, destroy_newer=destroy_newer, etag=etag
        )
        return Dataset.from_proto((await self.call(call)).dataset)

    async def reset(self, name: Name, *, destroy_newer: bool = False, etag: str = "") -> Dataset:
        """Takes a clone back to its origin, as if freshly cloned."""
        call = calls.rollback(name, origin=True, destroy_newer=destroy_newer, etag=etag)
        return Dataset.from_proto((await self.call(call)).dataset)

    async def promote(self, name: Name, *, etag: str = "") -> Dataset:
        """Turns a clone and its origin around, so that the former parent can be destroyed."""
        return Dataset.from_proto((await self.call(calls.promote(name, etag=etag))).dataset)

    async def rename(self, name: Name, new_name: str, *, etag: str = "") -> Dataset:
        """Renames a dataset together with its snapshots."""
        reply = await self.call(calls.rename(name, new_name, etag=etag))
        return Dataset.from_proto(reply.dataset)

    # Snapshots and holds ----------------------------------------------------------------------

    async def snapshot(self, name: Name, *, labels: Labels | None = None) -> Snapshot:
        """Takes one snapshot, e.g. `ci/a@s`. Raises NotFoundError, AlreadyExistsError."""
        reply = await self.call(calls.create_snapshots([name], labels=labels))
        return Snapshot.from_proto(reply.snapshots[0])

    async def snapshots(
        self, names: Iterable[Name], *, labels: Labels | None = None
    ) -> SnapshotSet:
        """Takes snapshots of several datasets at one point in time, all or none."""
        return SnapshotSet.from_proto(await self.call(calls.create_snapshots(names, labels=labels)))

    async def snapshot_prefix(
        self, prefix: str, snapshot: str, *, labels: Labels | None = None
    ) -> SnapshotSet:
        """Takes a snapshot of that short name of every dataset of a subtree, all or none."""
        call = calls.create_snapshots(prefix=prefix, snapshot=snapshot, labels=labels)
        return SnapshotSet.from_proto(await self.call(call))

    async def get_snapshot(self, name: Name) -> Snapshot:
        """Returns a snapshot; `@latest` finds the newest. Raises NotFoundError."""
        return Snapshot.from_proto(await self.call(calls.get_snapshot(name)))

    def list_snapshots(
        self,
        dataset: Name = "",
        *,
        prefix: str = "",
        labels: Labels | None = None,
        page_size: int = 0,
    ) -> AsyncIterator[Snapshot]:
        """Yields the snapshots of a dataset, oldest first; or of a subtree; or all."""
        pages = _pages(
            lambda token: self.call(
                calls.list_snapshots(
                    dataset, prefix=prefix, labels=labels, page_size=page_size, page_token=token
                )
            )
        )
        return (Snapshot.from_proto(m) async for reply in pages for m in reply.snapshots)

    async def destroy_snapshots(
        self,
        *names: Name,
        defer: bool = False,
        allow_missing: bool = False,
        plan_etag: str = "",
    ) -> AsyncOperation:
        """Destroys snapshots, all or none.

        Args:
            defer: those with clones or holds go with the last of them.

        Raises BlockedError, NotFoundError.
        """
        call = calls.destroy_snapshots(
            names, defer=defer, allow_missing=allow_missing, plan_etag=plan_etag
        )
        reply = await self.call(call)
        return self._operation(reply.operation if reply.HasField("operation") else None)

    async def destroy_snapshot_range(
        self, dataset: Name, first: str = "", last: str = "", *, defer: bool = False
    ) -> AsyncOperation:
        """Destroys the snapshots of a dataset from `first` to `last` (short names, inclusive)."""
        call = calls.destroy_snapshots(dataset=dataset, first=first, last=last, defer=defer)
        reply = await self.call(call)
        return self._operation(reply.operation if reply.HasField("operation") else None)

    async def rename_snapshot(self, name: Name, new_name: str) -> Snapshot:
        """Renames a snapshot within its dataset; both names are full ones."""
        reply = await self.call(calls.rename_snapshot(name, new_name))
        return Snapshot.from_proto(reply.snapshot)

    async def hold(
        self,
        snapshot: Name,
        tag: str,
        *,
        owner: str = "",
        expire_time: datetime | None = None,
        ttl: Span | None = None,
    ) -> Hold:
        """Keeps a snapshot from being destroyed. Raises AlreadyExistsError for a used tag."""
        call = calls.hold(snapshot, tag, owner=owner, expire_time=expire_time, ttl=ttl)
        return Hold.from_proto((await self.call(call)).hold)

    async def release(self, snapshot: Name, tag: str) -> Hold:
        """Releases a hold. Raises NotFoundError."""
        return Hold.from_proto((await self.call(calls.release(snapshot, tag))).hold)

    def list_holds(self, snapshot: Name = "", *, prefix: str = "") -> AsyncIterator[Hold]:
        """Yields the holds on a snapshot; or in a subtree; or all."""
        pages = _pages(
            lambda token: self.call(calls.list_holds(snapshot, prefix=prefix, page_token=token))
        )
        return (Hold.from_proto(m) async for reply in pages for m in reply.holds)

    # Bytes ------------------------------------------------------------------------------------

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

    async def fdatasync(self, dataset: Name, *, boot_id: str = "") -> None:
        """Makes all acknowledged writes to a dataset survive a crash.

        Cheaper than `flush` for little data; no query need show it yet.
        """
        await self.call(calls.flush(dataset, boot_id=boot_id, data_only=True))

    async def diff(self, older: Name, newer: Name, start: int = 0) -> AsyncIterator[Extent]:
        """Streams the extents that differ between two snapshots; `older` "" means nothing."""
        async for chunk in self.transport.stream(calls.diff(older, newer, start)):
            for extent in chunk.extents:
                yield Extent.from_proto(extent)

    # Operations and the pool ------------------------------------------------------------------

    async def operation(self, name: str) -> AsyncOperation:
        """Returns the handle of an operation. Raises NotFoundError."""
        return self._operation(await self.call(calls.get_operation(name)))

    def operations(self, *, unfinished: bool = False) -> AsyncIterator[AsyncOperation]:
        """Yields operations, newest first."""
        pages = _pages(
            lambda token: self.call(
                calls.list_operations(unfinished=unfinished, page_token=token)
            )
        )
        return (self._operation(m) async for reply in pages for m in reply.operations)

    async def server_info(self) -> pool_pb2.GetServerInfoResponse:
        """Version, boot_id, features and limits of the server."""
        return await self.call(calls.server_info())

    async def pool(self) -> pool_pb2.Pool:
        """The state of the pool."""
        return await self.call(calls.pool())

    async def update_reclaim(
        self,
        *,
        paused: bool | None = None,
        rate_bytes_per_second: int | None = None,
        txg_budget: Span | None = None,
    ) -> pool_pb2.Reclaim:
        """Changes how reclaim runs; what is None stays as it is, a rate of 0 is no limit."""
        call = calls.update_reclaim(
            paused=paused, rate_bytes_per_second=rate_bytes_per_second, txg_budget=txg_budget
        )
        return (await self.call(call)).reclaim

    async def space(self, name: Name = "") -> pool_pb2.GetSpaceResponse:
        """Where the space of the pool, a dataset or a snapshot went."""
        return await self.call(calls.space(name))

    def livelist(self, dataset: Name) -> AsyncIterator[pool_pb2.Sublist]:
        """Yields the sublists of a dataset's livelist, oldest first."""
        pages = _pages(lambda token: self.call(calls.livelist(dataset, page_token=token)))
        return (sublist async for reply in pages for sublist in reply.sublists)

    async def sync(self) -> int:
        """Makes all acknowledged writes to all datasets durable. Returns the txg."""
        return (await self.call(calls.sync())).txg

    async def check(self, timeout: float = 3600.0) -> pool_pb2.CheckResponse:
        """Checks the pool in small steps while it works; `cowshed check` offline compares more."""
        return await self.call(calls.check(), timeout)

    async def scrub(self, rate_bytes_per_second: int | None = None) -> AsyncOperation:
        """Reads every block and verifies it, or goes on with the scrub under way or paused.

        The operation's info tells `errors` and the first `damaged` places. None: no limit, or the
        rate it has; 0: no limit.
        """
        reply = await self.call(calls.start_scrub(rate_bytes_per_second))
        return self._operation(reply.operation)

    async def cancel_scrub(self, *, pause: bool = False) -> OperationInfo:
        """Ends the scrub under way, or pauses it until `scrub`."""
        return info_of((await self.call(calls.cancel_scrub(pause=pause))).operation)

    async def backup(self, directory: str) -> AsyncOperation:
        """Copies the pool to an empty or absent directory (absolute) of the server's host."""
        return self._operation((await self.call(calls.backup(directory))).operation)

    def _operation(self, message: operation_pb2.Operation | None) -> AsyncOperation:
        return AsyncOperation(self.transport, info_of(message))


P = TypeVar("P")


async def _pages(fetch: Callable[[str], Awaitable[P]]) -> AsyncIterator[P]:
    """Fetches pages until there is no further one."""
    token = ""
    while True:
        page = await fetch(token)
        yield page
        token = getattr(page, "next_page_token")
        if not token:
            return

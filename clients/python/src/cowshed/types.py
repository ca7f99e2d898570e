# SPDX-License-Identifier: Apache-2.0
"""The nouns of the API as plain, immutable Python values. Sizes are bytes, times are UTC."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Protocol

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from cowshed.v1 import data_pb2, dataset_pb2, error_pb2, operation_pb2, pool_pb2, snapshot_pb2


class Named(Protocol):
    """Anything with a name: a Dataset, a Snapshot, an Operation."""

    @property
    def name(self) -> str: ...


Name = str | Named
"""Wherever the API wants a name, an object that has one will do."""


def name_of(name: Name) -> str:
    """The name itself."""
    return name if isinstance(name, str) else name.name


def to_datetime(message: Message, field_name: str) -> datetime | None:
    """A Timestamp field as a datetime in UTC; None if it is absent."""
    if not message.HasField(field_name):
        return None
    stamp = getattr(message, field_name)
    assert isinstance(stamp, Timestamp)
    return stamp.ToDatetime(tzinfo=timezone.utc)


def to_timestamp(when: datetime | None) -> Timestamp | None:
    """A datetime as a Timestamp; a naive one is an error, for nobody knows what it means."""
    if when is None:
        return None
    if when.tzinfo is None:
        raise ValueError("a time needs a time zone, e.g. datetime.now(timezone.utc)")
    stamp = Timestamp()
    stamp.FromDatetime(when.astimezone(timezone.utc).replace(tzinfo=None))
    return stamp


def to_duration(span: float | timedelta | None) -> Duration | None:
    """Seconds or a timedelta as a Duration."""
    if span is None:
        return None
    delta = span if isinstance(span, timedelta) else timedelta(seconds=span)
    duration = Duration()
    duration.FromTimedelta(delta)
    return duration


class DatasetState(enum.Enum):
    """Where a dataset is in its life."""

    UNSPECIFIED = 0
    ACTIVE = 1
    TRIMMING = 2
    EXPIRED = 3


class OperationState(enum.Enum):
    """How far an operation is."""

    UNSPECIFIED = 0
    PENDING = 1
    RUNNING = 2
    SUCCEEDED = 3
    FAILED = 4
    STALLED = 5
    WAITING = 6
    UNDONE = 7


class OperationKind(enum.Enum):
    """What an operation does."""

    UNSPECIFIED = 0
    DESTROY_DATASETS = 1
    DESTROY_SNAPSHOTS = 2
    ROLLBACK = 3
    TRIM = 4
    EXPIRE = 5
    SCRUB = 6
    BACKUP = 7


@dataclass(frozen=True)
class Dataset:
    """A sparse virtual block volume."""

    name: str
    uid: str
    create_txg: int
    create_time: datetime | None
    state: DatasetState
    size_bytes: int
    block_size_bytes: int
    origin: str
    origin_uid: str
    labels: Mapping[str, str]
    etag: str
    quota_bytes: int | None
    expire_time: datetime | None
    used_bytes: int
    referenced_bytes: int
    written_bytes: int
    logical_bytes: int
    snapshot_count: int
    clone_count: int
    parent: str = ""

    @property
    def is_clone(self) -> bool:
        """Whether it has an origin."""
        return bool(self.origin_uid)

    @classmethod
    def from_proto(cls, m: dataset_pb2.Dataset) -> Dataset:
        """The value of a message."""
        return cls(
            name=m.name,
            uid=m.uid,
            create_txg=m.create_txg,
            create_time=to_datetime(m, "create_time"),
            state=DatasetState(int(m.state)),
            size_bytes=m.size_bytes,
            block_size_bytes=m.block_size_bytes,
            origin=m.origin,
            origin_uid=m.origin_uid,
            labels=dict(m.labels),
            etag=m.etag,
            quota_bytes=m.quota_bytes if m.HasField("quota_bytes") else None,
            expire_time=to_datetime(m, "expire_time"),
            used_bytes=m.used_bytes,
            referenced_bytes=m.referenced_bytes,
            written_bytes=m.written_bytes,
            logical_bytes=m.logical_bytes,
            snapshot_count=m.snapshot_count,
            clone_count=m.clone_count,
            parent=m.parent,
        )


@dataclass(frozen=True)
class Snapshot:
    """An immutable point in time of a dataset."""

    name: str
    uid: str
    create_txg: int
    create_time: datetime | None
    size_bytes: int
    block_size_bytes: int
    referenced_bytes: int
    written_bytes: int
    unique_bytes: int
    logical_bytes: int
    clone_count: int
    hold_count: int
    deferred: bool
    labels: Mapping[str, str]
    dataset_uid: str

    @property
    def dataset(self) -> str:
        """The name of its dataset."""
        return self.name.partition("@")[0]

    @property
    def short_name(self) -> str:
        """The part of its name behind the `@`."""
        return self.name.partition("@")[2]

    @classmethod
    def from_proto(cls, m: snapshot_pb2.Snapshot) -> Snapshot:
        """The value of a message."""
        return cls(
            name=m.name,
            uid=m.uid,
            create_txg=m.create_txg,
            create_time=to_datetime(m, "create_time"),
            size_bytes=m.size_bytes,
            block_size_bytes=m.block_size_bytes,
            referenced_bytes=m.referenced_bytes,
            written_bytes=m.written_bytes,
            unique_bytes=m.unique_bytes,
            logical_bytes=m.logical_bytes,
            clone_count=m.clone_count,
            hold_count=m.hold_count,
            deferred=m.deferred,
            labels=dict(m.labels),
            dataset_uid=m.dataset_uid,
        )


@dataclass(frozen=True)
class SnapshotSet:
    """The snapshots that one call took, all in one txg."""

    txg: int
    count: int
    create_time: datetime | None
    first: tuple[Snapshot, ...]
    """The first 100 of them by name; `list_snapshots` has all."""

    @classmethod
    def from_proto(cls, m: snapshot_pb2.CreateSnapshotsResponse) -> SnapshotSet:
        """The value of a message."""
        first = tuple(map(Snapshot.from_proto, m.snapshots))
        return cls(m.txg, m.count, to_datetime(m, "create_time"), first)


@dataclass(frozen=True)
class Hold:
    """Keeps a snapshot from being destroyed."""

    snapshot: str
    snapshot_uid: str
    tag: str
    owner: str
    create_time: datetime | None
    expire_time: datetime | None

    @classmethod
    def from_proto(cls, m: snapshot_pb2.Hold) -> Hold:
        """The value of a message."""
        return cls(
            snapshot=m.snapshot,
            snapshot_uid=m.snapshot_uid,
            tag=m.tag,
            owner=m.owner,
            create_time=to_datetime(m, "create_time"),
            expire_time=to_datetime(m, "expire_time"),
        )


class BlockerKind(enum.Enum):
    """Why an object stands in the way."""

    UNSPECIFIED = 0
    SNAPSHOT = 1
    CLONE = 2
    HOLD = 3
    NEWER_SNAPSHOT = 4
    NAME_COLLISION = 5
    ATTACHMENT = 6


@dataclass(frozen=True)
class Blocker:
    """One object that stands in the way of a call."""

    kind: BlockerKind
    name: str
    blocked_name: str
    tag: str
    attachment: str = ""
    client: str = ""
    since_time: datetime | None = None

    @classmethod
    def from_proto(cls, m: error_pb2.Blocker) -> Blocker:
        """The value of a message."""
        return cls(
            kind=BlockerKind(int(m.kind)),
            name=m.name,
            blocked_name=m.blocked_name,
            tag=m.tag,
            attachment=m.attachment,
            client=m.client,
            since_time=to_datetime(m, "since_time"),
        )


@dataclass(frozen=True)
class DamagedPlace:
    """Blocks that a scrub could not read as they were written; `node`: what leads to them."""

    name: str
    first_block: int
    block_count: int
    node: bool

    @classmethod
    def from_proto(cls, m: operation_pb2.DamagedPlace) -> DamagedPlace:
        """The value of a message."""
        return cls(m.name, m.first_block, m.block_count, m.node)


@dataclass(frozen=True)
class OperationInfo:
    """How an operation stands."""

    name: str
    kind: OperationKind
    state: OperationState
    target: str = ""
    target_count: int = 0
    done_bytes: int = 0
    total_bytes: int = 0
    done_entries: int = 0
    total_entries: int = 0
    rate_bytes_per_second: int = 0
    eta: timedelta | None = None
    create_time: datetime | None = None
    start_time: datetime | None = None
    update_time: datetime | None = None
    finish_time: datetime | None = None
    wait_until: datetime | None = None
    txg: int = 0
    error: error_pb2.Status | None = field(default=None, repr=False)
    errors: int = 0
    damaged: tuple[DamagedPlace, ...] = ()

    @property
    def done(self) -> bool:
        """Whether it has ended, one way or the other."""
        return self.state in _ENDED

    @classmethod
    def from_proto(cls, m: operation_pb2.Operation) -> OperationInfo:
        """The value of a message."""
        return cls(
            name=m.name,
            kind=OperationKind(int(m.kind)),
            state=OperationState(int(m.state)),
            target=m.target,
            target_count=m.target_count,
            done_bytes=m.done_bytes,
            total_bytes=m.total_bytes,
            done_entries=m.done_entries,
            total_entries=m.total_entries,
            rate_bytes_per_second=m.rate_bytes_per_second,
            eta=m.eta.ToTimedelta() if m.HasField("eta") else None,
            create_time=to_datetime(m, "create_time"),
            start_time=to_datetime(m, "start_time"),
            update_time=to_datetime(m, "update_time"),
            finish_time=to_datetime(m, "finish_time"),
            wait_until=to_datetime(m, "wait_until"),
            txg=m.txg,
            error=m.error if m.HasField("error") else None,
            errors=m.errors,
            damaged=tuple(map(DamagedPlace.from_proto, m.damaged)),
        )


_ENDED = (
    OperationState.SUCCEEDED,
    OperationState.FAILED,
    OperationState.STALLED,
    OperationState.UNDONE,
)

NOTHING_TO_DO = OperationInfo("", OperationKind.UNSPECIFIED, OperationState.SUCCEEDED)
"""The operation of a call that left no work behind."""


@dataclass(frozen=True)
class Chunk:
    """A piece of a dataset: its bytes, or None for a hole, which reads as zeros."""

    offset_bytes: int
    length_bytes: int
    data: bytes | None

    @classmethod
    def from_proto(cls, m: data_pb2.ReadChunk) -> Chunk:
        """The value of a message."""
        if m.WhichOneof("content") == "data":
            return cls(m.offset_bytes, len(m.data), m.data)
        return cls(m.offset_bytes, m.zero_bytes, None)


@dataclass(frozen=True)
class Extent:
    """A range that differs between two snapshots; a hole in the newer one if not `data`."""

    offset_bytes: int
    length_bytes: int
    data: bool

    @classmethod
    def from_proto(cls, m: data_pb2.Extent) -> Extent:
        """The value of a message."""
        return cls(m.offset_bytes, m.length_bytes, m.kind == data_pb2.EXTENT_KIND_DATA)


Pool = pool_pb2.Pool
Space = pool_pb2.GetSpaceResponse
ServerInfo = pool_pb2.GetServerInfoResponse
CheckReport = pool_pb2.CheckResponse

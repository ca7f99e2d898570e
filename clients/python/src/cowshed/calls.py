# SPDX-License-Identifier: Apache-2.0
"""Every call of the API as a value: which method, which request.

This is the one place that knows how arguments become requests; the blocking client, the asyncio
client and the `cow` command all send what these functions return. A call that changes something
gets a fresh request_id here, once, so that however often the client sends it, it happens once.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message

from cowshed.types import Name, name_of, to_duration, to_timestamp
from cowshed.v1 import data_pb2, dataset_pb2, operation_pb2, pool_pb2, snapshot_pb2

R = TypeVar("R", bound=Message)

Labels = Mapping[str, str]
Span = float | timedelta


class Keep(enum.Enum):
    """Says "leave as it is" where None says "take away"."""

    KEEP = "keep"


KEEP = Keep.KEEP


@dataclass(frozen=True)
class Call(Generic[R]):
    """A request on its way to a method.

    Attributes:
        method: path of the method, e.g. `/cowshed.v1.DatasetService/GetDataset`.
        request: what to send.
        reply: the class of what comes back.
        wait_seconds: how long the server itself may wait before it answers; the client's timeout
            comes on top.
    """

    method: str
    request: Message
    reply: type[R]
    wait_seconds: float = 0.0


def _id() -> str:
    return str(uuid.uuid4())


def _dataset(method: str, request: Message, reply: type[R]) -> Call[R]:
    return Call(f"/cowshed.v1.DatasetService/{method}", request, reply)


def _data(method: str, request: Message, reply: type[R]) -> Call[R]:
    return Call(f"/cowshed.v1.DataService/{method}", request, reply)


def _pool(method: str, request: Message, reply: type[R]) -> Call[R]:
    return Call(f"/cowshed.v1.PoolService/{method}", request, reply)


def _names(names: Iterable[Name]) -> list[str]:
    return [name_of(name) for name in names]


# Datasets -------------------------------------------------------------------------------------


def create(
    name: Name,
    size: int,
    *,
    block_size: int | None = None,
    labels: Labels | None = None,
    quota: int | None = None,
    expire_time: datetime | None = None,
    ttl: Span | None = None,
) -> Call[dataset_pb2.CreateDatasetResponse]:
    """DatasetService.CreateDataset."""
    request = dataset_pb2.CreateDatasetRequest(
        name=name_of(name),
        size_bytes=size,
        block_size_bytes=block_size,
        labels=labels,
        quota_bytes=quota,
        request_id=_id(),
    )
    _set_expiry(request, expire_time, ttl)
    return _dataset("CreateDataset", request, dataset_pb2.CreateDatasetResponse)


def _set_expiry(
    request: dataset_pb2.CreateDatasetRequest
    | dataset_pb2.CloneDatasetRequest
    | snapshot_pb2.HoldSnapshotRequest,
    expire_time: datetime | None,
    ttl: Span | None,
) -> None:
    if expire_time is not None and ttl is not None:
        raise ValueError("give either expire_time or ttl")
    stamp, duration = to_timestamp(expire_time), to_duration(ttl)
    if stamp is not None:
        request.expire_time.CopyFrom(stamp)
    if duration is not None:
        request.ttl.CopyFrom(duration)


def get(name: Name) -> Call[dataset_pb2.Dataset]:
    """DatasetService.GetDataset."""
    request = dataset_pb2.GetDatasetRequest(name=name_of(name))
    return _dataset("GetDataset", request, dataset_pb2.Dataset)


def list_datasets(
    prefix: str = "",
    *,
    origin: Name = "",
    state: int = 0,
    labels: Labels | None = None,
    page_size: int = 0,
    page_token: str = "",
) -> Call[dataset_pb2.ListDatasetsResponse]:
    """DatasetService.ListDatasets, one page."""
    request = dataset_pb2.ListDatasetsRequest(
        page_size=page_size,
        page_token=page_token,
        prefix=prefix,
        origin=name_of(origin),
        state=dataset_pb2.DatasetState.Name(state),
        labels=labels,
    )
    return _dataset("ListDatasets", request, dataset_pb2.ListDatasetsResponse)


def update(
    name: Name,
    *,
    size: int | None = None,
    quota: int | None | Keep = KEEP,
    expire_time: datetime | None | Keep = KEEP,
    ttl: Span | None = None,
    set_labels: Labels | None = None,
    remove_labels: Iterable[str] = (),
    etag: str = "",
    force: bool = False,
) -> Call[dataset_pb2.UpdateDatasetResponse]:
    """DatasetService.UpdateDataset: what is not given stays as it is, None takes away."""
    dataset = dataset_pb2.Dataset(name=name_of(name))
    mask = []
    if size is not None:
        dataset.size_bytes = size
        mask.append("size_bytes")
    if quota is not KEEP:
        mask.append("quota_bytes")
        if quota is not None:
            dataset.quota_bytes = quota
    if expire_time is not KEEP:
        mask.append("expire_time")
        if (stamp := to_timestamp(expire_time)) is not None:
            dataset.expire_time.CopyFrom(stamp)
    request = dataset_pb2.UpdateDatasetRequest(
        dataset=dataset,
        update_mask=FieldMask(paths=mask),
        set_labels=set_labels,
        remove_labels=remove_labels,
        etag=etag,
        force=force,
        ttl=to_duration(ttl),
        request_id=_id(),
    )
    return _dataset("UpdateDataset", request, dataset_pb2.UpdateDatasetResponse)


def clone(
    source: Name,
    name: Name,
    *,
    replace: bool = False,
    replace_etag: str = "",
    force: bool = False,
    labels: Labels | None = None,
    quota: int | None = None,
    expire_time: datetime | None = None,
    ttl: Span | None = None,
) -> Call[dataset_pb2.CloneDatasetResponse]:
    """DatasetService.CloneDataset."""
    request = dataset_pb2.CloneDatasetRequest(
        source=name_of(source),
        name=name_of(name),
        replace=replace,
        replace_etag=replace_etag,
        force=force,
        labels=labels,
        quota_bytes=quota,
        request_id=_id(),
    )
    _set_expiry(request, expire_time, ttl)
    return _dataset("CloneDataset", request, dataset_pb2.CloneDatasetResponse)


def destroy(
    names: Iterable[Name] = (),
    *,
    prefix: str = "",
    recursive: bool = False,
    cascade: bool = False,
    allow_missing: bool = False,
    validate_only: bool = False,
    plan_etag: str = "",
    etags: Mapping[str, str] | None = None,
    keep: Span = 0.0,
    force: bool = False,
) -> Call[dataset_pb2.DestroyDatasetsResponse]:
    """DatasetService.DestroyDatasets."""
    request = dataset_pb2.DestroyDatasetsRequest(
        names=_names(names),
        prefix=prefix,
        recursive=recursive,
        cascade=cascade,
        allow_missing=allow_missing,
        validate_only=validate_only,
        plan_etag=plan_etag,
        etags=etags,
        reclaim_after=to_duration(keep),
        force=force,
        request_id="" if validate_only else _id(),
    )
    return _dataset("DestroyDatasets", request, dataset_pb2.DestroyDatasetsResponse)


def undestroy(operation: str) -> Call[dataset_pb2.UndestroyResponse]:
    """DatasetService.Undestroy."""
    request = dataset_pb2.UndestroyRequest(operation=operation, request_id=_id())
    return _dataset("Undestroy", request, dataset_pb2.UndestroyResponse)


def rollback(
    name: Name,
    *,
    to: Name = "",
    origin: bool = False,
    expected_target: Name = "",
    destroy_newer: bool = False,
    etag: str = "",
    force: bool = False,
) -> Call[dataset_pb2.RollbackDatasetResponse]:
    """DatasetService.RollbackDataset."""
    request = dataset_pb2.RollbackDatasetRequest(
        name=name_of(name),
        expected_target=name_of(expected_target),
        destroy_newer=destroy_newer,
        etag=etag,
        force=force,
        request_id=_id(),
    )
    if origin:
        request.origin = True
    elif name_of(to):
        request.snapshot = name_of(to)
    return _dataset("RollbackDataset", request, dataset_pb2.RollbackDatasetResponse)


def promote(name: Name, *, etag: str = "") -> Call[dataset_pb2.PromoteDatasetResponse]:
    """DatasetService.PromoteDataset."""
    request = dataset_pb2.PromoteDatasetRequest(name=name_of(name), etag=etag, request_id=_id())
    return _dataset("PromoteDataset", request, dataset_pb2.PromoteDatasetResponse)


def rename(
    name: Name, new_name: str, *, etag: str = ""
) -> Call[dataset_pb2.RenameDatasetResponse]:
    """DatasetService.RenameDataset."""
    request = dataset_pb2.RenameDatasetRequest(
        name=name_of(name), new_name=new_name, etag=etag, request_id=_id()
    )
    return _dataset("RenameDataset", request, dataset_pb2.RenameDatasetResponse)


def list_blockers(
    list_token: str, *, page_size: int = 0, page_token: str = ""
) -> Call[dataset_pb2.ListBlockersResponse]:
    """DatasetService.ListBlockers, one page."""
    request = dataset_pb2.ListBlockersRequest(
        list_token=list_token, page_size=page_size, page_token=page_token
    )
    return _dataset("ListBlockers", request, dataset_pb2.ListBlockersResponse)


# Snapshots and holds --------------------------------------------------------------------------


def create_snapshots(
    names: Iterable[Name] = (),
    *,
    prefix: str = "",
    snapshot: str = "",
    labels: Labels | None = None,
) -> Call[snapshot_pb2.CreateSnapshotsResponse]:
    """DatasetService.CreateSnapshots."""
    request = snapshot_pb2.CreateSnapshotsRequest(
        names=_names(names), prefix=prefix, snapshot=snapshot, labels=labels, request_id=_id()
    )
    return _dataset("CreateSnapshots", request, snapshot_pb2.CreateSnapshotsResponse)


def get_snapshot(name: Name) -> Call[snapshot_pb2.Snapshot]:
    """DatasetService.GetSnapshot."""
    request = snapshot_pb2.GetSnapshotRequest(name=name_of(name))
    return _dataset("GetSnapshot", request, snapshot_pb2.Snapshot)


def list_snapshots(
    dataset: Name = "",
    *,
    prefix: str = "",
    labels: Labels | None = None,
    page_size: int = 0,
    page_token: str = "",
) -> Call[snapshot_pb2.ListSnapshotsResponse]:
    """DatasetService.ListSnapshots, one page."""
    request = snapshot_pb2.ListSnapshotsRequest(
        page_size=page_size,
        page_token=page_token,
        dataset=name_of(dataset),
        prefix=prefix,
        labels=labels,
    )
    return _dataset("ListSnapshots", request, snapshot_pb2.ListSnapshotsResponse)


def destroy_snapshots(
    names: Iterable[Name] = (),
    *,
    dataset: Name = "",
    first: str = "",
    last: str = "",
    defer: bool = False,
    allow_missing: bool = False,
    validate_only: bool = False,
    plan_etag: str = "",
    force: bool = False,
) -> Call[dataset_pb2.DestroySnapshotsResponse]:
    """DatasetService.DestroySnapshots: of `names`, or a range of `dataset`."""
    request = dataset_pb2.DestroySnapshotsRequest(
        names=_names(names),
        defer=defer,
        allow_missing=allow_missing,
        validate_only=validate_only,
        plan_etag=plan_etag,
        force=force,
        request_id="" if validate_only else _id(),
    )
    if name_of(dataset):
        range_ = dataset_pb2.SnapshotRange(dataset=name_of(dataset), first=first, last=last)
        request.range.CopyFrom(range_)
    return _dataset("DestroySnapshots", request, dataset_pb2.DestroySnapshotsResponse)


def rename_snapshot(name: Name, new_name: str) -> Call[snapshot_pb2.RenameSnapshotResponse]:
    """DatasetService.RenameSnapshot."""
    request = snapshot_pb2.RenameSnapshotRequest(
        name=name_of(name), new_name=new_name, request_id=_id()
    )
    return _dataset("RenameSnapshot", request, snapshot_pb2.RenameSnapshotResponse)


def hold(
    snapshot: Name,
    tag: str,
    *,
    owner: str = "",
    expire_time: datetime | None = None,
    ttl: Span | None = None,
) -> Call[snapshot_pb2.HoldSnapshotResponse]:
    """DatasetService.HoldSnapshot."""
    request = snapshot_pb2.HoldSnapshotRequest(
        snapshot=name_of(snapshot), tag=tag, owner=owner, request_id=_id()
    )
    _set_expiry(request, expire_time, ttl)
    return _dataset("HoldSnapshot", request, snapshot_pb2.HoldSnapshotResponse)


def release(snapshot: Name, tag: str) -> Call[snapshot_pb2.ReleaseHoldResponse]:
    """DatasetService.ReleaseHold."""
    request = snapshot_pb2.ReleaseHoldRequest(
        snapshot=name_of(snapshot), tag=tag, request_id=_id()
    )
    return _dataset("ReleaseHold", request, snapshot_pb2.ReleaseHoldResponse)


def list_holds(
    snapshot: Name = "", *, prefix: str = "", page_size: int = 0, page_token: str = ""
) -> Call[snapshot_pb2.ListHoldsResponse]:
    """DatasetService.ListHolds, one page."""
    request = snapshot_pb2.ListHoldsRequest(
        page_size=page_size, page_token=page_token, snapshot=name_of(snapshot), prefix=prefix
    )
    return _dataset("ListHolds", request, snapshot_pb2.ListHoldsResponse)


# Bytes ----------------------------------------------------------------------------------------


def read_range(
    name: Name, offset: int, length: int, *, uid: str = ""
) -> Call[data_pb2.ReadRangeResponse]:
    """DataService.ReadRange."""
    request = data_pb2.ReadRangeRequest(
        name=name_of(name), offset_bytes=offset, length_bytes=length, expected_uid=uid
    )
    return _data("ReadRange", request, data_pb2.ReadRangeResponse)


def write_range(
    dataset: Name,
    offset: int,
    *,
    data: bytes | None = None,
    zero: int | None = None,
    discard: int | None = None,
    uid: str = "",
    boot_id: str = "",
    durable: bool = False,
) -> Call[data_pb2.WriteRangeResponse]:
    """DataService.WriteRange."""
    request = data_pb2.WriteRangeRequest(
        dataset=name_of(dataset),
        offset_bytes=offset,
        data=data,
        zero_bytes=zero,
        discard_bytes=discard,
        expected_uid=uid,
        expect_boot_id=boot_id,
        durable=durable,
    )
    return _data("WriteRange", request, data_pb2.WriteRangeResponse)


def flush(
    dataset: Name, *, uid: str = "", boot_id: str = "", data_only: bool = False
) -> Call[data_pb2.FlushResponse]:
    """DataService.Flush."""
    request = data_pb2.FlushRequest(
        dataset=name_of(dataset), expected_uid=uid, expect_boot_id=boot_id, data_only=data_only
    )
    return _data("Flush", request, data_pb2.FlushResponse)


def read(
    name: Name, offset: int = 0, length: int | None = None, *, uid: str = ""
) -> Call[data_pb2.ReadChunk]:
    """DataService.Read, a stream of replies."""
    request = data_pb2.ReadRequest(
        name=name_of(name), offset_bytes=offset, length_bytes=length, expected_uid=uid
    )
    return _data("Read", request, data_pb2.ReadChunk)


def write_header(dataset: Name, *, uid: str = "", boot_id: str = "") -> Call[data_pb2.WriteAck]:
    """DataService.Write, a stream both ways: its first request."""
    header = data_pb2.WriteHeader(
        dataset=name_of(dataset), expected_uid=uid, expect_boot_id=boot_id
    )
    return _data("Write", data_pb2.WriteRequest(header=header), data_pb2.WriteAck)


def diff(older: Name, newer: Name, start: int = 0) -> Call[data_pb2.DiffChunk]:
    """DataService.Diff, a stream of replies."""
    request = data_pb2.DiffRequest(
        from_snapshot=name_of(older), to_snapshot=name_of(newer), start_offset_bytes=start
    )
    return _data("Diff", request, data_pb2.DiffChunk)


# Operations and the pool ----------------------------------------------------------------------


def _operation(method: str, request: Message, reply: type[R], wait: float = 0.0) -> Call[R]:
    return Call(f"/cowshed.v1.OperationService/{method}", request, reply, wait)


def get_operation(name: Name) -> Call[operation_pb2.Operation]:
    """OperationService.GetOperation."""
    request = operation_pb2.GetOperationRequest(name=name_of(name))
    return _operation("GetOperation", request, operation_pb2.Operation)


def list_operations(
    *,
    kind: int = 0,
    state: int = 0,
    unfinished: bool = False,
    page_size: int = 0,
    page_token: str = "",
) -> Call[operation_pb2.ListOperationsResponse]:
    """OperationService.ListOperations, one page."""
    request = operation_pb2.ListOperationsRequest(
        page_size=page_size,
        page_token=page_token,
        kind=operation_pb2.OperationKind.Name(kind),
        state=operation_pb2.OperationState.Name(state),
        unfinished=unfinished,
    )
    return _operation("ListOperations", request, operation_pb2.ListOperationsResponse)


def wait_operations(
    names: Iterable[Name], *, any_of: bool = False, timeout: float = 0.0
) -> Call[operation_pb2.WaitOperationsResponse]:
    """OperationService.WaitOperations."""
    request = operation_pb2.WaitOperationsRequest(
        names=_names(names),
        mode=operation_pb2.WAIT_MODE_ANY if any_of else operation_pb2.WAIT_MODE_ALL,
        timeout=to_duration(timeout),
    )
    reply = operation_pb2.WaitOperationsResponse
    return _operation("WaitOperations", request, reply, timeout)


def server_info() -> Call[pool_pb2.GetServerInfoResponse]:
    """PoolService.GetServerInfo."""
    return _pool("GetServerInfo", pool_pb2.GetServerInfoRequest(), pool_pb2.GetServerInfoResponse)


def pool() -> Call[pool_pb2.Pool]:
    """PoolService.GetPool."""
    return _pool("GetPool", pool_pb2.GetPoolRequest(), pool_pb2.Pool)


def update_reclaim(
    *,
    paused: bool | None = None,
    rate_bytes_per_second: int | None = None,
    txg_budget: Span | None = None,
) -> Call[pool_pb2.UpdateReclaimResponse]:
    """PoolService.UpdateReclaim: what is None stays as it is."""
    request = pool_pb2.UpdateReclaimRequest(txg_budget=to_duration(txg_budget))
    if paused is not None:
        request.paused = paused
    if rate_bytes_per_second is not None:
        request.rate_bytes_per_second = rate_bytes_per_second
    return _pool("UpdateReclaim", request, pool_pb2.UpdateReclaimResponse)


def space(name: Name = "") -> Call[pool_pb2.GetSpaceResponse]:
    """PoolService.GetSpace."""
    request = pool_pb2.GetSpaceRequest(name=name_of(name))
    return _pool("GetSpace", request, pool_pb2.GetSpaceResponse)


def livelist(
    dataset: Name, *, page_size: int = 0, page_token: str = ""
) -> Call[pool_pb2.GetLivelistResponse]:
    """PoolService.GetLivelist, one page."""
    request = pool_pb2.GetLivelistRequest(
        dataset=name_of(dataset), page_size=page_size, page_token=page_token
    )
    return _pool("GetLivelist", request, pool_pb2.GetLivelistResponse)


def sync() -> Call[pool_pb2.SyncPoolResponse]:
    """PoolService.SyncPool."""
    return _pool("SyncPool", pool_pb2.SyncPoolRequest(), pool_pb2.SyncPoolResponse)


def check() -> Call[pool_pb2.CheckResponse]:
    """PoolService.Check."""
    return _pool("Check", pool_pb2.CheckRequest(), pool_pb2.CheckResponse)


def start_scrub(rate_bytes_per_second: int | None = None) -> Call[pool_pb2.StartScrubResponse]:
    """PoolService.StartScrub."""
    request = pool_pb2.StartScrubRequest(request_id=_id())
    if rate_bytes_per_second is not None:
        request.rate_bytes_per_second = rate_bytes_per_second
    return _pool("StartScrub", request, pool_pb2.StartScrubResponse)


def cancel_scrub(*, pause: bool = False) -> Call[pool_pb2.CancelScrubResponse]:
    """PoolService.CancelScrub."""
    request = pool_pb2.CancelScrubRequest(pause=pause, request_id=_id())
    return _pool("CancelScrub", request, pool_pb2.CancelScrubResponse)


def backup(directory: str) -> Call[pool_pb2.BackupResponse]:
    """PoolService.Backup."""
    request = pool_pb2.BackupRequest(directory=directory, request_id=_id())
    return _pool("Backup", request, pool_pb2.BackupResponse)

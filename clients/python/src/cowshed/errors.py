# SPDX-License-Identifier: Apache-2.0
"""How calls fail: one exception class per gRPC code, and finer ones for the reasons worth catching.

Every error has `.code` (the gRPC code's name), `.reason` (an `ErrorReason` of the API, or "" when
the failure did not come from the server's own code), `.metadata` (facts, by reason) and, where
other objects stand in the way, `.blockers`:

    try:
        client.destroy("golden")
    except cowshed.BlockedError as e:
        print(e.blockers.total, "in the way:")
        for blocker in e.blockers:      # fetches further pages as needed
            print(blocker.kind, blocker.name)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

import grpc

from cowshed.types import Blocker
from cowshed.v1 import error_pb2

_DETAILS_KEY = "grpc-status-details-bin"
_CODES = {code.value[0]: code.name for code in grpc.StatusCode}

FetchPages = Callable[[str], Iterator[Blocker]]
FetchPagesAsync = Callable[[str], AsyncIterator[Blocker]]


class Blockers:
    """What stands in the way of a call: `.total` of them, `.first` (up to 20) at hand.

    Iterating yields all of them; past the first ones it asks the server page by page, and so tells
    what stands in the way *now*. With `cowshed.aio` iterate with `async for`.
    """

    def __init__(
        self,
        message: error_pb2.Blockers,
        fetch: FetchPages | None = None,
        fetch_async: FetchPagesAsync | None = None,
    ) -> None:
        self.total: int = message.total
        self.first: tuple[Blocker, ...] = tuple(map(Blocker.from_proto, message.blockers))
        self._token = message.list_token
        self._fetch = fetch
        self._fetch_async = fetch_async

    def __len__(self) -> int:
        return self.total

    def __iter__(self) -> Iterator[Blocker]:
        if self.total <= len(self.first) or self._fetch is None:
            return iter(self.first)
        return self._fetch(self._token)

    async def __aiter__(self) -> AsyncIterator[Blocker]:
        if self.total <= len(self.first) or self._fetch_async is None:
            for blocker in self.first:
                yield blocker
        else:
            async for blocker in self._fetch_async(self._token):
                yield blocker

    def __repr__(self) -> str:
        return f"Blockers(total={self.total}, first={self.first!r})"


class CowshedError(Exception):
    """The base of all errors of this package.

    Attributes:
        message: one sentence for people.
        code: the gRPC code's name, e.g. "NOT_FOUND".
        reason: the API's reason, e.g. "DATASET_NOT_FOUND"; "" if the server's code gave none.
        metadata: facts about the failure, by reason.
        blockers: what stands in the way; empty when nothing does.
        retry_delay: seconds after which the server suggests to try again; None without advice.
    """

    code: str = "UNKNOWN"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
        blockers: Blockers | None = None,
        retry_delay: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code
        self.reason = reason
        self.metadata: dict[str, str] = dict(metadata or {})
        self.blockers = blockers if blockers is not None else Blockers(error_pb2.Blockers())
        self.retry_delay = retry_delay

    def __str__(self) -> str:
        return f"{self.message} [{self.reason or self.code}]"


class InvalidArgumentError(CowshedError):
    """The request itself is wrong, whatever the state of the pool."""

    code = "INVALID_ARGUMENT"


class NotFoundError(CowshedError):
    """A dataset, snapshot, hold or operation does not exist."""

    code = "NOT_FOUND"


class AlreadyExistsError(CowshedError):
    """A name or tag is taken."""

    code = "ALREADY_EXISTS"


class PreconditionError(CowshedError):
    """The state of the pool does not allow the call."""

    code = "FAILED_PRECONDITION"


class BlockedError(PreconditionError):
    """Other objects stand in the way; `.blockers` lists them."""


class AbortedError(CowshedError):
    """The call lost against a change made meanwhile; look again and decide anew."""

    code = "ABORTED"


class EtagMismatchError(AbortedError):
    """The object is not (any more) the one that was expected."""


class PlanChangedError(AbortedError):
    """The destroy would not do (any more) what its plan says."""


class ServerRestartedError(AbortedError):
    """The server restarted: what was written before and not flushed may be lost."""


class DatasetDestroyedError(AbortedError):
    """The dataset under a stream was destroyed."""


class OutOfRangeError(CowshedError):
    """The range ends beyond the size."""

    code = "OUT_OF_RANGE"


class ResourceExhaustedError(CowshedError):
    """Something is full or too busy."""

    code = "RESOURCE_EXHAUSTED"


class PoolFullError(ResourceExhaustedError):
    """The pool has no room."""


class QuotaExceededError(ResourceExhaustedError):
    """The dataset's quota leaves no room."""


class DataLossError(CowshedError):
    """A stored block does not match its checksum."""

    code = "DATA_LOSS"


class UnavailableError(CowshedError):
    """The server cannot be reached, is stopping, or its pool is suspended."""

    code = "UNAVAILABLE"


class DeadlineExceededError(CowshedError, TimeoutError):
    """No answer within the timeout. The call may or may not have taken effect."""

    code = "DEADLINE_EXCEEDED"


class CancelledError(CowshedError):
    """The call was cancelled."""

    code = "CANCELLED"


class PermissionDeniedError(CowshedError):
    """The caller's role does not include the method."""

    code = "PERMISSION_DENIED"


class UnauthenticatedError(CowshedError):
    """The server demands an identity that the connection does not show."""

    code = "UNAUTHENTICATED"


class UnimplementedError(CowshedError):
    """The server does not know the method, or could not parse the request."""

    code = "UNIMPLEMENTED"


class InternalError(CowshedError):
    """A defect of the server."""

    code = "INTERNAL"


class LostWritesError(ServerRestartedError):
    """The server restarted before writes through a file were flushed.

    Attributes:
        ranges: (start, end) of every range written since the last flush that succeeded, end
            exclusive, ascending, disjoint. Write them again; the file stays usable.
    """

    def __init__(self, message: str, ranges: Sequence[tuple[int, int]]) -> None:
        super().__init__(message, reason="SERVER_RESTARTED")
        self.ranges: tuple[tuple[int, int], ...] = tuple(ranges)


_BY_CODE: dict[str, type[CowshedError]] = {
    cls.code: cls
    for cls in (
        InvalidArgumentError,
        NotFoundError,
        AlreadyExistsError,
        PreconditionError,
        AbortedError,
        OutOfRangeError,
        ResourceExhaustedError,
        DataLossError,
        UnavailableError,
        DeadlineExceededError,
        CancelledError,
        PermissionDeniedError,
        UnauthenticatedError,
        UnimplementedError,
        InternalError,
    )
}

_BY_REASON: dict[str, type[CowshedError]] = {
    "DATASET_HAS_SNAPSHOTS": BlockedError,
    "SNAPSHOT_HAS_CLONES": BlockedError,
    "SNAPSHOT_HAS_HOLDS": BlockedError,
    "ATTACHED": BlockedError,
    "NEWER_SNAPSHOTS_EXIST": BlockedError,
    "ATTACHED": BlockedError,
    "ETAG_MISMATCH": EtagMismatchError,
    "PLAN_CHANGED": PlanChangedError,
    "SERVER_RESTARTED": ServerRestartedError,
    "DATASET_DESTROYED": DatasetDestroyedError,
    "POOL_FULL": PoolFullError,
    "QUOTA_EXCEEDED": QuotaExceededError,
}


def from_status(
    status: error_pb2.Status,
    fetch: FetchPages | None = None,
    fetch_async: FetchPagesAsync | None = None,
) -> CowshedError:
    """The exception that a google.rpc.Status stands for."""
    info = error_pb2.ErrorInfo()
    blockers: Blockers | None = None
    retry_delay: float | None = None
    for detail in status.details:
        # Compared by name: these are our twins of google.rpc's messages, so Unpack would refuse.
        kind = detail.type_url.rpartition("/")[2]
        if kind in ("google.rpc.ErrorInfo", "cowshed.v1.ErrorInfo"):
            info = error_pb2.ErrorInfo.FromString(detail.value)
        elif kind in ("google.rpc.RetryInfo", "cowshed.v1.RetryInfo"):
            retry = error_pb2.RetryInfo.FromString(detail.value)
            retry_delay = retry.retry_delay.ToTimedelta().total_seconds()
        elif kind == "cowshed.v1.Blockers":
            blockers = Blockers(error_pb2.Blockers.FromString(detail.value), fetch, fetch_async)
    code = _CODES.get(status.code, "UNKNOWN")
    cls = _BY_REASON.get(info.reason, _BY_CODE.get(code, CowshedError))
    return cls(
        status.message,
        code=code,
        reason=info.reason,
        metadata=info.metadata,
        blockers=blockers,
        retry_delay=retry_delay,
    )


def from_rpc_error(
    error: grpc.RpcError,
    fetch: FetchPages | None = None,
    fetch_async: FetchPagesAsync | None = None,
) -> CowshedError:
    """The exception that a failed call stands for."""
    for key, value in error.trailing_metadata() or ():
        if key == _DETAILS_KEY and isinstance(value, bytes):
            return from_status(error_pb2.Status.FromString(value), fetch, fetch_async)
    code = error.code()
    message = error.details() or code.name
    return _BY_CODE.get(code.name, CowshedError)(message, code=code.name)

# SPDX-License-Identifier: Apache-2.0
"""Client for Cowshed, the copy-on-write storage service.

    import cowshed

    c = cowshed.connect()                       # 127.0.0.1:7420 or $COWSHED_ADDRESS
    c.clone("golden@v1", "dev/alice")           # costs nothing
    with c.open("dev/alice", "r+b") as f:
        f.seek(4096)
        f.write(b"mine alone")
        f.flush()                               # durable from here on
    c.destroy("dev/alice").wait(60)             # name free at once, space within the wait

`cowshed.aio` is the same for asyncio, `cowshed.errors` lists the exceptions, `cowshed.v1` holds the
generated messages for those who want the wire itself.
"""

from cowshed.attachment import Attachment, Export
from cowshed.calls import KEEP
from cowshed.channel import DEFAULT_ADDRESS, Tls
from cowshed.client import Client, connect
from cowshed.client_attach import Attach
from cowshed.errors import (
    AbortedError,
    AlreadyExistsError,
    BlockedError,
    Blockers,
    CancelledError,
    CowshedError,
    DataLossError,
    DatasetDestroyedError,
    DeadlineExceededError,
    EtagMismatchError,
    InternalError,
    InvalidArgumentError,
    LostWritesError,
    NotFoundError,
    OutOfRangeError,
    PermissionDeniedError,
    PlanChangedError,
    PoolFullError,
    PreconditionError,
    QuotaExceededError,
    ResourceExhaustedError,
    ServerRestartedError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
)
from cowshed.file import BufferedDatasetFile, DatasetFile
from cowshed.operation import Operation
from cowshed.streams import WriteStream
from cowshed.types import (
    Blocker,
    BlockerKind,
    Chunk,
    DamagedPlace,
    Dataset,
    DatasetState,
    Extent,
    Hold,
    OperationInfo,
    OperationKind,
    OperationState,
    Snapshot,
    SnapshotSet,
)

__version__ = "0.1.0"

__all__ = [
    "DEFAULT_ADDRESS",
    "KEEP",
    "AbortedError",
    "AlreadyExistsError",
    "Attach",
    "Attachment",
    "BlockedError",
    "Blocker",
    "BlockerKind",
    "Blockers",
    "BufferedDatasetFile",
    "CancelledError",
    "Chunk",
    "Client",
    "CowshedError",
    "DamagedPlace",
    "DataLossError",
    "Dataset",
    "DatasetDestroyedError",
    "DatasetFile",
    "DatasetState",
    "DeadlineExceededError",
    "EtagMismatchError",
    "Export",
    "Extent",
    "Hold",
    "InternalError",
    "InvalidArgumentError",
    "LostWritesError",
    "NotFoundError",
    "Operation",
    "OperationInfo",
    "OperationKind",
    "OperationState",
    "OutOfRangeError",
    "PermissionDeniedError",
    "PlanChangedError",
    "PoolFullError",
    "PreconditionError",
    "QuotaExceededError",
    "ResourceExhaustedError",
    "ServerRestartedError",
    "Snapshot",
    "SnapshotSet",
    "Tls",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "WriteStream",
    "connect",
]

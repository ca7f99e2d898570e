# SPDX-License-Identifier: Apache-2.0
import grpc

from cowshed.v1 import dataset_pb2, snapshot_pb2

class DatasetServiceStub:
    def __init__(self, channel: grpc.Channel) -> None: ...
    CreateDataset: grpc.UnaryUnaryMultiCallable[
        dataset_pb2.CreateDatasetRequest, dataset_pb2.CreateDatasetResponse
    ]
    GetDataset: grpc.UnaryUnaryMultiCallable[
        dataset_pb2.GetDatasetRequest, dataset_pb2.Dataset
    ]
    ListDatasets: grpc.UnaryUnaryMultiCallable[
        dataset_pb2.ListDatasetsRequest, dataset_pb2.ListDatasetsResponse
    ]
    UpdateDataset: grpc.UnaryUnaryMultiCallable[
        dataset_pb2.UpdateDatasetRequest, dataset_pb2.UpdateDatasetResponse
    ]
    CreateSnapshots: grpc.UnaryUnaryMultiCallable[
        snapshot_pb2.CreateSnapshotsRequest, snapshot_pb2.CreateSnapshotsResponse
    ]
    GetSnapshot: grpc.UnaryUnaryMultiCallable[
        snapshot_pb2.GetSnapshotRequest, snapshot_pb2.Snapshot
    ]
    ListSnapshots: grpc.UnaryUnaryMultiCallable[
        snapshot_pb2.ListSnapshotsRequest, snapshot_pb2.ListSnapshotsResponse
    ]
    CloneDataset: grpc.UnaryUnaryMultiCallable[
        dataset_pb2.CloneDatasetRequest, dataset_pb2.CloneDatasetResponse
    ]
    DestroyDatasets: grpc.UnaryUnaryMultiCallable[
        dataset_pb2.DestroyDatasetsRequest, dataset_pb2.DestroyDatasetsResponse
    ]
    DestroySnapshots: grpc.UnaryUnaryMultiCallable[
        dataset_pb2.DestroySnapshotsRequest, dataset_pb2.DestroySnapshotsResponse
    ]
    Undestroy: grpc.UnaryUnaryMultiCallable[
        dataset_pb2.UndestroyRequest, dataset_pb2.UndestroyResponse
    ]
    HoldSnapshot: grpc.UnaryUnaryMultiCallable[
        snapshot_pb2.HoldSnapshotRequest, snapshot_pb2.HoldSnapshotResponse
    ]
    ReleaseHold: grpc.UnaryUnaryMultiCallable[
        snapshot_pb2.ReleaseHoldRequest, snapshot_pb2.ReleaseHoldResponse
    ]
    ListHolds: grpc.UnaryUnaryMultiCallable[
        snapshot_pb2.ListHoldsRequest, snapshot_pb2.ListHoldsResponse
    ]
    RollbackDataset: grpc.UnaryUnaryMultiCallable[
        dataset_pb2.RollbackDatasetRequest, dataset_pb2.RollbackDatasetResponse
    ]
    PromoteDataset: grpc.UnaryUnaryMultiCallable[
        dataset_pb2.PromoteDatasetRequest, dataset_pb2.PromoteDatasetResponse
    ]
    RenameDataset: grpc.UnaryUnaryMultiCallable[
        dataset_pb2.RenameDatasetRequest, dataset_pb2.RenameDatasetResponse
    ]
    RenameSnapshot: grpc.UnaryUnaryMultiCallable[
        snapshot_pb2.RenameSnapshotRequest, snapshot_pb2.RenameSnapshotResponse
    ]
    ListBlockers: grpc.UnaryUnaryMultiCallable[
        dataset_pb2.ListBlockersRequest, dataset_pb2.ListBlockersResponse
    ]

class DatasetServiceServicer:
    def CreateDataset(
        self, request: dataset_pb2.CreateDatasetRequest, context: grpc.ServicerContext
    ) -> dataset_pb2.CreateDatasetResponse: ...
    def GetDataset(
        self, request: dataset_pb2.GetDatasetRequest, context: grpc.ServicerContext
    ) -> dataset_pb2.Dataset: ...
    def ListDatasets(
        self, request: dataset_pb2.ListDatasetsRequest, context: grpc.ServicerContext
    ) -> dataset_pb2.ListDatasetsResponse: ...
    def UpdateDataset(
        self, request: dataset_pb2.UpdateDatasetRequest, context: grpc.ServicerContext
    ) -> dataset_pb2.UpdateDatasetResponse: ...
    def CreateSnapshots(
        self, request: snapshot_pb2.CreateSnapshotsRequest, context: grpc.ServicerContext
    ) -> snapshot_pb2.CreateSnapshotsResponse: ...
    def GetSnapshot(
        self, request: snapshot_pb2.GetSnapshotRequest, context: grpc.ServicerContext
    ) -> snapshot_pb2.Snapshot: ...
    def ListSnapshots(
        self, request: snapshot_pb2.ListSnapshotsRequest, context: grpc.ServicerContext
    ) -> snapshot_pb2.ListSnapshotsResponse: ...
    def CloneDataset(
        self, request: dataset_pb2.CloneDatasetRequest, context: grpc.ServicerContext
    ) -> dataset_pb2.CloneDatasetResponse: ...
    def DestroyDatasets(
        self, request: dataset_pb2.DestroyDatasetsRequest, context: grpc.ServicerContext
    ) -> dataset_pb2.DestroyDatasetsResponse: ...
    def DestroySnapshots(
        self, request: dataset_pb2.DestroySnapshotsRequest, context: grpc.ServicerContext
    ) -> dataset_pb2.DestroySnapshotsResponse: ...
    def Undestroy(
        self, request: dataset_pb2.UndestroyRequest, context: grpc.ServicerContext
    ) -> dataset_pb2.UndestroyResponse: ...
    def HoldSnapshot(
        self, request: snapshot_pb2.HoldSnapshotRequest, context: grpc.ServicerContext
    ) -> snapshot_pb2.HoldSnapshotResponse: ...
    def ReleaseHold(
        self, request: snapshot_pb2.ReleaseHoldRequest, context: grpc.ServicerContext
    ) -> snapshot_pb2.ReleaseHoldResponse: ...
    def ListHolds(
        self, request: snapshot_pb2.ListHoldsRequest, context: grpc.ServicerContext
    ) -> snapshot_pb2.ListHoldsResponse: ...
    def RollbackDataset(
        self, request: dataset_pb2.RollbackDatasetRequest, context: grpc.ServicerContext
    ) -> dataset_pb2.RollbackDatasetResponse: ...
    def PromoteDataset(
        self, request: dataset_pb2.PromoteDatasetRequest, context: grpc.ServicerContext
    ) -> dataset_pb2.PromoteDatasetResponse: ...
    def RenameDataset(
        self, request: dataset_pb2.RenameDatasetRequest, context: grpc.ServicerContext
    ) -> dataset_pb2.RenameDatasetResponse: ...
    def RenameSnapshot(
        self, request: snapshot_pb2.RenameSnapshotRequest, context: grpc.ServicerContext
    ) -> snapshot_pb2.RenameSnapshotResponse: ...
    def ListBlockers(
        self, request: dataset_pb2.ListBlockersRequest, context: grpc.ServicerContext
    ) -> dataset_pb2.ListBlockersResponse: ...

def add_DatasetServiceServicer_to_server(
    servicer: DatasetServiceServicer, server: grpc.Server
) -> None: ...

// SPDX-License-Identifier: Apache-2.0
//
// cowshed.v1.DatasetService: the life of datasets and snapshots. Each method is one line over
// unary.h; the contract is in protos/cowshed/v1/dataset.proto.
//
// Threads     Thread-safe; methods run on gRPC's threads and never block.
// Ownership   Borrows the context.
#pragma once

#include "cowshed/v1/dataset.grpc.pb.h"
#include "service/context.h"

namespace cowshed::service {

class DatasetServiceImpl final : public v1::DatasetService::CallbackService {
 public:
  explicit DatasetServiceImpl(ServiceContext& context) : context_(context) {}

  using Rpc = grpc::CallbackServerContext;
  using Reactor = grpc::ServerUnaryReactor;

  Reactor* CreateDataset(Rpc* rpc, const v1::CreateDatasetRequest* request,
                         v1::CreateDatasetResponse* reply) override;
  Reactor* GetDataset(Rpc* rpc, const v1::GetDatasetRequest* request, v1::Dataset* reply) override;
  Reactor* ListDatasets(Rpc* rpc, const v1::ListDatasetsRequest* request,
                        v1::ListDatasetsResponse* reply) override;
  Reactor* UpdateDataset(Rpc* rpc, const v1::UpdateDatasetRequest* request,
                         v1::UpdateDatasetResponse* reply) override;
  Reactor* CreateSnapshots(Rpc* rpc, const v1::CreateSnapshotsRequest* request,
                           v1::CreateSnapshotsResponse* reply) override;
  Reactor* GetSnapshot(Rpc* rpc, const v1::GetSnapshotRequest* request,
                       v1::Snapshot* reply) override;
  Reactor* ListSnapshots(Rpc* rpc, const v1::ListSnapshotsRequest* request,
                         v1::ListSnapshotsResponse* reply) override;
  Reactor* CloneDataset(Rpc* rpc, const v1::CloneDatasetRequest* request,
                        v1::CloneDatasetResponse* reply) override;
  Reactor* DestroyDatasets(Rpc* rpc, const v1::DestroyDatasetsRequest* request,
                           v1::DestroyDatasetsResponse* reply) override;
  Reactor* DestroySnapshots(Rpc* rpc, const v1::DestroySnapshotsRequest* request,
                            v1::DestroySnapshotsResponse* reply) override;
  Reactor* Undestroy(Rpc* rpc, const v1::UndestroyRequest* request,
                     v1::UndestroyResponse* reply) override;
  Reactor* HoldSnapshot(Rpc* rpc, const v1::HoldSnapshotRequest* request,
                        v1::HoldSnapshotResponse* reply) override;
  Reactor* ReleaseHold(Rpc* rpc, const v1::ReleaseHoldRequest* request,
                       v1::ReleaseHoldResponse* reply) override;
  Reactor* ListHolds(Rpc* rpc, const v1::ListHoldsRequest* request,
                     v1::ListHoldsResponse* reply) override;
  Reactor* RollbackDataset(Rpc* rpc, const v1::RollbackDatasetRequest* request,
                           v1::RollbackDatasetResponse* reply) override;
  Reactor* PromoteDataset(Rpc* rpc, const v1::PromoteDatasetRequest* request,
                          v1::PromoteDatasetResponse* reply) override;
  Reactor* RenameDataset(Rpc* rpc, const v1::RenameDatasetRequest* request,
                         v1::RenameDatasetResponse* reply) override;
  Reactor* RenameSnapshot(Rpc* rpc, const v1::RenameSnapshotRequest* request,
                          v1::RenameSnapshotResponse* reply) override;
  Reactor* ListBlockers(Rpc* rpc, const v1::ListBlockersRequest* request,
                        v1::ListBlockersResponse* reply) override;

 private:
  ServiceContext& context_;
};

}  // namespace cowshed::service

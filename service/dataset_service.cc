// SPDX-License-Identifier: Apache-2.0
#include "service/dataset_service.h"

#include "engine/base/status_macros.h"
#include "service/unary.h"

namespace cowshed::service {

using engine::Pool;
using Reactor = grpc::ServerUnaryReactor;

// --- changes ---

Reactor* DatasetServiceImpl::CreateDataset(Rpc* rpc, const v1::CreateDatasetRequest* request,
                                           v1::CreateDatasetResponse* reply) {
  return Lifecycle(context_, rpc, request, reply, &Pool::CreateDataset);
}

Reactor* DatasetServiceImpl::UpdateDataset(Rpc* rpc, const v1::UpdateDatasetRequest* request,
                                           v1::UpdateDatasetResponse* reply) {
  return Lifecycle(context_, rpc, request, reply, &Pool::UpdateDataset);
}

Reactor* DatasetServiceImpl::CreateSnapshots(Rpc* rpc, const v1::CreateSnapshotsRequest* request,
                                             v1::CreateSnapshotsResponse* reply) {
  return Lifecycle(context_, rpc, request, reply, &Pool::CreateSnapshots);
}

Reactor* DatasetServiceImpl::CloneDataset(Rpc* rpc, const v1::CloneDatasetRequest* request,
                                          v1::CloneDatasetResponse* reply) {
  return Lifecycle(context_, rpc, request, reply, &Pool::CloneDataset);
}

Reactor* DatasetServiceImpl::DestroyDatasets(Rpc* rpc, const v1::DestroyDatasetsRequest* request,
                                             v1::DestroyDatasetsResponse* reply) {
  return Lifecycle(context_, rpc, request, reply, &Pool::DestroyDatasets);
}

Reactor* DatasetServiceImpl::DestroySnapshots(Rpc* rpc, const v1::DestroySnapshotsRequest* request,
                                              v1::DestroySnapshotsResponse* reply) {
  return Lifecycle(context_, rpc, request, reply, &Pool::DestroySnapshots);
}

Reactor* DatasetServiceImpl::Undestroy(Rpc* rpc, const v1::UndestroyRequest* request,
                                       v1::UndestroyResponse* reply) {
  return Lifecycle(context_, rpc, request, reply, &Pool::Undestroy,
                   [](const Call& call, const UndestroyArgs* args) -> absl::Status {
                     const std::string& name = std::get<0>(*args);
                     ASSIGN_OR_RETURN(
                         const auto operation,
                         SeeOperation(call.context.pool, call.rights(), call.rule, name, OPERATOR));
                     // Only the first of its targets is known here.
                     if (operation.target_count == 1) return absl::OkStatus();
                     return Denied(call.rights(), call.rule, name);
                   });
}

Reactor* DatasetServiceImpl::HoldSnapshot(Rpc* rpc, const v1::HoldSnapshotRequest* request,
                                          v1::HoldSnapshotResponse* reply) {
  return Lifecycle(context_, rpc, request, reply, &Pool::HoldSnapshot);
}

Reactor* DatasetServiceImpl::ReleaseHold(Rpc* rpc, const v1::ReleaseHoldRequest* request,
                                         v1::ReleaseHoldResponse* reply) {
  return Lifecycle(context_, rpc, request, reply, &Pool::ReleaseHold);
}

Reactor* DatasetServiceImpl::RollbackDataset(Rpc* rpc, const v1::RollbackDatasetRequest* request,
                                             v1::RollbackDatasetResponse* reply) {
  return Lifecycle(context_, rpc, request, reply, &Pool::RollbackDataset);
}

Reactor* DatasetServiceImpl::PromoteDataset(Rpc* rpc, const v1::PromoteDatasetRequest* request,
                                            v1::PromoteDatasetResponse* reply) {
  return Lifecycle(context_, rpc, request, reply, &Pool::PromoteDataset,
                   [](const Call& call, PromoteDatasetArgs* args) -> absl::Status {
                     // The snapshots of the origin change hands: a change of its dataset.
                     ASSIGN_OR_RETURN(const auto clone,
                                      call.context.pool.GetDataset(std::get<0>(*args)));
                     if (call.rights().On(clone.origin) < OPERATOR && !clone.origin.empty()) {
                       return Denied(call.rights(), call.rule, "the origin");
                     }
                     // What was looked at is what is promoted, or nothing is.
                     std::string& etag = std::get<1>(*args);
                     if (etag.empty()) etag = clone.etag;
                     return absl::OkStatus();
                   });
}

Reactor* DatasetServiceImpl::RenameDataset(Rpc* rpc, const v1::RenameDatasetRequest* request,
                                           v1::RenameDatasetResponse* reply) {
  return Lifecycle(context_, rpc, request, reply, &Pool::RenameDataset);
}

Reactor* DatasetServiceImpl::RenameSnapshot(Rpc* rpc, const v1::RenameSnapshotRequest* request,
                                            v1::RenameSnapshotResponse* reply) {
  return Lifecycle(context_, rpc, request, reply, &Pool::RenameSnapshot);
}

// --- queries ---

Reactor* DatasetServiceImpl::GetDataset(Rpc* rpc, const v1::GetDatasetRequest* request,
                                        v1::Dataset* reply) {
  return Query(context_, rpc, context_.control, request, reply,
               [this](const auto& from, v1::Dataset* to) -> absl::Status {
                 ASSIGN_OR_RETURN(const auto info, context_.pool.GetDataset(from.name()));
                 Fill(info, to);
                 return absl::OkStatus();
               });
}

Reactor* DatasetServiceImpl::GetSnapshot(Rpc* rpc, const v1::GetSnapshotRequest* request,
                                         v1::Snapshot* reply) {
  return Query(context_, rpc, context_.control, request, reply,
               [this](const auto& from, v1::Snapshot* to) -> absl::Status {
                 ASSIGN_OR_RETURN(const auto info, context_.pool.GetSnapshot(from.name()));
                 Fill(info, to);
                 return absl::OkStatus();
               });
}

Reactor* DatasetServiceImpl::ListDatasets(Rpc* rpc, const v1::ListDatasetsRequest* request,
                                          v1::ListDatasetsResponse* reply) {
  return ListPage(context_, rpc, request, reply, &Pool::ListDatasets,
                  &v1::ListDatasetsResponse::add_datasets);
}

Reactor* DatasetServiceImpl::ListSnapshots(Rpc* rpc, const v1::ListSnapshotsRequest* request,
                                           v1::ListSnapshotsResponse* reply) {
  return ListPage(context_, rpc, request, reply, &Pool::ListSnapshots,
                  &v1::ListSnapshotsResponse::add_snapshots);
}

Reactor* DatasetServiceImpl::ListHolds(Rpc* rpc, const v1::ListHoldsRequest* request,
                                       v1::ListHoldsResponse* reply) {
  return ListPage(context_, rpc, request, reply, &Pool::ListHolds,
                  &v1::ListHoldsResponse::add_holds);
}

Reactor* DatasetServiceImpl::ListBlockers(Rpc* rpc, const v1::ListBlockersRequest* request,
                                          v1::ListBlockersResponse* reply) {
  return Query(context_, rpc, context_.control, request, reply,
               [this](const auto& from, v1::ListBlockersResponse* to) -> absl::Status {
                 ASSIGN_OR_RETURN(const auto args, ParsePage(from, context_.tokens));
                 ASSIGN_OR_RETURN(const auto query,
                                  context_.tokens.OpenBlockers(from.list_token()));
                 ASSIGN_OR_RETURN(const auto page, context_.pool.ListBlockers(query, args));
                 for (const auto& blocker : page.items) Fill(blocker, to->add_blockers());
                 to->set_next_page_token(context_.tokens.SealPosition(from, page.next));
                 return absl::OkStatus();
               });
}

}  // namespace cowshed::service

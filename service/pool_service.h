// SPDX-License-Identifier: Apache-2.0
//
// cowshed.v1.PoolService: the pool as a whole, its livelists, and what this server is.
//
// Threads     Thread-safe; methods run on gRPC's threads and never block.
// Ownership   Borrows the context.
#pragma once

#include <atomic>

#include "cowshed/v1/pool.grpc.pb.h"
#include "service/context.h"

namespace cowshed::service {

class PoolServiceImpl final : public v1::PoolService::CallbackService {
 public:
  explicit PoolServiceImpl(ServiceContext& context) : context_(context) {}

  using Rpc = grpc::CallbackServerContext;
  using Reactor = grpc::ServerUnaryReactor;

  Reactor* GetServerInfo(Rpc* rpc, const v1::GetServerInfoRequest* request,
                         v1::GetServerInfoResponse* reply) override;
  Reactor* GetPool(Rpc* rpc, const v1::GetPoolRequest* request, v1::Pool* reply) override;
  Reactor* UpdateReclaim(Rpc* rpc, const v1::UpdateReclaimRequest* request,
                         v1::UpdateReclaimResponse* reply) override;
  Reactor* GetSpace(Rpc* rpc, const v1::GetSpaceRequest* request,
                    v1::GetSpaceResponse* reply) override;
  Reactor* GetLivelist(Rpc* rpc, const v1::GetLivelistRequest* request,
                       v1::GetLivelistResponse* reply) override;
  Reactor* SyncPool(Rpc* rpc, const v1::SyncPoolRequest* request,
                    v1::SyncPoolResponse* reply) override;
  Reactor* Check(Rpc* rpc, const v1::CheckRequest* request, v1::CheckResponse* reply) override;
  Reactor* StartScrub(Rpc* rpc, const v1::StartScrubRequest* request,
                      v1::StartScrubResponse* reply) override;
  Reactor* CancelScrub(Rpc* rpc, const v1::CancelScrubRequest* request,
                       v1::CancelScrubResponse* reply) override;
  Reactor* Backup(Rpc* rpc, const v1::BackupRequest* request, v1::BackupResponse* reply) override;

 private:
  void FillServerInfo(v1::GetServerInfoResponse* reply) const;

  ServiceContext& context_;
  // One check at a time: each reads all metadata and keeps a worker for as long.
  std::atomic<bool> checking_{false};
};

}  // namespace cowshed::service

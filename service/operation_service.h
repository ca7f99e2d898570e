// SPDX-License-Identifier: Apache-2.0
//
// cowshed.v1.OperationService: long-running work, looked at and waited for.
//
// Threads     Thread-safe; methods run on gRPC's threads and never block.
// Ownership   Borrows the context.
#pragma once

#include <memory>

#include "cowshed/v1/operation.grpc.pb.h"
#include "service/context.h"
#include "service/operation_waits.h"

namespace cowshed::service {

class OperationServiceImpl final : public v1::OperationService::CallbackService {
 public:
  explicit OperationServiceImpl(ServiceContext& context)
      : context_(context), waits_(std::make_shared<OperationWaits>(context)) {}

  using Rpc = grpc::CallbackServerContext;
  using Reactor = grpc::ServerUnaryReactor;

  Reactor* GetOperation(Rpc* rpc, const v1::GetOperationRequest* request,
                        v1::Operation* reply) override;
  Reactor* ListOperations(Rpc* rpc, const v1::ListOperationsRequest* request,
                          v1::ListOperationsResponse* reply) override;
  Reactor* WaitOperations(Rpc* rpc, const v1::WaitOperationsRequest* request,
                          v1::WaitOperationsResponse* reply) override;

  // Answers all waits as things stand.
  void Stop() { waits_->Stop(); }

 private:
  ServiceContext& context_;
  const std::shared_ptr<OperationWaits> waits_;
};

}  // namespace cowshed::service

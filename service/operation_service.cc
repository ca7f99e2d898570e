// SPDX-License-Identifier: Apache-2.0
#include "service/operation_service.h"

#include <utility>

#include "service/unary.h"

namespace cowshed::service {

using Reactor = grpc::ServerUnaryReactor;

Reactor* OperationServiceImpl::GetOperation(Rpc* rpc, const v1::GetOperationRequest* request,
                                            v1::Operation* reply) {
  return Query(context_, rpc, context_.control, request, reply,
               [this](const auto& from, v1::Operation* to, const Call& call) -> absl::Status {
                 ASSIGN_OR_RETURN(const auto info, SeeOperation(context_.pool, call.rights(),
                                                                call.rule, from.name(), READER));
                 Fill(info, to);
                 return absl::OkStatus();
               });
}

Reactor* OperationServiceImpl::ListOperations(Rpc* rpc, const v1::ListOperationsRequest* request,
                                              v1::ListOperationsResponse* reply) {
  return ListPage(context_, rpc, request, reply, &engine::Pool::ListOperations,
                  &v1::ListOperationsResponse::add_operations);
}

Reactor* OperationServiceImpl::WaitOperations(Rpc* rpc, const v1::WaitOperationsRequest* request,
                                              v1::WaitOperationsResponse* reply) {
  Admission admission = context_.access.Admit(*rpc, RuleOf<v1::WaitOperationsRequest>(), request);
  if (admission.status.ok() && context_.stopping) admission.status = Stopping();
  const auto wait = std::make_shared<OperationWait>(waits_, context_, std::move(admission.caller),
                                                    *request, reply);
  OperationWait* const reactor = wait.get();
  wait->Start(admission.status);
  return reactor;
}

}  // namespace cowshed::service

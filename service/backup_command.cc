// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <future>
#include <memory>
#include <string>

#include "cowshed/v1/operation.grpc.pb.h"
#include "cowshed/v1/pool.grpc.pb.h"
#include "engine/base/status_macros.h"
#include "engine/pool.h"
#include "grpcpp/create_channel.h"
#include "service/commands.h"

namespace cowshed::service {
namespace {

constexpr int kWaitSeconds = 20;  // of one WaitOperations; the wait goes on until the end

int Report(const std::string& why) {
  std::fprintf(stderr, "cowshed backup: %s\n", why.c_str());
  return 1;
}

int Done(uint64_t bytes, const std::string& directory) {
  std::printf("ok: %" PRIu64 " bytes of blocks copied to %s\n", bytes, directory.c_str());
  return 0;
}

std::string Absolute(const std::string& directory) {
  return std::filesystem::absolute(directory).lexically_normal().string();
}

absl::StatusOr<engine::OperationInfo> CopyPool(engine::Pool& pool, const std::string& directory) {
  std::promise<absl::StatusOr<engine::Outcome>> begun;
  pool.Backup({directory}, std::nullopt, [&begun](absl::StatusOr<engine::Outcome> outcome) {
    begun.set_value(std::move(outcome));
  });
  ASSIGN_OR_RETURN(const engine::Outcome outcome, begun.get_future().get());
  while (true) {
    // Registered before the look: a change in between calls back at once.
    auto changed = std::make_shared<std::promise<void>>();
    pool.OnOperationsChanged([changed] { changed->set_value(); });
    ASSIGN_OR_RETURN(engine::OperationInfo info, pool.GetOperation(outcome.operation->name));
    if (info.done()) return info;
    RETURN_IF_ERROR(pool.health());  // suspended, it would never end
    changed->get_future().wait_for(std::chrono::seconds(1));
  }
}

}  // namespace

int Backup(const engine::PoolOptions& options, const std::string& directory) {
  engine::PoolOptions existing = options;
  existing.create_if_missing = false;
  const auto pool = engine::Pool::Open(existing);
  if (!pool.ok()) return Report(std::string(pool.status().message()));
  const auto info = CopyPool(**pool, Absolute(directory));
  if (!info.ok()) return Report(std::string(info.status().message()));
  if (info->state != engine::OperationState::kSucceeded) return Report(info->error);
  return Done(info->done_bytes, directory);
}

int BackupServed(const std::string& address, const std::string& directory) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  const auto channel =
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  v1::BackupRequest request;
  request.set_directory(directory);
  v1::BackupResponse begun;
  grpc::ClientContext context;
  grpc::Status status = v1::PoolService::NewStub(channel)->Backup(&context, request, &begun);
  const auto operations = v1::OperationService::NewStub(channel);
  while (status.ok()) {
    v1::WaitOperationsRequest wait;
    wait.add_names(begun.operation().name());
    wait.mutable_timeout()->set_seconds(kWaitSeconds);
    v1::WaitOperationsResponse waited;
    grpc::ClientContext wait_context;
    status = operations->WaitOperations(&wait_context, wait, &waited);
    if (!status.ok() || !waited.done()) continue;
    const v1::Operation& operation = waited.operations(0);
    if (operation.state() == v1::OPERATION_STATE_SUCCEEDED) {
      return Done(operation.done_bytes(), directory);
    }
    return Report(operation.error().message());
  }
  return Report(status.error_message());
}

}  // namespace cowshed::service

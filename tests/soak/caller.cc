// SPDX-License-Identifier: Apache-2.0
#include "tests/soak/caller.h"

#include <chrono>
#include <thread>

#include "engine/base/strings.h"

namespace cowshed::soak {
namespace {

constexpr auto kAttemptMax = std::chrono::minutes(2);
constexpr auto kPause = std::chrono::milliseconds(20);

std::shared_ptr<grpc::Channel> Connect(const std::string& target) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 20);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 20);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
}

void Prepare(grpc::ClientContext& context) {
  context.set_wait_for_ready(true);
  context.set_deadline(std::chrono::system_clock::now() + kAttemptMax);
}

bool HasReason(const grpc::Status& status, const char* reason) {
  return status.error_details().find(reason) != std::string::npos;
}

}  // namespace

Caller::Caller(const std::string& target, uint64_t seed, Counters& counters)
    : channel_(Connect(target)),
      datasets_(v1::DatasetService::NewStub(channel_)),
      data_(v1::DataService::NewStub(channel_)),
      pool_(v1::PoolService::NewStub(channel_)),
      seed_(seed),
      counters_(counters) {}

grpc::Status Caller::Insist(const std::function<grpc::Status(grpc::ClientContext&)>& attempt) {
  while (true) {
    grpc::ClientContext context;
    Prepare(context);
    const grpc::Status status = attempt(context);
    if (status.ok()) ++counters_.acknowledged;
    const bool restarted =
        status.error_code() == grpc::StatusCode::ABORTED && HasReason(status, "SERVER_RESTARTED");
    // A call that reaches a connection as the server closes it ends CANCELLED, though nobody did.
    const bool broken = status.error_code() == grpc::StatusCode::UNAVAILABLE ||
                        status.error_code() == grpc::StatusCode::CANCELLED || restarted;
    const bool refused = status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED;
    if (!broken && !refused) return status;
    std::this_thread::sleep_for(kPause);  // not a wait for anything: the pace of attempts
    if (broken) {
      ++counters_.sent_again;
      lost_();
    }
  }
}

std::string Caller::BootId() {
  while (true) {
    grpc::ClientContext context;
    Prepare(context);
    v1::GetServerInfoResponse reply;
    if (pool_->GetServerInfo(&context, v1::GetServerInfoRequest(), &reply).ok()) {
      return reply.boot_id();
    }
    std::this_thread::sleep_for(kPause);
  }
}

std::string Caller::NewRequestId() { return engine::StrCat("soak-", seed_, "-", ++request_ids_); }

}  // namespace cowshed::soak

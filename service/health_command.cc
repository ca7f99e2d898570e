// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstdio>

#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/create_channel.h"
#include "service/commands.h"

namespace cowshed::service {

int Health(const std::string& address, int timeout_seconds) {
  grpc::ChannelArguments arguments;
  // The server is local or named: a proxy in the environment is for other things.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  const auto channel =
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  const auto stub = grpc::health::v1::Health::NewStub(channel);
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(timeout_seconds));
  grpc::health::v1::HealthCheckResponse response;
  const grpc::Status status = stub->Check(&context, {}, &response);
  if (!status.ok()) {
    std::printf("%s: %s\n", address.c_str(), status.error_message().c_str());
    return 1;
  }
  const auto serving = response.status();
  std::printf("%s\n", grpc::health::v1::HealthCheckResponse::ServingStatus_Name(serving).c_str());
  return serving == grpc::health::v1::HealthCheckResponse::SERVING ? 0 : 1;
}

}  // namespace cowshed::service

// SPDX-License-Identifier: Apache-2.0
//
// A server over a real pool in this process, on a free port and on a unix socket, and a client that
// speaks in text format: Call(datasets(), &Datasets::CreateDataset, "name: 'a' size_bytes: 4096").
// Whatever a test did, the pool must pass its own check in the end.
//
// Threads     Calls may come from any thread; Restart and TearDown from the test's.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cowshed/v1/attachment.grpc.pb.h"
#include "cowshed/v1/data.grpc.pb.h"
#include "cowshed/v1/dataset.grpc.pb.h"
#include "cowshed/v1/operation.grpc.pb.h"
#include "cowshed/v1/pool.grpc.pb.h"
#include "engine/pool.h"
#include "google/protobuf/text_format.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "service/server.h"
#include "tests/support/testing.h"

namespace cowshed::service {

using Datasets = v1::DatasetService::Stub;
using Data = v1::DataService::Stub;
using Attachments = v1::AttachmentService::Stub;
using Operations = v1::OperationService::Stub;
using Pools = v1::PoolService::Stub;

// What a failed call says.
struct Failure {
  absl::StatusCode code = absl::StatusCode::kOk;
  std::string reason;  // of the one ErrorInfo; "" if there is not exactly one
  std::string message;
  std::map<std::string, std::string> metadata;
  v1::Blockers blockers;
  bool retry = false;  // has a RetryInfo
  size_t details_bytes = 0;
};
Failure FailureOf(const grpc::Status& status);

// `status` failed with this code and reason, e.g. EXPECT_FAILS(status, kNotFound,
// DATASET_NOT_FOUND).
#define EXPECT_FAILS(status, the_code, the_reason)                                             \
  {                                                                                            \
    const auto failure_here = ::cowshed::service::FailureOf(status);                           \
    EXPECT_EQ(failure_here.code, ::absl::StatusCode::the_code) << failure_here.message;        \
    EXPECT_EQ(failure_here.reason, ::cowshed::v1::ErrorReason_Name(::cowshed::v1::the_reason)) \
        << failure_here.message;                                                               \
  }

template <typename Message>
Message Text(const std::string& text) {
  Message message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message)) << text;
  return message;
}

class ServerTest : public testing::Test {
 protected:
  ServerTest();
  ~ServerTest() override;

  void SetUp() override { Restart(); }
  void TearDown() override;

  // Opens pool and server anew, from the options as they are.
  void Restart();
  // Stops the server, then closes the pool.
  void Stop();

  std::shared_ptr<grpc::Channel> Connect(const std::string& address) const;
  const std::string& tcp_address() const { return server_->addresses()[0]; }
  std::string unix_address() const { return "unix:" + dir_.Path("socket"); }

  Datasets& datasets() { return *datasets_; }
  Data& data() { return *data_; }
  Attachments& attachments() { return *attachments_; }
  Operations& operations() { return *operations_; }
  Pools& pools() { return *pools_; }

  // A call that must succeed; the request in text format.
  template <typename Stub, typename Request, typename Reply>
  Reply Call(Stub& stub, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
             const std::string& request) {
    Reply reply;
    const grpc::Status status = Try(stub, method, Text<Request>(request), &reply);
    EXPECT_TRUE(status.ok()) << status.error_message() << " for " << request;
    return reply;
  }
  // A call that may fail.
  template <typename Stub, typename Request, typename Reply>
  grpc::Status Try(Stub& stub,
                   grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
                   const std::string& request) {
    Reply reply;
    return Try(stub, method, Text<Request>(request), &reply);
  }
  template <typename Stub, typename Request, typename Reply>
  grpc::Status Try(Stub& stub,
                   grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
                   const Request& request, Reply* reply) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    return (stub.*method)(&context, request, reply);
  }

  // Shorthands for what most tests begin with.
  v1::Dataset Create(const std::string& name, uint64_t size_bytes = 1 << 20);
  v1::CreateSnapshotsResponse Snapshot(const std::vector<std::string>& names);
  v1::Dataset Clone(const std::string& source, const std::string& name);
  void Write(const std::string& dataset, uint64_t offset_bytes, const std::string& bytes);
  std::string Read(const std::string& name, uint64_t offset_bytes, uint64_t length_bytes);
  std::vector<std::string> ListNames(const std::string& prefix = "");

  engine::TempDir dir_;
  engine::PoolOptions pool_options_;
  ServerOptions server_options_;
  bool check_at_end_ = true;  // false: the test leaves a pool that is suspended or damaged
  std::unique_ptr<metrics::ServiceStats> stats_;
  std::unique_ptr<metrics::RpcMetrics> rpc_metrics_;
  std::unique_ptr<engine::Pool> pool_;
  std::unique_ptr<Server> server_;

 private:
  std::unique_ptr<Datasets> datasets_;
  std::unique_ptr<Data> data_;
  std::unique_ptr<Attachments> attachments_;
  std::unique_ptr<Operations> operations_;
  std::unique_ptr<Pools> pools_;
};

}  // namespace cowshed::service

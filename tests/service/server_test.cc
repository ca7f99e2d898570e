// SPDX-License-Identifier: Apache-2.0
//
// The server as a whole: addresses, limits, clients that go away or talk nonsense, and stopping.
#include "service/server.h"

#include <gmock/gmock.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <thread>

#include "engine/base/failpoints.h"
#include "grpcpp/generic/generic_stub.h"
#include "tests/service/server_fixture.h"

namespace cowshed::service {
namespace {

using testing::HasSubstr;

class ServerAsAWholeTest : public ServerTest {
 protected:
  absl::Status Second(const std::string& address) {
    ServerOptions options;
    options.listen = {address};
    metrics::ServiceStats stats;
    return Server::Start(*pool_, std::move(options), stats, nullptr).status();
  }
  metrics::RpcMetrics::Row& Row(const std::string& method) {
    return rpc_metrics_->RowOf("/cowshed.v1.DatasetService/" + method, metrics::RpcType::kUnary);
  }
  // Calls a method with bytes that need not be a request.
  grpc::Status CallRaw(const std::string& method, const std::string& bytes) {
    grpc::GenericStub stub(Connect(tcp_address()));
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    const grpc::Slice slice(bytes);
    const grpc::ByteBuffer request(&slice, 1);
    grpc::ByteBuffer reply;
    grpc::Status status;
    const auto call = stub.PrepareUnaryCall(&context, method, request, &queue);
    call->StartCall();
    call->Finish(&reply, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    return status;
  }
};

TEST_F(ServerAsAWholeTest, PortAndSocketServeTheSame) {
  Create("a");
  for (const auto& address : server_->addresses()) {
    const auto stub = v1::DatasetService::NewStub(Connect(address));
    EXPECT_EQ(Call(*stub, &Datasets::GetDataset, "name: 'a'").name(), "a") << address;
  }
}

TEST_F(ServerAsAWholeTest, OtherMachinesMayConnectInTheClearOnlyIfToldSo) {
  for (const char* address : {"0.0.0.0:0", "[::]:0", "192.0.2.1:0"}) {
    const absl::Status refused = Listen(address, {}).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << address;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("--insecure")) << address;
  }
  for (const char* address : {"127.0.0.1:0", "127.8.8.8:0", "localhost:0"}) {
    EXPECT_OK(Listen(address, {}).status());
  }
  ListenOptions options;
  options.insecure = true;
  EXPECT_OK(Listen("0.0.0.0:0", options).status());
  options = {};
  options.tls = true;
  EXPECT_OK(Listen("0.0.0.0:0", options).status());
  EXPECT_CODE(Second("0.0.0.0:0"), kInvalidArgument);
}

TEST_F(ServerAsAWholeTest, UnixSocketHasTheModeThatWasAskedFor) {
  for (const mode_t mode : {0660u, 0600u, 0666u}) {
    ListenOptions options;
    options.unix_mode = mode;
    const std::string path = dir_.Path("moded");
    const auto socket = engine::ValueOf(Listen("unix:" + path, options));
    struct stat status {};
    ASSERT_EQ(stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777, mode);
  }
}

TEST_F(ServerAsAWholeTest, TwoServersNeverShareAnAddress) {
  for (const auto& address : server_->addresses()) {
    const absl::Status status = Second(address);
    EXPECT_CODE(status, kUnavailable);
    EXPECT_THAT(std::string(status.message()), HasSubstr(address));
    EXPECT_THAT(std::string(status.message()), HasSubstr("Address already in use"));
  }
  EXPECT_EQ(ListNames().size(), 0u);  // the first one serves on
}

TEST_F(ServerAsAWholeTest, SocketOfAnotherProgramIsRefused) {
  const std::string path = dir_.Path("foreign");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  const FileDescriptor foreign(socket(AF_UNIX, SOCK_STREAM, 0));
  ASSERT_EQ(bind(foreign.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(foreign.get(), 1), 0);
  EXPECT_THAT(std::string(Second("unix:" + path).message()),
              HasSubstr("another program listens there"));
}

TEST_F(ServerAsAWholeTest, StaleSocketIsReplacedAndOtherFilesAreNot) {
  const std::string path = dir_.Path("stale");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  {
    const FileDescriptor left(socket(AF_UNIX, SOCK_STREAM, 0));
    ASSERT_EQ(bind(left.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  EXPECT_OK(Second("unix:" + path));
  const std::string file = dir_.Path("file");
  std::fclose(std::fopen(file.c_str(), "w"));
  EXPECT_THAT(std::string(Second("unix:" + file).message()), HasSubstr("is no socket"));
}

TEST_F(ServerAsAWholeTest, SocketIsForOwnerAndGroupAndGoesInTheEnd) {
  struct stat status {};
  ASSERT_EQ(stat(dir_.Path("socket").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0660u);
  server_->Stop();
  EXPECT_NE(stat(dir_.Path("socket").c_str(), &status), 0);
}

TEST_F(ServerAsAWholeTest, AddressesThatAreNoneAreNamed) {
  EXPECT_CODE(Second("nonsense"), kInvalidArgument);
  EXPECT_CODE(Second("127.0.0.1:99999"), kInvalidArgument);
  EXPECT_CODE(Second("::1:80"), kInvalidArgument);
  EXPECT_CODE(Second("unix:"), kInvalidArgument);
  const std::string path = "unix:" + dir_.Path(std::string(120, 'x'));
  const absl::Status status = Second(path);
  EXPECT_CODE(status, kUnavailable);
  EXPECT_EQ(status.message(), path + ": path: File name too long");
  EXPECT_THAT(std::string(Second("unix:" + dir_.Path("no/such/dir")).message()),
              HasSubstr("No such file or directory"));
}

TEST_F(ServerAsAWholeTest, FullQueueSaysSoAndWhenToComeBack) {
  server_options_.limits.control_workers = 1;
  server_options_.limits.queue_max = 1;
  Restart();
  Create("a");
  // The only worker waits in the pool while many want it.
  std::atomic<int> busy = 0;
  std::atomic<bool> retry = true;
  std::vector<std::thread> callers;
  for (int i = 0; i < 16; ++i) {
    callers.emplace_back([&] {
      for (int k = 0; k < 200; ++k) {
        const auto failure = FailureOf(Try(datasets(), &Datasets::GetDataset, "name: 'a'"));
        if (failure.code == absl::StatusCode::kOk) continue;
        EXPECT_EQ(failure.code, absl::StatusCode::kResourceExhausted);
        EXPECT_EQ(failure.reason, v1::ErrorReason_Name(v1::SERVER_BUSY));
        if (!failure.retry) retry = false;
        ++busy;
      }
    });
  }
  for (auto& caller : callers) caller.join();
  EXPECT_GT(busy, 0);
  EXPECT_TRUE(retry);
  EXPECT_EQ(stats_->executor_rejected, static_cast<uint64_t>(busy));
  EXPECT_EQ(stats_->executor_queue_length, 0u);
}

TEST_F(ServerAsAWholeTest, ConnectionsAreCountedAndCapped) {
  server_options_.limits.connections_max = 2;
  Restart();
  Call(datasets(), &Datasets::ListDatasets, "");
  EXPECT_EQ(stats_->connections, 1u);
  {
    const auto second = v1::DatasetService::NewStub(Connect(tcp_address()));
    Call(*second, &Datasets::ListDatasets, "");
    EXPECT_EQ(stats_->connections, 2u);
    const auto third = v1::DatasetService::NewStub(Connect(tcp_address()));
    EXPECT_EQ(Try(*third, &Datasets::ListDatasets, "").error_code(), grpc::StatusCode::UNAVAILABLE);
  }
  while (stats_->connections != 1) std::this_thread::yield();
  const auto fourth = v1::DatasetService::NewStub(Connect(tcp_address()));
  Call(*fourth, &Datasets::ListDatasets, "");
}

TEST_F(ServerAsAWholeTest, NonsenseIsAnsweredAndHurtsNobody) {
  EXPECT_FALSE(CallRaw("/cowshed.v1.DatasetService/CreateDataset", "\xff\xff\xff").ok());
  EXPECT_EQ(CallRaw("/cowshed.v1.DatasetService/NoSuchMethod", "").error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(CallRaw("/no.Service/NoSuchMethod", "").error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(
      CallRaw("/cowshed.v1.DatasetService/CreateDataset", std::string(11 << 20, 'x')).error_code(),
      grpc::StatusCode::RESOURCE_EXHAUSTED);
  Create("a");
}

TEST_F(ServerAsAWholeTest, DeadlineThatPassesInACallLeavesItDone) {
  EXPECT_OK(engine::Failpoints::Arm("sync.before_commit=pause:count=1"));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(300));
  v1::CreateDatasetResponse reply;
  const grpc::Status status = datasets().CreateDataset(
      &context, Text<v1::CreateDatasetRequest>("name: 'a' size_bytes: 4096 request_id: 'r'"),
      &reply);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  engine::Failpoints::DisarmAll();
  // The repeat under the same request_id gets the answer that was missed.
  const auto again =
      Call(datasets(), &Datasets::CreateDataset, "name: 'a' size_bytes: 4096 request_id: 'r'");
  EXPECT_EQ(again.dataset().name(), "a");
  EXPECT_EQ(ListNames().size(), 1u);
}

TEST_F(ServerAsAWholeTest, CancelledCallThatHasBegunIsStillApplied) {
  EXPECT_OK(engine::Failpoints::Arm("sync.before_commit=pause:count=1"));
  grpc::ClientContext context;
  grpc::Status status;
  std::thread caller([&] {
    v1::CreateDatasetResponse reply;
    status = datasets().CreateDataset(
        &context, Text<v1::CreateDatasetRequest>("name: 'a' size_bytes: 4096"), &reply);
  });
  while (engine::Failpoints::Hits("sync.before_commit") == 0) std::this_thread::yield();
  context.TryCancel();
  caller.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  engine::Failpoints::DisarmAll();
  Call(pools(), &Pools::SyncPool, "");
  EXPECT_EQ(ListNames().size(), 1u);
}

TEST_F(ServerAsAWholeTest, StopFinishesCallsUnderWay) {
  EXPECT_OK(engine::Failpoints::Arm("sync.before_commit=pause:count=1"));
  grpc::Status status;
  std::thread caller([&] {
    v1::CreateDatasetResponse reply;
    status = Try(datasets(), &Datasets::CreateDataset,
                 Text<v1::CreateDatasetRequest>("name: 'a' size_bytes: 4096"), &reply);
  });
  while (engine::Failpoints::Hits("sync.before_commit") == 0) std::this_thread::yield();
  std::thread stopper([this] { server_->Stop(); });
  engine::Failpoints::DisarmAll();
  caller.join();
  stopper.join();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_OK(pool_->GetDataset("a").status());
  server_->Stop();  // again: nothing to do
}

TEST_F(ServerAsAWholeTest, WhatWasWrittenIsDurableAfterStop) {
  Create("a");
  Write("a", 0, "moo");
  Restart();
  EXPECT_EQ(Read("a", 0, 3), "moo");
}

TEST_F(ServerAsAWholeTest, LoadThenStopUnderLoad) {
  for (int i = 0; i < 4; ++i) Create("d" + std::to_string(i));
  std::atomic<int> unexpected = 0;
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([this, &unexpected, i] {
      const std::string name = "d" + std::to_string(i);
      for (int k = 0;; ++k) {
        const auto failure = FailureOf(
            k % 3 == 0   ? Try(datasets(), &Datasets::CreateSnapshots,
                               "names: '" + name + "@" + std::to_string(k) + "'")
            : k % 3 == 1 ? Try(data(), &Data::WriteRange, "dataset: '" + name + "' data: 'moo'")
                         : Try(datasets(), &Datasets::DestroySnapshots,
                               "names: '" + name + "@" + std::to_string(k - 2) + "'"));
        if (failure.code == absl::StatusCode::kOk) continue;
        // CANCELLED is the library's own word to a call that comes while it closes the connection.
        if (failure.code != absl::StatusCode::kUnavailable &&
            failure.code != absl::StatusCode::kCancelled) {
          ++unexpected;
        }
        return;
      }
    });
  }
  while (Row("CreateSnapshots").handled[0] < 40) std::this_thread::yield();
  server_->Stop();
  for (auto& caller : callers) caller.join();
  EXPECT_EQ(unexpected, 0);
}

TEST_F(ServerAsAWholeTest, CountsWhatTheClientCounts) {
  for (int i = 0; i < 5; ++i) Create("d" + std::to_string(i), 4096);
  Try(datasets(), &Datasets::CreateDataset, "name: 'd0' size_bytes: 4096");
  EXPECT_EQ(Row("CreateDataset").started, 6u);
  EXPECT_EQ(Row("CreateDataset").handled[static_cast<int>(grpc::StatusCode::OK)], 5u);
  EXPECT_EQ(Row("CreateDataset").handled[static_cast<int>(grpc::StatusCode::ALREADY_EXISTS)], 1u);
}

}  // namespace
}  // namespace cowshed::service

// SPDX-License-Identifier: Apache-2.0
//
// Operations over the wire: waiting for any and for all, and what ends a wait.
#include <gmock/gmock.h>

#include <thread>

#include "engine/base/failpoints.h"
#include "tests/service/server_fixture.h"

namespace cowshed::service {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

class OperationServiceTest : public ServerTest {
 protected:
  void SetUp() override {
    pool_options_.background_work = false;  // operations end when the test says so
    ServerTest::SetUp();
  }

  // Destroys a new dataset; the operation stays pending.
  std::string Begin(const std::string& name) {
    Create(name);
    Write(name, 0, std::string(100000, 'x'));
    Call(data(), &Data::Flush, "dataset: '" + name + "'");
    return Call(datasets(), &Datasets::DestroyDatasets, "names: '" + name + "'").operation().name();
  }
  v1::WaitOperationsResponse Wait(const std::string& request) {
    return Call(operations(), &Operations::WaitOperations, request);
  }
};

TEST_F(OperationServiceTest, IsListedNewestFirstAndGot) {
  const std::string first = Begin("a");
  const std::string second = Begin("b");
  const auto listed = Call(operations(), &Operations::ListOperations, "unfinished: true");
  ASSERT_EQ(listed.operations_size(), 2);
  EXPECT_EQ(listed.operations(0).name(), second);
  EXPECT_EQ(listed.operations(1).name(), first);
  EXPECT_EQ(listed.operations(1).target(), "a");
  EXPECT_EQ(listed.operations(1).target_count(), 1u);
  EXPECT_GT(listed.operations(1).txg(), 0u);
  EXPECT_FALSE(listed.operations(1).has_finish_time());
  EXPECT_OK(pool_->DrainBackground());
  const auto done = Call(operations(), &Operations::GetOperation, "name: '" + first + "'");
  EXPECT_EQ(done.state(), v1::OPERATION_STATE_SUCCEEDED);
  EXPECT_TRUE(done.has_finish_time());
  EXPECT_GE(done.done_bytes(), 100000u);
  EXPECT_EQ(Call(operations(), &Operations::ListOperations, "unfinished: true").operations_size(),
            0);
  EXPECT_EQ(Call(operations(), &Operations::ListOperations, "kind: OPERATION_KIND_DESTROY_DATASETS")
                .operations_size(),
            2);
}

TEST_F(OperationServiceTest, WaitWithoutTimeoutAnswersAtOnce) {
  const std::string name = Begin("a");
  const auto reply = Wait("names: '" + name + "'");
  EXPECT_FALSE(reply.done());
  ASSERT_EQ(reply.operations_size(), 1);
  EXPECT_EQ(reply.operations(0).name(), name);
}

TEST_F(OperationServiceTest, WaitThatRunsOutIsNoError) {
  const std::string name = Begin("a");
  const auto start = steady_clock::now();
  EXPECT_FALSE(Wait("names: '" + name + "' timeout { nanos: 200000000 }").done());
  EXPECT_GE(steady_clock::now() - start, milliseconds(200));
}

TEST_F(OperationServiceTest, WaitEndsWithTheOperation) {
  const std::string name = Begin("a");
  v1::WaitOperationsResponse reply;
  std::thread waiter([&] { reply = Wait("names: '" + name + "' timeout { seconds: 60 }"); });
  EXPECT_OK(pool_->DrainBackground());
  waiter.join();
  EXPECT_TRUE(reply.done());
  EXPECT_EQ(reply.operations(0).state(), v1::OPERATION_STATE_SUCCEEDED);
}

TEST_F(OperationServiceTest, AnyNeedsOneAndAllNeedsAll) {
  const std::string done = Begin("a");
  EXPECT_OK(pool_->DrainBackground());
  const std::string pending = Begin("b");
  const std::string both = "names: '" + pending + "' names: '" + done + "' ";
  const auto any = Wait(both + "mode: WAIT_MODE_ANY timeout { seconds: 60 }");
  EXPECT_TRUE(any.done());
  ASSERT_EQ(any.operations_size(), 2);
  EXPECT_EQ(any.operations(0).name(), pending);
  EXPECT_FALSE(Wait(both + "mode: WAIT_MODE_ALL timeout { nanos: 50000000 }").done());
  EXPECT_OK(pool_->DrainBackground());
  EXPECT_TRUE(Wait(both + "timeout { seconds: 60 }").done());
}

TEST_F(OperationServiceTest, ManyWaitsEndTogether) {
  const std::string name = Begin("a");
  std::atomic<int> done = 0;
  std::vector<std::thread> waiters;
  for (int i = 0; i < 50; ++i) {
    waiters.emplace_back([&] {
      if (Wait("names: '" + name + "' timeout { seconds: 60 }").done()) ++done;
    });
  }
  EXPECT_OK(pool_->DrainBackground());
  for (auto& waiter : waiters) waiter.join();
  EXPECT_EQ(done, 50);
}

TEST_F(OperationServiceTest, WaitRefusesWhatIsWrong) {
  const auto wait = [this](const std::string& request) {
    return Try(operations(), &Operations::WaitOperations, request);
  };
  EXPECT_FAILS(wait(""), kInvalidArgument, INVALID_FIELD);
  EXPECT_FAILS(wait("names: 'operations/77' timeout { seconds: 9 }"), kNotFound,
               OPERATION_NOT_FOUND);
  EXPECT_FAILS(Try(operations(), &Operations::GetOperation, "name: 'x'"), kNotFound,
               OPERATION_NOT_FOUND);
  std::string many;
  for (int i = 0; i <= 1000; ++i) many += "names: 'operations/" + std::to_string(i) + "' ";
  EXPECT_FAILS(wait(many), kInvalidArgument, TOO_MANY_NAMES);
}

TEST_F(OperationServiceTest, CancelEndsAWait) {
  const std::string name = Begin("a");
  grpc::ClientContext context;
  grpc::Status status;
  std::thread waiter([&] {
    v1::WaitOperationsResponse reply;
    status = operations().WaitOperations(
        &context, Text<v1::WaitOperationsRequest>("names: '" + name + "' timeout { seconds: 60 }"),
        &reply);
  });
  context.TryCancel();
  waiter.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(OperationServiceTest, StopAnswersWaitsAsThingsStand) {
  const std::string name = Begin("a");
  grpc::Status status;
  v1::WaitOperationsResponse reply;
  std::thread waiter([&] {
    status = Try(operations(), &Operations::WaitOperations,
                 Text<v1::WaitOperationsRequest>("names: '" + name + "' timeout { seconds: 60 }"),
                 &reply);
  });
  // The wait is there once its call is counted.
  auto& row =
      rpc_metrics_->RowOf("/cowshed.v1.OperationService/WaitOperations", metrics::RpcType::kUnary);
  while (row.started == 0) std::this_thread::yield();
  const auto start = steady_clock::now();
  server_->Stop();
  waiter.join();
  EXPECT_LT(steady_clock::now() - start, std::chrono::seconds(20));
  if (status.ok()) {
    EXPECT_FALSE(reply.done());
    EXPECT_EQ(reply.operations_size(), 1);
  } else {
    EXPECT_FAILS(status, kUnavailable, SERVER_STOPPING);
  }
}

TEST_F(OperationServiceTest, DamagedListStallsItsOperation) {
  check_at_end_ = false;
  const std::string name = Begin("a");
  EXPECT_OK(engine::Failpoints::Arm("reclaim.step=error"));
  const absl::Status drained = pool_->DrainBackground();
  engine::Failpoints::DisarmAll();
  const auto operation = Call(operations(), &Operations::GetOperation, "name: '" + name + "'");
  EXPECT_NE(operation.state(), v1::OPERATION_STATE_SUCCEEDED) << drained;
}

}  // namespace
}  // namespace cowshed::service

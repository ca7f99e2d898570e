// SPDX-License-Identifier: Apache-2.0
//
// A failed fsync stops writes for good, as a client, a load balancer and Prometheus see it: changes
// are refused with POOL_SUSPENDED, health says NOT_SERVING, the alarm is up, reads go on, and not a
// byte goes to the disk any more, until the server is started again.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

#include "grpc/health/v1/health.grpc.pb.h"
#include "metrics/collector.h"
#include "tests/host_faults/fault_interposer.h"
#include "tests/service/server_fixture.h"

namespace cowshed::service {
namespace {

using engine::HostCall;
using Serving = grpc::health::v1::HealthCheckResponse;

class SuspendedTest : public ServerTest, public testing::WithParamInterface<const char*> {
 protected:
  void TearDown() override {
    engine::HealHost();
    ServerTest::TearDown();
  }

  Serving::ServingStatus Health(const std::string& service) {
    const auto stub = grpc::health::v1::Health::NewStub(Connect(unix_address()));
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    grpc::health::v1::HealthCheckRequest request;
    request.set_service(service);
    Serving response;
    const grpc::Status status = stub->Check(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.status();
  }
  void AwaitHealth(Serving::ServingStatus wanted) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (Health("") != wanted && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_EQ(Health(""), wanted);
    EXPECT_EQ(Health("cowshed.v1.DataService"), wanted);
  }
  double SuspendedAlarm() {
    const metrics::Collector collector(pool_->stats(), *stats_, {});
    for (const auto& family : collector.Collect()) {
      if (family.name != "cowshed_alarm_active") continue;
      for (const auto& metric : family.metric) {
        if (metric.label.size() == 1 && metric.label[0].value == "pool_suspended") {
          return metric.gauge.value;
        }
      }
    }
    return -1;
  }
  grpc::Status Flush() { return Try(data(), &Data::Flush, "dataset: 'd'"); }
  void ExpectChangesRefused() {
    EXPECT_FAILS(Flush(), kUnavailable, POOL_SUSPENDED);
    EXPECT_FAILS(Try(data(), &Data::WriteRange, "dataset: 'd' data: 'x'"), kUnavailable,
                 POOL_SUSPENDED);
    EXPECT_FAILS(Try(datasets(), &Datasets::CreateDataset, "name: 'e' size_bytes: 4096"),
                 kUnavailable, POOL_SUSPENDED);
    EXPECT_FAILS(Try(datasets(), &Datasets::DestroyDatasets, "names: 'd'"), kUnavailable,
                 POOL_SUSPENDED);
  }
};

TEST_P(SuspendedTest, FailedSyncStopsWritesForGoodAndReadsGoOn) {
  const std::string durable(16384, 'a');
  const std::string accepted(16384, 'b');
  Create("d");
  Write("d", 0, durable);
  ASSERT_TRUE(Flush().ok());
  AwaitHealth(Serving::SERVING);
  EXPECT_EQ(SuspendedAlarm(), 0);

  engine::HostFault fault;
  fault.path_part = GetParam();
  fault.calls = {HostCall::kSync};
  fault.at = 1;
  engine::SetHostFault(fault);
  Write("d", 16384, accepted);
  EXPECT_FAILS(Flush(), kUnavailable, POOL_SUSPENDED);

  // The disk is well again. What it lost meanwhile nobody knows, so that changes nothing.
  engine::HostFault count;
  count.path_part = dir_.Path("pool");
  count.calls = {HostCall::kWrite, HostCall::kSync, HostCall::kAllocate, HostCall::kTruncate};
  engine::SetHostFault(count);
  AwaitHealth(Serving::NOT_SERVING);
  EXPECT_EQ(SuspendedAlarm(), 1);
  const auto pool = Call(pools(), &Pools::GetPool, "");
  EXPECT_EQ(pool.state(), v1::POOL_STATE_SUSPENDED);
  EXPECT_EQ(pool.alarms_size(), 1);
  ExpectChangesRefused();
  EXPECT_EQ(Read("d", 0, 32768), durable + accepted);
  EXPECT_EQ(ListNames().size(), 1u);
  EXPECT_EQ(engine::HostCallsCounted(), 0u) << "something was written after a failed fsync";

  Restart();
  AwaitHealth(Serving::SERVING);
  EXPECT_EQ(SuspendedAlarm(), 0);
  const std::string found = Read("d", 0, 32768);
  EXPECT_TRUE(found == durable + std::string(16384, '\0') || found == durable + accepted);
  Write("d", 0, accepted);
  EXPECT_TRUE(Flush().ok());
}

INSTANTIATE_TEST_SUITE_P(Files, SuspendedTest, testing::Values("/blocks", "/meta/data.mdb"),
                         [](const auto& info) {
                           return std::string(info.index == 0 ? "Blocks" : "Metadata");
                         });

}  // namespace
}  // namespace cowshed::service

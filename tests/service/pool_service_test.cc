// SPDX-License-Identifier: Apache-2.0
//
// The pool over the wire: what the server is, where space went, livelists, sync, check, and what a
// suspended pool answers.
#include <gmock/gmock.h>

#include <numeric>

#include "engine/base/failpoints.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/service/server_fixture.h"

namespace cowshed::service {
namespace {

class PoolServiceTest : public ServerTest {
 protected:
  v1::GetSpaceResponse Space(const std::string& name) {
    const auto space = Call(pools(), &Pools::GetSpace, "name: '" + name + "'");
    uint64_t sum = 0;
    for (const auto& part : space.parts()) sum += part.bytes();
    EXPECT_EQ(sum, space.total_bytes()) << space.DebugString();
    return space;
  }
  grpc::health::v1::HealthCheckResponse::ServingStatus HealthOf(const std::string& service) {
    const auto stub = grpc::health::v1::Health::NewStub(Connect(tcp_address()));
    grpc::ClientContext context;
    grpc::health::v1::HealthCheckRequest request;
    request.set_service(service);
    grpc::health::v1::HealthCheckResponse response;
    EXPECT_TRUE(stub->Check(&context, request, &response).ok()) << service;
    return response.status();
  }
};

TEST_F(PoolServiceTest, ServerInfoNamesBootPoolAndLimits) {
  const auto info = Call(pools(), &Pools::GetServerInfo, "");
  EXPECT_EQ(info.version(), COWSHED_VERSION);
  EXPECT_EQ(info.api_revision(), 4u);
  EXPECT_EQ(info.pool_uid(), pool_->uid());
  EXPECT_EQ(info.boot_id(), server_->boot_id());
  EXPECT_EQ(info.boot_id().size(), 32u);
  EXPECT_EQ(info.limits().max_chunk_bytes(), uint64_t{1} << 20);
  EXPECT_EQ(info.limits().write_ack_interval_bytes(), uint64_t{8} << 20);
  EXPECT_EQ(info.limits().max_data_streams(), 64u);
  Restart();
  const auto again = Call(pools(), &Pools::GetServerInfo, "");
  EXPECT_EQ(again.pool_uid(), info.pool_uid());
  EXPECT_NE(again.boot_id(), info.boot_id());
}

TEST_F(PoolServiceTest, PoolCountsWhatItHolds) {
  Create("a");
  Write("a", 0, std::string(200000, 'x'));
  Snapshot({"a@s"});
  Clone("a@s", "b");
  Call(datasets(), &Datasets::HoldSnapshot, "snapshot: 'a@s' tag: 't'");
  const auto pool = Call(pools(), &Pools::GetPool, "");
  EXPECT_EQ(pool.state(), v1::POOL_STATE_ACTIVE);
  EXPECT_EQ(pool.dataset_count(), 2u);
  EXPECT_EQ(pool.clone_count(), 1u);
  EXPECT_EQ(pool.snapshot_count(), 1u);
  EXPECT_EQ(pool.hold_count(), 1u);
  EXPECT_GE(pool.allocated_bytes(), 200000u);
  EXPECT_EQ(pool.written_bytes_total(), 200000u);
  EXPECT_EQ(pool.alarms_size(), 0);
}

TEST_F(PoolServiceTest, SpaceAddsUp) {
  Create("a");
  Write("a", 0, std::string(1 << 20, 'x'));
  EXPECT_EQ(Space("").parts_size(), 5);
  Snapshot({"a@1"});
  Write("a", 0, std::string(100000, 'y'));
  Snapshot({"a@2"});
  const auto dataset = Space("a");
  EXPECT_EQ(dataset.name(), "a");
  EXPECT_EQ(dataset.freed_by_destroy_bytes(), dataset.total_bytes());
  EXPECT_EQ(Space("a@latest").name(), "a@2");
  Clone("a@2", "b");
  Write("b", 0, std::string(50000, 'z'));
  Call(data(), &Data::Flush, "dataset: 'b'");
  const auto clone = Space("b");
  EXPECT_GE(clone.freed_by_destroy_bytes(), 50000u);
  EXPECT_LT(clone.freed_by_destroy_bytes(), clone.total_bytes());
  Snapshot({"b@1"});
  Write("b", 0, std::string(50000, 'w'));
  Snapshot({"b@2"});
  Space("b");
  EXPECT_FAILS(Try(pools(), &Pools::GetSpace, "name: 'z'"), kNotFound, DATASET_NOT_FOUND);
}

TEST_F(PoolServiceTest, LivelistIsToldByPages) {
  Create("a");
  for (int i = 0; i < 5; ++i) {
    Write("a", i * 16384, "x");
    Snapshot({"a@" + std::to_string(i)});
  }
  std::vector<uint64_t> starts;
  uint64_t bytes = 0;
  std::string token;
  v1::GetLivelistResponse page;
  do {
    page =
        Call(pools(), &Pools::GetLivelist, "dataset: 'a' page_size: 2 page_token: '" + token + "'");
    EXPECT_TRUE(page.exists());
    EXPECT_LE(page.sublists_size(), 2);
    for (const auto& sublist : page.sublists()) {
      starts.push_back(sublist.start_txg());
      bytes += sublist.bytes();
    }
    token = page.next_page_token();
  } while (!token.empty());
  EXPECT_TRUE(std::is_sorted(starts.begin(), starts.end()));
  EXPECT_EQ(starts.size(), page.total_sublists());
  EXPECT_EQ(bytes, page.total_bytes());
  EXPECT_EQ(page.total_bytes(), Call(datasets(), &Datasets::GetDataset, "name: 'a'").used_bytes());
  EXPECT_FAILS(Try(pools(), &Pools::GetLivelist, "dataset: 'a' page_token: 'x'"), kInvalidArgument,
               INVALID_PAGE_TOKEN);
  EXPECT_FAILS(Try(pools(), &Pools::GetLivelist, "dataset: 'a' page_size: -1"), kInvalidArgument,
               INVALID_FIELD);
  EXPECT_FAILS(Try(pools(), &Pools::GetLivelist, "dataset: 'z'"), kNotFound, DATASET_NOT_FOUND);
}

TEST_F(PoolServiceTest, SyncMakesAllDurable) {
  Create("a");
  Write("a", 0, "moo");
  const auto synced = Call(pools(), &Pools::SyncPool, "");
  EXPECT_EQ(synced.boot_id(), server_->boot_id());
  EXPECT_EQ(synced.txg(), pool_->committed_txg());
}

TEST_F(PoolServiceTest, CheckFindsNothingInASoundPool) {
  Create("a");
  Write("a", 0, std::string(100000, 'x'));
  Snapshot({"a@s"});
  const auto check = Call(pools(), &Pools::Check, "");
  EXPECT_TRUE(check.ok()) << check.DebugString();
  EXPECT_EQ(check.dataset_count(), 1u);
  EXPECT_EQ(check.snapshot_count(), 1u);
  EXPECT_GE(check.referenced_bytes(), 100000u);
}

TEST_F(PoolServiceTest, SuspendedPoolSaysSoAndGoesOnReading) {
  for (const char* service :
       {"", "cowshed.v1.DatasetService", "cowshed.v1.DataService", "cowshed.v1.AttachmentService",
        "cowshed.v1.OperationService", "cowshed.v1.PoolService"}) {
    EXPECT_EQ(HealthOf(service), grpc::health::v1::HealthCheckResponse::SERVING);
  }
  Create("a");
  Write("a", 0, "moo");
  Call(data(), &Data::Flush, "dataset: 'a'");
  check_at_end_ = false;
  EXPECT_OK(engine::Failpoints::Arm("sync.before_commit=error"));
  EXPECT_FALSE(Try(datasets(), &Datasets::CreateDataset, "name: 'b' size_bytes: 4096").ok());
  engine::Failpoints::DisarmAll();
  EXPECT_FAILS(Try(datasets(), &Datasets::CreateDataset, "name: 'c' size_bytes: 4096"),
               kUnavailable, POOL_SUSPENDED);
  EXPECT_EQ(Read("a", 0, 3), "moo");
  const auto pool = Call(pools(), &Pools::GetPool, "");
  EXPECT_EQ(pool.state(), v1::POOL_STATE_SUSPENDED);
  EXPECT_THAT(pool.alarms(), testing::Contains("pool_suspended"));
  while (HealthOf("") == grpc::health::v1::HealthCheckResponse::SERVING) std::this_thread::yield();
  EXPECT_EQ(HealthOf("cowshed.v1.DatasetService"),
            grpc::health::v1::HealthCheckResponse::NOT_SERVING);
}

}  // namespace
}  // namespace cowshed::service

// SPDX-License-Identifier: Apache-2.0
//
// The undelete window and the control of reclaim over the wire.
#include <gmock/gmock.h>

#include "tests/service/server_fixture.h"

namespace cowshed::service {
namespace {

using testing::ElementsAre;

class UndestroyTest : public ServerTest {
 protected:
  v1::DestroyDatasetsResponse DestroyKeeping(const std::string& request) {
    return Call(datasets(), &Datasets::DestroyDatasets,
                request + " reclaim_after { seconds: 3600 }");
  }
  grpc::Status Undestroy(const std::string& operation) {
    return Try(datasets(), &Datasets::Undestroy, "operation: '" + operation + "'");
  }
  v1::Pool GetPool() { return Call(pools(), &Pools::GetPool, ""); }
};

TEST_F(UndestroyTest, BringsBackWhatWasKept) {
  const auto before = Create("ci/a");
  Write("ci/a", 0, std::string(100000, 'x'));
  Snapshot({"ci/a@s"});
  const auto destroyed = DestroyKeeping("names: 'ci/a' recursive: true");
  const auto& waiting = destroyed.operation();
  EXPECT_EQ(waiting.state(), v1::OPERATION_STATE_WAITING);
  EXPECT_TRUE(waiting.has_wait_until());
  EXPECT_GE(waiting.wait_until().seconds(), waiting.create_time().seconds() + 3599);
  const auto pool = GetPool();
  EXPECT_EQ(pool.reclaim().waiting_count(), 1u);
  EXPECT_GE(pool.reclaim().waiting_bytes(), 100000u);
  EXPECT_EQ(pool.freeing_bytes(), 0u);
  EXPECT_TRUE(pool.reclaim().has_next_window_end_time());
  uint64_t parts_bytes = 0;
  const auto space = Call(pools(), &Pools::GetSpace, "");
  for (const auto& part : space.parts()) {
    parts_bytes += part.bytes();
    if (part.kind() == v1::SPACE_KIND_WAITING) {
      EXPECT_EQ(part.bytes(), pool.reclaim().waiting_bytes());
    }
  }
  EXPECT_EQ(parts_bytes, space.total_bytes());
  const auto wait = Call(operations(), &Operations::WaitOperations,
                         "names: '" + waiting.name() + "' timeout { nanos: 1000000 }");
  EXPECT_FALSE(wait.done());
  EXPECT_EQ(Call(operations(), &Operations::ListOperations, "unfinished: true").operations_size(),
            1);

  const std::string request = "operation: '" + waiting.name() + "' request_id: 'r1'";
  const auto reply = Call(datasets(), &Datasets::Undestroy, request);
  EXPECT_EQ(reply.count(), 1u);
  EXPECT_EQ(reply.datasets(0).uid(), before.uid());
  EXPECT_EQ(reply.operation().state(), v1::OPERATION_STATE_UNDONE);
  EXPECT_TRUE(reply.operation().has_finish_time());
  EXPECT_FALSE(reply.operation().has_wait_until());
  EXPECT_THAT(ListNames(), ElementsAre("ci/a"));
  EXPECT_EQ(Read("ci/a@s", 0, 100000), std::string(100000, 'x'));
  EXPECT_EQ(GetPool().reclaim().waiting_count(), 0u);
  // A repeat gets the first reply, another call the truth.
  EXPECT_EQ(Call(datasets(), &Datasets::Undestroy, request).txg(), reply.txg());
  EXPECT_FAILS(Undestroy(waiting.name()), kFailedPrecondition, RECLAIM_BEGUN);
}

TEST_F(UndestroyTest, SaysWhyNot) {
  Create("base");
  Snapshot({"base@s"});
  Clone("base@s", "clone");
  const auto clone = DestroyKeeping("names: 'clone'");
  const auto base = DestroyKeeping("names: 'base' recursive: true");
  const auto refused = Undestroy(clone.operation().name());
  EXPECT_FAILS(refused, kFailedPrecondition, ORIGIN_DESTROYED);
  EXPECT_EQ(FailureOf(refused).metadata["operation"], base.operation().name());
  EXPECT_FAILS(Undestroy("operations/99999"), kNotFound, OPERATION_NOT_FOUND);
  Create("base");
  EXPECT_FAILS(Undestroy(base.operation().name()), kAlreadyExists, DATASET_EXISTS);
  for (const char* bad : {"seconds: 2592001", "seconds: -1", "nanos: -1"}) {
    EXPECT_FAILS(Try(datasets(), &Datasets::DestroyDatasets,
                     std::string("names: 'base' reclaim_after { ") + bad + " }"),
                 kInvalidArgument, INVALID_FIELD);
  }
}

TEST_F(UndestroyTest, ReclaimIsPausedAndLimitedOverARestart) {
  const auto defaults = GetPool().reclaim();
  EXPECT_FALSE(defaults.paused());
  EXPECT_EQ(defaults.rate_bytes_per_second(), 0u);
  EXPECT_EQ(defaults.txg_budget().nanos(), 2000000);
  auto reply = Call(pools(), &Pools::UpdateReclaim,
                    "paused: true rate_bytes_per_second: 1000000 txg_budget { nanos: 500000 }");
  EXPECT_TRUE(reply.reclaim().paused());
  EXPECT_GT(reply.txg(), 0u);
  Create("d");
  Write("d", 0, std::string(100000, 'x'));
  const auto destroyed = Call(datasets(), &Datasets::DestroyDatasets, "names: 'd'");
  Restart();
  const auto pool = GetPool();
  EXPECT_TRUE(pool.reclaim().paused());
  EXPECT_EQ(pool.reclaim().rate_bytes_per_second(), 1000000u);
  EXPECT_EQ(pool.reclaim().txg_budget().nanos(), 500000);
  EXPECT_EQ(pool.reclaim().pending_count(), 1u);
  EXPECT_GE(pool.reclaim().pending_bytes(), 100000u);
  const std::string wait = "names: '" + destroyed.operation().name() + "' timeout { seconds: ";
  EXPECT_FALSE(Call(operations(), &Operations::WaitOperations, wait + "0 nanos: 1000000 }").done());
  reply = Call(pools(), &Pools::UpdateReclaim, "paused: false rate_bytes_per_second: 0");
  EXPECT_EQ(reply.reclaim().txg_budget().nanos(), 500000) << "what is absent stays";
  EXPECT_TRUE(Call(operations(), &Operations::WaitOperations, wait + "30 }").done());
  EXPECT_FAILS(Try(pools(), &Pools::UpdateReclaim, "txg_budget { seconds: 2 }"), kInvalidArgument,
               INVALID_FIELD);
}

TEST_F(UndestroyTest, PlanAndLivelistSayWhatADestroyCosts) {
  Create("d");
  Write("d", 0, std::string(400000, 'x'));
  Call(pools(), &Pools::SyncPool, "");
  Write("d", 0, std::string(200000, 'y'));
  Call(pools(), &Pools::SyncPool, "");
  const auto list = Call(pools(), &Pools::GetLivelist, "dataset: 'd'");
  EXPECT_GT(list.destroy_seconds(), 0);
  EXPECT_GT(list.total_allocated_blocks(), list.total_blocks());
  EXPECT_DOUBLE_EQ(list.garbage_ratio(),
                   1 - static_cast<double>(list.total_blocks()) /
                           static_cast<double>(list.total_allocated_blocks()));
  const auto plan =
      Call(datasets(), &Datasets::DestroyDatasets, "names: 'd' validate_only: true").plan();
  EXPECT_EQ(plan.freed_bytes(), list.total_bytes());
  EXPECT_EQ(plan.entries(), list.total_entries());
  EXPECT_GT(plan.predicted_seconds(), 0);
}

TEST_F(UndestroyTest, CloneOfAHeadNamesItsParent) {
  Create("base");
  const auto clone = Clone("base", "clone");
  EXPECT_EQ(clone.origin(), "");
  EXPECT_EQ(clone.parent(), "base");
}

}  // namespace
}  // namespace cowshed::service

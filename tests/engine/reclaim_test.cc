// SPDX-License-Identifier: Apache-2.0
//
// What is destroyed comes back to the last sector, whatever the shape of the lineage, in bites, and
// over a crash; what is damaged stops its own job and no other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/failpoints.h"
#include "engine/names.h"
#include "engine/store/allocator.h"
#include "engine/store/region_bitmap.h"
#include "engine/store/region_records.h"
#include "engine/tree/live_list.h"
#include "tests/support/temp_pool.h"
#include "tests/support/testing.h"

namespace cowshed::engine {
namespace {

class ReclaimTest : public ::testing::Test {
 protected:
  ReclaimTest()
      : pool_([](PoolOptions* options) {
          options->capacity_bytes = uint64_t{256} << 20;
          options->background_work = false;
          options->bulk_names_per_txg = 7;
        }) {}
  void SetUp() override { empty_bytes_ = pool_->space().allocated_bytes; }
  void TearDown() override { Failpoints::DisarmAll(); }

  static std::string Fill(char byte, uint64_t blocks = 4) {
    return std::string(blocks * 4096, byte);
  }
  void WriteAndFlush(const std::string& name, uint64_t block, const std::string& data) {
    ASSERT_OK(pool_.Write(name, block * 4096, data));
    ASSERT_OK(pool_.Flush(name).status());
  }
  absl::StatusOr<Outcome> DestroyPrefix(const std::string& prefix) {
    DestroyDatasetsArgs args;
    args.prefix = prefix;
    args.recursive = true;
    return pool_.Call(&Pool::DestroyDatasets, std::move(args));
  }
  std::vector<std::string> Names() {
    std::vector<std::string> names;
    ListArgs args;
    args.page_size = 1000;
    for (const DatasetInfo& info : ValueOf(pool_->ListDatasets(args)).items) {
      names.push_back(info.name);
    }
    return names;
  }
  OperationInfo OperationOf(const Outcome& outcome) {
    return ValueOf(pool_->GetOperation(outcome.operation->name));
  }
  // Drained, the pool holds as much as when it was new.
  void ExpectEmpty() {
    pool_.ExpectClean();
    EXPECT_EQ(pool_->space().allocated_bytes, empty_bytes_);
    EXPECT_EQ(pool_->space().freeing_bytes, 0u);
    EXPECT_EQ(pool_->stats().reclaim_pending_items, 0u);
  }
  // d with three snapshots and blocks born and killed between them.
  void MakeLineage(const std::string& name) {
    ASSERT_OK(pool_.Create(name).status());
    WriteAndFlush(name, 0, Fill('a', 100));
    ASSERT_OK(pool_.Snapshot(name + "@1").status());
    WriteAndFlush(name, 50, Fill('b', 100));
    ASSERT_OK(pool_.Snapshot(name + "@2").status());
    ASSERT_OK(pool_.Discard(name, 0, 20 * 4096));
    WriteAndFlush(name, 70, Fill('c', 30));
    ASSERT_OK(pool_.Snapshot(name + "@3").status());
    WriteAndFlush(name, 80, Fill('d', 120));
  }

  TempPool pool_;
  uint64_t empty_bytes_ = 0;
};

TEST_F(ReclaimTest, ThousandClonesOfOneSnapshotComeBackExactly) {
  ASSERT_OK(pool_.Create("golden").status());
  WriteAndFlush("golden", 0, Fill('g', 200));
  ASSERT_OK(pool_.Snapshot("golden@v1").status());
  pool_.ExpectClean();
  const uint64_t before = pool_->space().allocated_bytes;
  for (int i = 0; i < 1000; ++i) {
    const std::string name = "ci/" + std::to_string(i);
    ASSERT_OK(pool_.Clone("golden@v1", name).status());
    ASSERT_OK(pool_.Write(name, (i % 190) * 4096, Fill('c', 3)));
    ASSERT_OK(pool_.Flush(name).status());
    ASSERT_OK(pool_.Destroy(name).status());
  }
  ASSERT_OK(pool_->DrainBackground());
  EXPECT_EQ(pool_->space().allocated_bytes, before);
  EXPECT_EQ(pool_->space().freeing_bytes, 0u);
  EXPECT_EQ(ValueOf(pool_.Read("golden@v1", 0, 200 * 4096)), Fill('g', 200));
  ASSERT_OK(pool_.Destroy("golden", /*recursive=*/true).status());
  ExpectEmpty();
}

TEST_F(ReclaimTest, ChainOfAThousandClonesGoesByCascade) {
  ASSERT_OK(pool_.Create("c0").status());
  for (int i = 0; i < 1000; ++i) {
    const std::string name = "c" + std::to_string(i);
    ASSERT_OK(pool_.Write(name, (i % 200) * 4096, Fill('c', 2)));
    ASSERT_OK(pool_.Snapshot(name + "@s").status());
    ASSERT_OK(pool_.Clone(name + "@s", "c" + std::to_string(i + 1)).status());
  }
  EXPECT_CODE(pool_.Destroy("c0", /*recursive=*/true), kFailedPrecondition);
  const Outcome outcome = ValueOf(pool_.Destroy("c0", /*recursive=*/true, /*cascade=*/true));
  EXPECT_EQ(outcome.count, 1001u);
  EXPECT_EQ(Names(), std::vector<std::string>());
  ExpectEmpty();
  EXPECT_EQ(OperationOf(outcome).state, OperationState::kSucceeded);
}

TEST_F(ReclaimTest, PrefixIsHiddenAtOnceAndTakenApartInBitesOverACrash) {
  for (int i = 0; i < 50; ++i) {
    const std::string name = "ci/" + std::to_string(i);
    ASSERT_OK(pool_.Create(name).status());
    ASSERT_OK(pool_.Write(name, 0, Fill('c', 3)));
    if (i % 3 == 0) ASSERT_OK(pool_.Snapshot(name + "@s").status());
  }
  ASSERT_OK(pool_.Create("cider").status());
  WriteAndFlush("cider", 0, Fill('k'));
  const Outcome outcome = ValueOf(DestroyPrefix("ci"));
  EXPECT_EQ(outcome.count, 50u);
  EXPECT_EQ(Names(), std::vector<std::string>{"cider"});
  // The names may be used again while their former bearers still wait.
  ASSERT_OK(pool_.Create("ci/3").status());
  uint64_t pending = UINT64_MAX;
  int rounds = 0;
  while (pending != 0) {
    ASSERT_OK(Failpoints::Arm("reclaim.step=error:skip=2"));
    const absl::Status drained = pool_->DrainBackground();
    Failpoints::DisarmAll();
    pool_.Crash();
    pending = pool_->stats().reclaim_pending_items;
    const CheckReport report = ValueOf(pool_->Check());
    EXPECT_TRUE(report.ok()) << report.findings[0].message;
    EXPECT_EQ(Names(), (std::vector<std::string>{"ci/3", "cider"}));
    ASSERT_TRUE(drained.ok() || ++rounds < 100);
  }
  EXPECT_GE(rounds, 3);
  EXPECT_EQ(OperationOf(outcome).state, OperationState::kSucceeded);
  ASSERT_OK(pool_.Destroy("ci/3").status());
  EXPECT_EQ(ValueOf(pool_.Read("cider", 0, 4 * 4096)), Fill('k'));
  ASSERT_OK(pool_.Destroy("cider").status());
  ExpectEmpty();
}

TEST_F(ReclaimTest, BlockedPrefixStaysWhole) {
  for (int i = 0; i < 20; ++i) ASSERT_OK(pool_.Create("ci/" + std::to_string(i)).status());
  ASSERT_OK(pool_.Snapshot("ci/7@s").status());
  ASSERT_OK(pool_.Clone("ci/7@s", "outside").status());
  EXPECT_CODE(DestroyPrefix("ci"), kFailedPrecondition);
  EXPECT_EQ(Names().size(), 21u);
  ASSERT_OK(pool_.Destroy("outside").status());
  ASSERT_OK(DestroyPrefix("ci").status());
  ExpectEmpty();
}

TEST_F(ReclaimTest, DeferredSnapshotGoesWithItsLastHoldOrClone) {
  MakeLineage("d");
  ASSERT_OK(pool_.Hold("d@2", "tag").status());
  ASSERT_OK(pool_.Clone("d@2", "clone").status());
  EXPECT_CODE(pool_.DestroySnapshot("d@2"), kFailedPrecondition);
  ASSERT_OK(pool_.DestroySnapshot("d@2", /*defer=*/true).status());
  EXPECT_TRUE(ValueOf(pool_->GetSnapshot("d@2")).deferred);
  ASSERT_OK(pool_.Destroy("clone").status());
  EXPECT_OK(pool_->GetSnapshot("d@2").status());
  const Outcome released = ValueOf(pool_.Release("d@2", "tag"));
  EXPECT_TRUE(released.snapshot_destroyed);
  EXPECT_CODE(pool_->GetSnapshot("d@2"), kNotFound);
  pool_.ExpectClean();
  ASSERT_OK(pool_.Destroy("d", /*recursive=*/true).status());
  ExpectEmpty();
}

TEST_F(ReclaimTest, HiddenSnapshotGoesWithItsLastClone) {
  ASSERT_OK(pool_.Create("d").status());
  WriteAndFlush("d", 0, Fill('a', 50));
  pool_.ExpectClean();
  const uint64_t before = pool_->space().allocated_bytes;
  ASSERT_OK(pool_.Clone("d", "clone").status());
  WriteAndFlush("d", 0, Fill('b', 50));
  ASSERT_OK(pool_->DrainBackground());
  EXPECT_GE(pool_->space().allocated_bytes, before + 50 * 4096);
  ASSERT_OK(pool_.Destroy("clone").status());
  ASSERT_OK(pool_->DrainBackground());
  EXPECT_EQ(pool_->space().allocated_bytes, before);
  ASSERT_OK(pool_.Destroy("d").status());
  ExpectEmpty();
}

TEST_F(ReclaimTest, DamagedListFallsBackToTheTrees) {
  MakeLineage("d");
  ASSERT_OK(pool_.Clone("d@2", "clone").status());
  WriteAndFlush("clone", 10, Fill('e', 70));
  ASSERT_OK(Failpoints::Arm("reclaim.verify=error"));
  ASSERT_OK(pool_.Destroy("clone").status());
  pool_.ExpectClean();
  EXPECT_EQ(pool_->stats().destroy_methods[DestroyMethod::kTreeWalk], 1u);
  ASSERT_OK(pool_.Destroy("d", /*recursive=*/true).status());
  ExpectEmpty();
  EXPECT_EQ(pool_->stats().destroy_methods[DestroyMethod::kTreeWalk], 2u);
  EXPECT_EQ(pool_->stats().livelist_dropped[DropReason::kDamaged], 2u);
}

TEST_F(ReclaimTest, TreeWalkGoesOnAfterACrashInItsMiddle) {
  pool_.Reopen([](PoolOptions* options) { options->reclaim_bite_runs = 40; });
  MakeLineage("d");
  ASSERT_OK(pool_.Destroy("d", /*recursive=*/true).status());
  int rounds = 0;
  while (pool_->stats().reclaim_pending_items > 0) {
    ASSERT_LT(++rounds, 100);
    ASSERT_OK(Failpoints::Arm("reclaim.verify=error;reclaim.step=error:skip=2"));
    EXPECT_CODE(pool_->DrainBackground(), kInternal);
    Failpoints::DisarmAll();
    pool_.Crash();
    const CheckReport report = ValueOf(pool_->Check());
    EXPECT_TRUE(report.ok()) << report.findings[0].message;
  }
  EXPECT_GE(rounds, 3);
  ExpectEmpty();
}

TEST_F(ReclaimTest, ListDamagedOnDiskFallsBackToTheTrees) {
  MakeLineage("d");
  pool_.Damage([](WriteTxn& txn) {
    const auto id = *ValueOf(Names::Find(txn, "d"));
    const auto record = ValueOf(LoadRecord<DatasetRecord>(txn, Key(id)));
    const std::vector<Sublist> sublists = ValueOf(LiveList::List(txn, record.livelist));
    ASSERT_FALSE(sublists.empty());
    // The first chunk of its first log.
    const Key prefix(sublists[0].record.log);
    std::string key;
    {
      MetaCursor cursor(txn, Table::kLogs);
      cursor.Seek(prefix);
      ASSERT_TRUE(cursor.ValidFor(prefix));
      key = std::string(cursor.key());
    }
    ASSERT_OK(txn.Put(Table::kLogs, key, "no entries"));
  });
  ASSERT_OK(pool_.Destroy("d", /*recursive=*/true).status());
  ExpectEmpty();
  EXPECT_EQ(pool_->stats().destroy_methods[DestroyMethod::kTreeWalk], 1u);
}

TEST_F(ReclaimTest, DoubleFreeStallsItsJobAndNoOther) {
  MakeLineage("d");
  MakeLineage("other");
  pool_.Damage([](WriteTxn& txn) {
    // d's root becomes free in the bitmap, as if it had been freed before.
    const auto id = *ValueOf(Names::Find(txn, "d"));
    const auto record = ValueOf(LoadRecord<DatasetRecord>(txn, Key(id)));
    const uint64_t root = record.tree.root.address;
    const std::string key(RegionKey(RegionOf(root)));
    RegionBitmap bitmap = ValueOf(RegionBitmap::Decode(*ValueOf(txn.Get(Table::kRegions, key))));
    const auto bit = static_cast<uint32_t>(root % kRegionSectors);
    bitmap.Clear(bit, bit + 1);
    ASSERT_OK(txn.Put(Table::kRegions, key, bitmap.bytes()));
    std::string sums(*ValueOf(txn.Get(Table::kRegionSums, RegionSumKey(0))));
    RegionSumRecord sum;
    char* const place = sums.data() + RegionOf(root) * sizeof(sum);
    std::memcpy(&sum, place, sizeof(sum));
    ++sum.free_sectors;
    std::memcpy(place, &sum, sizeof(sum));
    ASSERT_OK(txn.Put(Table::kRegionSums, RegionSumKey(0), sums));
  });
  const uint64_t before = pool_->space().allocated_bytes;
  const Outcome stalled = ValueOf(pool_.Destroy("d", /*recursive=*/true));
  const Outcome other = ValueOf(pool_.Destroy("other", /*recursive=*/true));
  ASSERT_OK(pool_->DrainBackground());
  EXPECT_EQ(OperationOf(stalled).state, OperationState::kStalled);
  EXPECT_NE(OperationOf(stalled).error, "");
  EXPECT_EQ(OperationOf(other).state, OperationState::kSucceeded);
  EXPECT_EQ(pool_->stats().reclaim_failures[ReclaimFailure::kDoubleFree], 1u);
  EXPECT_EQ(pool_->stats().alarms[Alarm::kReclaimStalled], 1u);
  EXPECT_EQ(pool_->reclaim().stalled_bytes, pool_->reclaim().pending_bytes);
  // The rest of d stays referenced and counted; the pool goes on, over a restart, too.
  EXPECT_GT(pool_->space().freeing_bytes, 0u);
  EXPECT_LT(pool_->space().allocated_bytes, before);
  pool_.Reopen();
  ASSERT_OK(pool_->DrainBackground());
  EXPECT_EQ(OperationOf(stalled).state, OperationState::kStalled);
  EXPECT_OK(pool_.Create("new").status());
  pool_.Abandon();
}

TEST_F(ReclaimTest, PausedReclaimWaitsAndWritersOfAFullPoolDoNot) {
  pool_.Reopen([](PoolOptions* options) { options->background_work = true; });
  ASSERT_OK(pool_.Create("d", 256 << 20).status());
  const std::string data(1 << 20, 'a');
  uint64_t written = 0;
  while (pool_.Write("d", written << 20, data).ok()) ++written;
  ASSERT_OK(pool_.Flush("d").status());
  UpdateReclaimArgs args;
  args.paused = true;
  ASSERT_OK(pool_.Call(&Pool::UpdateReclaim, args).status());
  const Outcome destroyed = ValueOf(pool_.Destroy("d"));
  ASSERT_OK(pool_.Create("e", 256 << 20).status());
  const auto begin = std::chrono::steady_clock::now();
  absl::Status status;
  for (uint64_t at = 0; status.ok() && at < written; ++at) {
    status = pool_.Write("e", at << 20, data);
  }
  // It used to wait write_wait_max, 30 s, for space that could not come.
  EXPECT_CODE(status, kResourceExhausted);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  EXPECT_EQ(OperationOf(destroyed).state, OperationState::kPending);
  pool_.Reopen();
  EXPECT_TRUE(pool_->reclaim().paused);
  args.paused = false;
  ASSERT_OK(pool_.Call(&Pool::UpdateReclaim, args).status());
  for (uint64_t at = 0; at < written; ++at) ASSERT_OK(pool_.Write("e", at << 20, data));
  ASSERT_OK(pool_.Destroy("e").status());
  ExpectEmpty();
}

TEST_F(ReclaimTest, RateIsKept) {
  for (int i = 0; i < 10; ++i) {
    ASSERT_OK(pool_.Create("d" + std::to_string(i)).status());
    WriteAndFlush("d" + std::to_string(i), 0, Fill('a', 10));
  }
  UpdateReclaimArgs args;
  args.rate_bytes_per_second = 1 << 20;
  ASSERT_OK(pool_.Call(&Pool::UpdateReclaim, args).status());
  for (int i = 0; i < 10; ++i) ASSERT_OK(pool_.Destroy("d" + std::to_string(i)).status());
  const uint64_t bytes = pool_->reclaim().pending_bytes;
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_OK(pool_->DrainBackground());
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  // The last round is not waited for.
  EXPECT_GE(took.count(), static_cast<double>(bytes) / (1 << 20) * 0.6);
  ExpectEmpty();
}

TEST_F(ReclaimTest, ProgressIsTheListsOwnAndNeverGoesBack) {
  pool_.Reopen([](PoolOptions* options) {
    options->reclaim_bite_runs = 10;
    options->livelist_max_entries = 60;
  });
  ASSERT_OK(pool_.Create("d").status());
  for (int i = 0; i < 40; ++i) WriteAndFlush("d", (i * 7) % 200, Fill('a', 2));
  const LivelistInfo list = ValueOf(pool_->GetLivelist("d", 0, 100));
  ASSERT_GT(list.sublists.size(), 1u);
  const Outcome outcome = ValueOf(pool_.Destroy("d"));
  EXPECT_EQ(OperationOf(outcome).total_bytes, list.total.bytes);
  OperationInfo before = OperationOf(outcome);
  int steps = 0;
  while (!before.done()) {
    ASSERT_LT(++steps, 500);
    ASSERT_OK(Failpoints::Arm("reclaim.step=error:skip=1"));
    const absl::Status drained = pool_->DrainBackground();
    Failpoints::DisarmAll();
    if (steps % 5 == 0) pool_.Crash();
    const OperationInfo now = OperationOf(outcome);
    EXPECT_GE(now.done_bytes, before.done_bytes);
    EXPECT_GE(now.done_entries, before.done_entries);
    EXPECT_LE(now.done_entries, now.total_entries);
    EXPECT_EQ(now.total_bytes, list.total.bytes);
    before = now;
  }
  EXPECT_GT(steps, 5);
  EXPECT_EQ(before.done_bytes, list.total.bytes);
  EXPECT_EQ(before.total_entries, list.total.entries);
  EXPECT_EQ(before.done_entries, before.total_entries);
  ExpectEmpty();
}

TEST_F(ReclaimTest, EstimateIsWithinAFactorOfTwoFromHalfWay) {
  pool_.Reopen([](PoolOptions* options) {
    options->background_work = true;
    options->clock_ms = {};
    options->reclaim_bite_runs = 4;
  });
  ASSERT_OK(pool_.Create("d", 16 << 20).status());
  for (int i = 0; i < 100; ++i) WriteAndFlush("d", (i * 13) % 1000, Fill('a', 4));
  UpdateReclaimArgs args;
  args.rate_bytes_per_second = 1 << 20;
  ASSERT_OK(pool_.Call(&Pool::UpdateReclaim, args).status());
  const Outcome outcome = ValueOf(pool_.Destroy("d"));
  OperationInfo half = OperationOf(outcome);
  while (half.done_bytes * 2 < half.total_bytes) half = OperationOf(outcome);
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_FALSE(half.done());
  while (!OperationOf(outcome).done()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const std::chrono::duration<double, std::milli> left = std::chrono::steady_clock::now() - begin;
  EXPECT_GT(static_cast<double>(half.eta_ms), left.count() / 2);
  EXPECT_LT(static_cast<double>(half.eta_ms), left.count() * 2);
}

TEST_F(ReclaimTest, LargeJobsTakeTurnsAndSmallOnesDoNotWait) {
  pool_.Reopen([](PoolOptions* options) { options->reclaim_bite_runs = 16; });
  std::vector<Outcome> large;
  for (const char* name : {"x", "y"}) {
    ASSERT_OK(pool_.Create(name, 4 << 20).status());
    for (int i = 0; i < 100; ++i) WriteAndFlush(name, (i * 13) % 1000, Fill('a', 1));
  }
  for (const char* name : {"x", "y"}) large.push_back(ValueOf(pool_.Destroy(name)));
  ASSERT_OK(pool_.Create("small").status());
  WriteAndFlush("small", 0, Fill('s', 2));
  const Outcome small = ValueOf(pool_.Destroy("small"));
  bool both = false;
  int steps = 0;
  while (!OperationOf(large[0]).done() || !OperationOf(large[1]).done()) {
    ASSERT_LT(++steps, 500);
    ASSERT_OK(Failpoints::Arm("reclaim.step=error:skip=1"));
    const absl::Status drained = pool_->DrainBackground();
    Failpoints::DisarmAll();
    if (steps == 2) EXPECT_TRUE(OperationOf(small).done());
    const auto under_way = [&](const Outcome& outcome) {
      const OperationInfo info = OperationOf(outcome);
      return info.done_bytes > 0 && !info.done();
    };
    both = both || (under_way(large[0]) && under_way(large[1]));
  }
  EXPECT_TRUE(both);
  ExpectEmpty();
}

TEST_F(ReclaimTest, SurvivorsAreFoundInWhateverMemoryThereIs) {
  pool_.Reopen([](PoolOptions* options) {
    options->reclaim_bite_runs = 50;
    options->reclaim_memory_bytes = 4096;
  });
  ASSERT_OK(pool_.Create("d", 4 << 20).status());
  for (int i = 0; i < 300; ++i) WriteAndFlush("d", (i * 37) % 1000, Fill('a', 1));
  ASSERT_OK(pool_.Destroy("d").status());
  ExpectEmpty();
  EXPECT_EQ(pool_->stats().destroy_methods[DestroyMethod::kLivelist], 1u);
}

// What validate_only says comes back is what comes back.
TEST_F(ReclaimTest, PlanOfAnySetOfSnapshotsIsExact) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 25; ++round) {
    const std::string name = "d" + std::to_string(round);
    ASSERT_OK(pool_.Create(name).status());
    for (int i = 0; i < 8; ++i) {
      for (int write = 0; write < 3; ++write) {
        ASSERT_OK(pool_.Write(name, random() % 60 * 4096, Fill('a', 1 + random() % 20)));
      }
      ASSERT_OK(pool_.Flush(name).status());
      ASSERT_OK(pool_.Snapshot(name + "@" + std::to_string(i)).status());
    }
    if (round % 3 == 0) ASSERT_OK(pool_.Clone(name + "@4", name + "clone").status());
    pool_.ExpectClean();
    if (round % 2 == 0) ASSERT_OK(pool_.DestroySnapshot(name + "@2").status());  // dying
    DestroySnapshotsArgs args;
    args.defer = true;
    for (int i = 0; i < 8; ++i) {
      if (i != 2 && random() % 2 == 0) args.names.push_back(name + "@" + std::to_string(i));
    }
    if (args.names.empty()) continue;
    args.validate_only = true;
    const DestroyPlan plan = *ValueOf(pool_.Call(&Pool::DestroySnapshots, args)).plan;
    args.validate_only = false;
    const Outcome outcome = ValueOf(pool_.Call(&Pool::DestroySnapshots, args));
    pool_.ExpectClean();
    const uint64_t freed = outcome.operation.has_value() ? OperationOf(outcome).done_bytes : 0;
    EXPECT_EQ(plan.freed_bytes, freed) << "round " << round;
  }
}

TEST_F(ReclaimTest, PlanOfDatasetsCountsWhatGoesAlong) {
  MakeLineage("base");
  ASSERT_OK(pool_.Clone("base", "of_head").status());
  WriteAndFlush("base", 0, Fill('x', 60));
  ASSERT_OK(pool_.Clone("base@2", "of_deferred").status());
  ASSERT_OK(pool_.DestroySnapshot("base@2", /*defer=*/true).status());
  WriteAndFlush("of_head", 3, Fill('y', 10));
  MakeLineage("other");
  pool_.ExpectClean();
  DestroyDatasetsArgs args;
  args.names = {"of_head", "of_deferred", "other"};
  args.recursive = true;
  args.validate_only = true;
  const DestroyPlan plan = *ValueOf(pool_.Call(&Pool::DestroyDatasets, args)).plan;
  args.validate_only = false;
  const uint64_t before = pool_->space().allocated_bytes;
  const Outcome outcome = ValueOf(pool_.Call(&Pool::DestroyDatasets, args));
  pool_.ExpectClean();
  EXPECT_EQ(before - pool_->space().allocated_bytes, plan.freed_bytes);
  EXPECT_EQ(OperationOf(outcome).done_bytes, plan.freed_bytes);
  EXPECT_GT(plan.entries, 0u);
  EXPECT_GT(plan.predicted_seconds, 0);
}

TEST_F(ReclaimTest, FreeingIsZeroSoonAfterTheOperationEnds) {
  // The free log waited for the housekeeper's poll, up to 160 ms.
  pool_.Reopen([](PoolOptions* options) { options->background_work = true; });
  ASSERT_OK(pool_.Create("d").status());
  WriteAndFlush("d", 0, Fill('a', 100));
  std::vector<double> milliseconds;
  for (int i = 0; i < 9; ++i) {
    ASSERT_OK(pool_.Snapshot("d@s").status());
    ASSERT_OK(pool_.Clone("d@s", "clone").status());
    WriteAndFlush("clone", 0, Fill('b', 100));
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_OK(pool_.Destroy("clone").status());
    while (pool_->space().freeing_bytes > 0 || pool_->reclaim().pending_items > 0) {
      std::this_thread::yield();
    }
    milliseconds.push_back(
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
            .count());
    ASSERT_OK(pool_.DestroySnapshot("d@s").status());
  }
  std::sort(milliseconds.begin(), milliseconds.end());
  EXPECT_LT(milliseconds[milliseconds.size() / 2], 80);
}

}  // namespace
}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// Livelists that are given up and made whole again: whatever happens to the dataset before, during
// or after, the pool stays sound, and no client notices.
#include "engine/rebuilder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/failpoints.h"
#include "engine/livelist_drop.h"
#include "tests/engine/livelist_damage.h"
#include "tests/engine/rebuilder_fixture.h"
#include "tests/support/temp_pool.h"
#include "tests/support/testing.h"

namespace cowshed::engine {
namespace {

TEST_F(RebuilderTest, DamagedListIsMadeWholeAndDestroysByIt) {
  MakeLineage();
  const uint64_t used = ValueOf(pool_->GetDataset("d")).used_bytes;
  Drop("d");
  EXPECT_EQ(stats().livelist_dropped[DropReason::kDamaged], 1u);
  EXPECT_EQ(stats().alarms[Alarm::kLivelistDamaged], 1u);
  ExpectSound();
  pool_.ExpectClean();
  ExpectWhole("d");
  // One block and the node above it, where there was none.
  EXPECT_GE(ValueOf(pool_->GetDataset("d")).used_bytes, used + kBlock);
  EXPECT_EQ(Rebuilds(RebuildResult::kCompleted), 1u);
  EXPECT_EQ(Rebuilds(RebuildResult::kCancelled), 0u);
  EXPECT_EQ(stats().alarms[Alarm::kLivelistDamaged], 0u);
  ExpectContent("d");
  ASSERT_OK(pool_.Destroy("d", /*recursive=*/true, /*cascade=*/true).status());
  ExpectEmpty();
  EXPECT_EQ(stats().destroy_methods[DestroyMethod::kTreeWalk], 0u);
  EXPECT_EQ(stats().destroy_methods[DestroyMethod::kLivelist], 2u);
}

// One sublist per snapshot; ALLOCs of one bite joined into runs.
TEST_F(RebuilderTest, RebuiltListIsAsShortAsItsRuns) {
  ASSERT_OK(pool_.Create("d").status());
  for (uint64_t block = 0; block < 200; block += 20) {
    WriteAndFlush("d", block, Fill('a', 20));
    WriteAndFlush("d", block, Fill('b', 20));
  }
  const uint64_t entries_before = ListOf("d").total.entries;
  pool_.Reopen([](PoolOptions* options) { options->rebuild_bite_pointers = 1000; });
  Drop("d");
  pool_.ExpectClean();
  const LivelistInfo list = ListOf("d");
  EXPECT_EQ(list.sublists.size(), 1u);
  EXPECT_LT(list.total.entries, entries_before / 2);
  ExpectWhole("d");
}

TEST_F(RebuilderTest, FlippedBitsInALogAreFoundByTheCheck) {
  MakeLineage();
  DamageLivelist(pool_, "d", ListPart::kLog);
  EXPECT_FALSE(ValueOf(pool_->Check()).ok());
  pool_.ExpectClean();
  ExpectWhole("d");
  ExpectContent("d");
  EXPECT_EQ(stats().livelist_dropped[DropReason::kDamaged], 1u);
  EXPECT_EQ(stats().alarms[Alarm::kLivelistDamaged], 0u);
}

// A record does not tell its log any more: that log is all that is left behind.
void ExpectOnlyAnOrphan(TempPool& pool) {
  for (const CheckFinding& finding : pool.DrainAndCheck()) {
    EXPECT_EQ(finding.invariant, "logs") << finding.name << ": " << finding.message;
    EXPECT_THAT(finding.message, ::testing::HasSubstr("nobody holds this log"));
  }
}

TEST_F(RebuilderTest, FlippedBitsInARecordAreFoundByTheNextWrite) {
  ASSERT_OK(pool_.Create("d").status());
  WriteAndFlush("d", 0, Fill('a', 10));
  DamageLivelist(pool_, "d", ListPart::kRecord);
  WriteAndFlush("d", 5, Fill('b', 10));
  EXPECT_EQ(StateOf("d"), LivelistState::kDropped);
  EXPECT_OK(pool_->health());
  ExpectOnlyAnOrphan(pool_);
  ExpectWhole("d");
  EXPECT_EQ(ValueOf(pool_.Read("d", 0, 15 * kBlock)), Fill('a', 5) + Fill('b', 10));
  ASSERT_OK(pool_.Destroy("d").status());
  ExpectOnlyAnOrphan(pool_);
  EXPECT_EQ(pool_->space().allocated_bytes, empty_bytes_);
  pool_.Abandon();
}

TEST_F(RebuilderTest, FlippedBitsInARecordAreFoundByAQuery) {
  MakeLineage();
  DamageLivelist(pool_, "d", ListPart::kRecord);
  EXPECT_CODE(pool_->GetLivelist("d", 0, 100), kDataLoss);
  ASSERT_OK(pool_.Sync().status());
  ExpectOnlyAnOrphan(pool_);
  ExpectWhole("d");
  pool_.Abandon();
}

// What changes the lineage meets the damage, too, and goes on without the list.
TEST_F(RebuilderTest, FlippedBitsInARecordRefuseNoCall) {
  using Change = std::function<absl::Status()>;
  const std::vector<Change> changes = {
      [&] { return pool_.DestroySnapshot("d@1").status(); },
      [&] { return pool_.Promote("c").status(); },
      [&] { return pool_.Destroy("d", /*recursive=*/true, /*cascade=*/true).status(); },
      [&] {
        RollbackDatasetArgs args;
        args.name = "c";
        args.to_origin = true;
        return pool_.Call(&Pool::RollbackDataset, args).status();
      },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    MakeLineage();
    DamageLivelist(pool_, i == 3 ? "c" : "d", ListPart::kRecord);
    EXPECT_OK(changes[i]()) << i;
    ExpectOnlyAnOrphan(pool_);
    if (i == 2) continue;
    ExpectWhole("c");
    ExpectWhole("d");
    ExpectContent("d");
    const bool promoted = i == 1;
    ASSERT_OK(pool_.Destroy(promoted ? "c" : "d", /*recursive=*/true, /*cascade=*/true).status());
    ExpectOnlyAnOrphan(pool_);
    EXPECT_EQ(pool_->space().allocated_bytes, empty_bytes_) << i;
  }
  pool_.Abandon();
}

TEST_F(RebuilderTest, CostlyListStaysDroppedAndEverythingStaysExact) {
  MakeLineage();
  Drop("d", DropReason::kCostly);
  EXPECT_EQ(stats().livelist_dropped[DropReason::kCostly], 1u);
  EXPECT_EQ(stats().alarms[Alarm::kLivelistDamaged], 0u);
  WriteAndFlush("d", 10, Fill('y', 50));
  ASSERT_OK(pool_.Snapshot("d@4").status());
  WriteAndFlush("d", 15, Fill('z', 50));
  ASSERT_OK(pool_.DestroySnapshot("d@3").status());
  pool_.ExpectClean();  // sums included
  EXPECT_EQ(StateOf("d"), LivelistState::kDropped);
  EXPECT_EQ(ListOf("d").total.entries, 0u);
  ASSERT_OK(pool_.Rollback("d").status());
  pool_.ExpectClean();
  EXPECT_EQ(ValueOf(pool_.Read("d", 10 * kBlock, 50 * kBlock)), Fill('y', 50));
  EXPECT_EQ(stats().destroy_methods[DestroyMethod::kTreeWalk], 1u);
  ASSERT_OK(pool_.Destroy("d", /*recursive=*/true, /*cascade=*/true).status());
  ExpectEmpty();
  EXPECT_EQ(stats().destroy_methods[DestroyMethod::kTreeWalk], 2u);
  EXPECT_EQ(Rebuilds(RebuildResult::kCompleted), 0u);
}

// A rollback over newer snapshots without a list frees what only these hold, too.
TEST_F(RebuilderTest, RollbackOverNewerSnapshotsWithoutAList) {
  MakeLineage();
  Drop("d", DropReason::kCostly);
  ASSERT_OK(pool_.Destroy("c").status());
  RollbackDatasetArgs args;
  args.name = "d";
  args.snapshot = "1";
  args.destroy_newer = true;
  ASSERT_OK(pool_.Call(&Pool::RollbackDataset, args).status());
  ExpectSound();
  pool_.ExpectClean();
  const DatasetInfo info = ValueOf(pool_->GetDataset("d"));
  EXPECT_EQ(info.used_bytes, info.referenced_bytes);
  EXPECT_EQ(info.snapshot_count, 1u);
  ASSERT_OK(pool_.Destroy("d", /*recursive=*/true).status());
  ExpectEmpty();
}

// A dataset that owns nothing needs no walk to have a whole list.
TEST_F(RebuilderTest, ResetCloneHasAWholeListAtOnce) {
  MakeLineage();
  Drop("c", DropReason::kCostly);
  ASSERT_OK(pool_.ResetToOrigin("c").status());
  ExpectWhole("c");
  WriteAndFlush("c", 0, Fill('f', 3));
  pool_.ExpectClean();
  ExpectWhole("c");
  EXPECT_EQ(Rebuilds(RebuildResult::kCompleted), 0u);
}

TEST_F(RebuilderTest, WorkGoesOnWhileARebuildRuns) {
  for (const char* place : {"rebuild.begin", "rebuild.walk", "rebuild.shadow", "rebuild.swap"}) {
    MakeLineage();
    Drop("d");
    StopAt(place, std::string(place) == "rebuild.walk" ? 3 : 0);
    WriteAndFlush("d", 30, Fill('n', 40));
    ASSERT_OK(pool_.Snapshot("d@during").status());
    WriteAndFlush("d", 35, Fill('m', 40));
    ASSERT_OK(pool_.Clone("d@1", "from_old").status());
    ASSERT_OK(pool_.Clone("d", "from_head").status());
    WriteAndFlush("from_head", 0, Fill('h', 40));
    ASSERT_OK(pool_.Discard("d", 60 * kBlock, 10 * kBlock));
    ASSERT_OK(pool_.Flush("d").status());
    ExpectSound();
    Failpoints::DisarmAll();
    pool_.ExpectClean();
    for (const char* name : {"c", "d", "from_old", "from_head"}) ExpectWhole(name);
    EXPECT_EQ(Rebuilds(RebuildResult::kCancelled), 0u) << place;
    EXPECT_EQ(ValueOf(pool_.Read("d", 30 * kBlock, 45 * kBlock)),
              Fill('n', 5) + Fill('m', 25) + Fill('\0', 10) + Fill('m', 5));
    ASSERT_OK(pool_.Destroy("d", /*recursive=*/true, /*cascade=*/true).status());
    ExpectEmpty();
  }
}

// A clone of the head in the txg in which the rebuild begins shares its snapshot, which then stays
// for the clone; destroying the clone in the middle does not take it away either.
TEST_F(RebuilderTest, CloneThatSharesTheSnapshotOfARebuild) {
  for (const bool destroyed_during : {false, true}) {
    MakeLineage();
    Drop("d");
    ASSERT_OK(Failpoints::Arm("sync.before_fsync=pause"));
    Await<absl::StatusOr<Txg>> synced;
    pool_->Sync(synced.Callback());
    CreateDatasetArgs pilot;
    pilot.name = "pilot";
    pilot.size_bytes = kBlock;
    Await<absl::StatusOr<Outcome>> created;
    pool_->CreateDataset(pilot, std::nullopt, created.Callback());
    while (Failpoints::Hits("sync.before_fsync") == 0) std::this_thread::yield();
    ASSERT_OK(Failpoints::Arm("rebuild.walk=error"));
    std::thread drain([&] { EXPECT_CODE(pool_->DrainBackground(), kInternal); });
    CloneDatasetArgs args;
    args.source = "d";
    args.name = "sharing";
    Await<absl::StatusOr<Outcome>> cloned;
    pool_->CloneDataset(args, std::nullopt, cloned.Callback());
    Failpoints::Disarm("sync.before_fsync");
    ASSERT_OK(cloned.Wait().status());
    drain.join();
    WriteAndFlush("d", 0, Fill('w', 80));
    if (destroyed_during) ASSERT_OK(pool_.Destroy("sharing").status());
    ExpectSound();
    Failpoints::DisarmAll();
    pool_.ExpectClean();
    ExpectWhole("d");
    if (!destroyed_during) ASSERT_OK(pool_.Destroy("sharing").status());
    ASSERT_OK(pool_.Destroy("d", /*recursive=*/true, /*cascade=*/true).status());
    ASSERT_OK(pool_.Destroy("pilot").status());
    ExpectEmpty();
  }
}

// What only a destroyed snapshot held comes back after the rebuild, to the last sector.
TEST_F(RebuilderTest, DestroyedSnapshotsWaitForTheRebuild) {
  MakeLineage();
  Drop("d");
  StopAt("rebuild.swap");
  const uint64_t before = pool_->space().allocated_bytes;
  const Outcome outcome = ValueOf(pool_.DestroySnapshot("d@3"));
  EXPECT_CODE(pool_->DrainBackground(), kInternal);
  EXPECT_EQ(ValueOf(pool_->GetOperation(outcome.operation->name)).state, OperationState::kPending);
  EXPECT_EQ(pool_->space().allocated_bytes, before);
  ExpectSound();
  Failpoints::DisarmAll();
  pool_.ExpectClean();
  EXPECT_EQ(ValueOf(pool_->GetOperation(outcome.operation->name)).state,
            OperationState::kSucceeded);
  EXPECT_LT(pool_->space().allocated_bytes, before);
  ExpectWhole("d");
}

TEST_F(RebuilderTest, GoesOnWhereACrashStoppedIt) {
  MakeLineage();
  Drop("d");
  ASSERT_OK(Failpoints::Arm("rebuild.shadow=true"));  // counts only
  StopAt("rebuild.swap");
  const uint64_t bites = Failpoints::Hits("rebuild.shadow");
  ASSERT_GT(bites, 5u);
  Failpoints::DisarmAll();
  ASSERT_OK(pool_.Rollback("d").status());  // cancels it: it starts anew
  EXPECT_EQ(Rebuilds(RebuildResult::kCancelled), 1u);
  uint64_t rounds = 0;
  while (StateOf("d") != LivelistState::kWhole) {
    // Each round one bite more, and a crash; nothing is done twice.
    ASSERT_LE(++rounds, bites + 1);
    ASSERT_OK(Failpoints::Arm("rebuild.shadow=error:skip=1"));
    const absl::Status drained = pool_->DrainBackground();
    Failpoints::DisarmAll();
    EXPECT_EQ(drained.ok(), StateOf("d") == LivelistState::kWhole);
    pool_.Crash();
    ExpectSound();
  }
  EXPECT_GE(rounds, bites / 2);
  pool_.ExpectClean();
  ExpectWhole("d");
}

TEST_F(RebuilderTest, CrashAtEachPoint) {
  for (const char* place : {"rebuild.begin", "rebuild.walk", "rebuild.shadow", "rebuild.swap"}) {
    for (const int passes : {0, 1, 4}) {
      MakeLineage();
      Drop("d");
      ASSERT_OK(Failpoints::Arm(std::string(place) + "=error:skip=" + std::to_string(passes)));
      const absl::Status drained = pool_->DrainBackground();
      const bool once =
          std::string(place) == "rebuild.begin" || std::string(place) == "rebuild.swap";
      EXPECT_EQ(drained.ok(), once && passes > 0) << place << passes;
      pool_.Crash();
      Failpoints::DisarmAll();
      ExpectSound();
      pool_.ExpectClean();
      ExpectWhole("d");
      ExpectContent("d");
      EXPECT_EQ(stats().alarms[Alarm::kLivelistDamaged], 0u);
      ASSERT_OK(pool_.Destroy("d", /*recursive=*/true, /*cascade=*/true).status());
      ExpectEmpty();
      EXPECT_EQ(stats().destroy_methods[DestroyMethod::kTreeWalk], 0u);
    }
  }
}

TEST_F(RebuilderTest, CheckerSeesWhatIsWrongWithARebuild) {
  MakeLineage();
  Drop("d");
  StopAt("rebuild.swap");
  ExpectSound();
  const auto change = [&](const std::function<void(RebuildRecord*)>& plant) {
    pool_.Damage([&](WriteTxn& txn) {
      const Key key = RebuildKey(*ValueOf(Names::Find(txn, "d")));
      RebuildRecord record = ValueOf(LoadRecord<RebuildRecord>(txn, key));
      plant(&record);
      ASSERT_OK(StoreRecord(txn, key, record));
    });
    std::string found;
    for (const CheckFinding& finding : ValueOf(pool_->Check()).findings) {
      found += finding.invariant + " " + finding.message + "\n";
    }
    return found;
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(change([](RebuildRecord* record) { ++record->sectors; }),
              HasSubstr("sums sectors of the rebuild"));
  EXPECT_THAT(change([](RebuildRecord* record) {
                --record->sectors;
                record->shadow = LivelistId{static_cast<uint64_t>(record->shadow) + 1000};
              }),
              HasSubstr("logs the list belongs to nobody"));
  EXPECT_THAT(change([](RebuildRecord* record) { ++record->txg; }),
              HasSubstr("lists the snapshot that its rebuild walks is not there"));
  EXPECT_THAT(change([](RebuildRecord* record) { record->snapshot = SnapshotId{}; }),
              HasSubstr("lists a rebuild does not fit the state"));
  pool_.Abandon();
}

// On a full host a rebuild gives way, or destroyed snapshots would wait for space to be freed.
TEST_F(RebuilderTest, FullHostCancelsARebuild) {
  MakeLineage();
  Drop("d");
  StopAt("rebuild.walk", 2);
  Failpoints::DisarmAll();
  ASSERT_OK(Failpoints::Arm("sync.data_written=enospc"));
  ASSERT_OK(pool_.Write("d", 0, Fill('f', 3)));
  std::thread flush([&] { EXPECT_OK(pool_.Flush("d").status()); });
  while (stats().alarms[Alarm::kHostFull] == 0) std::this_thread::yield();
  const uint64_t before = pool_->space().allocated_bytes;
  const absl::StatusOr<Outcome> destroyed = pool_.DestroySnapshot("d@3");
  EXPECT_OK(destroyed.status());
  EXPECT_OK(pool_->DrainBackground());
  EXPECT_EQ(Rebuilds(RebuildResult::kCancelled), 1u);
  EXPECT_EQ(StateOf("d"), LivelistState::kDropped);
  EXPECT_LT(pool_->space().allocated_bytes, before);
  Failpoints::DisarmAll();
  flush.join();
  pool_.ExpectClean();
  ExpectWhole("d");
  EXPECT_EQ(Rebuilds(RebuildResult::kCompleted), 1u);
}

// A tree that cannot be read makes a rebuild fail: the dataset goes on without a list, and the
// alarm stays, over a restart, too.
TEST_F(RebuilderTest, DamagedTreeFailsTheRebuild) {
  MakeLineage();
  Drop("d");
  BlockPtr root;
  std::string node(kBlock, '\0');
  const auto exchange = [&](const std::string& bytes, bool keep) {
    pool_.Damage([&](WriteTxn& txn) {
      const auto id = *ValueOf(Names::Find(txn, "d"));
      root = ValueOf(LoadRecord<DatasetRecord>(txn, Key(id))).tree.root;
      std::fstream file(pool_.directory() + "/blocks",
                        std::ios::binary | std::ios::in | std::ios::out);
      file.seekg(static_cast<std::streamoff>(root.address * kBlock));
      if (keep) file.read(node.data(), kBlock);
      file.seekp(static_cast<std::streamoff>(root.address * kBlock));
      file.write(bytes.data(), kBlock);
    });
  };
  exchange(std::string(kBlock, '\xff'), /*keep=*/true);
  ASSERT_OK(pool_->DrainBackground());
  EXPECT_EQ(Rebuilds(RebuildResult::kFailed), 1u);
  EXPECT_EQ(StateOf("d"), LivelistState::kDropped);
  EXPECT_EQ(stats().alarms[Alarm::kLivelistDamaged], 1u);
  exchange(node, /*keep=*/false);
  pool_.ExpectClean();
  ExpectWhole("d");
  EXPECT_EQ(Rebuilds(RebuildResult::kCompleted), 1u);
  EXPECT_EQ(stats().alarms[Alarm::kLivelistDamaged], 0u);
}

// One of many destroyed clones has a damaged list: its job alone walks the tree.
TEST_F(RebuilderTest, OneDamagedListOfManyDestroyedClones) {
  MakeLineage();
  for (int i = 0; i < 30; ++i) {
    const std::string name = "ci/" + std::to_string(i);
    ASSERT_OK(pool_.Clone("d@3", name).status());
    WriteAndFlush(name, static_cast<uint64_t>(i), Fill('f', 30));
    WriteAndFlush(name, static_cast<uint64_t>(i), Fill('g', 10));
  }
  pool_.ExpectClean();
  DamageLivelist(pool_, "ci/17", ListPart::kLog);
  DestroyDatasetsArgs args;
  args.prefix = "ci";
  ASSERT_OK(pool_.Call(&Pool::DestroyDatasets, args).status());
  pool_.ExpectClean();
  EXPECT_EQ(stats().destroy_methods[DestroyMethod::kTreeWalk], 1u);
  EXPECT_EQ(stats().destroy_methods[DestroyMethod::kLivelist], 29u);
  EXPECT_EQ(stats().livelist_dropped[DropReason::kDamaged], 1u);
  EXPECT_EQ(stats().reclaim_failures[ReclaimFailure::kDamagedList], 1u);
  // Nothing damaged is left: the alarm clears without a restart.
  EXPECT_EQ(stats().alarms[Alarm::kLivelistDamaged], 0u);
  ExpectContent("d");
  ASSERT_OK(pool_.Destroy("d", /*recursive=*/true, /*cascade=*/true).status());
  ExpectEmpty();
}

// The alarm stays while a job with a damaged list is at work.
TEST_F(RebuilderTest, AlarmLastsAsLongAsTheWalk) {
  MakeLineage();
  ASSERT_OK(pool_.Snapshot("c@s").status());
  DamageLivelist(pool_, "c", ListPart::kLog);
  ASSERT_OK(pool_.Destroy("c", /*recursive=*/true).status());
  ASSERT_OK(Failpoints::Arm("reclaim.step=error:skip=2"));
  EXPECT_CODE(pool_->DrainBackground(), kInternal);
  EXPECT_EQ(stats().alarms[Alarm::kLivelistDamaged], 1u);
  pool_.Reopen();
  Failpoints::DisarmAll();
  pool_.ExpectClean();
  EXPECT_EQ(stats().alarms[Alarm::kLivelistDamaged], 0u);
}

// What a promote over a missing list leaves, on either side.
TEST_F(RebuilderTest, PromoteWhereAListIsMissing) {
  for (const char* missing : {"d", "c"}) {
    MakeLineage();
    Drop(missing, DropReason::kCostly);
    ASSERT_OK(pool_.Promote("c").status());
    ExpectSound();
    EXPECT_EQ(StateOf("c"), LivelistState::kDropped);
    // The parent needs nothing of what the clone has lost.
    EXPECT_EQ(StateOf("d"),
              std::string(missing) == "d" ? LivelistState::kDropped : LivelistState::kWhole);
    pool_.ExpectClean();
    ExpectContent("d");
    if (std::string(missing) == "d") ExpectWhole("c");  // what it lost is rebuilt
    ASSERT_OK(pool_.Destroy("c", /*recursive=*/true, /*cascade=*/true).status());
    ExpectEmpty();
  }
}

}  // namespace
}  // namespace cowshed::engine

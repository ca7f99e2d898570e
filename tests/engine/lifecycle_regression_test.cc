// SPDX-License-Identifier: Apache-2.0
//
// Faults of the lifecycle that random runs or review have found, one test each. Several need calls
// that share a txg: the txg before is held back while they are submitted.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/failpoints.h"
#include "tests/engine/livelist_damage.h"
#include "tests/support/temp_pool.h"
#include "tests/support/testing.h"

namespace cowshed::engine {
namespace {

class LifecycleRegressionTest : public ::testing::Test {
 protected:
  using Result = Await<absl::StatusOr<Outcome>>;

  ~LifecycleRegressionTest() override { Failpoints::DisarmAll(); }

  static void WaitForHits(const std::string& failpoint, uint64_t hits) {
    while (Failpoints::Hits(failpoint) < hits) std::this_thread::yield();
  }
  // Holds a txg back in front of its fsync, so that what is submitted now shares the next one.
  void Hold(TempPool& pool) {
    ASSERT_OK(Failpoints::Arm("sync.before_fsync=pause"));
    CreateDatasetArgs args;
    args.name = "hold" + std::to_string(++holds_);
    args.size_bytes = 4096;
    args.block_bytes = 4096;
    pool->CreateDataset(args, std::nullopt, Submit());
    WaitForHits("sync.before_fsync", 1);
  }
  OutcomeCallback Submit() { return results_.emplace_back().Callback(); }
  // Lets go; all calls must have succeeded, in one txg but for the first.
  void Release(bool in_one_txg = true) {
    Failpoints::Disarm("sync.before_fsync");
    std::vector<Txg> txgs;
    for (Result& result : results_) {
      const absl::StatusOr<Outcome> outcome = result.Wait();
      ASSERT_OK(outcome.status());
      txgs.push_back(outcome->txg);
    }
    if (!in_one_txg) return;
    for (size_t i = 1; i < txgs.size(); ++i) EXPECT_EQ(txgs[i], txgs[0] + 1) << i;
  }

  static void CloneInto(TempPool& pool, const std::string& source, const std::string& name,
                        OutcomeCallback done, bool replace = false) {
    CloneDatasetArgs args;
    args.source = source;
    args.name = name;
    args.replace = replace;
    pool->CloneDataset(args, std::nullopt, std::move(done));
  }

  std::vector<Result> results_;
  int holds_ = 0;
};

// Bug: a clone of a head and a snapshot of that clone in one txg had the same txg; promoting the
// clone then put two snapshots at one place of its index, and one was lost.
TEST_F(LifecycleRegressionTest, SnapshotOfAFreshCloneIsYoungerThanItsOrigin) {
  TempPool pool;
  ASSERT_OK(pool.Create("d").status());
  ASSERT_OK(pool.Write("d", 0, std::string(8192, 'a')));
  Hold(pool);
  CloneInto(pool, "d", "c", Submit());
  CreateSnapshotsArgs args;
  args.names = {"c@s"};
  pool->CreateSnapshots(args, std::nullopt, Submit());
  Release(/*in_one_txg=*/false);
  ASSERT_OK(pool.Promote("c").status());
  EXPECT_EQ(ValueOf(pool.Read("c@s", 0, 8192)), std::string(8192, 'a'));
}

// Bug: a clone of the head of a clone made in the same txg met an assertion.
TEST_F(LifecycleRegressionTest, CloneOfAFreshClone) {
  TempPool pool;
  ASSERT_OK(pool.Create("d").status());
  ASSERT_OK(pool.Write("d", 0, std::string(8192, 'a')));
  Hold(pool);
  CloneInto(pool, "d", "c", Submit());
  CloneInto(pool, "c", "e", Submit());
  Release(/*in_one_txg=*/false);
  EXPECT_EQ(ValueOf(pool.Read("e", 0, 8192)), std::string(8192, 'a'));
}

// Two clones of one head in one txg share its hidden snapshot.
TEST_F(LifecycleRegressionTest, ClonesOfOneHeadInOneTxg) {
  TempPool pool;
  ASSERT_OK(pool.Create("d").status());
  ASSERT_OK(pool.Write("d", 0, std::string(8192, 'a')));
  Hold(pool);
  CloneInto(pool, "d", "c", Submit());
  CloneInto(pool, "d", "e", Submit());
  Release();
  EXPECT_EQ(ValueOf(pool->GetDataset("c")).origin_uid, ValueOf(pool->GetDataset("e")).origin_uid);
  ASSERT_OK(pool.Destroy("c").status());
  ASSERT_OK(pool.Promote("e").status());
  ASSERT_OK(pool.Destroy("d").status());
}

// Bug: replacing the last clone of a deferred snapshot by another clone of it destroyed the
// snapshot under the new clone.
TEST_F(LifecycleRegressionTest, ReplacingTheLastCloneOfADeferredSnapshot) {
  TempPool pool;
  ASSERT_OK(pool.Create("d").status());
  ASSERT_OK(pool.Write("d", 0, std::string(8192, 'a')));
  ASSERT_OK(pool.Snapshot("d@s").status());
  ASSERT_OK(pool.Clone("d@s", "c").status());
  ASSERT_OK(pool.Write("d", 0, std::string(8192, 'b')));
  ASSERT_OK(pool.DestroySnapshot("d@s", /*defer=*/true).status());
  CloneDatasetArgs args;
  args.source = "d@s";
  args.name = "c";
  args.replace = true;
  ASSERT_OK(pool.Call(&Pool::CloneDataset, args).status());
  ASSERT_OK(pool->DrainBackground());
  EXPECT_EQ(ValueOf(pool.Read("c", 0, 8192)), std::string(8192, 'a'));
  EXPECT_TRUE(ValueOf(pool->GetSnapshot("d@s")).deferred);
  ASSERT_OK(pool.Destroy("c").status());
  EXPECT_CODE(pool->GetSnapshot("d@s"), kNotFound);
}

// Bug: replacing a clone of a head's snapshot by a clone of that head stored the head's record as
// it was before the first clone went.
TEST_F(LifecycleRegressionTest, ReplacingACloneByACloneOfTheSameHead) {
  TempPool pool;
  ASSERT_OK(pool.Create("d").status());
  ASSERT_OK(pool.Write("d", 0, std::string(8192, 'a')));
  ASSERT_OK(pool.Clone("d", "c").status());
  CloneDatasetArgs args;
  args.source = "d";
  args.name = "c";
  args.replace = true;
  ASSERT_OK(pool.Call(&Pool::CloneDataset, args).status());
  EXPECT_EQ(ValueOf(pool->GetDataset("d")).clone_count, 1u);
}

// A replacement that is refused changes nothing, not even for its origin.
TEST_F(LifecycleRegressionTest, RefusedReplacementLeavesNoTrace) {
  TempPool pool;
  ASSERT_OK(pool.Create("d").status());
  ASSERT_OK(pool.Snapshot("d@s").status());
  ASSERT_OK(pool.Create("c").status());
  ASSERT_OK(pool.Snapshot("c@s").status());
  CloneDatasetArgs args;
  args.source = "d@s";
  args.name = "c";
  args.replace = true;
  EXPECT_CODE(pool.Call(&Pool::CloneDataset, args), kFailedPrecondition);
  args.replace_etag = "another";
  EXPECT_CODE(pool.Call(&Pool::CloneDataset, args), kAborted);
}

// Bug: a clone of a snapshot that was taken in the middle of a trim never finished it, and a shrink
// of the clone waited for ever.
TEST_F(LifecycleRegressionTest, CloneTakesUpATrim) {
  TempPool pool([](PoolOptions* options) {
    options->background_work = false;
    options->discard_direct_blocks = 1;
    options->trim_pointers_per_txg = 1;
  });
  ASSERT_OK(pool.Create("d").status());
  ASSERT_OK(pool.Write("d", 0, std::string(64 * 4096, 'a')));
  ASSERT_OK(pool.Discard("d", 0, 32 * 4096));
  ASSERT_OK(pool.Snapshot("d@s").status());
  ASSERT_OK(pool.Clone("d@s", "c").status());
  EXPECT_EQ(ValueOf(pool->GetDataset("c")).state, DatasetState::kTrimming);
  ASSERT_OK(pool->DrainBackground());
  EXPECT_EQ(ValueOf(pool->GetDataset("c")).state, DatasetState::kActive);
  ASSERT_OK(pool.Resize("c", 40 * 4096).status());
  EXPECT_EQ(ValueOf(pool.Read("c", 0, 40 * 4096)),
            std::string(32 * 4096, '\0') + std::string(8 * 4096, 'a'));
}

// Bug: a big prefix that is a dataset, too, was taken off its directory's count twice.
TEST_F(LifecycleRegressionTest, BigPrefixThatIsADataset) {
  TempPool pool([](PoolOptions* options) { options->bulk_names_per_txg = 1; });
  for (const char* name : {"a", "a/x", "a/y/z", "b"}) ASSERT_OK(pool.Create(name).status());
  DestroyDatasetsArgs args;
  args.prefix = "a";
  ASSERT_OK(pool.Call(&Pool::DestroyDatasets, args).status());
  EXPECT_CODE(pool->GetDataset("a"), kNotFound);
  EXPECT_CODE(pool->GetDataset("a/y/z"), kNotFound);
  ASSERT_OK(pool.Create("a/x").status());
}

// Bug: a shrink in the txg of a rollback let writes through that were accepted before the rollback
// was published.
TEST_F(LifecycleRegressionTest, ShrinkInTheTxgOfARollback) {
  TempPool pool;
  ASSERT_OK(pool.Create("d").status());
  ASSERT_OK(pool.Write("d", 0, std::string(8192, 'a')));
  ASSERT_OK(pool.Snapshot("d@s").status());
  ASSERT_OK(pool.Write("d", 0, std::string(8192, 'b')));
  Hold(pool);
  RollbackDatasetArgs rollback;
  rollback.name = "d";
  pool->RollbackDataset(rollback, std::nullopt, Submit());
  UpdateDatasetArgs shrink;
  shrink.name = "d";
  shrink.size_bytes = 64 * 4096;
  pool->UpdateDataset(shrink, std::nullopt, Submit());
  ASSERT_OK(Failpoints::Arm("sync.before_commit=pause:skip=1"));  // of the held txg
  Failpoints::Disarm("sync.before_fsync");
  WaitForHits("sync.before_commit", 2);
  ASSERT_OK(pool.Write("d", 0, std::string(4096, 'c')));
  Failpoints::Disarm("sync.before_commit");
  Release();
  EXPECT_EQ(ValueOf(pool.Read("d", 0, 8192)), std::string(8192, 'a'));
}

// Bug: a damaged deadlist made the task of every round fail, and no job on the queue went on any
// more.
TEST_F(LifecycleRegressionTest, DamagedDeadlistStallsItsJobAndNoOther) {
  TempPool pool([](PoolOptions* options) { options->background_work = false; });
  for (const char* name : {"d", "e"}) {
    ASSERT_OK(pool.Create(name).status());
    ASSERT_OK(pool.Write(name, 0, std::string(40 * 4096, 'a')));
    ASSERT_OK(pool.Snapshot(std::string(name) + "@s").status());
    ASSERT_OK(pool.Write(name, 0, std::string(20 * 4096, 'b')));
    ASSERT_OK(pool.Flush(name).status());
  }
  pool.Damage([&](WriteTxn& txn) {
    const auto id = *ValueOf(Names::Find(txn, "d"));
    const auto record = ValueOf(LoadRecord<DatasetRecord>(txn, Key(id)));
    MetaCursor tail(txn, Table::kDeadBuckets);
    tail.Seek(Key(record.deadlist));
    ASSERT_TRUE(tail.ValidFor(Key(record.deadlist)));
    MetaCursor log(txn, Table::kLogs);
    log.Seek(Key(KeyNumber<LogId>(tail.key(), 16)));
    ASSERT_TRUE(log.valid());
    FlipBits(pool.directory() + "/meta/data.mdb", log.value());
  });
  const Outcome stalled = ValueOf(pool.DestroySnapshot("d@s"));
  const Outcome done = ValueOf(pool.DestroySnapshot("e@s"));
  ASSERT_OK(pool->DrainBackground());
  EXPECT_EQ(ValueOf(pool->GetOperation(stalled.operation->name)).state, OperationState::kStalled);
  EXPECT_EQ(ValueOf(pool->GetOperation(done.operation->name)).state, OperationState::kSucceeded);
  EXPECT_EQ(pool->stats().alarms[Alarm::kLivelistDamaged], 1u);
  EXPECT_EQ(ValueOf(pool.Read("d", 0, 4096)), std::string(4096, 'b'));
  ASSERT_OK(pool.Write("d", 0, std::string(4096, 'c')));
  ASSERT_OK(pool.Flush("d").status());
  pool.Abandon();
}

}  // namespace
}  // namespace cowshed::engine

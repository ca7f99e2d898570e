// SPDX-License-Identifier: Apache-2.0
//
// Durable writes: what was acknowledged is there after a crash, in order and exactly; what a cut
// took away is not; and nobody waits for a txg who need not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/failpoints.h"
#include "engine/base/strings.h"
#include "engine/repair.h"
#include "engine/store/records.h"
#include "tests/engine/intent_log_fixture.h"
#include "tests/support/fault_file.h"
#include "tests/support/temp_pool.h"
#include "tests/support/testing.h"

namespace cowshed::engine {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::HasSubstr;

// ---- What it promises ---------------------------------------------------------------------------

TEST_F(IntentLogTest, SurvivesACrashWithoutATxg) {
  const Txg before = pool_->committed_txg();
  ASSERT_OK(WriteDurable("d", kBlock, Bytes('a')));
  EXPECT_EQ(pool_->committed_txg(), before);
  EXPECT_EQ(pool_->stats().log_batches.load(), 1u);
  pool_.Crash();
  EXPECT_EQ(Read(kBlock), Bytes('a'));
  EXPECT_EQ(pool_->stats().log_replayed_entries.load(), 1u);
  // Once it has been replayed it is not again.
  ASSERT_OK(pool_.Write("d", kBlock, Bytes('b')));
  ASSERT_OK(pool_.Flush("d").status());
  pool_.Crash();
  EXPECT_EQ(Read(kBlock), Bytes('b'));
  EXPECT_EQ(pool_->stats().log_replayed_entries.load(), 0u);
}

TEST_F(IntentLogTest, LogsWhatIsNewOnly) {
  ASSERT_OK(WriteDurable("d", 100, "abc"));
  const uint64_t first = pool_->stats().log_written_bytes.load();
  EXPECT_EQ(first, kBlock);
  ASSERT_OK(WriteDurable("d", 200, "def"));
  ASSERT_OK(pool_.MakeDurable("d"));  // nothing is new: nothing is written
  EXPECT_EQ(pool_->stats().log_written_bytes.load(), 2 * first);
  EXPECT_EQ(pool_->stats().log_batches.load(), 2u);
  pool_.Crash();
  EXPECT_EQ(Read(100, 3), "abc");
  EXPECT_EQ(Read(200, 3), "def");
  EXPECT_EQ(Read(103, 1), ".");
}

TEST_F(IntentLogTest, KeepsTheOrderOverLayers) {
  ASSERT_OK(WriteDurable("d", 0, Bytes('a', 3 * kBlock)));
  ASSERT_OK(pool_.Flush("d").status());
  ASSERT_OK(WriteDurable("d", kBlock, Bytes('b')));
  ASSERT_OK(WriteDurable("d", kBlock + 10, Bytes('c', 2000)));
  ASSERT_OK(pool_.Discard("d", 2 * kBlock, kBlock));
  ASSERT_OK(WriteDurable("d", 2 * kBlock + 5, "x"));
  pool_.Crash();
  std::string expected = Bytes('a') + Bytes('b') + Bytes('\0');
  expected.replace(kBlock + 10, 2000, 2000, 'c');
  expected[2 * kBlock + 5] = 'x';
  EXPECT_EQ(Read(0, 3 * kBlock), expected);
}

// Both layers of a head are logged, and the older one first: its rest is below the newer's bytes.
TEST_F(IntentLogTest, TakesTheSyncingLayerToo) {
  ASSERT_OK(pool_.Write("d", 0, Bytes('a')));
  ASSERT_OK(Failpoints::Arm("sync.before_fsync=pause"));
  Await<absl::StatusOr<Txg>> synced;
  pool_->Sync(synced.Callback());
  AwaitHit("sync.before_fsync");
  ASSERT_OK(WriteDurable("d", 7, "b"));
  EXPECT_FALSE(synced.Ready());
  // The pool dies in the middle of that txg.
  const PoolOptions copy = CopyFiles("copy");
  Failpoints::DisarmAll();
  ASSERT_OK(synced.Wait().status());
  const std::string found = ReadFrom(*ValueOf(Pool::Open(copy)), 0, kBlock);
  std::string expected = Bytes('a');
  expected[7] = 'b';
  EXPECT_EQ(found, expected);
}

// What a txg does not contain stays in the log when it commits, be it logged before or after the
// txg has looked at the log.
TEST_F(IntentLogTest, KeepsWhatTheCommittedTxgDoesNotContain) {
  for (const std::string point : {"sync.tasks_run", "sync.before_fsync"}) {
    ASSERT_OK(pool_.Write("d", 0, Bytes('a')));
    ASSERT_OK(Failpoints::Arm(point + "=pause"));
    Await<absl::StatusOr<Txg>> synced;
    pool_->Sync(synced.Callback());
    AwaitHit(point);
    ASSERT_OK(WriteDurable("d", kBlock, Bytes(point[5])));
    Failpoints::DisarmAll();
    ASSERT_OK(synced.Wait().status());
    pool_.Crash();
    EXPECT_EQ(Read(kBlock), Bytes(point[5])) << point;
    EXPECT_EQ(pool_->stats().log_replayed_entries.load(), 1u);
  }
}

TEST_F(IntentLogTest, SharesOneWriteAmongAllWhoWait) {
  constexpr size_t kWriters = 8;
  for (size_t i = 0; i < kWriters; ++i) {
    const std::string name = StrCat("w", i);
    ASSERT_OK(pool_.Create(name, kSize).status());
    ASSERT_OK(pool_.Write(name, 0, Bytes(static_cast<char>('a' + i))));
  }
  ASSERT_OK(pool_.Write("d", 0, Bytes('d')));
  ASSERT_OK(Failpoints::Arm("log.before_write=pause:count=1"));
  std::thread leader([&] { EXPECT_OK(pool_.MakeDurable("d")); });
  AwaitHit("log.before_write");
  std::vector<std::shared_ptr<Volume>> volumes;
  std::vector<Await<absl::Status>> done(kWriters);
  for (size_t i = 0; i < kWriters; ++i) {
    volumes.push_back(ValueOf(pool_->OpenVolume(StrCat("w", i), "")));
    volumes.back()->MakeDurable(done[i].Callback());
    EXPECT_FALSE(done[i].Ready());
  }
  Failpoints::DisarmAll();
  for (auto& waiter : done) EXPECT_OK(waiter.Wait());
  leader.join();
  EXPECT_EQ(pool_->stats().log_batches.load(), 2u);
  EXPECT_EQ(pool_->stats().log_waiters.load(), kWriters + 1);
  volumes.clear();
  pool_.Crash();
  for (size_t i = 0; i < kWriters; ++i) {
    EXPECT_EQ(Read(0, kBlock, StrCat("w", i)), Bytes(static_cast<char>('a' + i)));
  }
}

TEST_F(IntentLogTest, MuchDataGoesToItsPlaceAtOnce) {
  ASSERT_OK(pool_.Create("big", 4 << 20).status());
  const Txg before = pool_->committed_txg();
  ASSERT_OK(WriteDurable("big", 0, Bytes('a', 1 << 20)));
  EXPECT_GT(pool_->committed_txg(), before);
  EXPECT_EQ(Fallbacks(LogFallback::kLarge), 1u);
  EXPECT_EQ(pool_->stats().log_batches.load(), 0u);
}

// A quota, and a pool that filled up, must not keep accepted bytes from coming back.
TEST_F(IntentLogTest, ReplaysPastAQuota) {
  UpdateDatasetArgs args;
  args.name = "d";
  args.quota_bytes = std::optional<uint64_t>(40 * kBlock);
  ASSERT_OK(pool_.Call(&Pool::UpdateDataset, args).status());
  ASSERT_OK(WriteDurable("d", 0, Bytes('q', 30 * kBlock)));
  args.quota_bytes = std::optional<uint64_t>(33 * kBlock);
  ASSERT_OK(pool_.Sync().status());
  ASSERT_OK(WriteDurable("d", kSize - kBlock, Bytes('r')));
  pool_.Crash();
  EXPECT_EQ(Read(0, 30 * kBlock), Bytes('q', 30 * kBlock));
  EXPECT_EQ(Read(kSize - kBlock), Bytes('r'));
}

// ---- Cuts ---------------------------------------------------------------------------------------

class IntentLogCutTest : public IntentLogTest {
 protected:
  void SetUp() override {
    Prepare();
    ASSERT_OK(pool_.Create("other", kSize).status());
    ASSERT_OK(pool_.Snapshot("d@s").status());
  }
  // Runs `cut` in a txg; what is made durable after its close and before its commit is logged in
  // the layer that the cut takes.
  void CutAfterDurableWrite(const std::function<void(OutcomeCallback)>& cut,
                            const std::string& point = "sync.tasks_run") {
    ASSERT_OK(Failpoints::Arm(StrCat(point, "=pause")));
    Await<absl::StatusOr<Outcome>> done;
    cut(done.Callback());
    AwaitHit(point);
    ASSERT_OK(WriteDurable("d", 0, Bytes('w')));
    ASSERT_OK(WriteDurable("d", kSize - kBlock, Bytes('w')));
    Failpoints::DisarmAll();
    outcome_ = ValueOf(done.Wait());
  }
  Outcome outcome_;
};

TEST_F(IntentLogCutTest, RollbackTakesWhatWasLoggedBefore) {
  CutAfterDurableWrite([&](OutcomeCallback done) {
    RollbackDatasetArgs args;
    args.name = "d";
    args.snapshot = "s";
    pool_->RollbackDataset(args, std::nullopt, std::move(done));
  });
  EXPECT_EQ(Read(0), Bytes('.'));
  ASSERT_OK(WriteDurable("d", kBlock, Bytes('n')));
  pool_.Crash();
  EXPECT_EQ(Read(0), Bytes('.'));
  EXPECT_EQ(Read(kSize - kBlock), Bytes('\0'));
  EXPECT_EQ(Read(kBlock), Bytes('n'));
}

TEST_F(IntentLogCutTest, ShrinkTakesWhatLiesBeyond) {
  const auto resize = [&](uint64_t bytes) {
    return [this, bytes](OutcomeCallback done) {
      UpdateDatasetArgs args;
      args.name = "d";
      args.size_bytes = bytes;
      pool_->UpdateDataset(args, std::nullopt, std::move(done));
    };
  };
  CutAfterDurableWrite(resize(kBlock / 2));
  EXPECT_EQ(Read(0, kBlock / 2), Bytes('w', kBlock / 2));
  ASSERT_OK(pool_->DrainBackground());
  ASSERT_OK(pool_.Resize("d", kSize).status());
  pool_.Crash();
  EXPECT_EQ(Read(0, kBlock / 2), Bytes('w', kBlock / 2));
  EXPECT_EQ(Read(kBlock / 2, kSize - kBlock / 2), Bytes('\0', kSize - kBlock / 2));
}

TEST_F(IntentLogCutTest, DestructionTakesItAndUndestroyDoesNotBringItBack) {
  CutAfterDurableWrite([&](OutcomeCallback done) {
    DestroyDatasetsArgs args;
    args.names = {"d"};
    args.recursive = true;
    args.reclaim_after_ms = 60000;
    pool_->DestroyDatasets(args, std::nullopt, std::move(done));
  });
  Await<absl::StatusOr<Outcome>> back;
  pool_->Undestroy(outcome_.operation->name, std::nullopt, back.Callback());
  ASSERT_OK(back.Wait().status());
  EXPECT_EQ(Read(0), Bytes('.'));
  ASSERT_OK(WriteDurable("d", kBlock, Bytes('n')));
  pool_.Crash();
  EXPECT_EQ(Read(0), Bytes('.'));
  EXPECT_EQ(Read(kSize - kBlock), Bytes('\0'));
  EXPECT_EQ(Read(kBlock), Bytes('n'));
}

// While no batch is alive a cut leaves no record: then nothing is logged until it is published.
TEST_F(IntentLogCutTest, DurableWritesWaitForACutWithoutARecord) {
  ASSERT_OK(pool_.Sync().status());
  ASSERT_OK(Failpoints::Arm("sync.before_fsync=pause"));
  Await<absl::StatusOr<Outcome>> cut;
  RollbackDatasetArgs args;
  args.name = "d";
  args.snapshot = "s";
  pool_->RollbackDataset(args, std::nullopt, cut.Callback());
  AwaitHit("sync.before_fsync");
  ASSERT_OK(pool_.Write("other", 0, Bytes('o')));
  const auto volume = ValueOf(pool_->OpenVolume("other", ""));
  Await<absl::Status> durable;
  volume->MakeDurable(durable.Callback());
  EXPECT_FALSE(durable.Ready());
  EXPECT_EQ(Fallbacks(LogFallback::kCut), 1u);
  Failpoints::DisarmAll();
  ASSERT_OK(cut.Wait().status());
  ASSERT_OK(durable.Wait());
  ASSERT_OK(WriteDurable("d", 0, Bytes('n')));
  EXPECT_EQ(Fallbacks(LogFallback::kCut), 1u);
}

// ---- The ring -----------------------------------------------------------------------------------

TEST_F(TinyRingTest, WrapsAndNeverOvertakesItself) {
  ASSERT_EQ(pool_->stats().log_ring_bytes.load(), 256u << 10);
  std::map<uint64_t, char> expected;
  for (uint64_t i = 0; i < 400; ++i) {
    const uint64_t block = i * 7 % 64;
    const uint64_t count = std::min<uint64_t>(i % 3 + 1, 64 - block);
    const char byte = static_cast<char>('a' + i % 26);
    ASSERT_OK(WriteDurable("d", block * kBlock, Bytes(byte, count * kBlock)));
    for (uint64_t k = 0; k < count; ++k) expected[block + k] = byte;
    if (i % 50 != 49) continue;
    pool_.Crash();
    for (const auto& [at, found] : expected) ASSERT_EQ(Read(at * kBlock), Bytes(found)) << at;
  }
}

// A full ring is no error: its writer waits for the txg that empties it.
TEST_F(TinyRingTest, FullRingFallsBack) {
  ASSERT_OK(Failpoints::Arm("sync.before_fsync=pause"));
  std::thread writer([&] {
    for (int i = 0; i < 60; ++i) EXPECT_OK(WriteDurable("d", 0, Bytes('f')));
  });
  while (Fallbacks(LogFallback::kFull) == 0) std::this_thread::yield();
  Failpoints::DisarmAll();
  writer.join();
  pool_.Crash();
  EXPECT_EQ(Read(0), Bytes('f'));
}

class NoRingTest : public IntentLogTest {
 protected:
  NoRingTest() : IntentLogTest(8 << 20) {}
  void SetUp() override {}
};

TEST_F(NoRingTest, SmallPoolsHaveNoneAndStayReadableByOlderPrograms) {
  ASSERT_OK(pool_.Create("d", kSize).status());
  for (int i = 0; i < 3; ++i) {
    const Txg before = pool_->committed_txg();
    ASSERT_OK(WriteDurable("d", 0, Bytes('a')));
    EXPECT_GT(pool_->committed_txg(), before);
  }
  EXPECT_EQ(pool_->stats().log_ring_bytes.load(), 0u);
  EXPECT_EQ(Fallbacks(LogFallback::kNoRing), 3u);
  pool_.Damage([](WriteTxn& txn) {
    const auto pool = ValueOf(LoadRecord<PoolRecord>(txn, PoolRecord::kKey));
    EXPECT_EQ(pool.features.incompatible, 0u);
  });
}

TEST(IntentLogRingTest, FailureToMakeOneLeavesNothingBehind) {
  TempPool larger([](PoolOptions* options) { options->txg_interval = std::chrono::hours(1); });
  ASSERT_OK(larger.Create("d", kSize).status());
  ASSERT_OK(larger.Sync().status());
  const uint64_t allocated = larger->space().allocated_bytes;
  ASSERT_OK(Failpoints::Arm("log.ring_written=error:count=1"));
  ASSERT_OK(larger.MakeDurable("d"));
  ASSERT_OK(larger.Sync().status());
  EXPECT_EQ(Failpoints::Hits("log.ring_written"), 1u);
  EXPECT_EQ(larger->stats().log_ring_bytes.load(), 0u);
  EXPECT_LT(larger->space().allocated_bytes, allocated + (1 << 20));
  larger.ExpectClean();
}

// ---- Failures -----------------------------------------------------------------------------------

// I7: after a log write that failed nothing is written any more, and nobody is told otherwise.
TEST_F(IntentLogTest, FailedLogWriteSuspendsThePool) {
  ASSERT_OK(WriteDurable("d", kBlock, Bytes('a')));
  plan_->CountOnly(FileOp::kWriteDurable);
  FaultPlan::Failure failure;
  failure.at = 1;
  failure.torn_bytes = kBlock;
  plan_->Fail(failure);
  EXPECT_CODE(WriteDurable("d", 2 * kBlock, Bytes('b')), kUnavailable);
  while (pool_->health().ok()) std::this_thread::yield();
  EXPECT_CODE(pool_.MakeDurable("d"), kUnavailable);
  EXPECT_CODE(pool_.Flush("d").status(), kUnavailable);
  EXPECT_EQ(Read(kBlock), Bytes('a'));
  plan_->Heal();
  pool_.Reopen();
  EXPECT_EQ(Read(kBlock), Bytes('a'));
  EXPECT_EQ(Read(2 * kBlock), Bytes('\0'));  // torn, and never acknowledged
}

// Bug: until a txg had met the failure, a flush that had nothing of its own to log was told that
// all is durable, of bytes that the failed write had taken along.
TEST_F(IntentLogTest, FailedLogWriteIsKnownBeforeATxgMeetsIt) {
  ASSERT_OK(pool_.Write("d", 0, Bytes('a')));
  ASSERT_OK(Failpoints::Arm("sync.before_fsync=pause"));
  Await<absl::StatusOr<Txg>> synced;
  pool_->Sync(synced.Callback());
  AwaitHit("sync.before_fsync");
  ASSERT_OK(pool_.Write("d", kBlock, Bytes('b')));
  plan_->CountOnly(FileOp::kWriteDurable);
  FaultPlan::Failure failure;
  failure.at = 1;
  plan_->Fail(failure);
  const auto volume = ValueOf(pool_->OpenVolume("d", ""));
  Await<absl::Status> first, second;
  volume->MakeDurable(first.Callback());
  volume->MakeDurable(second.Callback());
  EXPECT_FALSE(second.Ready());
  Failpoints::DisarmAll();
  EXPECT_CODE(first.Wait(), kUnavailable);
  EXPECT_CODE(second.Wait(), kUnavailable);
  EXPECT_FALSE(synced.Wait().ok());
  pool_.Abandon();
}

// A replay that is interrupted starts again from the beginning.
TEST_F(IntentLogTest, CrashInTheMiddleOfAReplay) {
  ASSERT_OK(WriteDurable("d", 0, Bytes('a')));
  ASSERT_OK(WriteDurable("d", 0, Bytes('b')));
  ASSERT_OK(WriteDurable("d", kBlock, Bytes('c')));
  int copies = 0;
  for (const char* const point : {"log.batch_replayed=error:skip=1", "log.replayed=error"}) {
    const PoolOptions options = CopyFiles(StrCat("copy", ++copies));
    ASSERT_OK(Failpoints::Arm(point));
    EXPECT_CODE(Pool::Open(options).status(), kInternal);
    Failpoints::DisarmAll();
    const auto pool = ValueOf(Pool::Open(options));
    EXPECT_EQ(ReadFrom(*pool, 0, 2 * kBlock), Bytes('b') + Bytes('c'));
    EXPECT_TRUE(ValueOf(pool->Check()).ok());
  }
}

class CrashedPoolTest : public IntentLogTest {
 protected:
  void SetUp() override {
    Prepare();
    ASSERT_OK(WriteDurable("d", kBlock, Bytes('a')));
    ASSERT_OK(WriteDurable("d", 2 * kBlock, Bytes('b')));
    ASSERT_OK(WriteDurable("d", 3 * kBlock, Bytes('c')));
    options_ = CopyFiles("crashed");
    options_.read_only = true;
    report_ = ValueOf(ValueOf(Pool::Open(options_))->Check());
    options_.read_only = false;
    for (const FileCall& call : plan_->calls()) {
      if (call.op == FileOp::kWriteDurable) batches_.push_back(call.offset);
    }
    ASSERT_EQ(batches_.size(), 3u);
  }
  void DamageBatch(size_t number) {
    const auto file = ValueOf(OpenFile(options_.directory + "/blocks", false, false));
    const std::string garbage = Bytes('?', 100);
    ASSERT_OK(file->Write(batches_[number] + kBlock, std::as_bytes(std::span(garbage))));
  }
  std::string ReadCopy(uint64_t offset) {
    const auto pool = ValueOf(Pool::Open(options_));
    EXPECT_TRUE(ValueOf(pool->Check()).ok());
    return ReadFrom(*pool, offset, kBlock);
  }

  PoolOptions options_;
  CheckReport report_;
  std::vector<uint64_t> batches_;
};

TEST_F(CrashedPoolTest, CheckSaysWhatWaitsAndChangesNothing) {
  EXPECT_TRUE(report_.ok());
  EXPECT_EQ(report_.log_batches, 3u);
  EXPECT_EQ(report_.log_bytes, 3 * kBlock);
  EXPECT_EQ(ReadCopy(3 * kBlock), Bytes('c'));
}

// The last batch may be torn: it was not acknowledged.
TEST_F(CrashedPoolTest, TornTailIsTheEnd) {
  DamageBatch(2);
  EXPECT_EQ(ReadCopy(2 * kBlock), Bytes('b'));
  EXPECT_EQ(ReadCopy(3 * kBlock), Bytes('\0'));
}

// One before it was: to go on without it would lose what was acknowledged, and tell nobody.
TEST_F(CrashedPoolTest, DamageBeforeTheEndIsRefusedAndRepairDropsTheLog) {
  DamageBatch(1);
  const absl::Status refused = Pool::Open(options_).status();
  EXPECT_CODE(refused, kDataLoss);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("the intent log is damaged: batch 2"));
  options_.read_only = true;
  const CheckReport report = ValueOf(ValueOf(Pool::Open(options_))->Check());
  ASSERT_EQ(report.findings.size(), 1u);
  EXPECT_EQ(report.findings[0].name, "intent log");
  options_.read_only = false;
  {
    const auto repair = ValueOf(Repair::Prepare({options_, /*from_copy=*/false}));
    EXPECT_TRUE(repair->report().ok());
    ASSERT_EQ(repair->lost().size(), 1u);
    EXPECT_EQ(repair->lost()[0].name, "intent log");
    ASSERT_OK(repair->Apply().status());
  }
  EXPECT_EQ(ReadCopy(0), Bytes('.'));
  EXPECT_EQ(ReadCopy(2 * kBlock), Bytes('\0'));
}

// Bug: batches that were cut off with the end of the file looked like the end of the log.
TEST_F(CrashedPoolTest, FileThatEndsInTheRingIsDamage) {
  fs::resize_file(options_.directory + "/blocks", batches_[1]);
  for (int attempt = 0; attempt < 2; ++attempt) {
    const absl::Status refused = Pool::Open(options_).status();
    EXPECT_CODE(refused, kDataLoss);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("blocks ends before its ring"));
  }
  const auto repair = ValueOf(Repair::Prepare({options_, /*from_copy=*/false}));
  ASSERT_EQ(repair->lost().size(), 1u);
  EXPECT_EQ(repair->lost()[0].name, "intent log");
}

// Bug: a repair dropped what only the log held, though the heads it was written to were there.
TEST_F(CrashedPoolTest, RepairKeepsTheLogForTheNextOpening) {
  {
    const auto repair = ValueOf(Repair::Prepare({options_, /*from_copy=*/false}));
    EXPECT_TRUE(repair->report().ok());
    EXPECT_TRUE(repair->lost().empty());
    EXPECT_THAT(repair->plan(), Contains(HasSubstr("3 batches with 12288 bytes")));
    ASSERT_OK(repair->Apply().status());
  }
  EXPECT_EQ(ReadCopy(kBlock), Bytes('a'));
  EXPECT_EQ(ReadCopy(2 * kBlock), Bytes('b'));
  EXPECT_EQ(ReadCopy(3 * kBlock), Bytes('c'));
}

TEST_F(IntentLogTest, RepairKeepsCutsToo) {
  ASSERT_OK(pool_.Snapshot("d@s").status());
  ASSERT_OK(WriteDurable("d", kBlock, Bytes('x')));
  ASSERT_OK(pool_.Rollback("d").status());
  ASSERT_OK(WriteDurable("d", 2 * kBlock, Bytes('y')));
  const PoolOptions options = CopyFiles("crashed");
  {
    const auto repair = ValueOf(Repair::Prepare({options, /*from_copy=*/false}));
    EXPECT_TRUE(repair->lost().empty());
    ASSERT_OK(repair->Apply().status());
  }
  const auto pool = ValueOf(Pool::Open(options));
  EXPECT_EQ(ReadFrom(*pool, kBlock, 2 * kBlock), Bytes('\0') + Bytes('y'));
  EXPECT_TRUE(ValueOf(pool->Check()).ok());
}

}  // namespace
}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// Condensing: how short lists become and stay, what it costs, and each race of a run with whatever
// takes its sublists away or adds to them, in every order.
#include "engine/condenser.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/failpoints.h"
#include "engine/base/strings.h"
#include "engine/names.h"
#include "tests/support/temp_pool.h"
#include "tests/support/testing.h"

namespace cowshed::engine {
namespace {

constexpr uint64_t kBlock = 4096;

std::string Blocks(char byte, uint64_t count) { return std::string(count * kBlock, byte); }

class CondenserTest : public ::testing::Test {
 protected:
  explicit CondenserTest(const TempPool::Tweak& tweak = {})
      : pool_([&](PoolOptions* options) {
          options->capacity_bytes = uint64_t{256} << 20;
          options->background_work = false;
          options->txg_interval = std::chrono::milliseconds(60000);
          if (tweak) tweak(options);
        }) {
    empty_bytes_ = pool_->space().allocated_bytes;
  }
  void TearDown() override { Failpoints::DisarmAll(); }

  void WriteAndFlush(const std::string& name, uint64_t block, const std::string& data) {
    ASSERT_OK(pool_.Write(name, block * kBlock, data));
    ASSERT_OK(pool_.Flush(name).status());
  }
  // 1,000 blocks of which every second is then written again: some 500 FREEs, and survivors in as
  // many pieces.
  void MakeGarbage(const std::string& name, char byte) {
    WriteAndFlush(name, 0, Blocks(byte, 1000));
    for (uint64_t block = 0; block < 1000; block += 2) {
      ASSERT_OK(pool_.Write(name, block * kBlock, Blocks(static_cast<char>(byte + 1), 1)));
    }
    ASSERT_OK(pool_.Flush(name).status());
  }
  LivelistInfo Livelist(const std::string& name) {
    return ValueOf(pool_->GetLivelist(name, 0, UINT32_MAX));
  }
  uint64_t Sublists(const std::string& name) { return Livelist(name).sublists.size(); }
  uint64_t Condenses(CondenseResult result) { return pool_->stats().condenses[result]; }
  void ExpectCondenses(uint64_t completed, uint64_t cancelled, uint64_t failed) {
    EXPECT_EQ(Condenses(CondenseResult::kCompleted), completed);
    EXPECT_EQ(Condenses(CondenseResult::kCancelled), cancelled);
    EXPECT_EQ(Condenses(CondenseResult::kFailed), failed);
  }
  static void WaitForHits(const std::string& point, uint64_t hits) {
    while (Failpoints::Hits(point) < hits) std::this_thread::yield();
  }
  // Destroys everything and expects the last sector back.
  void ExpectEmptyAfterDestroy(const std::vector<std::string>& names) {
    pool_.ExpectClean();
    DestroyDatasetsArgs args;
    args.names = names;
    args.cascade = true;
    ASSERT_OK(pool_.Call(&Pool::DestroyDatasets, args).status());
    pool_.ExpectClean();
    EXPECT_EQ(pool_->space().allocated_bytes, empty_bytes_);
    EXPECT_EQ(pool_->stats().livelist_entries, 0u);
    EXPECT_EQ(pool_->stats().livelist_sublists, 0u);
  }

  TempPool pool_;
  uint64_t empty_bytes_ = 0;
};

// ---- Lengths ------------------------------------------------------------------------------------

class SmallLimits : public CondenserTest {
 protected:
  SmallLimits()
      : CondenserTest([](PoolOptions* options) {
          options->livelist_max_entries = 20;
          options->condense_min_entries = 4;
        }) {}
};

// A dataset of 1 MiB has two levels of nodes: a write of five blocks bears seven.
TEST_F(SmallLimits, FiveWritesFillTwoSublistsAndOverwritingLeavesOne) {
  ASSERT_OK(pool_.Create("base").status());
  ASSERT_OK(pool_.Snapshot("base@s").status());
  ASSERT_OK(pool_.Clone("base@s", "clone").status());
  for (uint64_t i = 0; i < 5; ++i) WriteAndFlush("clone", i * 5, Blocks('a', 5));
  EXPECT_EQ(Sublists("clone"), 2u);  // 21 blocks pass the limit of 20
  WriteAndFlush("clone", 0, Blocks('b', 25));
  EXPECT_EQ(Sublists("clone"), 3u);
  ASSERT_OK(pool_->DrainBackground());
  // Nothing of the first is alive: it goes. The newest, empty one stays, for the one before it is
  // full.
  const LivelistInfo after = Livelist("clone");
  EXPECT_EQ(after.total.blocks, 25u);
  EXPECT_EQ(after.sublists.size(), 2u);
  EXPECT_LE(after.total.entries, 3u);
  EXPECT_EQ(after.sublists.back().entries, 0u);
  EXPECT_EQ(ValueOf(pool_.Read("clone", 0, 25 * kBlock)), Blocks('b', 25));
  ExpectEmptyAfterDestroy({"base"});
}

TEST_F(SmallLimits, NoSublistStraddlesASnapshotAndRollbackIsExact) {
  ASSERT_OK(pool_.Create("d").status());
  for (int i = 0; i < 4; ++i) {
    WriteAndFlush("d", 0, Blocks(static_cast<char>('a' + i), 2));
    if (i < 3) ASSERT_OK(pool_.Snapshot(StrCat("d@", i)).status());
  }
  ASSERT_OK(pool_->DrainBackground());
  EXPECT_EQ(Sublists("d"), 4u);
  ASSERT_OK(pool_.Rollback("d").status());
  pool_.ExpectClean();
  EXPECT_EQ(ValueOf(pool_.Read("d", 0, 2 * kBlock)), Blocks('c', 2));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(ValueOf(pool_.Read(StrCat("d@", i), 0, 2 * kBlock)),
              Blocks(static_cast<char>('a' + i), 2));
  }
  ExpectEmptyAfterDestroy({"d"});
}

TEST_F(CondenserTest, SnapshotsThatComeAndGoLeaveNoTrace) {
  ASSERT_OK(pool_.Create("d").status());
  WriteAndFlush("d", 0, Blocks('a', 200));
  for (int i = 0; i < 60; ++i) {
    ASSERT_OK(pool_.Snapshot(StrCat("d@", i)).status());
    if (i % 2 == 0) WriteAndFlush("d", static_cast<uint64_t>(i), Blocks('b', 20));
    if (i >= 3) ASSERT_OK(pool_.DestroySnapshot(StrCat("d@", i - 3)).status());
    ASSERT_OK(pool_->DrainBackground());
    const LivelistInfo list = Livelist("d");
    EXPECT_LE(list.sublists.size(), 5u);
    // What destroyed snapshots attached has been folded in, but for what is too little to matter.
    EXPECT_LE(list.total.logs, list.sublists.size() + 60);
  }
  ExpectEmptyAfterDestroy({"d"});
}

TEST_F(SmallLimits, AttachedLogsAreFoldedInAndReleased) {
  ASSERT_OK(pool_.Create("d").status());
  WriteAndFlush("d", 0, Blocks('a', 9));
  ASSERT_OK(pool_.Snapshot("d@s").status());
  for (uint64_t block = 0; block < 9; block += 2) WriteAndFlush("d", block, Blocks('b', 1));
  ASSERT_OK(pool_.DestroySnapshot("d@s").status());
  ASSERT_OK(pool_->DrainBackground());
  const LivelistInfo list = Livelist("d");
  EXPECT_EQ(list.total.logs, list.sublists.size());
  EXPECT_EQ(list.total.blocks, 9u);
  ExpectEmptyAfterDestroy({"d"});
}

// ---- Cost ---------------------------------------------------------------------------------------

class Overwriting : public CondenserTest, public ::testing::WithParamInterface<uint64_t> {
 protected:
  static constexpr uint64_t kBlockBytes = 16384;
  static constexpr uint64_t kLive = 1600;  // blocks
  static constexpr uint64_t kTxg = 64;     // blocks a txg
};

// The parameter: blocks side by side in one write.
TEST_P(Overwriting, TwentyTimesStaysShortAndCheap) {
  ASSERT_OK(pool_.Create("base", kLive * kBlockBytes, kBlockBytes).status());
  ASSERT_OK(pool_.Snapshot("base@s").status());
  ASSERT_OK(pool_.Clone("base@s", "clone").status());
  const uint64_t together = GetParam();
  std::mt19937_64 random(1);
  uint64_t written_blocks = 0;
  while (written_blocks < 20 * kLive) {
    for (uint64_t i = 0; i < kTxg; i += together) {
      const uint64_t block = random() % (kLive / together) * together;
      ASSERT_OK(pool_.Write("clone", block * kBlockBytes,
                            std::string(together * kBlockBytes, static_cast<char>(random()))));
      written_blocks += together;
    }
    ASSERT_OK(pool_.Flush("clone").status());
    if (random() % 4 == 0) {
      ASSERT_OK(pool_->DrainBackground());
      const LivelistInfo list = Livelist("clone");
      const uint64_t nodes = kLive / 128 + 2;
      if (list.total.entries > pool_.options().condense_min_entries) {
        EXPECT_LE(list.total.entries, 2 * (list.total.blocks + nodes));
      }
    }
  }
  ASSERT_OK(pool_->DrainBackground());
  const LivelistInfo list = Livelist("clone");
  const PoolStats& stats = pool_->stats();
  const auto written_bytes = static_cast<double>(written_blocks * kBlockBytes);
  const double moved = static_cast<double>(stats.condense_entries_in + stats.condense_entries_out) *
                       PointerLog::kEntryBytes / written_bytes;
  const double wrote = static_cast<double>(stats.condense_written_bytes) / written_bytes;
  std::cout << together << " together: " << list.total.entries << " entries for "
            << list.total.blocks << " blocks, " << stats.condenses[CondenseResult::kCompleted]
            << " runs, moved " << moved * 100 << " %, wrote " << wrote * 100 << " %\n";
  EXPECT_GT(stats.condenses[CondenseResult::kCompleted], 0u);
  EXPECT_LE(moved, 0.01);
  EXPECT_LE(wrote, 0.01);
  EXPECT_LE(list.total.entries, 2 * list.total.blocks);
  ExpectEmptyAfterDestroy({"base"});
}

INSTANTIATE_TEST_SUITE_P(All, Overwriting, ::testing::Values(1, 4, 32));

TEST_F(CondenserTest, LittleMemoryReadsInPassesAndGivesTheSame) {
  pool_.Reopen([](PoolOptions* options) {
    options->reclaim_memory_bytes = 1;
    options->condense_min_entries = 100;
  });
  ASSERT_OK(pool_.Create("d", 8 << 20).status());
  MakeGarbage("d", 'a');
  ASSERT_OK(pool_->DrainBackground());
  EXPECT_EQ(Condenses(CondenseResult::kFailed), 0u);
  EXPECT_GE(Condenses(CondenseResult::kCompleted), 1u);
  ExpectEmptyAfterDestroy({"d"});
}

// ---- What comes meanwhile -----------------------------------------------------------------------

class Racing : public CondenserTest {
 protected:
  Racing()
      : CondenserTest([](PoolOptions* options) {
          options->condense_min_entries = 100;
          options->condense_chunks_per_txg = 1;
        }) {}
  ~Racing() override {
    Failpoints::DisarmAll();
    if (drain_.joinable()) drain_.join();
  }

  // Holds a run at `point` (after `skip` times), on a thread of its own.
  void Hold(const std::string& point, uint64_t skip = 0) {
    point_ = point;
    ASSERT_OK(Failpoints::Arm(StrCat(point, "=pause:skip=", skip)));
    drain_ = std::thread([this] { drained_ = pool_->DrainBackground(); });
    WaitForHits(point, skip + 1);
  }
  void Release() {
    Failpoints::Disarm(point_);
    drain_.join();
    EXPECT_OK(drained_);
  }

  std::string point_;
  std::thread drain_;
  absl::Status drained_;
};

TEST_F(Racing, EntriesThatComeMeanwhileAreCarriedOver) {
  for (const char* point : {"condense.read", "condense.shadow", "condense.swap"}) {
    SCOPED_TRACE(point);
    ASSERT_OK(pool_.Create("d", 8 << 20).status());
    MakeGarbage("d", 'a');
    Hold(point);
    // FREEs of survivors that have been read, and new blocks; more than one bite of them.
    for (uint64_t block = 1; block < 1000; block += 4) {
      ASSERT_OK(pool_.Write("d", block * kBlock, Blocks('x', 1)));
    }
    ASSERT_OK(pool_.Flush("d").status());
    WriteAndFlush("d", 1, Blocks('y', 1));
    Release();
    EXPECT_EQ(Condenses(CondenseResult::kCancelled), 0u);
    EXPECT_EQ(Condenses(CondenseResult::kFailed), 0u);
    pool_.ExpectClean();
    EXPECT_EQ(ValueOf(pool_.Read("d", kBlock, kBlock)), Blocks('y', 1));
    EXPECT_EQ(ValueOf(pool_.Read("d", 5 * kBlock, kBlock)), Blocks('x', 1));
    ExpectEmptyAfterDestroy({"d"});
  }
  EXPECT_GE(Condenses(CondenseResult::kCompleted), 3u);
}

// A FREE and the ALLOC it cancels both come after the reading.
TEST_F(Racing, BlockThatLivesAndDiesMeanwhileIsGone) {
  ASSERT_OK(pool_.Create("d", 8 << 20).status());
  MakeGarbage("d", 'a');
  Hold("condense.swap");
  for (int i = 0; i < 5; ++i) WriteAndFlush("d", 7, Blocks(static_cast<char>('p' + i), 3));
  Release();
  ExpectCondenses(1, 0, 0);
  ExpectEmptyAfterDestroy({"d"});
}

TEST_F(Racing, LogAttachedMeanwhileStaysAttached) {
  ASSERT_OK(pool_.Create("d", 8 << 20).status());
  MakeGarbage("d", 'a');
  ASSERT_OK(pool_.Snapshot("d@s").status());
  WriteAndFlush("d", 100, Blocks('z', 40));
  // The job of the snapshot attaches its log on the reclaimer's own thread.
  ASSERT_OK(Failpoints::Arm("condense.swap=pause"));
  pool_.Reopen([](PoolOptions* options) { options->background_work = true; });
  WaitForHits("condense.swap", 1);
  ASSERT_OK(pool_.DestroySnapshot("d@s").status());
  while (pool_->stats().reclaim_pending_items != 0) std::this_thread::yield();
  EXPECT_GT(Livelist("d").total.logs, Sublists("d"));
  Failpoints::DisarmAll();
  ASSERT_OK(pool_->DrainBackground());
  EXPECT_EQ(Condenses(CondenseResult::kCancelled), 0u);
  EXPECT_GE(Condenses(CondenseResult::kCompleted), 1u);
  ExpectEmptyAfterDestroy({"d"});
}

// ---- What takes the sublists away ---------------------------------------------------------------

// Where a run stands still.
struct Point {
  const char* name;
  uint64_t skip;
};
constexpr Point kPoints[] = {
    {"condense.read", 0}, {"condense.shadow", 0}, {"condense.shadow", 1}, {"condense.swap", 0}};

class Races : public Racing, public ::testing::WithParamInterface<Point> {
 protected:
  // A list with garbage that a run will find: of `d` before d@s, or of its clone `c`.
  void MakeParentOfClone() {
    ASSERT_OK(pool_.Create("d", 8 << 20).status());
    MakeGarbage("d", 'a');
    ASSERT_OK(pool_.Snapshot("d@s").status());
    ASSERT_OK(pool_.Clone("d@s", "c").status());
    WriteAndFlush("c", 0, Blocks('c', 3));
  }
  void HoldThere() { Hold(GetParam().name, GetParam().skip); }
};

TEST_P(Races, Destroy) {
  ASSERT_OK(pool_.Create("d", 8 << 20).status());
  MakeGarbage("d", 'a');
  HoldThere();
  ASSERT_OK(pool_.Destroy("d").status());
  Release();
  ExpectCondenses(0, 1, 0);
  pool_.ExpectClean();
  EXPECT_EQ(pool_->space().allocated_bytes, empty_bytes_);
}

TEST_P(Races, Promote) {
  MakeParentOfClone();
  HoldThere();
  ASSERT_OK(pool_.Promote("c").status());
  Release();
  // Cancelled for the parent, and its mark has moved with the sublist: done for the clone.
  ExpectCondenses(1, 1, 0);
  EXPECT_EQ(ValueOf(pool_.Read("c", 0, kBlock)), Blocks('c', 1));
  EXPECT_EQ(ValueOf(pool_.Read("d", 0, kBlock)), Blocks('b', 1));
  ExpectEmptyAfterDestroy({"c"});
}

TEST_P(Races, Rollback) {
  ASSERT_OK(pool_.Create("d", 8 << 20).status());
  WriteAndFlush("d", 0, Blocks('0', 1));
  ASSERT_OK(pool_.Snapshot("d@s").status());
  MakeGarbage("d", 'a');
  HoldThere();
  ASSERT_OK(pool_.Rollback("d").status());
  // A new sublist of the same start is not the one that was read.
  WriteAndFlush("d", 1, Blocks('1', 1));
  Release();
  ExpectCondenses(0, 1, 0);
  EXPECT_EQ(ValueOf(pool_.Read("d", 0, 2 * kBlock)), Blocks('0', 1) + Blocks('1', 1));
  ExpectEmptyAfterDestroy({"d"});
}

TEST_P(Races, ResetToOrigin) {
  ASSERT_OK(pool_.Create("base", 8 << 20).status());
  WriteAndFlush("base", 0, Blocks('0', 1));
  ASSERT_OK(pool_.Snapshot("base@s").status());
  ASSERT_OK(pool_.Clone("base@s", "c").status());
  MakeGarbage("c", 'a');
  HoldThere();
  ASSERT_OK(pool_.ResetToOrigin("c").status());
  Release();
  ExpectCondenses(0, 1, 0);
  EXPECT_EQ(ValueOf(pool_.Read("c", 0, kBlock)), Blocks('0', 1));
  ExpectEmptyAfterDestroy({"base"});
}

TEST_P(Races, Replace) {
  ASSERT_OK(pool_.Create("base", 8 << 20).status());
  ASSERT_OK(pool_.Snapshot("base@s").status());
  ASSERT_OK(pool_.Clone("base@s", "c").status());
  MakeGarbage("c", 'a');
  HoldThere();
  CloneDatasetArgs args;
  args.source = "base@s";
  args.name = "c";
  args.replace = true;
  ASSERT_OK(pool_.Call(&Pool::CloneDataset, args).status());
  Release();
  ExpectCondenses(0, 1, 0);
  ExpectEmptyAfterDestroy({"base"});
}

TEST_P(Races, Snapshot) {
  ASSERT_OK(pool_.Create("d", 8 << 20).status());
  MakeGarbage("d", 'a');
  HoldThere();
  ASSERT_OK(pool_.Snapshot("d@s").status());
  WriteAndFlush("d", 0, Blocks('z', 300));
  Release();
  ExpectCondenses(1, 0, 0);
  EXPECT_EQ(Sublists("d"), 2u);
  ASSERT_OK(pool_.Rollback("d").status());
  EXPECT_EQ(ValueOf(pool_.Read("d", 0, 2 * kBlock)), Blocks('b', 1) + Blocks('a', 1));
  ExpectEmptyAfterDestroy({"d"});
}

// The run is of one of the sublists that the snapshot holds apart.
TEST_P(Races, SnapshotDestroy) {
  ASSERT_OK(pool_.Create("d", 8 << 20).status());
  MakeGarbage("d", 'a');
  ASSERT_OK(pool_.Snapshot("d@s").status());
  WriteAndFlush("d", 0, Blocks('z', 300));
  ASSERT_OK(Failpoints::Arm(StrCat(GetParam().name, "=pause:skip=", GetParam().skip)));
  pool_.Reopen([](PoolOptions* options) { options->background_work = true; });
  WaitForHits(GetParam().name, GetParam().skip + 1);
  ASSERT_OK(pool_.DestroySnapshot("d@s").status());
  while (pool_->stats().reclaim_pending_items != 0) std::this_thread::yield();
  Failpoints::DisarmAll();
  ASSERT_OK(pool_->DrainBackground());
  EXPECT_EQ(Condenses(CondenseResult::kFailed), 0u);
  EXPECT_EQ(ValueOf(pool_.Read("d", 299 * kBlock, 2 * kBlock)), Blocks('z', 1) + Blocks('b', 1));
  ExpectEmptyAfterDestroy({"d"});
}

// A merge under way across the place of a snapshot that goes, and another that is made.
TEST_P(Races, MergeMeetsLifecycle) {
  ASSERT_OK(pool_.Create("d", 8 << 20).status());
  for (int i = 0; i < 3; ++i) {
    WriteAndFlush("d", static_cast<uint64_t>(i) * 300, Blocks(static_cast<char>('a' + i), 300));
    for (uint64_t block = 0; block < 300; block += 2) {
      ASSERT_OK(
          pool_.Write("d", (static_cast<uint64_t>(i) * 300 + block) * kBlock, Blocks('-', 1)));
    }
    ASSERT_OK(pool_.Flush("d").status());
    ASSERT_OK(pool_.Snapshot(StrCat("d@", i)).status());
  }
  ASSERT_OK(pool_->DrainBackground());
  EXPECT_EQ(Sublists("d"), 3u);
  ASSERT_OK(pool_.DestroySnapshot("d@0").status());
  ASSERT_OK(pool_.DestroySnapshot("d@1").status());
  const uint64_t before = Condenses(CondenseResult::kCompleted);
  HoldThere();
  ASSERT_OK(pool_.Snapshot("d@new").status());
  WriteAndFlush("d", 0, Blocks('z', 10));
  Release();
  EXPECT_GT(Condenses(CondenseResult::kCompleted), before);
  EXPECT_EQ(Condenses(CondenseResult::kFailed), 0u);
  EXPECT_EQ(Sublists("d"), 2u);
  ASSERT_OK(pool_.Rollback("d").status());
  EXPECT_EQ(ValueOf(pool_.Read("d", kBlock, kBlock)), Blocks('a', 1));
  ExpectEmptyAfterDestroy({"d"});
}

TEST_P(Races, ShutdownAndReopen) {
  ASSERT_OK(pool_.Create("d", 8 << 20).status());
  MakeGarbage("d", 'a');
  ASSERT_OK(Failpoints::Arm(StrCat(GetParam().name, "=pause:skip=", GetParam().skip)));
  pool_.Reopen([](PoolOptions* options) { options->background_work = true; });
  WaitForHits(GetParam().name, GetParam().skip + 1);
  // The pool closes while the run stands still, and waits for this one bite.
  std::thread closer(
      [this] { pool_.Reopen([](PoolOptions* options) { options->background_work = false; }); });
  Failpoints::DisarmAll();
  closer.join();
  const CheckReport report = ValueOf(pool_->Check());
  EXPECT_TRUE(report.ok()) << report.findings[0].message;
  ASSERT_OK(pool_->DrainBackground());
  EXPECT_LE(Livelist("d").total.entries, 520u);
  ExpectEmptyAfterDestroy({"d"});
}

TEST_P(Races, Kill) {
  ASSERT_OK(pool_.Create("d", 8 << 20).status());
  MakeGarbage("d", 'a');
  // Where the run stops, the disk is as a kill would leave it there: a shadow log that is listed.
  ASSERT_OK(Failpoints::Arm(StrCat(GetParam().name, "=error:skip=", GetParam().skip)));
  EXPECT_CODE(pool_->DrainBackground(), kInternal);
  ExpectCondenses(0, 0, 1);
  Failpoints::DisarmAll();
  pool_.Crash();
  const CheckReport report = ValueOf(pool_->Check());
  EXPECT_TRUE(report.ok()) << report.findings[0].message;
  const uint64_t before = Livelist("d").total.entries;
  ASSERT_OK(pool_->DrainBackground());
  ExpectCondenses(1, 0, 0);
  EXPECT_LT(Livelist("d").total.entries, before);
  ExpectEmptyAfterDestroy({"d"});
}

// The txg that swaps fails after its last change: nothing has happened, and the run is given up.
TEST_F(Racing, SwapThatFailsLeavesEverythingAsItWas) {
  ASSERT_OK(pool_.Create("d", 8 << 20).status());
  MakeGarbage("d", 'a');
  const uint64_t before = Livelist("d").total.entries;
  ASSERT_OK(Failpoints::Arm("condense.swapped=error:count=1"));
  EXPECT_CODE(pool_->DrainBackground(), kInternal);
  ExpectCondenses(0, 0, 1);
  EXPECT_EQ(Livelist("d").total.entries, before);
  ASSERT_OK(pool_->DrainBackground());
  ExpectCondenses(1, 0, 1);
  ExpectEmptyAfterDestroy({"d"});
}

INSTANTIATE_TEST_SUITE_P(All, Races, ::testing::ValuesIn(kPoints), [](const auto& info) {
  const std::string name = info.param.name;
  return name.substr(name.find('.') + 1) + std::to_string(info.param.skip);
});

// ---- Damage -------------------------------------------------------------------------------------

TEST_F(Racing, DamagedListIsDroppedAndRebuilt) {
  ASSERT_OK(pool_.Create("d", 8 << 20).status());
  MakeGarbage("d", 'a');
  ASSERT_OK(pool_.Create("other", 8 << 20).status());
  MakeGarbage("other", 'a');
  pool_.Damage([](WriteTxn& txn) {
    const auto id = *ValueOf(Names::Find(txn, "d"));
    const auto record = ValueOf(LoadRecord<DatasetRecord>(txn, Key(id)));
    const std::vector<Sublist> sublists = ValueOf(LiveList::List(txn, record.livelist));
    ASSERT_OK(txn.Put(Table::kLogs, Key(sublists[0].record.log, uint32_t{0}), "no entries"));
  });
  ASSERT_OK(pool_->DrainBackground());
  EXPECT_EQ(Condenses(CondenseResult::kFailed), 1u);
  EXPECT_GE(Condenses(CondenseResult::kCompleted), 1u);  // the other list, all the same
  EXPECT_EQ(pool_->stats().livelist_dropped[DropReason::kDamaged], 1u);
  EXPECT_EQ(pool_->stats().livelist_rebuilds[RebuildResult::kCompleted], 1u);
  EXPECT_EQ(pool_->stats().alarms[Alarm::kLivelistDamaged], 0u);
  ASSERT_OK(pool_.Destroy("d").status());
  ExpectEmptyAfterDestroy({"other"});
}

}  // namespace
}  // namespace cowshed::engine

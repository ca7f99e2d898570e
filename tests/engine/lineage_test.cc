// SPDX-License-Identifier: Apache-2.0
//
// Promote, rollback and long lineages keep livelists exact: whatever they moved, everything is
// destroyed by its list, and comes back to the last sector. Cases that OpenZFS tests for its
// livelists (where a promote drops them), for promote, and for deeply nested clones are among them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "engine/base/failpoints.h"
#include "engine/names.h"
#include "engine/store/records.h"
#include "tests/support/temp_pool.h"
#include "tests/support/testing.h"

namespace cowshed::engine {
namespace {

constexpr uint64_t kBlock = 4096;

class LineageTest : public ::testing::Test {
 protected:
  LineageTest()
      : pool_([](PoolOptions* options) {
          options->capacity_bytes = uint64_t{256} << 20;
          options->background_work = false;
          options->livelist_max_entries = 20;
        }) {}
  void SetUp() override { empty_bytes_ = pool_->space().allocated_bytes; }
  void TearDown() override { Failpoints::DisarmAll(); }

  static std::string Fill(char byte, uint64_t blocks) { return std::string(blocks * kBlock, byte); }
  void WriteAndFlush(const std::string& name, uint64_t block, const std::string& data) {
    ASSERT_OK(pool_.Write(name, block * kBlock, data));
    ASSERT_OK(pool_.Flush(name).status());
  }
  std::string ReadBlock(const std::string& name, uint64_t block) {
    return ValueOf(pool_.Read(name, block * kBlock, 1));
  }
  void ExpectWhole(const std::string& name) {
    const LivelistInfo list = ValueOf(pool_->GetLivelist(name, 0, 1000));
    EXPECT_EQ(list.state, LivelistState::kWhole) << name;
    EXPECT_EQ(list.total.bytes, ValueOf(pool_->GetDataset(name)).used_bytes) << name;
  }
  uint64_t Destroyed(DestroyMethod method) { return pool_->stats().destroy_methods[method]; }
  // All that there is goes, by livelists alone.
  void DestroyAll(const std::vector<std::string>& names) {
    const uint64_t before = Destroyed(DestroyMethod::kLivelist);
    DestroyDatasetsArgs args;
    args.names = names;
    args.recursive = true;
    ASSERT_OK(pool_.Call(&Pool::DestroyDatasets, args).status());
    pool_.ExpectClean();
    EXPECT_EQ(Destroyed(DestroyMethod::kLivelist) - before, names.size());
    EXPECT_EQ(Destroyed(DestroyMethod::kTreeWalk), 0u);
    EXPECT_EQ(pool_->space().allocated_bytes, empty_bytes_);
  }
  // Every dataset's list is lost and rebuilt.
  void RebuildAll(const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      ASSERT_OK(Failpoints::Arm("livelist.damaged=true:count=1"));
      WriteAndFlush(name, 200, Fill('x', 1));
      Failpoints::Disarm("livelist.damaged");
    }
    pool_.ExpectClean();
    EXPECT_EQ(pool_->stats().livelist_rebuilds[RebuildResult::kCompleted], names.size());
  }
  // d, written in separate txgs with snapshots 1, 2, 3 in between; c is a clone of d@2.
  void MakeParentAndClone() {
    ASSERT_OK(pool_.Create("d").status());
    for (int i = 1; i <= 3; ++i) {
      WriteAndFlush("d", static_cast<uint64_t>(i) * 10, Fill(static_cast<char>('a' + i), 20));
      WriteAndFlush("d", static_cast<uint64_t>(i) * 10 + 5, Fill('+', 5));
      ASSERT_OK(pool_.Snapshot("d@" + std::to_string(i)).status());
    }
    WriteAndFlush("d", 15, Fill('D', 20));
    ASSERT_OK(pool_.Clone("d@2", "c").status());
    WriteAndFlush("c", 12, Fill('C', 30));
    WriteAndFlush("c", 20, Fill('c', 10));
  }

  TempPool pool_;
  uint64_t empty_bytes_ = 0;
};

// A fresh clone has a list, if an empty one; so have several clones of one snapshot.
TEST_F(LineageTest, ClonesWithAndWithoutWritesGoByTheirLists) {
  MakeParentAndClone();
  const std::vector<std::string> clones = {"empty1", "empty2", "full1", "full2"};
  for (const std::string& name : clones) {
    ASSERT_OK(pool_.Clone("d@2", name).status());
    ExpectWhole(name);
    if (name[0] == 'e') continue;
    for (uint64_t file = 0; file < 3; ++file) WriteAndFlush(name, file * 10, Fill('f', 10));
    ASSERT_OK(pool_.Discard(name, 0, 20 * kBlock));
  }
  for (const std::string& name : clones) ASSERT_OK(pool_.Destroy(name).status());
  ASSERT_OK(pool_->DrainBackground());
  EXPECT_EQ(Destroyed(DestroyMethod::kLivelist), 4u);
  DestroyAll({"c", "d"});
}

TEST_F(LineageTest, PromotedCloneAndItsFormerParentGoByTheirLists) {
  for (const bool rebuilt : {false, true}) {
    for (const bool parent_first : {false, true}) {
      pool_.Reopen();
      MakeParentAndClone();
      if (rebuilt) RebuildAll({"c", "d"});
      ASSERT_OK(pool_.Promote("c").status());
      pool_.ExpectClean();
      ExpectWhole("c");
      ExpectWhole("d");
      EXPECT_EQ(ValueOf(pool_->GetDataset("c")).snapshot_count, 2u);
      EXPECT_EQ(ValueOf(pool_->GetDataset("d")).snapshot_count, 1u);
      EXPECT_EQ(ValueOf(pool_->GetDataset("d")).origin, "c@2");
      EXPECT_EQ(ReadBlock("d", 20), "D");
      EXPECT_EQ(ReadBlock("c", 20), "c");
      if (parent_first) {
        ASSERT_OK(pool_.Destroy("d", /*recursive=*/true).status());
        pool_.ExpectClean();
        DestroyAll({"c"});
      } else {
        DestroyAll({"c", "d"});
      }
    }
  }
}

// A promote and one back leave everything as it was.
TEST_F(LineageTest, PromoteThereAndBack) {
  MakeParentAndClone();
  const DatasetInfo c = ValueOf(pool_->GetDataset("c"));
  const DatasetInfo d = ValueOf(pool_->GetDataset("d"));
  ASSERT_OK(pool_.Promote("c").status());
  ASSERT_OK(pool_.Promote("d").status());
  pool_.ExpectClean();
  EXPECT_EQ(ValueOf(pool_->GetDataset("c")).used_bytes, c.used_bytes);
  EXPECT_EQ(ValueOf(pool_->GetDataset("d")).used_bytes, d.used_bytes);
  EXPECT_EQ(ValueOf(pool_->GetDataset("c")).origin, "d@2");
  EXPECT_EQ(ValueOf(pool_->GetDataset("d")).snapshot_count, 3u);
  DestroyAll({"c", "d"});
}

// OpenZFS drops both lists here; the middle clone is then destroyed under a full audit.
TEST_F(LineageTest, PromoteOfACloneOfAClone) {
  for (const bool rebuilt : {false, true}) {
    pool_.Reopen();
    MakeParentAndClone();
    ASSERT_OK(pool_.Snapshot("c@s").status());
    WriteAndFlush("c", 40, Fill('m', 10));
    ASSERT_OK(pool_.Clone("c@s", "e").status());
    WriteAndFlush("e", 14, Fill('e', 20));
    if (rebuilt) RebuildAll({"c", "d", "e"});
    ASSERT_OK(pool_.Promote("e").status());  // before c: e takes over c's origin
    pool_.ExpectClean();
    ExpectWhole("c");
    ExpectWhole("e");
    EXPECT_EQ(ValueOf(pool_->GetDataset("e")).origin, "d@2");
    EXPECT_EQ(ValueOf(pool_->GetDataset("c")).origin, "e@s");
    ASSERT_OK(pool_.Promote("e").status());  // and then d's part
    pool_.ExpectClean();
    for (const char* name : {"c", "d", "e"}) ExpectWhole(name);
    EXPECT_EQ(ValueOf(pool_->GetDataset("e")).origin, "");
    ASSERT_OK(pool_.Destroy("c").status());
    pool_.ExpectClean();
    EXPECT_EQ(ReadBlock("e", 14), "e");
    EXPECT_EQ(ReadBlock("e", 35), ReadBlock("e@s", 35));
    EXPECT_EQ(Destroyed(DestroyMethod::kTreeWalk), 0u);
    DestroyAll({"d", "e"});
  }
}

TEST_F(LineageTest, RolledBackDatasetGoesByItsList) {
  for (const bool rebuilt : {false, true}) {
    pool_.Reopen();
    MakeParentAndClone();
    if (rebuilt) RebuildAll({"c", "d"});
    ASSERT_OK(pool_.Rollback("d").status());
    ASSERT_OK(pool_.ResetToOrigin("c").status());
    pool_.ExpectClean();
    // The parts rolled back went by their lists, too.
    EXPECT_EQ(Destroyed(DestroyMethod::kTreeWalk), 0u);
    ExpectWhole("c");
    ExpectWhole("d");
    EXPECT_EQ(ReadBlock("c", 20), "c");
    WriteAndFlush("c", 0, Fill('n', 20));
    WriteAndFlush("d", 0, Fill('n', 20));
    RollbackDatasetArgs args;
    args.name = "d";
    args.snapshot = "2";
    args.destroy_newer = true;
    ASSERT_OK(pool_.Call(&Pool::RollbackDataset, args).status());
    pool_.ExpectClean();
    DestroyAll({"c", "d"});
  }
}

// Bug: a rollback that took newer snapshots along and whose list was damaged walked the head's tree
// only, and stalled on what those snapshots had held.
TEST_F(LineageTest, RollbackOverNewerSnapshotsFallsBackToAllTrees) {
  MakeParentAndClone();
  ASSERT_OK(pool_.Destroy("c").status());
  pool_.ExpectClean();
  ASSERT_OK(Failpoints::Arm("reclaim.verify=error"));
  RollbackDatasetArgs args;
  args.name = "d";
  args.snapshot = "1";
  args.destroy_newer = true;
  ASSERT_OK(pool_.Call(&Pool::RollbackDataset, args).status());
  EXPECT_TRUE(ValueOf(pool_->Check()).ok());
  pool_.ExpectClean();
  EXPECT_EQ(Destroyed(DestroyMethod::kTreeWalk), 1u);
  EXPECT_EQ(pool_->stats().alarms[Alarm::kReclaimStalled], 0u);
  Failpoints::DisarmAll();
  ASSERT_OK(pool_.Destroy("d", /*recursive=*/true).status());
  pool_.ExpectClean();
  EXPECT_EQ(pool_->space().allocated_bytes, empty_bytes_);
}

// A chain in which each clone is promoted before its parent goes: rename, promote, destroy.
TEST_F(LineageTest, DeeplyNestedClonesPromotedOneByOne) {
  constexpr int kDepth = 250;
  ASSERT_OK(pool_.Create("c0").status());
  for (int i = 0; i < kDepth; ++i) {
    const std::string name = "c" + std::to_string(i);
    WriteAndFlush(name, static_cast<uint64_t>(i) % 100, Fill('a', 2));
    ASSERT_OK(pool_.Snapshot(name + "@s").status());
    ASSERT_OK(pool_.Clone(name + "@s", "c" + std::to_string(i + 1)).status());
  }
  for (int i = 0; i < kDepth; ++i) {
    const std::string name = "c" + std::to_string(i);
    ASSERT_OK(pool_.Rename(name + "@s", "s" + std::to_string(i)).status());
    ASSERT_OK(pool_.Promote("c" + std::to_string(i + 1)).status());
    ASSERT_OK(pool_.Destroy(name).status());
  }
  pool_.ExpectClean();
  const std::string last = "c" + std::to_string(kDepth);
  EXPECT_EQ(ValueOf(pool_->GetDataset(last)).snapshot_count, static_cast<uint64_t>(kDepth));
  EXPECT_EQ(Destroyed(DestroyMethod::kTreeWalk), 0u);
  DestroyAll({last});
}

class NestedTest : public LineageTest {
 protected:
  static constexpr int kDepth = 1000;
  static std::string NameOf(int i) { return "c" + std::to_string(i); }
  // A clone of a snapshot of a clone of ..., each of which has killed a part of what is below it.
  void MakeNested() {
    ASSERT_OK(pool_.Create(NameOf(0)).status());
    for (int i = 0; i < kDepth; ++i) {
      ASSERT_OK(pool_.Write(NameOf(i), (i % 50) * kBlock, Fill('a', 3)));
      ASSERT_OK(pool_.Snapshot(NameOf(i) + "@s").status());
      ASSERT_OK(pool_.Write(NameOf(i), (i % 50) * kBlock, Fill('b', 1)));
      ASSERT_OK(pool_.Clone(NameOf(i) + "@s", NameOf(i + 1)).status());
    }
  }
  static double SecondsSince(std::chrono::steady_clock::time_point begin) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
};

TEST_F(NestedTest, GoByCascade) {
  MakeNested();
  const Outcome outcome = ValueOf(pool_.Destroy(NameOf(0), /*recursive=*/true, /*cascade=*/true));
  EXPECT_EQ(outcome.count, static_cast<uint64_t>(kDepth) + 1);
  pool_.ExpectClean();
  EXPECT_EQ(Destroyed(DestroyMethod::kTreeWalk), 0u);
  EXPECT_EQ(pool_->space().allocated_bytes, empty_bytes_);
}

// From the top down, one call each: the last hundred must not take longer than the first ones.
TEST_F(NestedTest, GoOneByOne) {
  MakeNested();
  double deep_seconds = 0;
  double shallow_seconds = 0;
  for (int i = kDepth; i >= 0; --i) {
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_OK(pool_.Destroy(NameOf(i), /*recursive=*/true).status());
    ASSERT_OK(pool_->DrainBackground());
    if (i > kDepth - 100) deep_seconds += SecondsSince(begin);
    if (i < 100) shallow_seconds += SecondsSince(begin);
  }
  RecordProperty("deep_ms", static_cast<int>(deep_seconds * 1000));
  RecordProperty("shallow_ms", static_cast<int>(shallow_seconds * 1000));
  EXPECT_LT(deep_seconds, 10 * shallow_seconds + 1);
  EXPECT_LT(shallow_seconds, 10 * deep_seconds + 1);
  pool_.ExpectClean();
  EXPECT_EQ(Destroyed(DestroyMethod::kTreeWalk), 0u);
  EXPECT_EQ(Destroyed(DestroyMethod::kLivelist), static_cast<uint64_t>(kDepth) + 1);
  EXPECT_EQ(pool_->space().allocated_bytes, empty_bytes_);
}

TEST_F(NestedTest, PromoteAndRebuildAtTheTop) {
  MakeNested();
  WriteAndFlush(NameOf(kDepth), 0, Fill('t', 60));
  RebuildAll({NameOf(kDepth), NameOf(kDepth - 1)});
  ASSERT_OK(pool_.Promote(NameOf(kDepth)).status());
  pool_.ExpectClean();
  ExpectWhole(NameOf(kDepth));
  ExpectWhole(NameOf(kDepth - 1));
  EXPECT_EQ(ReadBlock(NameOf(kDepth), 30), "t");
  ASSERT_OK(pool_.Destroy(NameOf(0), /*recursive=*/true, /*cascade=*/true).status());
  pool_.ExpectClean();
  EXPECT_EQ(pool_->space().allocated_bytes, empty_bytes_);
}

// A rollback looks at nothing older than its target, however many snapshots there are.
TEST_F(LineageTest, RollbackCostsTheSameWithManySnapshots) {
  ASSERT_OK(pool_.Create("d").status());
  const auto rollbacks = [&] {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < 50; ++i) {
      EXPECT_OK(pool_.Write("d", 0, Fill('r', 1)));
      EXPECT_OK(pool_.Rollback("d").status());
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  ASSERT_OK(pool_.Snapshot("d@s0").status());
  const double few = rollbacks();
  for (int i = 1; i < 5000; ++i) {
    ASSERT_OK(pool_.Snapshot("d@s" + std::to_string(i)).status());
  }
  const double many = rollbacks();
  RecordProperty("few_us", static_cast<int>(few * 1e6));
  RecordProperty("many_us", static_cast<int>(many * 1e6));
  EXPECT_LT(many, 3 * few + 0.1);
}

}  // namespace
}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
#include "engine/tree/condense_policy.h"

#include <gtest/gtest.h>

#include <random>

namespace cowshed::engine {
namespace {

constexpr uint32_t kBlockSectors = 4;
constexpr LiveListOptions kOptions = {
    .max_entries = 1000, .condense_min_entries = 10, .condense_growth_percent = 85};

SublistLoad Load(uint64_t entries, uint64_t live_blocks, uint32_t condensed = 0) {
  SublistLoad load;
  load.sublist.record.entries = entries;
  load.sublist.record.allocated.data_sectors = live_blocks * kBlockSectors;
  load.sublist.record.condensed_entries = condensed;
  return load;
}
bool IsWorth(const SublistLoad& load) { return IsWorthCondensing(load, kBlockSectors, kOptions); }
std::optional<Neighbours> Merge(const std::vector<SublistLoad>& stretch) {
  return FindMerge(stretch, kBlockSectors, kOptions);
}

TEST(CondensePolicyTest, WorthItAtTwiceTheLiveBlocks) {
  EXPECT_FALSE(IsWorth(Load(200, 100, 150)));
  EXPECT_TRUE(IsWorth(Load(201, 100, 150)));
  EXPECT_TRUE(IsWorth(Load(20, 0, 1)));
}

TEST(CondensePolicyTest, WorthItWhenEnoughHasCome) {
  EXPECT_FALSE(IsWorth(Load(184, 10000, 100)));
  EXPECT_TRUE(IsWorth(Load(185, 10000, 100)));
}

TEST(CondensePolicyTest, LittleIsNotWorthIt) {
  EXPECT_FALSE(IsWorth(Load(9, 0)));
  EXPECT_FALSE(IsWorth(Load(109, 0, 100)));
  SublistLoad attached = Load(5, 0);
  attached.attached_entries = 5;
  EXPECT_TRUE(IsWorth(attached));
}

TEST(CondensePolicyTest, LiveBlocksCountNodesAndParts) {
  SublistRecord record;
  record.allocated = {.data_sectors = 41, .node_sectors = 5};
  record.freed = {.data_sectors = 0, .node_sectors = 2};
  EXPECT_EQ(LiveBlocks(record, kBlockSectors), 11u + 3);
  record.freed.data_sectors = 42;  // damaged
  EXPECT_EQ(LiveBlocks(record, kBlockSectors), 0u);
}

TEST(CondensePolicyTest, MergesBelowHalfTheLimit) {
  const auto merge = Merge({Load(300, 300), Load(100, 100), Load(100, 100), Load(5, 301)});
  ASSERT_TRUE(merge.has_value());
  EXPECT_EQ(merge->first, 1u);  // 300 and 100 are too unlike, and all four too many
  EXPECT_EQ(merge->count, 2u);
  EXPECT_FALSE(Merge({Load(300, 250), Load(300, 251)}).has_value());
  EXPECT_FALSE(Merge({Load(300, 10)}).has_value());
}

TEST(CondensePolicyTest, ALongOneIsNotRewrittenForAShortOne) {
  EXPECT_FALSE(Merge({Load(400, 100), Load(200, 10)}).has_value());
  const auto merge = Merge({Load(400, 100), Load(200, 10), Load(200, 10)});
  ASSERT_TRUE(merge.has_value());
  EXPECT_EQ(merge->first, 0u);
  EXPECT_EQ(merge->count, 3u);
}

// Whatever the lengths, what is left unmerged is few, and each entry moved few times.
TEST(CondensePolicyTest, MergingIsBoundedAndLeavesFew) {
  std::mt19937_64 random(1);
  std::vector<SublistLoad> stretch;
  uint64_t came = 0;
  uint64_t moved = 0;
  for (int i = 0; i < 5000; ++i) {
    const uint64_t entries = random() % 4 == 0 ? random() % 200 : random() % 12;
    came += std::max(entries, kOptions.condense_min_entries);
    stretch.push_back(Load(entries, entries / 2));
    while (const auto merge = Merge(stretch)) {
      uint64_t all = 0;
      uint64_t blocks = 0;
      for (size_t j = merge->first; j < merge->first + merge->count; ++j) {
        all += stretch[j].entries();
        blocks += LiveBlocks(stretch[j].sublist.record, kBlockSectors);
        moved += stretch[j].entries();
      }
      const auto begin = stretch.begin() + static_cast<ptrdiff_t>(merge->first);
      stretch.erase(begin + 1, begin + static_cast<ptrdiff_t>(merge->count));
      stretch[merge->first] = Load(all, blocks);
    }
  }
  EXPECT_LE(moved, 7 * came);  // log2(1000 / 10)
  uint64_t blocks = 0;
  for (const SublistLoad& load : stretch) blocks += LiveBlocks(load.sublist.record, kBlockSectors);
  EXPECT_LE(stretch.size(), 4 * (blocks / (kOptions.max_entries / 2) + 1));
}

TEST(CondensePolicyTest, EmptyOnesAreDroppedButForTheNewestBehindAFullOne) {
  using Indexes = std::vector<size_t>;
  const auto find = [](const std::vector<SublistLoad>& stretch, bool has_newest) {
    return FindEmpty(stretch, has_newest, kBlockSectors, kOptions);
  };
  EXPECT_EQ(find({Load(0, 0), Load(5, 5)}, true), Indexes{0});
  EXPECT_EQ(find({Load(5, 5), Load(0, 0), Load(0, 0), Load(5, 5)}, true), (Indexes{1, 2}));
  EXPECT_EQ(find({Load(1001, 1001), Load(0, 0)}, true), Indexes{});
  EXPECT_EQ(find({Load(1001, 1001), Load(0, 0)}, false), Indexes{1});
  EXPECT_EQ(find({Load(500, 500), Load(0, 0)}, true), Indexes{1});
  EXPECT_EQ(find({Load(0, 0)}, true), Indexes{});
  SublistLoad attached = Load(0, 0);
  attached.sublist.record.attached_logs = 1;
  EXPECT_EQ(find({Load(5, 5), attached}, false), Indexes{});
}

TEST(CondensePolicyTest, CostlyWhenItTakesMorePagesThanNodes) {
  const auto list = [](uint64_t entries, uint64_t nodes) {
    Sublist sublist;
    sublist.record.entries = entries;
    sublist.record.allocated.node_sectors = nodes;
    return std::vector<Sublist>{sublist, sublist};
  };
  // A full leaf has 128 blocks; with its node they take less than a page even if each is a run.
  EXPECT_FALSE(IsCostly(list(129 * 1000, 1000)));
  EXPECT_FALSE(IsCostly(list(PointerLog::kEntriesPerChunk * 1000, 1000)));
  EXPECT_TRUE(IsCostly(list(PointerLog::kEntriesPerChunk * 1000 + 1, 1000)));
  // Dropping a short one gains nothing.
  EXPECT_FALSE(IsCostly(list(PointerLog::kEntriesPerChunk * kCostlyMinChunks / 2, 0)));
  EXPECT_FALSE(IsCostly({}));
}

}  // namespace
}  // namespace cowshed::engine

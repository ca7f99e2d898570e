// SPDX-License-Identifier: Apache-2.0
#include "engine/tree/pointer_changes.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "engine/base/failpoints.h"
#include "tests/engine/tree/meta_fixture.h"

namespace cowshed::engine {
namespace {

constexpr Txg kNow = 10;
constexpr Txg kPreviousSnapshot = 5;

BlockPtr Pointer(uint64_t address, uint16_t sectors, Txg birth, BlockKind kind = BlockKind::kData) {
  BlockPtr pointer;
  pointer.address = address;
  pointer.birth = birth;
  pointer.sectors = sectors;
  pointer.kind = kind;
  pointer.level = kind == BlockKind::kNode ? 1 : 0;
  return pointer;
}

engine::Run RunOf(const BlockPtr& pointer) {
  return {.address = pointer.address,
          .birth = pointer.birth,
          .sectors = pointer.sectors,
          .kind = pointer.kind};
}

LogEntry Entry(LogOp op, const BlockPtr& pointer) { return {.op = op, .run = RunOf(pointer)}; }

void Bear(PointerChanges& changes, const BlockPtr& pointer) {
  changes.Born(pointer, Runs{RunOf(pointer)});
}
void Kill(PointerChanges& changes, const BlockPtr& pointer) {
  changes.Killed(pointer, Runs{RunOf(pointer)});
}

class PointerChangesTest : public ::testing::Test {
 protected:
  void TearDown() override { Failpoints::DisarmAll(); }
  PointerChanges changes_{kNow, kPreviousSnapshot};
};

TEST_F(PointerChangesTest, NothingIsEmpty) {
  changes_.Settle();
  EXPECT_TRUE(changes_.empty());
  EXPECT_TRUE(changes_.livelist_entries().empty());
}

TEST_F(PointerChangesTest, BirthsBecomeAllocsInOrderJoined) {
  Bear(changes_, Pointer(200, 4, kNow));
  Bear(changes_, Pointer(104, 4, kNow));
  Bear(changes_, Pointer(100, 4, kNow));
  Bear(changes_, Pointer(108, 1, kNow, BlockKind::kNode));
  changes_.Settle();
  EXPECT_EQ(changes_.livelist_entries(),
            (std::vector<LogEntry>{Entry(LogOp::kAlloc, Pointer(100, 8, kNow)),
                                   Entry(LogOp::kAlloc, Pointer(108, 1, kNow, BlockKind::kNode)),
                                   Entry(LogOp::kAlloc, Pointer(200, 4, kNow))}));
  EXPECT_EQ(changes_.born_sums(), (SectorSums{.data_sectors = 12, .node_sectors = 1}));
  EXPECT_EQ(changes_.data_blocks_delta(), 3);
  EXPECT_FALSE(changes_.empty());
}

TEST_F(PointerChangesTest, WhatOnlyTheHeadSawIsFreedAndTheRestIsDead) {
  Kill(changes_, Pointer(100, 4, kPreviousSnapshot + 1));
  Kill(changes_, Pointer(200, 4, kPreviousSnapshot));
  Kill(changes_, Pointer(300, 1, kPreviousSnapshot - 1, BlockKind::kNode));
  changes_.Settle();
  EXPECT_EQ(changes_.livelist_entries(),
            (std::vector<LogEntry>{Entry(LogOp::kFree, Pointer(100, 4, kPreviousSnapshot + 1))}));
  EXPECT_EQ(changes_.freed(), (Runs{RunOf(Pointer(100, 4, kPreviousSnapshot + 1))}));
  EXPECT_EQ(changes_.dead(), (Runs{RunOf(Pointer(300, 1, kPreviousSnapshot - 1, BlockKind::kNode)),
                                   RunOf(Pointer(200, 4, kPreviousSnapshot))}));
  EXPECT_EQ(changes_.killed_sums().total(), 9u);
  EXPECT_EQ(changes_.freed_sums().total(), 4u);
  EXPECT_EQ(changes_.data_blocks_delta(), -2);
}

TEST_F(PointerChangesTest, BornAndKilledAtOnceIsFreedAndNeverLogged) {
  Bear(changes_, Pointer(100, 4, kNow));
  Bear(changes_, Pointer(104, 4, kNow));
  Bear(changes_, Pointer(108, 4, kNow));
  Kill(changes_, Pointer(104, 4, kNow));
  changes_.Settle();
  EXPECT_EQ(changes_.livelist_entries(),
            (std::vector<LogEntry>{Entry(LogOp::kAlloc, Pointer(100, 4, kNow)),
                                   Entry(LogOp::kAlloc, Pointer(108, 4, kNow))}));
  EXPECT_EQ(changes_.freed(), (Runs{RunOf(Pointer(104, 4, kNow))}));
  EXPECT_EQ(changes_.born_sums().total(), 12u);
  EXPECT_EQ(changes_.data_blocks_delta(), 2);
}

TEST_F(PointerChangesTest, AKillOfWhatAnEarlierPassOfTheTxgBoreIsLogged) {
  Bear(changes_, Pointer(104, 4, kNow));
  Kill(changes_, Pointer(100, 4, kNow));
  changes_.Settle();
  EXPECT_EQ(changes_.livelist_entries(),
            (std::vector<LogEntry>{Entry(LogOp::kAlloc, Pointer(104, 4, kNow)),
                                   Entry(LogOp::kFree, Pointer(100, 4, kNow))}));
}

TEST_F(PointerChangesTest, AllPiecesOfAGangAreBornAndKilled) {
  const Runs pieces = {RunOf(Pointer(100, 1, 7)), RunOf(Pointer(300, 3, 7)),
                       RunOf(Pointer(200, 1, 7))};
  changes_.Killed(Pointer(100, 4, 7), pieces);
  changes_.Settle();
  EXPECT_EQ(changes_.freed().size(), 3u);
  EXPECT_EQ(changes_.freed_sums().data_sectors, 5u);
  EXPECT_EQ(changes_.data_blocks_delta(), -1);
}

TEST_F(PointerChangesTest, TheMutationsBreakTheRules) {
  ASSERT_OK(Failpoints::Arm("mutate.killed_frees_snapshotted=true"));
  Kill(changes_, Pointer(200, 4, kPreviousSnapshot));
  Failpoints::DisarmAll();
  ASSERT_OK(Failpoints::Arm("mutate.free_not_logged=true"));
  Kill(changes_, Pointer(100, 4, kPreviousSnapshot + 1));
  changes_.Settle();
  EXPECT_TRUE(changes_.dead().empty());
  EXPECT_EQ(changes_.freed().size(), 2u);
  EXPECT_TRUE(changes_.livelist_entries().empty());
}

// Sectors of runs, each at most once.
std::set<std::pair<uint64_t, Txg>> Sectors(const Runs& runs) {
  std::set<std::pair<uint64_t, Txg>> sectors;
  for (const engine::Run& run : runs) {
    for (uint64_t address = run.address; address < run.end(); ++address) {
      EXPECT_TRUE(sectors.insert({address, run.birth}).second);
    }
  }
  return sectors;
}

TEST_F(PointerChangesTest, RandomBirthsAndKillsMatchASetOfSectors) {
  for (const uint64_t seed : TestSeeds(200)) {
    SCOPED_TRACE(seed);
    Random random(seed);
    PointerChanges changes(kNow, kPreviousSnapshot);
    std::vector<BlockPtr> living;
    Runs logged_allocs, logged_frees, freed, dead;
    uint64_t address = 100;
    const auto place = [&](Txg birth) {
      living.push_back(Pointer(address, static_cast<uint16_t>(random.Between(1, 8)), birth));
      address += living.back().sectors + random.Below(2);
    };
    for (int i = 0; i < 10; ++i) {
      place(random.Between(1, kNow - 1));
    }
    for (uint64_t i = random.Below(40); i > 0; --i) {
      if (random.OneIn(2) || living.empty()) {
        place(kNow);
        Bear(changes, living.back());
        continue;
      }
      std::swap(living[random.Below(living.size())], living.back());
      const BlockPtr killed = living.back();
      living.pop_back();
      Kill(changes, killed);
      (killed.birth > kPreviousSnapshot ? freed : dead).push_back(RunOf(killed));
      if (killed.birth > kPreviousSnapshot && killed.birth < kNow) {
        logged_frees.push_back(RunOf(killed));
      }
    }
    for (const BlockPtr& pointer : living) {
      if (pointer.birth == kNow) {
        logged_allocs.push_back(RunOf(pointer));
      }
    }
    changes.Settle();
    Runs allocs, frees;
    for (const LogEntry& entry : changes.livelist_entries()) {
      (entry.op == LogOp::kAlloc ? allocs : frees).push_back(entry.run);
    }
    EXPECT_EQ(Sectors(allocs), Sectors(logged_allocs));
    EXPECT_EQ(Sectors(frees), Sectors(logged_frees));
    EXPECT_EQ(Sectors(changes.freed()), Sectors(freed));
    EXPECT_EQ(Sectors(changes.dead()), Sectors(dead));
  }
}

}  // namespace
}  // namespace cowshed::engine

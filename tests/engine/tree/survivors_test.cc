// SPDX-License-Identifier: Apache-2.0
#include "engine/tree/survivors.h"

#include <algorithm>
#include <set>
#include <utility>

#include "engine/tree/live_list.h"
#include "tests/engine/tree/log_entries.h"
#include "tests/engine/tree/meta_fixture.h"

namespace cowshed::engine {
namespace {

Runs Survivors(std::vector<LogEntry> entries) { return ValueOf(LiveList::Survivors(entries)); }
bool IsDamaged(std::vector<LogEntry> entries) {
  return absl::IsDataLoss(LiveList::Survivors(entries).status());
}

TEST(SurvivorsTest, AllocsWithoutTheirFrees) {
  EXPECT_TRUE(Survivors({}).empty());
  EXPECT_EQ(Survivors({Alloc(100, 10, 5), Free(102, 3, 5)}),
            (Runs{Alloc(100, 2, 5).run, Alloc(105, 5, 5).run}));
  EXPECT_TRUE(Survivors({Alloc(100, 10, 5), Free(105, 5, 5), Free(100, 5, 5)}).empty());
}

TEST(SurvivorsTest, AnAddressUsedAgainIsAnotherBlock) {
  EXPECT_EQ(Survivors({Alloc(100, 4, 5), Free(100, 4, 5), Alloc(100, 4, 9)}),
            (Runs{Alloc(100, 4, 9).run}));
}

TEST(SurvivorsTest, AFreeMaySpanAllocsThatTouch) {
  EXPECT_EQ(Survivors({Alloc(100, 4, 5), Alloc(104, 4, 5), Alloc(108, 4, 5), Free(102, 8, 5)}),
            (Runs{Alloc(100, 2, 5).run, Alloc(110, 2, 5).run}));
}

TEST(SurvivorsTest, ComeInAddressOrderJoined) {
  EXPECT_EQ(Survivors({Alloc(200, 4, 5), Alloc(100, 4, 6), Alloc(104, 4, 6), Alloc(108, 4, 5),
                       Alloc(112, 1, 5, BlockKind::kNode)}),
            (Runs{Alloc(100, 8, 6).run, Alloc(108, 4, 5).run,
                  Alloc(112, 1, 5, BlockKind::kNode).run, Alloc(200, 4, 5).run}));
}

TEST(SurvivorsTest, DamageIsDataLoss) {
  EXPECT_TRUE(IsDamaged({Free(100, 4, 5)}));
  EXPECT_TRUE(IsDamaged({Alloc(100, 4, 5), Free(100, 4, 6)}));
  EXPECT_TRUE(IsDamaged({Alloc(100, 4, 5), Free(100, 4, 4)}));
  EXPECT_TRUE(IsDamaged({Alloc(100, 4, 5), Free(98, 4, 5)}));
  EXPECT_TRUE(IsDamaged({Alloc(100, 4, 5), Free(102, 4, 5)}));
  EXPECT_TRUE(IsDamaged({Alloc(100, 4, 5), Alloc(108, 4, 5), Free(100, 12, 5)}));
  EXPECT_TRUE(IsDamaged({Alloc(100, 4, 5), Free(100, 4, 5), Free(100, 4, 5)}));
  EXPECT_TRUE(IsDamaged({Alloc(100, 8, 5), Free(100, 4, 5), Free(103, 4, 5)}));
  EXPECT_TRUE(IsDamaged({Alloc(100, 4, 5), Alloc(103, 4, 5)}));
  EXPECT_TRUE(IsDamaged({Alloc(100, 4, 5), Free(100, 4, 5, BlockKind::kNode)}));
  EXPECT_TRUE(IsDamaged({Alloc(100, 4, 5), Alloc(102, 4, 6)}));
}

// A random history of runs, and the sectors that survive it.
struct History {
  std::vector<LogEntry> entries;
  std::set<Sector> live;
};

History RandomHistory(Random& random) {
  History history;
  const uint64_t births = random.Between(1, 6);
  uint64_t address = 100;
  for (Txg birth = 1; birth <= births; ++birth) {
    for (uint64_t i = random.Below(20); i > 0; --i) {
      const auto sectors = static_cast<uint32_t>(random.Between(1, 20));
      const BlockKind kind = random.OneIn(4) ? BlockKind::kNode : BlockKind::kData;
      history.entries.push_back(Alloc(address, sectors, birth, kind));
      AddSectors(history.entries.back().run, &history.live);
      address += sectors + (random.OneIn(2) ? random.Below(4) : 0);
    }
  }
  // Frees stretches of neighbouring sectors, over the borders of ALLOCs where those touch.
  for (uint64_t i = random.Below(40); i > 0 && !history.live.empty(); --i) {
    auto first =
        std::next(history.live.begin(), static_cast<ptrdiff_t>(random.Below(history.live.size())));
    const auto [begin, birth, kind] = *first;
    engine::Run run = {.address = begin, .birth = birth, .sectors = 0, .kind = kind};
    const uint64_t most = random.Between(1, 30);
    while (run.sectors < most && history.live.erase({run.end(), birth, kind}) == 1) {
      ++run.sectors;
    }
    history.entries.push_back({.op = LogOp::kFree, .run = run});
  }
  std::shuffle(history.entries.begin(), history.entries.end(), random.generator());
  return history;
}

TEST(SurvivorsTest, RandomHistoriesMatchAModel) {
  for (const uint64_t seed : TestSeeds(500)) {
    SCOPED_TRACE(seed);
    Random random(seed);
    History history = RandomHistory(random);
    const Runs survivors = Survivors(history.entries);
    EXPECT_EQ(Expand(survivors), history.live);
    for (size_t i = 1; i < survivors.size(); ++i) {
      EXPECT_LE(survivors[i - 1].end(), survivors[i].address);
      engine::Run joined = survivors[i - 1];
      EXPECT_FALSE(Join(&joined, survivors[i]));
    }
    if (history.entries.empty()) {
      continue;
    }
    // An entry that is there twice, or a FREE of something else, never goes unseen.
    const LogEntry any = history.entries[random.Below(history.entries.size())];
    history.entries.push_back(any);
    EXPECT_TRUE(IsDamaged(history.entries));
    history.entries.back() = Free(any.run.address, any.run.sectors, 99);
    EXPECT_TRUE(IsDamaged(history.entries));
  }
}

// Reads a history in windows of so little memory that many are needed; each gives up where the next
// begins.
TEST(SurvivorsTest, WindowsOfLittleMemoryMakeUpTheWhole) {
  uint64_t windows = 0;
  for (const uint64_t seed : TestSeeds(500)) {
    SCOPED_TRACE(seed);
    Random random(seed);
    History history = RandomHistory(random);
    // As a log has them: an ALLOC before its FREE.
    std::stable_partition(history.entries.begin(), history.entries.end(),
                          [](const LogEntry& entry) { return entry.op == LogOp::kAlloc; });
    const uint64_t memory_bytes = SurvivorWindow::kBytesPerEntry * random.Between(1, 60);
    Runs found;
    uint64_t from = random.OneIn(3) ? random.Below(400) : 0;
    std::erase_if(history.live, [&](const Sector& sector) { return std::get<0>(sector) < from; });
    while (from != kEndOfAddresses) {
      SurvivorWindow window(from, memory_bytes, history.entries.size());
      for (const LogEntry& entry : history.entries) {
        ASSERT_OK(window.Add(entry));
      }
      const Runs runs = ValueOf(window.Finish());
      EXPECT_LE(
          runs.size() * SurvivorWindow::kBytesPerEntry,
          std::max(memory_bytes, SurvivorWindow::kMinEntries * SurvivorWindow::kBytesPerEntry));
      for (const engine::Run& run : runs) {
        EXPECT_GE(run.address, from);
        EXPECT_LE(run.end(), window.end_address());
      }
      found.insert(found.end(), runs.begin(), runs.end());
      ASSERT_GT(window.end_address(), from);
      from = window.end_address();
      ++windows;
    }
    EXPECT_EQ(Expand(found), history.live);
  }
  EXPECT_GT(windows, 1000u);
}

// An address that was used again before the attached FREE of its first block is read.
TEST(SurvivorsTest, WindowHoldsSeveralBirthsOfOneAddress) {
  SurvivorWindow window(100, /*memory_bytes=*/1, /*expected_entries=*/0);
  const uint64_t births = SurvivorWindow::kMinEntries * 3;
  for (Txg birth = 1; birth <= births; ++birth) {
    ASSERT_OK(window.Add(Alloc(100, 4, birth)));
  }
  for (Txg birth = 1; birth < births; ++birth) {
    ASSERT_OK(window.Add(Free(100, 4, birth)));
  }
  EXPECT_EQ(ValueOf(window.Finish()), (Runs{Alloc(100, 4, births).run}));
  EXPECT_EQ(window.end_address(), kEndOfAddresses);
}

TEST(SurvivorsTest, WindowFindsDamageWithinItself) {
  SurvivorWindow window(100, /*memory_bytes=*/1, /*expected_entries=*/0);
  ASSERT_OK(window.Add(Free(50, 50, 3)));  // before the window
  ASSERT_OK(window.Add(Alloc(90, 20, 3)));
  ASSERT_OK(window.Add(Free(104, 4, 3)));
  ASSERT_OK(window.Add(Free(106, 2, 3)));
  EXPECT_TRUE(absl::IsDataLoss(window.Finish().status()));
}

}  // namespace
}  // namespace cowshed::engine

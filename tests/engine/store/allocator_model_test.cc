// SPDX-License-Identifier: Apache-2.0
//
// Random allocations, frees, flushes, punches, resizes, failed txgs and restarts, against a model
// that knows each sector by itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "engine/base/strings.h"
#include "tests/engine/store/allocator_fixture.h"

namespace cowshed::engine {
namespace {

// What the allocator must know. Copied to undo a txg.
struct Model {
  uint64_t capacity_sectors = 0;
  std::set<uint64_t> taken;        // referenced
  std::map<uint64_t, Txg> logged;  // in the free log -> txg of the free
  std::set<uint64_t> withheld;     // free, a punch is at work

  bool IsAllocatable(uint64_t sector) const {
    return !taken.contains(sector) && !logged.contains(sector) && !withheld.contains(sector);
  }
  uint64_t available() const {
    return capacity_sectors - taken.size() - logged.size() - withheld.size();
  }
  uint32_t LongestRun() const {
    uint32_t longest = 0;
    uint32_t length = 0;
    for (uint64_t sector = 0; sector < capacity_sectors; ++sector) {
      length = IsAllocatable(sector) ? length + 1 : 0;
      if (sector % kRegionSectors == 0) {
        length = std::min(length, 1u);
      }
      longest = std::max(longest, length);
    }
    return longest;
  }
};

class AllocatorModel {
 public:
  using Sectors = std::set<uint64_t>;

  explicit AllocatorModel(uint64_t seed)
      : random_(seed),
        fixture_({.free_log_max_runs = static_cast<uint32_t>(seed % 3 == 0 ? 40 : 2000),
                  .regions_cached = static_cast<uint32_t>(1 + seed % 4),
                  .punch_min_sectors = 64}) {
    model_.capacity_sectors = 2 * kRegionSectors + 700;
    for (uint64_t sector = 0; sector < kFirstDataSector; ++sector) {
      model_.taken.insert(sector);
    }
    fixture_.Create(model_.capacity_sectors);
    big_ = seed % 2 == 0;
    tight_ = seed % 4 == 1;
    if (tight_) {
      fixture_.InTxg([this](WriteTxn& txn, Txg txg) {
        while (allocator().available_sectors() > 1000) {
          Take(ValueOf(allocator().Allocate(txn, 32, BlockKind::kData, txg)), txg);
        }
      });
    }
  }

  void RunTxgs(int txgs) {
    for (int i = 0; i < txgs; ++i) {
      committed_ = model_;
      const auto body = [this](WriteTxn& txn, Txg txg) { Change(txn, txg); };
      if (OneIn(6)) {
        fixture_.InFailedTxg(OneIn(2), body);
        // What a flush that failed withheld is in the log again; punches that ended have ended.
        for (const uint64_t sector : ended_) {
          committed_.withheld.erase(sector);
        }
        model_ = committed_;
        std::erase_if(to_punch_,
                      [&](const Run& run) { return !model_.withheld.contains(run.address); });
      } else {
        fixture_.InTxg(body);
      }
      ended_.clear();
      if (OneIn(10)) {
        fixture_.Reopen();
        model_.withheld.clear();
        to_punch_.clear();
      }
      CheckCounters();
      if (OneIn(8) || i == txgs - 1) {
        CheckRecords();
      }
      if (::testing::Test::HasFailure()) {
        return;
      }
    }
  }

  // Frees everything; the pool must be as empty as a new one.
  void Drain() {
    fixture_.InTxg([this](WriteTxn& txn, Txg txg) { FreeAll(txn, txg); });
    allocator().EndPunch(to_punch_);
    model_.withheld.clear();
    while (allocator().free_log_runs() > 0) {
      fixture_.Flush(1);
    }
    model_.logged.clear();
    CheckCounters();
    CheckRecords();
    EXPECT_EQ(fixture_.Records(Table::kFreeLog), 0u);
    EXPECT_EQ(fixture_.Records(Table::kRegions), 1u);
    EXPECT_EQ(allocator().allocated_sectors(), kFirstDataSector);
  }

 private:
  uint64_t Below(uint64_t bound) { return random_() % bound; }
  bool OneIn(uint64_t n) { return Below(n) == 0; }
  Allocator& allocator() { return fixture_.allocator(); }

  void Change(WriteTxn& txn, Txg txg) {
    const uint64_t steps = Below(12);
    for (uint64_t i = 0; i < steps; ++i) {
      switch (Below(10)) {
        case 0:
        case 1:
        case 2:
        case 3:
          AllocateSome(txn, txg);
          break;
        case 4:
        case 5:
          FreeSome(txn, txg);
          break;
        case 6:
          FreeWrongly(txn, txg);
          break;
        case 7:
          FlushSome(txn, txg);
          break;
        case 8:
          EndSomePunches();
          break;
        default:
          if (OneIn(4) && !tight_) {
            ResizePool(txn);
          }
      }
    }
  }

  void Take(const Run& run, Txg txg) {
    EXPECT_EQ(run.birth, txg);
    EXPECT_LE(run.end(), model_.capacity_sectors);
    EXPECT_EQ(RegionOf(run.address), RegionOf(run.end() - 1));
    for (uint64_t sector = run.address; sector < run.end(); ++sector) {
      EXPECT_TRUE(model_.IsAllocatable(sector)) << "sector " << sector << " given twice";
      model_.taken.insert(sector);
    }
  }

  void AllocateSome(WriteTxn& txn, Txg txg) {
    const auto sectors = static_cast<uint32_t>(1 + Below(big_ && OneIn(3) ? 3000 : 32));
    if (OneIn(10)) {
      const auto pieces = allocator().AllocatePieces(txn, sectors, BlockKind::kNode, txg);
      ASSERT_EQ(pieces.ok(), sectors <= model_.available()) << pieces.status();
      if (pieces.ok()) {
        uint64_t sum = 0;
        for (const Run& piece : *pieces) {
          Take(piece, txg);
          sum += piece.sectors;
        }
        EXPECT_EQ(sum, sectors);
      }
      return;
    }
    const auto run = allocator().Allocate(txn, sectors, BlockKind::kData, txg);
    if (run.ok()) {
      EXPECT_EQ(run->sectors, sectors);
      Take(*run, txg);
    } else if (sectors > model_.available()) {
      EXPECT_CODE(run, kResourceExhausted);
    } else {
      EXPECT_CODE(run, kNotFound);
      EXPECT_LT(model_.LongestRun(), sectors);
    }
  }

  // Some taken sectors as runs that may touch and cross regions.
  std::vector<Run> Choose() {
    std::vector<Run> runs;
    uint64_t next = kFirstDataSector;
    const uint64_t count = 1 + Below(tight_ ? 3 : 20);
    const bool scattered = OneIn(2);
    if (!scattered) {
      next += Below(model_.capacity_sectors);
    }
    for (uint64_t i = 0; i < count; ++i) {
      if (scattered) {
        next += Below(model_.capacity_sectors / 8);
      }
      auto it = model_.taken.lower_bound(next);
      if (it == model_.taken.end()) {
        break;
      }
      Run run{.address = *it, .sectors = 1};
      const uint64_t longest = 1 + Below(big_ ? 4000 : 60);
      for (++it; it != model_.taken.end() && *it == run.end() && run.sectors < longest; ++it) {
        ++run.sectors;
      }
      runs.push_back(run);
      next = run.end();
    }
    std::shuffle(runs.begin(), runs.end(), random_);
    return runs;
  }

  void FreeSome(WriteTxn& txn, Txg txg) {
    const std::vector<Run> runs = Choose();
    ASSERT_OK(allocator().Free(txn, txg, runs));
    for (const Run& run : runs) {
      for (uint64_t sector = run.address; sector < run.end(); ++sector) {
        model_.taken.erase(sector);
        model_.logged.emplace(sector, txg);
      }
    }
  }

  void FreeAll(WriteTxn& txn, Txg txg) {
    std::vector<Run> runs;
    for (const uint64_t sector : model_.taken) {
      if (sector < kFirstDataSector) {
        continue;
      }
      if (!runs.empty() && runs.back().end() == sector) {
        ++runs.back().sectors;
      } else {
        runs.push_back({.address = sector, .sectors = 1});
      }
    }
    ASSERT_OK(allocator().Free(txn, txg, runs));
    std::erase_if(model_.taken, [](uint64_t sector) { return sector >= kFirstDataSector; });
    model_.logged.clear();  // Drain() looks at none of them.
  }

  // One sector that must not be freed, hidden among some that may.
  void FreeWrongly(WriteTxn& txn, Txg txg) {
    std::vector<Run> runs = Choose();
    const uint64_t sector = Below(model_.capacity_sectors);
    const bool twice = std::any_of(runs.begin(), runs.end(), [sector](const Run& run) {
      return run.address <= sector && sector < run.end();
    });
    if (model_.taken.contains(sector) && sector >= kFirstDataSector && !twice) {
      return;
    }
    runs.insert(runs.begin() + static_cast<ptrdiff_t>(Below(runs.size() + 1)),
                Run{.address = sector, .sectors = 1});
    EXPECT_CODE(allocator().Free(txn, txg, runs), kDataLoss);
  }

  void FlushSome(WriteTxn& txn, Txg txg) {
    const Txg up_to = txg - 1 - Below(std::min<uint64_t>(txg, 4));
    std::vector<Run> punches;
    const bool punch = OneIn(2);
    const uint64_t logged_before = allocator().free_logged_sectors();
    const uint64_t freed = ValueOf(allocator().FlushRegions(
        txn, up_to, static_cast<uint32_t>(1 + Below(3)), punch ? &punches : nullptr));
    EXPECT_EQ(logged_before - allocator().free_logged_sectors(), freed);
    // Which regions it took is the allocator's choice; its records tell.
    ASSERT_OK(allocator().WriteBack(txn, txg));
    Sectors still_logged;
    ASSERT_OK(
        Allocator::Enumerate(txn, model_.capacity_sectors, [&](const Run& run, bool in_free_log) {
          for (uint64_t sector = run.address; in_free_log && sector < run.end(); ++sector) {
            still_logged.insert(sector);
          }
        }));
    std::set<uint32_t> flushed;
    for (const auto& [sector, freed_in] : model_.logged) {
      if (!still_logged.contains(sector)) {
        flushed.insert(RegionOf(sector));
      }
    }
    const uint64_t gone = std::erase_if(model_.logged, [&](const auto& entry) {
      const bool due = entry.second <= up_to && flushed.contains(RegionOf(entry.first));
      EXPECT_EQ(due, !still_logged.contains(entry.first)) << "I3: sector " << entry.first;
      return due;
    });
    EXPECT_EQ(gone, freed);
    for (const Run& run : punches) {
      EXPECT_GE(run.sectors, 64u);
      for (uint64_t sector = run.address; sector < run.end(); ++sector) {
        EXPECT_TRUE(model_.IsAllocatable(sector));
        model_.withheld.insert(sector);
      }
      to_punch_.push_back(run);
    }
  }

  void EndSomePunches() {
    const auto begin = to_punch_.begin() + static_cast<ptrdiff_t>(Below(to_punch_.size() + 1));
    const std::vector<Run> ended(begin, to_punch_.end());
    to_punch_.erase(begin, to_punch_.end());
    allocator().EndPunch(ended);
    for (const Run& run : ended) {
      for (uint64_t sector = run.address; sector < run.end(); ++sector) {
        model_.withheld.erase(sector);
        ended_.insert(sector);
      }
    }
  }

  void ResizePool(WriteTxn& txn) {
    const uint64_t capacity_sectors = kRegionSectors / 2 + Below(4 * kRegionSectors);
    bool fits = true;
    for (uint64_t sector = capacity_sectors; sector < model_.capacity_sectors; ++sector) {
      fits = fits && model_.IsAllocatable(sector);
    }
    const absl::Status status = allocator().Resize(txn, capacity_sectors);
    ASSERT_EQ(status.ok(), fits) << status;
    if (fits) {
      model_.capacity_sectors = capacity_sectors;
    } else {
      EXPECT_CODE(status, kFailedPrecondition);
    }
  }

  void CheckCounters() {
    EXPECT_EQ(allocator().capacity_sectors(), model_.capacity_sectors);
    EXPECT_EQ(allocator().allocated_sectors(), model_.taken.size() + model_.logged.size());
    EXPECT_EQ(allocator().free_logged_sectors(), model_.logged.size());
    EXPECT_EQ(allocator().available_sectors(), model_.available());
    EXPECT_EQ(allocator().damaged_regions(), 0u);
  }

  void CheckRecords() {
    const auto [not_free, logged] = fixture_.Enumerate();
    Sectors found;
    Sectors found_logged;
    uint64_t previous_end = 0;
    for (const Run& run : not_free) {
      EXPECT_TRUE(run.address > previous_end || previous_end == 0) << "runs are maximal";
      previous_end = run.end();
      for (uint64_t sector = run.address; sector < run.end(); ++sector) {
        found.insert(sector);
      }
    }
    for (const Run& run : logged) {
      for (uint64_t sector = run.address; sector < run.end(); ++sector) {
        EXPECT_TRUE(found_logged.insert(sector).second);
        EXPECT_TRUE(model_.logged.contains(sector) && model_.logged.at(sector) == run.birth);
      }
    }
    Sectors expected = model_.taken;
    for (const auto& [sector, txg] : model_.logged) {
      expected.insert(sector);
    }
    EXPECT_EQ(found_logged.size(), model_.logged.size());
    EXPECT_TRUE(found == expected);
  }

  std::mt19937_64 random_;
  AllocatorFixture fixture_;
  Model model_;
  Model committed_;
  std::vector<Run> to_punch_;
  Sectors ended_;
  bool big_ = false;    // with runs of thousands of sectors
  bool tight_ = false;  // nearly full all the time
};

TEST(AllocatorModelTest, AgreesWithTheModel) {
  for (const uint64_t seed : TestSeeds(12)) {
    SCOPED_TRACE(StrCat("seed ", seed));
    AllocatorModel model(seed);
    model.RunTxgs(150);
    if (!::testing::Test::HasFailure()) {
      model.Drain();
    }
    if (::testing::Test::HasFailure()) {
      return;
    }
  }
}

}  // namespace
}  // namespace cowshed::engine

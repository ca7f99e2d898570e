// SPDX-License-Identifier: Apache-2.0
#include "engine/store/allocator.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/store/region_bitmap.h"
#include "tests/engine/store/allocator_fixture.h"

namespace cowshed::engine {
namespace {

constexpr uint64_t kThreeRegions = 3 * uint64_t{kRegionSectors};

Run At(uint64_t address, uint32_t sectors) { return {.address = address, .sectors = sectors}; }

class AllocatorTest : public ::testing::Test, protected AllocatorFixture {
 protected:
  using Run = ::cowshed::engine::Run;  // not ::testing::Test::Run

  AllocatorTest() : AllocatorFixture({.punch_min_sectors = 100}) {}
};

TEST_F(AllocatorTest, EmptyPoolHoldsTheSuperblocksOnly) {
  Create(kThreeRegions);
  EXPECT_EQ(allocator().allocated_sectors(), kFirstDataSector);
  EXPECT_EQ(allocator().available_sectors(), kThreeRegions - kFirstDataSector);
  EXPECT_EQ(allocator().capacity_sectors(), kThreeRegions);
  EXPECT_EQ(Enumerate().first, std::vector<Run>{At(0, kFirstDataSector)});
  EXPECT_EQ(Records(Table::kRegions), 1u);
}

TEST_F(AllocatorTest, RunsOfOneTxgLieTogether) {
  Create(kThreeRegions);
  // Region 0 has the superblocks, so region 1 is the emptiest.
  uint64_t next = kRegionSectors;
  InTxg([&](WriteTxn& txn, Txg txg) {
    for (const uint32_t sectors : {4u, 1u, 32u, 7u, 1u}) {
      const Run run = ValueOf(allocator().Allocate(txn, sectors, BlockKind::kNode, txg));
      EXPECT_EQ(run, (Run{next, txg, sectors, BlockKind::kNode}));
      next += sectors;
    }
  });
  EXPECT_EQ(Allocate(5).address, next);
}

TEST_F(AllocatorTest, FreesAreNotJoinedOverABorder) {
  Create(2 * uint64_t{kRegionSectors});
  InTxg([&](WriteTxn& txn, Txg txg) {
    ASSERT_OK(StatusOf(allocator().Allocate(txn, kRegionSectors, BlockKind::kData, txg)));
    ASSERT_OK(StatusOf(
        allocator().Allocate(txn, kRegionSectors - kFirstDataSector, BlockKind::kData, txg)));
    EXPECT_OK(allocator().Free(txn, txg, std::vector<Run>{At(kRegionSectors, 1)}));
    EXPECT_OK(allocator().Free(txn, txg, std::vector<Run>{At(kRegionSectors - 1, 1)}));
  });
  EXPECT_EQ(allocator().free_log_runs(), 2u);
  EXPECT_EQ(Flush(), 2u);
}

TEST_F(AllocatorTest, NoRunCrossesARegion) {
  Create(kThreeRegions);
  InTxg([&](WriteTxn& txn, Txg txg) {
    absl::StatusOr<Run> run = Run{};
    uint64_t sectors = 0;
    while ((run = allocator().Allocate(txn, 1000, BlockKind::kData, txg)).ok()) {
      EXPECT_EQ(RegionOf(run->address), RegionOf(run->end() - 1));
      sectors += 1000;
    }
    EXPECT_CODE(run, kNotFound);
    EXPECT_EQ(sectors, 3 * (kRegionSectors / 1000) * 1000);
    EXPECT_EQ(allocator().available_sectors(), kThreeRegions - kFirstDataSector - sectors);
  });
}

TEST_F(AllocatorTest, TellsNoRunFromNoSpace) {
  Create(kFirstDataSector + 100);
  EXPECT_EQ(Allocate(40), (Run{16, 1, 40, BlockKind::kData}));
  EXPECT_EQ(Allocate(30).address, 56u);
  Free({At(16, 40)});
  EXPECT_EQ(Flush(), 40u);
  // Free are 40 sectors at 16 and 30 at 86.
  InTxg([&](WriteTxn& txn, Txg txg) {
    EXPECT_CODE(allocator().Allocate(txn, 41, BlockKind::kData, txg), kNotFound);
    EXPECT_CODE(allocator().Allocate(txn, 71, BlockKind::kData, txg), kResourceExhausted);
    EXPECT_CODE(allocator().AllocatePieces(txn, 71, BlockKind::kData, txg), kResourceExhausted);
    const std::vector<Run> pieces =
        ValueOf(allocator().AllocatePieces(txn, 70, BlockKind::kData, txg));
    EXPECT_EQ(pieces,
              (std::vector<Run>{{16, txg, 40, BlockKind::kData}, {86, txg, 30, BlockKind::kData}}));
    EXPECT_EQ(allocator().available_sectors(), 0u);
  });
}

TEST_F(AllocatorTest, FreedSectorsWaitForTheirTxg) {
  Create(kFirstDataSector + 100);
  const Run run = Allocate(100);
  Free({run});
  EXPECT_EQ(allocator().allocated_sectors(), kFirstDataSector + 100);
  EXPECT_EQ(allocator().free_logged_sectors(), 100u);
  EXPECT_EQ(allocator().free_log_runs(), 1u);
  InTxg([&](WriteTxn& txn, Txg txg) {
    EXPECT_EQ(ValueOf(allocator().FlushRegions(txn, 1, 10, nullptr)), 0u);
    EXPECT_CODE(allocator().Allocate(txn, 1, BlockKind::kData, txg), kResourceExhausted);
    EXPECT_EQ(ValueOf(allocator().FlushRegions(txn, 2, 10, nullptr)), 100u);
    EXPECT_OK(StatusOf(allocator().Allocate(txn, 100, BlockKind::kData, txg)));
  });
  EXPECT_EQ(allocator().free_logged_sectors(), 0u);
  EXPECT_EQ(Records(Table::kFreeLog), 0u);
}

TEST_F(AllocatorTest, RegionsWithMostDueAreFlushedFirst) {
  Create(kThreeRegions);
  const Run one = Allocate(30000);
  const Run two = Allocate(30000);
  ASSERT_NE(RegionOf(one.address), RegionOf(two.address));
  Free({At(one.address, 5), At(two.address, 4)});
  Free({At(two.address + 10, 50)});
  InTxg([&](WriteTxn& txn, Txg txg) {
    // Region two has more, yet less that may be reused.
    EXPECT_EQ(ValueOf(allocator().FlushRegions(txn, txg - 2, 1, nullptr)), 5u);
    EXPECT_EQ(ValueOf(allocator().FlushRegions(txn, txg - 1, 1, nullptr)), 54u);
  });
}

TEST_F(AllocatorTest, DoubleFreeIsDataLossAndChangesNothing) {
  Create(kThreeRegions);
  const Run run = Allocate(100);
  const Run other = Allocate(50);
  const auto refused = [&](const std::vector<Run>& runs) {
    InTxg([&](WriteTxn& txn, Txg txg) {
      const uint64_t logged_sectors = allocator().free_logged_sectors();
      EXPECT_CODE(allocator().Free(txn, txg, runs), kDataLoss);
      EXPECT_EQ(allocator().free_logged_sectors(), logged_sectors);
    });
  };
  refused({At(run.address, 50), At(run.address + 49, 10)});  // twice in one call
  refused({other, At(other.end(), 1)});                      // free, behind one that is not
  refused({At(other.end() - 1, 2)});                         // half of it free
  refused({At(kFirstDataSector - 1, 1)});                    // a superblock
  refused({At(kThreeRegions - 1, 2)});                       // past the end
  refused({At(~uint64_t{0}, 2)});
  refused({At(run.address, 0)});
  InTxg([&](WriteTxn& txn, Txg txg) {
    EXPECT_OK(allocator().Free(txn, txg, std::vector<Run>{At(run.address + 10, 10)}));
    // In the log of this very txg.
    EXPECT_CODE(allocator().Free(txn, txg, std::vector<Run>{run}), kDataLoss);
  });
  refused({At(run.address + 19, 1)});  // in a past txg's log
  Reopen();
  refused({At(run.address, 11)});  // found by the log read again
  EXPECT_EQ(Flush(), 10u);
  refused({At(run.address + 19, 1)});  // found by the bitmap
  Free({At(run.address, 10), At(run.address + 20, 80), other});
}

TEST_F(AllocatorTest, FreesMayCrossRegions) {
  Create(kThreeRegions);
  InTxg([&](WriteTxn& txn, Txg txg) {
    uint64_t left = allocator().available_sectors();
    for (; left >= 16; left -= 16) {
      ASSERT_OK(StatusOf(allocator().Allocate(txn, 16, BlockKind::kData, txg)));
    }
  });
  const Run wide = At(kRegionSectors - 16, kRegionSectors + 32);
  Free({wide});
  EXPECT_EQ(allocator().free_log_runs(), 3u);
  EXPECT_EQ(allocator().free_logged_sectors(), wide.sectors);
  EXPECT_EQ(Flush(), wide.sectors);
  EXPECT_EQ(Enumerate().first,
            (std::vector<Run>{At(0, kRegionSectors - 16),
                              At(2 * kRegionSectors + 16, kRegionSectors - 16)}));
}

TEST_F(AllocatorTest, FailedTxgLeavesNoTrace) {
  Create(kThreeRegions);
  const Run kept = Allocate(10);
  for (const bool write_back : {false, true}) {
    InFailedTxg(write_back, [&](WriteTxn& txn, Txg txg) {
      EXPECT_OK(StatusOf(allocator().Allocate(txn, 1000, BlockKind::kData, txg)));
      EXPECT_OK(allocator().Free(txn, txg, std::vector<Run>{kept}));
    });
    EXPECT_EQ(allocator().allocated_sectors(), kFirstDataSector + 10);
    EXPECT_EQ(allocator().free_logged_sectors(), 0u);
  }
  Free({kept});
}

TEST_F(AllocatorTest, ChunkGoesWithTheLastRegionItNames) {
  Create(kThreeRegions);
  std::vector<Run> runs;
  InTxg([&](WriteTxn& txn, Txg txg) {
    for (int i = 0; i < 3; ++i) {
      runs.push_back(ValueOf(allocator().Allocate(txn, 30000, BlockKind::kData, txg)));
    }
  });
  Free({At(runs[0].address, 3), At(runs[1].address, 2), At(runs[2].address, 1)});
  EXPECT_EQ(Records(Table::kFreeLog), 1u);
  EXPECT_EQ(Flush(1), 3u);
  Reopen();
  EXPECT_EQ(allocator().free_log_runs(), 2u);
  EXPECT_EQ(Flush(1), 2u);
  EXPECT_EQ(Records(Table::kFreeLog), 1u);
  EXPECT_EQ(Flush(1), 1u);
  EXPECT_EQ(Records(Table::kFreeLog), 0u);
}

class AllocatorBoundsTest : public ::testing::Test {
 protected:
  using Run = ::cowshed::engine::Run;
};

TEST_F(AllocatorBoundsTest, LongLogFlushesMoreRegions) {
  AllocatorFixture fixture({.free_log_max_runs = 8});
  fixture.Create(8 * uint64_t{kRegionSectors});
  std::vector<Run> runs;
  fixture.InTxg([&](WriteTxn& txn, Txg txg) {
    for (int i = 0; i < 7; ++i) {
      runs.push_back(ValueOf(fixture.allocator().Allocate(txn, 30000, BlockKind::kData, txg)));
    }
  });
  std::vector<Run> frees;
  for (const Run& run : runs) {
    for (uint32_t i = 0; i < 3; ++i) {
      frees.push_back(At(run.address + 2 * i, 1));
    }
  }
  fixture.Free(frees);
  EXPECT_EQ(fixture.allocator().free_log_runs(), 21u);
  EXPECT_EQ(fixture.Flush(1), 15u);  // five regions, for 6 runs are within the bound
  EXPECT_EQ(fixture.allocator().free_log_runs(), 6u);
  EXPECT_EQ(fixture.Flush(1), 3u);
}

TEST_F(AllocatorBoundsTest, ColdRegionDoesNotKeepTheLogAlive) {
  // One cold free per txg in region after region, none of them ever the most to give.
  AllocatorFixture fixture({.free_log_max_runs = 640});
  fixture.Create(20 * uint64_t{kRegionSectors});
  std::vector<Run> runs;
  fixture.InTxg([&](WriteTxn& txn, Txg txg) {
    for (int i = 0; i < 19; ++i) {
      runs.push_back(ValueOf(fixture.allocator().Allocate(txn, 32000, BlockKind::kData, txg)));
    }
  });
  for (uint32_t i = 0; i < 200; ++i) {
    fixture.Free({At(runs[0].address + 100 * i, 100), At(runs[1 + i % 18].address + 2 * i, 1)});
    fixture.Flush(1);
    EXPECT_LE(fixture.Records(Table::kFreeLog), 640 / (kFreesPerChunk / 8) + 2);
  }
}

TEST_F(AllocatorBoundsTest, TxgWritesWhatItTouchedOnly) {
  AllocatorFixture fixture;
  fixture.Create(uint64_t{1} << 32);  // 16 TiB: 131,845 regions, 520 chunks of sums
  fixture.InTxg([&](WriteTxn& txn, Txg txg) {
    for (int i = 0; i < 1000; ++i) {
      ASSERT_OK(StatusOf(fixture.allocator().Allocate(txn, 4, BlockKind::kData, txg)));
    }
    ASSERT_OK(fixture.allocator().WriteBack(txn, txg));
    EXPECT_LE(txn.dirty_pages(), 24u);
  });
}

TEST_F(AllocatorTest, PunchedRunsAreWithheldUntilItsEnd) {
  Create(kFirstDataSector + 1000);
  const Run run = Allocate(1000);
  Free({At(run.address, 99), At(run.address + 200, 40), At(run.address + 240, 60)});
  std::vector<Run> to_punch;
  EXPECT_EQ(Flush(1000, &to_punch), 199u);
  EXPECT_EQ(to_punch, std::vector<Run>{At(run.address + 200, 100)});
  EXPECT_EQ(allocator().available_sectors(), 99u);
  EXPECT_EQ(allocator().allocated_sectors(), kFirstDataSector + 1000 - 199);
  InFailedTxg(false, [&](WriteTxn& txn, Txg txg) {
    EXPECT_CODE(allocator().Allocate(txn, 100, BlockKind::kData, txg), kResourceExhausted);
    EXPECT_EQ(ValueOf(allocator().Allocate(txn, 99, BlockKind::kData, txg)).address, run.address);
  });
  // The punch is still at work after the failure.
  EXPECT_EQ(allocator().available_sectors(), 99u);
  InTxg([&](WriteTxn& txn, Txg txg) {
    EXPECT_CODE(allocator().Free(txn, txg, to_punch), kDataLoss);
  });
  allocator().EndPunch(to_punch);
  EXPECT_EQ(allocator().available_sectors(), 199u);
  allocator().EndPunch(to_punch);  // again: nothing
  EXPECT_EQ(allocator().available_sectors(), 199u);
  EXPECT_EQ(Allocate(100).address, run.address + 200);
}

TEST_F(AllocatorTest, FailedFlushWithholdsNothing) {
  Create(kFirstDataSector + 1000);
  const Run run = Allocate(1000);
  Free({At(run.address, 500)});
  std::vector<Run> to_punch;
  InFailedTxg(true, [&](WriteTxn& txn, Txg txg) {
    EXPECT_EQ(ValueOf(allocator().FlushRegions(txn, txg - 1, 10, &to_punch)), 500u);
  });
  EXPECT_EQ(allocator().free_logged_sectors(), 500u);
  EXPECT_EQ(Flush(), 500u);
  EXPECT_EQ(allocator().available_sectors(), 500u);
  allocator().EndPunch(to_punch);
  EXPECT_EQ(allocator().available_sectors(), 500u);
}

TEST_F(AllocatorTest, PoolGrowsAndShrinksAtItsEnd) {
  Create(kThreeRegions);
  const auto resize = [this](uint64_t capacity_sectors) {
    absl::Status status;
    InTxg([&](WriteTxn& txn, Txg) { status = allocator().Resize(txn, capacity_sectors); });
    return status;
  };
  InTxg([&](WriteTxn& txn, Txg txg) {
    for (int i = 0; i < 3; ++i) {
      ASSERT_OK(StatusOf(allocator().Allocate(txn, 30000, BlockKind::kData, txg)));
    }
  });
  // Regions 1 and 2 are used from their begin, then region 0 behind the superblocks.
  const uint64_t last_end = 2 * uint64_t{kRegionSectors} + 30000;
  EXPECT_CODE(resize(last_end - 1), kFailedPrecondition);
  EXPECT_CODE(resize(kRegionSectors), kFailedPrecondition);
  EXPECT_CODE(resize(kFirstDataSector), kInvalidArgument);
  EXPECT_OK(resize(last_end));
  EXPECT_EQ(allocator().capacity_sectors(), last_end);
  EXPECT_OK(resize(300 * uint64_t{kRegionSectors} + 5));
  EXPECT_EQ(Records(Table::kRegionSums), 2u);
  Reopen();
  EXPECT_EQ(allocator().allocated_sectors(), kFirstDataSector + 90000);
  EXPECT_OK(resize(last_end));
  EXPECT_EQ(Records(Table::kRegionSums), 1u);

  // A chunk outlives the region that it names, because of another one. When the region is there
  // again, the old free must not be.
  Free({At(last_end - 30000, 30000), At(kRegionSectors, 1)});
  EXPECT_CODE(resize(2 * uint64_t{kRegionSectors}), kFailedPrecondition);
  EXPECT_EQ(Flush(1), 30000u);
  EXPECT_EQ(Records(Table::kFreeLog), 1u);
  EXPECT_OK(resize(2 * uint64_t{kRegionSectors}));
  Reopen();
  EXPECT_OK(resize(kThreeRegions));
  Reopen();
  EXPECT_EQ(allocator().free_log_runs(), 1u);
  EXPECT_EQ(allocator().available_sectors(), kThreeRegions - kFirstDataSector - 60000);
  EXPECT_EQ(Flush(), 1u);
}

TEST_F(AllocatorTest, WithheldSectorsKeepThePoolFromShrinking) {
  Create(kFirstDataSector + 1000);
  const Run run = Allocate(1000);
  Free({At(run.address + 500, 500)});
  std::vector<Run> to_punch;
  Flush(10, &to_punch);
  InTxg([&](WriteTxn& txn, Txg) {
    EXPECT_CODE(allocator().Resize(txn, kFirstDataSector + 600), kFailedPrecondition);
  });
  allocator().EndPunch(to_punch);
  InTxg([&](WriteTxn& txn, Txg) { EXPECT_OK(allocator().Resize(txn, kFirstDataSector + 600)); });
}

TEST_F(AllocatorTest, DamagedBitmapIsSetAside) {
  Create(kThreeRegions);
  const Run run = Allocate(30000);
  ASSERT_EQ(RegionOf(run.address), 1u);
  Free({At(run.address, 5)});
  InTxg(
      [&](WriteTxn& txn, Txg) { ASSERT_OK(txn.Put(Table::kRegions, RegionKey(1), "no bitmap")); });
  Reopen();
  InTxg([&](WriteTxn& txn, Txg txg) {
    // Frees there are logged unproved, and stay logged.
    EXPECT_OK(allocator().Free(txn, txg, std::vector<Run>{At(run.address + 5, 5)}));
    EXPECT_CODE(allocator().Free(txn, txg, std::vector<Run>{At(run.address, 6)}), kDataLoss);
    EXPECT_EQ(ValueOf(allocator().FlushRegions(txn, txg - 1, 10, nullptr)), 0u);
    EXPECT_EQ(allocator().damaged_regions(), 1u);
    EXPECT_EQ(allocator().available_sectors(), 2 * kRegionSectors - kFirstDataSector);
    absl::StatusOr<Run> other = Run{};
    while ((other = allocator().Allocate(txn, 100, BlockKind::kData, txg)).ok()) {
      EXPECT_NE(RegionOf(other->address), 1u);
    }
    EXPECT_CODE(other, kNotFound);
    EXPECT_EQ(allocator().available_sectors(), 2 * (kRegionSectors % 100) - kFirstDataSector);
  });
  EXPECT_EQ(allocator().free_logged_sectors(), 10u);
  const auto txn = ValueOf(meta().BeginRead());
  std::vector<Run> logged;
  EXPECT_CODE(Allocator::Enumerate(*txn, kThreeRegions,
                                   [&](const Run& found, bool in_free_log) {
                                     if (in_free_log) {
                                       logged.push_back(found);
                                     } else {
                                       EXPECT_NE(RegionOf(found.address), 1u);
                                     }
                                   }),
              kDataLoss);
  EXPECT_EQ(logged.size(), 2u);
}

TEST_F(AllocatorTest, BitmapThatContradictsItsSumIsDamaged) {
  Create(kThreeRegions);
  Allocate(10);
  InTxg([&](WriteTxn& txn, Txg) { ASSERT_OK(txn.Delete(Table::kRegions, RegionKey(1))); });
  Reopen();
  EXPECT_EQ(RegionOf(Allocate(32570).address), 2u);
  EXPECT_EQ(allocator().damaged_regions(), 0u);
  EXPECT_EQ(RegionOf(Allocate(100).address), 0u);
  EXPECT_EQ(allocator().damaged_regions(), 1u);
}

TEST_F(AllocatorTest, BitmapWithSectorsPastTheEndIsDamaged) {
  Create(kRegionSectors + 100);
  RegionBitmap bitmap;  // as many set as the sum says, one of them past the end
  bitmap.Set(0, kFirstDataSector - 1);
  InTxg([&](WriteTxn& txn, Txg) {
    ASSERT_OK(allocator().Resize(txn, 1000));
    bitmap.Set(1000, 1001);
    ASSERT_OK(txn.Put(Table::kRegions, RegionKey(0), bitmap.bytes()));
  });
  Reopen();
  InTxg([&](WriteTxn& txn, Txg txg) {
    EXPECT_CODE(allocator().Allocate(txn, 1, BlockKind::kData, txg), kResourceExhausted);
  });
  EXPECT_EQ(allocator().damaged_regions(), 1u);
}

TEST_F(AllocatorTest, DamagedSumsAndLogRefuseToLoad) {
  Create(kThreeRegions);
  const Run run = Allocate(10);
  Free({run});
  const auto txn = ValueOf(meta().BeginRead());
  EXPECT_CODE(allocator().Reload(*txn, 5 * kThreeRegions), kDataLoss);
  EXPECT_CODE(allocator().Reload(*txn, kRegionSectors), kDataLoss);
  const auto refused = [&](std::string_view value) {
    const auto change = ValueOf(meta().BeginWrite());
    EXPECT_OK(change->Put(Table::kFreeLog, FreeLogKey(9, 0), value));
    EXPECT_CODE(allocator().Reload(*change, kThreeRegions), kDataLoss);
  };
  refused("");
  refused("seven b");
  refused(Encoder().Put(FreeRecord::Of(run.address + 1, 1)).Take());     // a second time
  refused(Encoder().Put(FreeRecord::Of(kRegionSectors - 1, 2)).Take());  // over the border
  refused(Encoder().Put(FreeRecord::Of(100, 0)).Take());
  EXPECT_OK(allocator().Reload(*txn, kThreeRegions));
}

TEST_F(AllocatorTest, RebuildTakesExactlyWhatIsReferenced) {
  Create(kThreeRegions);
  Free({Allocate(1000)});
  const std::vector<Run> referenced = {At(20, 7), At(27, 3), At(kRegionSectors - 5, 10),
                                       At(2 * kRegionSectors + 9, 1)};
  InTxg([&](WriteTxn& txn, Txg) {
    ASSERT_OK(Allocator::Rebuild(txn, kThreeRegions, referenced));
    ASSERT_OK(allocator().Reload(txn, kThreeRegions));
  });
  EXPECT_EQ(Enumerate().first,
            (std::vector<Run>{At(0, kFirstDataSector), At(20, 10), At(kRegionSectors - 5, 10),
                              At(2 * kRegionSectors + 9, 1)}));
  EXPECT_TRUE(Enumerate().second.empty());
  EXPECT_EQ(allocator().allocated_sectors(), kFirstDataSector + 21);
  const auto txn = ValueOf(meta().BeginWrite());
  EXPECT_CODE(Allocator::Rebuild(*txn, kThreeRegions, std::vector<Run>{At(20, 7), At(26, 1)}),
              kInvalidArgument);
}

}  // namespace
}  // namespace cowshed::engine

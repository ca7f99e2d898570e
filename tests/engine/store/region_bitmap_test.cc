// SPDX-License-Identifier: Apache-2.0
#include "engine/store/region_bitmap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "engine/store/region_ranking.h"
#include "tests/support/testing.h"

namespace cowshed::engine {
namespace {

TEST(RegionBitmapTest, SectorIsABitOfAByte) {
  RegionBitmap bitmap;
  bitmap.Set(10, 11);
  EXPECT_EQ(bitmap.bytes().size(), kMaxPayloadBytes);
  EXPECT_EQ(bitmap.bytes()[1], 1 << 2);
  EXPECT_EQ(bitmap.CountSet(), 1u);
  EXPECT_TRUE(ValueOf(RegionBitmap::Decode(bitmap.bytes())).AllSet(10, 11));
  EXPECT_CODE(RegionBitmap::Decode(bitmap.bytes().substr(1)), kDataLoss);
}

// The first run of `sectors` clear flags in [begin, end), bit by bit.
uint32_t FindSlowly(const std::vector<bool>& taken, uint32_t begin, uint32_t end, uint32_t sectors,
                    uint32_t* longest) {
  uint32_t run = 0;
  for (uint32_t i = begin; i < end; ++i) {
    if (taken[i]) {
      *longest = std::max(*longest, run);
      run = 0;
    } else if (++run == sectors) {
      return i + 1 - sectors;
    }
  }
  *longest = std::max(*longest, run);
  return end;
}

TEST(RegionBitmapTest, AgreesWithAVectorOfFlags) {
  for (const uint64_t seed : TestSeeds(20)) {
    std::mt19937_64 random(seed);
    RegionBitmap bitmap;
    RegionBitmap withheld;
    std::vector<bool> set(kRegionSectors);
    std::vector<bool> taken(kRegionSectors);
    const auto range = [&](uint32_t longest) {
      const auto begin = static_cast<uint32_t>(random() % kRegionSectors);
      const auto length = static_cast<uint32_t>(random() % (longest + 1));
      return std::pair(begin, std::min(begin + length, kRegionSectors));
    };
    for (int round = 0; round < 300; ++round) {
      const auto [begin, end] = range(round % 10 == 0 ? 20000 : 200);
      if (random() % 2 == 0) {
        bitmap.Set(begin, end);
        std::fill(set.begin() + begin, set.begin() + end, true);
      } else {
        bitmap.Clear(begin, end);
        std::fill(set.begin() + begin, set.begin() + end, false);
      }
      if (round % 5 == 0) {
        withheld = RegionBitmap();
        taken = set;
        const auto [withheld_begin, withheld_end] = range(500);
        withheld.Set(withheld_begin, withheld_end);
        std::fill(taken.begin() + withheld_begin, taken.begin() + withheld_end, true);
        const auto sectors = static_cast<uint32_t>(1 + random() % 300);
        uint32_t longest = 0;
        uint32_t longest_slowly = 0;
        ASSERT_EQ(FindClearRun(bitmap, &withheld, begin, kRegionSectors, sectors, &longest),
                  FindSlowly(taken, begin, kRegionSectors, sectors, &longest_slowly));
        ASSERT_EQ(longest, longest_slowly);
      }
      const auto [look_begin, look_end] = range(400);
      const auto first = set.begin() + look_begin;
      const auto last = set.begin() + look_end;
      ASSERT_EQ(bitmap.NextSet(look_begin, look_end), std::find(first, last, true) - set.begin());
      ASSERT_EQ(bitmap.NextClear(look_begin, look_end),
                std::find(first, last, false) - set.begin());
      ASSERT_EQ(bitmap.AllSet(look_begin, look_end), std::count(first, last, false) == 0);
      ASSERT_EQ(bitmap.AllClear(look_begin, look_end), std::count(first, last, true) == 0);
    }
    EXPECT_EQ(bitmap.CountSet(), std::count(set.begin(), set.end(), true));
  }
}

TEST(RegionRankingTest, BestIsTheFirstOfTheGreatest) {
  for (const uint64_t seed : TestSeeds(20)) {
    std::mt19937_64 random(seed);
    const auto regions = static_cast<uint32_t>(1 + random() % 40);
    RegionRanking ranking;
    ranking.Reset(regions);
    std::vector<uint32_t> bounds(regions);
    for (int round = 0; round < 200; ++round) {
      const auto region = static_cast<uint32_t>(random() % regions);
      bounds[region] = static_cast<uint32_t>(random() % 50);
      ranking.Set(region, bounds[region]);
      const auto best = std::max_element(bounds.begin(), bounds.end());
      ASSERT_EQ(ranking.greatest_bound(), *best);
      if (*best > 0) {
        ASSERT_EQ(ranking.Best(), best - bounds.begin());
      }
      ASSERT_EQ(ranking.bound(region), bounds[region]);
    }
  }
}

}  // namespace
}  // namespace cowshed::engine

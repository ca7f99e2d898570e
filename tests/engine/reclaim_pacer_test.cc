// SPDX-License-Identifier: Apache-2.0
#include "engine/reclaim_pacer.h"

#include <gtest/gtest.h>

#include <chrono>

namespace cowshed::engine {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr double kBudget = 0.002;

class ReclaimPacerTest : public ::testing::Test {
 protected:
  static ReclaimLoad Busy(uint64_t freeing = 0, uint64_t available = 1000000) {
    return {/*foreground=*/true, /*writers_wait=*/false, freeing, available};
  }
  ReclaimPacer pacer_{microseconds(2000), /*max_runs=*/50000, /*max_jobs=*/256};
};

TEST_F(ReclaimPacerTest, BudgetIsKeptWhileOthersWorkAndTenTimesThatWhenNobodyDoes) {
  EXPECT_DOUBLE_EQ(pacer_.RoundSeconds(0, Busy()), kBudget);
  EXPECT_DOUBLE_EQ(pacer_.RoundSeconds(500, Busy()), 0.0005);
  ReclaimLoad idle = Busy();
  idle.foreground = false;
  EXPECT_DOUBLE_EQ(pacer_.RoundSeconds(0, idle), 10 * kBudget);
}

TEST_F(ReclaimPacerTest, BudgetRisesWithWhatIsToComeBackAndWithFullness) {
  double before = 0;
  for (const uint64_t freeing : {0, 1000, 10000, 100000, 1000000, 100000000}) {
    const double round = pacer_.RoundSeconds(0, Busy(freeing, 100000));
    EXPECT_GT(round, before);
    EXPECT_LE(round, 8 * kBudget);
    before = round;
  }
  EXPECT_GT(before, 7.9 * kBudget);
  EXPECT_DOUBLE_EQ(pacer_.RoundSeconds(0, Busy(1000, 0)), 8 * kBudget);
  ReclaimLoad waiting = Busy(1, 1000000);
  waiting.writers_wait = true;
  EXPECT_DOUBLE_EQ(pacer_.RoundSeconds(0, waiting), 8 * kBudget);
}

TEST_F(ReclaimPacerTest, BitesFollowTheMeasuredCost) {
  for (int i = 0; i < 100; ++i) pacer_.Observe(ReclaimUnit::kRun, 1000, 1000 * 4e-6);
  EXPECT_NEAR(static_cast<double>(pacer_.Fits(ReclaimUnit::kRun, kBudget)), 500, 10);
  for (int i = 0; i < 100; ++i) pacer_.Observe(ReclaimUnit::kRun, 1000, 1000 * 0.5e-6);
  EXPECT_NEAR(static_cast<double>(pacer_.Fits(ReclaimUnit::kRun, kBudget)), 4000, 80);
  EXPECT_NEAR(pacer_.Cost(ReclaimUnit::kRun, 4000), kBudget, 1e-4);
}

TEST_F(ReclaimPacerTest, OneSlowSampleDoesNotThrottleForLong) {
  for (int i = 0; i < 100; ++i) pacer_.Observe(ReclaimUnit::kJob, 10, 10 * 20e-6);
  pacer_.Observe(ReclaimUnit::kJob, 10, 10.0);  // the thread had no processor for ten seconds
  EXPECT_GE(pacer_.Fits(ReclaimUnit::kJob, kBudget), 80u);
}

TEST_F(ReclaimPacerTest, SomethingAlwaysFits) {
  EXPECT_EQ(pacer_.Fits(ReclaimUnit::kTakeOut, 0), 1u);
  EXPECT_EQ(pacer_.Fits(ReclaimUnit::kTakeOut, -1), 1u);
  EXPECT_EQ(ReclaimPacer::RoundSectors(1), 1u);
}

TEST_F(ReclaimPacerTest, RateIsKeptByDebt) {
  const ReclaimPacer::Clock::time_point start{seconds(100)};
  EXPECT_EQ(pacer_.WaitFor(1000, start).count(), 0);
  pacer_.Freed(5000, /*rate=*/1000, start);
  EXPECT_EQ(pacer_.WaitFor(1000, start), seconds(5));
  EXPECT_EQ(pacer_.WaitFor(1000, start + seconds(3)), seconds(2));
  pacer_.Freed(1000, 1000, start + seconds(3));
  EXPECT_EQ(pacer_.WaitFor(1000, start + seconds(3)), seconds(3));
  // Time that nobody used is not saved up.
  pacer_.Freed(1000, 1000, start + seconds(60));
  EXPECT_EQ(pacer_.WaitFor(1000, start + seconds(60)), seconds(1));
  // Without a limit there is no debt.
  EXPECT_EQ(pacer_.WaitFor(0, start + seconds(60)).count(), 0);
  EXPECT_EQ(pacer_.WaitFor(1000, start + seconds(60)).count(), 0);
}

TEST_F(ReclaimPacerTest, PredictionCountsReadingApplyingAndRounds) {
  EXPECT_EQ(pacer_.PredictSeconds({}), 0);
  for (int i = 0; i < 100; ++i) {
    pacer_.Observe(ReclaimUnit::kRun, 1000, 1e-3);
    pacer_.Observe(ReclaimUnit::kJob, 10, 2e-4);
    pacer_.ObserveRead(1000, 5e-4);
    pacer_.ObserveRound(1e-3);
  }
  // A million entries: read twice, once to verify them; half of them are freed in 25 rounds of 20
  // ms, or 0.5 s, and one more txg makes them free.
  const double seconds = pacer_.PredictSeconds({1, 1000000, 500000});
  EXPECT_NEAR(seconds, 1.0 + 0.5 + 26e-3, 0.1);
  EXPECT_LT(pacer_.PredictSeconds({1, 10, 10}), 0.01);
}

}  // namespace
}  // namespace cowshed::engine

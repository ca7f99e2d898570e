// SPDX-License-Identifier: Apache-2.0
#include "tests/support/faulted_script.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <utility>

#include "tests/support/pool_script.h"
#include "tests/support/testing.h"

namespace cowshed::engine {
namespace {

constexpr uint64_t kNever = 1000000000;

// After a step that failed: nothing half is there, and the pool goes on.
void Recover(TempPool& pool, const ScriptStep& step, const absl::Status& status,
             const PoolImage& before, const PoolImage& after) {
  bool done = false;
  if (!pool->health().ok()) {
    EXPECT_CODE(status, kUnavailable);
    EXPECT_CODE(pool.Create("refused"), kUnavailable);
    EXPECT_EQ(pool->stats().alarms[Alarm::kPoolSuspended], 1u);
    const PoolImage shown = ValueOf(ReadImage(*pool));
    EXPECT_TRUE(shown == before || shown == after) << Difference(before, shown);
    pool.Reopen();
    ASSERT_OK(pool->health());
    const PoolImage found = ValueOf(ReadImage(*pool));
    done = found == after && !(before == after);
    EXPECT_TRUE(done || found == before) << Difference(before, found);
  } else {
    const PoolImage shown = ValueOf(ReadImage(*pool));
    EXPECT_TRUE(shown == before || (step.more_after && shown == after))
        << Difference(before, shown);
  }
  const CheckReport report = ValueOf(pool->Check());
  EXPECT_TRUE(report.ok()) << report.findings[0].name << ": " << report.findings[0].message;
  if (!done) ASSERT_OK(step.act(pool));
}

}  // namespace

uint64_t RunFaultedScript(const TempPool::Tweak& options, const FaultDoor& door, uint64_t k,
                          bool for_ever) {
  TempPool pool(options);
  const uint64_t empty_bytes = pool->space().allocated_bytes;
  PoolImage expected;
  door.arm(k, for_ever);
  uint64_t hits = 0;
  for (const ScriptStep& step : MakeScript()) {
    SCOPED_TRACE(step.name);
    PoolImage after = expected;
    step.expect(&after);
    const absl::Status status = step.act(pool);
    if (!status.ok()) {
      hits = std::max(hits, door.hits());
      door.heal();
      Recover(pool, step, status, expected, after);
    }
    expected = std::move(after);
    if (::testing::Test::HasFatalFailure()) break;
  }
  hits = std::max(hits, door.hits());
  door.heal();
  if (!::testing::Test::HasFatalFailure()) {
    EXPECT_EQ(Difference(expected, ValueOf(ReadImage(*pool))), "");
    pool.ExpectClean();
    EXPECT_EQ(pool->space().allocated_bytes, empty_bytes);
    EXPECT_EQ(pool->space().freeing_bytes, 0u);
  }
  if (::testing::Test::HasFailure()) pool.Abandon();
  return hits;
}

void SweepFaults(const std::string& name, const TempPool::Tweak& options, const FaultDoor& door,
                 uint64_t tries_by_default, bool once_only) {
  const uint64_t total = RunFaultedScript(options, door, kNever, /*for_ever=*/false);
  ASSERT_GT(total, 0u) << "the script does not get there";
  const bool full = std::getenv("COWSHED_TEST_FULL") != nullptr;
  const uint64_t tries = full ? total : std::min(total, tries_by_default);
  std::cout << name << ": " << tries << " of " << total << " places, "
            << (once_only ? "once" : "once and for ever") << '\n';
  for (uint64_t i = 0; i < tries && !::testing::Test::HasFailure(); ++i) {
    const uint64_t k = 1 + i * total / tries + (full ? 0 : total / tries / 2);
    for (const bool for_ever : {false, true}) {
      if (for_ever && once_only) continue;
      SCOPED_TRACE(name + " fails at " + std::to_string(k) + (for_ever ? " and for ever" : ""));
      // On a slow machine more txgs close by their age: the number of calls varies a little.
      EXPECT_GE(RunFaultedScript(options, door, k, for_ever) + total / 20, k);
    }
  }
}

}  // namespace cowshed::engine

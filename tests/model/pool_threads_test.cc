// SPDX-License-Identifier: Apache-2.0
//
// Several models at work in one pool at the same time, each below a prefix of its own, while
// another thread checks, lists and measures. What one does must not show in another.
#include <gtest/gtest.h>

#include <atomic>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/strings.h"
#include "tests/model/pool_model.h"
#include "tests/support/testing.h"

namespace cowshed::engine {
namespace {

constexpr int kThreads = 4;
constexpr uint64_t kSteps = 250;

void RunTogether(uint64_t seed) {
  TempPool pool([&](PoolOptions* options) {
    options->capacity_bytes = 256 << 20;
    options->livelist_max_entries = 1 + seed * 7 % 60;
    options->reclaim_bite_runs = 1 + seed * 5 % 40;
    options->txg_interval = std::chrono::milliseconds(1 + seed % 20);
    options->open_heads_max = 1 + seed % 8;
    options->trim_pointers_per_txg = 1 + seed % 30;
    options->discard_direct_blocks = 1 + seed % 16;
    options->check_bite_pointers = 1 + seed * 3 % 50;
  });
  const uint64_t empty_allocated_bytes = pool->space().allocated_bytes;
  std::vector<std::string> failures(kThreads);
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      PoolModel model(seed * 100 + static_cast<uint64_t>(i), pool, StrCat("t", i));
      failures[static_cast<size_t>(i)] = model.Run(kSteps);
    });
  }
  std::thread onlooker([&] {
    while (!done) {
      for (const bool online : {false, true}) {
        const absl::StatusOr<CheckReport> report = online ? pool->CheckOnline() : pool->Check();
        ASSERT_OK(report.status());
        for (const CheckFinding& finding : report->findings) {
          ADD_FAILURE() << (online ? "online " : "") << finding.invariant << ": " << finding.name
                        << ": " << finding.message;
        }
      }
      EXPECT_LE(pool->space().freeing_bytes, pool->space().capacity_bytes);
      EXPECT_OK(pool->ListOperations({}).status());
      EXPECT_OK(pool->health());
    }
  });
  for (std::thread& thread : threads) thread.join();
  done = true;
  onlooker.join();
  for (const std::string& failure : failures) EXPECT_EQ(failure, "") << "seed " << seed;
  pool.ExpectClean();
  EXPECT_EQ(pool->space().allocated_bytes, empty_allocated_bytes);
  EXPECT_EQ(pool->space().freeing_bytes, 0u);
}

TEST(PoolThreadsTest, ModelsDoNotDisturbEachOther) {
  for (const uint64_t seed : TestSeeds(6)) {
    if (!HasFailure()) RunTogether(seed);
  }
}

}  // namespace
}  // namespace cowshed::engine

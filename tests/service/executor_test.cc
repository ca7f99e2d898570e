// SPDX-License-Identifier: Apache-2.0
#include "service/executor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <thread>

namespace cowshed::service {
namespace {

TEST(ExecutorTest, RunsEverythingBeforeItStops) {
  metrics::ServiceStats stats;
  std::atomic<int> ran = 0;
  Executor executor(4, 1000000, stats);
  for (int i = 0; i < 10000; ++i) EXPECT_TRUE(executor.TrySubmit([&] { ++ran; }));
  executor.Stop();
  EXPECT_EQ(ran, 10000);
  EXPECT_EQ(stats.executor_queue_length, 0u);
  EXPECT_FALSE(executor.TrySubmit([&] { ++ran; }));
  EXPECT_EQ(ran, 10000);
}

TEST(ExecutorTest, RefusesPastItsQueueButTakesWhatIsBoundedElsewhere) {
  metrics::ServiceStats stats;
  std::latch started(1);
  std::latch release(1);
  std::atomic<int> ran = 0;
  Executor executor(1, 2, stats);
  executor.Submit([&] {
    started.count_down();
    release.wait();
  });
  started.wait();
  EXPECT_TRUE(executor.TrySubmit([&] { ++ran; }));
  EXPECT_TRUE(executor.TrySubmit([&] { ++ran; }));
  EXPECT_EQ(stats.executor_queue_length, 2u);
  EXPECT_FALSE(executor.TrySubmit([&] { ++ran; }));
  EXPECT_EQ(stats.executor_rejected, 1u);
  executor.Submit([&] { ++ran; });
  release.count_down();
  executor.Stop();
  EXPECT_EQ(ran, 3);
}

TEST(ExecutorTest, TasksMaySubmitTasks) {
  metrics::ServiceStats stats;
  std::latch done(2);
  Executor executor(1, 10, stats);
  executor.Submit([&] {
    executor.Submit([&] { done.count_down(); });
    done.count_down();
  });
  done.wait();
}

}  // namespace
}  // namespace cowshed::service

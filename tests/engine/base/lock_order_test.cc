// SPDX-License-Identifier: Apache-2.0
#include "engine/base/lock_order.h"

#include <chrono>
#include <mutex>
#include <set>
#include <string_view>
#include <thread>

#include "engine/base/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cowshed::engine {
namespace {

static_assert(kLockOrderChecked || sizeof(Mutex) == sizeof(std::mutex), "a rank costs nothing");

TEST(LockOrderTest, EveryRankHasANameOfItsOwn) {
  std::set<std::string_view> names;
  const auto count = static_cast<size_t>(LockRank::kFailpoints) + 1;
  for (size_t i = 0; i < count; ++i) names.insert(LockName(static_cast<LockRank>(i)));
  EXPECT_EQ(names.size(), count);
  EXPECT_FALSE(names.contains(""));
}

TEST(LockOrderTest, RisingRanksAndAnyOrderOfReleaseAreFine) {
  Mutex table(LockRank::kHeadTable);
  Mutex head(LockRank::kHead);
  Mutex leaf(LockRank::kLeaf);
  for (int i = 0; i < 3; ++i) {
    table.Lock();
    head.Lock();
    table.Unlock();  // before what was taken under it
    leaf.Lock();
    leaf.Unlock();
    head.Unlock();
  }
  const MutexLock again(table);
}

TEST(LockOrderTest, EachThreadHasItsOwnOrder) {
  Mutex table(LockRank::kHeadTable);
  Mutex head(LockRank::kHead);
  const MutexLock lock(head);
  std::thread([&] { const MutexLock other(table); }).join();
}

// One death per case: what a build that checks must say, and that a wait takes its lock again.
class LockOrderDeathTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!kLockOrderChecked) GTEST_SKIP() << "release builds do not check";
    testing::GTEST_FLAG(death_test_style) = "threadsafe";
  }
};

void TakeBoth(LockRank first, LockRank second) {
  Mutex one(first);
  Mutex two(second);
  const MutexLock lock(one);
  const MutexLock other(two);
}

TEST_F(LockOrderDeathTest, WrongOrderAbortsAndNamesBothLocks) {
  EXPECT_DEATH(TakeBoth(LockRank::kHead, LockRank::kHeadTable),
               "lock order: \"head table\" is taken while \"head\" is held");
}

TEST_F(LockOrderDeathTest, TwoOfOneRankAbort) {
  EXPECT_DEATH(TakeBoth(LockRank::kHead, LockRank::kHead),
               "lock order: \"head\" is taken while \"head\" is held");
}

TEST_F(LockOrderDeathTest, AWaitTakesItsLockAgainInOrder) {
  EXPECT_DEATH(
      {
        Mutex first(LockRank::kTxg);
        Mutex later(LockRank::kLeaf);
        CondVar never;
        const MutexLock lock(first);
        const MutexLock other(later);
        never.WaitUntil(first, std::chrono::steady_clock::now());
      },
      // ThreadSanitizer knows this one by itself, and is first.
      "lock order: \"txg\" is taken while \"leaf\" is held|lock-order-inversion");
}

}  // namespace
}  // namespace cowshed::engine

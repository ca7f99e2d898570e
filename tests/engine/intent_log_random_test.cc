// SPDX-License-Identifier: Apache-2.0
//
// Durable writes by chance, and by many at once: whatever a crash leaves was durable.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/strings.h"
#include "tests/engine/intent_log_fixture.h"
#include "tests/support/testing.h"

namespace cowshed::engine {
namespace {

// Many at once, each with a head of its own that is rolled back now and then, while the ring fills
// up and txgs close between their writes.
TEST_F(TinyRingTest, WritersDoNotDisturbEachOther) {
  constexpr size_t kWriters = 6;
  std::vector<std::string> expected(kWriters, Bytes('\0', kSize));
  for (size_t i = 0; i < kWriters; ++i) {
    ASSERT_OK(pool_.Create(StrCat("w", i), kSize).status());
    ASSERT_OK(pool_.Snapshot(StrCat("w", i, "@s")).status());
  }
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kWriters; ++i) {
    threads.emplace_back([&, i] {
      std::mt19937_64 random(i);
      const std::string name = StrCat("w", i);
      std::string& bytes = expected[i];
      for (int step = 0; step < 120; ++step) {
        if (random() % 20 == 0) {
          EXPECT_OK(pool_.Rollback(name).status());
          bytes = Bytes('\0', kSize);
        }
        const uint64_t offset = random() % (kSize - 5000);
        const std::string data(1 + random() % 5000, static_cast<char>('a' + random() % 26));
        EXPECT_OK(WriteDurable(name, offset, data));
        bytes.replace(offset, data.size(), data);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  pool_.Crash();
  for (size_t i = 0; i < kWriters; ++i) {
    EXPECT_TRUE(Read(0, kSize, StrCat("w", i)) == expected[i]) << i;
  }
}

// Heads of bytes, as they are and as they are durable; crashes leave a state between the two.
class RandomLogTest : public IntentLogTest, public ::testing::WithParamInterface<uint64_t> {
 protected:
  RandomLogTest() : IntentLogTest(16 << 20) {}
  struct Model {
    std::string now;
    std::vector<std::string> possible;  // after a crash
  };
  void Changed(Model* model) { model->possible.push_back(model->now); }
  void Durable(Model* model) { model->possible = {model->now}; }
};

TEST_P(RandomLogTest, EveryCrashShowsADurableState) {
  std::mt19937_64 random(GetParam());
  const auto below = [&](uint64_t n) { return random() % n; };
  std::map<std::string, Model> models;
  models["d"].now = Bytes('.') + Bytes('\0', kSize - kBlock);
  Durable(&models["d"]);
  for (const std::string name : {"e", "f"}) {
    ASSERT_OK(pool_.Create(name, kSize).status());
    models[name].now = Bytes('\0', kSize);
    Durable(&models[name]);
    ASSERT_OK(pool_.Snapshot(name + "@s").status());
  }
  for (int step = 0; step < 600; ++step) {
    auto it = models.begin();
    std::advance(it, below(models.size()));
    const std::string& name = it->first;
    Model& model = it->second;
    switch (below(12)) {
      case 0: {
        const uint64_t offset = below(60) * kBlock;
        const uint64_t length = std::min(kSize - offset, (1 + below(6)) * kBlock);
        ASSERT_OK(pool_.Discard(name, offset, length));
        model.now.replace(offset, length, length, '\0');
        Changed(&model);
        break;
      }
      case 1:
        ASSERT_OK(pool_.Sync().status());
        for (auto& entry : models) Durable(&entry.second);
        break;
      case 2:
        if (name == "d") break;
        ASSERT_OK(pool_.Rollback(name).status());
        for (auto& entry : models) Durable(&entry.second);
        model.now = Bytes('\0', kSize);
        Durable(&model);
        break;
      case 3: {
        if (below(4) != 0) break;
        pool_.Crash();
        for (auto& [other, found] : models) {
          const std::string bytes = Read(0, kSize, other);
          const auto state = std::find(found.possible.begin(), found.possible.end(), bytes);
          ASSERT_NE(state, found.possible.end()) << other << " at step " << step;
          found.now = bytes;
          Durable(&found);
        }
        break;
      }
      case 4:
      case 5:
      case 6:
        ASSERT_OK(pool_.MakeDurable(name));
        Durable(&model);
        break;
      default: {
        const uint64_t offset = below(kSize - 1);
        const std::string data(std::min(kSize - offset, 1 + below(3 * kBlock)),
                               static_cast<char>('a' + below(26)));
        ASSERT_OK(pool_.Write(name, offset, data));
        model.now.replace(offset, data.size(), data);
        Changed(&model);
        break;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomLogTest, ::testing::Range<uint64_t>(1, 6));

}  // namespace
}  // namespace cowshed::engine

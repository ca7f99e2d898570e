// SPDX-License-Identifier: Apache-2.0
//
// A pool with the dataset `d` and an intent log, which takes no txg of its own accord.
//
// Threads     Externally synchronised.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "engine/base/failpoints.h"
#include "tests/support/fault_file.h"
#include "tests/support/temp_pool.h"
#include "tests/support/testing.h"

namespace cowshed::engine {

inline constexpr uint64_t kBlock = 4096;
inline constexpr uint64_t kSize = 64 * kBlock;

inline std::string Bytes(char byte, uint64_t count = kBlock) { return std::string(count, byte); }

class IntentLogTest : public ::testing::Test {
 protected:
  explicit IntentLogTest(uint64_t capacity_bytes = 64 << 20)
      : pool_([&](PoolOptions* options) {
          options->capacity_bytes = capacity_bytes;
          options->txg_interval = std::chrono::hours(1);
          options->background_work = false;
          options->punch_holes = false;
          options->wrap_blocks_file = [this](std::unique_ptr<File> file) {
            return std::make_unique<FaultFile>(std::move(file), plan_);
          };
        }) {}
  ~IntentLogTest() override { Failpoints::DisarmAll(); }

  void SetUp() override { Prepare(); }
  // Makes the dataset `d` and the ring: the first durable write waits for the txg that does.
  void Prepare() {
    ASSERT_OK(pool_.Create("d", kSize).status());
    ASSERT_OK(WriteDurable("d", 0, Bytes('.')));
    ASSERT_GT(pool_->stats().log_ring_bytes.load(), 0u);
  }
  absl::Status WriteDurable(const std::string& name, uint64_t offset, const std::string& data) {
    const absl::Status status = pool_.Write(name, offset, data);
    return status.ok() ? pool_.MakeDurable(name) : status;
  }
  std::string Read(uint64_t offset, uint64_t length = kBlock, const std::string& name = "d") {
    return ValueOf(pool_.Read(name, offset, length));
  }
  void AwaitHit(const std::string& failpoint) {
    while (Failpoints::Hits(failpoint) == 0) std::this_thread::yield();
  }
  // The files of the pool as they are at this moment, and the options to open them.
  PoolOptions CopyFiles(const std::string& name) {
    PoolOptions options = pool_.options();
    options.directory = directory_.Path(name);
    options.blocks_path.clear();
    std::filesystem::copy(pool_.directory(), options.directory,
                          std::filesystem::copy_options::recursive);
    std::filesystem::remove(options.directory + "/meta/lock.mdb");
    return options;
  }
  static std::string ReadFrom(Pool& pool, uint64_t offset, uint64_t length) {
    const auto volume = ValueOf(pool.OpenVolume("d", ""));
    std::string found(length, '?');
    EXPECT_OK(volume->Read(offset, std::as_writable_bytes(std::span(found))));
    return found;
  }
  uint64_t Fallbacks(LogFallback reason) { return pool_->stats().log_fallbacks[reason].load(); }

  TempDir directory_;
  std::shared_ptr<FaultPlan> plan_ = std::make_shared<FaultPlan>();
  TempPool pool_;
};

// With the least ring there is: 64 sectors.
class TinyRingTest : public IntentLogTest {
 protected:
  TinyRingTest() : IntentLogTest(16 << 20) {}
};

}  // namespace cowshed::engine

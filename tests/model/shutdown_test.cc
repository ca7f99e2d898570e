// SPDX-License-Identifier: Apache-2.0
//
// A pool that is closed in the middle of everything: calls accepted and not yet answered, writes
// not yet flushed, reclaim, condense and undelete windows under way. Whatever was accepted is
// carried out and answered before the close is over; the pool opened next has it all.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/strings.h"
#include "tests/support/temp_pool.h"
#include "tests/support/testing.h"

namespace cowshed::engine {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kThreads = 3;
constexpr uint64_t kBlocks = 64;
constexpr uint64_t kBlockBytes = 4096;
constexpr size_t kHerds = 16;
constexpr auto kCloseMax = std::chrono::seconds(10);

// A dataset and a clone of it on their way through life; one call of it at most is under way.
struct Herd {
  enum Stage { kNothing, kCreated, kSnapshotted, kCloned, kCloneDestroyed, kStages };

  int stage = kNothing;
  uint64_t number = 0;
  std::atomic<bool> answered{true};
};

// The load of one thread, and what it must have led to.
class Load {
 public:
  Load(TempPool& pool, int number, uint64_t seed)
      : pool_(pool),
        base_(StrCat("t", number)),
        chance_(seed * 100 + static_cast<uint64_t>(number)) {
    EXPECT_OK(pool_.Create(base_ + "/file", kBlocks * kBlockBytes).status());
  }

  // Sends calls and does not wait for their answers, until `stop`.
  void Run(const std::atomic<bool>& stop) {
    const std::shared_ptr<Volume> file = ValueOf(pool_->OpenVolume(base_ + "/file", ""));
    while (!stop) {
      Write(*file);
      if (chance_() % 8 == 0) Look(*file);
      if (chance_() % 8 == 0 && flush_answered_.exchange(false)) {
        file->Flush(Answer<Txg>(&flush_answered_));
      }
      Herd& herd = herds_[chance_() % kHerds];
      if (herd.answered.exchange(false)) Advance(herd);
    }
  }

  uint64_t unanswered() const { return unanswered_; }

  // Every accepted call has been carried out, every write is there.
  void Verify() {
    EXPECT_EQ(unanswered_, 0u);
    EXPECT_EQ(failed_, 0u);
    std::vector<std::string> names;
    for (const DatasetInfo& info : ValueOf(pool_->ListDatasets({.prefix = base_})).items) {
      names.push_back(info.name);
    }
    std::vector<std::string> expected = {base_ + "/file"};
    for (const Herd& herd : herds_) {
      if (herd.stage != Herd::kNothing) expected.push_back(Name("d", herd));
      if (herd.stage == Herd::kCloned) expected.push_back(Name("c", herd));
    }
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(names, expected);
    for (const auto& [block, version] : written_) {
      uint64_t found = 0;
      const std::string bytes =
          ValueOf(pool_.Read(base_ + "/file", block * kBlockBytes, sizeof(found)));
      std::memcpy(&found, bytes.data(), sizeof(found));
      EXPECT_EQ(found, version) << base_ << " block " << block;
    }
  }

 private:
  template <typename T>
  absl::AnyInvocable<void(absl::StatusOr<T>)> Answer(std::atomic<bool>* answered) {
    ++unanswered_;
    return [this, answered](const absl::StatusOr<T>& answer) {
      if (!answer.ok()) ADD_FAILURE() << answer.status();
      failed_ += !answer.ok();
      --unanswered_;
      *answered = true;
    };
  }

  std::string Name(const char* kind, const Herd& herd) const {
    return StrCat(base_, "/", kind, herd.number);
  }

  void Write(Volume& file) {
    const uint64_t block = chance_() % kBlocks;
    std::array<std::byte, kBlockBytes> bytes{};
    std::memcpy(bytes.data(), &++version_, sizeof(version_));
    EXPECT_OK(file.Write(block * kBlockBytes, bytes));
    written_[block] = version_;
  }

  void Look(Volume& file) {
    std::array<std::byte, kBlockBytes> bytes{};
    EXPECT_OK(file.Read(chance_() % kBlocks * kBlockBytes, bytes));
    EXPECT_OK(pool_->ListOperations({}).status());
  }

  // Sends the call that leads to the next stage. The clone is destroyed with an undelete window now
  // and then; what it stems from then waits for it in turn.
  void Advance(Herd& herd) {
    const std::string snapshot = Name("d", herd) + "@s";
    const auto done = [&] { return Answer<Outcome>(&herd.answered); };
    switch (herd.stage) {
      case Herd::kNothing:
        herd.number = ++last_number_;
        pool_->CreateDataset({.name = Name("d", herd), .size_bytes = 1 << 20}, {}, done());
        break;
      case Herd::kCreated:
        pool_->CreateSnapshots({.names = {snapshot}}, {}, done());
        break;
      case Herd::kSnapshotted:
        pool_->CloneDataset({.source = snapshot, .name = Name("c", herd)}, {}, done());
        break;
      case Herd::kCloned:
        pool_->DestroyDatasets(
            {.names = {Name("c", herd)}, .reclaim_after_ms = chance_() % 4 == 0 ? 1 : 0}, {},
            done());
        break;
      case Herd::kCloneDestroyed:
        pool_->DestroyDatasets({.names = {Name("d", herd)}, .recursive = true}, {}, done());
        break;
    }
    herd.stage = (herd.stage + 1) % Herd::kStages;
  }

  TempPool& pool_;
  const std::string base_;
  std::mt19937_64 chance_;
  std::map<uint64_t, uint64_t> written_;  // block -> version
  uint64_t version_ = 0;
  uint64_t last_number_ = 0;
  std::array<Herd, kHerds> herds_;
  std::atomic<bool> flush_answered_{true};
  std::atomic<uint64_t> unanswered_{0};
  std::atomic<uint64_t> failed_{0};
};

void CloseUnderLoad(uint64_t seed, int rounds) {
  TempPool pool([&](PoolOptions* options) {
    options->capacity_bytes = 256 << 20;
    options->livelist_max_entries = 8 + seed * 7 % 60;
    options->reclaim_bite_runs = 1 + seed * 5 % 40;
    options->txg_interval = std::chrono::milliseconds(1 + seed % 20);
  });
  std::vector<std::unique_ptr<Load>> loads;
  for (int i = 0; i < kThreads; ++i) loads.push_back(std::make_unique<Load>(pool, i, seed));
  std::mt19937_64 chance(seed);
  uint64_t unanswered_at_close = 0;
  for (int round = 0; round < rounds && !testing::Test::HasFailure(); ++round) {
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (auto& load : loads) threads.emplace_back([&] { load->Run(stop); });
    std::this_thread::sleep_for(std::chrono::microseconds(chance() % 30000));
    stop = true;
    for (std::thread& thread : threads) thread.join();
    for (auto& load : loads) unanswered_at_close += load->unanswered();
    pool.Advance(5);  // windows end
    const auto started = Clock::now();
    pool.Reopen();
    EXPECT_LT(Clock::now() - started, kCloseMax) << "seed " << seed << " round " << round;
    for (auto& load : loads) load->Verify();
  }
  // Or nothing was in the middle of anything.
  EXPECT_GT(unanswered_at_close, static_cast<uint64_t>(rounds));
}

TEST(ShutdownTest, APoolThatClosesAnswersAndKeepsAllThatItAccepted) {
  const int rounds = std::getenv("COWSHED_TEST_FULL") != nullptr ? 50 : 6;
  for (const uint64_t seed : TestSeeds(4)) {
    if (!HasFailure()) CloseUnderLoad(seed, rounds);
  }
}

}  // namespace
}  // namespace cowshed::engine

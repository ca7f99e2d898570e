// SPDX-License-Identifier: Apache-2.0
#include "engine/store/reader_epochs.h"

#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <thread>
#include <vector>

namespace cowshed::engine {
namespace {

TEST(ReaderEpochsTest, WithoutReadersEverythingPublishedIsReusable) {
  ReaderEpochs epochs;
  EXPECT_EQ(epochs.ReusableUpTo(), 0u);
  epochs.Publish(7);
  EXPECT_EQ(epochs.ReusableUpTo(), 7u);
}

TEST(ReaderEpochsTest, TheOldestReaderHoldsBackReuse) {
  ReaderEpochs epochs;
  epochs.Publish(1);
  std::optional<ReaderEpochs::Guard> old_reader(std::in_place, epochs);
  epochs.Publish(2);
  std::optional<ReaderEpochs::Guard> young_reader(std::in_place, epochs);
  std::optional<ReaderEpochs::Guard> young_twin(std::in_place, epochs);
  epochs.Publish(3);
  EXPECT_EQ(epochs.ReusableUpTo(), 1u);
  old_reader.reset();
  EXPECT_EQ(epochs.ReusableUpTo(), 2u);
  young_reader.reset();
  EXPECT_EQ(epochs.ReusableUpTo(), 2u);
  young_twin.reset();
  EXPECT_EQ(epochs.ReusableUpTo(), 3u);
}

TEST(ReaderEpochsTest, ReaderBeforeTheFirstTxgHoldsBackAll) {
  ReaderEpochs epochs;
  const ReaderEpochs::Guard reader(epochs);
  epochs.Publish(1);
  EXPECT_EQ(epochs.ReusableUpTo(), 0u);
}

TEST(ReaderEpochsTest, ThreadsNeverSeeAnEpochReusedUnderThem) {
  ReaderEpochs epochs;
  std::atomic<Txg> published{0};
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> reads{0};
  std::vector<std::thread> readers;
  readers.reserve(4);
  for (int i = 0; i < 4; ++i) {
    readers.emplace_back([&] {
      while (!stop.load()) {
        const ReaderEpochs::Guard guard(epochs);
        // Entered at some txg <= `seen`; nothing freed after it may become reusable.
        const Txg seen = published.load();
        EXPECT_LE(epochs.ReusableUpTo(), seen + 1);
        const Txg reusable = epochs.ReusableUpTo();
        std::this_thread::yield();
        EXPECT_GE(epochs.ReusableUpTo(), reusable);
        reads.fetch_add(1);
      }
    });
  }
  Txg txg = 0;
  while (txg < 2000 || reads.load() < 1000) {
    epochs.Publish(++txg);
    published.store(txg);
  }
  stop.store(true);
  for (std::thread& reader : readers) {
    reader.join();
  }
  EXPECT_EQ(epochs.ReusableUpTo(), txg);
}

}  // namespace
}  // namespace cowshed::engine

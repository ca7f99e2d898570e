// SPDX-License-Identifier: Apache-2.0
#include "engine/read_ahead.h"

#include <gtest/gtest.h>

#include <vector>

namespace cowshed::engine {
namespace {

constexpr uint64_t kMiB = 1 << 20;

class ReadAheadTest : public ::testing::Test {
 protected:
  // A read of `length` bytes; returns how far the host has been told of, 0: it was told nothing.
  uint64_t Read(uint64_t offset, uint64_t length, bool waited) {
    const ReadAhead::Range range = ahead_.Next(offset, length, waited);
    if (range.length_bytes == 0) return 0;
    EXPECT_GE(range.offset_bytes, told_);  // nothing is told twice
    ahead_.Told(range);
    told_ = range.offset_bytes + range.length_bytes;
    return told_;
  }

  ReadAhead ahead_;
  uint64_t told_ = 0;
};

TEST_F(ReadAheadTest, AStreamThatWaitsIsReadAhead) {
  EXPECT_EQ(Read(0, kMiB, true), 0u);  // one read is no stream
  EXPECT_EQ(Read(kMiB, kMiB, true), 2 * kMiB + ReadAhead::kFirstWindowBytes);
  for (uint64_t at = 2 * kMiB; at < 64 * kMiB; at += kMiB) {
    Read(at, kMiB, false);
    EXPECT_GT(told_, at + kMiB + ReadAhead::kFirstWindowBytes / 2);
    EXPECT_LE(told_, at + kMiB + ReadAhead::kMaxWindowBytes);
  }
  EXPECT_GE(told_, 64 * kMiB + ReadAhead::kMaxWindowBytes / 2);
}

TEST_F(ReadAheadTest, AStreamFromMemoryIsLeftAlone) {
  for (uint64_t at = 0; at < 64 * kMiB; at += kMiB) EXPECT_EQ(Read(at, kMiB, false), 0u);
}

TEST_F(ReadAheadTest, ScatteredReadsAreNoStream) {
  for (uint64_t i = 1; i < 1000; ++i) {
    const uint64_t at = i * 7919 % 1000 * 5 * kMiB + 4 * kMiB;
    EXPECT_EQ(Read(at, 16384, true), 0u);
  }
}

TEST_F(ReadAheadTest, RequestsThatComeOutOfOrderAreOneStream) {
  std::vector<uint64_t> order = {1, 0, 3, 2, 5, 4, 7, 6};
  uint64_t told = 0;
  for (const uint64_t i : order) told = std::max(told, Read(i * 128 * 1024, 128 * 1024, true));
  EXPECT_GT(told, 8u * 128 * 1024);
}

TEST_F(ReadAheadTest, AJumpEndsTheStreamAndAnotherBegins) {
  Read(0, kMiB, true);
  EXPECT_GT(Read(kMiB, kMiB, true), 0u);
  told_ = 0;
  EXPECT_EQ(Read(500 * kMiB, kMiB, true), 0u);
  EXPECT_EQ(Read(501 * kMiB, kMiB, true), 502 * kMiB + ReadAhead::kFirstWindowBytes);
}

TEST_F(ReadAheadTest, WhatCouldNotBeToldIsAskedForAgain) {
  Read(0, kMiB, true);
  const ReadAhead::Range first = ahead_.Next(kMiB, kMiB, true);
  const ReadAhead::Range again = ahead_.Next(2 * kMiB, kMiB, false);
  EXPECT_EQ(first.length_bytes, ReadAhead::kFirstWindowBytes);
  EXPECT_EQ(again.offset_bytes, 3 * kMiB);
  EXPECT_EQ(again.length_bytes, ReadAhead::kFirstWindowBytes);
}

}  // namespace
}  // namespace cowshed::engine

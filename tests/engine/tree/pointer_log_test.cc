// SPDX-License-Identifier: Apache-2.0
#include "engine/tree/pointer_log.h"

#include <algorithm>
#include <limits>

#include "engine/store/codec.h"
#include "tests/engine/tree/meta_fixture.h"

namespace cowshed::engine {
namespace {

constexpr LogId kLog{7};
constexpr uint64_t kAll = std::numeric_limits<uint64_t>::max();

LogEntry Entry(uint64_t address, uint32_t sectors, Txg birth, LogOp op = LogOp::kAlloc,
               BlockKind kind = BlockKind::kData) {
  return {.op = op, .run = {.address = address, .birth = birth, .sectors = sectors, .kind = kind}};
}

// Entries that do not touch each other, so that none are joined.
std::vector<LogEntry> Scattered(uint64_t first, uint64_t count) {
  std::vector<LogEntry> entries;
  for (uint64_t i = first; i < first + count; ++i) {
    entries.push_back(Entry(1000 + 2 * i, 1, 1 + i / 100));
  }
  return entries;
}

class PointerLogTest : public MetaFixture {
 protected:
  std::vector<LogEntry> ReadAll(LogId log = kLog) {
    std::vector<LogEntry> entries;
    EXPECT_OK(PointerLog::ReadAll(*txn_, log, &entries));
    return entries;
  }
  uint64_t ChunkCount(LogId log = kLog) {
    uint64_t chunks = 0;
    MetaCursor cursor(*txn_, Table::kLogs);
    for (cursor.Seek(Key(log)); cursor.ValidFor(Key(log)); cursor.Next()) {
      ++chunks;
    }
    return chunks;
  }
  bool IsDropped(LogId log) {
    return ValueOf(txn_->Get(Table::kDroppedLogs, Key(log))).has_value();
  }
};

TEST_F(PointerLogTest, AnEntryIsTwentyFourBytesInTheOrderTheHeaderDraws) {
  ASSERT_OK(PointerLog::Append(*txn_, kLog,
                               std::vector{Entry(0x112233445566, 0x778899aa, 0x42, LogOp::kFree,
                                                 BlockKind::kNode)})
                .status());
  const auto value = ValueOf(txn_->Get(Table::kLogs, Key(kLog, uint32_t{0})));
  ASSERT_TRUE(value.has_value());
  EXPECT_EQ(*value, std::string_view("\x66\x55\x44\x33\x22\x11\x02\x02"
                                     "\x42\x00\x00\x00\x00\x00\x00\x00"
                                     "\xaa\x99\x88\x77\x00\x00\x00\x00",
                                     24));
}

TEST_F(PointerLogTest, JoinsNeighboursThatTouch) {
  const std::vector<LogEntry> entries = {
      Entry(100, 4, 5),
      Entry(104, 4, 5),
      Entry(108, 1, 5, LogOp::kAlloc, BlockKind::kNode),  // another kind
      Entry(109, 4, 5),
      Entry(113, 4, 6),                // another birth
      Entry(117, 4, 6, LogOp::kFree),  // another op
      Entry(121, 4, 6, LogOp::kFree),
      Entry(126, 4, 6, LogOp::kFree),  // a gap
  };
  EXPECT_EQ(ValueOf(PointerLog::Append(*txn_, kLog, entries)), 6u);
  EXPECT_EQ(ReadAll(), (std::vector<LogEntry>{
                           Entry(100, 8, 5), Entry(108, 1, 5, LogOp::kAlloc, BlockKind::kNode),
                           Entry(109, 4, 5), Entry(113, 4, 6), Entry(117, 8, 6, LogOp::kFree),
                           Entry(126, 4, 6, LogOp::kFree)}));
}

TEST_F(PointerLogTest, ARunDoesNotOverflowWhenItIsJoined) {
  const uint32_t most = std::numeric_limits<uint32_t>::max();
  EXPECT_EQ(ValueOf(PointerLog::Append(
                *txn_, kLog, std::vector{Entry(100, most, 5), Entry(100 + uint64_t{most}, 1, 5)})),
            2u);
}

TEST_F(PointerLogTest, AReaderAtTheEndFindsAllThatComesLaterBehindIt) {
  ASSERT_OK(PointerLog::Append(*txn_, kLog, std::vector{Entry(100, 4, 5)}).status());
  LogPosition position;
  std::vector<LogEntry> read;
  EXPECT_TRUE(ValueOf(PointerLog::Read(*txn_, kLog, &position, kAll, &read)));
  // Would join with what is stored, and then the reader would miss it.
  EXPECT_EQ(ValueOf(PointerLog::Append(*txn_, kLog, std::vector{Entry(104, 4, 5)})), 1u);
  EXPECT_TRUE(ValueOf(PointerLog::Read(*txn_, kLog, &position, kAll, &read)));
  EXPECT_EQ(read, (std::vector{Entry(100, 4, 5), Entry(104, 4, 5)}));
}

TEST_F(PointerLogTest, AnAppendFillsTheLastChunkFirst) {
  EXPECT_EQ(ValueOf(PointerLog::Append(*txn_, kLog, Scattered(0, 100))), 100u);
  EXPECT_EQ(ValueOf(PointerLog::Append(*txn_, kLog, Scattered(100, 69))), 69u);
  EXPECT_EQ(ChunkCount(), 1u);
  EXPECT_EQ(ValueOf(PointerLog::Append(*txn_, kLog, Scattered(169, 1))), 1u);
  EXPECT_EQ(ChunkCount(), 2u);
  EXPECT_EQ(ReadAll(), Scattered(0, 170));
}

TEST_F(PointerLogTest, LogsDoNotMix) {
  for (uint64_t log = 1; log <= 5; ++log) {
    ASSERT_OK(PointerLog::Append(*txn_, LogId{log}, Scattered(log * 1000, 200)).status());
  }
  for (uint64_t log = 1; log <= 5; ++log) {
    EXPECT_EQ(ReadAll(LogId{log}), Scattered(log * 1000, 200));
  }
  EXPECT_TRUE(ReadAll(LogId{6}).empty());
}

TEST_F(PointerLogTest, RandomAppendsAndResumedReadsMatchAVector) {
  for (const uint64_t seed : TestSeeds(20)) {
    SCOPED_TRACE(seed);
    Rewind();
    Random random(seed);
    std::vector<LogEntry> model;
    std::vector<LogEntry> read;
    LogPosition position;
    for (int step = 0; step < 60; ++step) {
      if (random.OneIn(2)) {
        const auto entries = Scattered(model.size(), random.Below(400));
        EXPECT_EQ(ValueOf(PointerLog::Append(*txn_, kLog, entries)), entries.size());
        model.insert(model.end(), entries.begin(), entries.end());
      } else {
        const uint64_t most = random.OneIn(4) ? 169 * random.Below(3) : random.Below(300);
        const size_t before = read.size();
        const bool at_end = ValueOf(PointerLog::Read(*txn_, kLog, &position, most, &read));
        EXPECT_EQ(at_end, read.size() == model.size());
        EXPECT_EQ(read.size(), std::min<uint64_t>(before + most, model.size()));
      }
      if (random.OneIn(5)) {  // what has been read may go
        EXPECT_OK(PointerLog::TrimFront(*txn_, kLog, position));
      }
    }
    EXPECT_TRUE(ValueOf(PointerLog::Read(*txn_, kLog, &position, kAll, &read)));
    EXPECT_EQ(read, model);
  }
}

TEST_F(PointerLogTest, BitesOfWholeChunksStopAtTheStartOfAChunk) {
  ASSERT_OK(PointerLog::Append(*txn_, kLog, Scattered(0, 400)).status());
  LogPosition position;
  std::vector<LogEntry> read;
  EXPECT_FALSE(ValueOf(PointerLog::Read(*txn_, kLog, &position, 169, &read)));
  EXPECT_EQ(position, (LogPosition{.chunk = 1, .entry = 0}));
  EXPECT_OK(PointerLog::TrimFront(*txn_, kLog, position));
  EXPECT_EQ(ChunkCount(), 2u);
  EXPECT_EQ(ReadAll(), Scattered(169, 231));
}

TEST_F(PointerLogTest, TrimFrontKeepsTheLastChunk) {
  ASSERT_OK(PointerLog::Append(*txn_, kLog, Scattered(0, 338)).status());
  LogPosition position;
  std::vector<LogEntry> read;
  EXPECT_TRUE(ValueOf(PointerLog::Read(*txn_, kLog, &position, kAll, &read)));
  EXPECT_OK(PointerLog::TrimFront(*txn_, kLog, {.chunk = 99, .entry = 0}));
  EXPECT_EQ(ChunkCount(), 1u);
  ASSERT_OK(PointerLog::Append(*txn_, kLog, Scattered(338, 1)).status());
  EXPECT_TRUE(ValueOf(PointerLog::Read(*txn_, kLog, &position, kAll, &read)));
  EXPECT_EQ(read, Scattered(0, 339));
}

TEST_F(PointerLogTest, TheLastOfTwoHoldersDropsALog) {
  ASSERT_OK(PointerLog::Append(*txn_, kLog, Scattered(0, 10)).status());
  EXPECT_OK(PointerLog::Share(*txn_, kLog));
  EXPECT_OK(PointerLog::Share(*txn_, kLog));
  EXPECT_OK(PointerLog::Release(*txn_, kLog));
  EXPECT_OK(PointerLog::Release(*txn_, kLog));
  EXPECT_FALSE(IsDropped(kLog));
  EXPECT_FALSE(ValueOf(txn_->Get(Table::kLogHolders, Key(kLog))).has_value());
  EXPECT_OK(PointerLog::Release(*txn_, kLog));
  EXPECT_TRUE(IsDropped(kLog));
  EXPECT_TRUE(absl::IsDataLoss(PointerLog::Release(*txn_, kLog)));
}

TEST_F(PointerLogTest, DropBiteRemovesABoundedNumberOfChunks) {
  for (uint64_t log = 1; log <= 3; ++log) {
    ASSERT_OK(PointerLog::Append(*txn_, LogId{log}, Scattered(0, 169 * 4)).status());
  }
  EXPECT_TRUE(ValueOf(PointerLog::DropBite(*txn_, 10)));  // nothing was released
  EXPECT_OK(PointerLog::Release(*txn_, LogId{1}));
  EXPECT_OK(PointerLog::Release(*txn_, LogId{3}));
  EXPECT_OK(PointerLog::Release(*txn_, LogId{4}));  // has no chunks
  const auto left = [this] { return ChunkCount(LogId{1}) + ChunkCount(LogId{3}); };
  uint64_t before = left();
  int bites = 0;
  while (!ValueOf(PointerLog::DropBite(*txn_, 3))) {
    EXPECT_GE(left() + 3, before);
    before = left();
    ASSERT_LT(++bites, 20);
  }
  EXPECT_EQ(left(), 0u);
  EXPECT_EQ(ChunkCount(LogId{2}), 4u);
  EXPECT_FALSE(IsDropped(LogId{1}) || IsDropped(LogId{3}) || IsDropped(LogId{4}));
}

TEST_F(PointerLogTest, ManyEmptyLogsAreABoundedBiteToo) {
  for (uint64_t log = 1; log <= 10; ++log) {
    EXPECT_OK(PointerLog::Release(*txn_, LogId{log}));
  }
  EXPECT_FALSE(ValueOf(PointerLog::DropBite(*txn_, 4)));
  EXPECT_TRUE(IsDropped(LogId{5}));
  EXPECT_TRUE(ValueOf(PointerLog::DropBite(*txn_, 100)));
}

TEST_F(PointerLogTest, WhatDoesNotDecodeIsDataLoss) {
  ASSERT_OK(PointerLog::Append(*txn_, kLog, Scattered(0, 400)).status());
  const std::string good(*ValueOf(txn_->Get(Table::kLogs, Key(kLog, uint32_t{1}))));
  const auto with_byte = [&good](size_t at, char byte) {
    std::string bad = good;
    bad[at] = byte;
    return bad;
  };
  const std::vector<std::string> damaged = {
      "",                     // empty
      good.substr(0, 25),     // not a multiple
      with_byte(24 + 6, 9),   // op
      with_byte(24 + 7, 0),   // kind
      with_byte(24 + 8, 0),   // birth 0 (it was below 256)
      with_byte(24 + 16, 0),  // no sectors
      with_byte(24 + 20, 1),  // reserved
  };
  for (size_t i = 0; i < damaged.size(); ++i) {
    SCOPED_TRACE(i);
    ASSERT_OK(txn_->Put(Table::kLogs, Key(kLog, uint32_t{1}), damaged[i]));
    std::vector<LogEntry> entries;
    const absl::Status status = PointerLog::ReadAll(*txn_, kLog, &entries);
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_NE(std::string(status.message()).find("log 7 chunk 1"), std::string::npos) << status;
  }
}

TEST_F(PointerLogTest, AMissingChunkIsDataLoss) {
  ASSERT_OK(PointerLog::Append(*txn_, kLog, Scattered(0, 169 * 3)).status());
  ASSERT_OK(txn_->Delete(Table::kLogs, Key(kLog, uint32_t{1})));
  std::vector<LogEntry> entries;
  EXPECT_TRUE(absl::IsDataLoss(PointerLog::ReadAll(*txn_, kLog, &entries)));
}

}  // namespace
}  // namespace cowshed::engine

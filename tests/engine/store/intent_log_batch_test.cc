// SPDX-License-Identifier: Apache-2.0
//
// Which batches a ring is believed to hold.
#include "engine/store/intent_log_batch.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/engine/tree/memory_file.h"
#include "tests/support/testing.h"

namespace cowshed::engine {
namespace {

constexpr uint64_t kRing = 100;  // its first sector, and how many it has

class LogReaderTest : public ::testing::Test {
 protected:
  void SetUp() override { Begin(); }
  // A file with an empty ring.
  void Begin() {
    file_ = MemoryFile();
    ASSERT_OK(file_.Truncate(2 * kRing * kSectorBytes));
  }
  // Writes a batch of `sectors`, whose entry says `layer`, to that place in the ring.
  void Put(uint64_t sequence, uint64_t offset_sectors, uint64_t sectors, uint64_t layer = 1,
           uint64_t log_id = 7) {
    IntentBatchBuilder builder;
    builder.Begin(log_id, sequence);
    const std::string data(sectors * kSectorBytes - sizeof(IntentBatchHeader) - sizeof(IntentEntry),
                           static_cast<char>('a' + sequence % 26));
    const IntentEntry entry = {.dataset = 20, .length_bytes = data.size(), .layer = layer};
    builder.Add(entry, std::as_bytes(std::span(data)));
    ASSERT_OK(file_.Write((kRing + offset_sectors) * kSectorBytes, builder.Finish(offset_sectors)));
  }
  void Damage(uint64_t offset_sectors, uint64_t byte = 3000) {
    std::vector<std::byte> sector(kSectorBytes);
    const uint64_t at = (kRing + offset_sectors) * kSectorBytes;
    ASSERT_OK(file_.Read(at, sector));
    sector[byte] ^= std::byte{1};
    ASSERT_OK(file_.Write(at, sector));
  }
  IntentLogRecord Log(uint64_t first_offset_sectors = 0, uint64_t first_sequence = 1) {
    return {.id = 7,
            .address = kRing,
            .sectors = kRing,
            .committed_layer = 0,
            .first_offset_sectors = first_offset_sectors,
            .first_sequence = first_sequence};
  }
  // The numbers of the batches found.
  absl::StatusOr<std::vector<uint64_t>> Read(const IntentLogRecord& log) {
    IntentLogReader reader(file_, log);
    std::vector<uint64_t> found;
    while (true) {
      const auto batch = reader.Next();
      if (!batch.ok()) return batch.status();
      if (!batch->has_value()) return found;
      found.push_back((*batch)->sequence);
      EXPECT_EQ((*batch)->entries.size(), 1u);
      EXPECT_EQ((*batch)->entries[0].data[0], std::byte('a' + (*batch)->sequence % 26));
    }
  }
  using Numbers = std::vector<uint64_t>;

  MemoryFile file_;
};

TEST_F(LogReaderTest, EmptyRing) { EXPECT_EQ(ValueOf(Read(Log())), Numbers()); }

TEST_F(LogReaderTest, ReadsInOrderAndGoesOnAtTheStart) {
  Put(1, 50, 30);
  Put(2, 80, 15);
  Put(3, 0, 6);  // did not fit behind
  Put(4, 6, 1);
  EXPECT_EQ(ValueOf(Read(Log(50))), (Numbers{1, 2, 3, 4}));
  EXPECT_EQ(ValueOf(Read(Log(80, 2))), (Numbers{2, 3, 4}));
}

TEST_F(LogReaderTest, IgnoresOtherLapsAndOtherLogs) {
  Put(1, 0, 2);
  Put(2, 2, 2, 1, /*log_id=*/8);  // another log's
  EXPECT_EQ(ValueOf(Read(Log())), Numbers{1});
  Put(2, 2, 2);
  Put(1, 4, 2);  // of an earlier lap
  EXPECT_EQ(ValueOf(Read(Log())), (Numbers{1, 2}));
}

// A copy of a batch in another place, as a guest's data may hold it, is none.
TEST_F(LogReaderTest, BatchesKnowTheirPlace) {
  Put(1, 10, 1);
  std::vector<std::byte> sector(kSectorBytes);
  ASSERT_OK(file_.Read((kRing + 10) * kSectorBytes, sector));
  ASSERT_OK(file_.Write(kRing * kSectorBytes, sector));
  EXPECT_EQ(ValueOf(Read(Log())), Numbers());
}

TEST_F(LogReaderTest, TornLastBatchEndsTheLog) {
  for (const uint64_t byte : {uint64_t{0}, uint64_t{20}, uint64_t{44}, uint64_t{3000}}) {
    Put(1, 0, 2);
    Put(2, 2, 3);
    Damage(2, byte);
    EXPECT_EQ(ValueOf(Read(Log())), Numbers{1}) << byte;
  }
}

TEST_F(LogReaderTest, DamageBeforeTheLastBatchIsToldWhereverTheNextLies) {
  constexpr uint64_t kLongest = kMaxIntentBatchBytes / kSectorBytes;
  static_assert(kLongest > kRing, "any place of the ring is looked at");
  for (const uint64_t next : {uint64_t{52}, uint64_t{99}, uint64_t{0}}) {
    Begin();
    Put(1, 50, next == 52 ? 2 : next == 99 ? 49 : 50);
    Put(2, next, 1);
    Damage(50, 0);
    EXPECT_CODE(Read(Log(50)).status(), kDataLoss) << next;
  }
}

TEST_F(LogReaderTest, FileThatEndsInTheRingIsDamaged) {
  Put(1, 0, 2);
  ASSERT_OK(file_.Truncate((2 * kRing - 1) * kSectorBytes));
  EXPECT_CODE(Read(Log()).status(), kDataLoss);
}

TEST_F(LogReaderTest, BacklogCountsWhatNoCommitHas) {
  Put(1, 0, 1, /*layer=*/4);
  Put(2, 1, 1, /*layer=*/5);
  Put(3, 2, 2, /*layer=*/6);
  IntentLogRecord log = Log();
  log.committed_layer = 4;
  const IntentLogBacklog backlog = ValueOf(ReadIntentLogBacklog(file_, log));
  EXPECT_EQ(backlog.batches, 2u);
  EXPECT_EQ(backlog.entries, 2u);
  EXPECT_EQ(backlog.bytes, 3 * kSectorBytes - 2 * 96);
}

}  // namespace
}  // namespace cowshed::engine

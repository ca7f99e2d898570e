// SPDX-License-Identifier: Apache-2.0
//
// Batches of the intent log in memory: IntentBatchBuilder makes the bytes of one, IntentLogReader
// finds those that lie in a ring.
//
// Threads     Externally synchronised.
// Ownership   IntentLogReader borrows the file. An entry's bytes stay valid until the next batch is
// read. Cost        Building copies each byte once. Reading holds one batch in memory. Errors A
// batch that is not there is no error: the log ends before it. DATA_LOSS if the one
//             after it is there: batches are written one at a time, so it was whole once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/store/file.h"
#include "engine/store/intent_log_format.h"

namespace cowshed::engine {

// What a batch may hold at most: copied, written and, after a crash, read in one piece.
inline constexpr uint64_t kMaxIntentBatchBytes = 512 << 10;

class IntentBatchBuilder {
 public:
  void Begin(uint64_t log_id, uint64_t sequence);
  // Adds what `entry` says, with length_bytes bytes of `data` unless it is zeros. What continues
  // the entry before becomes one with it.
  void Add(const IntentEntry& entry, std::span<const std::byte> data);
  bool empty() const { return header_.entries == 0; }
  uint64_t bytes() const { return used_bytes_; }
  uint64_t sectors() const { return (used_bytes_ + kSectorBytes - 1) / kSectorBytes; }
  // The batch for that place in the ring, padded with zeros; valid until the next Begin.
  std::span<const std::byte> Finish(uint64_t offset_sectors);

 private:
  void Append(std::span<const std::byte> bytes);

  IntentBatchHeader header_;
  std::vector<std::byte> buffer_;  // kept from batch to batch
  uint64_t used_bytes_ = 0;
  uint64_t last_entry_ = 0;  // where its IntentEntry lies; 0: there is none
};

class IntentLogReader {
 public:
  struct Entry : IntentEntry {
    std::span<const std::byte> data;
  };
  struct Batch {
    uint64_t sequence = 0;
    uint64_t offset_sectors = 0;
    uint64_t sectors = 0;
    uint64_t layer = 0;  // the latest of its entries
    std::vector<Entry> entries;
  };

  IntentLogReader(const File& file, const IntentLogRecord& log);
  // The next batch, or nothing at the end of the log.
  absl::StatusOr<std::optional<Batch>> Next();
  // Where the batch after the last one read has to be.
  uint64_t next_offset_sectors() const { return offset_sectors_; }
  uint64_t next_sequence() const { return sequence_; }

 private:
  absl::StatusOr<std::optional<Batch>> ReadAt(uint64_t offset_sectors, uint64_t sequence);
  absl::StatusOr<bool> SuccessorIn(uint64_t begin_sectors, uint64_t end_sectors);

  const File& file_;
  const IntentLogRecord log_;
  uint64_t offset_sectors_;
  uint64_t sequence_;
  std::vector<std::byte> buffer_;
};

// What waits in a log to be replayed.
struct IntentLogBacklog {
  uint64_t batches = 0;
  uint64_t entries = 0;
  uint64_t bytes = 0;
};
absl::StatusOr<IntentLogBacklog> ReadIntentLogBacklog(const File& file, const IntentLogRecord& log);

}  // namespace cowshed::engine

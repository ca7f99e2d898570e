// SPDX-License-Identifier: Apache-2.0
//
// An append-only log of runs in the metadata store: the material of livelists and deadlists.
//
// Entries lie in chunks of one LMDB value each (table kLogs, key: log id, chunk number from 0); an
// append fills the last chunk, then opens new ones. Neighbouring entries of equal op, kind and
// birth whose sectors touch are joined within one append, but never into an entry that is stored
// already: whoever read up to the old end finds behind it everything that came later.
//
// On disk     An entry is 24 bytes, numbers little-endian; a chunk is 1..169 entries and nothing
//             else, and all chunks of a log but its last are full:
//
//               byte  0        6    7      8          16         20         24
//                     | address | op | kind | birth     | sectors  | zero     |
//                     48 bits    8    8      64 bits     32 bits    32 bits
//
// A log may have two holders (a livelist that needs its FREEs and a job that frees them): Share()
// adds one, Release() drops one; the last Release puts the log on the kDroppedLogs list, from which
// DropBite() removes chunks in bounded bites when the pool is idle.
//
// Threads     Appends and drops: txg thread. Reads: any thread, through any transaction.
// Errors      DATA_LOSS naming log and chunk for anything that does not decode.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/store/format.h"
#include "engine/store/id_source.h"
#include "engine/store/meta_store.h"

namespace cowshed::engine {

enum class LogOp : uint8_t { kAlloc = 1, kFree = 2, kDead = 3 };

struct LogEntry {
  LogOp op = LogOp::kAlloc;
  Run run;
  bool operator==(const LogEntry&) const = default;
};

// Extends `*run` by `next` if they are of one birth and kind and `next` starts where it ends (and
// the sum fits); returns whether it did.
bool Join(Run* run, const Run& next);
// Joins neighbours of a sequence, in place.
void JoinNeighbours(std::vector<Run>* runs);

// Sectors by kind; a number of blocks follows from the dataset's block size.
struct SectorSums {
  uint64_t data_sectors = 0;
  uint64_t node_sectors = 0;

  uint64_t total() const { return data_sectors + node_sectors; }
  void Add(const Run& run) {
    (run.kind == BlockKind::kData ? data_sectors : node_sectors) += run.sectors;
  }
  SectorSums& operator+=(const SectorSums& other);
  SectorSums& operator-=(const SectorSums& other);  // REQUIRES: Covers(other)
  // No part of `other` is greater.
  bool Covers(const SectorSums& other) const {
    return data_sectors >= other.data_sectors && node_sectors >= other.node_sectors;
  }
  bool operator==(const SectorSums&) const = default;
};

// Where a resumable read goes on: chunk and entry within it.
struct LogPosition {
  uint32_t chunk = 0;
  uint32_t entry = 0;
  bool operator==(const LogPosition&) const = default;
};

class PointerLog {
 public:
  static constexpr uint32_t kEntryBytes = 24;
  static constexpr uint32_t kEntriesPerChunk = kMaxPayloadBytes / kEntryBytes;  // 169

  // Appends; returns by how many entries the log grew (joins make it fewer than given).
  static absl::StatusOr<uint64_t> Append(WriteTxn& txn, LogId log,
                                         std::span<const LogEntry> entries);
  // Reads at most `max_entries` from `*position` on and moves it; appends to `*out`. Returns true
  // when the end was reached. Reading from {n, 0} in multiples of kEntriesPerChunk leaves the
  // position at the start of a chunk until the end is reached.
  static absl::StatusOr<bool> Read(const MetaTxn& txn, LogId log, LogPosition* position,
                                   uint64_t max_entries, std::vector<LogEntry>* out);
  // All entries, in order.
  static absl::Status ReadAll(const MetaTxn& txn, LogId log, std::vector<LogEntry>* out);
  // How many entries a log has whose front was not trimmed; looks at its last chunk only.
  static absl::StatusOr<uint64_t> Length(const MetaTxn& txn, LogId log);
  // Removes the chunks before `position.chunk` (they have been carried over elsewhere). The last
  // chunk always stays, so that chunk numbers go on rising.
  static absl::Status TrimFront(WriteTxn& txn, LogId log, LogPosition position);

  static absl::Status Share(WriteTxn& txn, LogId log);
  // DATA_LOSS if nobody holds the log any more.
  static absl::Status Release(WriteTxn& txn, LogId log);
  // Removes up to `max_chunks` chunks of released logs. Returns true when none are left.
  static absl::StatusOr<bool> DropBite(WriteTxn& txn, uint64_t max_chunks);
};

}  // namespace cowshed::engine

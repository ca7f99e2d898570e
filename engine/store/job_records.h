// SPDX-License-Identifier: Apache-2.0
//
// The records of work in progress: jobs on the reclaim queue, and the operations that wait for
// them. Encoded as those of records.h.
//
// Threads     Plain values.
// Errors      Decode: DATA_LOSS naming the record.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/store/format.h"
#include "engine/store/id_source.h"
#include "engine/store/meta_store.h"

namespace cowshed::engine {

enum class JobKind : uint8_t {
  kDataset = 1,   // frees what a livelist says: a destroyed dataset, or the part rolled back
  kSnapshot = 2,  // takes a dying snapshot out of its lineage, then frees its buckets
  kPrefix = 3,    // takes the datasets of a detached directory apart
};
enum class JobPhase : uint8_t { kVerify = 1, kFree = 2, kSnapshots = 3, kForget = 4 };

struct JobRecord {
  static constexpr Table kTable = Table::kJobs;
  JobKind kind = JobKind::kDataset;
  JobPhase phase = JobPhase::kVerify;
  uint8_t destroy_kind = 0;  // DestroyKind of stats.h
  uint8_t method = 0;        // DestroyMethod of stats.h
  bool stalled = false;
  OperationId operation{};
  int64_t create_time_ms = 0;  // the acknowledgement: reclaim latency counts from here
  DatasetId dataset{};         // whose snapshot records are to go (kDataset); 0: none
  SnapshotId snapshot{};       // kSnapshot
  DirectoryId directory{};     // kPrefix
  LivelistId livelist{};
  DeadlistId deadlist{};  // kDataset: to forget; kSnapshot: buckets to free
  TreeState tree;         // fallback walk: pointers with birth > min_birth
  Txg min_birth = 0;
  Txg origin_txg = 0;         // below the oldest snapshot of a fallback walk
  Txg cursor_start = 0;       // kFree: sublist (kDataset) or bucket (kSnapshot) worked on
  uint64_t cursor = 0;        // next address (livelist) or block (tree walk)
  uint32_t cursor_chunk = 0;  // kSnapshot: position in the bucket's log
  uint32_t cursor_entry = 0;
  uint64_t left_sectors = 0;  // still to be freed: its part of PoolRecord::freeing_sectors
  bool sized = false;         // its entries have been counted: left_entries is known
  uint64_t left_entries = 0;  // of its lists, still to be worked off
  std::string error;          // of a stalled one
  std::string Encode() const;
  static absl::StatusOr<JobRecord> Decode(std::string_view bytes);
};

// The rebuild of one dataset's livelist, queued or under way (engine/rebuilder.h).
struct RebuildRecord {
  static constexpr Table kTable = Table::kStates;
  bool damaged = false;   // the list was dropped for damage: alarmed until it is whole again
  SnapshotId snapshot{};  // hidden: pins the state that is walked; 0: still queued
  Txg txg = 0;            // of that snapshot
  LivelistId shadow{};    // what has been found so far
  Txg cursor_txg = 0;     // snapshot whose tree is walked; 0: the first, kWalked: none is left
  uint64_t cursor_block = 0;
  uint64_t sectors = 0;  // in the shadow

  static constexpr Txg kWalked = UINT64_MAX;
  bool running() const { return snapshot != SnapshotId{}; }
  std::string Encode() const;
  static absl::StatusOr<RebuildRecord> Decode(std::string_view bytes);
};

struct OperationRecord {
  static constexpr Table kTable = Table::kOperations;
  uint8_t kind = 0;          // OperationKind of types.h
  uint8_t state = 0;         // OperationState of types.h
  uint8_t destroy_kind = 0;  // DestroyKind of stats.h, for its latency
  std::string target;
  uint64_t target_count = 0;
  uint64_t jobs_left = 0;        // jobs and doomed or deferred objects it waits for
  uint64_t planned_sectors = 0;  // by its call: jobs come later
  uint64_t done_sectors = 0, total_sectors = 0;
  uint64_t done_entries = 0, total_entries = 0;
  std::string error;
  int64_t create_time_ms = 0, start_time_ms = 0, update_time_ms = 0, finish_time_ms = 0;
  int64_t wait_until_ms = 0;  // the end of its window; 0: none, or it has ended
  DirectoryId directory{};    // detached, waits with it; 0: none
  Txg txg = 0;
  std::string Encode() const;
  static absl::StatusOr<OperationRecord> Decode(std::string_view bytes);
};

}  // namespace cowshed::engine

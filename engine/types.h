// SPDX-License-Identifier: Apache-2.0
//
// The public nouns of the engine: what its callers get to see of datasets, snapshots, holds,
// operations and space. Plain values; times are unix milliseconds, 0 meaning "never" or "none".
//
// Names       1..255 bytes: segments [A-Za-z0-9][A-Za-z0-9._:-]* joined by '/', at most one '@'.
// Uids        32 hex digits, unique for ever; never reused, unlike names.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/calls.h"
#include "engine/check_report.h"
#include "engine/errors.h"

namespace cowshed::engine {

enum class DatasetState : uint8_t { kActive = 1, kTrimming = 2, kExpired = 3 };

struct DatasetInfo {
  std::string name;
  std::string uid;
  Txg create_txg = 0;
  int64_t create_time_ms = 0;
  DatasetState state = DatasetState::kActive;
  uint64_t size_bytes = 0;
  uint32_t block_bytes = 0;
  std::string origin;      // "name@snap"; empty: not a clone, or its origin is hidden
  std::string origin_uid;  // empty: not a clone
  std::string parent;      // whose snapshot the origin is, hidden or not
  Labels labels;
  std::string etag;  // changes with every lifecycle change, not with writes
  std::optional<uint64_t> quota_bytes;
  int64_t expire_time_ms = 0;
  uint64_t used_bytes = 0;        // freed by destroying it with its snapshots
  uint64_t referenced_bytes = 0;  // reachable from the head
  uint64_t written_bytes = 0;     // of these, born since the previous snapshot
  uint64_t logical_bytes = 0;     // data blocks of the head, without nodes
  uint64_t snapshot_count = 0;    // visible ones
  uint64_t clone_count = 0;       // visible clones of its snapshots
};

struct SnapshotInfo {
  std::string name;  // "dataset@snap"
  std::string uid;
  std::string dataset_uid;
  Txg create_txg = 0;
  int64_t create_time_ms = 0;
  uint64_t size_bytes = 0;
  uint32_t block_bytes = 0;
  uint64_t referenced_bytes = 0;
  uint64_t written_bytes = 0;
  uint64_t unique_bytes = 0;  // freed by destroying only it
  uint64_t logical_bytes = 0;
  uint64_t clone_count = 0;
  uint64_t hold_count = 0;
  bool deferred = false;
  Labels labels;
};

struct HoldInfo {
  std::string snapshot, snapshot_uid;
  std::string tag;
  std::string owner;
  int64_t create_time_ms = 0, expire_time_ms = 0;
};

inline constexpr size_t kMaxDamagedPlaces = 20;

enum class OperationKind : uint8_t {
  kDestroyDatasets = 1,
  kDestroySnapshots = 2,
  kRollback = 3,
  kTrim = 4,
  kExpire = 5,
  kScrub = 6,
  kBackup = 7
};
enum class OperationState : uint8_t {
  kPending = 1,
  kRunning = 2,
  kSucceeded = 3,
  kFailed = 4,
  kStalled = 5,  // cannot go on without repair; what is left stays referenced and counted
  kWaiting = 6,  // until its window ends Undestroy brings everything back
  kUndone = 7    // Undestroy did
};

// Nothing more will happen by itself.
constexpr bool IsDone(OperationState state) {
  return state == OperationState::kSucceeded || state == OperationState::kFailed ||
         state == OperationState::kStalled || state == OperationState::kUndone;
}

// Blocks of one object that a scrub could not read as they were written.
struct DamagedPlace {
  std::string name;  // dataset or "dataset@snap" as it is called now; empty: destroyed since
  uint64_t first_block = 0;
  uint64_t block_count = 0;  // more than one below a damaged node
  bool node = false;         // the damage is in a node: its blocks themselves may be whole
};

struct OperationInfo {
  std::string name;  // "operations/<number>"
  OperationKind kind = OperationKind::kDestroyDatasets;
  OperationState state = OperationState::kPending;
  std::string target;  // first object it works on, as named when it began
  uint64_t target_count = 0;
  uint64_t done_bytes = 0;
  uint64_t total_bytes = 0;   // estimate until every job has been sized; never shrinks
  uint64_t done_entries = 0;  // blocks
  uint64_t total_entries = 0;
  uint64_t rate_bytes_per_second = 0;
  int64_t eta_ms = 0;  // 0: unknown or done
  std::string error;   // of a failed or stalled one
  int64_t create_time_ms = 0;
  int64_t start_time_ms = 0;
  int64_t update_time_ms = 0;
  int64_t finish_time_ms = 0;
  int64_t wait_until_ms = 0;          // kWaiting: when its window ends at the latest
  Txg txg = 0;                        // of the call that began it
  uint64_t errors = 0;                // kScrub: blocks and nodes that could not be read as written
  std::vector<DamagedPlace> damaged;  // the first of them, at most kMaxDamagedPlaces

  bool done() const { return IsDone(state); }
};

struct DestroyPlan {
  uint64_t dataset_count = 0;
  uint64_t snapshot_count = 0;
  uint64_t deferred_count = 0;  // of the snapshots: would only be marked
  uint64_t freed_bytes = 0;
  uint64_t entries = 0;            // of the lists that reclaim will read; validate_only
  double predicted_seconds = 0;    // that reclaim will take for it alone; validate_only
  std::vector<std::string> names;  // the first 100
  Blockers blockers;
  std::string plan_etag;
};

struct SublistInfo {
  Txg start_txg = 0;
  uint64_t entries = 0;           // runs logged
  uint64_t blocks = 0;            // of data, that survive
  uint64_t allocated_blocks = 0;  // of data, logged
  uint64_t bytes = 0;             // that survive
  uint64_t logs = 0;              // own and attached
};

enum class LivelistState : uint8_t { kWhole = 1, kDropped = 2, kRebuilding = 3 };

struct LivelistInfo {
  LivelistState state = LivelistState::kWhole;  // unless whole, a destroy walks the tree
  std::string dataset;
  std::string uid;
  Txg origin_txg = 0;
  std::vector<SublistInfo> sublists;  // one page
  Txg next_start = 0;                 // where the next page begins; 0: no more
  SublistInfo total;                  // over all sublists; start_txg = number of sublists
  double destroy_seconds = 0;         // that reclaim would take for it alone
  Txg txg = 0;
};

// A stretch that differs between two trees; a hole in the newer one reads as zeros.
struct DiffExtent {
  uint64_t offset_bytes = 0;
  uint64_t length_bytes = 0;
  bool data = false;
};

struct SpaceInfo {
  uint64_t capacity_bytes = 0;
  uint64_t allocated_bytes = 0;  // referenced, queued for reclaim or freed and not yet reusable
  uint64_t available_bytes = 0;  // for writes: free, less the reserve, bounded by the host
  uint64_t freeing_bytes = 0;    // of allocated: queued for reclaim or in the free log
  uint64_t waiting_bytes = 0;    // of allocated: of destroyed datasets not queued yet
  uint64_t reserve_bytes = 0;
};

// How reclaim runs, and what it has before it.
struct ReclaimInfo {
  bool paused = false;
  uint64_t rate_bytes_per_second = 0;  // 0: no limit
  uint64_t txg_budget_us = 0;          // that it may add to a txg; the default where none is set
  uint64_t pending_items = 0;
  uint64_t pending_bytes = 0;
  uint64_t waiting_items = 0;  // destroyed datasets: in their window, or clones need them
  uint64_t waiting_bytes = 0;
  uint64_t stalled_bytes = 0;      // of pending: can not be freed without repair
  int64_t oldest_pending_ms = 0;   // 0: none
  int64_t next_window_end_ms = 0;  // 0: none
};

}  // namespace cowshed::engine

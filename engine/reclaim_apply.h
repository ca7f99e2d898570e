// SPDX-License-Identifier: Apache-2.0
//
// The half of the reclaimer that runs in a txg: applies what a round has prepared for one job. It
// frees, forgets and moves the cursor in one commit (I8).
//
// Threads     Txg thread only.
#pragma once

#include <array>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/reclaim_pacer.h"
#include "engine/tree/pointer_log.h"
#include "engine/txg.h"

namespace cowshed::engine {

// What a round has prepared for one job, and where the job's cursor will be after it.
struct ReclaimBite {
  JobId id{};
  JobRecord job;          // as read; a job that has changed since is left alone
  std::vector<Run> runs;  // to be freed
  std::vector<Txg> done_sublists;
  Txg cursor_start = 0;
  uint64_t cursor = 0;
  LogPosition position;
  uint64_t limit = 0;          // of what its phase does in the txg: names, snapshots, tail entries
  int64_t begin_ms = 0;        // when its preparation began
  uint64_t total_entries = 0;  // of the job's lists, where it has not been sized yet
  uint64_t left_entries = 0;   // of them after this bite
  bool verified_only = false;  // the list has been read whole and is good; nothing to free yet
  bool all_freed = false;      // the phase kFree ends with this bite
  bool to_tree_walk = false;   // the list is damaged: walk the tree instead
  absl::Status damage;         // found after the first free: stall
};

// What a bite was, for the pacer; kCount: nothing that has a cost of its own.
struct ReclaimWork {
  ReclaimUnit unit = ReclaimUnit::kCount;
  uint64_t count = 0;
};
absl::StatusOr<ReclaimWork> ApplyBite(TxgContext& context, const ReclaimBite& bite);
// Stalls the job of a bite that could not be applied.
absl::Status StallBite(TxgContext& context, const ReclaimBite& bite, const absl::Status& why);

// What the bites of a round have cost in their txg, by unit.
struct RoundCost {
  struct Sum {
    uint64_t count = 0;
    double seconds = 0;
  };
  std::array<Sum, static_cast<size_t>(ReclaimUnit::kCount)> units;
  double seconds = 0;
};

// Takes a dying snapshot out of its lineage, in as many bites as its neighbour's deadlist needs:
// true when it is out and `*job` frees the buckets that only it held (reclaim_snapshot.cc).
absl::StatusOr<bool> TakeSnapshotOut(TxgContext& context, uint64_t max_tail_entries,
                                     JobRecord* job);

}  // namespace cowshed::engine

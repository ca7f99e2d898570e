// SPDX-License-Identifier: Apache-2.0
//
// The two things that ever happen to a block pointer, and the one rule for each (design section
// "the life of a block"): what a dataset's txg bore and killed, sorted into what its livelist, its
// deadlist and the allocator must hear.
//
//   Born(p):    livelist ALLOC
//   Killed(p):  birth > previous snapshot: only the head saw it -> livelist FREE, and freed
//               else a snapshot holds it                        -> deadlist
//
// A block born and killed in the same txg is never logged, only freed.
//
// Threads     Externally synchronised; one object per dataset and txg.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/store/format.h"
#include "engine/tree/pointer_log.h"

namespace cowshed::engine {

class PointerChanges {
 public:
  PointerChanges(Txg now, Txg previous_snapshot_txg)
      : now_(now), previous_snapshot_txg_(previous_snapshot_txg) {}

  void Born(const BlockPtr& pointer, std::span<const Run> extents);
  void Killed(const BlockPtr& pointer, std::span<const Run> extents);
  // Drops pairs born and killed in this txg from the logs and puts all runs in order, joined. Call
  // once, after the last change and before the first three getters.
  void Settle();

  const std::vector<LogEntry>& livelist_entries() const { return livelist_entries_; }
  const std::vector<Run>& freed() const { return freed_; }  // to the allocator
  const std::vector<Run>& dead() const { return dead_; }    // to the deadlist
  bool empty() const { return born_sums_.total() == 0 && killed_sums_.total() == 0; }

  // Everything born / killed, also what was born and killed at once.
  const SectorSums& born_sums() const { return born_sums_; }
  const SectorSums& killed_sums() const { return killed_sums_; }
  // The part of killed_sums() that was freed (birth > previous snapshot).
  const SectorSums& freed_sums() const { return freed_sums_; }
  // Data blocks referenced by the head: born less killed.
  int64_t data_blocks_delta() const { return data_blocks_delta_; }

 private:
  Txg now_;
  Txg previous_snapshot_txg_;
  bool settled_ = false;
  std::vector<Run> born_;  // until Settle
  std::vector<LogEntry> livelist_entries_;
  std::vector<Run> freed_;
  std::vector<Run> dead_;
  SectorSums born_sums_;
  SectorSums killed_sums_;
  SectorSums freed_sums_;
  int64_t data_blocks_delta_ = 0;
};

}  // namespace cowshed::engine

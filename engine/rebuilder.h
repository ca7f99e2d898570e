// SPDX-License-Identifier: Apache-2.0
//
// The rebuilder makes livelists whole again that were dropped for damage or lost by a promote
// (livelist_drop.h), while writes, snapshots and clones of the dataset go on.
//
// Begin       A hidden snapshot H of the head. What is born later is logged as ever; what was born
//             up to H stays as it is until the end: the head's kills go to the deadlist, and jobs
//             that would take own snapshots out of the lineage wait.
// Walk        The trees of the own snapshots s1 < s2 < ... < H, in bites outside any txg. Pointers
//             of s_i's tree born after s_(i-1) (for s1: after the origin) are exactly what survives
//             of the births in between (I4, and a block that dies between two snapshots is in
//             neither). A small task puts each bite's runs, sorted and joined, as ALLOCs into a
//             shadow list, one sublist per snapshot, and moves the persisted cursor (I8).
// Swap        One task: what was logged meanwhile (the fewer sublists) moves behind the shadow,
//             which becomes the dataset's list. Its sum must be what the written sums of the
//             records say, or nothing is installed. Then H goes as any hidden snapshot does.
//
// It ends early where the lineage changes otherwise (CancelRebuild), and on a host that is full, so
// that destroys never wait for it there. A walk that meets damage fails: the list stays dropped,
// and is tried again when the pool is next opened.
//
// The step also forgets the sublists of dropped lists, and clears the alarm livelist_damaged once
// no damaged list is left.
//
// Failpoints  rebuild.begin, rebuild.walk, rebuild.shadow, rebuild.swap: in front of each task;
//             mutate.rebuild_forgets_newest walks all trees but H's.
// Threads     Step: one thread at a time. Its tasks run on the txg thread.
#pragma once

#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/stats.h"
#include "engine/store/records.h"
#include "engine/txg.h"

namespace cowshed::engine {

// Drops a list that a read has found damaged, without waiting for it.
void SubmitDrop(TxgManager& txgs, DatasetId id);

class Rebuilder {
 public:
  Rebuilder(PoolParts& parts, TxgManager& txgs) : parts_(parts), txgs_(txgs) {}

  // One bite of work. True if anything was done.
  absl::StatusOr<bool> Step();

 private:
  struct Entry {
    DatasetId id{};
    RebuildRecord record;
  };
  // What a bite has found: the runs of a sublist, and the record after it.
  struct Found {
    std::vector<std::pair<Txg, std::vector<Run>>> sublists;  // by start, rising
    RebuildRecord after;
  };

  absl::StatusOr<bool> ForgetDropped();
  absl::Status RefreshAlarm();
  // The rebuild under way, else the first queued one that has not failed in this process.
  absl::StatusOr<std::optional<Entry>> Next();
  absl::Status Begin(const Entry& entry);
  absl::Status Advance(const Entry& entry);
  absl::StatusOr<Found> Walk(const Entry& entry) const;
  absl::Status Cancel(const Entry& entry, RebuildResult result);
  bool HostIsFull() const;

  PoolParts& parts_;
  TxgManager& txgs_;
  std::set<DatasetId> failed_;
  bool looked_ = false;  // for damage that an earlier process left behind
};

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// The scrub reads every block and node of the pool once and verifies it, while the pool works, so
// that damage is found while there is something to mend it from.
//
// Once        What is shared is read once. A block is held first by the oldest tree of its lineage:
//             own snapshots s1 < s2 < ... of a dataset, then its head. Of each tree only what was
//             born after the one before it (for the first: after the origin) is read (I4).
// Order       Snapshots that are there when it begins, by id, so the older ones of a lineage first;
//             then one tree for each dataset: what its head held at the begin is now held first by
//             the first own snapshot taken since, or still by the head. A block is held by an ever
//             later tree of its lineage as snapshots come and go, so nothing is missed: blocks born
//             later are not its business. (A dataset that is promoted to and fro over a snapshot
//             taken meanwhile may have blocks read twice, or left for the next scrub.)
// Covers      Datasets and snapshots, visible or not: those that clones need, and those whose
//             window has not ended. Not what a job is freeing: nobody will read it again.
// Damage      In a block or node is counted, and the first places are kept; the scrub goes on
// behind it.
//             In a record that leads to a tree it ends the scrub: that is for the offline check.
// Progress    A record per bite, in one txg with its operation's figures (I8): a restart and a
//             pause lose at most a bite. A bite holds a reader epoch only for itself.
// Manners     At most the given rate; as long a pause as the bite took while others work.
//
// Failpoints  scrub.bite before a bite is read, scrub.book before it is booked;
//             mutate.scrub_skips_snapshots reads heads only.
// Threads     Step: one thread at a time. Start and Cancel: txg thread.
#pragma once

#include <chrono>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/pool.h"
#include "engine/scrub_walk.h"
#include "engine/store/scrub_record.h"
#include "engine/txg.h"

namespace cowshed::engine {

// The tasks of the calls of pool.h.
absl::StatusOr<Verdict> StartScrub(TxgContext& context, const StartScrubArgs& args,
                                   Outcome* outcome);
absl::StatusOr<Verdict> CancelScrub(TxgContext& context, const CancelScrubArgs& args,
                                    Outcome* outcome);
// Adds to the description of an operation what its scrub has found; nothing for other kinds.
absl::Status AddScrubResult(const MetaTxn& txn, OperationId id, OperationInfo* info);

class Scrubber {
 public:
  Scrubber(PoolParts& parts, TxgManager& txgs) : parts_(parts), txgs_(txgs) {}

  // One bite of the scrub that is under way, or a part of the pause after it. True if there is
  // more.
  absl::StatusOr<bool> Step();

 private:
  using Clock = std::chrono::steady_clock;
  struct Entry {
    OperationId id{};
    ScrubRecord record;
  };

  absl::StatusOr<std::optional<Entry>> Find();
  uint64_t BiteBytes(const ScrubRecord& record, bool busy) const;
  // The record after a bite.
  absl::StatusOr<ScrubRecord> Read(const ScrubRecord& from, uint64_t max_bytes) const;
  // A record that leads to the trees can not be read: ends the scrub.
  absl::Status GiveUp(const Entry& entry, const absl::Status& why);
  absl::Status Book(const Entry& before, ScrubRecord after);

  PoolParts& parts_;
  TxgManager& txgs_;
  bool looked_ = false;  // for a scrub that an earlier process has begun
  Clock::time_point not_before_{};
};

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// The reclaimer gives back what destroyed datasets and snapshots held. It prepares outside of any
// txg (reads logs, finds survivors) and submits one bounded task a round: "free these, advance the
// cursor", for as many small jobs as fit and one bite of each large one in turn. Freeing and
// forgetting are one commit, so a crash repeats nothing and leaks nothing (I8).
//
// A job of a dataset   kVerify: its whole livelist is read once; kFree: sublist by sublist, in
//                      address order; kSnapshots: own snapshots' records go; kForget: logs go.
// A damaged list       found before its first free: the job alone falls back to a walk of its
// trees,
//                      pruned by birth. Found later, or a double free: the job is stalled, its rest
//                      stays referenced and counted; others go on.
// A job of a snapshot  kVerify: takes it out of its lineage; kFree: frees the buckets it alone
// held. A job of a prefix    dooms the datasets of a detached directory, a bounded number a txg.
//
// Threads     Step: one thread at a time. The task it submits runs on the txg thread.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "engine/reclaim_apply.h"
#include "engine/txg.h"

namespace cowshed::engine {

class Reclaimer {
 public:
  Reclaimer(PoolParts& parts, TxgManager& txgs) : parts_(parts), txgs_(txgs) {}

  // One round over the queue. True if anything was done.
  absl::StatusOr<bool> Step();

 private:
  // Survivors of the sublist that a large job is in the middle of.
  struct Survivors {
    LivelistId livelist{};
    Txg start = 0;
    std::vector<Run> runs;
  };

  absl::StatusOr<std::vector<ReclaimBite>> Prepare();
  absl::StatusOr<ReclaimBite> PrepareJob(const MetaTxn& txn, JobId id, JobRecord job,
                                         uint64_t budget);
  absl::Status PrepareSublists(const MetaTxn& txn, uint64_t budget, ReclaimBite* bite);
  absl::Status PrepareTreeWalk(const MetaTxn& txn, uint64_t budget, ReclaimBite* bite);
  absl::Status PrepareBuckets(const MetaTxn& txn, uint64_t budget, ReclaimBite* bite);
  absl::StatusOr<const std::vector<Run>*> SurvivorsOf(const MetaTxn& txn, LivelistId livelist,
                                                      Txg start);

  PoolParts& parts_;
  TxgManager& txgs_;
  uint64_t next_job_ = 0;  // where the next round begins: large jobs take turns
  Survivors survivors_;
};

// Submits a task and waits until it is durable or refused.
absl::Status RunTask(TxgManager& txgs, std::function<absl::StatusOr<Verdict>(TxgContext&)> run);

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// The reclaimer gives back what destroyed datasets and snapshots held. It prepares outside of any
// txg (reads logs, finds survivors) and submits one bounded task a round: "free these, advance the
// cursor", for as many small jobs as fit and one bite of a large one. Freeing and forgetting are
// one commit, so a crash repeats nothing and leaks nothing (I8). The pacer says how much fits into
// a round; the frees of the last one become free sectors in a txg that is asked for at once.
//
// Turns       Small jobs, those that fit half a round, come first and get half of it while a large
//             one is under way. Large ones take turns of reclaim_bite_runs runs, not of rounds: to
//             resume in the middle of a sublist costs reading it again.
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

#include <chrono>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/reclaim_apply.h"
#include "engine/tree/live_list.h"
#include "engine/txg.h"

namespace cowshed::engine {

class Reclaimer {
 public:
  Reclaimer(PoolParts& parts, TxgManager& txgs) : parts_(parts), txgs_(txgs) {}

  // One round over the queue. True if anything was done.
  absl::StatusOr<bool> Step();

 private:
  // What a round may still do, and what it has so far.
  struct Round {
    double seconds = 0;  // in the txg
    uint64_t runs = 0;
    std::vector<ReclaimBite> bites;
    std::vector<JobId> large;  // seen on the way
    bool saw_all = false;
  };
  struct Turn {
    JobId id{};
    uint64_t left_runs = 0;
  };
  // Survivors of a stretch of the sublist that a job is in the middle of: as many as fit
  // reclaim_memory_bytes.
  struct Survivors {
    LivelistId livelist{};
    Txg start = 0;
    uint64_t from_address = 0;
    SurvivorBite bite;
  };

  Round BeginRound(const PoolRecord& pool) const;
  absl::Status Prepare(Round* round);
  absl::Status PrepareSmallJobs(const MetaTxn& txn, Round* round);
  absl::Status PrepareLargeJob(const MetaTxn& txn, Round* round);
  // Takes what `bite` will cost out of the round.
  void Charge(const ReclaimBite& bite, Round* round) const;
  // Applies the bites in one txg. One that meets damage half-way would take the others along: then
  // each gets a txg of its own, and the job of that one stalls.
  absl::Status RunBites(std::span<const ReclaimBite> bites, RoundCost* cost);
  absl::Status RunTogether(std::span<const ReclaimBite> bites, RoundCost* cost);
  absl::Status Apply(TxgContext& context, std::span<const ReclaimBite> bites,
                     RoundCost* cost) const;
  void Observe(const RoundCost& cost, double round_seconds);
  absl::StatusOr<ReclaimBite> PrepareJob(const MetaTxn& txn, JobId id, JobRecord job,
                                         const Round& round);
  absl::Status PrepareSublists(const MetaTxn& txn, uint64_t budget, ReclaimBite* bite);
  absl::Status PrepareTreeWalk(const MetaTxn& txn, uint64_t budget, ReclaimBite* bite);
  absl::Status PrepareBuckets(const MetaTxn& txn, uint64_t budget, ReclaimBite* bite);
  // Those of `sublist` from `address` on, or some of them.
  absl::StatusOr<const SurvivorBite*> SurvivorsOf(const MetaTxn& txn, LivelistId livelist,
                                                  const Sublist& sublist, uint64_t address);

  PoolParts& parts_;
  TxgManager& txgs_;
  uint64_t next_job_ = 0;  // where the next round looks for small jobs
  Turn turn_;              // of the large ones
  bool idle_lap_ = false;  // nothing was found since it last came to the queue's end
  Survivors survivors_;
  std::chrono::steady_clock::time_point rests_until_{};
};

// Submits a task and waits until it is durable or refused.
absl::Status RunTask(TxgManager& txgs, std::function<absl::StatusOr<Verdict>(TxgContext&)> run);

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// Long-running work as its callers see it: an Operation waits for a number of jobs on the reclaim
// queue (and for doomed datasets that will become jobs), and is done when none is left. Progress,
// jobs and the sectors they free change in the same txg, so both survive any crash exactly.
//
// Threads     Txg thread only.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/txg.h"
#include "engine/types.h"

namespace cowshed::engine {

// Makes an operation that waits for nothing yet.
absl::StatusOr<OperationId> BeginOperation(TxgContext& context, OperationKind kind,
                                           DestroyKind destroy_kind, std::string target,
                                           uint64_t target_count);
// What the call planned to free; `window_ms` > 0: it waits that long before it begins.
absl::Status PlanOperation(TxgContext& context, OperationId id, uint64_t sectors,
                           int64_t window_ms);
// Ends the set-up: an operation that waits for nothing is done at once. Describes it.
absl::StatusOr<OperationInfo> SealOperation(TxgContext& context, OperationId id);

// The operation (0: none) waits for one more thing, or for one less.
absl::Status AddPending(TxgContext& context, OperationId id);
absl::Status EndPending(TxgContext& context, OperationId id);

// Queues a job: job.left_sectors become the pool's `freeing`, its operation waits for it.
absl::StatusOr<JobId> AddJob(TxgContext& context, JobRecord job);
// More for a queued job to free (a snapshot's part is known only when it leaves its lineage), or to
// read (the entries of a list are counted when its turn comes).
absl::Status GrowJob(TxgContext& context, JobRecord* job, uint64_t sectors, uint64_t entries);
// Books a step of a job. The caller stores the job.
struct FreedStep {
  uint64_t sectors = 0;
  uint64_t entries = 0;  // of its lists, worked off
  int64_t begin_ms = 0;  // when its preparation began
};
absl::Status BookFreed(TxgContext& context, JobRecord* job, const FreedStep& step);
// The job has done everything: forgets it.
absl::Status FinishJob(TxgContext& context, JobId id, const JobRecord& job);
// The job cannot go on: its rest stays referenced and counted, its operation says so.
absl::Status StallJob(TxgContext& context, JobId id, JobRecord job, ReclaimFailure reason,
                      std::string error);
// What an operation without jobs has read or copied by now; it is under way.
absl::Status BookProgress(TxgContext& context, OperationId id, uint64_t done_sectors);
// It waits for somebody to go on with it.
absl::Status PauseOperation(TxgContext& context, OperationId id);
// It waits for nothing any more: it has failed.
absl::Status FailOperation(TxgContext& context, OperationId id, std::string error);
// The operation's window has ended (its jobs are queued next), or Undestroy has ended it.
absl::Status LeaveWindow(TxgContext& context, OperationId id, WindowEnd end);
// Forgets done operations that finished before `before_ms`, at most `limit`. True if none is left.
absl::StatusOr<bool> ForgetOperations(TxgContext& context, int64_t before_ms, uint64_t limit);

}  // namespace cowshed::engine

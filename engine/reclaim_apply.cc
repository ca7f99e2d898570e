// SPDX-License-Identifier: Apache-2.0
#include "engine/reclaim_apply.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/catalog.h"
#include "engine/lifecycle.h"
#include "engine/livelist_drop.h"
#include "engine/operations.h"
#include "engine/tree/dead_list.h"
#include "engine/tree/live_list.h"

namespace cowshed::engine {
namespace {

constexpr uint64_t kLogsPerBite = 500;
// With fewer runs a bite costs what the job costs.
constexpr uint64_t kRunsToMeasure = 64;

uint64_t Sectors(const std::vector<Run>& runs) {
  uint64_t sectors = 0;
  for (const Run& run : runs) sectors += run.sectors;
  return sectors;
}

// The list is damaged but nothing of it has been freed: the job goes on by the tree.
absl::Status SwitchToTreeWalk(TxgContext& context, JobId id, JobRecord job) {
  WalkTrees(&job);
  PoolStats& stats = context.parts.stats;
  context.after_commit.emplace_back([&stats] {
    ++stats.livelist_dropped[DropReason::kDamaged];
    ++stats.reclaim_failures[ReclaimFailure::kDamagedList];
    stats.alarms[Alarm::kLivelistDamaged] = 1;
  });
  return StoreRecord(context.meta, Key(id), job);
}

// Own snapshots of a dataset that is gone: their records go, their deadlists join the job's.
absl::StatusOr<ReclaimWork> DropSnapshots(TxgContext& context, JobId id, JobRecord job,
                                          uint64_t limit) {
  ASSIGN_OR_RETURN(const std::vector<Neighbour> snapshots,
                   SnapshotsAbove(context.meta, job.dataset, 0, limit));
  for (const Neighbour& neighbour : snapshots) {
    ASSIGN_OR_RETURN(const SnapshotRecord snapshot,
                     LoadRecord<SnapshotRecord>(context.meta, Key(neighbour.id)));
    if (!snapshot.name.empty()) {
      RETURN_IF_ERROR(
          context.meta.Delete(Table::kSnapshotsByName, Key(job.dataset, snapshot.name)));
    }
    RETURN_IF_ERROR(context.meta.Delete(Table::kSnapshotsByTxg, Key(job.dataset, neighbour.txg)));
    RETURN_IF_ERROR(context.meta.Delete(Table::kSnapshots, Key(neighbour.id)));
    ASSIGN_OR_RETURN(job.deadlist, DeadList::Merge(context.meta, job.deadlist, snapshot.deadlist));
  }
  if (snapshots.size() < limit) job.phase = JobPhase::kForget;
  RETURN_IF_ERROR(StoreRecord(context.meta, Key(id), job));
  return ReclaimWork{ReclaimUnit::kSnapshot, snapshots.size()};
}

// Releases the logs of a deadlist nobody needs, then the job is done.
absl::Status Forget(TxgContext& context, JobId id, const JobRecord& job) {
  ASSIGN_OR_RETURN(const bool done, DeadList::Forget(context.meta, job.deadlist, kLogsPerBite));
  if (!done) return StoreRecord(context.meta, Key(id), job);
  if (job.left_sectors > 0) {
    return StallJob(
        context, id, job, ReclaimFailure::kDamagedList,
        "the list named fewer sectors than the dataset owned; the rest stays referenced");
  }
  return FinishJob(context, id, job);
}

absl::Status RemoveSublist(TxgContext& context, LivelistId livelist, Txg start) {
  ASSIGN_OR_RETURN(const SublistRecord removed, LiveList::Remove(context.meta, livelist, start));
  context.pool.livelist_entries -= removed.entries;
  --context.pool.livelist_sublists;
  return absl::OkStatus();
}

absl::StatusOr<ReclaimWork> TakePrefixApart(TxgContext& context, JobId id, const JobRecord& job,
                                            uint64_t limit) {
  for (uint64_t i = 0; i < limit; ++i) {
    ASSIGN_OR_RETURN(const std::optional<DatasetId> dataset,
                     Names::TakeFirst(context.meta, job.directory));
    if (!dataset.has_value()) {
      RETURN_IF_ERROR(FinishJob(context, id, job));
      return ReclaimWork{ReclaimUnit::kName, i};
    }
    ASSIGN_OR_RETURN(DatasetRecord record, LoadRecord<DatasetRecord>(context.meta, Key(*dataset)));
    RETURN_IF_ERROR(DoomDetached(context, *dataset, std::move(record), job));
  }
  return ReclaimWork{ReclaimUnit::kName, limit};
}

// Entries of the job's lists that the bite works off. A tree walk counts what it frees.
uint64_t EntriesDone(const ReclaimBite& bite, const JobRecord& job) {
  if (bite.all_freed) return job.left_entries;
  const bool list =
      job.kind == JobKind::kDataset && job.method != static_cast<uint8_t>(DestroyMethod::kTreeWalk);
  if (!list) return std::min<uint64_t>(job.left_entries, bite.runs.size());
  return job.left_entries - std::min(job.left_entries, bite.left_entries);
}

// Frees the bite's runs. A double free is caught before anything has changed.
absl::Status FreeRuns(TxgContext& context, const ReclaimBite& bite, JobRecord job) {
  const uint64_t sectors = Sectors(bite.runs);
  if (sectors > job.left_sectors) {
    return StallJob(context, bite.id, std::move(job), ReclaimFailure::kDoubleFree,
                    "the list names more sectors than the dataset owned");
  }
  if (!bite.runs.empty()) {
    const absl::Status freed = context.parts.allocator.Free(context.meta, context.txg, bite.runs);
    if (absl::IsDataLoss(freed)) {
      return StallJob(context, bite.id, std::move(job), ReclaimFailure::kDoubleFree,
                      std::string(freed.message()));
    }
    RETURN_IF_ERROR(freed);
    if (job.kind == JobKind::kDataset) context.pool.livelist_sectors -= sectors;
  }
  RETURN_IF_ERROR(BookFreed(context, &job, {sectors, EntriesDone(bite, job), bite.begin_ms}));
  for (const Txg start : bite.done_sublists) {
    RETURN_IF_ERROR(RemoveSublist(context, job.livelist, start));
  }
  job.phase = JobPhase::kFree;
  job.cursor_start = bite.cursor_start;
  job.cursor = bite.cursor;
  job.cursor_chunk = bite.position.chunk;
  job.cursor_entry = bite.position.entry;
  if (!bite.all_freed) return StoreRecord(context.meta, Key(bite.id), job);
  if (job.method == static_cast<uint8_t>(DestroyMethod::kTreeWalk)) {
    RETURN_IF_ERROR(ForgetLivelist(context, job.livelist));
  }
  job.phase = job.dataset != DatasetId{} ? JobPhase::kSnapshots : JobPhase::kForget;
  if (job.phase == JobPhase::kForget) return Forget(context, bite.id, job);
  return StoreRecord(context.meta, Key(bite.id), job);
}

absl::StatusOr<ReclaimWork> TakeOut(TxgContext& context, const ReclaimBite& bite, JobRecord job) {
  ASSIGN_OR_RETURN(const bool out, TakeSnapshotOut(context, bite.limit, &job));
  if (!out) {  // a bite off a deadlist's tail: it costs what its entries cost
    RETURN_IF_ERROR(StoreRecord(context.meta, Key(bite.id), job));
    return ReclaimWork{};
  }
  job.phase = JobPhase::kFree;
  RETURN_IF_ERROR(job.left_sectors == 0 ? Forget(context, bite.id, job)
                                        : StoreRecord(context.meta, Key(bite.id), job));
  return ReclaimWork{ReclaimUnit::kTakeOut, 1};
}

// Everything that is done for a list: verdicts, frees, forgetting.
absl::Status ApplyList(TxgContext& context, const ReclaimBite& bite, JobRecord job) {
  if (job.phase == JobPhase::kForget) return Forget(context, bite.id, job);
  if (bite.to_tree_walk) return SwitchToTreeWalk(context, bite.id, std::move(job));
  if (!bite.damage.ok()) {
    return StallJob(context, bite.id, std::move(job), ReclaimFailure::kDamagedList,
                    std::string(bite.damage.message()));
  }
  if (!job.sized) RETURN_IF_ERROR(GrowJob(context, &job, 0, bite.total_entries));
  if (!bite.verified_only) return FreeRuns(context, bite, std::move(job));
  job.phase = JobPhase::kFree;
  return StoreRecord(context.meta, Key(bite.id), job);
}

}  // namespace

absl::Status StallBite(TxgContext& context, const ReclaimBite& bite, const absl::Status& why) {
  ASSIGN_OR_RETURN(std::optional<JobRecord> job, FindRecord<JobRecord>(context.meta, Key(bite.id)));
  if (!job.has_value() || job->stalled) return absl::OkStatus();
  return StallJob(context, bite.id, *std::move(job), ReclaimFailure::kDamagedList,
                  std::string(why.message()));
}

absl::StatusOr<ReclaimWork> ApplyBite(TxgContext& context, const ReclaimBite& bite) {
  ASSIGN_OR_RETURN(std::optional<JobRecord> job, FindRecord<JobRecord>(context.meta, Key(bite.id)));
  if (!job.has_value() || job->Encode() != bite.job.Encode()) return ReclaimWork{};
  if (job->kind == JobKind::kPrefix) return TakePrefixApart(context, bite.id, *job, bite.limit);
  if (job->phase == JobPhase::kSnapshots) {
    return DropSnapshots(context, bite.id, *std::move(job), bite.limit);
  }
  if (job->kind == JobKind::kSnapshot && job->phase == JobPhase::kVerify && bite.damage.ok()) {
    return TakeOut(context, bite, *std::move(job));
  }
  RETURN_IF_ERROR(ApplyList(context, bite, *std::move(job)));
  const uint64_t runs = bite.runs.size();
  if (runs >= kRunsToMeasure) return ReclaimWork{ReclaimUnit::kRun, runs};
  return ReclaimWork{ReclaimUnit::kJob, 1};
}

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
#include "engine/operations.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/catalog.h"
#include "engine/lifecycle.h"
#include "engine/trim.h"

namespace cowshed::engine {
namespace {

absl::Status StoreOperation(TxgContext& context, OperationId id, OperationRecord record) {
  record.update_time_ms = context.now_ms;
  context.operations_changed = true;
  return StoreRecord(context.meta, Key(id), record);
}

void FinishOperation(TxgContext& context, OperationRecord* record) {
  record->state = static_cast<uint8_t>(OperationState::kSucceeded);
  record->finish_time_ms = context.now_ms;
  PoolStats& stats = context.parts.stats;
  const size_t kind = record->destroy_kind;
  const double seconds = static_cast<double>(context.now_ms - record->create_time_ms) / 1000;
  const auto what = static_cast<OperationKind>(record->kind);
  if (what == OperationKind::kTrim || what == OperationKind::kScrub ||
      what == OperationKind::kBackup) {
    return;
  }
  context.after_commit.emplace_back(
      [&stats, kind, seconds] { stats.reclaim_seconds[kind].Observe(seconds); });
}

}  // namespace

absl::StatusOr<OperationId> BeginOperation(TxgContext& context, OperationKind kind,
                                           DestroyKind destroy_kind, std::string target,
                                           uint64_t target_count) {
  OperationRecord record;
  record.kind = static_cast<uint8_t>(kind);
  record.state = static_cast<uint8_t>(OperationState::kPending);
  record.destroy_kind = static_cast<uint8_t>(destroy_kind);
  record.target = std::move(target);
  record.target_count = target_count;
  record.create_time_ms = context.now_ms;
  record.txg = context.txg;
  const auto id = context.parts.ids.Take<OperationId>();
  RETURN_IF_ERROR(StoreOperation(context, id, std::move(record)));
  return id;
}

absl::Status PlanOperation(TxgContext& context, OperationId id, uint64_t sectors,
                           int64_t window_ms) {
  ASSIGN_OR_RETURN(OperationRecord record, LoadRecord<OperationRecord>(context.meta, Key(id)));
  record.planned_sectors = sectors;
  if (window_ms > 0) {
    record.state = static_cast<uint8_t>(OperationState::kWaiting);
    record.wait_until_ms = context.now_ms + window_ms;
    RETURN_IF_ERROR(context.meta.Put(
        Table::kStates, Key(StateKey::kWindow, static_cast<uint64_t>(record.wait_until_ms), id),
        ""));
  }
  return StoreOperation(context, id, std::move(record));
}

absl::Status LeaveWindow(TxgContext& context, OperationId id, WindowEnd end) {
  ASSIGN_OR_RETURN(OperationRecord record, LoadRecord<OperationRecord>(context.meta, Key(id)));
  COWSHED_CHECK(record.state == static_cast<uint8_t>(OperationState::kWaiting),
                "a window ends once");
  RETURN_IF_ERROR(context.meta.Delete(
      Table::kStates, Key(StateKey::kWindow, static_cast<uint64_t>(record.wait_until_ms), id)));
  record.wait_until_ms = 0;
  if (end == WindowEnd::kUndone) {
    record.state = static_cast<uint8_t>(OperationState::kUndone);
    record.finish_time_ms = context.now_ms;
    record.jobs_left = 0;
    record.directory = DirectoryId{};
  } else {
    record.state = static_cast<uint8_t>(OperationState::kPending);
    // Under time 0 it comes first, until everything it kept has been let go.
    RETURN_IF_ERROR(context.meta.Put(Table::kStates, Key(StateKey::kWindow, uint64_t{0}, id), ""));
  }
  PoolStats& stats = context.parts.stats;
  context.after_commit.emplace_back([&stats, end] { ++stats.window_ends[end]; });
  return StoreOperation(context, id, std::move(record));
}

absl::StatusOr<OperationInfo> SealOperation(TxgContext& context, OperationId id) {
  ASSIGN_OR_RETURN(OperationRecord record, LoadRecord<OperationRecord>(context.meta, Key(id)));
  if (record.jobs_left == 0) {
    FinishOperation(context, &record);
    RETURN_IF_ERROR(StoreOperation(context, id, record));
  }
  return Describe(id, record);
}

absl::Status AddPending(TxgContext& context, OperationId id) {
  if (id == OperationId{}) return absl::OkStatus();
  ASSIGN_OR_RETURN(OperationRecord record, LoadRecord<OperationRecord>(context.meta, Key(id)));
  ++record.jobs_left;
  return StoreOperation(context, id, std::move(record));
}

absl::Status EndPending(TxgContext& context, OperationId id) {
  if (id == OperationId{}) return absl::OkStatus();
  ASSIGN_OR_RETURN(OperationRecord record, LoadRecord<OperationRecord>(context.meta, Key(id)));
  COWSHED_CHECK(record.jobs_left > 0, "an operation ends what it waits for once");
  --record.jobs_left;
  if (record.jobs_left == 0 && record.state != static_cast<uint8_t>(OperationState::kStalled)) {
    FinishOperation(context, &record);
  }
  return StoreOperation(context, id, std::move(record));
}

absl::Status BookProgress(TxgContext& context, OperationId id, uint64_t done_sectors) {
  ASSIGN_OR_RETURN(OperationRecord record, LoadRecord<OperationRecord>(context.meta, Key(id)));
  record.done_sectors = std::max(record.done_sectors, done_sectors);
  record.state = static_cast<uint8_t>(OperationState::kRunning);
  if (record.start_time_ms == 0) record.start_time_ms = context.now_ms;
  return StoreOperation(context, id, std::move(record));
}

absl::Status PauseOperation(TxgContext& context, OperationId id) {
  ASSIGN_OR_RETURN(OperationRecord record, LoadRecord<OperationRecord>(context.meta, Key(id)));
  record.state = static_cast<uint8_t>(OperationState::kPending);
  return StoreOperation(context, id, std::move(record));
}

absl::Status FailOperation(TxgContext& context, OperationId id, std::string error) {
  ASSIGN_OR_RETURN(OperationRecord record, LoadRecord<OperationRecord>(context.meta, Key(id)));
  record.state = static_cast<uint8_t>(OperationState::kFailed);
  record.jobs_left = 0;
  record.error = std::move(error);
  record.finish_time_ms = context.now_ms;
  return StoreOperation(context, id, std::move(record));
}

absl::StatusOr<JobId> AddJob(TxgContext& context, JobRecord job) {
  const auto id = context.parts.ids.Take<JobId>();
  if (job.create_time_ms == 0) job.create_time_ms = context.now_ms;
  context.pool.freeing_sectors += job.left_sectors;
  ++context.pool.jobs;
  context.jobs_changed = true;
  if (job.operation != OperationId{}) {
    ASSIGN_OR_RETURN(OperationRecord record,
                     LoadRecord<OperationRecord>(context.meta, Key(job.operation)));
    ++record.jobs_left;
    record.total_sectors += job.left_sectors;
    RETURN_IF_ERROR(StoreOperation(context, job.operation, std::move(record)));
  }
  RETURN_IF_ERROR(StoreRecord(context.meta, Key(id), job));
  return id;
}

absl::Status GrowJob(TxgContext& context, JobRecord* job, uint64_t sectors, uint64_t entries) {
  job->left_sectors += sectors;
  job->left_entries += entries;
  job->sized = true;
  context.pool.freeing_sectors += sectors;
  if (job->operation == OperationId{}) return absl::OkStatus();
  ASSIGN_OR_RETURN(OperationRecord record,
                   LoadRecord<OperationRecord>(context.meta, Key(job->operation)));
  record.total_sectors += sectors;
  record.total_entries += entries;
  return StoreOperation(context, job->operation, std::move(record));
}

absl::Status BookFreed(TxgContext& context, JobRecord* job, const FreedStep& step) {
  const uint64_t sectors = step.sectors;
  if (sectors > job->left_sectors) {
    return absl::DataLossError("a job would free more than its dataset owned");
  }
  if (sectors + step.entries == 0) return absl::OkStatus();
  job->left_sectors -= sectors;
  job->left_entries -= step.entries;
  context.pool.freeing_sectors -= sectors;
  context.pool.freed_sectors_total += sectors;
  PoolStats& stats = context.parts.stats;
  context.after_commit.emplace_back(
      [&stats, sectors] { stats.reclaim_freed_bytes += sectors * kSectorBytes; });
  if (job->operation == OperationId{}) return absl::OkStatus();
  ASSIGN_OR_RETURN(OperationRecord record,
                   LoadRecord<OperationRecord>(context.meta, Key(job->operation)));
  record.done_sectors += sectors;
  record.done_entries += step.entries;
  // The rate counts from the preparation of the first bite: reading is a part of the work.
  if (record.start_time_ms == 0) record.start_time_ms = std::min(step.begin_ms, context.now_ms);
  if (record.state == static_cast<uint8_t>(OperationState::kPending)) {
    record.state = static_cast<uint8_t>(OperationState::kRunning);
  }
  return StoreOperation(context, job->operation, std::move(record));
}

absl::Status FinishJob(TxgContext& context, JobId id, const JobRecord& job) {
  COWSHED_CHECK(job.left_sectors == 0, "a finished job has freed everything it owned");
  --context.pool.jobs;
  if (job.kind == JobKind::kDataset) --context.pool.livelists;
  if (job.kind != JobKind::kPrefix) {
    ++context.pool.destroyed_by_method[job.method];
    PoolStats& stats = context.parts.stats;
    context.after_commit.emplace_back(
        [&stats, method = job.method] { ++stats.destroy_methods.values[method]; });
  }
  RETURN_IF_ERROR(context.meta.Delete(Table::kJobs, Key(id)));
  return EndPending(context, job.operation);
}

absl::Status StallJob(TxgContext& context, JobId id, JobRecord job, ReclaimFailure reason,
                      std::string error) {
  job.stalled = true;
  job.error = error;
  context.pool.stalled_sectors += job.left_sectors;
  RETURN_IF_ERROR(StoreRecord(context.meta, Key(id), job));
  PoolStats& stats = context.parts.stats;
  context.after_commit.emplace_back([&stats, reason] {
    ++stats.reclaim_failures[reason];
    stats.alarms[Alarm::kReclaimStalled] = 1;
    if (reason == ReclaimFailure::kDamagedList) stats.alarms[Alarm::kLivelistDamaged] = 1;
  });
  if (job.operation == OperationId{}) return absl::OkStatus();
  ASSIGN_OR_RETURN(OperationRecord record,
                   LoadRecord<OperationRecord>(context.meta, Key(job.operation)));
  record.state = static_cast<uint8_t>(OperationState::kStalled);
  record.error = std::move(error);
  return StoreOperation(context, job.operation, std::move(record));
}

absl::StatusOr<bool> ForgetOperations(TxgContext& context, int64_t before_ms, uint64_t limit) {
  // Operations are numbered in the order of their creation, so old ones come first; one that is
  // still running keeps only itself.
  std::vector<OperationId> old;
  MetaCursor cursor(context.meta, Table::kOperations);
  uint64_t examined = 0;
  for (cursor.Seek(Key(uint64_t{0})); cursor.valid() && old.size() < limit && examined < 4 * limit;
       cursor.Next(), ++examined) {
    ASSIGN_OR_RETURN(const OperationRecord record, OperationRecord::Decode(cursor.value()));
    if (record.create_time_ms >= before_ms) break;
    if (record.finish_time_ms != 0 && record.finish_time_ms < before_ms) {
      old.push_back(KeyNumber<OperationId>(cursor.key(), 0));
    }
  }
  RETURN_IF_ERROR(cursor.status());
  for (const OperationId id : old) {
    RETURN_IF_ERROR(context.meta.Delete(Table::kOperations, Key(id)));
    RETURN_IF_ERROR(context.meta.Delete(Table::kStates, Key(StateKey::kScrub, id)));
  }
  return old.size() < limit;
}

absl::StatusOr<Verdict> UpdateReclaim(TxgContext& context, const UpdateReclaimArgs& args,
                                      Outcome*) {
  if (args.txg_budget_us.has_value() && *args.txg_budget_us > kMaxReclaimBudgetUs) {
    return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_FIELD",
                     "reclaim may add at most a second to a txg", {{"field", "txg_budget"}});
  }
  PoolRecord& pool = context.pool;
  pool.reclaim_paused = args.paused.value_or(pool.reclaim_paused);
  pool.reclaim_rate_bytes_per_second =
      args.rate_bytes_per_second.value_or(pool.reclaim_rate_bytes_per_second);
  pool.reclaim_txg_budget_us = args.txg_budget_us.value_or(pool.reclaim_txg_budget_us);
  context.jobs_changed = true;  // reclaim looks at once whether it has to go on
  RETURN_IF_ERROR(StoreRecord(context.meta, PoolRecord::kKey, pool));  // a change to commit
  return Verdict::kApplied;
}

}  // namespace cowshed::engine

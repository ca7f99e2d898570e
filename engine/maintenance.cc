// SPDX-License-Identifier: Apache-2.0
#include "engine/maintenance.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/gauges.h"
#include "engine/lifecycle.h"
#include "engine/operations.h"
#include "engine/reclaimer.h"
#include "engine/requests.h"
#include "engine/tree/dead_list.h"
#include "engine/tree/pointer_log.h"
#include "engine/trim.h"

namespace cowshed::engine {
namespace {

constexpr uint64_t kForgetPerBite = 1000;
constexpr uint64_t kDuePerPoll = 1000;
constexpr auto kSampleInterval = std::chrono::seconds(60);

// One bite off a deadlist's tail; the entry in kStates goes with the last.
absl::StatusOr<Verdict> DistributeBite(TxgContext& context, DatasetId dataset,
                                       DeadlistId deadlist) {
  const Key state(StateKey::kLongTail, dataset, deadlist);
  ASSIGN_OR_RETURN(const std::optional<DatasetRecord> record,
                   FindRecord<DatasetRecord>(context.meta, Key(dataset)));
  bool done = true;  // of a dataset that has gone the deadlist is forgotten, not distributed
  if (record.has_value()) {
    ASSIGN_OR_RETURN(const std::vector<Txg> bounds, LineageBounds(context.meta, dataset, *record));
    ASSIGN_OR_RETURN(
        done, DeadList::Distribute(context.meta, deadlist, bounds,
                                   context.parts.options.reclaim_bite_runs, context.parts.ids));
  }
  if (done) RETURN_IF_ERROR(context.meta.Delete(Table::kStates, state));
  return Verdict::kApplied;
}

}  // namespace

absl::StatusOr<bool> Trimmer::Step() {
  std::vector<std::string> states;
  {
    ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn, parts_.meta.BeginRead());
    MetaCursor cursor(*txn, Table::kStates);
    for (cursor.Seek(Key(uint8_t{0})); cursor.valid() && states.size() < kForgetPerBite;
         cursor.Next()) {
      if (KeyNumber<StateKey>(cursor.key(), 0) > StateKey::kLongTail) break;  // others' states
      states.emplace_back(cursor.key());
    }
    RETURN_IF_ERROR(cursor.status());
  }
  for (const std::string& key : states) {
    const auto dataset = KeyNumber<DatasetId>(key, 1);
    if (KeyNumber<StateKey>(key, 0) == StateKey::kTrimming) {
      RETURN_IF_ERROR(
          RunTask(txgs_, [dataset](TxgContext& context) { return TrimBite(context, dataset); }));
    } else {
      const auto deadlist = KeyNumber<DeadlistId>(key, 9);
      RETURN_IF_ERROR(RunTask(txgs_, [dataset, deadlist](TxgContext& context) {
        return DistributeBite(context, dataset, deadlist);
      }));
    }
  }
  return !states.empty();
}

absl::Status Housekeeper::Sample() {
  const auto now = std::chrono::steady_clock::now();
  if (now < next_sample_) return absl::OkStatus();
  next_sample_ = now + kSampleInterval;
  ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn, parts_.meta.BeginRead());
  ASSIGN_OR_RETURN(const uint64_t longest, LongestLivelist(*txn));
  parts_.stats.livelist_entries_max = longest;
  return absl::OkStatus();
}

absl::StatusOr<bool> Housekeeper::Step() {
  RETURN_IF_ERROR(Sample());
  // Space first: somebody may wait for it, nobody for dead logs.
  ASSIGN_OR_RETURN(const bool frees, DrainFreeLog());
  ASSIGN_OR_RETURN(const bool logs, DropLogs());
  ASSIGN_OR_RETURN(const bool old, ForgetOld());
  return logs || old || frees;
}

absl::StatusOr<bool> Housekeeper::DropLogs() {
  {
    ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn, parts_.meta.BeginRead());
    MetaCursor cursor(*txn, Table::kDroppedLogs);
    cursor.Seek(Key(uint64_t{0}));
    RETURN_IF_ERROR(cursor.status());
    if (!cursor.valid()) return false;
  }
  RETURN_IF_ERROR(RunTask(txgs_, [](TxgContext& context) -> absl::StatusOr<Verdict> {
    RETURN_IF_ERROR(
        PointerLog::DropBite(context.meta, context.parts.options.drop_pages_per_bite).status());
    return Verdict::kApplied;
  }));
  return true;
}

absl::StatusOr<bool> Housekeeper::ForgetOld() {
  const PoolOptions& options = parts_.options;
  const int64_t now_ms = options.clock_ms();
  const int64_t requests_before = now_ms - static_cast<int64_t>(options.requests_kept_ms);
  const int64_t operations_before = now_ms - static_cast<int64_t>(options.operations_kept_ms);
  bool due = txgs_.record().requests > options.requests_kept_max;
  {
    ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn, parts_.meta.BeginRead());
    MetaCursor requests(*txn, Table::kRequestTimes);
    requests.Seek(Key(uint64_t{0}));
    due = due || (requests.valid() &&
                  static_cast<int64_t>(KeyNumber<uint64_t>(requests.key(), 0)) < requests_before);
    MetaCursor operations(*txn, Table::kOperations);
    operations.Seek(Key(uint64_t{0}));
    if (operations.valid()) {
      ASSIGN_OR_RETURN(const OperationRecord oldest, OperationRecord::Decode(operations.value()));
      due = due || (oldest.finish_time_ms != 0 && oldest.finish_time_ms < operations_before);
    }
  }
  if (!due) return false;
  bool more = false;
  RETURN_IF_ERROR(RunTask(txgs_, [&](TxgContext& context) -> absl::StatusOr<Verdict> {
    ASSIGN_OR_RETURN(const bool replies, ForgetReplies(context, requests_before,
                                                       options.requests_kept_max, kForgetPerBite));
    ASSIGN_OR_RETURN(const bool operations,
                     ForgetOperations(context, operations_before, kForgetPerBite));
    more = !replies || !operations;
    return Verdict::kApplied;
  }));
  return more;
}

absl::StatusOr<bool> Housekeeper::DrainFreeLog() {
  if (parts_.allocator.free_log_runs() == 0) return false;
  // Frees of the last commit become reusable with the next one, so two rounds empty the log.
  const uint64_t before = parts_.allocator.free_log_runs();
  const Txg reusable = parts_.epochs.ReusableUpTo();
  RETURN_IF_ERROR(RunTask(txgs_, [](TxgContext& context) -> absl::StatusOr<Verdict> {
    // An empty change that makes this a txg of its own, so that readers' epochs move on.
    RETURN_IF_ERROR(StoreRecord(context.meta, PoolRecord::kKey, context.pool));
    context.drain_free_log = true;
    return Verdict::kApplied;
  }));
  return parts_.allocator.free_log_runs() < before || parts_.epochs.ReusableUpTo() > reusable;
}

absl::StatusOr<std::vector<Expirer::Due>> Expirer::FindDue() {
  const auto now_ms = parts_.options.clock_ms();
  std::vector<Due> found;
  ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn, parts_.meta.BeginRead());
  MetaCursor cursor(*txn, Table::kExpiry);
  for (cursor.Seek(Key(uint64_t{0})); cursor.valid() && found.size() < kDuePerPoll; cursor.Next()) {
    const auto time_ms = static_cast<int64_t>(KeyNumber<uint64_t>(cursor.key(), 0));
    if (time_ms > now_ms) break;
    found.push_back(
        {time_ms, KeyNumber<uint64_t>(cursor.key(), 8), std::string(cursor.key().substr(16))});
  }
  RETURN_IF_ERROR(cursor.status());
  return found;
}

absl::StatusOr<bool> Expirer::ExpireDataset(const Due& due) {
  bool blocked = false;
  const auto id = static_cast<DatasetId>(due.id);
  RETURN_IF_ERROR(RunTask(txgs_, [&](TxgContext& context) -> absl::StatusOr<Verdict> {
    blocked = false;
    ASSIGN_OR_RETURN(std::optional<DatasetRecord> record,
                     FindRecord<DatasetRecord>(context.meta, Key(id)));
    if (!record.has_value() || record->doomed || record->expire_time_ms != due.time_ms) {
      return Verdict::kApplied;  // destroyed or renewed meanwhile
    }
    ASSIGN_OR_RETURN(const bool detached, Names::IsDetached(context.meta, *record));
    if (detached) {
      // Destroyed with its prefix. If it comes back, it is without the time that has passed.
      RETURN_IF_ERROR(MoveExpiry(context, due.id, "", due.time_ms, 0));
      record->expire_time_ms = 0;
      record->expiry_blocked = false;
      RETURN_IF_ERROR(StoreRecord(context.meta, Key(id), *record));
      return Verdict::kApplied;
    }
    DestroyDatasetsArgs args;
    ASSIGN_OR_RETURN(const std::string name, Names::FullName(context.meta, *record));
    args.names = {name};
    Outcome outcome;
    const absl::Status status =
        DestroyDatasets(context, args, &outcome, OperationKind::kExpire).status();
    if (status.ok()) {
      PoolStats& stats = context.parts.stats;
      context.after_commit.emplace_back([&stats] { ++stats.expired; });
      return Verdict::kApplied;
    }
    if (!absl::IsFailedPrecondition(status)) return status;
    blocked = true;
    if (record->expiry_blocked) return Verdict::kApplied;
    record->expiry_blocked = true;
    RETURN_IF_ERROR(StoreRecord(context.meta, Key(id), *record));
    return Verdict::kApplied;
  }));
  return blocked;
}

absl::Status Expirer::ReleaseExpiredHold(const Due& due) {
  const auto id = static_cast<SnapshotId>(due.id);
  return RunTask(txgs_, [&](TxgContext& context) -> absl::StatusOr<Verdict> {
    ASSIGN_OR_RETURN(const std::optional<HoldRecord> hold,
                     FindRecord<HoldRecord>(context.meta, Key(id, due.tag)));
    if (!hold.has_value() || hold->expire_time_ms != due.time_ms) return Verdict::kApplied;
    ASSIGN_OR_RETURN(const SnapshotRecord snapshot,
                     LoadRecord<SnapshotRecord>(context.meta, Key(id)));
    ASSIGN_OR_RETURN(const DatasetRecord owner,
                     LoadRecord<DatasetRecord>(context.meta, Key(snapshot.dataset)));
    ASSIGN_OR_RETURN(const std::string dataset, Names::FullName(context.meta, owner));
    Outcome outcome;
    RETURN_IF_ERROR(
        ReleaseHold(context, SnapshotFullName(dataset, snapshot.name), due.tag, &outcome).status());
    PoolStats& stats = context.parts.stats;
    context.after_commit.emplace_back([&stats] { ++stats.expired; });
    return Verdict::kApplied;
  });
}

absl::StatusOr<bool> Expirer::Step() {
  ASSIGN_OR_RETURN(const std::vector<Due> due, FindDue());
  uint64_t blocked = 0;
  for (const Due& entry : due) {
    if (!entry.tag.empty()) {
      RETURN_IF_ERROR(ReleaseExpiredHold(entry));
      continue;
    }
    ASSIGN_OR_RETURN(const bool is_blocked, ExpireDataset(entry));
    blocked += is_blocked ? 1 : 0;
  }
  parts_.stats.alarms[Alarm::kExpiryBlocked] = blocked > 0 ? 1 : 0;
  return due.size() == kDuePerPoll && blocked < due.size();
}

void Puncher::Add(std::vector<Run> runs) {
  const MutexLock lock(mutex_);
  queue_.insert(queue_.end(), runs.begin(), runs.end());
}

absl::StatusOr<bool> Puncher::Step() {
  std::vector<Run> runs;
  {
    const MutexLock lock(mutex_);
    runs.swap(queue_);
  }
  if (runs.empty()) return false;
  const auto begin = std::chrono::steady_clock::now();
  uint64_t bytes = 0;
  for (const Run& run : runs) {
    // A host that cannot punch keeps the space; the sectors are free all the same.
    if (!parts_.blocks.Punch(run).ok()) break;
    bytes += uint64_t{run.sectors} * kSectorBytes;
  }
  RETURN_IF_ERROR(RunTask(txgs_, [&runs](TxgContext& context) -> absl::StatusOr<Verdict> {
    context.after_commit.emplace_back(
        [&context, &runs] { context.parts.allocator.EndPunch(runs); });
    return Verdict::kApplied;
  }));
  const double seconds =
      static_cast<double>(bytes) / static_cast<double>(parts_.options.punch_bytes_per_second);
  std::this_thread::sleep_until(begin + std::chrono::duration_cast<std::chrono::nanoseconds>(
                                            std::chrono::duration<double>(seconds)));
  return true;
}

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
#include "engine/undelete.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/failpoints.h"
#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/lifecycle.h"
#include "engine/livelist_drop.h"
#include "engine/operations.h"
#include "engine/reclaimer.h"
#include "engine/trim.h"

namespace cowshed::engine {
namespace {

constexpr uint64_t kDescribed = 100;  // datasets in a reply
// Windows give way while less than this part of the capacity is available or about to be.
constexpr uint64_t kLeastAvailable = 16;

std::string NameOf(OperationId id) { return StrCat("operations/", static_cast<uint64_t>(id)); }

absl::StatusOr<std::vector<DatasetId>> KeptBy(const MetaTxn& txn, OperationId operation,
                                              uint64_t limit) {
  std::vector<DatasetId> kept;
  const Key prefix(StateKey::kKept, operation);
  MetaCursor cursor(txn, Table::kStates);
  for (cursor.Seek(prefix); cursor.ValidFor(prefix) && kept.size() < limit; cursor.Next()) {
    kept.push_back(KeyNumber<DatasetId>(cursor.key(), 9));
  }
  RETURN_IF_ERROR(cursor.status());
  return kept;
}

// One bite of a window's end. An Undestroy that came first leaves nothing to do.
absl::StatusOr<Verdict> EndWindow(TxgContext& context, OperationId id, WindowEnd end) {
  ASSIGN_OR_RETURN(const std::optional<OperationRecord> operation,
                   FindRecord<OperationRecord>(context.meta, Key(id)));
  if (!operation.has_value()) return Verdict::kApplied;
  if (operation->state == static_cast<uint8_t>(OperationState::kWaiting)) {
    RETURN_IF_ERROR(LeaveWindow(context, id, end));
    if (operation->directory != DirectoryId{}) {
      RETURN_IF_ERROR(AddPrefixJob(context, operation->directory, id));
      RETURN_IF_ERROR(EndPending(context, id));
    }
  }
  const uint64_t limit = std::min(
      context.parts.options.bulk_names_per_txg,
      context.parts.pacer.Fits(
          ReclaimUnit::kName,
          context.parts.pacer.RoundSeconds(context.pool.reclaim_txg_budget_us, ReclaimLoad{})));
  ASSIGN_OR_RETURN(const std::vector<DatasetId> kept, KeptBy(context.meta, id, limit));
  for (const DatasetId dataset : kept) {
    RETURN_IF_ERROR(context.meta.Delete(Table::kStates, Key(StateKey::kKept, id, dataset)));
    RETURN_IF_ERROR(EndKeeping(context, dataset));
  }
  if (kept.size() < limit) {
    RETURN_IF_ERROR(context.meta.Delete(Table::kStates, Key(StateKey::kWindow, uint64_t{0}, id)));
  }
  context.jobs_changed = true;
  RETURN_IF_ERROR(Failpoints::Hit("undelete.ended"));
  return Verdict::kApplied;
}

// Everything that an operation keeps.
struct KeptSet {
  std::vector<FoundDataset> datasets;  // by themselves
  std::vector<FoundDataset> below;     // of the detached prefix
  std::set<DatasetId> ids;             // of both
};

absl::StatusOr<KeptSet> LoadKept(const MetaTxn& txn, OperationId id,
                                 const OperationRecord& operation) {
  KeptSet kept;
  ASSIGN_OR_RETURN(const std::vector<DatasetId> ids, KeptBy(txn, id, UINT64_MAX));
  for (const DatasetId dataset : ids) {
    FoundDataset found{dataset, {}, ""};
    ASSIGN_OR_RETURN(found.record, LoadRecord<DatasetRecord>(txn, Key(dataset)));
    found.name = found.record.segment;
    kept.ids.insert(dataset);
    kept.datasets.push_back(std::move(found));
  }
  if (operation.directory == DirectoryId{}) return kept;
  RETURN_IF_ERROR(Names::WalkBelow(
      txn, operation.directory, operation.target,
      [&](const std::string& name, DatasetId dataset) -> absl::StatusOr<bool> {
        FoundDataset found{dataset, {}, name};
        ASSIGN_OR_RETURN(found.record, LoadRecord<DatasetRecord>(txn, Key(dataset)));
        kept.ids.insert(dataset);
        kept.below.push_back(std::move(found));
        return true;
      }));
  return kept;
}

absl::Status NameTaken(const std::string& name, const std::string& what) {
  return MakeError(
      absl::StatusCode::kAlreadyExists, "DATASET_EXISTS",
      StrCat(name, " has been created meanwhile and is in the way of ", what, ": rename it first"),
      {{"name", name}});
}

absl::Status CheckNames(const MetaTxn& txn, const OperationRecord& operation, const KeptSet& kept) {
  for (const FoundDataset& dataset : kept.datasets) {
    ASSIGN_OR_RETURN(const std::optional<DatasetId> taken, Names::Find(txn, dataset.name));
    if (taken.has_value()) return NameTaken(dataset.name, dataset.name);
  }
  if (operation.directory == DirectoryId{}) return absl::OkStatus();
  // The prefix comes back as one directory, so nothing may be below it.
  std::string in_the_way;
  RETURN_IF_ERROR(Names::Walk(txn, operation.target, "",
                              [&](const std::string& name, DatasetId) -> absl::StatusOr<bool> {
                                if (name == operation.target) return true;
                                in_the_way = name;
                                return false;
                              }));
  if (in_the_way.empty()) return absl::OkStatus();
  return NameTaken(in_the_way, StrCat("what was below ", operation.target));
}

// The operation that destroyed a dataset which is not visible any more.
absl::StatusOr<OperationId> DestroyedBy(const MetaTxn& txn, const DatasetRecord& record) {
  if (record.doomed) return record.operation;
  DirectoryId directory = record.directory;
  while (true) {
    ASSIGN_OR_RETURN(const DirectoryRecord found, LoadRecord<DirectoryRecord>(txn, Key(directory)));
    if (found.detached) break;
    directory = found.parent;
  }
  const Key windows(StateKey::kWindow);
  MetaCursor cursor(txn, Table::kStates);
  for (cursor.Seek(windows); cursor.ValidFor(windows); cursor.Next()) {
    const auto id = KeyNumber<OperationId>(cursor.key(), 9);
    ASSIGN_OR_RETURN(const OperationRecord operation, LoadRecord<OperationRecord>(txn, Key(id)));
    if (operation.directory == directory) return id;
  }
  RETURN_IF_ERROR(cursor.status());
  MetaCursor jobs(txn, Table::kJobs);
  for (jobs.Seek(Key(uint64_t{0})); jobs.valid(); jobs.Next()) {
    ASSIGN_OR_RETURN(const JobRecord job, JobRecord::Decode(jobs.value()));
    if (job.directory == directory) return job.operation;
  }
  RETURN_IF_ERROR(jobs.status());
  return OperationId{};
}

// A clone can only come back if the dataset that its origin belongs to is there.
absl::Status CheckOrigins(const MetaTxn& txn, const KeptSet& kept) {
  std::set<SnapshotId> checked;
  for (const std::vector<FoundDataset>* part : {&kept.datasets, &kept.below}) {
    for (const FoundDataset& dataset : *part) {
      const SnapshotId origin = dataset.record.origin;
      if (origin == SnapshotId{} || !checked.insert(origin).second) continue;
      ASSIGN_OR_RETURN(const SnapshotRecord snapshot, LoadRecord<SnapshotRecord>(txn, Key(origin)));
      if (kept.ids.contains(snapshot.dataset)) continue;
      ASSIGN_OR_RETURN(const DatasetRecord owner,
                       LoadRecord<DatasetRecord>(txn, Key(snapshot.dataset)));
      ASSIGN_OR_RETURN(const bool destroyed, IsDestroyed(txn, owner));
      if (!destroyed) continue;
      ASSIGN_OR_RETURN(const OperationId by, DestroyedBy(txn, owner));
      ASSIGN_OR_RETURN(const std::string name, Names::FullName(txn, owner));
      return MakeError(absl::StatusCode::kFailedPrecondition, "ORIGIN_DESTROYED",
                       StrCat(dataset.name, " is a clone of ", name, ", which ", NameOf(by),
                              " has destroyed: undo that first"),
                       {{"name", dataset.name}, {"origin", name}, {"operation", NameOf(by)}});
    }
  }
  return absl::OkStatus();
}

// A name, a place in the indexes, and the trim it may have been in the middle of.
absl::Status BringBack(TxgContext& context, OperationId operation, FoundDataset* dataset) {
  WriteTxn& txn = context.meta;
  RETURN_IF_ERROR(txn.Delete(Table::kStates, Key(StateKey::kKept, operation, dataset->id)));
  // Read anew: bringing back one of them changes the counts of another.
  ASSIGN_OR_RETURN(dataset->record, LoadRecord<DatasetRecord>(txn, Key(dataset->id)));
  DatasetRecord& record = dataset->record;
  record.doomed = false;
  record.kept = false;
  record.operation = OperationId{};
  ++record.revision;
  RETURN_IF_ERROR(Names::Insert(txn, dataset->name, dataset->id, context.parts.ids, &record));
  record.expiry_blocked = false;
  if (record.expire_time_ms <= context.now_ms) record.expire_time_ms = 0;  // it has passed
  RETURN_IF_ERROR(
      MoveExpiry(context, static_cast<uint64_t>(dataset->id), "", 0, record.expire_time_ms));
  if (record.tree.trim_txg != 0) RETURN_IF_ERROR(StartTrim(context, dataset, 0, 0));
  RETURN_IF_ERROR(ResumeRebuild(context, dataset->id, record));
  return StoreRecord(txn, Key(dataset->id), record);
}

// Snapshots that went on waiting for a clone or hold while nobody could see them.
absl::Status ReapWaiting(TxgContext& context, const FoundDataset& dataset) {
  if (dataset.record.all_snapshots == dataset.record.snapshots &&
      dataset.record.deferred_snapshots == 0) {
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const std::vector<Neighbour> snapshots,
                   SnapshotsAbove(context.meta, dataset.id, 0));
  for (const Neighbour& snapshot : snapshots) {
    RETURN_IF_ERROR(ReapIfUnneeded(context, snapshot.id, OperationId{}));
  }
  return absl::OkStatus();
}

absl::Status NotWaiting(OperationId id, const OperationRecord& record) {
  const bool undone = record.state == static_cast<uint8_t>(OperationState::kUndone);
  return MakeError(absl::StatusCode::kFailedPrecondition, "RECLAIM_BEGUN",
                   undone ? StrCat(NameOf(id), " has been undone already")
                          : StrCat(NameOf(id),
                                   " can not be undone: what it destroyed is being "
                                   "reclaimed, or was never kept"),
                   {{"operation", NameOf(id)}});
}

}  // namespace

absl::StatusOr<Verdict> Undestroy(TxgContext& context, const std::string& name, Outcome* outcome) {
  WriteTxn& txn = context.meta;
  ASSIGN_OR_RETURN(const OperationId id, ResolveOperation(txn, name));
  ASSIGN_OR_RETURN(const OperationRecord operation, LoadRecord<OperationRecord>(txn, Key(id)));
  if (operation.state != static_cast<uint8_t>(OperationState::kWaiting)) {
    return NotWaiting(id, operation);
  }
  ASSIGN_OR_RETURN(KeptSet kept, LoadKept(txn, id, operation));
  RETURN_IF_ERROR(CheckNames(txn, operation, kept));
  RETURN_IF_ERROR(CheckOrigins(txn, kept));

  for (FoundDataset& dataset : kept.datasets) RETURN_IF_ERROR(BringBack(context, id, &dataset));
  RETURN_IF_ERROR(CountVisible(context, kept.datasets, /*shown=*/true));
  if (operation.directory != DirectoryId{}) {
    RETURN_IF_ERROR(Names::Reattach(txn, operation.target, operation.directory, context.parts.ids));
    RETURN_IF_ERROR(CountVisible(context, kept.below, /*shown=*/true));
  }
  RETURN_IF_ERROR(LeaveWindow(context, id, WindowEnd::kUndone));
  for (const FoundDataset& dataset : kept.datasets) RETURN_IF_ERROR(ReapWaiting(context, dataset));
  RETURN_IF_ERROR(Failpoints::Hit("undelete.undone"));
  for (const std::vector<FoundDataset>* part : {&kept.datasets, &kept.below}) {
    outcome->count += part->size();
    for (const FoundDataset& dataset : *part) {
      if (outcome->datasets.size() == kDescribed) break;
      FoundDataset now = dataset;
      ASSIGN_OR_RETURN(now.record, LoadRecord<DatasetRecord>(txn, Key(dataset.id)));
      ASSIGN_OR_RETURN(DatasetInfo info, Describe(txn, context.parts.uid, now));
      outcome->datasets.push_back(std::move(info));
    }
  }
  ASSIGN_OR_RETURN(const OperationRecord undone, LoadRecord<OperationRecord>(txn, Key(id)));
  outcome->operation = Describe(id, undone);
  return Verdict::kApplied;
}

bool WindowKeeper::SpaceIsShort() const {
  const PoolRecord pool = txgs_.record();
  if (pool.reclaim_paused) return false;  // nothing would come of it
  const uint64_t coming = pool.freeing_sectors - pool.stalled_sectors +
                          parts_.allocator.free_logged_sectors() +
                          parts_.allocator.withheld_sectors();
  const ReclaimLoad load = txgs_.reclaim_load();
  if (load.writers_wait) return coming == 0;
  return load.available_sectors + coming < pool.capacity_sectors / kLeastAvailable;
}

absl::StatusOr<std::optional<WindowKeeper::Window>> WindowKeeper::Choose() {
  ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn, parts_.meta.BeginRead());
  const Key windows(StateKey::kWindow);
  MetaCursor cursor(*txn, Table::kStates);
  cursor.Seek(windows);
  RETURN_IF_ERROR(cursor.status());
  if (!cursor.ValidFor(windows)) return std::nullopt;
  const auto end_ms = static_cast<int64_t>(KeyNumber<uint64_t>(cursor.key(), 1));
  if (end_ms <= parts_.options.clock_ms()) {
    return Window{KeyNumber<OperationId>(cursor.key(), 9), WindowEnd::kExpired};
  }
  if (!SpaceIsShort()) return std::nullopt;
  // Operations are numbered in the order of their calls.
  Window oldest{KeyNumber<OperationId>(cursor.key(), 9), WindowEnd::kSpace};
  for (; cursor.ValidFor(windows); cursor.Next()) {
    oldest.operation = std::min(oldest.operation, KeyNumber<OperationId>(cursor.key(), 9));
  }
  RETURN_IF_ERROR(cursor.status());
  return oldest;
}

absl::StatusOr<bool> WindowKeeper::Step() {
  if (txgs_.record().waiting_items == 0) return false;
  ASSIGN_OR_RETURN(const std::optional<Window> window, Choose());
  if (!window.has_value()) return false;
  RETURN_IF_ERROR(Failpoints::Hit("undelete.end"));
  RETURN_IF_ERROR(RunTask(txgs_, [&window](TxgContext& context) {
    return EndWindow(context, window->operation, window->end);
  }));
  return true;
}

absl::StatusOr<int64_t> NextWindowEndMs(const MetaTxn& txn) {
  const Key windows(StateKey::kWindow);
  MetaCursor cursor(txn, Table::kStates);
  cursor.Seek(windows);
  RETURN_IF_ERROR(cursor.status());
  if (!cursor.ValidFor(windows)) return 0;
  return static_cast<int64_t>(KeyNumber<uint64_t>(cursor.key(), 1));
}

}  // namespace cowshed::engine

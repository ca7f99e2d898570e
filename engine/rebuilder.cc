// SPDX-License-Identifier: Apache-2.0
#include "engine/rebuilder.h"

#include <algorithm>
#include <string>

#include "engine/base/failpoints.h"
#include "engine/base/status_macros.h"
#include "engine/catalog.h"
#include "engine/lifecycle.h"
#include "engine/livelist_drop.h"
#include "engine/reclaimer.h"
#include "engine/tree/live_list.h"
#include "engine/trim.h"

namespace cowshed::engine {
namespace {

constexpr Txg kEndOfTime = UINT64_MAX;

// The record of a rebuild that is still as it was read, and its dataset's; nullopt if it has been
// cancelled meanwhile.
absl::StatusOr<std::optional<FoundDataset>> StillRunning(TxgContext& context, DatasetId id,
                                                         const RebuildRecord& expected) {
  ASSIGN_OR_RETURN(const std::optional<RebuildRecord> now,
                   FindRecord<RebuildRecord>(context.meta, RebuildKey(id)));
  if (!now.has_value() || now->Encode() != expected.Encode()) return std::nullopt;
  FoundDataset dataset;
  dataset.id = id;
  ASSIGN_OR_RETURN(dataset.record, LoadRecord<DatasetRecord>(context.meta, Key(id)));
  return dataset;
}

absl::StatusOr<Verdict> BeginTask(TxgContext& context, DatasetId id, RebuildRecord record) {
  ASSIGN_OR_RETURN(std::optional<FoundDataset> dataset, StillRunning(context, id, record));
  if (!dataset.has_value()) return Verdict::kApplied;
  if (context.fenced.contains(id)) return Verdict::kNextTxg;
  RETURN_IF_ERROR(SettleLivelist(context, id, &dataset->record));
  if (dataset->record.list_state == ListState::kDropped) {
    ASSIGN_OR_RETURN(record.snapshot, MakeSnapshot(context, &*dataset, "", {}));
    record.txg = context.txg;
    record.shadow = context.parts.ids.Take<LivelistId>();
    dataset->record.list_state = ListState::kRebuilding;
    RETURN_IF_ERROR(StoreRecord(context.meta, RebuildKey(id), record));
  } else {
    RETURN_IF_ERROR(context.meta.Delete(Table::kStates, RebuildKey(id)));
  }
  RETURN_IF_ERROR(StoreRecord(context.meta, Key(id), dataset->record));
  return Verdict::kApplied;
}

// What all snapshots up to that of the rebuild must hold together, by the sums of the records.
absl::StatusOr<uint64_t> ExpectedSectors(const MetaTxn& txn, const FoundDataset& dataset,
                                         Txg newest) {
  uint64_t later = dataset.record.written_sectors;
  ASSIGN_OR_RETURN(const std::vector<Neighbour> snapshots, SnapshotsAbove(txn, dataset.id, newest));
  for (const Neighbour& neighbour : snapshots) {
    ASSIGN_OR_RETURN(const SnapshotRecord snapshot,
                     LoadRecord<SnapshotRecord>(txn, Key(neighbour.id)));
    later += snapshot.written_sectors;
  }
  return dataset.record.used_sectors - later;
}

// Returns whether the list has been installed (or the rebuild has been cancelled): false if what
// was found is not what must be there.
absl::StatusOr<bool> Swap(TxgContext& context, DatasetId id, const RebuildRecord& record) {
  ASSIGN_OR_RETURN(std::optional<FoundDataset> dataset, StillRunning(context, id, record));
  if (!dataset.has_value()) return true;
  ASSIGN_OR_RETURN(const uint64_t expected, ExpectedSectors(context.meta, *dataset, record.txg));
  if (expected != record.sectors) return false;
  RETURN_IF_ERROR(
      LiveList::Move(context.meta, dataset->record.livelist, record.shadow, 0, kEndOfTime));
  dataset->record.livelist = record.shadow;
  dataset->record.list_state = ListState::kWhole;
  RETURN_IF_ERROR(StoreRecord(context.meta, Key(id), dataset->record));
  RETURN_IF_ERROR(context.meta.Delete(Table::kStates, RebuildKey(id)));
  RETURN_IF_ERROR(ReleaseRebuildSnapshot(context, record.snapshot));
  context.jobs_changed = true;  // jobs that waited go on
  PoolStats& stats = context.parts.stats;
  context.after_commit.emplace_back(
      [&stats] { ++stats.livelist_rebuilds[RebuildResult::kCompleted]; });
  return true;
}

absl::Status AddFound(TxgContext& context, const FoundDataset& dataset, LivelistId shadow,
                      Txg start, const std::vector<Run>& runs) {
  LiveListOptions options;
  options.max_entries = UINT64_MAX;  // deadlist buckets may span what lies between two snapshots
  std::vector<LogEntry> entries;
  entries.reserve(runs.size());
  for (const Run& run : runs) entries.push_back({.op = LogOp::kAlloc, .run = run});
  ASSIGN_OR_RETURN(
      const LiveListGrowth growth,
      LiveList::Append(context.meta, shadow, start, context.txg,
                       dataset.record.tree.block_sectors(), entries, options, context.parts.ids));
  context.pool.livelist_entries += growth.entries;
  context.pool.livelist_sublists += growth.sublists;
  return absl::OkStatus();
}

void SortAndJoin(std::vector<Run>* runs) {
  std::sort(runs->begin(), runs->end(), [](const Run& a, const Run& b) {
    return std::pair(a.birth, a.address) < std::pair(b.birth, b.address);
  });
  JoinNeighbours(runs);
}

// A job that still stands on a damaged list: it has stalled, or walks trees instead and has not
// forgotten the list yet.
absl::StatusOr<bool> HasDamage(const MetaTxn& txn, const JobRecord& job) {
  if (job.stalled) return true;
  if (job.kind != JobKind::kDataset || job.phase > JobPhase::kFree) return false;
  if (job.method != static_cast<uint8_t>(DestroyMethod::kTreeWalk)) return false;
  MetaCursor cursor(txn, Table::kSublists);
  cursor.Seek(Key(job.livelist));
  return cursor.ValidFor(Key(job.livelist)) || absl::IsDataLoss(cursor.status());
}

absl::StatusOr<bool> AnyDamage(const MetaStore& meta) {
  ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn, meta.BeginRead());
  const Key prefix(StateKey::kRebuild);
  MetaCursor rebuilds(*txn, Table::kStates);
  for (rebuilds.Seek(prefix); rebuilds.ValidFor(prefix); rebuilds.Next()) {
    ASSIGN_OR_RETURN(const RebuildRecord record, RebuildRecord::Decode(rebuilds.value()));
    if (record.damaged) return true;
  }
  RETURN_IF_ERROR(rebuilds.status());
  MetaCursor jobs(*txn, Table::kJobs);
  for (jobs.Seek(Key(uint64_t{0})); jobs.valid(); jobs.Next()) {
    ASSIGN_OR_RETURN(const JobRecord job, JobRecord::Decode(jobs.value()));
    ASSIGN_OR_RETURN(const bool damaged, HasDamage(*txn, job));
    if (damaged) return true;
  }
  RETURN_IF_ERROR(jobs.status());
  return false;
}

}  // namespace

void SubmitDrop(TxgManager& txgs, DatasetId id) {
  Task task;
  task.run = [id](TxgContext& context) -> absl::StatusOr<Verdict> {
    RETURN_IF_ERROR(DropLivelist(context, id, DropReason::kDamaged));
    return Verdict::kApplied;
  };
  task.done = [](const absl::StatusOr<Txg>&) {};
  task.frees_space = true;
  txgs.Submit(std::move(task));
}

absl::StatusOr<bool> Rebuilder::Step() {
  RETURN_IF_ERROR(RefreshAlarm());
  ASSIGN_OR_RETURN(const bool forgot, ForgetDropped());
  ASSIGN_OR_RETURN(const std::optional<Entry> next, Next());
  if (!next.has_value()) return forgot;
  const bool running = next->record.running();
  if (HostIsFull()) {
    if (!running) return forgot;
    RETURN_IF_ERROR(Cancel(*next, RebuildResult::kCancelled));
    return true;
  }
  RETURN_IF_ERROR(running ? Advance(*next) : Begin(*next));
  return true;
}

bool Rebuilder::HostIsFull() const {
  return parts_.stats.alarms[Alarm::kHostFull] != 0 ||
         parts_.stats.alarms[Alarm::kPoolReserveReached] != 0;
}

absl::StatusOr<bool> Rebuilder::ForgetDropped() {
  LivelistId list{};
  {
    ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn, parts_.meta.BeginRead());
    const Key prefix(StateKey::kDroppedList);
    MetaCursor cursor(*txn, Table::kStates);
    cursor.Seek(prefix);
    RETURN_IF_ERROR(cursor.status());
    if (!cursor.ValidFor(prefix)) return false;
    list = KeyNumber<LivelistId>(cursor.key(), 1);
  }
  RETURN_IF_ERROR(RunTask(txgs_, [list](TxgContext& context) -> absl::StatusOr<Verdict> {
    RETURN_IF_ERROR(ForgetLivelistBite(context, list));
    return Verdict::kApplied;
  }));
  return true;
}

absl::Status Rebuilder::RefreshAlarm() {
  Counter& alarm = parts_.stats.alarms[Alarm::kLivelistDamaged];
  if (looked_ && alarm == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(bool damage, AnyDamage(parts_.meta));
  looked_ = true;
  alarm = damage ? 1 : 0;
  if (damage) return absl::OkStatus();
  // A commit may have raised it between the look and the clearing: one more look tells.
  ASSIGN_OR_RETURN(damage, AnyDamage(parts_.meta));
  if (damage) alarm = 1;
  return absl::OkStatus();
}

absl::StatusOr<std::optional<Rebuilder::Entry>> Rebuilder::Next() {
  ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn, parts_.meta.BeginRead());
  std::optional<Entry> queued;
  const Key prefix(StateKey::kRebuild);
  MetaCursor cursor(*txn, Table::kStates);
  for (cursor.Seek(prefix); cursor.ValidFor(prefix); cursor.Next()) {
    Entry entry;
    entry.id = KeyNumber<DatasetId>(cursor.key(), 1);
    ASSIGN_OR_RETURN(entry.record, RebuildRecord::Decode(cursor.value()));
    if (entry.record.running()) return entry;
    if (!queued.has_value() && !failed_.contains(entry.id)) queued = entry;
  }
  RETURN_IF_ERROR(cursor.status());
  return queued;
}

absl::Status Rebuilder::Begin(const Entry& entry) {
  RETURN_IF_ERROR(Failpoints::Hit("rebuild.begin"));
  return RunTask(
      txgs_, [&entry](TxgContext& context) { return BeginTask(context, entry.id, entry.record); });
}

absl::Status Rebuilder::Advance(const Entry& entry) {
  if (entry.record.cursor_txg == RebuildRecord::kWalked) {
    RETURN_IF_ERROR(Failpoints::Hit("rebuild.swap"));
    bool good = true;
    RETURN_IF_ERROR(RunTask(txgs_, [&](TxgContext& context) -> absl::StatusOr<Verdict> {
      ASSIGN_OR_RETURN(good, Swap(context, entry.id, entry.record));
      return Verdict::kApplied;
    }));
    return good ? absl::OkStatus() : Cancel(entry, RebuildResult::kFailed);
  }
  RETURN_IF_ERROR(Failpoints::Hit("rebuild.walk"));
  const absl::StatusOr<Found> found = Walk(entry);
  if (!found.ok()) return Cancel(entry, RebuildResult::kFailed);
  RETURN_IF_ERROR(Failpoints::Hit("rebuild.shadow"));
  return RunTask(txgs_, [&](TxgContext& context) -> absl::StatusOr<Verdict> {
    ASSIGN_OR_RETURN(const std::optional<FoundDataset> dataset,
                     StillRunning(context, entry.id, entry.record));
    if (!dataset.has_value()) return Verdict::kApplied;
    for (const auto& [start, runs] : found->sublists) {
      RETURN_IF_ERROR(AddFound(context, *dataset, entry.record.shadow, start, runs));
    }
    RETURN_IF_ERROR(StoreRecord(context.meta, RebuildKey(entry.id), found->after));
    return Verdict::kApplied;
  });
}

absl::StatusOr<Rebuilder::Found> Rebuilder::Walk(const Entry& entry) const {
  // The epoch comes first: what the transaction sees must not be reused while it is walked.
  const ReaderEpochs::Guard epoch(parts_.epochs);
  ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn, parts_.meta.BeginRead());
  Found found;
  RebuildRecord& after = found.after = entry.record;
  ASSIGN_OR_RETURN(const DatasetRecord dataset, LoadRecord<DatasetRecord>(*txn, Key(entry.id)));
  uint64_t budget = std::max<uint64_t>(parts_.options.rebuild_bite_pointers, 1);
  while (budget > 0) {
    ASSIGN_OR_RETURN(const std::vector<Neighbour> here,
                     SnapshotsAbove(*txn, entry.id, std::max<Txg>(after.cursor_txg, 1) - 1, 1));
    if (here.empty() || here[0].txg > entry.record.txg) {
      after.cursor_txg = RebuildRecord::kWalked;
      break;
    }
    ASSIGN_OR_RETURN(const SnapshotRecord snapshot,
                     LoadRecord<SnapshotRecord>(*txn, Key(here[0].id)));
    ASSIGN_OR_RETURN(const std::optional<Neighbour> before,
                     SnapshotBefore(*txn, entry.id, here[0].txg));
    const Txg start = before.has_value() ? before->txg : dataset.origin_txg;
    after.cursor_txg = here[0].txg;
    std::vector<Run> runs;
    uint64_t visited = 1;  // a tree counts, however little of it is new
    bool done =
        here[0].txg == entry.record.txg && Failpoints::IsTrue("mutate.rebuild_forgets_newest");
    if (!done) {
      ASSIGN_OR_RETURN(done, parts_.tree.Walk(snapshot.tree, start, &after.cursor_block, budget,
                                              [&](const BlockPtr& pointer) {
                                                ++visited;
                                                return parts_.blocks.Extents(pointer, &runs);
                                              }));
    }
    budget -= std::min(budget, visited);
    for (const Run& run : runs) after.sectors += run.sectors;
    SortAndJoin(&runs);
    if (!runs.empty()) found.sublists.emplace_back(start, std::move(runs));
    if (!done) break;
    ++after.cursor_txg;  // the next snapshot above
    after.cursor_block = 0;
  }
  return found;
}

absl::Status Rebuilder::Cancel(const Entry& entry, RebuildResult result) {
  bool was_running = false;
  RETURN_IF_ERROR(RunTask(txgs_, [&](TxgContext& context) -> absl::StatusOr<Verdict> {
    ASSIGN_OR_RETURN(std::optional<FoundDataset> dataset,
                     StillRunning(context, entry.id, entry.record));
    was_running = dataset.has_value();
    if (!was_running) return Verdict::kApplied;
    RETURN_IF_ERROR(CancelRebuild(context, entry.id, &dataset->record, result));
    RETURN_IF_ERROR(StoreRecord(context.meta, Key(entry.id), dataset->record));
    return Verdict::kApplied;
  }));
  if (was_running && result == RebuildResult::kFailed) failed_.insert(entry.id);
  return absl::OkStatus();
}

}  // namespace cowshed::engine

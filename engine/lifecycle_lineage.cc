// SPDX-License-Identifier: Apache-2.0
//
// Rollback and promote: what changes who owns which blocks. Because a FREE is logged when a block
// is physically freed, both keep livelists exact by moving whole sublists; no entry is copied and
// no tree is walked (docs/architecture.md shows why). How much moves is told by the written sums of
// the snapshots at hand, which are exact also where a list is missing.
#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/blocker_finder.h"
#include "engine/condenser.h"
#include "engine/lifecycle.h"
#include "engine/livelist_drop.h"
#include "engine/operations.h"
#include "engine/tree/live_list.h"
#include "engine/trim.h"

namespace cowshed::engine {
namespace {

constexpr Txg kEndOfTime = UINT64_MAX;

// Where a rollback goes: an own snapshot, or the origin (then `own` is false).
struct RollbackTarget {
  SnapshotRecord snapshot;
  std::string name;
  bool own = true;
};

absl::Status NoTarget(const std::string& name) {
  return MakeError(absl::StatusCode::kFailedPrecondition, "NO_ROLLBACK_TARGET",
                   StrCat("dataset ", name, " has no snapshot to roll back to"), {{"name", name}});
}

absl::StatusOr<RollbackTarget> OriginTarget(const MetaTxn& txn, const FoundDataset& dataset) {
  if (dataset.record.origin == SnapshotId{}) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "NOT_A_CLONE",
                     StrCat("dataset ", dataset.name, " is not a clone: it has no origin"),
                     {{"name", dataset.name}});
  }
  RollbackTarget target;
  target.own = false;
  ASSIGN_OR_RETURN(target.snapshot, LoadRecord<SnapshotRecord>(txn, Key(dataset.record.origin)));
  ASSIGN_OR_RETURN(const DatasetRecord parent,
                   LoadRecord<DatasetRecord>(txn, Key(target.snapshot.dataset)));
  ASSIGN_OR_RETURN(const std::string parent_name, Names::FullName(txn, parent));
  target.name =
      target.snapshot.visible() ? SnapshotFullName(parent_name, target.snapshot.name) : parent_name;
  return target;
}

absl::StatusOr<RollbackTarget> NewestTarget(const MetaTxn& txn, const FoundDataset& dataset) {
  // Downwards from the newest: what is older than the target is not looked at.
  Txg below = kEndOfTime;
  while (true) {
    ASSIGN_OR_RETURN(const std::optional<Neighbour> next, SnapshotBefore(txn, dataset.id, below));
    if (!next.has_value()) return NoTarget(dataset.name);
    RollbackTarget target;
    ASSIGN_OR_RETURN(target.snapshot, LoadRecord<SnapshotRecord>(txn, Key(next->id)));
    target.name = SnapshotFullName(dataset.name, target.snapshot.name);
    if (target.snapshot.visible()) return target;
    below = next->txg;
  }
}

absl::StatusOr<RollbackTarget> FindTarget(const MetaTxn& txn, const FoundDataset& dataset,
                                          const RollbackDatasetArgs& args) {
  if (args.to_origin) return OriginTarget(txn, dataset);
  absl::StatusOr<RollbackTarget> target = RollbackTarget();
  if (args.snapshot.empty()) {
    target = NewestTarget(txn, dataset);
  } else {
    const std::string full = args.snapshot.find('@') == std::string::npos
                                 ? SnapshotFullName(dataset.name, args.snapshot)
                                 : args.snapshot;
    ASSIGN_OR_RETURN(FoundSnapshot found, ResolveSnapshot(txn, full));
    if (found.record.dataset != dataset.id) {
      return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_FIELD",
                       StrCat(full, " is not a snapshot of ", dataset.name));
    }
    target->snapshot = std::move(found.record);
    target->name = found.name;
  }
  RETURN_IF_ERROR(target.status());
  const std::string& expected = args.expected_target;
  if (!expected.empty() && expected != target->name && expected != target->snapshot.name) {
    return MakeError(absl::StatusCode::kAborted, "ROLLBACK_TARGET_CHANGED",
                     StrCat("the rollback would go to ", target->name, ", not to ", expected),
                     {{"target", target->name}});
  }
  return target;
}

// The own snapshots above the target; refused unless they may and can go, and nobody uses them or
// the head as a device.
absl::StatusOr<std::vector<Neighbour>> CheckNewer(TxgContext& context, const FoundDataset& dataset,
                                                  Txg floor, const RollbackDatasetArgs& args) {
  const MetaTxn& txn = context.meta;
  ASSIGN_OR_RETURN(std::vector<Neighbour> newer, SnapshotsAbove(txn, dataset.id, floor));
  BlockerFinder blockers(txn, context.parts.attachments);
  std::set<SnapshotId> going;
  uint64_t visible = 0;
  for (const Neighbour& neighbour : newer) {
    ASSIGN_OR_RETURN(const SnapshotRecord snapshot,
                     LoadRecord<SnapshotRecord>(txn, Key(neighbour.id)));
    going.insert(neighbour.id);
    visible += snapshot.visible() ? 1 : 0;
    if (args.destroy_newer || !snapshot.visible()) {
      blockers.ExamineSnapshot(neighbour.id, snapshot);
      // A doomed clone that still waits needs the snapshot as much as a visible one.
      if (snapshot.all_clones > snapshot.clones) {
        blockers.Add("SNAPSHOT_HAS_CLONES",
                     {BlockerKind::kClone, static_cast<uint64_t>(neighbour.id), 0},
                     snapshot.all_clones - snapshot.clones);
      }
    }
  }
  if (visible > 0 && !args.destroy_newer) {
    blockers.Add("NEWER_SNAPSHOTS_EXIST",
                 {BlockerKind::kNewerSnapshot, static_cast<uint64_t>(dataset.id), floor}, visible);
  }
  if (!args.force) {
    RETURN_IF_ERROR(blockers.ExamineAttachments([&](DatasetId id, SnapshotId snapshot) {
      return snapshot == SnapshotId{} ? id == dataset.id : going.contains(snapshot);
    }));
  }
  if (blockers.any()) return blockers.Refuse(dataset.name, "rolled back");
  return newer;
}

// Takes an own snapshot away with the part rolled back: it belongs to `condemned` from now on, a
// dataset that is no more, as if that had been destroyed with it. Returns what it wrote.
absl::StatusOr<uint64_t> CondemnSnapshot(TxgContext& context, FoundDataset* dataset,
                                         const Neighbour& neighbour, DatasetId condemned) {
  ASSIGN_OR_RETURN(SnapshotRecord snapshot,
                   LoadRecord<SnapshotRecord>(context.meta, Key(neighbour.id)));
  WriteTxn& txn = context.meta;
  DatasetRecord& owner = dataset->record;
  if (snapshot.visible()) {
    RETURN_IF_ERROR(txn.Delete(Table::kSnapshotsByName, Key(dataset->id, snapshot.name)));
    --owner.snapshots;
    --context.pool.snapshots;
    if (snapshot.deferred) {
      --owner.deferred_snapshots;
      --context.pool.deferred_snapshots;
    }
  }
  --owner.all_snapshots;
  RETURN_IF_ERROR(txn.Delete(Table::kSnapshotsByTxg, Key(dataset->id, snapshot.txg)));
  RETURN_IF_ERROR(txn.Put(Table::kSnapshotsByTxg, Key(condemned, snapshot.txg), Key(neighbour.id)));
  context.publication.destroyed_snapshots.push_back(neighbour.id);
  snapshot.dataset = condemned;
  snapshot.name.clear();
  RETURN_IF_ERROR(StoreRecord(txn, Key(neighbour.id), snapshot));
  return snapshot.written_sectors;
}

// The job that frees what was written after `floor`: what its sublists from there on say, or, where
// there is no list, the trees of the head and of the snapshots taken along.
absl::StatusOr<JobRecord> RolledBackPart(TxgContext& context, FoundDataset* dataset, Txg floor,
                                         const std::vector<Neighbour>& newer) {
  DatasetRecord& record = dataset->record;
  JobRecord job;
  job.kind = JobKind::kDataset;
  job.destroy_kind = static_cast<uint8_t>(DestroyKind::kRollback);
  job.livelist = context.parts.ids.Take<LivelistId>();
  ++context.pool.livelists;
  job.deadlist = record.deadlist;
  job.tree = record.tree;
  job.min_birth = newer.empty() ? floor : newer.back().txg;
  job.origin_txg = floor;
  // Births between two snapshots are the later one's written part, so the parts make up the whole.
  job.left_sectors = record.written_sectors;
  if (!newer.empty()) job.dataset = context.parts.ids.Take<DatasetId>();
  for (const Neighbour& snapshot : newer) {
    ASSIGN_OR_RETURN(const uint64_t written,
                     CondemnSnapshot(context, dataset, snapshot, job.dataset));
    job.left_sectors += written;
  }
  if (record.list_state == ListState::kWhole) {
    const absl::Status moved =
        LiveList::Move(context.meta, record.livelist, job.livelist, floor, kEndOfTime);
    if (!absl::IsDataLoss(moved)) RETURN_IF_ERROR(moved);
    if (absl::IsDataLoss(moved)) {
      RETURN_IF_ERROR(DropLivelist(context, dataset->id, DropReason::kDamaged, &record));
    }
  }
  if (record.list_state != ListState::kWhole) WalkTrees(&job);
  return job;
}

// Sets the head back to the target and queues what it wrote since for reclaim.
absl::Status ApplyRollback(TxgContext& context, FoundDataset* dataset, const RollbackTarget& target,
                           const std::vector<Neighbour>& newer, OperationId operation) {
  DatasetRecord& record = dataset->record;
  RETURN_IF_ERROR(AbandonTrim(context, dataset->id, record));
  RETURN_IF_ERROR(CancelRebuild(context, dataset->id, &record));
  ASSIGN_OR_RETURN(JobRecord job, RolledBackPart(context, dataset, target.snapshot.txg, newer));
  job.operation = operation;
  record.used_sectors -= job.left_sectors;
  RETURN_IF_ERROR(AddJob(context, std::move(job)).status());
  record.tree = target.snapshot.tree;
  record.deadlist = context.parts.ids.Take<DeadlistId>();
  record.referenced_sectors = target.snapshot.referenced_sectors;
  record.data_blocks = target.snapshot.data_blocks;
  record.written_sectors = 0;
  record.newest_snapshot_txg = target.own ? target.snapshot.txg : 0;
  record.operation = OperationId{};
  ++record.revision;
  RETURN_IF_ERROR(SettleLivelist(context, dataset->id, &record));
  if (record.tree.trim_txg != 0) {
    // The snapshot was taken in the middle of a trim: the head takes it up again.
    RETURN_IF_ERROR(StartTrim(context, dataset, 0, 0));
  }
  context.publication.heads[dataset->id] = {record, LayerCut::kAll, false};
  return StoreRecord(context.meta, Key(dataset->id), record);
}

// Visible snapshot names that the clone and what it would take over both have.
absl::Status CheckCollisions(TxgContext& context, const FoundDataset& clone,
                             const std::vector<Neighbour>& moved) {
  const MetaTxn& txn = context.meta;
  uint64_t collisions = 0;
  std::string first;
  for (const Neighbour& neighbour : moved) {
    ASSIGN_OR_RETURN(const SnapshotRecord snapshot,
                     LoadRecord<SnapshotRecord>(txn, Key(neighbour.id)));
    if (!snapshot.visible()) continue;
    const std::string full = SnapshotFullName(clone.name, snapshot.name);
    RETURN_IF_ERROR(ParseSnapshotName(full).status());
    ASSIGN_OR_RETURN(const auto taken,
                     txn.Get(Table::kSnapshotsByName, Key(clone.id, snapshot.name)));
    if (!taken.has_value()) continue;
    if (collisions++ == 0) first = full;
  }
  if (collisions == 0) return absl::OkStatus();
  BlockerFinder blockers(txn, context.parts.attachments);
  blockers.Add("SNAPSHOT_NAME_COLLISION",
               {BlockerKind::kNameCollision, static_cast<uint64_t>(clone.id), 0}, collisions);
  return blockers.Refuse(clone.name, "promoted", absl::StatusCode::kAlreadyExists);
}

// The own snapshots up to `last`, rising.
absl::StatusOr<std::vector<Neighbour>> SnapshotsUpTo(const MetaTxn& txn, DatasetId dataset,
                                                     Txg last) {
  std::vector<Neighbour> found;
  Txg below = last + 1;
  while (true) {
    ASSIGN_OR_RETURN(const std::optional<Neighbour> next, SnapshotBefore(txn, dataset, below));
    if (!next.has_value()) break;
    found.push_back(*next);
    below = next->txg;
  }
  std::reverse(found.begin(), found.end());
  return found;
}

// Hands one snapshot of the parent to the clone. Returns what it wrote.
absl::StatusOr<uint64_t> MoveSnapshot(TxgContext& context, const Neighbour& neighbour,
                                      FoundDataset* parent, FoundDataset* clone) {
  ASSIGN_OR_RETURN(SnapshotRecord snapshot,
                   LoadRecord<SnapshotRecord>(context.meta, Key(neighbour.id)));
  WriteTxn& txn = context.meta;
  RETURN_IF_ERROR(txn.Delete(Table::kSnapshotsByTxg, Key(parent->id, snapshot.txg)));
  RETURN_IF_ERROR(txn.Put(Table::kSnapshotsByTxg, Key(clone->id, snapshot.txg), Key(neighbour.id)));
  DatasetRecord& from = parent->record;
  DatasetRecord& to = clone->record;
  if (snapshot.visible()) {
    RETURN_IF_ERROR(txn.Delete(Table::kSnapshotsByName, Key(parent->id, snapshot.name)));
    RETURN_IF_ERROR(
        txn.Put(Table::kSnapshotsByName, Key(clone->id, snapshot.name), Key(neighbour.id)));
    --from.snapshots;
    ++to.snapshots;
    if (snapshot.deferred) {
      --from.deferred_snapshots;
      ++to.deferred_snapshots;
    }
  }
  --from.all_snapshots;
  ++to.all_snapshots;
  from.clones -= snapshot.clones;
  to.clones += snapshot.clones;
  from.dependents -= snapshot.all_clones + snapshot.holds;
  to.dependents += snapshot.all_clones + snapshot.holds;
  snapshot.dataset = clone->id;
  RETURN_IF_ERROR(StoreRecord(txn, Key(neighbour.id), snapshot));
  return snapshot.written_sectors;
}

// Hands the parent's sublists up to the pivot, which hold `shared_sectors`, to the clone. A list
// that is missing on one side leaves the clone without one; the parent keeps what is its own.
absl::Status MoveSublists(TxgContext& context, FoundDataset* parent, FoundDataset* clone,
                          Txg pivot_txg, uint64_t shared_sectors) {
  DatasetRecord& from = parent->record;
  DatasetRecord& to = clone->record;
  const bool whole = to.list_state == ListState::kWhole;
  if (from.list_state == ListState::kWhole) {
    // What a clone without a list would get is as lost as the rest of it.
    const auto target = whole ? to.livelist : context.parts.ids.Take<LivelistId>();
    const absl::Status moved = LiveList::Move(context.meta, from.livelist, target, 0, pivot_txg);
    if (moved.ok()) return whole ? moved : ForgetLivelist(context, target);
    if (!absl::IsDataLoss(moved)) return moved;
    RETURN_IF_ERROR(DropLivelist(context, parent->id, DropReason::kDamaged, &from));
  }
  const bool loses = whole && shared_sectors > 0;
  return loses ? LoseLivelist(context, clone->id, &to) : absl::OkStatus();
}

// Swaps the clone relations: the parent becomes a clone of `pivot`, the clone takes over the
// parent's own origin. Counts of visible and of all clones stay as they are on both snapshots.
absl::Status SwapOrigins(TxgContext& context, FoundDataset* parent, FoundDataset* clone) {
  const SnapshotId pivot = clone->record.origin;
  const Txg pivot_txg = clone->record.origin_txg;
  WriteTxn& txn = context.meta;
  RETURN_IF_ERROR(txn.Delete(Table::kClones, Key(pivot, clone->id)));
  RETURN_IF_ERROR(txn.Put(Table::kClones, Key(pivot, parent->id), ""));
  clone->record.origin = parent->record.origin;
  clone->record.origin_txg = parent->record.origin_txg;
  if (clone->record.origin != SnapshotId{}) {
    RETURN_IF_ERROR(txn.Delete(Table::kClones, Key(clone->record.origin, parent->id)));
    RETURN_IF_ERROR(txn.Put(Table::kClones, Key(clone->record.origin, clone->id), ""));
  }
  parent->record.origin = pivot;
  parent->record.origin_txg = pivot_txg;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Verdict> RollbackDataset(TxgContext& context, const RollbackDatasetArgs& args,
                                        Outcome* outcome) {
  ASSIGN_OR_RETURN(FoundDataset dataset, ResolveDataset(context.meta, args.name, args.etag));
  ASSIGN_OR_RETURN(const RollbackTarget target, FindTarget(context.meta, dataset, args));
  ASSIGN_OR_RETURN(const std::vector<Neighbour> newer,
                   CheckNewer(context, dataset, target.snapshot.txg, args));
  if (context.fenced.contains(dataset.id)) return Verdict::kNextTxg;
  ASSIGN_OR_RETURN(
      const OperationId operation,
      BeginOperation(context, OperationKind::kRollback, DestroyKind::kRollback, dataset.name, 1));
  RETURN_IF_ERROR(ApplyRollback(context, &dataset, target, newer, operation));
  ++context.pool.destroyed_by_kind[static_cast<size_t>(DestroyKind::kRollback)];
  PoolStats& stats = context.parts.stats;
  context.after_commit.emplace_back([&stats] { ++stats.destroy_requests[DestroyKind::kRollback]; });
  ASSIGN_OR_RETURN(outcome->operation, SealOperation(context, operation));
  ASSIGN_OR_RETURN(DatasetInfo info, Describe(context.meta, context.parts.uid, dataset));
  outcome->datasets = {std::move(info)};
  outcome->target = target.name;
  outcome->count = newer.size();
  return Verdict::kApplied;
}

absl::StatusOr<Verdict> PromoteDataset(TxgContext& context, const std::string& name,
                                       const std::string& etag, Outcome* outcome) {
  ASSIGN_OR_RETURN(FoundDataset clone, ResolveDataset(context.meta, name, etag));
  if (clone.record.origin == SnapshotId{}) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "NOT_A_CLONE",
                     StrCat("dataset ", name, " is not a clone"), {{"name", name}});
  }
  ASSIGN_OR_RETURN(const SnapshotRecord pivot,
                   LoadRecord<SnapshotRecord>(context.meta, Key(clone.record.origin)));
  FoundDataset parent;
  parent.id = pivot.dataset;
  ASSIGN_OR_RETURN(parent.record, LoadRecord<DatasetRecord>(context.meta, Key(parent.id)));
  ASSIGN_OR_RETURN(parent.name, Names::FullName(context.meta, parent.record));
  ASSIGN_OR_RETURN(const std::vector<Neighbour> moved,
                   SnapshotsUpTo(context.meta, parent.id, pivot.txg));
  RETURN_IF_ERROR(CheckCollisions(context, clone, moved));

  for (FoundDataset* dataset : {&clone, &parent}) {
    RETURN_IF_ERROR(CancelRebuild(context, dataset->id, &dataset->record));
  }
  // What was born up to the pivot and is not freed is held by it or an older snapshot: it is now
  // the clone's. Sublists never straddle a snapshot, so whole ones move.
  const uint64_t snapshots_before = clone.record.snapshots;
  uint64_t shared_sectors = 0;
  for (const Neighbour& snapshot : moved) {
    ASSIGN_OR_RETURN(const uint64_t written, MoveSnapshot(context, snapshot, &parent, &clone));
    shared_sectors += written;
  }
  RETURN_IF_ERROR(MoveSublists(context, &parent, &clone, pivot.txg, shared_sectors));
  RETURN_IF_ERROR(MoveCondenseMarks(context, parent.id, clone.id, pivot.txg));
  parent.record.used_sectors -= shared_sectors;
  clone.record.used_sectors += shared_sectors;
  RETURN_IF_ERROR(SwapOrigins(context, &parent, &clone));
  if (clone.record.newest_snapshot_txg == 0) clone.record.newest_snapshot_txg = pivot.txg;
  if (parent.record.newest_snapshot_txg == pivot.txg) parent.record.newest_snapshot_txg = 0;
  outcome->count = clone.record.snapshots - snapshots_before;  // hidden ones are nobody's business
  for (FoundDataset* dataset : {&clone, &parent}) {
    ++dataset->record.revision;
    RETURN_IF_ERROR(SettleLivelist(context, dataset->id, &dataset->record));
    RETURN_IF_ERROR(StoreRecord(context.meta, Key(dataset->id), dataset->record));
  }
  for (const FoundDataset* dataset : {&clone, &parent}) {
    ASSIGN_OR_RETURN(DatasetInfo info, Describe(context.meta, context.parts.uid, *dataset));
    outcome->datasets.push_back(std::move(info));
  }
  return Verdict::kApplied;
}

}  // namespace cowshed::engine

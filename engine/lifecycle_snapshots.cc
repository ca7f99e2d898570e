// SPDX-License-Identifier: Apache-2.0
//
// Destroying snapshots by name or range, at once or deferred. The name goes here; what only the
// snapshot held comes free when its job takes it out of its lineage (reclaim_snapshot.cc).
#include <set>
#include <utility>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/blocker_finder.h"
#include "engine/destroy_plan.h"
#include "engine/lifecycle.h"
#include "engine/operations.h"

namespace cowshed::engine {
namespace {

absl::Status CollectNamed(const MetaTxn& txn, const DestroySnapshotsArgs& args,
                          std::vector<FoundSnapshot>* found) {
  std::set<SnapshotId> seen;
  for (const std::string& name : args.names) {
    absl::StatusOr<FoundSnapshot> snapshot = ResolveSnapshot(txn, name);
    if (!snapshot.ok() && absl::IsNotFound(snapshot.status()) && args.allow_missing) continue;
    RETURN_IF_ERROR(snapshot.status());
    if (!seen.insert(snapshot->id).second) {
      return MakeError(absl::StatusCode::kInvalidArgument, "DUPLICATE_NAME",
                       StrCat(name, " is named twice"), {{"name", name}});
    }
    found->push_back(*std::move(snapshot));
  }
  return absl::OkStatus();
}

// The txg of a range's end, or `open_end` where the range is open.
absl::StatusOr<Txg> RangeEnd(const MetaTxn& txn, const std::string& dataset,
                             const std::string& segment, Txg open_end) {
  if (segment.empty()) return open_end;
  ASSIGN_OR_RETURN(const FoundSnapshot snapshot,
                   ResolveSnapshot(txn, SnapshotFullName(dataset, segment)));
  return snapshot.record.txg;
}

absl::Status CollectRange(const MetaTxn& txn, const DestroySnapshotsArgs& args,
                          std::vector<FoundSnapshot>* found) {
  ASSIGN_OR_RETURN(const FoundDataset dataset, ResolveDataset(txn, args.range_dataset));
  ASSIGN_OR_RETURN(const Txg first, RangeEnd(txn, dataset.name, args.range_first, 1));
  ASSIGN_OR_RETURN(const Txg last, RangeEnd(txn, dataset.name, args.range_last, UINT64_MAX));
  if (first > last) {
    return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_FIELD",
                     "the range's first snapshot is newer than its last");
  }
  ASSIGN_OR_RETURN(const std::vector<Neighbour> snapshots,
                   SnapshotsAbove(txn, dataset.id, first - 1));
  for (const Neighbour& neighbour : snapshots) {
    if (neighbour.txg > last) break;
    FoundSnapshot snapshot;
    snapshot.id = neighbour.id;
    ASSIGN_OR_RETURN(snapshot.record, LoadRecord<SnapshotRecord>(txn, Key(neighbour.id)));
    if (!snapshot.record.visible()) continue;
    snapshot.name = SnapshotFullName(dataset.name, snapshot.record.name);
    found->push_back(std::move(snapshot));
  }
  return absl::OkStatus();
}

// Marks a snapshot that clones or holds still need: it goes with the last of them.
absl::Status Defer(TxgContext& context, const FoundSnapshot& snapshot) {
  if (snapshot.record.deferred) return absl::OkStatus();
  SnapshotRecord record = snapshot.record;
  record.deferred = true;
  RETURN_IF_ERROR(StoreRecord(context.meta, Key(snapshot.id), record));
  ASSIGN_OR_RETURN(DatasetRecord owner,
                   LoadRecord<DatasetRecord>(context.meta, Key(record.dataset)));
  ++owner.deferred_snapshots;
  ++context.pool.deferred_snapshots;
  return StoreRecord(context.meta, Key(record.dataset), owner);
}

// Of the snapshots that go; those that are only marked can be read until they do.
absl::Status ExamineAttachments(const std::vector<FoundSnapshot>& found, BlockerFinder* blockers) {
  std::set<SnapshotId> going;
  for (const FoundSnapshot& snapshot : found) {
    if (snapshot.record.all_clones + snapshot.record.holds == 0) going.insert(snapshot.id);
  }
  return blockers->ExamineAttachments(
      [&](DatasetId, SnapshotId snapshot) { return going.contains(snapshot); });
}

}  // namespace

absl::StatusOr<Verdict> DestroySnapshots(TxgContext& context, const DestroySnapshotsArgs& args,
                                         Outcome* outcome) {
  if (args.names.size() > kMaxNamesPerCall) {
    return MakeError(absl::StatusCode::kInvalidArgument, "TOO_MANY_NAMES",
                     "at most 10,000 snapshots by name in one call: use a range, or several calls");
  }
  std::vector<FoundSnapshot> found;
  RETURN_IF_ERROR(CollectNamed(context.meta, args, &found));
  if (!args.range_dataset.empty()) RETURN_IF_ERROR(CollectRange(context.meta, args, &found));
  BlockerFinder blockers(context.meta, context.parts.attachments);
  if (!args.defer) {
    for (const FoundSnapshot& snapshot : found) {
      blockers.ExamineSnapshot(snapshot.id, snapshot.record);
    }
  }
  if (!args.force) RETURN_IF_ERROR(ExamineAttachments(found, &blockers));
  DestroyPlan plan = PlanSnapshots(found);
  RETURN_IF_ERROR(CheckPlan(plan, args.plan_etag));
  if (args.validate_only) {
    RETURN_IF_ERROR(ForecastSnapshots(context.meta, context.parts.pacer, found, &plan));
    if (blockers.any()) {
      ASSIGN_OR_RETURN(plan.blockers, blockers.Get());
    }
    outcome->plan = std::move(plan);
    return Verdict::kApplied;
  }
  if (blockers.any()) return blockers.Refuse(found[0].name, "destroyed");
  outcome->count = found.size();
  outcome->plan = plan;
  if (plan.deferred_count == found.size()) {
    for (const FoundSnapshot& snapshot : found) RETURN_IF_ERROR(Defer(context, snapshot));
    return Verdict::kApplied;
  }
  ASSIGN_OR_RETURN(const OperationId operation,
                   BeginOperation(context, OperationKind::kDestroySnapshots, DestroyKind::kSnapshot,
                                  found[0].name, found.size()));
  for (const FoundSnapshot& snapshot : found) {
    // A clone that is doomed but still waits counts too, though it blocks nobody.
    if (snapshot.record.all_clones + snapshot.record.holds > 0) {
      RETURN_IF_ERROR(Defer(context, snapshot));
    } else {
      RETURN_IF_ERROR(KillSnapshot(context, snapshot.id, snapshot.record, operation));
    }
  }
  ASSIGN_OR_RETURN(outcome->operation, SealOperation(context, operation));
  return Verdict::kApplied;
}

}  // namespace cowshed::engine

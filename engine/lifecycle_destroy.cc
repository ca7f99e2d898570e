// SPDX-License-Identifier: Apache-2.0
//
// Destruction. A name goes at once; what it held goes to the reclaim queue, whole: a dataset's
// livelist says what it owned, and with its snapshots it owned exactly that (I6). A dataset whose
// snapshots still have (doomed) clones waits as *doomed* until the last of them has gone.
#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/offer_cpu.h"
#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/blocker_finder.h"
#include "engine/destroy_plan.h"
#include "engine/lifecycle.h"
#include "engine/livelist_drop.h"
#include "engine/operations.h"
#include "engine/trim.h"

namespace cowshed::engine {
namespace {

struct Targets {
  std::vector<FoundDataset> datasets;
  std::set<DatasetId> ids;
  bool bulk = false;  // a prefix too big to be taken apart in one txg

  void Add(FoundDataset dataset) {
    if (ids.insert(dataset.id).second) datasets.push_back(std::move(dataset));
  }
};

absl::Status TooMany() {
  return MakeError(absl::StatusCode::kInvalidArgument, "TOO_MANY_NAMES",
                   "more than 10,000 datasets in one call: destroy by prefix, or in parts");
}

absl::Status CollectNamed(const MetaTxn& txn, const DestroyDatasetsArgs& args, Targets* targets) {
  std::set<std::string> seen;
  for (const std::string& name : args.names) {
    if (!seen.insert(name).second) {
      return MakeError(absl::StatusCode::kInvalidArgument, "DUPLICATE_NAME",
                       StrCat(name, " is named twice"), {{"name", name}});
    }
    const auto etag = args.etags.find(name);
    absl::StatusOr<FoundDataset> found =
        ResolveDataset(txn, name, etag == args.etags.end() ? "" : etag->second);
    if (!found.ok() && absl::IsNotFound(found.status()) && args.allow_missing) continue;
    RETURN_IF_ERROR(found.status());
    targets->Add(*std::move(found));
  }
  return absl::OkStatus();
}

absl::Status CollectPrefix(TxgContext& context, const DestroyDatasetsArgs& args, Targets* targets) {
  ASSIGN_OR_RETURN(const std::string prefix, ParseDatasetName(args.prefix));
  const uint64_t limit = context.parts.options.bulk_names_per_txg;
  RETURN_IF_ERROR(Names::Walk(
      context.meta, prefix, "", [&](const std::string& name, DatasetId id) -> absl::StatusOr<bool> {
        if (targets->datasets.size() == limit) {
          targets->bulk = true;
          return false;
        }
        FoundDataset found{id, {}, name};
        ASSIGN_OR_RETURN(found.record, LoadRecord<DatasetRecord>(context.meta, Key(id)));
        targets->Add(std::move(found));
        return true;
      }));
  if (targets->datasets.empty() && !args.allow_missing) {
    return MakeError(absl::StatusCode::kNotFound, "DATASET_NOT_FOUND",
                     StrCat("no dataset under ", prefix), {{"name", prefix}});
  }
  return absl::OkStatus();
}

// Adds the visible clones of the snapshots of all targets, and theirs, and so on.
absl::Status CollectClones(const MetaTxn& txn, Targets* targets) {
  for (size_t i = 0; i < targets->datasets.size(); ++i) {
    if (targets->datasets[i].record.clones == 0) continue;
    ASSIGN_OR_RETURN(const std::vector<Neighbour> snapshots,
                     SnapshotsAbove(txn, targets->datasets[i].id, 0));
    for (const Neighbour& snapshot : snapshots) {
      MetaCursor cursor(txn, Table::kClones);
      for (cursor.Seek(Key(snapshot.id)); cursor.ValidFor(Key(snapshot.id)); cursor.Next()) {
        FoundDataset clone{KeyNumber<DatasetId>(cursor.key(), 8), {}, ""};
        ASSIGN_OR_RETURN(clone.record, LoadRecord<DatasetRecord>(txn, Key(clone.id)));
        ASSIGN_OR_RETURN(const bool destroyed, IsDestroyed(txn, clone.record));
        if (destroyed) continue;
        ASSIGN_OR_RETURN(clone.name, Names::FullName(txn, clone.record));
        targets->Add(std::move(clone));
        if (targets->datasets.size() > kMaxNamesPerCall) return TooMany();
      }
      RETURN_IF_ERROR(cursor.status());
    }
  }
  return absl::OkStatus();
}

std::map<SnapshotId, uint64_t> ClonesInside(const Targets& targets) {
  std::map<SnapshotId, uint64_t> inside;
  for (const FoundDataset& dataset : targets.datasets) {
    if (dataset.record.origin != SnapshotId{}) ++inside[dataset.record.origin];
  }
  return inside;
}

// The dataset leaves the catalogue; a job frees what its livelist says. Returns its origin, which
// may have waited for this (0: none).
absl::StatusOr<SnapshotId> FinalizeOne(TxgContext& context, DatasetId id,
                                       const DatasetRecord& record, int64_t since_ms = 0) {
  JobRecord job;
  job.create_time_ms = since_ms;
  job.kind = JobKind::kDataset;
  job.destroy_kind = static_cast<uint8_t>(record.origin != SnapshotId{} ? DestroyKind::kClone
                                                                        : DestroyKind::kDataset);
  job.operation = record.operation;
  job.dataset = record.all_snapshots > 0 ? id : DatasetId{};
  job.livelist = record.livelist;
  job.deadlist = record.deadlist;
  job.tree = record.tree;
  job.min_birth = record.previous_txg();
  job.origin_txg = record.origin_txg;
  job.left_sectors = record.used_sectors;
  if (record.list_state != ListState::kWhole) WalkTrees(&job);
  RETURN_IF_ERROR(AddJob(context, std::move(job)).status());
  RETURN_IF_ERROR(EndPending(context, record.operation));
  --context.pool.waiting_items;
  context.pool.waiting_sectors -= record.used_sectors;
  RETURN_IF_ERROR(context.meta.Delete(Table::kDatasets, Key(id)));
  if (record.origin == SnapshotId{}) return SnapshotId{};
  RETURN_IF_ERROR(context.meta.Delete(Table::kClones, Key(record.origin, id)));
  ASSIGN_OR_RETURN(SnapshotRecord origin,
                   LoadRecord<SnapshotRecord>(context.meta, Key(record.origin)));
  --origin.all_clones;
  RETURN_IF_ERROR(StoreRecord(context.meta, Key(record.origin), origin));
  ASSIGN_OR_RETURN(DatasetRecord owner,
                   LoadRecord<DatasetRecord>(context.meta, Key(origin.dataset)));
  --owner.dependents;
  RETURN_IF_ERROR(StoreRecord(context.meta, Key(origin.dataset), owner));
  return record.origin;
}

// A whole big subtree, walked once, outside of any bound but its own size.
absl::Status CollectBulk(const MetaTxn& txn, const std::string& prefix, Targets* targets) {
  targets->datasets.clear();
  targets->ids.clear();
  return Names::Walk(txn, prefix, "",
                     [&](const std::string& name, DatasetId id) -> absl::StatusOr<bool> {
                       OfferCpu();
                       FoundDataset found{id, {}, name};
                       ASSIGN_OR_RETURN(found.record, LoadRecord<DatasetRecord>(txn, Key(id)));
                       found.record.labels.clear();
                       targets->Add(std::move(found));
                       return true;
                     });
}

// Readers and writers of what is destroyed are cut off.
absl::Status CutOff(TxgContext& context, DatasetId id, const DatasetRecord& record) {
  OfferCpu();
  if (record.all_snapshots > 0) {
    ASSIGN_OR_RETURN(const std::vector<Neighbour> snapshots, SnapshotsAbove(context.meta, id, 0));
    for (const Neighbour& snapshot : snapshots) {
      context.publication.destroyed_snapshots.push_back(snapshot.id);
    }
  }
  context.publication.heads[id] = {record, LayerCut::kAll, true};
  return absl::OkStatus();
}

void CountDestroyed(TxgContext& context, const DatasetRecord& record) {
  const auto kind = record.origin != SnapshotId{} ? DestroyKind::kClone : DestroyKind::kDataset;
  ++context.pool.destroyed_by_kind[static_cast<size_t>(kind)];
  PoolStats& stats = context.parts.stats;
  context.after_commit.emplace_back([&stats, kind] { ++stats.destroy_requests[kind]; });
}

// Finishes a dataset whose name is gone, unless something still needs it.
absl::Status FinalizeUnlessNeeded(TxgContext& context, DatasetId id, const DatasetRecord& record,
                                  int64_t since_ms) {
  if (record.kept || record.dependents > 0) return StoreRecord(context.meta, Key(id), record);
  ASSIGN_OR_RETURN(const SnapshotId origin, FinalizeOne(context, id, record, since_ms));
  return ReapIfUnneeded(context, origin, record.operation);
}

// A prefix with more datasets than one txg takes apart: its directory is cut off the namespace, and
// with it everything below leaves the counts. A job does the rest in bites, or the window's end
// queues that job. REQUIRES: nothing blocks (checked over the whole subtree).
absl::Status DoomBulk(TxgContext& context, const std::string& prefix,
                      std::vector<FoundDataset> below, const Dooming& dooming) {
  ASSIGN_OR_RETURN(const Names::Subtree subtree, Names::Detach(context.meta, prefix));
  if (!below.empty() && below[0].id == subtree.dataset) below.erase(below.begin());
  for (const FoundDataset& dataset : below) {
    RETURN_IF_ERROR(CutOff(context, dataset.id, dataset.record));
  }
  RETURN_IF_ERROR(CountVisible(context, below, /*shown=*/false));
  if (dooming.window) {
    ASSIGN_OR_RETURN(OperationRecord operation,
                     LoadRecord<OperationRecord>(context.meta, Key(dooming.operation)));
    operation.directory = subtree.directory;
    ++operation.jobs_left;
    RETURN_IF_ERROR(StoreRecord(context.meta, Key(dooming.operation), operation));
  } else {
    RETURN_IF_ERROR(AddPrefixJob(context, subtree.directory, dooming.operation));
  }
  if (subtree.dataset == DatasetId{}) return absl::OkStatus();
  ASSIGN_OR_RETURN(DatasetRecord record,
                   LoadRecord<DatasetRecord>(context.meta, Key(subtree.dataset)));
  return Doom(context, subtree.dataset, std::move(record), dooming);
}

DestroyKind KindOf(const Targets& targets) {
  return !targets.datasets.empty() && targets.datasets[0].record.origin != SnapshotId{}
             ? DestroyKind::kClone
             : DestroyKind::kDataset;
}

absl::StatusOr<Targets> CollectTargets(TxgContext& context, const DestroyDatasetsArgs& args) {
  if (args.names.size() > kMaxNamesPerCall) return TooMany();
  Targets targets;
  RETURN_IF_ERROR(CollectNamed(context.meta, args, &targets));
  if (!args.prefix.empty()) RETURN_IF_ERROR(CollectPrefix(context, args, &targets));
  if (args.cascade && targets.bulk) return TooMany();
  if (args.cascade) RETURN_IF_ERROR(CollectClones(context.meta, &targets));
  return targets;
}

}  // namespace

absl::Status AddPrefixJob(TxgContext& context, DirectoryId directory, OperationId operation) {
  JobRecord job;
  job.kind = JobKind::kPrefix;
  job.directory = directory;
  job.operation = operation;
  return AddJob(context, std::move(job)).status();
}

absl::Status CountVisible(TxgContext& context, const std::vector<FoundDataset>& datasets,
                          bool shown) {
  const uint64_t sign = shown ? 1 : UINT64_MAX;  // unsigned sums wrap
  std::map<SnapshotId, uint64_t> clones;
  for (const FoundDataset& dataset : datasets) {
    const DatasetRecord& record = dataset.record;
    context.pool.datasets += sign;
    context.pool.snapshots += sign * record.snapshots;
    context.pool.deferred_snapshots += sign * record.deferred_snapshots;
    context.pool.waiting_items -= sign;
    context.pool.waiting_sectors -= sign * record.used_sectors;
    if (record.origin == SnapshotId{}) continue;
    context.pool.clones += sign;
    clones[record.origin] += sign;
  }
  for (const auto& [id, change] : clones) {
    ASSIGN_OR_RETURN(SnapshotRecord origin, LoadRecord<SnapshotRecord>(context.meta, Key(id)));
    origin.clones += change;
    RETURN_IF_ERROR(StoreRecord(context.meta, Key(id), origin));
    ASSIGN_OR_RETURN(DatasetRecord owner,
                     LoadRecord<DatasetRecord>(context.meta, Key(origin.dataset)));
    owner.clones += change;
    RETURN_IF_ERROR(StoreRecord(context.meta, Key(origin.dataset), owner));
  }
  return absl::OkStatus();
}

absl::Status Doom(TxgContext& context, DatasetId id, DatasetRecord record, const Dooming& dooming) {
  RETURN_IF_ERROR(AbandonTrim(context, id, record));
  RETURN_IF_ERROR(AbandonRebuild(context, id, &record));
  if (dooming.window) {
    // Its directories may go: it keeps its full name by itself.
    ASSIGN_OR_RETURN(std::string name, Names::FullName(context.meta, record));
    RETURN_IF_ERROR(Names::Remove(context.meta, record));
    record.directory = DirectoryId{};
    record.segment = std::move(name);
    record.kept = true;
    RETURN_IF_ERROR(
        context.meta.Put(Table::kStates, Key(StateKey::kKept, dooming.operation, id), ""));
  } else {
    RETURN_IF_ERROR(Names::Remove(context.meta, record));
  }
  RETURN_IF_ERROR(MoveExpiry(context, static_cast<uint64_t>(id), "", record.expire_time_ms, 0));
  record.doomed = true;
  record.operation = dooming.operation;
  RETURN_IF_ERROR(CutOff(context, id, record));
  RETURN_IF_ERROR(CountVisible(context, {{id, record, ""}}, /*shown=*/false));
  CountDestroyed(context, record);
  RETURN_IF_ERROR(AddPending(context, dooming.operation));
  return FinalizeUnlessNeeded(context, id, record, /*since_ms=*/0);
}

absl::Status DoomDetached(TxgContext& context, DatasetId id, DatasetRecord record,
                          const JobRecord& job) {
  OfferCpu();
  RETURN_IF_ERROR(AbandonTrim(context, id, record));
  RETURN_IF_ERROR(AbandonRebuild(context, id, &record));
  RETURN_IF_ERROR(Names::Remove(context.meta, record));
  RETURN_IF_ERROR(MoveExpiry(context, static_cast<uint64_t>(id), "", record.expire_time_ms, 0));
  record.doomed = true;
  record.operation = job.operation;
  CountDestroyed(context, record);
  RETURN_IF_ERROR(AddPending(context, job.operation));
  return FinalizeUnlessNeeded(context, id, record, job.create_time_ms);
}

absl::Status EndKeeping(TxgContext& context, DatasetId id) {
  ASSIGN_OR_RETURN(DatasetRecord record, LoadRecord<DatasetRecord>(context.meta, Key(id)));
  record.kept = false;
  return FinalizeUnlessNeeded(context, id, record, /*since_ms=*/0);
}

absl::Status KillSnapshot(TxgContext& context, SnapshotId id, SnapshotRecord snapshot,
                          OperationId operation) {
  COWSHED_CHECK(snapshot.all_clones == 0 && snapshot.holds == 0, "nothing depends on it");
  ASSIGN_OR_RETURN(DatasetRecord owner,
                   LoadRecord<DatasetRecord>(context.meta, Key(snapshot.dataset)));
  if (!snapshot.hidden) {
    RETURN_IF_ERROR(
        context.meta.Delete(Table::kSnapshotsByName, Key(snapshot.dataset, snapshot.name)));
    // Those of a prefix that waits have left the pool's counts with it.
    ASSIGN_OR_RETURN(const bool counted_out, IsDestroyed(context.meta, owner));
    --owner.snapshots;
    if (!counted_out) --context.pool.snapshots;
    if (snapshot.deferred) {
      --owner.deferred_snapshots;
      if (!counted_out) --context.pool.deferred_snapshots;
    }
    ++context.pool.destroyed_by_kind[static_cast<size_t>(DestroyKind::kSnapshot)];
    PoolStats& stats = context.parts.stats;
    context.after_commit.emplace_back(
        [&stats] { ++stats.destroy_requests[DestroyKind::kSnapshot]; });
  }
  snapshot.dying = true;
  snapshot.deferred = false;
  snapshot.name.clear();
  RETURN_IF_ERROR(StoreRecord(context.meta, Key(id), snapshot));
  RETURN_IF_ERROR(StoreRecord(context.meta, Key(snapshot.dataset), owner));
  context.publication.destroyed_snapshots.push_back(id);
  JobRecord job;
  job.kind = JobKind::kSnapshot;
  job.destroy_kind = static_cast<uint8_t>(DestroyKind::kSnapshot);
  job.method = static_cast<uint8_t>(DestroyMethod::kDeadlist);
  job.operation = operation;
  job.snapshot = id;
  return AddJob(context, std::move(job)).status();
}

absl::Status ReapIfUnneeded(TxgContext& context, SnapshotId id, OperationId operation) {
  // A loop, not a recursion: a lineage may be thousands of clones deep.
  while (id != SnapshotId{}) {
    ASSIGN_OR_RETURN(const SnapshotRecord snapshot,
                     LoadRecord<SnapshotRecord>(context.meta, Key(id)));
    ASSIGN_OR_RETURN(const DatasetRecord owner,
                     LoadRecord<DatasetRecord>(context.meta, Key(snapshot.dataset)));
    if (!owner.doomed) {
      const bool waited = snapshot.deferred || snapshot.hidden;
      const bool needed = snapshot.all_clones > 0 || snapshot.holds > 0;
      if (!waited || needed || snapshot.dying) return absl::OkStatus();
      return KillSnapshot(context, id, snapshot, operation);
    }
    if (owner.kept || owner.dependents > 0) return absl::OkStatus();
    ASSIGN_OR_RETURN(id, FinalizeOne(context, snapshot.dataset, owner));
  }
  return absl::OkStatus();
}

absl::StatusOr<Verdict> DestroyDatasets(TxgContext& context, const DestroyDatasetsArgs& args,
                                        Outcome* outcome, OperationKind kind) {
  if (args.reclaim_after_ms < 0 || args.reclaim_after_ms > kMaxReclaimAfterMs) {
    return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_FIELD",
                     "reclaim_after must be between 0 and 30 days", {{"field", "reclaim_after"}});
  }
  ASSIGN_OR_RETURN(Targets targets, CollectTargets(context, args));
  if (targets.bulk) RETURN_IF_ERROR(CollectBulk(context.meta, args.prefix, &targets));
  BlockerFinder blockers(context.meta, context.parts.attachments);
  const std::map<SnapshotId, uint64_t> inside = ClonesInside(targets);
  for (const FoundDataset& dataset : targets.datasets) {
    OfferCpu();
    RETURN_IF_ERROR(blockers.ExamineDataset(dataset.id, dataset.record,
                                            args.recursive || args.cascade, inside));
  }
  if (!args.force) {
    RETURN_IF_ERROR(blockers.ExamineAttachments(
        [&](DatasetId dataset, SnapshotId) { return targets.ids.contains(dataset); }));
  }
  DestroyPlan plan = PlanDatasets(targets.datasets);
  RETURN_IF_ERROR(CheckPlan(plan, args.plan_etag));
  if (args.validate_only) {
    RETURN_IF_ERROR(ForecastDatasets(context.meta, context.parts.pacer, targets.datasets, &plan));
    if (blockers.any()) {
      ASSIGN_OR_RETURN(plan.blockers, blockers.Get());
    }
    outcome->plan = std::move(plan);
    return Verdict::kApplied;
  }
  const std::string what = !args.prefix.empty() ? args.prefix
                           : args.names.empty() ? "nothing"
                                                : args.names[0];
  if (blockers.any()) return blockers.Refuse(what, "destroyed");
  outcome->count = plan.dataset_count;
  outcome->plan = plan;
  if (plan.dataset_count == 0) return Verdict::kApplied;
  ASSIGN_OR_RETURN(const OperationId operation,
                   BeginOperation(context, kind, KindOf(targets), what, plan.dataset_count));
  RETURN_IF_ERROR(
      PlanOperation(context, operation, plan.freed_bytes / kSectorBytes, args.reclaim_after_ms));
  const Dooming dooming{operation, args.reclaim_after_ms > 0};
  if (targets.bulk) {
    RETURN_IF_ERROR(DoomBulk(context, args.prefix, std::exchange(targets.datasets, {}), dooming));
  }
  for (const FoundDataset& dataset : targets.datasets) {
    // Read anew: dooming one target changes the counts of another.
    ASSIGN_OR_RETURN(DatasetRecord record,
                     LoadRecord<DatasetRecord>(context.meta, Key(dataset.id)));
    RETURN_IF_ERROR(Doom(context, dataset.id, std::move(record), dooming));
  }
  ASSIGN_OR_RETURN(outcome->operation, SealOperation(context, operation));
  return Verdict::kApplied;
}

}  // namespace cowshed::engine

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
#include "engine/base/hash.h"
#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/blocker_finder.h"
#include "engine/lifecycle.h"
#include "engine/livelist_drop.h"
#include "engine/operations.h"
#include "engine/trim.h"

namespace cowshed::engine {
namespace {

constexpr size_t kNamesInPlan = 100;

struct Targets {
  std::vector<FoundDataset> datasets;
  std::set<DatasetId> ids;
  bool bulk = false;  // a prefix too big for one txg: `datasets` is empty

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
        if (clone.record.doomed) continue;
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

DestroyPlan PlanFor(const Targets& targets) {
  DestroyPlan plan;
  uint64_t hash = 0;
  for (const FoundDataset& dataset : targets.datasets) {
    const DatasetRecord& record = dataset.record;
    ++plan.dataset_count;
    plan.snapshot_count += record.snapshots;
    plan.freed_bytes += record.used_sectors * kSectorBytes;
    if (plan.names.size() < kNamesInPlan) plan.names.push_back(dataset.name);
    const Key facts(dataset.id, record.revision, record.newest_snapshot_txg, record.snapshots,
                    record.dependents);
    hash += Hash64(std::string_view(facts));  // a set: the order does not matter
  }
  plan.plan_etag = absl::StrCat(absl::Hex(hash, absl::kZeroPad16));
  return plan;
}

// The dataset leaves the catalogue; a job frees what its livelist says. Returns its origin, which
// may have waited for this (0: none).
absl::StatusOr<SnapshotId> FinalizeOne(TxgContext& context, DatasetId id,
                                       const DatasetRecord& record) {
  JobRecord job;
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

// A prefix with more datasets than one txg takes apart: its directory is cut off the namespace and
// a job does the rest in bites. REQUIRES: nothing blocks (checked over the whole subtree).
absl::Status DoomBulk(TxgContext& context, const std::string& prefix, OperationId operation) {
  ASSIGN_OR_RETURN(const Names::Subtree subtree, Names::Detach(context.meta, prefix));
  if (subtree.directory != DirectoryId{}) {
    JobRecord job;
    job.kind = JobKind::kPrefix;
    job.directory = subtree.directory;
    job.operation = operation;
    RETURN_IF_ERROR(AddJob(context, std::move(job)).status());
  }
  if (subtree.dataset == DatasetId{}) return absl::OkStatus();
  ASSIGN_OR_RETURN(DatasetRecord record,
                   LoadRecord<DatasetRecord>(context.meta, Key(subtree.dataset)));
  return Doom(context, subtree.dataset, std::move(record), operation);
}

// Walks a whole big subtree once, outside of any bound but its own size, looking for blockers.
absl::Status ExamineBulk(const MetaTxn& txn, const DestroyDatasetsArgs& args,
                         BlockerFinder* blockers, DestroyPlan* plan) {
  std::vector<std::pair<DatasetId, DatasetRecord>> with_dependents;
  Targets inside;
  RETURN_IF_ERROR(Names::Walk(
      txn, args.prefix, "", [&](const std::string& name, DatasetId id) -> absl::StatusOr<bool> {
        FoundDataset found{id, {}, name};
        ASSIGN_OR_RETURN(found.record, LoadRecord<DatasetRecord>(txn, Key(id)));
        if (found.record.snapshots + found.record.dependents > 0) {
          with_dependents.emplace_back(id, found.record);
        }
        found.record.labels.clear();
        inside.Add(std::move(found));
        return true;
      }));
  const std::map<SnapshotId, uint64_t> clones = ClonesInside(inside);
  for (const auto& [id, record] : with_dependents) {
    RETURN_IF_ERROR(blockers->ExamineDataset(id, record, args.recursive, clones));
  }
  *plan = PlanFor(inside);
  return absl::OkStatus();
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

absl::Status Doom(TxgContext& context, DatasetId id, DatasetRecord record, OperationId operation) {
  RETURN_IF_ERROR(AbandonTrim(context, id, record));
  RETURN_IF_ERROR(AbandonRebuild(context, id, &record));
  RETURN_IF_ERROR(Names::Remove(context.meta, record));
  RETURN_IF_ERROR(MoveExpiry(context, static_cast<uint64_t>(id), "", record.expire_time_ms, 0));
  record.doomed = true;
  record.operation = operation;
  --context.pool.datasets;
  context.pool.snapshots -= record.snapshots;
  context.pool.deferred_snapshots -= record.deferred_snapshots;
  if (record.origin != SnapshotId{}) {
    --context.pool.clones;
    ASSIGN_OR_RETURN(SnapshotRecord origin,
                     LoadRecord<SnapshotRecord>(context.meta, Key(record.origin)));
    --origin.clones;
    RETURN_IF_ERROR(StoreRecord(context.meta, Key(record.origin), origin));
    ASSIGN_OR_RETURN(DatasetRecord owner,
                     LoadRecord<DatasetRecord>(context.meta, Key(origin.dataset)));
    --owner.clones;
    RETURN_IF_ERROR(StoreRecord(context.meta, Key(origin.dataset), owner));
  }
  if (record.all_snapshots > 0) {
    ASSIGN_OR_RETURN(const std::vector<Neighbour> snapshots, SnapshotsAbove(context.meta, id, 0));
    for (const Neighbour& snapshot : snapshots) {
      context.publication.destroyed_snapshots.push_back(snapshot.id);
    }
  }
  context.publication.heads[id] = {record, LayerCut::kAll, true};
  const auto kind = record.origin != SnapshotId{} ? DestroyKind::kClone : DestroyKind::kDataset;
  ++context.pool.destroyed_by_kind[static_cast<size_t>(kind)];
  PoolStats& stats = context.parts.stats;
  context.after_commit.emplace_back([&stats, kind] { ++stats.destroy_requests[kind]; });
  RETURN_IF_ERROR(AddPending(context, operation));
  if (record.dependents > 0) return StoreRecord(context.meta, Key(id), record);
  ASSIGN_OR_RETURN(const SnapshotId origin, FinalizeOne(context, id, record));
  return ReapIfUnneeded(context, origin, operation);
}

absl::Status KillSnapshot(TxgContext& context, SnapshotId id, SnapshotRecord snapshot,
                          OperationId operation) {
  COWSHED_CHECK(snapshot.all_clones == 0 && snapshot.holds == 0, "nothing depends on it");
  ASSIGN_OR_RETURN(DatasetRecord owner,
                   LoadRecord<DatasetRecord>(context.meta, Key(snapshot.dataset)));
  if (!snapshot.hidden) {
    RETURN_IF_ERROR(
        context.meta.Delete(Table::kSnapshotsByName, Key(snapshot.dataset, snapshot.name)));
    --owner.snapshots;
    --context.pool.snapshots;
    if (snapshot.deferred) {
      --owner.deferred_snapshots;
      --context.pool.deferred_snapshots;
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
    if (owner.dependents > 0) return absl::OkStatus();
    ASSIGN_OR_RETURN(id, FinalizeOne(context, snapshot.dataset, owner));
  }
  return absl::OkStatus();
}

absl::StatusOr<Verdict> DestroyDatasets(TxgContext& context, const DestroyDatasetsArgs& args,
                                        Outcome* outcome, OperationKind kind) {
  ASSIGN_OR_RETURN(Targets targets, CollectTargets(context, args));
  BlockerFinder blockers(context.meta);
  DestroyPlan plan;
  if (targets.bulk) {
    RETURN_IF_ERROR(ExamineBulk(context.meta, args, &blockers, &plan));
  } else {
    const std::map<SnapshotId, uint64_t> inside = ClonesInside(targets);
    for (const FoundDataset& dataset : targets.datasets) {
      RETURN_IF_ERROR(blockers.ExamineDataset(dataset.id, dataset.record,
                                              args.recursive || args.cascade, inside));
    }
    plan = PlanFor(targets);
  }
  RETURN_IF_ERROR(CheckPlan(plan, args.plan_etag));
  if (args.validate_only) {
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
  if (targets.bulk) {
    RETURN_IF_ERROR(DoomBulk(context, args.prefix, operation));
  }
  for (const FoundDataset& dataset : targets.datasets) {
    if (targets.bulk) break;
    // Read anew: dooming one target changes the counts of another.
    ASSIGN_OR_RETURN(DatasetRecord record,
                     LoadRecord<DatasetRecord>(context.meta, Key(dataset.id)));
    RETURN_IF_ERROR(Doom(context, dataset.id, std::move(record), operation));
  }
  ASSIGN_OR_RETURN(outcome->operation, SealOperation(context, operation));
  return Verdict::kApplied;
}

}  // namespace cowshed::engine

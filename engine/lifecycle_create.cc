// SPDX-License-Identifier: Apache-2.0
//
// Create, snapshot and clone: what makes datasets and snapshots.
#include <bit>
#include <set>
#include <utility>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/lifecycle.h"
#include "engine/operations.h"
#include "engine/trim.h"

namespace cowshed::engine {
namespace {

constexpr size_t kSnapshotsInReply = 100;

absl::Status Invalid(std::string_view reason, std::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason, message);
}

absl::Status CheckGeometry(uint64_t size_bytes, uint32_t block_bytes) {
  if (size_bytes == 0 || size_bytes > kMaxDatasetBytes) {
    return Invalid("INVALID_SIZE", "the size must be 1 byte to 1 PiB");
  }
  if (!std::has_single_bit(block_bytes) || block_bytes < kMinBlockBytes ||
      block_bytes > kMaxBlockBytes) {
    return Invalid("INVALID_BLOCK_SIZE", "the block size must be a power of two, 4 KiB to 128 KiB");
  }
  return absl::OkStatus();
}

// Gives a new dataset its name and lists and stores it.
absl::Status AddDataset(TxgContext& context, FoundDataset* dataset) {
  DatasetRecord& record = dataset->record;
  dataset->id = context.parts.ids.Take<DatasetId>();
  record.create_txg = context.txg;
  record.create_time_ms = context.now_ms;
  record.livelist = context.parts.ids.Take<LivelistId>();
  record.deadlist = context.parts.ids.Take<DeadlistId>();
  RETURN_IF_ERROR(
      Names::Insert(context.meta, dataset->name, dataset->id, context.parts.ids, &record));
  RETURN_IF_ERROR(
      MoveExpiry(context, static_cast<uint64_t>(dataset->id), "", 0, record.expire_time_ms));
  ++context.pool.datasets;
  ++context.pool.livelists;
  return StoreRecord(context.meta, Key(dataset->id), record);
}

absl::Status Exists(std::vector<Blocker> taken) {
  ErrorDetails details;
  details.reason = "SNAPSHOT_EXISTS";
  details.metadata["name"] = taken[0].name;
  details.blockers.total = taken.size();
  const std::string first = taken[0].name;
  const size_t count = taken.size();
  if (taken.size() > 20) taken.resize(20);
  details.blockers.first = std::move(taken);
  return MakeError(absl::StatusCode::kAlreadyExists,
                   count == 1 ? StrCat("snapshot ", first, " already exists")
                              : StrCat("snapshot ", first, " and ", count - 1,
                                       " more already exist; none was made"),
                   std::move(details));
}

// What a CreateSnapshots call asks for: datasets and the short names they get.
struct Wanted {
  FoundDataset dataset;
  std::string snapshot;
};

absl::StatusOr<std::vector<Wanted>> CollectWanted(const MetaTxn& txn,
                                                  const CreateSnapshotsArgs& args) {
  std::vector<Wanted> wanted;
  for (const std::string& name : args.names) {
    ASSIGN_OR_RETURN(const ParsedName parsed, ParseSnapshotName(name));
    ASSIGN_OR_RETURN(FoundDataset dataset, ResolveDataset(txn, parsed.dataset));
    wanted.push_back({std::move(dataset), parsed.snapshot});
  }
  if (args.prefix.empty()) return wanted;
  ASSIGN_OR_RETURN(const std::string prefix, ParseDatasetName(args.prefix));
  RETURN_IF_ERROR(CheckSegment(args.snapshot));
  RETURN_IF_ERROR(Names::Walk(
      txn, prefix, "", [&](const std::string& name, DatasetId id) -> absl::StatusOr<bool> {
        Wanted& entry = wanted.emplace_back();
        entry.dataset.id = id;
        entry.dataset.name = name;
        entry.snapshot = args.snapshot;
        ASSIGN_OR_RETURN(entry.dataset.record, LoadRecord<DatasetRecord>(txn, Key(id)));
        return true;
      }));
  if (wanted.empty()) {
    return MakeError(absl::StatusCode::kNotFound, "DATASET_NOT_FOUND",
                     StrCat("no dataset under ", prefix), {{"name", prefix}});
  }
  return wanted;
}

absl::Status CheckWanted(const MetaTxn& txn, const std::vector<Wanted>& wanted) {
  std::set<DatasetId> seen;
  std::vector<Blocker> taken;
  for (const Wanted& entry : wanted) {
    const std::string full = SnapshotFullName(entry.dataset.name, entry.snapshot);
    RETURN_IF_ERROR(ParseSnapshotName(full).status());
    if (!seen.insert(entry.dataset.id).second) {
      return MakeError(absl::StatusCode::kInvalidArgument, "DUPLICATE_NAME",
                       StrCat("two snapshots of ", entry.dataset.name,
                              " in one call: they would be the same point in time"),
                       {{"name", entry.dataset.name}});
    }
    ASSIGN_OR_RETURN(const auto existing,
                     txn.Get(Table::kSnapshotsByName, Key(entry.dataset.id, entry.snapshot)));
    if (existing.has_value()) taken.push_back({BlockerKind::kNameCollision, full, full, ""});
  }
  return taken.empty() ? absl::OkStatus() : Exists(std::move(taken));
}

// The hidden snapshot of a head that this txg has already made for another clone; nullopt if the
// head is not fenced. kNextTxg if it is for another reason.
absl::StatusOr<std::optional<SnapshotId>> SharedHiddenSnapshot(TxgContext& context, DatasetId head,
                                                               Verdict* verdict) {
  if (!context.fenced.contains(head)) return std::nullopt;
  ASSIGN_OR_RETURN(const std::optional<Neighbour> newest,
                   SnapshotBefore(context.meta, head, context.txg + 1));
  if (newest.has_value() && newest->txg == context.txg) {
    ASSIGN_OR_RETURN(const SnapshotRecord record,
                     LoadRecord<SnapshotRecord>(context.meta, Key(newest->id)));
    if (record.hidden && !record.dying) return newest->id;
  }
  *verdict = Verdict::kNextTxg;
  return std::nullopt;
}

// What a clone starts from: a snapshot by name, or a head, whose hidden snapshot may be there yet.
struct CloneSource {
  std::optional<FoundSnapshot> snapshot;
  std::optional<FoundDataset> head;
};

absl::StatusOr<CloneSource> ResolveCloneSource(TxgContext& context, const CloneDatasetArgs& args,
                                               Verdict* verdict) {
  ASSIGN_OR_RETURN(const ParsedName parsed, ParseName(args.source));
  if (args.replace && parsed.dataset == args.name) {
    return Invalid("INVALID_FIELD", "a clone cannot replace its own source");
  }
  CloneSource source;
  if (!parsed.snapshot.empty()) {
    ASSIGN_OR_RETURN(source.snapshot, ResolveSnapshot(context.meta, args.source));
    return source;
  }
  ASSIGN_OR_RETURN(source.head, ResolveDataset(context.meta, parsed.dataset));
  ASSIGN_OR_RETURN(const std::optional<SnapshotId> shared,
                   SharedHiddenSnapshot(context, source.head->id, verdict));
  if (!shared.has_value()) return source;
  source.snapshot.emplace();
  source.snapshot->id = *shared;
  ASSIGN_OR_RETURN(source.snapshot->record, LoadRecord<SnapshotRecord>(context.meta, Key(*shared)));
  return source;
}

// What a clone is to replace, if anything bears its name.
absl::StatusOr<std::optional<DestroyDatasetsArgs>> ReplacedBy(const MetaTxn& txn,
                                                              const CloneDatasetArgs& args) {
  if (!args.replace) return std::nullopt;
  ASSIGN_OR_RETURN(const std::optional<DatasetId> existing, Names::Find(txn, args.name));
  if (!existing.has_value()) return std::nullopt;
  DestroyDatasetsArgs destroy;
  destroy.names = {args.name};
  destroy.force = args.force;
  if (!args.replace_etag.empty()) destroy.etags[args.name] = args.replace_etag;
  return destroy;
}

// Refuses, before anything has changed, what DestroyDatasets would refuse.
absl::Status CheckDestroy(TxgContext& context, DestroyDatasetsArgs args) {
  args.validate_only = true;
  Outcome planned;
  RETURN_IF_ERROR(DestroyDatasets(context, args, &planned).status());
  if (planned.plan->blockers.total == 0) return absl::OkStatus();
  args.validate_only = false;
  return DestroyDatasets(context, args, &planned).status();
}

// One more clone of the snapshot is on its way: from now on it stays.
absl::Status PinOrigin(TxgContext& context, SnapshotId id) {
  ASSIGN_OR_RETURN(SnapshotRecord origin, LoadRecord<SnapshotRecord>(context.meta, Key(id)));
  ++origin.all_clones;
  RETURN_IF_ERROR(StoreRecord(context.meta, Key(id), origin));
  ASSIGN_OR_RETURN(DatasetRecord owner,
                   LoadRecord<DatasetRecord>(context.meta, Key(origin.dataset)));
  ++owner.dependents;
  return StoreRecord(context.meta, Key(origin.dataset), owner);
}

// The snapshot a clone starts from, pinned, with what it replaces gone.
absl::StatusOr<SnapshotId> PrepareOrigin(TxgContext& context, const CloneDatasetArgs& args,
                                         CloneSource* source, Outcome* outcome) {
  ASSIGN_OR_RETURN(std::optional<DestroyDatasetsArgs> replaced, ReplacedBy(context.meta, args));
  if (replaced.has_value()) RETURN_IF_ERROR(CheckDestroy(context, *replaced));
  // Pinned first: what goes may be the last clone that a deferred origin waits for.
  if (source->snapshot.has_value()) RETURN_IF_ERROR(PinOrigin(context, source->snapshot->id));
  if (replaced.has_value()) {
    Outcome destroyed;
    replaced->force = true;  // who has attached it since the check is cut like anybody after it
    RETURN_IF_ERROR(DestroyDatasets(context, *replaced, &destroyed).status());
    outcome->operation = std::move(destroyed.operation);
  }
  if (source->snapshot.has_value()) return source->snapshot->id;
  // Read anew: what went may have been a clone of this head's snapshots.
  ASSIGN_OR_RETURN(source->head->record,
                   LoadRecord<DatasetRecord>(context.meta, Key(source->head->id)));
  ASSIGN_OR_RETURN(const SnapshotId made, MakeSnapshot(context, &*source->head, "", {}));
  RETURN_IF_ERROR(PinOrigin(context, made));
  return made;
}

absl::Status CheckCloneArgs(const MetaTxn& txn, const CloneDatasetArgs& args) {
  RETURN_IF_ERROR(ParseDatasetName(args.name).status());
  RETURN_IF_ERROR(CheckLabels(args.labels));
  if (!args.replace) return CheckNameFree(txn, args.name);
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckNameFree(const MetaTxn& txn, const std::string& name) {
  ASSIGN_OR_RETURN(const std::optional<DatasetId> taken, Names::Find(txn, name));
  if (!taken.has_value()) return absl::OkStatus();
  return MakeError(absl::StatusCode::kAlreadyExists, "DATASET_EXISTS",
                   StrCat("dataset ", name, " already exists"), {{"name", name}});
}

absl::Status MoveExpiry(TxgContext& context, uint64_t id, const std::string& tag, int64_t from_ms,
                        int64_t to_ms) {
  if (from_ms == to_ms) return absl::OkStatus();
  if (from_ms != 0) {
    RETURN_IF_ERROR(
        context.meta.Delete(Table::kExpiry, Key(static_cast<uint64_t>(from_ms), id).Append(tag)));
  }
  if (to_ms == 0) return absl::OkStatus();
  return context.meta.Put(Table::kExpiry, Key(static_cast<uint64_t>(to_ms), id).Append(tag), "");
}

absl::StatusOr<Verdict> CreateDataset(TxgContext& context, const CreateDatasetArgs& args,
                                      Outcome* outcome) {
  ASSIGN_OR_RETURN(const std::string name, ParseDatasetName(args.name));
  RETURN_IF_ERROR(CheckGeometry(args.size_bytes, args.block_bytes));
  RETURN_IF_ERROR(CheckLabels(args.labels));
  RETURN_IF_ERROR(CheckNameFree(context.meta, name));
  FoundDataset dataset;
  dataset.name = name;
  dataset.record.tree.size_bytes = args.size_bytes;
  dataset.record.tree.block_bytes = args.block_bytes;
  dataset.record.tree.height = BlockTree::HeightFor(dataset.record.tree.block_count());
  dataset.record.labels = args.labels;
  dataset.record.quota_bytes = args.quota_bytes;
  dataset.record.expire_time_ms = args.expire_time_ms;
  RETURN_IF_ERROR(AddDataset(context, &dataset));
  ASSIGN_OR_RETURN(DatasetInfo info, Describe(context.meta, context.parts.uid, dataset));
  outcome->datasets = {std::move(info)};
  outcome->count = 1;
  return Verdict::kApplied;
}

absl::StatusOr<SnapshotId> MakeSnapshot(TxgContext& context, FoundDataset* dataset,
                                        const std::string& name, const Labels& labels) {
  COWSHED_CHECK(!context.fenced.contains(dataset->id), "one snapshot of a dataset per txg");
  DatasetRecord& owner = dataset->record;
  SnapshotRecord snapshot;
  snapshot.dataset = dataset->id;
  snapshot.name = name;
  snapshot.txg = context.txg;
  snapshot.create_time_ms = context.now_ms;
  snapshot.hidden = name.empty();
  snapshot.tree = owner.tree;
  snapshot.deadlist = owner.deadlist;
  snapshot.referenced_sectors = owner.referenced_sectors;
  snapshot.written_sectors = owner.written_sectors;
  snapshot.data_blocks = owner.data_blocks;
  snapshot.labels = labels;
  const auto id = context.parts.ids.Take<SnapshotId>();
  owner.deadlist = context.parts.ids.Take<DeadlistId>();
  owner.written_sectors = 0;
  owner.newest_snapshot_txg = context.txg;
  ++owner.all_snapshots;
  if (!snapshot.hidden) {
    ++owner.snapshots;
    ++context.pool.snapshots;
    RETURN_IF_ERROR(context.meta.Put(Table::kSnapshotsByName, Key(dataset->id, name), Key(id)));
  }
  RETURN_IF_ERROR(
      context.meta.Put(Table::kSnapshotsByTxg, Key(dataset->id, snapshot.txg), Key(id)));
  RETURN_IF_ERROR(StoreRecord(context.meta, Key(id), snapshot));
  RETURN_IF_ERROR(StoreRecord(context.meta, Key(dataset->id), owner));
  context.fenced.insert(dataset->id);
  return id;
}

absl::StatusOr<Verdict> CreateSnapshots(TxgContext& context, const CreateSnapshotsArgs& args,
                                        Outcome* outcome) {
  if (args.names.size() > kMaxNamesPerCall) {
    return Invalid("TOO_MANY_NAMES", "at most 10,000 snapshots by name in one call");
  }
  RETURN_IF_ERROR(CheckLabels(args.labels));
  ASSIGN_OR_RETURN(std::vector<Wanted> wanted, CollectWanted(context.meta, args));
  RETURN_IF_ERROR(CheckWanted(context.meta, wanted));
  for (const Wanted& entry : wanted) {
    if (context.fenced.contains(entry.dataset.id)) return Verdict::kNextTxg;
  }
  outcome->time_ms = context.now_ms;
  outcome->count = wanted.size();
  for (Wanted& entry : wanted) {
    ASSIGN_OR_RETURN(const SnapshotId id,
                     MakeSnapshot(context, &entry.dataset, entry.snapshot, args.labels));
    if (outcome->snapshots.size() == kSnapshotsInReply) continue;
    FoundSnapshot made;
    made.id = id;
    ASSIGN_OR_RETURN(made.record, LoadRecord<SnapshotRecord>(context.meta, Key(id)));
    made.name = SnapshotFullName(entry.dataset.name, entry.snapshot);
    ASSIGN_OR_RETURN(SnapshotInfo info, Describe(context.meta, context.parts.uid, made));
    outcome->snapshots.push_back(std::move(info));
  }
  return Verdict::kApplied;
}

absl::StatusOr<Verdict> CloneDataset(TxgContext& context, const CloneDatasetArgs& args,
                                     Outcome* outcome) {
  RETURN_IF_ERROR(CheckCloneArgs(context.meta, args));
  Verdict verdict = Verdict::kApplied;
  ASSIGN_OR_RETURN(CloneSource source, ResolveCloneSource(context, args, &verdict));
  if (verdict == Verdict::kNextTxg) return verdict;
  FoundSnapshot origin;
  ASSIGN_OR_RETURN(origin.id, PrepareOrigin(context, args, &source, outcome));
  ASSIGN_OR_RETURN(origin.record, LoadRecord<SnapshotRecord>(context.meta, Key(origin.id)));

  FoundDataset clone;
  clone.name = args.name;
  clone.record.tree = origin.record.tree;
  clone.record.origin = origin.id;
  clone.record.origin_txg = origin.record.txg;
  clone.record.referenced_sectors = origin.record.referenced_sectors;
  clone.record.data_blocks = origin.record.data_blocks;
  clone.record.labels = args.labels;
  clone.record.quota_bytes = args.quota_bytes;
  clone.record.expire_time_ms = args.expire_time_ms;
  RETURN_IF_ERROR(AddDataset(context, &clone));
  if (clone.record.tree.trim_txg != 0) {
    // The snapshot was taken in the middle of a trim: the clone takes it up.
    RETURN_IF_ERROR(StartTrim(context, &clone, 0, 0));
    RETURN_IF_ERROR(StoreRecord(context.meta, Key(clone.id), clone.record));
  }
  RETURN_IF_ERROR(context.meta.Put(Table::kClones, Key(origin.id, clone.id), ""));
  ++origin.record.clones;
  RETURN_IF_ERROR(StoreRecord(context.meta, Key(origin.id), origin.record));
  ASSIGN_OR_RETURN(DatasetRecord owner,
                   LoadRecord<DatasetRecord>(context.meta, Key(origin.record.dataset)));
  ++owner.clones;
  RETURN_IF_ERROR(StoreRecord(context.meta, Key(origin.record.dataset), owner));
  // Its own first snapshot must be younger than its origin, or a promote brings them together.
  if (origin.record.txg == context.txg) context.fenced.insert(clone.id);
  ++context.pool.clones;
  ASSIGN_OR_RETURN(DatasetInfo info, Describe(context.meta, context.parts.uid, clone));
  outcome->datasets = {std::move(info)};
  outcome->count = 1;
  return Verdict::kApplied;
}

}  // namespace cowshed::engine

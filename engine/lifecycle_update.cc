// SPDX-License-Identifier: Apache-2.0
//
// Update (size, quota, expiry, labels), rename, hold and release: what changes records in place.
#include <algorithm>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/blocker_finder.h"
#include "engine/head_sync.h"
#include "engine/lifecycle.h"
#include "engine/operations.h"
#include "engine/trim.h"

namespace cowshed::engine {
namespace {

// What one snapshot may be held by: a list of them is walked to destroy or to page through it.
constexpr uint64_t kMaxHoldsPerSnapshot = 10000;

// Zeroes the bytes of the last block past the new end, so that growing again shows zeros.
absl::Status ZeroTail(TxgContext& context, FoundDataset* dataset) {
  TreeState& tree = dataset->record.tree;
  const uint64_t tail_bytes = tree.size_bytes % tree.block_bytes;
  if (tail_bytes == 0) return absl::OkStatus();
  RETURN_IF_ERROR(context.writer.Flush());  // the block may have been written in this very txg
  const uint64_t last = tree.block_count() - 1;
  BlockPtr pointer;
  RETURN_IF_ERROR(context.parts.tree.Lookup(tree, last, std::span(&pointer, 1)));
  if (pointer.is_hole()) return absl::OkStatus();
  auto bytes = std::make_unique<std::byte[]>(tree.block_bytes);
  RETURN_IF_ERROR(context.parts.blocks.Read(pointer, std::span(bytes.get(), tree.block_bytes)));
  std::fill(bytes.get() + tail_bytes, bytes.get() + tree.block_bytes, std::byte{0});
  BlockTree::Update update;
  update.block = last;
  ASSIGN_OR_RETURN(update.pointer,
                   context.writer.Add(BlockKind::kData, 0, std::span(bytes.get(), tree.block_bytes),
                                      &update.extents));
  context.buffers.push_back(std::move(bytes));
  PointerChanges changes(context.txg, dataset->record.previous_txg());
  RETURN_IF_ERROR(
      context.parts.tree.Rewrite(&tree, std::span(&update, 1), context.writer, changes));
  return BookChanges(context, dataset->id, changes, &dataset->record);
}

// Nobody may use the head as a device of its present size.
absl::Status CheckDetached(TxgContext& context, const FoundDataset& dataset) {
  BlockerFinder blockers(context.meta, context.parts.attachments);
  RETURN_IF_ERROR(blockers.ExamineAttachments([&](DatasetId id, SnapshotId snapshot) {
    return id == dataset.id && snapshot == SnapshotId{};
  }));
  return blockers.any() ? blockers.Refuse(dataset.name, "made smaller") : absl::OkStatus();
}

absl::StatusOr<Verdict> Resize(TxgContext& context, FoundDataset* dataset, uint64_t size_bytes,
                               bool force, Outcome* outcome) {
  TreeState& tree = dataset->record.tree;
  if (size_bytes == 0 || size_bytes > kMaxDatasetBytes) {
    return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_SIZE",
                     "the size must be 1 byte to 1 PiB");
  }
  if (size_bytes >= tree.size_bytes) {
    tree.size_bytes = size_bytes;
    return Verdict::kApplied;
  }
  if (!force) RETURN_IF_ERROR(CheckDetached(context, *dataset));
  if (context.fenced.contains(dataset->id) || tree.trim_txg != 0) return Verdict::kNextTxg;
  const uint64_t old_blocks = tree.block_count();
  tree.size_bytes = size_bytes;
  RETURN_IF_ERROR(ZeroTail(context, dataset));
  if (tree.block_count() < old_blocks && !tree.root.is_hole()) {
    RETURN_IF_ERROR(StartTrim(context, dataset, tree.block_count(), old_blocks));
    ASSIGN_OR_RETURN(outcome->operation, SealOperation(context, dataset->record.operation));
  }
  // A rollback of this txg cuts more.
  LayerCut& cut = context.publication.heads[dataset->id].cut;
  cut = std::max(cut, LayerCut::kShrink);
  return Verdict::kApplied;
}

absl::Status CheckQuota(const UpdateDatasetArgs& args, const DatasetRecord& record) {
  if (!args.quota_bytes.has_value() || !args.quota_bytes->has_value()) return absl::OkStatus();
  if (**args.quota_bytes >= record.referenced_sectors * kSectorBytes) return absl::OkStatus();
  return MakeError(absl::StatusCode::kResourceExhausted, "QUOTA_EXCEEDED",
                   "the quota is below what the dataset references now",
                   {{"referenced_bytes", StrCat(record.referenced_sectors * kSectorBytes)}});
}

}  // namespace

absl::StatusOr<Verdict> UpdateDataset(TxgContext& context, const UpdateDatasetArgs& args,
                                      Outcome* outcome) {
  ASSIGN_OR_RETURN(FoundDataset dataset, ResolveDataset(context.meta, args.name, args.etag));
  DatasetRecord& record = dataset.record;
  RETURN_IF_ERROR(CheckQuota(args, record));
  for (const std::string& key : args.remove_labels) record.labels.erase(key);
  for (const auto& [key, value] : args.set_labels) record.labels[key] = value;
  RETURN_IF_ERROR(CheckLabels(record.labels));
  if (args.size_bytes.has_value()) {
    ASSIGN_OR_RETURN(const Verdict verdict,
                     Resize(context, &dataset, *args.size_bytes, args.force, outcome));
    if (verdict == Verdict::kNextTxg) return verdict;
  }
  if (args.quota_bytes.has_value()) record.quota_bytes = *args.quota_bytes;
  if (args.expire_time_ms.has_value()) {
    RETURN_IF_ERROR(MoveExpiry(context, static_cast<uint64_t>(dataset.id), "",
                               record.expire_time_ms, *args.expire_time_ms));
    record.expire_time_ms = *args.expire_time_ms;
    record.expiry_blocked = false;
  }
  ++record.revision;
  RETURN_IF_ERROR(StoreRecord(context.meta, Key(dataset.id), record));
  ASSIGN_OR_RETURN(DatasetInfo info, Describe(context.meta, context.parts.uid, dataset));
  outcome->datasets = {std::move(info)};
  context.publication.heads[dataset.id].record = record;
  return Verdict::kApplied;
}

absl::StatusOr<Verdict> RenameDataset(TxgContext& context, const std::string& name,
                                      const std::string& new_name, const std::string& etag,
                                      Outcome* outcome) {
  ASSIGN_OR_RETURN(const std::string parsed, ParseDatasetName(new_name));
  ASSIGN_OR_RETURN(FoundDataset dataset, ResolveDataset(context.meta, name, etag));
  if (parsed != dataset.name) {
    RETURN_IF_ERROR(CheckNameFree(context.meta, parsed));
    // Its snapshots' names must still fit: the longest decides.
    const Key prefix(dataset.id);
    MetaCursor cursor(context.meta, Table::kSnapshotsByName);
    for (cursor.Seek(prefix); cursor.ValidFor(prefix); cursor.Next()) {
      RETURN_IF_ERROR(ParseSnapshotName(SnapshotFullName(parsed, cursor.key().substr(8))).status());
    }
    RETURN_IF_ERROR(cursor.status());
    RETURN_IF_ERROR(Names::Remove(context.meta, dataset.record));
    RETURN_IF_ERROR(
        Names::Insert(context.meta, parsed, dataset.id, context.parts.ids, &dataset.record));
    ++dataset.record.revision;
    dataset.name = parsed;
    RETURN_IF_ERROR(StoreRecord(context.meta, Key(dataset.id), dataset.record));
  }
  ASSIGN_OR_RETURN(DatasetInfo info, Describe(context.meta, context.parts.uid, dataset));
  outcome->datasets = {std::move(info)};
  return Verdict::kApplied;
}

absl::StatusOr<Verdict> RenameSnapshot(TxgContext& context, const std::string& name,
                                       const std::string& new_name, Outcome* outcome) {
  ASSIGN_OR_RETURN(FoundSnapshot snapshot, ResolveSnapshot(context.meta, name));
  const std::string dataset = snapshot.name.substr(0, snapshot.name.find('@'));
  // "new", "@new" and "dataset@new" all name a snapshot of the same dataset.
  const size_t at = new_name.find('@');
  const std::string segment = at == std::string::npos ? new_name : new_name.substr(at + 1);
  if (at != std::string::npos && at != 0 && new_name.substr(0, at) != dataset) {
    return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_NAME",
                     "a snapshot can only be renamed within its dataset", {{"name", new_name}});
  }
  RETURN_IF_ERROR(CheckSegment(segment));
  const std::string full = SnapshotFullName(dataset, segment);
  RETURN_IF_ERROR(ParseSnapshotName(full).status());
  if (segment != snapshot.record.name) {
    const Key key(snapshot.record.dataset, segment);
    ASSIGN_OR_RETURN(const auto taken, context.meta.Get(Table::kSnapshotsByName, key));
    if (taken.has_value()) {
      return MakeError(absl::StatusCode::kAlreadyExists, "SNAPSHOT_EXISTS",
                       StrCat("snapshot ", full, " already exists"), {{"name", full}});
    }
    RETURN_IF_ERROR(context.meta.Delete(Table::kSnapshotsByName,
                                        Key(snapshot.record.dataset, snapshot.record.name)));
    RETURN_IF_ERROR(context.meta.Put(Table::kSnapshotsByName, key, Key(snapshot.id)));
    snapshot.record.name = segment;
    snapshot.name = full;
    RETURN_IF_ERROR(StoreRecord(context.meta, Key(snapshot.id), snapshot.record));
  }
  ASSIGN_OR_RETURN(SnapshotInfo info, Describe(context.meta, context.parts.uid, snapshot));
  outcome->snapshots = {std::move(info)};
  return Verdict::kApplied;
}

absl::StatusOr<Verdict> HoldSnapshot(TxgContext& context, const HoldSnapshotArgs& args,
                                     Outcome* outcome) {
  if (args.tag.empty() || args.tag.size() > kMaxTagBytes || args.owner.size() > kMaxOwnerBytes) {
    return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_FIELD",
                     "a hold's tag has 1 to 128 bytes, its owner at most 255");
  }
  ASSIGN_OR_RETURN(FoundSnapshot snapshot, ResolveSnapshot(context.meta, args.snapshot));
  const Key key(snapshot.id, args.tag);
  ASSIGN_OR_RETURN(const auto existing, FindRecord<HoldRecord>(context.meta, key));
  if (existing.has_value()) {
    return MakeError(absl::StatusCode::kAlreadyExists, "HOLD_EXISTS",
                     StrCat("snapshot ", snapshot.name, " has a hold tagged ", args.tag),
                     {{"name", snapshot.name}, {"tag", args.tag}, {"owner", existing->owner}});
  }
  if (snapshot.record.holds >= kMaxHoldsPerSnapshot) {
    return MakeError(absl::StatusCode::kResourceExhausted, "TOO_MANY_HOLDS",
                     StrCat("snapshot ", snapshot.name, " has ", kMaxHoldsPerSnapshot,
                            " holds, which is the limit"),
                     {{"limit", std::to_string(kMaxHoldsPerSnapshot)}, {"name", snapshot.name}});
  }
  HoldRecord hold{args.owner, context.now_ms, args.expire_time_ms};
  RETURN_IF_ERROR(StoreRecord(context.meta, key, hold));
  RETURN_IF_ERROR(
      MoveExpiry(context, static_cast<uint64_t>(snapshot.id), args.tag, 0, args.expire_time_ms));
  ++snapshot.record.holds;
  RETURN_IF_ERROR(StoreRecord(context.meta, Key(snapshot.id), snapshot.record));
  ASSIGN_OR_RETURN(DatasetRecord owner,
                   LoadRecord<DatasetRecord>(context.meta, Key(snapshot.record.dataset)));
  ++owner.dependents;
  RETURN_IF_ERROR(StoreRecord(context.meta, Key(snapshot.record.dataset), owner));
  ++context.pool.holds;
  outcome->hold = Describe(context.parts.uid, snapshot, args.tag, hold);
  return Verdict::kApplied;
}

absl::StatusOr<Verdict> ReleaseHold(TxgContext& context, const std::string& name,
                                    const std::string& tag, Outcome* outcome) {
  ASSIGN_OR_RETURN(FoundSnapshot snapshot, ResolveSnapshot(context.meta, name));
  const Key key(snapshot.id, tag);
  ASSIGN_OR_RETURN(const auto hold, FindRecord<HoldRecord>(context.meta, key));
  if (!hold.has_value()) {
    return MakeError(absl::StatusCode::kNotFound, "HOLD_NOT_FOUND",
                     StrCat("snapshot ", snapshot.name, " has no hold tagged ", tag),
                     {{"name", snapshot.name}, {"tag", tag}});
  }
  RETURN_IF_ERROR(context.meta.Delete(Table::kHolds, key));
  RETURN_IF_ERROR(
      MoveExpiry(context, static_cast<uint64_t>(snapshot.id), tag, hold->expire_time_ms, 0));
  --snapshot.record.holds;
  RETURN_IF_ERROR(StoreRecord(context.meta, Key(snapshot.id), snapshot.record));
  ASSIGN_OR_RETURN(DatasetRecord owner,
                   LoadRecord<DatasetRecord>(context.meta, Key(snapshot.record.dataset)));
  --owner.dependents;
  RETURN_IF_ERROR(StoreRecord(context.meta, Key(snapshot.record.dataset), owner));
  --context.pool.holds;
  outcome->hold = Describe(context.parts.uid, snapshot, tag, *hold);
  outcome->snapshot_destroyed =
      snapshot.record.deferred && snapshot.record.holds == 0 && snapshot.record.all_clones == 0;
  RETURN_IF_ERROR(ReapIfUnneeded(context, snapshot.id, OperationId{}));
  return Verdict::kApplied;
}

}  // namespace cowshed::engine

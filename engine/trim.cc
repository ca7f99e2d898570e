// SPDX-License-Identifier: Apache-2.0
#include "engine/trim.h"

#include <algorithm>

#include "engine/base/status_macros.h"
#include "engine/head_sync.h"
#include "engine/operations.h"

namespace cowshed::engine {

absl::Status StartTrim(TxgContext& context, FoundDataset* dataset, uint64_t begin_block,
                       uint64_t end_block) {
  TreeState& tree = dataset->record.tree;
  if (begin_block < end_block) {
    tree.trim_begin_block = begin_block;
    tree.trim_end_block = end_block;
    tree.trim_txg = context.txg;
  }
  ASSIGN_OR_RETURN(
      dataset->record.operation,
      BeginOperation(context, OperationKind::kTrim, DestroyKind::kDataset, dataset->name, 1));
  context.jobs_changed = true;
  RETURN_IF_ERROR(context.meta.Put(Table::kStates, Key(StateKey::kTrimming, dataset->id), ""));
  return AddPending(context, dataset->record.operation);
}

absl::Status AbandonTrim(TxgContext& context, DatasetId id, const DatasetRecord& record) {
  if (record.tree.trim_txg == 0) return absl::OkStatus();
  RETURN_IF_ERROR(context.meta.Delete(Table::kStates, Key(StateKey::kTrimming, id)));
  return EndPending(context, record.operation);
}

absl::StatusOr<Verdict> DiscardBlocks(TxgContext& context, DatasetId id, uint64_t begin_block,
                                      uint64_t end_block) {
  FoundDataset dataset;
  dataset.id = id;
  ASSIGN_OR_RETURN(const std::optional<DatasetRecord> found,
                   FindRecord<DatasetRecord>(context.meta, Key(id)));
  if (!found.has_value() || found->doomed) {
    return MakeError(absl::StatusCode::kAborted, "DATASET_DESTROYED",
                     "the dataset has been destroyed");
  }
  dataset.record = *found;
  end_block = std::min(end_block, dataset.record.tree.block_count());
  if (begin_block >= end_block || dataset.record.tree.root.is_hole()) return Verdict::kApplied;
  if (dataset.record.tree.trim_txg != 0) return Verdict::kNextTxg;
  ASSIGN_OR_RETURN(dataset.name, Names::FullName(context.meta, dataset.record));
  RETURN_IF_ERROR(StartTrim(context, &dataset, begin_block, end_block));
  context.publication.heads[id].record = dataset.record;
  RETURN_IF_ERROR(StoreRecord(context.meta, Key(id), dataset.record));
  return Verdict::kApplied;
}

absl::StatusOr<Verdict> TrimBite(TxgContext& context, DatasetId id) {
  ASSIGN_OR_RETURN(std::optional<DatasetRecord> record,
                   FindRecord<DatasetRecord>(context.meta, Key(id)));
  if (!record.has_value() || record->doomed || record->tree.trim_txg == 0) {
    RETURN_IF_ERROR(context.meta.Delete(Table::kStates, Key(StateKey::kTrimming, id)));
    return Verdict::kApplied;
  }
  if (context.fenced.contains(id)) return Verdict::kNextTxg;
  // Nodes and blocks of this txg may still be in the writer only.
  RETURN_IF_ERROR(context.writer.Flush());
  PointerChanges changes(context.txg, record->previous_txg());
  ASSIGN_OR_RETURN(const bool done, context.parts.tree.TrimStep(
                                        &record->tree, context.parts.options.trim_pointers_per_txg,
                                        context.writer, changes));
  const uint64_t used_before = record->used_sectors;
  RETURN_IF_ERROR(BookChanges(context, id, changes, &*record));
  ASSIGN_OR_RETURN(const bool destroyed, IsDestroyed(context.meta, *record));
  if (destroyed) context.pool.waiting_sectors += record->used_sectors - used_before;
  if (done) {
    RETURN_IF_ERROR(context.meta.Delete(Table::kStates, Key(StateKey::kTrimming, id)));
    RETURN_IF_ERROR(EndPending(context, record->operation));
    record->operation = OperationId{};
  }
  context.publication.heads[id].record = *record;
  RETURN_IF_ERROR(StoreRecord(context.meta, Key(id), *record));
  return Verdict::kApplied;
}

}  // namespace cowshed::engine

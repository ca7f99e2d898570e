// SPDX-License-Identifier: Apache-2.0
#include "engine/head_sync.h"

#include <span>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/failpoints.h"
#include "engine/base/status_macros.h"
#include "engine/condenser.h"
#include "engine/livelist_drop.h"
#include "engine/tree/dead_list.h"
#include "engine/tree/live_list.h"
#include "engine/trim.h"

namespace cowshed::engine {
namespace {

// Logs what was born and freed. A list that turns out to be damaged is dropped, and the txg goes on
// without it.
absl::Status LogChanges(TxgContext& context, DatasetId id, const PointerChanges& changes,
                        DatasetRecord* record) {
  if (changes.livelist_entries().empty()) return absl::OkStatus();
  if (Failpoints::IsTrue("livelist.costly")) {
    RETURN_IF_ERROR(DropLivelist(context, id, DropReason::kCostly, record));
  }
  if (record->list_state == ListState::kDropped) return absl::OkStatus();
  absl::StatusOr<LiveListGrowth> growth =
      LiveList::Append(context.meta, record->livelist, record->previous_txg(), context.txg,
                       record->tree.block_sectors(), changes.livelist_entries(),
                       LivelistOptions(context.parts.options), context.parts.ids);
  if (Failpoints::IsTrue("livelist.damaged")) growth = absl::DataLossError("failpoint");
  if (absl::IsDataLoss(growth.status())) {
    return DropLivelist(context, id, DropReason::kDamaged, record);
  }
  RETURN_IF_ERROR(growth.status());
  context.pool.livelist_entries += growth->entries;
  context.pool.livelist_sublists += growth->sublists;
  for (const Txg start : growth->to_condense) {
    RETURN_IF_ERROR(MarkForCondense(context, id, start));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status BookChanges(TxgContext& context, DatasetId id, PointerChanges& changes,
                         DatasetRecord* record) {
  COWSHED_CHECK(!context.fenced.contains(id), "a snapshotted head bears and kills nothing more");
  changes.Settle();
  if (changes.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(LogChanges(context, id, changes, record));
  if (!changes.dead().empty()) {
    RETURN_IF_ERROR(
        DeadList::Append(context.meta, record->deadlist, changes.dead(), context.parts.ids));
    ASSIGN_OR_RETURN(const uint64_t tail, DeadList::TailEntries(context.meta, record->deadlist));
    if (tail > context.parts.options.deadlist_tail_max_entries) {
      RETURN_IF_ERROR(
          context.meta.Put(Table::kStates, Key(StateKey::kLongTail, id, record->deadlist), ""));
      context.jobs_changed = true;
    }
  }
  if (!changes.freed().empty()) {
    RETURN_IF_ERROR(context.parts.allocator.Free(context.meta, context.txg, changes.freed()));
  }
  const uint64_t born = changes.born_sums().total();
  const uint64_t killed = changes.killed_sums().total();
  const uint64_t freed = changes.freed_sums().total();
  record->referenced_sectors += born - killed;
  record->written_sectors += born - freed;
  record->used_sectors += born - freed;
  context.pool.livelist_sectors += born - freed;
  record->data_blocks += static_cast<uint64_t>(changes.data_blocks_delta());
  return absl::OkStatus();
}

absl::Status SyncHead(TxgContext& context, const Head& head) {
  ASSIGN_OR_RETURN(std::optional<DatasetRecord> found,
                   FindRecord<DatasetRecord>(context.meta, Key(head.id)));
  if (!found.has_value() || found->doomed) return absl::OkStatus();  // destroyed meanwhile
  DatasetRecord& record = *found;
  RETURN_IF_ERROR(Failpoints::Hit("sync.head"));
  // The syncing layer stays as it is until it is published, so its bytes need no lock.
  std::vector<std::pair<uint64_t, const std::byte*>> blocks;
  {
    const MutexLock lock(head.mutex);
    blocks.reserve(head.syncing.blocks.size());
    for (const auto& [block, dirty] : head.syncing.blocks) {
      if (block < record.tree.block_count()) blocks.emplace_back(block, dirty.bytes.get());
    }
  }
  std::vector<BlockTree::Update> updates(blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    updates[i].block = blocks[i].first;
    if (blocks[i].second == nullptr) continue;
    ASSIGN_OR_RETURN(updates[i].pointer,
                     context.writer.Add(BlockKind::kData, 0,
                                        std::span(blocks[i].second, record.tree.block_bytes),
                                        &updates[i].extents));
  }
  PointerChanges changes(context.txg, record.previous_txg());
  RETURN_IF_ERROR(context.parts.tree.Rewrite(&record.tree, updates, context.writer, changes));
  RETURN_IF_ERROR(BookChanges(context, head.id, changes, &record));
  RETURN_IF_ERROR(StoreRecord(context.meta, Key(head.id), record));
  context.publication.heads[head.id].record = std::move(record);
  return absl::OkStatus();
}

absl::Status GiveUpLayers(TxgContext& context, const Head& head, const absl::Status& why) {
  ASSIGN_OR_RETURN(std::optional<DatasetRecord> record,
                   FindRecord<DatasetRecord>(context.meta, Key(head.id)));
  if (!record.has_value() || record->doomed) return absl::OkStatus();  // destroyed meanwhile
  HeadChange& change = context.publication.heads[head.id];
  change.record = *std::move(record);
  change.cut = LayerCut::kAll;
  change.damage = why;
  // A change to commit, or nothing would be published.
  return StoreRecord(context.meta, Key(head.id), change.record);
}

}  // namespace cowshed::engine

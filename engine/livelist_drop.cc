// SPDX-License-Identifier: Apache-2.0
#include "engine/livelist_drop.h"

#include "engine/base/check.h"
#include "engine/base/status_macros.h"
#include "engine/lifecycle.h"
#include "engine/tree/live_list_forget.h"
#include "engine/trim.h"

namespace cowshed::engine {
namespace {

// Sublists and attached logs forgotten per txg: some 500 pages at most.
constexpr uint64_t kForgetKeysPerBite = 500;

absl::Status Queue(TxgContext& context, DatasetId id, bool damaged) {
  RebuildRecord record;
  record.damaged = damaged;
  context.jobs_changed = true;  // wakes the rebuilder
  return StoreRecord(context.meta, RebuildKey(id), record);
}

// The dataset's list becomes a new one without sublists.
absl::Status Detach(TxgContext& context, DatasetRecord* record) {
  RETURN_IF_ERROR(ForgetLivelist(context, record->livelist));
  record->livelist = context.parts.ids.Take<LivelistId>();
  record->list_state = ListState::kDropped;
  return absl::OkStatus();
}

// A list that could not be read may have made the pool's sums wrong: they are counted anew.
absl::Status Recount(TxgContext& context) {
  ASSIGN_OR_RETURN(const LiveListGrowth sum, CountSublists(context.meta));
  context.pool.livelist_entries = sum.entries;
  context.pool.livelist_sublists = sum.sublists;
  return absl::OkStatus();
}

}  // namespace

Key RebuildKey(DatasetId id) { return Key(StateKey::kRebuild, id); }

absl::Status DropLivelist(TxgContext& context, DatasetId id, DropReason reason) {
  ASSIGN_OR_RETURN(std::optional<DatasetRecord> record,
                   FindRecord<DatasetRecord>(context.meta, Key(id)));
  if (!record.has_value() || record->list_state == ListState::kDropped) return absl::OkStatus();
  RETURN_IF_ERROR(DropLivelist(context, id, reason, &*record));
  return StoreRecord(context.meta, Key(id), *record);
}

absl::Status DropLivelist(TxgContext& context, DatasetId id, DropReason reason,
                          DatasetRecord* record) {
  if (record->list_state == ListState::kDropped) return absl::OkStatus();
  const bool damaged = reason == DropReason::kDamaged;
  if (record->list_state == ListState::kRebuilding) {
    // What is being rebuilt is wanted, however costly it is.
    if (!damaged) return absl::OkStatus();
    RETURN_IF_ERROR(CancelRebuild(context, id, record));
  } else {
    RETURN_IF_ERROR(Detach(context, record));
  }
  if (damaged) RETURN_IF_ERROR(Recount(context));
  if (damaged && !record->doomed) RETURN_IF_ERROR(Queue(context, id, /*damaged=*/true));
  PoolStats& stats = context.parts.stats;
  context.after_commit.emplace_back([&stats, reason, damaged] {
    ++stats.livelist_dropped[reason];
    if (damaged) stats.alarms[Alarm::kLivelistDamaged] = 1;
  });
  return absl::OkStatus();
}

absl::Status LoseLivelist(TxgContext& context, DatasetId id, DatasetRecord* record) {
  COWSHED_CHECK(record->list_state == ListState::kWhole, "only a whole list can lose a part");
  RETURN_IF_ERROR(Detach(context, record));
  return Queue(context, id, /*damaged=*/false);
}

absl::Status CancelRebuild(TxgContext& context, DatasetId id, DatasetRecord* record,
                           RebuildResult result) {
  if (record->list_state != ListState::kRebuilding) return absl::OkStatus();
  ASSIGN_OR_RETURN(const RebuildRecord rebuild,
                   LoadRecord<RebuildRecord>(context.meta, RebuildKey(id)));
  RETURN_IF_ERROR(ForgetLivelist(context, rebuild.shadow));
  RETURN_IF_ERROR(Detach(context, record));
  RETURN_IF_ERROR(ReleaseRebuildSnapshot(context, rebuild.snapshot));
  PoolStats& stats = context.parts.stats;
  context.after_commit.emplace_back([&stats, result] { ++stats.livelist_rebuilds[result]; });
  return Queue(context, id, rebuild.damaged);
}

absl::Status AbandonRebuild(TxgContext& context, DatasetId id, DatasetRecord* record) {
  if (record->list_state == ListState::kWhole) return absl::OkStatus();
  RETURN_IF_ERROR(CancelRebuild(context, id, record));
  return context.meta.Delete(Table::kStates, RebuildKey(id));
}

absl::Status ResumeRebuild(TxgContext& context, DatasetId id, const DatasetRecord& record) {
  if (record.list_state == ListState::kWhole) return absl::OkStatus();
  return Queue(context, id, /*damaged=*/false);
}

absl::Status ReleaseRebuildSnapshot(TxgContext& context, SnapshotId id) {
  ASSIGN_OR_RETURN(const std::optional<SnapshotRecord> snapshot,
                   FindRecord<SnapshotRecord>(context.meta, Key(id)));
  if (!snapshot.has_value() || snapshot->dying) return absl::OkStatus();
  if (snapshot->all_clones > 0 || snapshot->holds > 0) return absl::OkStatus();
  return KillSnapshot(context, id, *snapshot, OperationId{});
}

absl::Status SettleLivelist(TxgContext& context, DatasetId id, DatasetRecord* record) {
  if (record->list_state != ListState::kDropped || record->used_sectors > 0) {
    return absl::OkStatus();
  }
  record->list_state = ListState::kWhole;
  return context.meta.Delete(Table::kStates, RebuildKey(id));
}

void WalkTrees(JobRecord* job) {
  job->method = static_cast<uint8_t>(DestroyMethod::kTreeWalk);
  job->phase = JobPhase::kFree;
  job->cursor_start = 0;
  job->cursor = 0;
}

absl::Status ForgetLivelist(TxgContext& context, LivelistId list) {
  context.jobs_changed = true;
  return context.meta.Put(Table::kStates, Key(StateKey::kDroppedList, list), "");
}

absl::Status ForgetLivelistBite(TxgContext& context, LivelistId list) {
  ASSIGN_OR_RETURN(const ForgottenSublists forgotten,
                   ForgetSublists(context.meta, list, kForgetKeysPerBite));
  context.pool.livelist_entries -= forgotten.shrunk.entries;
  context.pool.livelist_sublists -= forgotten.shrunk.sublists;
  if (forgotten.damaged) RETURN_IF_ERROR(Recount(context));
  if (!forgotten.done) return absl::OkStatus();
  return context.meta.Delete(Table::kStates, Key(StateKey::kDroppedList, list));
}

absl::StatusOr<bool> WaitsForRebuild(const MetaTxn& txn, SnapshotId id) {
  ASSIGN_OR_RETURN(const std::optional<SnapshotRecord> snapshot,
                   FindRecord<SnapshotRecord>(txn, Key(id)));
  if (!snapshot.has_value()) return false;
  ASSIGN_OR_RETURN(const std::optional<DatasetRecord> owner,
                   FindRecord<DatasetRecord>(txn, Key(snapshot->dataset)));
  return owner.has_value() && owner->list_state == ListState::kRebuilding;
}

}  // namespace cowshed::engine

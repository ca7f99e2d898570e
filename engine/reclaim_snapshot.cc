// SPDX-License-Identifier: Apache-2.0
//
// A dying snapshot leaves its lineage: the blocks that the next one's deadlist holds and that were
// born after the previous snapshot were held by it alone. Their logs become FREEs of the owner's
// livelist and the job's to free (one log, two holders); the rest of the two deadlists joins.
// Without a livelist the logs are only freed.
#include <utility>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/catalog.h"
#include "engine/condenser.h"
#include "engine/livelist_drop.h"
#include "engine/operations.h"
#include "engine/reclaimer.h"
#include "engine/tree/dead_list.h"
#include "engine/tree/live_list.h"

namespace cowshed::engine {
namespace {

// The lineage around a snapshot: what comes before, and what follows (a snapshot or the head).
struct Place {
  DatasetRecord owner;
  Txg previous_txg = 0;
  std::optional<Neighbour> before;
  std::optional<Neighbour> after;
  SnapshotRecord next;  // of `after`

  DeadlistId following() const { return after.has_value() ? next.deadlist : owner.deadlist; }
};

absl::StatusOr<Place> FindPlace(const MetaTxn& txn, const SnapshotRecord& snapshot,
                                DatasetRecord owner) {
  Place place;
  place.owner = std::move(owner);
  ASSIGN_OR_RETURN(place.before, SnapshotBefore(txn, snapshot.dataset, snapshot.txg));
  ASSIGN_OR_RETURN(place.after, SnapshotAfter(txn, snapshot.dataset, snapshot.txg));
  place.previous_txg = place.before.has_value() ? place.before->txg : place.owner.origin_txg;
  if (place.after.has_value()) {
    ASSIGN_OR_RETURN(place.next, LoadRecord<SnapshotRecord>(txn, Key(place.after->id)));
  }
  return place;
}

// Makes a bucket FREEs of the owner's livelist. A list that cannot take it is damaged, and dropped.
absl::Status LogFree(TxgContext& context, DatasetId id, const DeadBucket& bucket,
                     DatasetRecord* owner) {
  if (owner->list_state == ListState::kDropped) return absl::OkStatus();
  const absl::Status attached = LiveList::Attach(context.meta, owner->livelist, bucket.start + 1,
                                                 bucket.log, bucket.record.sums);
  if (absl::IsDataLoss(attached) || absl::IsNotFound(attached)) {
    return DropLivelist(context, id, DropReason::kDamaged, owner);
  }
  RETURN_IF_ERROR(attached);
  return PointerLog::Share(context.meta, bucket.log);
}

// Moves the buckets to a list of the job's own and makes them FREEs of the owner's livelist.
absl::StatusOr<uint64_t> HandOver(TxgContext& context, DatasetId owner, Place& place,
                                  JobRecord* job) {
  ASSIGN_OR_RETURN(const std::vector<DeadBucket> buckets,
                   DeadList::TakeAbove(context.meta, place.following(), place.previous_txg));
  job->deadlist = context.parts.ids.Take<DeadlistId>();
  uint64_t sectors = 0;
  uint64_t entries = 0;
  for (const DeadBucket& bucket : buckets) {
    RETURN_IF_ERROR(LogFree(context, owner, bucket, &place.owner));
    RETURN_IF_ERROR(DeadList::Adopt(context.meta, job->deadlist, bucket));
    sectors += bucket.record.sums.total();
    entries += bucket.record.entries;
  }
  RETURN_IF_ERROR(GrowJob(context, job, sectors, entries));
  return sectors;
}

}  // namespace

absl::StatusOr<bool> TakeSnapshotOut(TxgContext& context, uint64_t max_tail_entries,
                                     JobRecord* job) {
  WriteTxn& txn = context.meta;
  ASSIGN_OR_RETURN(const std::optional<SnapshotRecord> snapshot,
                   FindRecord<SnapshotRecord>(txn, Key(job->snapshot)));
  // A rollback or the destruction of its dataset may have taken it along.
  if (!snapshot.has_value()) return true;
  ASSIGN_OR_RETURN(std::optional<DatasetRecord> owner,
                   FindRecord<DatasetRecord>(txn, Key(snapshot->dataset)));
  if (!owner.has_value()) return true;
  if (owner->list_state == ListState::kRebuilding) return false;
  ASSIGN_OR_RETURN(Place place, FindPlace(txn, *snapshot, *std::move(owner)));
  ASSIGN_OR_RETURN(const std::vector<Txg> bounds,
                   LineageBounds(txn, snapshot->dataset, place.owner));
  ASSIGN_OR_RETURN(
      const bool distributed,
      DeadList::Distribute(txn, place.following(), bounds, max_tail_entries, context.parts.ids));
  if (!distributed) return false;

  ASSIGN_OR_RETURN(const uint64_t freed, HandOver(context, snapshot->dataset, place, job));
  place.owner.used_sectors -= freed;
  ASSIGN_OR_RETURN(const bool destroyed, IsDestroyed(txn, place.owner));
  if (destroyed) context.pool.waiting_sectors -= freed;
  context.pool.livelist_sectors -= freed;
  --place.owner.all_snapshots;
  const uint64_t written_moved = snapshot->written_sectors - freed;
  ASSIGN_OR_RETURN(const DeadlistId joined,
                   DeadList::Merge(txn, place.following(), snapshot->deadlist));
  if (place.after.has_value()) {
    place.next.deadlist = joined;
    place.next.written_sectors += written_moved;
    RETURN_IF_ERROR(StoreRecord(txn, Key(place.after->id), place.next));
  } else {
    place.owner.deadlist = joined;
    place.owner.written_sectors += written_moved;
    place.owner.newest_snapshot_txg = place.before.has_value() ? place.before->txg : 0;
  }
  RETURN_IF_ERROR(StoreRecord(txn, Key(snapshot->dataset), place.owner));
  RETURN_IF_ERROR(txn.Delete(Table::kSnapshotsByTxg, Key(snapshot->dataset, snapshot->txg)));
  RETURN_IF_ERROR(txn.Delete(Table::kSnapshots, Key(job->snapshot)));
  // FREEs have been attached, and sublists that the snapshot held apart may become one.
  RETURN_IF_ERROR(MarkForCondense(context, snapshot->dataset, snapshot->txg));
  return true;
}

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// Giving up a livelist, and living without one.
//
// A livelist is whole, dropped or being rebuilt (DatasetRecord::list_state). Dropping it is O(1):
// the dataset gets a new, empty list; the old one goes on the kStates queue (kDroppedList) and is
// forgotten in bites. From then on nothing is logged for the dataset. Nothing else of it changes:
// used, written and unique sums do not come from the list, blocks are freed as ever, and what would
// have read the list walks trees instead (decision 0009). So no change that a client asks for is
// ever refused, and no txg ever fails, because of a list.
//
// Dropped     Destruction, rollback and reset walk trees; snapshots that are destroyed free their
//             buckets without logging them; a promote leaves the side that would need the missing
//             part without a list. A list dropped as damaged, or lost by a promote, is queued for
//             the rebuilder (kStates, kRebuild); one dropped as costly is not.
// Rebuilding  A hidden snapshot pins what is walked, and the list holds what was born after it.
//             Nothing born up to it is freed meanwhile: the jobs that take own snapshots out of the
//             lineage wait (WaitsForRebuild). Whatever changes the lineage otherwise cancels first.
// Whole again A dataset that owns nothing (a reset clone) has a whole list without any work.
//
// Threads     Txg thread; WaitsForRebuild: any.
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/stats.h"
#include "engine/store/records.h"
#include "engine/txg.h"

namespace cowshed::engine {

Key RebuildKey(DatasetId id);

// Drops the list of a dataset, counted by reason; of a list that is being rebuilt, also what has
// been found so far. OK if there is none, or no such dataset: any task may call it at any time.
absl::Status DropLivelist(TxgContext& context, DatasetId id, DropReason reason);
// As above on the record at hand, which the caller stores.
absl::Status DropLivelist(TxgContext& context, DatasetId id, DropReason reason,
                          DatasetRecord* record);
// The list has lost a part that it would need for a change of the lineage: drops it, uncounted, to
// be rebuilt. The caller stores the record. REQUIRES: it is whole.
absl::Status LoseLivelist(TxgContext& context, DatasetId id, DatasetRecord* record);

// Ends a rebuild, if one is under way: back to dropped, its snapshot and what it found go, and it
// is queued again unless the dataset is going away. The caller stores the record.
absl::Status CancelRebuild(TxgContext& context, DatasetId id, DatasetRecord* record,
                           RebuildResult result = RebuildResult::kCancelled);
// As above for a dataset that is being destroyed: nothing is queued.
absl::Status AbandonRebuild(TxgContext& context, DatasetId id, DatasetRecord* record);
// The dataset comes back from its destruction: a list that it lacks is queued to be rebuilt.
absl::Status ResumeRebuild(TxgContext& context, DatasetId id, const DatasetRecord& record);
// Lets the snapshot of a rebuild go, unless a clone has made it its origin meanwhile.
absl::Status ReleaseRebuildSnapshot(TxgContext& context, SnapshotId id);
// A dataset that owns nothing needs no list: its dropped one is whole. The caller stores it.
absl::Status SettleLivelist(TxgContext& context, DatasetId id, DatasetRecord* record);

// Makes a job of a destruction walk the trees from the start.
void WalkTrees(JobRecord* job);
// Queues a list that belongs to nobody any more to be forgotten.
absl::Status ForgetLivelist(TxgContext& context, LivelistId list);
// Forgets a bite of a queued list.
absl::Status ForgetLivelistBite(TxgContext& context, LivelistId list);

// The snapshot has to stay in its lineage while a rebuild walks it.
absl::StatusOr<bool> WaitsForRebuild(const MetaTxn& txn, SnapshotId id);

}  // namespace cowshed::engine

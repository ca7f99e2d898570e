// SPDX-License-Identifier: Apache-2.0
//
// Steps 1-3 of a sync for one head, and the accounting that every change of a tree shares: blocks
// are placed, nodes rewritten bottom-up, and what was born and killed reaches the livelist, the
// deadlist, the allocator and the dataset's sums.
//
// Threads     Txg thread only.
#pragma once

#include "absl/status/status.h"
#include "engine/tree/pointer_changes.h"
#include "engine/txg.h"

namespace cowshed::engine {

// Writes the head's syncing layer into its tree and stores its record. The buffers must stay until
// the writer is flushed.
absl::Status SyncHead(TxgContext& context, const Head& head);
// Drops what has been written to the head and not been synced, for `why`: a DATA_LOSS.
absl::Status GiveUpLayers(TxgContext& context, const Head& head, const absl::Status& why);

// Books `changes` of the dataset (lists, allocator, sums). `record->tree` is already the new one.
// The caller stores the record.
absl::Status BookChanges(TxgContext& context, DatasetId id, PointerChanges& changes,
                         DatasetRecord* record);

}  // namespace cowshed::engine

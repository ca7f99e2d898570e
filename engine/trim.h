// SPDX-License-Identifier: Apache-2.0
//
// Large discards and shrinks. A trim is a range of blocks in a TreeState with a txg: what was born
// in it up to that txg reads as zeros from the moment the trim is committed, and the background
// takes the pointers out in bites. Writers never wait for it: what they put there is born later.
//
// While it lasts the head has an operation, and its dataset an entry in kStates so that a pool that
// is opened finds it. A snapshot taken meanwhile carries the trim in its own TreeState and simply
// keeps what was not taken out yet.
//
// Threads     Txg thread only.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/catalog.h"
#include "engine/txg.h"

namespace cowshed::engine {

// What kStates lists: (kind, id...) -> empty, unless said otherwise.
enum class StateKey : uint8_t {
  kTrimming = 1,     // dataset id
  kLongTail = 2,     // dataset id, deadlist id: its tail waits to be distributed
  kRebuild = 3,      // dataset id -> RebuildRecord: its livelist is to be made whole
  kDroppedList = 4,  // livelist id: its sublists wait to be forgotten
  kCondense = 5,     // dataset id, sublist start -> txg (condenser.h)
  kShadowLog = 6,    // log id: a condense writes it, or was interrupted
  kWindow = 10,      // end in unix ms (0: it is being ended), operation id: destroyed and kept
  kKept = 11,        // operation id, dataset id: what its window keeps
  kScrub = 14,       // operation id -> ScrubRecord, kept as long as its operation
  kBackup = 15,      // operation id: a backup is under way, or was when the program ended
  kLogCut = 16,      // dataset id, txg -> IntentLogCut (store/intent_log_format.h)
};

// Starts a trim of [begin, end), or takes one up that `dataset->record.tree` already describes
// (begin == end). The caller stores the record. REQUIRES: no other trim is under way.
absl::Status StartTrim(TxgContext& context, FoundDataset* dataset, uint64_t begin_block,
                       uint64_t end_block);
// The head is going away or being set back: whatever trim it has ends here.
absl::Status AbandonTrim(TxgContext& context, DatasetId id, const DatasetRecord& record);
// A large discard as a task of its own. kNextTxg while an earlier trim is under way.
absl::StatusOr<Verdict> DiscardBlocks(TxgContext& context, DatasetId id, uint64_t begin_block,
                                      uint64_t end_block);
// One bite of the dataset's trim.
absl::StatusOr<Verdict> TrimBite(TxgContext& context, DatasetId id);

}  // namespace cowshed::engine

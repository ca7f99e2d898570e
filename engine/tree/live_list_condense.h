// SPDX-License-Identifier: Apache-2.0
//
// The steps of a condense that touch the store: what was read is written to a shadow log, what came
// meanwhile is carried over, and the shadow takes the place of the sublists it stands for.
//
//   views     sublists side by side, as they were read; `record` moves on with what is carried over
//   shadow    survivors of all views, as ALLOCs; behind them, in order, what came meanwhile
//
// A FREE that came meanwhile follows the ALLOC it cancels, be that a survivor in the shadow or one
// that came, too. Logs attached meanwhile are not read: they stay attached, to the result.
//
// Threads     Txg thread; IsUnchanged on any thread.
// Errors      DATA_LOSS: the lists do not add up; nothing has been swapped.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/tree/live_list.h"

namespace cowshed::engine {

struct ShadowLog {
  LogId log{};
  uint64_t entries = 0;
  uint64_t survivors = 0;  // of the entries: those that were found, not carried over
  SectorSums allocated;
  SectorSums freed;
};

// Whether the sublists that `views` were read from are still there, side by side, and have only
// grown. If not, whatever was read of them is of no use any more.
absl::StatusOr<bool> IsUnchanged(const MetaTxn& txn, LivelistId list,
                                 std::span<const SublistView> views);

// Appends survivors to the shadow, which has a log.
absl::Status WriteSurvivors(WriteTxn& txn, std::span<const Run> survivors, ShadowLog* shadow);

// Appends at most `max_entries` of what the sublists' own logs have grown by to the shadow, and
// moves the views on. True when nothing is left to carry over. REQUIRES: IsUnchanged.
absl::StatusOr<bool> CarryOver(WriteTxn& txn, LivelistId list, uint64_t max_entries,
                               std::vector<SublistView>* views, ShadowLog* shadow);

// Puts the shadow in the place of the sublists: one record, their logs released. Returns the
// record. REQUIRES: IsUnchanged, and CarryOver has returned true in this transaction.
absl::StatusOr<SublistRecord> Swap(WriteTxn& txn, LivelistId list,
                                   std::span<const SublistView> views, const ShadowLog& shadow);

}  // namespace cowshed::engine

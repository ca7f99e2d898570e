// SPDX-License-Identifier: Apache-2.0
//
// Copies the state of a pool into its PoolStats gauges: after each commit what the commit said, and
// every second what moves between commits.
//
// Threads     PublishGauges: txg thread. RefreshGauges: any thread.
// Cost        O(1): the one look-up is the first entry of the reclaim queue.
#pragma once

#include <cstdint>

#include "engine/txg.h"

namespace cowshed::engine {

// What only the TxgManager knows.
struct WriteState {
  uint64_t dirty_bytes = 0;
  uint64_t dirty_limit_bytes = 0;
  uint64_t available_sectors = 0;
};

void PublishGauges(PoolParts& parts, const PoolRecord& record);
void RefreshGauges(PoolParts& parts, const WriteState& writes);

// Entries of the longest livelist: a walk over all sublists, for a sample once a minute.
absl::StatusOr<uint64_t> LongestLivelist(const MetaTxn& txn);

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// Copies the state of a pool into its PoolStats gauges: after each commit what the commit said and
// what it moved, and every second also what takes system calls or look-ups to learn, which no
// caller should wait for.
//
// Threads     PublishGauges: txg thread. The others: any thread.
// Cost        O(1). RefreshGauges: the first entry of the reclaim queue, unless that is empty.
//             RefreshMetaGauges: a look-up for each table, some 20 us.
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

// What writers may take of the host's free space; `before` where the host does not say.
uint64_t HostFreeBytes(const PoolParts& parts, uint64_t before);
void PublishGauges(PoolParts& parts, const PoolRecord& record);
void RefreshGauges(PoolParts& parts, const WriteState& writes);
void RefreshMetaGauges(PoolParts& parts);

// Entries of the longest livelist: a walk over all sublists, for a sample once a minute.
absl::StatusOr<uint64_t> LongestLivelist(const MetaTxn& txn);

}  // namespace cowshed::engine

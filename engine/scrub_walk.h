// SPDX-License-Identifier: Apache-2.0
//
// Reads a part of one tree from the disk, past every cache, and proves what it reads.
//
// Unlike BlockTree::Walk it does not end at damage: what lies below a node that cannot be read is
// one damaged place, and the walk goes on behind it. Nodes are read on the way down, the data of a
// bite at its end in the order of addresses, for a txg's blocks lie together.
//
// Threads     Any; the caller holds a reader epoch.
// Cost        One read for each block and node, and `height` nodes again for each bite. Memory: 40
//             bytes for each block of a bite.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/store/block_store.h"
#include "engine/store/scrub_record.h"

namespace cowshed::engine {

// Births in (after, up_to]. I4: below a pointer born at or before `after` there is nothing else.
struct BirthRange {
  Txg after = 0;
  Txg up_to = 0;
};

struct TreeScrub {
  uint64_t read_bytes = 0;
  std::vector<DamageRecord> damaged;  // without dataset and snapshot; one for each failed read
  bool at_end = false;
};

// Reads from *next_block on, moves it, and stops after about `max_bytes` (at least one block). Any
// failure to read is damage: whoever asks for the block will not get it either.
TreeScrub ScrubTree(const BlockStore& blocks, const TreeState& state, const BirthRange& births,
                    uint64_t* next_block, uint64_t max_bytes);

}  // namespace cowshed::engine

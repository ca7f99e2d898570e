// SPDX-License-Identifier: Apache-2.0
//
// Arithmetic of the radix tree that the files of block_tree share: what lies below a pointer, and
// whether a trim hides it. `base` is always the first block below a pointer or node.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/store/format.h"

namespace cowshed::engine {

// A size of 2^64 - 1 bytes in blocks of 4 KiB is 2^52 blocks: 128^8. One level to spare, so that
// the end of a tree is a number, too.
inline constexpr uint8_t kMaxTreeHeight = 9;

// Blocks below one pointer of this level: 128^level.
constexpr uint64_t SpanBlocks(uint8_t level) {
  return uint64_t{1} << (uint32_t{level} * kNodeFanoutBits);
}

inline uint64_t EndBlock(const BlockPtr& pointer, uint64_t base) {
  return base + SpanBlocks(pointer.level);
}

// A stretch of blocks in which a tree's pointers born up to `txg` read as holes; empty = {}.
struct TrimRange {
  uint64_t begin = 0;
  uint64_t end = 0;
  Txg txg = 0;
  bool operator==(const TrimRange&) const = default;
};

// The part of a tree's trim that lies in [begin, end).
inline TrimRange TrimWithin(const TreeState& state, uint64_t begin, uint64_t end) {
  const TrimRange range = {.begin = std::max(begin, state.trim_begin_block),
                           .end = std::min(end, state.trim_end_block),
                           .txg = state.trim_txg};
  return range.txg == 0 || range.begin >= range.end ? TrimRange{} : range;
}

// Everything below a pointer reads as holes. I4: what it leads to was born no later than itself.
inline bool WhollyTrimmed(const TreeState& state, const BlockPtr& pointer, uint64_t base) {
  return pointer.birth <= state.trim_txg && base >= state.trim_begin_block &&
         EndBlock(pointer, base) <= state.trim_end_block;
}

}  // namespace cowshed::engine

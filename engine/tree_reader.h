// SPDX-License-Identifier: Apache-2.0
//
// Reads the bytes of a tree: what heads (beneath their layers) and snapshots have in common.
//
// Invariants  A block is proven by its own checksum before any of it is given out; DATA_LOSS names
//             the block.
// Threads     Thread-safe. The caller holds a reader epoch.
// Ownership   Borrows the pool's parts.
// Cost        A look-up of the pointers, through the node cache; then one call of the host for each
//             run of blocks that lie side by side. No copy but of blocks that are wanted in part.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "engine/read_ahead.h"
#include "engine/txg.h"

namespace cowshed::engine {

// A part of a read that lies in one block.
struct Piece {
  uint64_t block = 0;
  uint64_t skip = 0;
  std::span<std::byte> out;
};

class TreeReader {
 public:
  explicit TreeReader(PoolParts& parts) : parts_(parts) {}

  // Reads `pointer` of block `block` (a hole: zeros) into `out`, a part of the block from `skip`
  // on.
  absl::Status ReadBlock(const BlockPtr& pointer, uint64_t block, uint64_t skip,
                         std::span<std::byte> out, std::string_view uid) const;
  // Fills the pieces, which are of rising blocks. Sets *waited if not all came from memory.
  // CANCELLED: kCached, and it would have had to wait.
  absl::Status Read(const TreeState& tree, std::span<const Piece> pieces, ReadMode mode,
                    std::string_view uid, bool* waited) const;
  // First hole in [from, end) of the tree alone, in blocks; `end` if there is none.
  absl::StatusOr<uint64_t> NextHole(const TreeState& tree, uint64_t from, uint64_t end) const;
  // A read has been done: goes on reading ahead for the stream that it belongs to. kCached: only if
  // no node has to be waited for.
  void GoAhead(const TreeState& tree, ReadAhead& ahead, uint64_t offset, uint64_t length,
               ReadMode mode, bool waited) const;

 private:
  PoolParts& parts_;
};

// Cuts [offset, offset + out.size()) into blocks: calls piece(Piece) for each.
template <typename Visit>
void ForEachPiece(uint64_t offset, std::span<std::byte> out, uint64_t block_bytes, Visit visit) {
  while (!out.empty()) {
    const uint64_t skip = offset % block_bytes;
    const uint64_t count = std::min<uint64_t>(block_bytes - skip, out.size());
    visit(Piece{offset / block_bytes, skip, out.first(count)});
    out = out.subspan(count);
    offset += count;
  }
}

}  // namespace cowshed::engine

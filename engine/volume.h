// SPDX-License-Identifier: Apache-2.0
//
// Volumes: the bytes of a head (read and write) or of a snapshot (read). A read takes {tree,
// syncing, open} as one view; a write copies into the open layer and reads the rest of a block it
// fills only in part, so that a layer holds whole blocks. All-zero blocks become holes.
//
// Threads     Thread-safe.
// Ownership   Borrow the pool's parts; the pool outlives their use.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/head.h"
#include "engine/pool.h"
#include "engine/txg.h"

namespace cowshed::engine {

// What both kinds share: bytes of a tree, and where its data is. A reader epoch must be held.
class TreeReader {
 public:
  explicit TreeReader(PoolParts& parts) : parts_(parts) {}
  // Reads `pointer` of block `block` (a hole: zeros) into `out`, a part of the block from `skip`
  // on.
  absl::Status ReadBlock(const BlockPtr& pointer, uint64_t block, uint64_t skip,
                         std::span<std::byte> out, std::string_view uid) const;
  // Fills `out` from `offset` of the tree alone.
  absl::Status Read(const TreeState& tree, uint64_t offset, std::span<std::byte> out,
                    std::string_view uid) const;
  // First hole in [from, end) of the tree alone, in blocks; `end` if there is none.
  absl::StatusOr<uint64_t> NextHole(const TreeState& tree, uint64_t from, uint64_t end) const;

 private:
  PoolParts& parts_;
};

// ABORTED DATASET_DESTROYED, ABORTED DATASET_CHANGED and OUT_OF_RANGE BEYOND_SIZE.
absl::Status DestroyedError(std::string_view name);
absl::Status ChangedError(std::string_view name);
absl::Status BeyondSizeError(uint64_t offset, uint64_t length, uint64_t size);

// What a volume does when its head is rolled back or made smaller: goes on with what came of it, or
// refuses all further bytes with DATASET_CHANGED.
enum class Holding : uint8_t { kFollows, kPinned };

std::shared_ptr<Volume> MakeHeadVolume(PoolParts& parts, TxgManager& txgs,
                                       std::shared_ptr<Head> head, std::string name,
                                       Holding holding);
std::shared_ptr<Volume> MakeSnapshotVolume(PoolParts& parts, std::shared_ptr<SnapshotView> view,
                                           std::string name);

}  // namespace cowshed::engine

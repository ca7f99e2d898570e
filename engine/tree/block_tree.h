// SPDX-License-Identifier: Apache-2.0
//
// The radix tree from a dataset's block index to its block pointer: fan-out 128, nodes of one
// sector, immutable once written. A tree of height h (root level h, at least 1) spans 128^h blocks;
// a subtree of holes is a hole. Every write rewrites the path to the root bottom-up into new nodes.
//
// Invariants  I4: birth(child) <= birth(parent), so a subtree born <= t holds nothing born after t
//             and walks prune by birth. (Diff does not: a hole has no birth.)
// Trimmed     Blocks that TreeState::trimmed() covers read as holes in Lookup and Diff; Walk and
//             the accounting still see their pointers until TrimStep has killed them.
// Threads     Const, thread-safe reads (the caller holds a reader epoch); Rewrite and TrimStep: txg
//             thread.
// Cost        Lookup, Rewrite: the touched nodes, each once, through the cache.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/store/block_store.h"
#include "engine/store/format.h"
#include "engine/tree/node_cache.h"
#include "engine/tree/pointer_changes.h"

namespace cowshed::engine {

class BlockTree {
 public:
  BlockTree(const BlockStore& store, NodeCache& cache) : store_(store), cache_(cache) {}

  const NodeCache& cache() const { return cache_; }

  // Smallest height (>= 1) whose tree spans `block_count` blocks.
  static uint8_t HeightFor(uint64_t block_count);

  // Pointers of blocks [first, first + out.size()); holes where nothing is stored or trimmed.
  // CANCELLED: kCached, and a node would have to be waited for.
  absl::Status Lookup(const TreeState& state, uint64_t first, std::span<BlockPtr> out,
                      ReadMode mode = ReadMode::kWait) const;
  // Loads the nodes above blocks [first, first + count) into the cache, so that a later Rewrite
  // need not wait for the disk.
  absl::Status Warm(const TreeState& state, uint64_t first, uint64_t count) const;
  // First block >= `from` that holds data (not a hole, not trimmed); state.block_count() if none.
  absl::StatusOr<uint64_t> NextData(const TreeState& state, uint64_t from) const;

  struct Update {
    uint64_t block = 0;
    BlockPtr pointer;          // new data, already placed by the writer, or a hole
    std::vector<Run> extents;  // of the new data
  };
  // Puts `updates` (strictly rising blocks) into the tree: kills what they replace, bears them and
  // the new nodes, changes state->root and, if needed, state->height (it never falls). Nodes go to
  // `writer`; the caller flushes it, and does so before the same tree is changed again. On an error
  // the state is unchanged.
  absl::Status Rewrite(TreeState* state, std::span<const Update> updates, BlockWriter& writer,
                       PointerChanges& changes) const;
  // Takes up to about `max_pointers` (at least one) pointers of the trimmed range out of the tree,
  // moving trim_begin_block; clears the trim when it is done and returns true then. A node that
  // loses all its children is killed without being rewritten; per step at most the `height` nodes
  // at either end of the bite are. Flushing and errors: as for Rewrite.
  absl::StatusOr<bool> TrimStep(TreeState* state, uint64_t max_pointers, BlockWriter& writer,
                                PointerChanges& changes) const;

  // Visits pointers with birth > min_birth, children before their node, from *next_block on, and
  // moves *next_block past what was visited wholly: a node has been visited exactly when
  // *next_block is at or past its last block. Stops after about `max_pointers` (at least one);
  // returns true when the whole tree has been visited (the root comes last). On an error
  // *next_block is unchanged.
  using Visitor = std::function<absl::Status(const BlockPtr& pointer)>;
  absl::StatusOr<bool> Walk(const TreeState& state, Txg min_birth, uint64_t* next_block,
                            uint64_t max_pointers, const Visitor& visit) const;

  // A stretch of blocks that differ; `data` tells whether `newer` has data there.
  struct Extent {
    uint64_t first_block = 0;
    uint64_t block_count = 0;
    bool data = false;
  };
  // Compares two trees of one block size from *next_block on, pruning equal pointers; extents come
  // in rising order, as long as they can be within one call. Stops after about `max_pointers` (at
  // least one) pointers or when `visit` returns false, with *next_block behind the last extent that
  // was visited; returns true when the end was reached. Either may be an empty tree (root hole).
  absl::StatusOr<bool> Diff(const TreeState& older, const TreeState& newer, uint64_t* next_block,
                            uint64_t max_pointers,
                            const std::function<bool(const Extent&)>& visit) const;

  // Reads a node through the cache. DATA_LOSS if it is damaged or violates I4.
  absl::StatusOr<std::shared_ptr<const Node>> ReadNode(const BlockPtr& pointer,
                                                       ReadMode mode = ReadMode::kWait) const;

 private:
  // Calls `visit` with each node of level 1 that lies over [first, end), and its first block.
  using NodeVisitor = absl::FunctionRef<void(uint64_t base, const Node& node)>;
  absl::Status VisitLowestNodes(const TreeState& state, const BlockPtr& pointer, uint64_t base,
                                uint64_t first, uint64_t end, ReadMode mode,
                                NodeVisitor visit) const;
  // First block >= `from` below `pointer` that reads as data, if there is one.
  absl::StatusOr<std::optional<uint64_t>> FindData(const TreeState& state, const BlockPtr& pointer,
                                                   uint64_t base, uint64_t from) const;

  const BlockStore& store_;
  NodeCache& cache_;
};

}  // namespace cowshed::engine

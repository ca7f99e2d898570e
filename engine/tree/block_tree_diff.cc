// SPDX-License-Identifier: Apache-2.0
//
// BlockTree::Diff: two trees side by side. Equal pointers lead to equal blocks, so a pair of them
// is passed over unless a trim hides different parts of it in the two trees. Nothing is pruned by
// birth: that would miss a hole made between two snapshots.
#include <algorithm>
#include <array>

#include "engine/base/status_macros.h"
#include "engine/tree/block_tree.h"
#include "engine/tree/tree_geometry.h"

namespace cowshed::engine {

namespace {

using ExtentVisitor = std::function<bool(const BlockTree::Extent&)>;

// Joins differing blocks to extents and hands each on when it can grow no further.
class ExtentJoiner {
 public:
  explicit ExtentJoiner(const ExtentVisitor& visit) : visit_(visit) {}

  // False if the visitor wants no more; then `block` has not been taken.
  bool Add(uint64_t block, bool data) {
    if (open_.block_count > 0 && open_.data == data &&
        open_.first_block + open_.block_count == block) {
      ++open_.block_count;
      return true;
    }
    if (!Flush()) {
      return false;
    }
    open_ = {.first_block = block, .block_count = 1, .data = data};
    return true;
  }
  bool Flush() {
    if (open_.block_count == 0) {
      return true;
    }
    visited_end_ = open_.first_block + open_.block_count;
    const bool go_on = visit_(open_);
    open_.block_count = 0;
    return go_on;
  }
  // The end of the last extent that was visited.
  uint64_t visited_end() const { return visited_end_; }

 private:
  const ExtentVisitor& visit_;
  BlockTree::Extent open_;
  uint64_t visited_end_ = 0;
};

class Comparer {
 public:
  Comparer(const BlockTree& tree, const TreeState& older, const TreeState& newer, uint64_t from,
           uint64_t max_pointers, ExtentJoiner& joiner)
      : tree_(tree), states_{&older, &newer}, from_(from), left_(max_pointers), joiner_(joiner) {}

  // A pointer of each tree at one place; one whose tree is lower stands for the leftmost below.
  using Pair = std::array<BlockPtr, 2>;

  // Compares what is below a pair that stands at `level`. False if it stopped, at stopped_at().
  absl::StatusOr<bool> Compare(Pair pair, uint8_t level, uint64_t base) {
    if (base + SpanBlocks(level) <= from_) {
      return true;
    }
    for (size_t side = 0; side < pair.size(); ++side) {
      if (!pair[side].is_hole() && WhollyTrimmed(*states_[side], pair[side], base)) {
        pair[side] = BlockPtr{};
      }
    }
    // Data (or a hole) that is left is not trimmed; below a node a trim may hide more.
    if (pair[0] == pair[1] && (pair[0].level == 0 || AlikeTrimmed(pair[0], base))) {
      return true;
    }
    if (left_ == 0) {
      stopped_at_ = std::max(base, from_);
      return false;
    }
    if (level > 0) {
      ASSIGN_OR_RETURN(const bool went_through, CompareChildren(pair, level, base));
      if (!went_through) {
        return false;
      }
    } else if (!joiner_.Add(base, !pair[1].is_hole())) {
      stopped_at_ = joiner_.visited_end();
      return false;
    }
    left_ -= left_ > 0 ? 1 : 0;
    return true;
  }

  uint64_t stopped_at() const { return stopped_at_; }

 private:
  // The trims of both trees hide the same below an equal pointer.
  bool AlikeTrimmed(const BlockPtr& pointer, uint64_t base) const {
    const uint64_t end = EndBlock(pointer, base);
    return TrimWithin(*states_[0], base, end) == TrimWithin(*states_[1], base, end);
  }

  absl::StatusOr<bool> CompareChildren(const Pair& pair, uint8_t level, uint64_t base) {
    std::array<std::shared_ptr<const Node>, 2> nodes;
    for (size_t side = 0; side < pair.size(); ++side) {
      if (!pair[side].is_hole() && pair[side].level == level) {
        ASSIGN_OR_RETURN(nodes[side], tree_.ReadNode(pair[side]));
      }
    }
    const uint8_t child_level = level - 1;
    const uint64_t span = SpanBlocks(child_level);
    for (uint64_t i = (std::max(from_, base) - base) / span; i < kNodeFanout; ++i) {
      Pair children;
      for (size_t side = 0; side < pair.size(); ++side) {
        if (nodes[side] != nullptr) {
          children[side] = nodes[side]->children[i];
        } else if (i == 0) {
          children[side] = pair[side];
        }
      }
      ASSIGN_OR_RETURN(const bool went_through, Compare(children, child_level, base + i * span));
      if (!went_through) {
        return false;
      }
    }
    return true;
  }

  const BlockTree& tree_;
  const std::array<const TreeState*, 2> states_;
  const uint64_t from_;
  uint64_t left_;
  ExtentJoiner& joiner_;
  uint64_t stopped_at_ = 0;
};

}  // namespace

absl::StatusOr<bool> BlockTree::Diff(const TreeState& older, const TreeState& newer,
                                     uint64_t* next_block, uint64_t max_pointers,
                                     const std::function<bool(const Extent&)>& visit) const {
  ExtentJoiner joiner(visit);
  Comparer comparer(*this, older, newer, *next_block, std::max<uint64_t>(max_pointers, 1), joiner);
  const uint8_t level = std::max(older.root.level, newer.root.level);
  ASSIGN_OR_RETURN(const bool at_end, comparer.Compare({older.root, newer.root}, level, 0));
  const uint64_t stopped_at =
      at_end ? std::max(*next_block, SpanBlocks(level)) : comparer.stopped_at();
  if (!joiner.Flush()) {
    *next_block = joiner.visited_end();
    return false;
  }
  *next_block = stopped_at;
  return at_end;
}

}  // namespace cowshed::engine

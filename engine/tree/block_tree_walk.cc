// SPDX-License-Identifier: Apache-2.0
//
// BlockTree::Walk: depth first, children before their node, resumable.
#include <algorithm>
#include <limits>

#include "engine/base/status_macros.h"
#include "engine/tree/block_tree.h"
#include "engine/tree/tree_geometry.h"

namespace cowshed::engine {

namespace {

class Walker {
 public:
  Walker(const BlockTree& tree, Txg min_birth, uint64_t from, uint64_t max_pointers,
         const BlockTree::Visitor& visit)
      : tree_(tree), min_birth_(min_birth), from_(from), left_(max_pointers), visit_(visit) {}

  // Visits what is below `pointer`, then itself. False if it stopped, at stopped_at(). It stops
  // only in front of a pointer, so the cursor never lies between a node and its last child.
  absl::StatusOr<bool> Visit(const BlockPtr& pointer, uint64_t base) {
    if (pointer.is_hole() || pointer.birth <= min_birth_ || EndBlock(pointer, base) <= from_) {
      return true;
    }
    if (left_ == 0) {
      stopped_at_ = std::max(base, from_);
      return false;
    }
    if (pointer.level > 0) {
      ASSIGN_OR_RETURN(const bool went_through, VisitChildren(pointer, base));
      if (!went_through) {
        return false;
      }
    }
    RETURN_IF_ERROR(visit_(pointer));
    left_ -= left_ > 0 ? 1 : 0;
    return true;
  }

  uint64_t stopped_at() const { return stopped_at_; }

 private:
  absl::StatusOr<bool> VisitChildren(const BlockPtr& pointer, uint64_t base) {
    ASSIGN_OR_RETURN(const std::shared_ptr<const Node> node, tree_.ReadNode(pointer));
    const uint64_t span = SpanBlocks(pointer.level - 1);
    for (uint64_t i = (std::max(from_, base) - base) / span; i < kNodeFanout; ++i) {
      ASSIGN_OR_RETURN(const bool went_through, Visit(node->children[i], base + i * span));
      if (!went_through) {
        return false;
      }
    }
    return true;
  }

  const BlockTree& tree_;
  const Txg min_birth_;
  const uint64_t from_;
  uint64_t left_;
  const BlockTree::Visitor& visit_;
  uint64_t stopped_at_ = 0;
};

}  // namespace

absl::StatusOr<bool> BlockTree::Walk(const TreeState& state, Txg min_birth, uint64_t* next_block,
                                     uint64_t max_pointers, const Visitor& visit) const {
  Walker walker(*this, min_birth, *next_block, std::max<uint64_t>(max_pointers, 1), visit);
  ASSIGN_OR_RETURN(const bool at_end, walker.Visit(state.root, 0));
  *next_block = at_end ? std::max(*next_block, EndBlock(state.root, 0)) : walker.stopped_at();
  return at_end;
}

}  // namespace cowshed::engine

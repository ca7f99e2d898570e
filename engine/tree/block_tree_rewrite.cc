// SPDX-License-Identifier: Apache-2.0
//
// BlockTree::Rewrite and TrimStep: one pass down and up, each touched node replaced once.
#include <algorithm>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/status_macros.h"
#include "engine/tree/block_tree.h"
#include "engine/tree/tree_geometry.h"

namespace cowshed::engine {

namespace {

bool IsAllHoles(const Node& node) {
  return std::all_of(node.children.begin(), node.children.end(),
                     [](const BlockPtr& child) { return child.is_hole(); });
}

// What both ways of changing a tree do to single pointers.
class Editor {
 public:
  Editor(const BlockTree& tree, const BlockStore& store, NodeCache& cache, BlockWriter& writer,
         PointerChanges& changes)
      : tree_(tree), store_(store), cache_(cache), writer_(writer), changes_(changes) {}

  const BlockTree& tree() const { return tree_; }
  PointerChanges& changes() { return changes_; }

  absl::Status Kill(const BlockPtr& pointer) {
    if (!pointer.is_gang()) {
      const Run run = {.address = pointer.address,
                       .birth = pointer.birth,
                       .sectors = pointer.sectors,
                       .kind = pointer.kind};
      changes_.Killed(pointer, std::span(&run, 1));
      return absl::OkStatus();
    }
    extents_.clear();
    RETURN_IF_ERROR(store_.Extents(pointer, &extents_));
    changes_.Killed(pointer, extents_);
    return absl::OkStatus();
  }

  // Kills `old`, if there is one, and returns the pointer of what takes its place: a hole if that
  // is nothing but holes.
  absl::StatusOr<BlockPtr> Replace(const BlockPtr& old, uint8_t level,
                                   std::shared_ptr<const Node> node) {
    if (!old.is_hole()) {
      RETURN_IF_ERROR(Kill(old));
    }
    if (IsAllHoles(*node)) {
      return BlockPtr{};
    }
    extents_.clear();
    ASSIGN_OR_RETURN(const BlockPtr pointer, writer_.AddNode(level, node, &extents_));
    changes_.Born(pointer, extents_);
    cache_.Insert(pointer, std::move(node));
    return pointer;
  }

 private:
  const BlockTree& tree_;
  const BlockStore& store_;
  NodeCache& cache_;
  BlockWriter& writer_;
  PointerChanges& changes_;
  std::vector<Run> extents_;
};

class Rewriter {
 public:
  Rewriter(Editor& editor, Txg now) : editor_(editor), now_(now) {}

  // Puts `updates` below a pointer that stands at `level`; returns what takes its place. A pointer
  // of a lower level is the root of a tree that grows: it becomes the leftmost of a new node.
  absl::StatusOr<BlockPtr> Apply(const BlockPtr& old, uint8_t level, uint64_t base,
                                 std::span<const BlockTree::Update> updates) {
    const bool grows = !old.is_hole() && old.level < level;
    auto node = std::make_shared<Node>();
    if (grows) {
      node->children[0] = old;
    } else if (!old.is_hole()) {
      ASSIGN_OR_RETURN(const std::shared_ptr<const Node> current, editor_.tree().ReadNode(old));
      *node = *current;
    }
    const uint64_t span = SpanBlocks(level - 1);
    bool changed = grows;
    if (grows && old.level + 1 < level && (updates.empty() || updates[0].block >= base + span)) {
      ASSIGN_OR_RETURN(node->children[0], Apply(old, level - 1, base, {}));
    }
    while (!updates.empty()) {
      const uint64_t index = (updates[0].block - base) / span;
      const uint64_t child_base = base + index * span;
      const auto above = std::partition_point(updates.begin(), updates.end(),
                                              [child_base, span](const BlockTree::Update& update) {
                                                return update.block < child_base + span;
                                              });
      const auto mine = updates.first(static_cast<size_t>(above - updates.begin()));
      updates = updates.subspan(mine.size());
      BlockPtr& child = node->children[index];
      ASSIGN_OR_RETURN(const BlockPtr replacement, level == 1
                                                       ? ReplaceData(child, mine[0])
                                                       : Apply(child, level - 1, child_base, mine));
      changed |= replacement != child;
      child = replacement;
    }
    if (!changed) {
      return old;
    }
    return editor_.Replace(grows ? BlockPtr{} : old, level, std::move(node));
  }

 private:
  absl::StatusOr<BlockPtr> ReplaceData(const BlockPtr& old, const BlockTree::Update& update) {
    if (!old.is_hole()) {
      RETURN_IF_ERROR(editor_.Kill(old));
    }
    if (!update.pointer.is_hole()) {
      COWSHED_CHECK(update.pointer.birth <= now_, "I4: birth(child) <= birth(parent)");
      COWSHED_CHECK(update.pointer.kind == BlockKind::kData && update.pointer.level == 0,
                    "a block is data of level 0");
      editor_.changes().Born(update.pointer, update.extents);
    }
    return update.pointer;
  }

  Editor& editor_;
  const Txg now_;
};

class Trimmer {
 public:
  Trimmer(Editor& editor, const TreeState& state, uint64_t max_pointers)
      : editor_(editor), state_(state), left_(max_pointers) {}

  // Takes what is trimmed out from below `old`; returns what takes its place. Stops only in front
  // of a pointer, at stopped_at().
  absl::StatusOr<BlockPtr> Take(const BlockPtr& old, uint64_t base) {
    if (old.is_hole() || EndBlock(old, base) <= state_.trim_begin_block ||
        base >= state_.trim_end_block) {
      return old;
    }
    if (left_ == 0) {
      stopped_ = true;
      stopped_at_ = std::max(base, state_.trim_begin_block);
      return old;
    }
    if (old.level > 0) {
      return TakeChildren(old, base);
    }
    if (old.birth > state_.trim_txg) {
      return old;
    }
    RETURN_IF_ERROR(editor_.Kill(old));
    CountOne();
    return BlockPtr{};
  }

  bool stopped() const { return stopped_; }
  uint64_t stopped_at() const { return stopped_at_; }

 private:
  absl::StatusOr<BlockPtr> TakeChildren(const BlockPtr& old, uint64_t base) {
    ASSIGN_OR_RETURN(const std::shared_ptr<const Node> current, editor_.tree().ReadNode(old));
    std::shared_ptr<Node> changed;
    const uint64_t span = SpanBlocks(old.level - 1);
    for (uint64_t i = 0; i < kNodeFanout && !stopped_; ++i) {
      const BlockPtr& child = current->children[i];
      ASSIGN_OR_RETURN(const BlockPtr replacement, Take(child, base + i * span));
      if (replacement != child) {
        if (changed == nullptr) {
          changed = std::make_shared<Node>(*current);
        }
        changed->children[i] = replacement;
      }
    }
    // A node counts even if it stays: reading it was work, too.
    CountOne();
    return changed == nullptr ? old : editor_.Replace(old, old.level, std::move(changed));
  }

  void CountOne() { left_ -= left_ > 0 ? 1 : 0; }

  Editor& editor_;
  const TreeState& state_;
  uint64_t left_;
  bool stopped_ = false;
  uint64_t stopped_at_ = 0;
};

}  // namespace

absl::Status BlockTree::Rewrite(TreeState* state, std::span<const Update> updates,
                                BlockWriter& writer, PointerChanges& changes) const {
  const auto not_rising =
      std::adjacent_find(updates.begin(), updates.end(),
                         [](const Update& a, const Update& b) { return a.block >= b.block; });
  COWSHED_CHECK(not_rising == updates.end(), "updates rise strictly");
  // A hole past the end of the tree is one already: it does not make the tree grow.
  const auto last_data = std::find_if(updates.rbegin(), updates.rend(), [](const Update& update) {
    return !update.pointer.is_hole();
  });
  const uint64_t block_count = last_data == updates.rend() ? 0 : last_data->block + 1;
  const uint8_t height = std::max({state->height, state->root.level, HeightFor(block_count)});
  while (!updates.empty() && updates.back().block >= SpanBlocks(height)) {
    updates = updates.first(updates.size() - 1);
  }
  if (updates.empty()) {
    return absl::OkStatus();
  }
  Editor editor(*this, store_, cache_, writer, changes);
  ASSIGN_OR_RETURN(const BlockPtr root,
                   Rewriter(editor, writer.txg()).Apply(state->root, height, 0, updates));
  state->root = root;
  state->height = height;
  return absl::OkStatus();
}

absl::StatusOr<bool> BlockTree::TrimStep(TreeState* state, uint64_t max_pointers,
                                         BlockWriter& writer, PointerChanges& changes) const {
  if (state->trim_txg > 0) {
    Editor editor(*this, store_, cache_, writer, changes);
    Trimmer trimmer(editor, *state, std::max<uint64_t>(max_pointers, 1));
    ASSIGN_OR_RETURN(const BlockPtr root, trimmer.Take(state->root, 0));
    state->root = root;
    if (trimmer.stopped()) {
      state->trim_begin_block = trimmer.stopped_at();
      return false;
    }
  }
  state->trim_begin_block = 0;
  state->trim_end_block = 0;
  state->trim_txg = 0;
  return true;
}

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// BlockTree::Rewrite and TrimStep: each touched node replaced once, after all below it.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

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

// Goes down once, a level at a time, to fetch the nodes above the updates, and comes up a level at
// a time. So the new nodes of a level lie side by side, in the order of their blocks: most are
// replaced together when the next txg comes, and then runs are logged and freed, not single nodes.
class Rewriter {
 public:
  Rewriter(Editor& editor, Txg now) : editor_(editor), now_(now) {}

  // Puts `updates`, at least one, into the tree below `root`; returns the root of level `height`
  // that takes its place. A root of a lower level becomes the leftmost of the new ones.
  absl::StatusOr<BlockPtr> Apply(const BlockPtr& root, uint8_t height,
                                 std::span<const BlockTree::Update> updates) {
    levels_.resize(height + 1U);
    levels_[height].push_back({.old = root, .updates = updates});
    for (uint8_t level = height; level > 0; --level) {
      for (size_t i = 0; i < levels_[level].size(); ++i) RETURN_IF_ERROR(Descend(level, i));
    }
    for (uint8_t level = 1; level < height; ++level) {
      for (Touched& touched : levels_[level]) {
        ASSIGN_OR_RETURN(const BlockPtr replacement, Finish(level, touched));
        levels_[level + 1U][touched.parent].Set(touched.slot, replacement);
      }
      levels_[level].clear();
    }
    return Finish(height, levels_[height][0]);
  }

 private:
  // A node that leads to updates, or will.
  struct Touched {
    BlockPtr old;  // a hole: there was none
    uint64_t base = 0;
    std::span<const BlockTree::Update> updates;
    size_t parent = 0;  // its place among those of the level above
    size_t slot = 0;    // and below that one
    std::shared_ptr<Node> node;
    bool changed = false;

    void Set(size_t index, const BlockPtr& child) {
      changed |= node->children[index] != child;
      node->children[index] = child;
    }
  };

  // Fetches the node and finds those of the level below that lead to its updates. At level 1 these
  // are the blocks themselves: they are replaced at once.
  absl::Status Descend(uint8_t level, size_t place) {
    Touched& touched = levels_[level][place];
    touched.node = std::make_shared<Node>();
    const uint64_t span = SpanBlocks(level - 1);
    std::span<const BlockTree::Update> updates = touched.updates;
    if (!touched.old.is_hole() && touched.old.level < level) {
      const BlockPtr lower = std::exchange(touched.old, BlockPtr{});
      touched.Set(0, lower);
      const bool led_to = !updates.empty() && updates[0].block < touched.base + span;
      if (lower.level + 1 < level && !led_to) {
        levels_[level - 1U].push_back({.old = lower, .base = touched.base, .parent = place});
      }
    } else if (!touched.old.is_hole()) {
      ASSIGN_OR_RETURN(const auto current, editor_.tree().ReadNode(touched.old));
      *touched.node = *current;
    }
    while (!updates.empty()) {
      const size_t slot = (updates[0].block - touched.base) / span;
      const uint64_t end = touched.base + (slot + 1) * span;
      const auto above = std::partition_point(
          updates.begin(), updates.end(), [end](const auto& update) { return update.block < end; });
      const auto below = updates.first(static_cast<size_t>(above - updates.begin()));
      updates = updates.subspan(below.size());
      const BlockPtr& child = touched.node->children[slot];
      if (level == 1) {
        RETURN_IF_ERROR(ReplaceData(child, below[0]));
        touched.Set(slot, below[0].pointer);
      } else {
        levels_[level - 1U].push_back(
            {.old = child, .base = end - span, .updates = below, .parent = place, .slot = slot});
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReplaceData(const BlockPtr& old, const BlockTree::Update& update) {
    if (!old.is_hole()) {
      RETURN_IF_ERROR(editor_.Kill(old));
    }
    if (!update.pointer.is_hole()) {
      COWSHED_CHECK(update.pointer.birth <= now_, "I4: birth(child) <= birth(parent)");
      COWSHED_CHECK(update.pointer.kind == BlockKind::kData && update.pointer.level == 0,
                    "a block is data of level 0");
      editor_.changes().Born(update.pointer, update.extents);
    }
    return absl::OkStatus();
  }

  // What takes the place of a node whose children are final.
  absl::StatusOr<BlockPtr> Finish(uint8_t level, Touched& touched) {
    if (!touched.changed) return touched.old;
    return editor_.Replace(touched.old, level, std::move(touched.node));
  }

  Editor& editor_;
  const Txg now_;
  std::vector<std::vector<Touched>> levels_;  // by level, in the order of their blocks
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
                   Rewriter(editor, writer.txg()).Apply(state->root, height, updates));
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

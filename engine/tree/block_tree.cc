// SPDX-License-Identifier: Apache-2.0
#include "engine/tree/block_tree.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/tree/tree_geometry.h"

namespace cowshed::engine {

namespace {

absl::Status DamagedNode(const BlockPtr& pointer, std::string_view problem) {
  return absl::DataLossError(
      StrCat("node at sector ", pointer.address, " born in txg ", pointer.birth, " ", problem));
}

// Whether `child` may stand in a node of `parent`: a hole is all zero, and I4.
bool IsChildOf(const BlockPtr& child, const BlockPtr& parent) {
  if (child.is_hole()) {
    return child.address == 0 && child.birth == 0;
  }
  const BlockKind kind = parent.level == 1 ? BlockKind::kData : BlockKind::kNode;
  return child.birth != 0 && child.birth <= parent.birth && child.kind == kind &&
         child.level + 1 == parent.level && child.sectors > 0;
}

}  // namespace

uint8_t BlockTree::HeightFor(uint64_t block_count) {
  uint8_t height = 1;
  while (height < kMaxTreeHeight && SpanBlocks(height) < block_count) {
    ++height;
  }
  return height;
}

absl::StatusOr<std::shared_ptr<const Node>> BlockTree::ReadNode(const BlockPtr& pointer,
                                                                ReadMode mode) const {
  if (std::shared_ptr<const Node> cached = cache_.Find(pointer)) {
    return cached;
  }
  if (pointer.kind != BlockKind::kNode || pointer.sectors * kSectorBytes != sizeof(Node) ||
      pointer.level == 0 || pointer.level > kMaxTreeHeight) {
    return DamagedNode(pointer, "is not a node");
  }
  auto node = std::make_shared<Node>();
  RETURN_IF_ERROR(store_.Read(pointer, std::as_writable_bytes(std::span(node.get(), 1)), mode));
  for (const BlockPtr& child : node->children) {
    if (!IsChildOf(child, pointer)) {
      return DamagedNode(pointer, "has a child that cannot be its own (I4)");
    }
  }
  cache_.Insert(pointer, node);
  return std::shared_ptr<const Node>(std::move(node));
}

absl::Status BlockTree::VisitLowestNodes(const TreeState& state, const BlockPtr& pointer,
                                         uint64_t base, uint64_t first, uint64_t end, ReadMode mode,
                                         NodeVisitor visit) const {
  if (pointer.is_hole() || WhollyTrimmed(state, pointer, base)) {
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const std::shared_ptr<const Node> node, ReadNode(pointer, mode));
  if (pointer.level == 1) {
    visit(base, *node);
    return absl::OkStatus();
  }
  const uint64_t span = SpanBlocks(pointer.level - 1);
  end = std::min(end, EndBlock(pointer, base));
  for (uint64_t i = (std::max(first, base) - base) / span; base + i * span < end; ++i) {
    RETURN_IF_ERROR(
        VisitLowestNodes(state, node->children[i], base + i * span, first, end, mode, visit));
  }
  return absl::OkStatus();
}

absl::Status BlockTree::Lookup(const TreeState& state, uint64_t first, std::span<BlockPtr> out,
                               ReadMode mode) const {
  std::fill(out.begin(), out.end(), BlockPtr{});
  const uint64_t end = first + out.size();
  const auto copy_pointers = [&](uint64_t base, const Node& node) {
    const uint64_t stop = std::min(end, base + kNodeFanout);
    for (uint64_t block = std::max(first, base); block < stop; ++block) {
      const BlockPtr& pointer = node.children[block - base];
      if (!state.trimmed(block, pointer.birth)) {
        out[block - first] = pointer;
      }
    }
  };
  if (first >= end || first >= EndBlock(state.root, 0)) {
    return absl::OkStatus();
  }
  return VisitLowestNodes(state, state.root, 0, first, end, mode, copy_pointers);
}

absl::Status BlockTree::Warm(const TreeState& state, uint64_t first, uint64_t count) const {
  if (count == 0 || first >= EndBlock(state.root, 0)) {
    return absl::OkStatus();
  }
  // Not through the trim: a Rewrite reads what a look-up may skip.
  TreeState untrimmed = state;
  untrimmed.trim_txg = 0;
  return VisitLowestNodes(untrimmed, state.root, 0, first, first + count, ReadMode::kWait,
                          [](uint64_t, const Node&) {});
}

absl::StatusOr<std::optional<uint64_t>> BlockTree::FindData(const TreeState& state,
                                                            const BlockPtr& pointer, uint64_t base,
                                                            uint64_t from) const {
  if (pointer.is_hole() || EndBlock(pointer, base) <= from || WhollyTrimmed(state, pointer, base)) {
    return std::optional<uint64_t>();
  }
  if (pointer.level == 0) {
    return std::optional<uint64_t>(base);
  }
  ASSIGN_OR_RETURN(const std::shared_ptr<const Node> node, ReadNode(pointer));
  const uint64_t span = SpanBlocks(pointer.level - 1);
  for (uint64_t i = (std::max(from, base) - base) / span; i < kNodeFanout; ++i) {
    ASSIGN_OR_RETURN(const auto found, FindData(state, node->children[i], base + i * span, from));
    if (found.has_value()) {
      return found;
    }
  }
  return std::optional<uint64_t>();
}

absl::StatusOr<uint64_t> BlockTree::NextData(const TreeState& state, uint64_t from) const {
  ASSIGN_OR_RETURN(const auto found, FindData(state, state.root, 0, from));
  return std::min(found.value_or(state.block_count()), state.block_count());
}

}  // namespace cowshed::engine

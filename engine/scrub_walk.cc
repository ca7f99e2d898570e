// SPDX-License-Identifier: Apache-2.0
#include "engine/scrub_walk.h"

#include <algorithm>
#include <memory>

#include "engine/tree/tree_geometry.h"

namespace cowshed::engine {
namespace {

class ScrubWalker {
 public:
  ScrubWalker(const BlockStore& blocks, const BirthRange& births, uint64_t from, uint64_t max_bytes)
      : blocks_(blocks), births_(births), from_(from), left_bytes_(max_bytes) {}

  // False if it stopped, at stopped_at().
  bool Visit(const BlockPtr& pointer, uint64_t base) {
    if (pointer.is_hole() || pointer.birth <= births_.after || EndBlock(pointer, base) <= from_) {
      return true;
    }
    if (left_bytes_ == 0) {
      stopped_at_ = std::max(base, from_);
      return false;
    }
    if (pointer.level > 0) return VisitNode(pointer, base);
    if (pointer.birth <= births_.up_to) {
      const uint64_t bytes = uint64_t{pointer.sectors} * kSectorBytes;
      result_.read_bytes += bytes;
      left_bytes_ -= std::min(left_bytes_, bytes);
      data_.push_back({pointer, base});
    }
    return true;
  }

  TreeScrub Finish() {
    std::sort(data_.begin(), data_.end(),
              [](const Block& a, const Block& b) { return a.pointer.address < b.pointer.address; });
    std::vector<std::byte> buffer(kMaxBlockBytes);
    for (const Block& block : data_) {
      const uint64_t bytes = uint64_t{block.pointer.sectors} * kSectorBytes;
      const bool fits = bytes <= buffer.size();
      if (!fits ||
          !blocks_.Read(block.pointer, std::span(buffer).first(bytes), ReadMode::kScan).ok()) {
        result_.damaged.push_back({.first_block = block.index, .block_count = 1});
      }
    }
    return std::move(result_);
  }

  uint64_t stopped_at() const { return stopped_at_; }

 private:
  struct Block {
    BlockPtr pointer;
    uint64_t index;
  };

  bool VisitNode(const BlockPtr& pointer, uint64_t base) {
    left_bytes_ -= std::min<uint64_t>(left_bytes_, kSectorBytes);
    auto node = std::make_unique<Node>();
    if (pointer.sectors != 1 ||
        !blocks_.Read(pointer, std::as_writable_bytes(std::span(node.get(), 1)), ReadMode::kScan)
             .ok()) {
      const uint64_t first = std::max(base, from_);
      result_.damaged.push_back(
          {.first_block = first, .block_count = EndBlock(pointer, base) - first, .node = 1});
      result_.read_bytes += kSectorBytes;
      return true;
    }
    const uint64_t span = SpanBlocks(pointer.level - 1);
    for (uint64_t i = (std::max(from_, base) - base) / span; i < kNodeFanout; ++i) {
      const BlockPtr& child = node->children[i];
      if (!child.is_hole() && child.level + 1 != pointer.level) {
        result_.damaged.push_back({.first_block = base + i * span, .block_count = span, .node = 1});
        continue;
      }
      if (!Visit(child, base + i * span)) return false;
    }
    // Counted by the bite in which it is done with: others have read it, too.
    result_.read_bytes += kSectorBytes;
    return true;
  }

  const BlockStore& blocks_;
  const BirthRange births_;
  const uint64_t from_;
  uint64_t left_bytes_;
  uint64_t stopped_at_ = 0;
  std::vector<Block> data_;
  TreeScrub result_;
};

}  // namespace

TreeScrub ScrubTree(const BlockStore& blocks, const TreeState& state, const BirthRange& births,
                    uint64_t* next_block, uint64_t max_bytes) {
  ScrubWalker walker(blocks, births, *next_block, std::max<uint64_t>(max_bytes, 1));
  const bool at_end = walker.Visit(state.root, 0);
  if (!at_end) *next_block = walker.stopped_at();
  TreeScrub result = walker.Finish();
  result.at_end = at_end;
  return result;
}

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
#include "engine/tree/condense_policy.h"

#include <algorithm>

namespace cowshed::engine {

namespace {

constexpr size_t kMaxMerged = 64;  // sublists in one run: bounds its last txg

uint64_t AllocatedBlocks(const SublistRecord& record, uint32_t block_sectors) {
  return record.allocated.data_sectors / block_sectors + record.allocated.node_sectors;
}

}  // namespace

uint64_t LiveBlocks(const SublistRecord& record, uint32_t block_sectors) {
  // Damaged records may be anything: no subtraction that could go below zero.
  const SectorSums& freed = record.freed;
  const SectorSums& allocated = record.allocated;
  if (!allocated.Covers(freed)) {
    return 0;
  }
  const uint64_t data_sectors = allocated.data_sectors - freed.data_sectors;
  return (data_sectors + block_sectors - 1) / block_sectors + allocated.node_sectors -
         freed.node_sectors;
}

bool IsWorthCondensing(const SublistLoad& load, uint32_t block_sectors,
                       const LiveListOptions& options) {
  const uint64_t entries = load.entries();
  const uint64_t condensed = load.sublist.record.condensed_entries;
  const uint64_t came = entries - std::min(entries, condensed);
  if (came < options.condense_min_entries) {
    return false;
  }
  return entries > 2 * LiveBlocks(load.sublist.record, block_sectors) ||
         came * 100 >= condensed * options.condense_growth_percent;
}

std::optional<Neighbours> FindMerge(std::span<const SublistLoad> stretch, uint32_t block_sectors,
                                    const LiveListOptions& options) {
  for (size_t first = 0; first < stretch.size(); ++first) {
    uint64_t blocks = 0;
    uint64_t total = 0;
    uint64_t longest = 0;
    size_t best = 0;
    for (size_t i = first; i < stretch.size() && i - first < kMaxMerged; ++i) {
      blocks += LiveBlocks(stretch[i].sublist.record, block_sectors);
      if (blocks > options.max_entries / 2) {
        break;
      }
      const uint64_t weight = std::max(stretch[i].entries(), options.condense_min_entries);
      total += weight;
      longest = std::max(longest, weight);
      if (i > first && total >= 2 * longest) {
        best = i - first + 1;
      }
    }
    if (best > 0) {
      return Neighbours{.first = first, .count = best};
    }
  }
  return std::nullopt;
}

std::vector<size_t> FindEmpty(std::span<const SublistLoad> stretch, bool has_newest,
                              uint32_t block_sectors, const LiveListOptions& options) {
  std::vector<size_t> empty;
  for (size_t i = 0; i < stretch.size(); ++i) {
    if (!stretch[i].empty()) {
      continue;
    }
    const bool is_newest = has_newest && i + 1 == stretch.size();
    const bool has_room = i > 0 && AllocatedBlocks(stretch[i - 1].sublist.record, block_sectors) <=
                                       options.max_entries / 2;
    if (!is_newest || has_room) {
      empty.push_back(i);
    }
  }
  return empty;
}

bool IsCostly(std::span<const Sublist> list) {
  uint64_t chunks = 0;
  uint64_t nodes = 0;
  for (const Sublist& sublist : list) {
    const SublistRecord& record = sublist.record;
    chunks += (record.entries + PointerLog::kEntriesPerChunk - 1) / PointerLog::kEntriesPerChunk;
    nodes += record.allocated.node_sectors - record.freed.node_sectors;
  }
  return chunks > std::max(nodes, kCostlyMinChunks);
}

}  // namespace cowshed::engine

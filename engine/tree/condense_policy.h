// SPDX-License-Identifier: Apache-2.0
//
// When a sublist is worth rewriting without its cancelled pairs, and which neighbours become one.
//
// Alone      a) its entries are more than twice its live blocks. There are at most as many
//               survivors as live blocks, so each such condense takes out at least half of what it
//               reads: over time it reads at most two entries for each one logged, and writes one.
//            b) as many entries came as `condense_growth_percent` of what the last condense left,
//               the number of survivors as far as it has been measured. At 85 % that is 2.2 entries
//               read and 1.2 written for each one logged. Finds what (a) does not: long runs that
//               are overwritten, and little that lives beside much that is overwritten often.
//            So a list at rest has at most twice as many entries as live blocks, and 1.85 times as
//            many as it had survivors. An entry takes 24 bytes and a scattered write of 16 KiB logs
//            one, two where each has a node of its own: condense moves 0.5 to 1 % of what clients
//            write, a third of it writes.
// Neighbours are merged where no own snapshot lies between, while their live blocks stay below half
//            of max_entries, and only if the others together have as many entries as the longest:
//            an entry moves at most log2(max_entries / min_entries) times, whatever comes and goes.
// Empty      sublists are dropped at no cost, also between snapshots: nothing of their births is
//            left or will come. Only the newest may be needed: behind a full one it stays.
// Costly     A list that has been condensed and still takes more pages than its tree has nodes (its
//            blocks lie in gangs, one run a piece) is not worth keeping: the tree is read as fast.
//            Short ones are kept all the same: they cost next to nothing, and a dropped list does
//            not come back when its dataset grows.
//
// Threads     Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/tree/live_list.h"

namespace cowshed::engine {

// A sublist and what its record does not say.
struct SublistLoad {
  Sublist sublist;
  uint64_t attached_entries = 0;  // of all attached logs

  uint64_t entries() const { return sublist.record.entries + attached_entries; }
  bool empty() const { return entries() == 0 && sublist.record.attached_logs == 0; }
};

// Data blocks (of `block_sectors` each) and nodes that survive.
uint64_t LiveBlocks(const SublistRecord& record, uint32_t block_sectors);

bool IsWorthCondensing(const SublistLoad& load, uint32_t block_sectors,
                       const LiveListOptions& options);

// Neighbours [first, first + count) of a stretch without an own snapshot within.
struct Neighbours {
  size_t first = 0;
  size_t count = 0;
};
std::optional<Neighbours> FindMerge(std::span<const SublistLoad> stretch, uint32_t block_sectors,
                                    const LiveListOptions& options);
// The empty sublists of a stretch that are to be dropped. `has_newest`: the list ends with it.
std::vector<size_t> FindEmpty(std::span<const SublistLoad> stretch, bool has_newest,
                              uint32_t block_sectors, const LiveListOptions& options);

// A list of up to 1 MiB is read in some milliseconds, and never costly.
inline constexpr uint64_t kCostlyMinChunks = 256;
// REQUIRES: the list has nothing left to condense.
bool IsCostly(std::span<const Sublist> list);

}  // namespace cowshed::engine

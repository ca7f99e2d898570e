// SPDX-License-Identifier: Apache-2.0
//
// The free log: runs that were freed for good and are not in their region's bitmap yet.
//
// The frees of a txg are gathered, joined where they touch, and written by address at its end in
// chunks of one LMDB value (region_records.h). In memory every run is held by address, to find
// double frees and to take a region's runs together; per region stands which chunks name it, so
// that a chunk is deleted when the last of its regions is flushed.
//
// Invariants  Runs do not overlap. Each lies within one region. I3 is the caller's.
// Threads     Txg thread only.
// Cost        Some 40 bytes per run. Add O(log runs); Load reads every chunk, whose number
//             RegionsToFlush bounds.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "engine/store/format.h"
#include "engine/store/meta_store.h"
#include "engine/store/region_records.h"

namespace cowshed::engine {

class FreeLog {
 public:
  // Reads what the regions have not taken yet. Anything held before is dropped.
  absl::Status Load(const MetaTxn& txn, uint64_t capacity_sectors,
                    std::span<const RegionSumRecord> regions);

  // A logged run that shares sectors with `run`.
  std::optional<Run> FindOverlap(const Run& run) const;
  // REQUIRES: `run` lies within one region and overlaps nothing here.
  void Add(const Run& run);
  // Writes what was added since the last Write as frees of txg `now`.
  absl::Status Write(WriteTxn& txn, Txg now);

  struct FlushLimits {
    uint32_t max_regions = 0;
    uint64_t max_runs = 0;  // beyond it, and beyond the chunks it implies, more regions are due
  };
  // The regions to flush, without those in `skip`: those that keep the oldest chunks alive where
  // there are too many, then those with the most sectors to give.
  std::vector<uint32_t> RegionsToFlush(Txg reusable_up_to, const FlushLimits& limits,
                                       const absl::flat_hash_set<uint32_t>& skip) const;
  // The runs of `region` freed in txgs <= `up_to`, by address, joined where they touch.
  std::vector<Run> RunsOf(uint32_t region, Txg up_to) const;
  // Drops them, and the chunks that are done with.
  absl::Status Forget(WriteTxn& txn, uint32_t region, Txg up_to);

  uint64_t runs() const { return logged_.size() + fresh_.size(); }
  uint64_t sectors() const { return sectors_; }
  uint64_t chunks() const { return chunks_.size(); }
  // Newest txg with a chunk; 0 if there is none.
  Txg newest_txg() const { return chunks_.empty() ? 0 : chunks_.rbegin()->first.first; }
  // All runs that were loaded or written, by address; `birth` is the txg of the free.
  void ForEach(const std::function<void(const Run&)>& visit) const;

 private:
  struct Logged {
    Txg txg = 0;
    uint32_t sectors = 0;
  };
  // What one chunk holds for one region.
  struct Share {
    Txg txg = 0;
    uint32_t chunk = 0;
    uint32_t runs = 0;
    uint64_t sectors = 0;
  };
  using ChunkId = std::pair<Txg, uint32_t>;

  absl::Status LoadChunk(ChunkId id, std::string_view value, uint64_t capacity_sectors,
                         std::span<const RegionSumRecord> regions);
  void Insert(ChunkId id, uint64_t address, uint32_t sectors);

  absl::btree_map<uint64_t, Logged> logged_;                  // by address; in chunks
  absl::btree_map<uint64_t, uint32_t> fresh_;                 // address -> sectors; not written yet
  uint64_t sectors_ = 0;                                      // of both
  absl::flat_hash_map<uint32_t, std::vector<Share>> shares_;  // region -> by rising txg and chunk
  std::map<ChunkId, uint32_t> chunks_;                        // -> regions it waits for
};

}  // namespace cowshed::engine

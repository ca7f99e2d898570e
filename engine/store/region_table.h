// SPDX-License-Identifier: Apache-2.0
//
// The regions' records in memory: all sums, and a bounded number of bitmaps.
//
// A bitmap is read from the metadata store when it is first asked for and proved against its sum;
// a changed one stays until WriteBack, an unchanged one may make room for another at any time.
//
// Invariants  A sum's free_sectors is the number of clear bits of its region's bitmap within the
//             capacity; bits beyond the capacity are clear. A region that is all free has no
//             record.
// Threads     Txg thread only.
// Ownership   A bitmap handed out stays valid until the next call that takes a transaction.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/store/meta_store.h"
#include "engine/store/region_bitmap.h"
#include "engine/store/region_records.h"

namespace cowshed::engine {

class RegionTable {
 public:
  explicit RegionTable(uint32_t bitmaps_cached) : bitmaps_cached_(bitmaps_cached) {}

  // Drops everything and reads the sums. DATA_LOSS if they do not fit the capacity.
  absl::Status Load(const MetaTxn& txn, uint64_t capacity_sectors);
  // Adds or takes sectors at the end. REQUIRES: those taken are free. Added regions count as
  // flushed up to `newest_logged_txg`, for frees of that age name a region of before a shrink.
  absl::Status Resize(WriteTxn& txn, uint64_t capacity_sectors, Txg newest_logged_txg);
  // Writes changed bitmaps and sums.
  absl::Status WriteBack(WriteTxn& txn);

  uint32_t count() const { return static_cast<uint32_t>(sums_.size()); }
  uint32_t size(uint32_t region) const { return RegionSize(region, capacity_sectors_); }
  const RegionSumRecord& sum(uint32_t region) const { return sums_[region]; }
  std::span<const RegionSumRecord> sums() const { return sums_; }
  uint64_t capacity_sectors() const { return capacity_sectors_; }
  uint64_t free_sectors() const { return free_sectors_; }

  // The bitmap of `region`, kept for the next time. DATA_LOSS if it is damaged.
  absl::StatusOr<const RegionBitmap*> Bitmap(const MetaTxn& txn, uint32_t region);
  // For a look at scattered regions: the bitmap if it is kept already, else read into `*copy`, so
  // that it pushes no other out.
  absl::StatusOr<const RegionBitmap*> Peek(const MetaTxn& txn, uint32_t region,
                                           RegionBitmap* copy) const;

  // REQUIRES: the region's Bitmap() was the last one asked for, [begin, end) is all clear or set.
  void Allocate(uint32_t region, uint32_t begin, uint32_t end);
  void Free(uint32_t region, uint32_t begin, uint32_t end);
  void SetFlushed(uint32_t region, Txg txg);

 private:
  struct Cached {
    RegionBitmap bitmap;
    uint64_t last_use = 0;
    bool changed = false;
  };

  absl::StatusOr<RegionBitmap> Read(const MetaTxn& txn, uint32_t region) const;
  void MakeRoom();
  RegionSumRecord& ChangedSum(uint32_t region);
  absl::Status WriteSums(WriteTxn& txn, uint32_t chunk) const;

  const uint32_t bitmaps_cached_;
  uint64_t capacity_sectors_ = 0;
  uint64_t free_sectors_ = 0;
  std::vector<RegionSumRecord> sums_;
  std::set<uint32_t> changed_chunks_;
  absl::flat_hash_map<uint32_t, std::unique_ptr<Cached>> cache_;
  uint64_t uses_ = 0;
};

}  // namespace cowshed::engine

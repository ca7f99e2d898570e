// SPDX-License-Identifier: Apache-2.0
#include "engine/store/region_table.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>

#include "engine/base/check.h"
#include "engine/base/status_macros.h"
#include "engine/base/strings.h"

namespace cowshed::engine {

absl::Status RegionTable::Load(const MetaTxn& txn, uint64_t capacity_sectors) {
  capacity_sectors_ = capacity_sectors;
  free_sectors_ = 0;
  sums_.clear();
  changed_chunks_.clear();
  cache_.clear();
  const uint32_t regions = RegionCount(capacity_sectors);
  MetaCursor cursor(txn, Table::kRegionSums);
  for (cursor.Seek(""); cursor.valid(); cursor.Next()) {
    const uint32_t begin = count();
    const uint32_t wanted = std::min(kRegionsPerChunk, regions - begin);
    if (std::string_view(cursor.key()) != RegionSumKey(begin / kRegionsPerChunk) || wanted == 0 ||
        cursor.value().size() != wanted * sizeof(RegionSumRecord)) {
      return absl::DataLossError("region sums do not fit the capacity");
    }
    sums_.resize(begin + wanted);
    std::memcpy(&sums_[begin], cursor.value().data(), cursor.value().size());
  }
  RETURN_IF_ERROR(cursor.status());
  if (count() != regions) {
    return absl::DataLossError("region sums do not fit the capacity");
  }
  for (uint32_t region = 0; region < regions; ++region) {
    if (sums_[region].free_sectors > size(region)) {
      return absl::DataLossError(StrCat("region ", region, " has more free sectors than sectors"));
    }
    free_sectors_ += sums_[region].free_sectors;
  }
  return absl::OkStatus();
}

absl::Status RegionTable::Resize(WriteTxn& txn, uint64_t capacity_sectors, Txg newest_logged_txg) {
  const uint32_t old_count = count();
  const uint32_t new_count = RegionCount(capacity_sectors);
  if (old_count > 0) {
    // The last region of the two that stays may grow or shrink by a part.
    const uint32_t last = std::min(old_count, new_count) - 1;
    ChangedSum(last).free_sectors +=
        RegionSize(last, capacity_sectors) - RegionSize(last, capacity_sectors_);
  }
  for (uint32_t region = new_count; region < old_count; ++region) {
    cache_.erase(region);
    RETURN_IF_ERROR(txn.Delete(Table::kRegions, RegionKey(region)));
  }
  const uint32_t new_chunks = (new_count + kRegionsPerChunk - 1) / kRegionsPerChunk;
  const uint32_t old_chunks = (old_count + kRegionsPerChunk - 1) / kRegionsPerChunk;
  for (uint32_t chunk = new_chunks; chunk < old_chunks; ++chunk) {
    changed_chunks_.erase(chunk);
    RETURN_IF_ERROR(txn.Delete(Table::kRegionSums, RegionSumKey(chunk)));
  }
  sums_.resize(new_count);
  for (uint32_t region = old_count; region < new_count; ++region) {
    ChangedSum(region) = {.flushed_txg = newest_logged_txg,
                          .free_sectors = RegionSize(region, capacity_sectors)};
  }
  capacity_sectors_ = capacity_sectors;
  free_sectors_ = 0;
  for (const RegionSumRecord& sum : sums_) {
    free_sectors_ += sum.free_sectors;
  }
  return absl::OkStatus();
}

absl::Status RegionTable::WriteBack(WriteTxn& txn) {
  for (const auto& [region, cached] : cache_) {
    if (!cached->changed) {
      continue;
    }
    const bool all_free = sums_[region].free_sectors == size(region);
    RETURN_IF_ERROR(all_free ? txn.Delete(Table::kRegions, RegionKey(region))
                             : txn.Put(Table::kRegions, RegionKey(region), cached->bitmap.bytes()));
    cached->changed = false;
  }
  for (const uint32_t chunk : changed_chunks_) {
    RETURN_IF_ERROR(WriteSums(txn, chunk));
  }
  changed_chunks_.clear();
  return absl::OkStatus();
}

absl::Status RegionTable::WriteSums(WriteTxn& txn, uint32_t chunk) const {
  const uint32_t begin = chunk * kRegionsPerChunk;
  const uint32_t end = std::min(begin + kRegionsPerChunk, count());
  const std::string_view value(reinterpret_cast<const char*>(&sums_[begin]),
                               (end - begin) * sizeof(RegionSumRecord));
  return txn.Put(Table::kRegionSums, RegionSumKey(chunk), value);
}

absl::StatusOr<RegionBitmap> RegionTable::Read(const MetaTxn& txn, uint32_t region) const {
  ASSIGN_OR_RETURN(const std::optional<std::string_view> bytes,
                   txn.Get(Table::kRegions, RegionKey(region)));
  RegionBitmap bitmap;
  if (bytes.has_value()) {
    ASSIGN_OR_RETURN(bitmap, RegionBitmap::Decode(*bytes));
  }
  if (size(region) - bitmap.CountSet() != sums_[region].free_sectors ||
      !bitmap.AllClear(size(region), kRegionSectors)) {
    return absl::DataLossError(StrCat("bitmap of region ", region, " contradicts its sum"));
  }
  return bitmap;
}

absl::StatusOr<const RegionBitmap*> RegionTable::Bitmap(const MetaTxn& txn, uint32_t region) {
  auto it = cache_.find(region);
  if (it == cache_.end()) {
    auto cached = std::make_unique<Cached>();
    ASSIGN_OR_RETURN(cached->bitmap, Read(txn, region));
    MakeRoom();
    it = cache_.emplace(region, std::move(cached)).first;
  }
  it->second->last_use = ++uses_;
  return &it->second->bitmap;
}

absl::StatusOr<const RegionBitmap*> RegionTable::Peek(const MetaTxn& txn, uint32_t region,
                                                      RegionBitmap* copy) const {
  if (const auto it = cache_.find(region); it != cache_.end()) {
    return &it->second->bitmap;
  }
  ASSIGN_OR_RETURN(*copy, Read(txn, region));
  return copy;
}

// Changed bitmaps stay whatever their number, which the bites of a txg bound.
void RegionTable::MakeRoom() {
  while (cache_.size() >= bitmaps_cached_) {
    auto oldest = cache_.end();
    for (auto it = cache_.begin(); it != cache_.end(); ++it) {
      if (!it->second->changed &&
          (oldest == cache_.end() || it->second->last_use < oldest->second->last_use)) {
        oldest = it;
      }
    }
    if (oldest == cache_.end()) {
      return;
    }
    cache_.erase(oldest);
  }
}

RegionSumRecord& RegionTable::ChangedSum(uint32_t region) {
  changed_chunks_.insert(region / kRegionsPerChunk);
  return sums_[region];
}

void RegionTable::Allocate(uint32_t region, uint32_t begin, uint32_t end) {
  Cached& cached = *cache_.at(region);
  COWSHED_CHECK(end <= size(region) && cached.bitmap.AllClear(begin, end),
                "I1: only free sectors are allocated");
  cached.bitmap.Set(begin, end);
  cached.changed = true;
  ChangedSum(region).free_sectors -= end - begin;
  free_sectors_ -= end - begin;
}

void RegionTable::Free(uint32_t region, uint32_t begin, uint32_t end) {
  Cached& cached = *cache_.at(region);
  COWSHED_CHECK(end <= size(region) && cached.bitmap.AllSet(begin, end),
                "I1: only sectors that are not free are freed");
  cached.bitmap.Clear(begin, end);
  cached.changed = true;
  ChangedSum(region).free_sectors += end - begin;
  free_sectors_ += end - begin;
}

void RegionTable::SetFlushed(uint32_t region, Txg txg) { ChangedSum(region).flushed_txg = txg; }

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// The allocator's records in the metadata store.
//
//   kRegions     region (4 bytes)                   -> RegionBitmap; absent = all free
//   kRegionSums  chunk (4 bytes)                    -> RegionSumRecord of up to 254 regions
//   kFreeLog     txg (8 bytes), chunk (4 bytes)     -> FreeRecord, up to 509, by address
//
// A free of txg t is done with once its region's flushed_txg is t or more; a free log chunk is
// deleted when that holds for every region it names.
#pragma once

#include <cstdint>

#include "engine/store/codec.h"
#include "engine/store/format.h"

namespace cowshed::engine {

struct RegionSumRecord {
  Txg flushed_txg = 0;        // frees up to this txg are in the bitmap
  uint32_t free_sectors = 0;  // clear bits within the capacity
  uint32_t reserved = 0;      // zero
};
static_assert(sizeof(RegionSumRecord) == 16);
inline constexpr uint32_t kRegionsPerChunk = kMaxPayloadBytes / sizeof(RegionSumRecord);
static_assert(kRegionsPerChunk == 254);

// A freed run, which lies within one region: 48 bits of address, 16 of length.
struct FreeRecord {
  uint64_t packed = 0;

  static FreeRecord Of(uint64_t address, uint32_t sectors) { return {address << 16 | sectors}; }
  uint64_t address() const { return packed >> 16; }
  uint32_t sectors() const { return static_cast<uint32_t>(packed & 0xffff); }
};
static_assert(sizeof(FreeRecord) == 8);
static_assert(kRegionSectors < 1 << 16);
inline constexpr uint32_t kFreesPerChunk = kMaxPayloadBytes / sizeof(FreeRecord);
inline constexpr uint64_t kMaxCapacitySectors = uint64_t{1} << 46;  // so regions fit in 32 bits

inline uint32_t RegionOf(uint64_t address) {
  return static_cast<uint32_t>(address / kRegionSectors);
}
inline uint64_t RegionBegin(uint32_t region) { return uint64_t{region} * kRegionSectors; }
inline uint32_t RegionCount(uint64_t capacity_sectors) {
  return static_cast<uint32_t>((capacity_sectors + kRegionSectors - 1) / kRegionSectors);
}
// Sectors of `region` within the capacity: fewer in the last one.
inline uint32_t RegionSize(uint32_t region, uint64_t capacity_sectors) {
  const uint64_t left = capacity_sectors - RegionBegin(region);
  return left < kRegionSectors ? static_cast<uint32_t>(left) : kRegionSectors;
}
inline Key RegionKey(uint32_t region) { return Key(region); }
inline Key RegionSumKey(uint32_t chunk) { return Key(chunk); }
inline Key FreeLogKey(Txg txg, uint32_t chunk) { return Key(txg, chunk); }

}  // namespace cowshed::engine

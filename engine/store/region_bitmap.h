// SPDX-License-Identifier: Apache-2.0
//
// Which sectors of one region are not free: one bit each, set = not free. Stored as it lies in
// memory: sector i is bit i % 8 of byte i / 8. All operations go a word of 64 sectors at a time.
//
// Threads     Externally synchronised.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/store/format.h"

namespace cowshed::engine {

class RegionBitmap {
 public:
  // The stored bytes; DATA_LOSS if they are not exactly one bitmap.
  static absl::StatusOr<RegionBitmap> Decode(std::string_view bytes);
  std::string_view bytes() const {
    return {reinterpret_cast<const char*>(words_.data()), sizeof(words_)};
  }

  // REQUIRES: begin <= end <= kRegionSectors, here and below.
  void Set(uint32_t begin, uint32_t end);
  void Clear(uint32_t begin, uint32_t end);
  bool AllSet(uint32_t begin, uint32_t end) const { return NextClear(begin, end) == end; }
  bool AllClear(uint32_t begin, uint32_t end) const { return NextSet(begin, end) == end; }
  // First set or clear bit in [begin, end), or `end`.
  uint32_t NextSet(uint32_t begin, uint32_t end) const;
  uint32_t NextClear(uint32_t begin, uint32_t end) const;
  uint32_t CountSet() const;

 private:
  static constexpr uint32_t kWordBits = 64;
  static constexpr uint32_t kWords = kRegionSectors / kWordBits;
  static_assert(kRegionSectors % kWordBits == 0);

  std::array<uint64_t, kWords> words_{};
};
static_assert(sizeof(RegionBitmap) == kMaxPayloadBytes);

// Finds the first run of `sectors` clear bits in [begin, end) that is also clear in `withheld`
// (may be null); `end` if there is none. Raises `*longest` to the longest run it passed by.
uint32_t FindClearRun(const RegionBitmap& bitmap, const RegionBitmap* withheld, uint32_t begin,
                      uint32_t end, uint32_t sectors, uint32_t* longest);

}  // namespace cowshed::engine

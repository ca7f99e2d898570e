// SPDX-License-Identifier: Apache-2.0
//
// Which region to allocate from next: the one with the greatest bound, where a region's bound is
// known to be no less than its longest free run. A bound starts as the number of free sectors and
// sinks to the truth when a search has failed, so a request that fits nowhere is refused without
// reading a bitmap.
//
// Model       A complete binary tree in an array; each inner entry is the maximum of its two.
// Threads     Externally synchronised.
// Cost        Set and Best O(log regions); 8 bytes per region.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

namespace cowshed::engine {

class RegionRanking {
 public:
  void Reset(uint32_t regions) {
    leaves_ = std::bit_ceil(uint64_t{regions} + 1);
    bounds_.assign(2 * leaves_, 0);
  }
  uint32_t bound(uint32_t region) const { return bounds_[leaves_ + region]; }
  void Set(uint32_t region, uint32_t bound) {
    uint64_t i = leaves_ + region;
    bounds_[i] = bound;
    for (i /= 2; i > 0; i /= 2) {
      const uint32_t greatest =
          bounds_[2 * i] < bounds_[2 * i + 1] ? bounds_[2 * i + 1] : bounds_[2 * i];
      if (bounds_[i] == greatest) {
        break;
      }
      bounds_[i] = greatest;
    }
  }
  uint32_t greatest_bound() const { return bounds_[1]; }
  // The first of the regions with the greatest bound.
  uint32_t Best() const {
    uint64_t i = 1;
    while (i < leaves_) {
      i = bounds_[2 * i] == bounds_[i] ? 2 * i : 2 * i + 1;
    }
    return static_cast<uint32_t>(i - leaves_);
  }

 private:
  uint64_t leaves_ = 1;
  std::vector<uint32_t> bounds_ = {0, 0};
};

}  // namespace cowshed::engine

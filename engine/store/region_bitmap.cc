// SPDX-License-Identifier: Apache-2.0
#include "engine/store/region_bitmap.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "engine/base/strings.h"

namespace cowshed::engine {
namespace {

// Ones from bit `first` on.
constexpr uint64_t MaskFrom(uint32_t first) { return ~uint64_t{0} << first; }

// Calls `apply(word, mask)` for each word that [begin, end) touches.
template <typename Apply>
void ForEachWord(uint32_t begin, uint32_t end, Apply apply) {
  while (begin < end) {
    const uint32_t word = begin / 64;
    const uint32_t word_end = std::min(end, (word + 1) * 64);
    uint64_t mask = MaskFrom(begin % 64);
    if (word_end % 64 != 0) {
      mask &= ~MaskFrom(word_end % 64);
    }
    apply(word, mask);
    begin = word_end;
  }
}

// First bit in [begin, end) for which `word(i) ^ flip` has a one, or `end`.
template <typename Words>
uint32_t NextOne(const Words& words, uint64_t flip, uint32_t begin, uint32_t end) {
  if (begin >= end) {
    return end;
  }
  uint32_t word = begin / 64;
  uint64_t bits = (words[word] ^ flip) & MaskFrom(begin % 64);
  while (bits == 0) {
    if (++word * 64 >= end) {
      return end;
    }
    bits = words[word] ^ flip;
  }
  return std::min(end, word * 64 + static_cast<uint32_t>(std::countr_zero(bits)));
}

}  // namespace

absl::StatusOr<RegionBitmap> RegionBitmap::Decode(std::string_view bytes) {
  if (bytes.size() != sizeof(words_)) {
    return absl::DataLossError(StrCat("a region's bitmap has ", bytes.size(), " bytes"));
  }
  RegionBitmap bitmap;
  std::memcpy(bitmap.words_.data(), bytes.data(), bytes.size());
  return bitmap;
}

void RegionBitmap::Set(uint32_t begin, uint32_t end) {
  ForEachWord(begin, end, [this](uint32_t word, uint64_t mask) { words_[word] |= mask; });
}

void RegionBitmap::Clear(uint32_t begin, uint32_t end) {
  ForEachWord(begin, end, [this](uint32_t word, uint64_t mask) { words_[word] &= ~mask; });
}

uint32_t RegionBitmap::NextSet(uint32_t begin, uint32_t end) const {
  return NextOne(words_, 0, begin, end);
}

uint32_t RegionBitmap::NextClear(uint32_t begin, uint32_t end) const {
  return NextOne(words_, ~uint64_t{0}, begin, end);
}

uint32_t RegionBitmap::CountSet() const {
  uint32_t count = 0;
  for (const uint64_t word : words_) {
    count += static_cast<uint32_t>(std::popcount(word));
  }
  return count;
}

uint32_t FindClearRun(const RegionBitmap& bitmap, const RegionBitmap* withheld, uint32_t begin,
                      uint32_t end, uint32_t sectors, uint32_t* longest) {
  while (begin < end) {
    begin = bitmap.NextClear(begin, end);
    if (withheld != nullptr) {
      const uint32_t clear = withheld->NextClear(begin, end);
      if (clear != begin) {
        begin = clear;
        continue;
      }
    }
    if (begin == end) {
      break;
    }
    const uint32_t wanted_end = std::min(end - begin, sectors) + begin;
    uint32_t run_end = bitmap.NextSet(begin, wanted_end);
    if (withheld != nullptr) {
      run_end = withheld->NextSet(begin, run_end);
    }
    if (run_end - begin == sectors) {
      return begin;
    }
    *longest = std::max(*longest, run_end - begin);
    begin = run_end;
  }
  return end;
}

}  // namespace cowshed::engine

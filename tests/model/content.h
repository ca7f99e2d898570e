// SPDX-License-Identifier: Apache-2.0
//
// What a head or snapshot should hold, as plainly as can be: a tag per cell of 1 KiB, 0 for zeros.
// A cell's bytes are a function of its tag, so a wrong byte anywhere shows.
//
// Threads     Externally synchronised.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace cowshed::engine {

inline constexpr uint64_t kCellBytes = 1024;

using Cells = std::vector<uint32_t>;

inline void FillCell(uint32_t tag, std::byte* out) {
  uint64_t word = tag * uint64_t{0x9e3779b97f4a7c15};
  for (uint64_t offset = 0; offset < kCellBytes; offset += sizeof(word)) {
    std::memcpy(out + offset, &word, sizeof(word));
    word = tag == 0 ? 0 : word * 0x5851f42d4c957f2d + 1;
  }
}

inline std::vector<std::byte> BytesOf(std::span<const uint32_t> cells) {
  std::vector<std::byte> bytes(cells.size() * kCellBytes);
  for (size_t i = 0; i < cells.size(); ++i) FillCell(cells[i], bytes.data() + i * kCellBytes);
  return bytes;
}

// Whether the bytes are those of the cells.
inline bool Matches(std::span<const uint32_t> cells, std::span<const std::byte> bytes) {
  std::byte expected[kCellBytes];
  for (size_t i = 0; i < cells.size(); ++i) {
    FillCell(cells[i], expected);
    if (std::memcmp(expected, bytes.data() + i * kCellBytes, kCellBytes) != 0) return false;
  }
  return true;
}

}  // namespace cowshed::engine

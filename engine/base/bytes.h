// SPDX-License-Identifier: Apache-2.0
//
// Looks at bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace cowshed::engine {

// Whether all are zero. Cost: one memcmp, which ends at the first that is not.
inline bool IsZero(std::span<const std::byte> bytes) {
  uint64_t word = 0;
  if (bytes.size() <= sizeof(word)) {
    if (!bytes.empty()) std::memcpy(&word, bytes.data(), bytes.size());
    return word == 0;
  }
  // The first word is zero and the rest equals the bytes one word before.
  std::memcpy(&word, bytes.data(), sizeof(word));
  return word == 0 &&
         std::memcmp(bytes.data(), bytes.data() + sizeof(word), bytes.size() - sizeof(word)) == 0;
}

}  // namespace cowshed::engine

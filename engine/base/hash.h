// SPDX-License-Identifier: Apache-2.0
//
// The one checksum of Cowshed: 64-bit XXH3, seeded where a value must also prove its place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace cowshed::engine {

uint64_t Hash64(std::span<const std::byte> bytes, uint64_t seed = 0);
uint64_t Hash64(std::string_view bytes, uint64_t seed = 0);

}  // namespace cowshed::engine

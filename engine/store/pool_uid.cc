// SPDX-License-Identifier: Apache-2.0
#include "engine/store/pool_uid.h"

#include <random>

namespace cowshed::engine {

PoolUid NewPoolUid() {
  std::random_device random;
  const auto word = [&] { return static_cast<uint64_t>(random()) << 32 | random(); };
  return {word(), word()};
}

}  // namespace cowshed::engine

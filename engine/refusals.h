// SPDX-License-Identifier: Apache-2.0
//
// Why a pool takes no change: the errors that do not depend on what a call wants.
//
// Threads     Pure functions.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"

namespace cowshed::engine {

// UNAVAILABLE POOL_SUSPENDED: after a sync that failed (I7), and where the pool is open to read.
absl::Status Suspended(std::string_view why);
absl::Status ReadOnly();
// UNAVAILABLE SERVER_STOPPING.
absl::Status Stopping();
// RESOURCE_EXHAUSTED POOL_FULL: LMDB's map is full. Destroying goes on.
absl::Status MetadataFull();
// `why`, or DATA_LOSS where a full pool may be full for the bitmaps that cannot be read.
absl::Status WithDamage(const absl::Status& why, uint64_t damaged_regions);

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// Whether this program may open what another version of it wrote: the one place that reads format
// versions and feature masks. Both files of a pool carry them (Superblock, PoolRecord); each is
// asked by itself, so that a pool is refused before anything of it that is not understood is used.
//
// Threads     Pure functions.
// Errors      FAILED_PRECONDITION with a text for the operator: what is unknown, and what to do.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "engine/store/format.h"

namespace cowshed::engine {

// May what `what` says ("blocks", "metadata") be read here? Not if its version is newer than ours,
// or an incompatible feature is unknown.
absl::Status CheckReadable(uint32_t version, const FeatureMasks& features, std::string_view what);
// May it be written, too? Not if a read-only-compatible feature is unknown. REQUIRES: it may be
// read.
absl::Status CheckWritable(const FeatureMasks& features, std::string_view what);

}  // namespace cowshed::engine

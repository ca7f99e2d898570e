// SPDX-License-Identifier: Apache-2.0
//
// The secret under which tokens are sealed: random bytes in a file of the pool's, made at the first
// start, so that tokens outlive a restart and nobody who knows the pool's uid can make one.
//
// Threads     Called once, at the start.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace cowshed::service {

inline constexpr size_t kSecretBytes = 32;

// Random bytes.
std::string NewSecret();

// The secret in the file at `path`; makes it, readable by its owner only, if it is missing.
// UNAVAILABLE "PATH: why" if it cannot be read or made, belongs to others as well, or is no secret.
absl::StatusOr<std::string> ReadOrMakeSecret(const std::string& path);

}  // namespace cowshed::service

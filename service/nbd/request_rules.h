// SPDX-License-Identifier: Apache-2.0
//
// Which requests an export takes: one table of commands with the flags they may have, and the rules
// on what they may reach. Judged before anything is done, from the request alone.
//
// Threads     Free functions on values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "service/nbd/wire.h"

namespace cowshed::service::nbd {

// Bytes that a READ or WRITE may carry, as told to clients in the block-size constraints.
inline constexpr uint32_t kPayloadBytesMax = 32 << 20;
// A WRITE with more is no client's that can be talked to: its connection ends.
inline constexpr uint32_t kSkippedBytesMax = 64 << 20;

// What the handshake settled.
struct ExportRules {
  uint64_t size_bytes = 0;
  bool read_only = false;
  bool structured = false;  // replies may be structured ones
  bool contexts = false;    // BLOCK_STATUS has something to tell
};

// Why a request is not done.
struct Refusal {
  Errno error = Errno::kInvalid;
  std::string text;
};

std::optional<Refusal> Judge(const Request& request, const ExportRules& rules);

}  // namespace cowshed::service::nbd

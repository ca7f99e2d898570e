// SPDX-License-Identifier: Apache-2.0
//
// What an engine error says beyond its code and message: a machine-readable reason, facts, and what
// blocks. It travels as a payload of absl::Status and is read back with GetErrorDetails.
//
// Threads     Free functions, thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "engine/store/format.h"

namespace cowshed::engine {

enum class BlockerKind : uint8_t {
  kSnapshot = 1,
  kClone = 2,
  kHold = 3,
  kNewerSnapshot = 4,
  kNameCollision = 5,
  kAttachment = 6
};

struct Blocker {
  BlockerKind kind = BlockerKind::kSnapshot;
  std::string name;          // the object in the way
  std::string blocked_name;  // what it blocks
  std::string tag;           // of a hold
  // Of an attachment: its id, who has it, and since when.
  std::string attachment{};
  std::string client{};
  int64_t since_ms = 0;
};

// Describes a set of blockers so that it can be listed page by page, from the state as it then is.
struct BlockerQuery {
  struct Target {
    BlockerKind kind = BlockerKind::kSnapshot;
    // Of a dataset (kSnapshot, kNewerSnapshot, kNameCollision), of a snapshot, or of either
    // (kAttachment).
    uint64_t id = 0;
    Txg floor_txg = 0;  // only snapshots above it (kNewerSnapshot)
  };
  std::vector<Target> targets;
};

struct Blockers {
  uint64_t total = 0;
  std::vector<Blocker> first;  // at most 20
  BlockerQuery query;          // all of them, through Pool::ListBlockers
};

struct ErrorDetails {
  std::string reason;  // UPPER_SNAKE, a value of cowshed.v1.ErrorReason
  std::map<std::string, std::string> metadata;
  Blockers blockers;
};

// A status with `details` attached. `message` is for people: what is wrong and what to do.
absl::Status MakeError(absl::StatusCode code, std::string_view message, ErrorDetails details);
// Shorthand without blockers.
absl::Status MakeError(absl::StatusCode code, std::string_view reason, std::string_view message,
                       std::map<std::string, std::string> metadata = {});
// The details of a status made by MakeError; nullopt for any other.
std::optional<ErrorDetails> GetErrorDetails(const absl::Status& status);

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// What a check of the pool found, offline (checker.h) or online (online_check.h). Part of the
// public nouns of types.h.
//
// Threads     Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/store/format.h"

namespace cowshed::engine {

struct CheckFinding {
  std::string invariant;  // "I1", "I4", "I5", "I6", "sums", "damage"
  std::string name;       // object concerned, may be empty
  std::string message;
};

struct CheckReport {
  std::vector<CheckFinding> findings;  // the first 1,000
  uint64_t total_findings = 0;
  uint64_t dataset_count = 0;
  uint64_t snapshot_count = 0;
  uint64_t block_count = 0;
  uint64_t referenced_bytes = 0;
  Txg txg = 0;
  uint64_t log_batches = 0;  // offline: of the intent log, waiting to be replayed,
  uint64_t log_bytes = 0;    // ... and what they write
  uint64_t skipped = 0;      // online: trees that changed or were too large for one view
  std::vector<uint64_t> damaged_livelists;  // ids of the datasets whose lists cannot be read
  bool ok() const { return total_findings == 0; }
};

}  // namespace cowshed::engine

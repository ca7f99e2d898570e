// SPDX-License-Identifier: Apache-2.0
//
// The record of a scrub (engine/scrubber.h): where it is, and what it has found. It is kept as long
// as its operation, so that the findings can be asked for.
//
// Threads     Plain values.
// Errors      Decode: DATA_LOSS naming the record.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/store/id_source.h"
#include "engine/store/meta_store.h"

namespace cowshed::engine {

// Blocks that could not be read as they were written. Named by ids: names change.
struct DamageRecord {
  DatasetId dataset{};
  SnapshotId snapshot{};  // 0: the head
  uint64_t first_block = 0;
  uint64_t block_count = 0;
  uint64_t node = 0;  // 1: the damage is in the node above them
};
static_assert(sizeof(DamageRecord) == 40);

enum class ScrubPhase : uint8_t { kSnapshots = 1, kHeads = 2, kDone = 3 };

struct ScrubRecord {
  static constexpr Table kTable = Table::kStates;
  ScrubPhase phase = ScrubPhase::kSnapshots;
  bool paused = false;
  uint64_t start_txg = 0;     // blocks born later are not its business
  uint64_t cursor_id = 0;     // snapshot or dataset, by phase: the next one from this id on
  uint64_t cursor_block = 0;  // in the tree of exactly that one
  uint64_t rate_bytes_per_second = 0;  // 0: no limit
  uint64_t read_bytes = 0;
  uint64_t errors = 0;
  int64_t finish_time_ms = 0;         // 0: not finished
  std::vector<DamageRecord> damaged;  // the first ones

  bool running() const { return phase != ScrubPhase::kDone && !paused; }
  bool SamePlace(const ScrubRecord& other) const {
    return phase == other.phase && cursor_id == other.cursor_id &&
           cursor_block == other.cursor_block;
  }
  std::string Encode() const;
  static absl::StatusOr<ScrubRecord> Decode(std::string_view bytes);
};

}  // namespace cowshed::engine

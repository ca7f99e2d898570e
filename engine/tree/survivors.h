// SPDX-License-Identifier: Apache-2.0
//
// Survivors: the ALLOCs of a log without their FREEs, matched by (address, birth). Found by sorting
// and one sweep, which costs O(n log n) in the number of runs, however many blocks they stand for.
//
// A window bounds the memory this takes. It begins at an address and collects entries until it is
// full; then pairs that cancel are taken out, and if that is not enough, its end is drawn in: what
// lies behind it is left to the next window, which reads the log again. A log that fits is read
// once; otherwise the number of passes grows with the survivors, not with the entries.
//
// Invariants  I6: where a window may fill up, an ALLOC is added before its FREE.
// Threads     Externally synchronised.
// Errors      DATA_LOSS: a FREE without an ALLOC, twice, or of another kind; two ALLOCs or two
//             survivors in one place.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/tree/pointer_log.h"

namespace cowshed::engine {

inline constexpr uint64_t kEndOfAddresses = UINT64_MAX;

class SurvivorWindow {
 public:
  // An entry takes 32 bytes, the survivors found among them 24 each while both are there.
  static constexpr uint64_t kBytesPerEntry = 64;
  static constexpr uint64_t kMinEntries = 16;

  // Of the sectors from `from_address` on. `expected_entries`: how many are likely to be added.
  SurvivorWindow(uint64_t from_address, uint64_t memory_bytes, uint64_t expected_entries);

  // Takes an ALLOC or a FREE; what lies outside the window is cut off.
  absl::Status Add(const LogEntry& entry);
  // The survivors within [from_address, end_address()), by address, joined. Call once, in the end.
  absl::StatusOr<std::vector<Run>> Finish();
  // kEndOfAddresses unless the memory did not do.
  uint64_t end_address() const { return end_address_; }

 private:
  absl::StatusOr<std::vector<Run>> Cancel();
  absl::Status Shrink();

  const uint64_t from_address_;
  const uint64_t max_entries_;
  uint64_t end_address_ = kEndOfAddresses;
  uint64_t shrink_at_;
  std::vector<LogEntry> entries_;
};

}  // namespace cowshed::engine

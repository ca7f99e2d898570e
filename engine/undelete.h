// SPDX-License-Identifier: Apache-2.0
//
// The undelete window: a destroy that was given one takes the names at once and keeps the datasets
// whole, doomed, with their snapshots and their hold on their origins. Until the window ends
// Undestroy brings all of them back, or none.
//
//   kStates (kWindow, end, operation)   each open window; end 0: it is being ended
//           (kKept, operation, dataset) what it keeps
//   a big prefix                        waits as its detached directory (OperationRecord)
//
// A window ends when its time has come, and early where space is short: the oldest first, and only
// as many as it takes besides what reclaim gives back already. Ending goes in bites; with the first
// the operation leaves kWaiting, so an Undestroy comes before all of it or after.
//
// Threads     Step: one thread at a time. Tasks: txg thread.
#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "engine/txg.h"

namespace cowshed::engine {

class WindowKeeper {
 public:
  WindowKeeper(PoolParts& parts, TxgManager& txgs) : parts_(parts), txgs_(txgs) {}
  absl::StatusOr<bool> Step();

 private:
  struct Window {
    OperationId operation{};
    WindowEnd end = WindowEnd::kExpired;
  };
  absl::StatusOr<std::optional<Window>> Choose();
  bool SpaceIsShort() const;

  PoolParts& parts_;
  TxgManager& txgs_;
};

// When the next window ends by itself, in unix milliseconds; 0: there is none.
absl::StatusOr<int64_t> NextWindowEndMs(const MetaTxn& txn);

}  // namespace cowshed::engine

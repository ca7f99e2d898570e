// SPDX-License-Identifier: Apache-2.0
//
// The background work that is not reclaim: trims and long deadlist tails in bites, dead logs
// dropped when there is time, the free log drained while idle, expiry, and old replies and
// operations forgotten. Each is a step in the sense of background_task.h: bounded, resumable, true
// if there is more.
//
// Threads     One thread at a time per object.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/mutex.h"
#include "engine/txg.h"

namespace cowshed::engine {

// Trims and deadlist tails, as kStates lists them.
class Trimmer {
 public:
  Trimmer(PoolParts& parts, TxgManager& txgs) : parts_(parts), txgs_(txgs) {}
  absl::StatusOr<bool> Step();

 private:
  PoolParts& parts_;
  TxgManager& txgs_;
};

// Dead logs, the free log, old replies and operations, and the sample of the longest livelist.
class Housekeeper {
 public:
  Housekeeper(PoolParts& parts, TxgManager& txgs) : parts_(parts), txgs_(txgs) {}
  absl::StatusOr<bool> Step();

 private:
  absl::StatusOr<bool> DropLogs();
  absl::StatusOr<bool> ForgetOld();
  absl::StatusOr<bool> DrainFreeLog();
  absl::Status Sample();

  PoolParts& parts_;
  TxgManager& txgs_;
  std::chrono::steady_clock::time_point next_sample_{};
};

// Destroys datasets and releases holds whose time has come. What is blocked is tried again at every
// poll, with an alarm.
class Expirer {
 public:
  Expirer(PoolParts& parts, TxgManager& txgs) : parts_(parts), txgs_(txgs) {}
  absl::StatusOr<bool> Step();

 private:
  struct Due {
    int64_t time_ms = 0;
    uint64_t id = 0;
    std::string tag;
  };
  absl::StatusOr<std::vector<Due>> FindDue();
  // True if it could not act: something blocks.
  absl::StatusOr<bool> ExpireDataset(const Due& due);
  absl::Status ReleaseExpiredHold(const Due& due);

  PoolParts& parts_;
  TxgManager& txgs_;
};

// Returns long free runs to the host. Their sectors are withheld from the allocator until then.
// Threads     Add: any thread. Step: one thread at a time.
class Puncher {
 public:
  Puncher(PoolParts& parts, TxgManager& txgs) : parts_(parts), txgs_(txgs) {}
  void Add(std::vector<Run> runs);
  absl::StatusOr<bool> Step();

 private:
  PoolParts& parts_;
  TxgManager& txgs_;
  Mutex mutex_{LockRank::kPunchQueue};
  std::vector<Run> queue_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cowshed::engine

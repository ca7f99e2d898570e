// SPDX-License-Identifier: Apache-2.0
//
// The memory that replies on their way may take, of all NBD connections together. Who finds none
// left stops reading requests, and is woken when some comes back. A little is every connection's
// own and not counted here (Output::kAssuredBytes).
//
// Invariants  What was taken is given back exactly once.
// Threads     Thread-safe.
// Cost        One lock; a look at all that wait where some do.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "engine/base/mutex.h"
#include "service/nbd/waker.h"

namespace cowshed::service::nbd {

class Memory {
 public:
  explicit Memory(uint64_t bytes_max) : bytes_max_(bytes_max) {}

  // False if there is not enough; `waiter` is then woken once some has come back. A request larger
  // than all there is gets all, alone.
  bool Take(uint64_t size_bytes, const std::shared_ptr<Waker>& waiter) ABSL_LOCKS_EXCLUDED(mutex_) {
    const engine::MutexLock lock(mutex_);
    if (bytes_ != 0 && bytes_ + size_bytes > bytes_max_) {
      waiters_.push_back(waiter);
      return false;
    }
    bytes_ += size_bytes;
    return true;
  }

  void Give(uint64_t size_bytes) ABSL_LOCKS_EXCLUDED(mutex_) {
    if (size_bytes == 0) return;
    std::vector<std::weak_ptr<Waker>> waiters;
    {
      const engine::MutexLock lock(mutex_);
      bytes_ -= size_bytes;
      waiters.swap(waiters_);
    }
    for (const auto& waiter : waiters) {
      if (const auto waker = waiter.lock()) waker->Wake();
    }
  }

 private:
  const uint64_t bytes_max_;
  engine::Mutex mutex_{engine::LockRank::kLeaf};
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::weak_ptr<Waker>> waiters_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cowshed::service::nbd

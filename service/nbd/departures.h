// SPDX-License-Identifier: Apache-2.0
//
// Attachments of this server that have ended, counted. A client that has closed its connection
// believes that its lease is free, and tells the next one; the server may learn of it a moment
// later. So whoever is refused a lease waits that moment for a departure, and tries again.
//
// Threads     Thread-safe.
#pragma once

#include <cstdint>

#include "engine/base/mutex.h"
#include "service/nbd/waker.h"

namespace cowshed::service::nbd {

class Departures {
 public:
  uint64_t count() const ABSL_LOCKS_EXCLUDED(mutex_) {
    const engine::MutexLock lock(mutex_);
    return count_;
  }
  void Add() ABSL_LOCKS_EXCLUDED(mutex_) {
    const engine::MutexLock lock(mutex_);
    ++count_;
    changed_.NotifyAll();
  }
  // Waits until there are more than `count`; false if that took until `deadline`.
  bool WaitForMore(uint64_t count, Clock::time_point deadline) ABSL_LOCKS_EXCLUDED(mutex_) {
    const engine::MutexLock lock(mutex_);
    while (count_ <= count) {
      if (!changed_.WaitUntil(mutex_, deadline) && Clock::now() >= deadline) return count_ > count;
    }
    return true;
  }

 private:
  mutable engine::Mutex mutex_{engine::LockRank::kLeaf};
  engine::CondVar changed_;
  uint64_t count_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace cowshed::service::nbd

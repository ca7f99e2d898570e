// SPDX-License-Identifier: Apache-2.0
//
// The memory that replies on their way may take, of all NBD connections together. Who finds none
// left stops reading requests, and is woken when some comes back. A little is every connection's
// own and not counted here (Output::kAssuredBytes).
//
// Buffers     Those of large reads are kept for the next ones, a few of them: what the heap takes
//             back it gives to the system, and each page that comes again costs more than to fill
//             it.
// Invariants  What was taken is given back exactly once.
// Threads     Thread-safe.
// Cost        One lock; a look at all that wait where some do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "engine/base/mutex.h"
#include "service/nbd/waker.h"

namespace cowshed::service::nbd {

class Memory {
 public:
  static constexpr size_t kBufferBytes = 256 << 10;
  static constexpr size_t kBuffersKept = 32;
  using Bytes = std::unique_ptr<std::byte[]>;

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

  // Bytes of no value, the ones last kept if there are any.
  Bytes NewBuffer() ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      const engine::MutexLock lock(mutex_);
      if (!buffers_.empty()) {
        Bytes buffer = std::move(buffers_.back());
        buffers_.pop_back();
        return buffer;
      }
    }
    return Bytes(new std::byte[kBufferBytes]);
  }
  void KeepBuffer(Bytes buffer) ABSL_LOCKS_EXCLUDED(mutex_) {
    const engine::MutexLock lock(mutex_);
    if (buffers_.size() < kBuffersKept) buffers_.push_back(std::move(buffer));
  }

 private:
  const uint64_t bytes_max_;
  engine::Mutex mutex_{engine::LockRank::kLeaf};
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Bytes> buffers_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<Waker>> waiters_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cowshed::service::nbd

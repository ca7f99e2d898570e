// SPDX-License-Identifier: Apache-2.0
//
// A thin wrapper over std::mutex and std::condition_variable that clang's thread-safety analysis
// understands (the ABSL_ annotation macros). Plain std::mutex raises false alarms in that analysis,
// and absl::Mutex from an uninstrumented Abseil raises false races under ThreadSanitizer; this is
// clean in both. Every mutex has its place in the order of locks (lock_order.h), which debug and
// sanitizer builds check.
//
// Threads     Thread-safe.
// Ownership   MutexLock borrows the mutex for its scope.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "engine/base/lock_order.h"

namespace cowshed::engine {

class ABSL_LOCKABLE Mutex {
 public:
  explicit Mutex(LockRank rank) : order_(rank) {}
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    order_.Taking();
    mutex_.lock();
  }
  void Unlock() ABSL_UNLOCK_FUNCTION() {
    order_.Released();  // before: whom the unlock lets in may destroy this
    mutex_.unlock();
  }

 private:
  friend class CondVar;
  std::mutex mutex_;
  [[no_unique_address]] LockOrder order_;
};

// Holds a mutex from construction to the end of its scope.
class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) {
    mutex_.Lock();
  }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// A condition variable used with Mutex. Wakeups can be spurious: wait in a loop.
class CondVar {
 public:
  // Releases `mutex`, sleeps until notified, takes it again.
  void Wait(Mutex& mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    mutex.order_.Released();
    condition_.wait(lock);
    mutex.order_.Taking();
    lock.release();
  }
  // As Wait, but gives up at `deadline`; returns false then.
  bool WaitUntil(Mutex& mutex, std::chrono::steady_clock::time_point deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    // The system clock variant: ThreadSanitizer of clang 14 does not know pthread_cond_clockwait.
    const auto left = deadline - std::chrono::steady_clock::now();
    mutex.order_.Released();
    const bool notified = condition_.wait_until(lock, std::chrono::system_clock::now() + left) ==
                          std::cv_status::no_timeout;
    mutex.order_.Taking();
    lock.release();
    return notified;
  }
  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace cowshed::engine

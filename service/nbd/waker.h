// SPDX-License-Identifier: Apache-2.0
//
// How other threads reach the one that reads a connection: an eventfd that it polls beside its
// socket, and the reason for which the connection is to end.
//
// Model       Wake says: look again. End says, once: take no more requests, and go by `deadline`.
//             The first reason stays, and the earliest deadline.
// Threads     Thread-safe. Wake and End never block.
// Ownership   Shared by a connection and by whoever may have to reach it later than it lives.
#pragma once

#include <sys/eventfd.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "absl/status/status.h"
#include "engine/base/mutex.h"
#include "service/file_descriptor.h"

namespace cowshed::service::nbd {

using Clock = std::chrono::steady_clock;

class Waker {
 public:
  struct Ending {
    absl::Status why;
    Clock::time_point deadline;
  };

  Waker() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  int fd() const { return fd_.get(); }
  bool valid() const { return fd_.valid(); }
  void Wake() { eventfd_write(fd_.get(), 1); }
  // After a wake-up was seen, before looking at what it was about.
  void Clear() {
    eventfd_t count = 0;
    eventfd_read(fd_.get(), &count);
  }

  void End(const absl::Status& why, Clock::time_point deadline) ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      const engine::MutexLock lock(mutex_);
      if (!ending_) ending_ = Ending{why, deadline};
      ending_->deadline = std::min(ending_->deadline, deadline);
    }
    Wake();
  }
  std::optional<Ending> ending() const ABSL_LOCKS_EXCLUDED(mutex_) {
    const engine::MutexLock lock(mutex_);
    return ending_;
  }

 private:
  const FileDescriptor fd_;
  mutable engine::Mutex mutex_{engine::LockRank::kLeaf};
  std::optional<Ending> ending_ ABSL_GUARDED_BY(mutex_);
};

// What ended a wait. kReady also for a socket that has failed: the next call on it says so.
enum class Woken { kReady, kEnding, kTimeout };

// Waits for `events` (of poll(2)) on `fd`. Comes back early, with kEnding, for a waker that says
// End.
Woken WaitFor(int fd, short events, Waker& waker, Clock::time_point deadline);

// Milliseconds for poll(2) until `deadline`, rounded up; -1 for one that never comes.
int PollTimeout(Clock::time_point deadline);

}  // namespace cowshed::service::nbd

// SPDX-License-Identifier: Apache-2.0
//
// Who works on the pool right now: reclaim takes larger bites while nobody does, and ends windows
// early while a writer waits for space.
//
// Threads     Thread-safe; one relaxed store per call.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace cowshed::engine {

class Foreground {
 public:
  using Clock = std::chrono::steady_clock;

  void Wrote() { wrote_ns_.store(Now(), std::memory_order_relaxed); }
  void Called() {
    before_ns_.store(called_ns_.exchange(Now(), std::memory_order_relaxed),
                     std::memory_order_relaxed);
  }
  // A write lately, or a second lifecycle call: the first may be the very destroy whose space is to
  // come back.
  bool busy() const {
    const int64_t since = Now() - kLatelyNs;
    return wrote_ns_.load(std::memory_order_relaxed) > since ||
           before_ns_.load(std::memory_order_relaxed) > since;
  }

  // A writer waits for space while it holds one of these.
  class SpaceWaiter {
   public:
    explicit SpaceWaiter(Foreground& foreground) : foreground_(foreground) {
      foreground_.space_waiters_.fetch_add(1);
    }
    ~SpaceWaiter() { foreground_.space_waiters_.fetch_sub(1); }
    SpaceWaiter(const SpaceWaiter&) = delete;
    SpaceWaiter& operator=(const SpaceWaiter&) = delete;

   private:
    Foreground& foreground_;
  };
  bool waits_for_space() const { return space_waiters_.load() > 0; }

 private:
  static constexpr int64_t kLatelyNs = 100'000'000;
  static int64_t Now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
        .count();
  }

  std::atomic<int64_t> wrote_ns_{0};
  std::atomic<int64_t> called_ns_{0};
  std::atomic<int64_t> before_ns_{0};  // the call before that one
  std::atomic<uint32_t> space_waiters_{0};
};

}  // namespace cowshed::engine

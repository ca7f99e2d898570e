// SPDX-License-Identifier: Apache-2.0
//
// Named points at which a test (or COWSHED_FAILPOINTS in the environment) makes the engine fail,
// pause or die. A point that nobody armed costs one relaxed atomic load.
//
// Grammar     NAME=ACTION[:skip=N][:count=N] joined by `;`. Actions: `error` (the point returns
//             INTERNAL), `enospc`, `eio`, `kill` (SIGKILL to ourselves), `pause` (blocks until
//             disarmed), `true` (IsTrue answers true). `skip` hits pass before the action starts;
//             after `count` actions the point is quiet again (default: for ever).
// Threads     Thread-safe.
// Ownership   One registry per process: a kill test arms a server through its environment.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace cowshed::engine {

class Failpoints {
 public:
  // Arms the points in `specification` (grammar above) beside those already armed.
  static absl::Status Arm(std::string_view specification);
  // Disarms `name` and wakes whoever is paused there; an unknown name is ignored.
  static void Disarm(std::string_view name);
  static void DisarmAll();
  // How often `name` was reached since it was armed; 0 if it is not armed.
  static uint64_t Hits(std::string_view name);

  // Reaches the point: OK unless an armed action says otherwise. May block or not return.
  static absl::Status Hit(std::string_view name) {
    return any_armed_.load(std::memory_order_relaxed) ? HitArmed(name) : absl::OkStatus();
  }
  // Whether `name` is armed with `true` now: for points that change a rule instead of failing.
  static bool IsTrue(std::string_view name) {
    return any_armed_.load(std::memory_order_relaxed) && IsTrueArmed(name);
  }

 private:
  static absl::Status HitArmed(std::string_view name);
  static bool IsTrueArmed(std::string_view name);
  static std::atomic<bool> any_armed_;
};

}  // namespace cowshed::engine

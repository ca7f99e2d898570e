// SPDX-License-Identifier: Apache-2.0
//
// A pool as the measuring programs use it: calls wait for their outcome, and an error ends the
// program with a message, for a measurement that went wrong is none.
//
// Threads     One thread uses it; the pool works in its own.
// Ownership   Owns the pool. Volumes must go first.
#pragma once

#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/pool.h"

namespace cowshed::bench {

// Prints `what` failed with `status` and ends the program, unless the status is OK.
void Must(const absl::Status& status, std::string_view what);
template <typename T>
T Must(absl::StatusOr<T> result, std::string_view what) {
  Must(result.status(), what);
  return *std::move(result);
}

// A callback and the wait for it.
template <typename T>
class Reply {
 public:
  absl::AnyInvocable<void(T)> Callback() {
    return [promise = promise_](T value) { promise->set_value(std::move(value)); };
  }
  T Wait() { return promise_->get_future().get(); }

 private:
  std::shared_ptr<std::promise<T>> promise_ = std::make_shared<std::promise<T>>();
};

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
  }

 private:
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

class BenchPool {
 public:
  explicit BenchPool(const engine::PoolOptions& options);
  engine::Pool* operator->() { return pool_.get(); }

  void Create(const std::string& name, uint64_t size_bytes, uint32_t block_bytes);
  void Snapshot(const std::string& name);  // "dataset@snap"
  void Clone(const std::string& source, const std::string& name);
  // Returns with the reply of the call: what was held may not be free yet.
  engine::Outcome Destroy(const std::string& name);
  // What Destroy would do.
  engine::DestroyPlan PlanOfDestroy(const std::string& name);
  // Until nothing waits for reclaim and no freed sector waits to become free again.
  void WaitFree();
  // WaitFree, and all other background work is done too.
  void Drain();
  void Sync();
  std::shared_ptr<engine::Volume> Open(const std::string& name);
  static void Flush(engine::Volume& volume);

 private:
  template <typename Args>
  engine::Outcome Call(void (engine::Pool::*verb)(Args, engine::Idempotency,
                                                  engine::OutcomeCallback),
                       Args args, std::string_view what);

  std::unique_ptr<engine::Pool> pool_;
};

// Bytes that this process caused to be written to storage so far (/proc/self/io write_bytes).
uint64_t StorageWrittenBytes();
// Anonymous memory of this process: what it allocated, not what it mapped (RssAnon).
uint64_t AnonymousBytes();

}  // namespace cowshed::bench

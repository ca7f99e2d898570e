// SPDX-License-Identifier: Apache-2.0
//
// Turns a callback into something a test can wait for:
//
//   Await<absl::StatusOr<Txg>> flushed;
//   volume.Flush(flushed.Callback());
//   ASSERT_OK(flushed.Wait());
//
// Threads     One thread waits; the callback may come from any, once.
// Ownership   Waiter and callback share the state, so an abandoned Await is harmless.
#pragma once

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "engine/base/mutex.h"

namespace cowshed::engine {

template <typename T>
class Await {
 public:
  absl::AnyInvocable<void(T)> Callback() {
    return [state = state_](T value) {
      const MutexLock lock(state->mutex);
      state->value.emplace(std::move(value));
      state->called.NotifyAll();
    };
  }
  bool Ready() const {
    const MutexLock lock(state_->mutex);
    return state_->value.has_value();
  }
  // The value; a callback that does not come within two minutes ends the process.
  T Wait() {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    const MutexLock lock(state_->mutex);
    while (!state_->value.has_value()) {
      if (!state_->called.WaitUntil(state_->mutex, deadline) &&
          std::chrono::steady_clock::now() >= deadline) {
        std::cerr << "a callback did not come within two minutes\n";
        std::abort();
      }
    }
    return *std::move(state_->value);
  }

 private:
  struct State {
    Mutex mutex{LockRank::kLeaf};
    CondVar called;
    std::optional<T> value ABSL_GUARDED_BY(mutex);
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace cowshed::engine

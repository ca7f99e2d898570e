// SPDX-License-Identifier: Apache-2.0
//
// A background job of the pool: step() does a bounded piece of work and says whether there is more.
// Its progress lies in the metadata store, so a crash, a stop and a pause are all the same to it.
//
// Threads     One thread per task; Wake and Stop from any thread.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "engine/base/mutex.h"

namespace cowshed::engine {

class BackgroundTask {
 public:
  // True: there is more to do now.
  using Step = std::function<absl::StatusOr<bool>()>;
  // Runs when woken and every `interval`. After an error it waits for the next interval.
  BackgroundTask(std::chrono::milliseconds interval, Step step);
  ~BackgroundTask();  // Stop()

  void Start();
  void Stop();
  void Wake();
  // Runs steps on the caller's thread until there is nothing to do; excludes the task's own thread.
  absl::Status Drain();

 private:
  void Loop();
  absl::StatusOr<bool> RunStep();

  const std::chrono::milliseconds interval_;
  const Step step_;
  std::thread thread_;
  Mutex step_mutex_{LockRank::kTaskStep};  // one step at a time
  Mutex mutex_{LockRank::kTaskState};
  CondVar changed_;
  bool woken_ ABSL_GUARDED_BY(mutex_) = true;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace cowshed::engine

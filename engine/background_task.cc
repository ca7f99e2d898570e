// SPDX-License-Identifier: Apache-2.0
#include "engine/background_task.h"

#include <utility>

#include "engine/base/status_macros.h"

namespace cowshed::engine {

BackgroundTask::BackgroundTask(std::chrono::milliseconds interval, Step step)
    : interval_(interval), step_(std::move(step)) {}

BackgroundTask::~BackgroundTask() { Stop(); }

void BackgroundTask::Start() {
  thread_ = std::thread([this] { Loop(); });
}

void BackgroundTask::Stop() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void BackgroundTask::Wake() {
  const MutexLock lock(mutex_);
  woken_ = true;
  changed_.NotifyAll();
}

absl::StatusOr<bool> BackgroundTask::RunStep() {
  const MutexLock lock(step_mutex_);
  return step_();
}

absl::Status BackgroundTask::Drain() {
  while (true) {
    ASSIGN_OR_RETURN(const bool more, RunStep());
    if (!more) return absl::OkStatus();
  }
}

void BackgroundTask::Loop() {
  while (true) {
    {
      const MutexLock lock(mutex_);
      const auto deadline = std::chrono::steady_clock::now() + interval_;
      while (!woken_ && !stopping_ && changed_.WaitUntil(mutex_, deadline)) {
      }
      if (stopping_) return;
      woken_ = false;
    }
    const absl::StatusOr<bool> more = RunStep();
    if (more.ok() && *more) Wake();
  }
}

}  // namespace cowshed::engine

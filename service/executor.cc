// SPDX-License-Identifier: Apache-2.0
#include "service/executor.h"

#include <utility>

#include "engine/base/check.h"

namespace cowshed::service {

Executor::Executor(size_t workers, size_t queue_max, metrics::ServiceStats& stats)
    : queue_max_(queue_max), stats_(stats) {
  workers_.reserve(workers);
  for (size_t i = 0; i < workers; ++i) workers_.emplace_back([this] { Work(); });
}

bool Executor::TrySubmit(Task task) {
  engine::MutexLock lock(mutex_);
  if (stopped_ || queue_.size() >= queue_max_) {
    stats_.executor_rejected.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  Push(std::move(task));
  return true;
}

void Executor::Submit(Task task) {
  engine::MutexLock lock(mutex_);
  COWSHED_CHECK(!stopped_, "nothing is submitted once all calls have ended");
  Push(std::move(task));
}

bool Executor::SubmitUnlessStopped(Task& task) {
  engine::MutexLock lock(mutex_);
  if (!stopped_) Push(std::move(task));
  return !stopped_;
}

void Executor::Push(Task task) {
  queue_.push_back(std::move(task));
  stats_.executor_queue_length.fetch_add(1, std::memory_order_relaxed);
  wake_.NotifyOne();
}

void Executor::Stop() {
  {
    engine::MutexLock lock(mutex_);
    stopped_ = true;
    wake_.NotifyAll();
  }
  for (std::thread& worker : workers_) worker.join();
  workers_.clear();
}

void Executor::Work() {
  while (true) {
    Task task;
    {
      engine::MutexLock lock(mutex_);
      while (queue_.empty() && !stopped_) wake_.Wait(mutex_);
      if (queue_.empty()) return;
      task = std::move(queue_.front());
      queue_.pop_front();
    }
    stats_.executor_queue_length.fetch_sub(1, std::memory_order_relaxed);
    task();
  }
}

}  // namespace cowshed::service

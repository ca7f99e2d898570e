// SPDX-License-Identifier: Apache-2.0
//
// A queue of tasks and the workers that run them: where the service does everything that may take a
// lock, touch the metadata or wait for memory, so that gRPC's own threads never do.
//
// Model       First in, first out. TrySubmit is for work that a client asks for: it is refused once
//             `queue_max` tasks wait, and the client told to come back. Submit is for work whose
//             number is bounded elsewhere (one step per open stream, one look at all waits).
//             The server has two: bytes and everything else. Writers that wait for space then never
//             keep a query from running.
// Invariants  Every task taken is run exactly once, before Stop returns.
// Threads     Thread-safe. Tasks may submit tasks.
// Cost        One lock and one wake per task.
#pragma once

#include <cstddef>
#include <deque>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "engine/base/mutex.h"
#include "metrics/service_stats.h"

namespace cowshed::service {

class Executor {
 public:
  using Task = absl::AnyInvocable<void()>;

  // Counts waiting and refused tasks in `stats`.
  Executor(size_t workers, size_t queue_max, metrics::ServiceStats& stats);
  ~Executor() { Stop(); }
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Queues `task`, or returns false when the queue is full or stopped.
  bool TrySubmit(Task task) ABSL_LOCKS_EXCLUDED(mutex_);
  // Queues `task` whatever the length of the queue. REQUIRES: not stopped.
  void Submit(Task task) ABSL_LOCKS_EXCLUDED(mutex_);
  // As above; false, and the task is left to the caller, once the executor is stopped.
  bool SubmitUnlessStopped(Task& task) ABSL_LOCKS_EXCLUDED(mutex_);
  // Runs what is queued, then ends the workers. Idempotent.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Push(Task task) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Work() ABSL_LOCKS_EXCLUDED(mutex_);

  const size_t queue_max_;
  metrics::ServiceStats& stats_;
  engine::Mutex mutex_{engine::LockRank::kExecutor};
  engine::CondVar wake_;
  std::deque<Task> queue_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> workers_;
};

}  // namespace cowshed::service

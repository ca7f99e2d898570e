// SPDX-License-Identifier: Apache-2.0
//
// The WaitOperations calls that are under way. The pool tells of the next change of any operation;
// then all waits look again. Nobody polls.
//
// Model       While there are waits, one callback is registered with the pool, always before the
//             waits look: a change during a look leads to another one. Looks are tasks of the
//             control workers and coalesce: at most one is queued. Each wait has a timer; when it
//             fires, when the client cancels, or when the server stops, it is answered as things
//             stand.
// Limits      So many waits, and so many operations of all of them, at a time: a change looks them
// all
//             up. Past that TOO_MANY_WAITS; a look at once takes its turn in the queue as a query.
// Threads     Thread-safe. A wait is answered once, under its own lock.
// Ownership   Shared by the waits and the pool's callback: it may outlive the service, not the
// pool. Cost        A change costs one lookup per operation that is waited for and not yet
// finished.
#pragma once

#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cowshed/v1/operation.pb.h"
#include "engine/base/mutex.h"
#include "grpcpp/alarm.h"
#include "grpcpp/support/server_callback.h"
#include "service/context.h"

namespace cowshed::service {

class OperationWaits;

// One WaitOperations call. Owns itself until OnDone; OperationWaits shares it until it is answered.
class OperationWait final : public grpc::ServerUnaryReactor,
                            public std::enable_shared_from_this<OperationWait> {
 public:
  OperationWait(std::shared_ptr<OperationWaits> waits, ServiceContext& context, Caller caller,
                const v1::WaitOperationsRequest& request, v1::WaitOperationsResponse* reply);

  // Begins to wait, or answers what is wrong with the request.
  void Start(const absl::Status& admitted);
  // Answers if what is waited for has come true, or anyway if `now_or_never`.
  void Look(bool now_or_never) ABSL_LOCKS_EXCLUDED(mutex_);

  size_t name_count() const { return names_.size(); }

  void OnCancel() override;
  void OnDone() override;

 private:
  void TimeIsUp() ABSL_LOCKS_EXCLUDED(mutex_);
  // Fills the reply: all operations as they stand; whether the wait is over.
  absl::StatusOr<bool> FillReply() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Answer(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<OperationWaits> waits_;
  absl::StatusOr<engine::OperationInfo> See(const std::string& name) const;

  ServiceContext& context_;
  const Caller caller_;
  const std::vector<std::string> names_;
  const bool any_;
  const std::chrono::milliseconds timeout_;
  std::shared_ptr<OperationWait> self_;
  engine::Mutex mutex_{engine::LockRank::kCall};
  v1::WaitOperationsResponse* const reply_ ABSL_PT_GUARDED_BY(mutex_);
  std::set<std::string> unfinished_ ABSL_GUARDED_BY(mutex_);
  bool answered_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Alarm timer_;
};

class OperationWaits : public std::enable_shared_from_this<OperationWaits> {
 public:
  explicit OperationWaits(ServiceContext& context) : context_(context) {}

  // Takes part in looks from now on. False once stopped; RESOURCE_EXHAUSTED TOO_MANY_WAITS.
  absl::StatusOr<bool> Add(const std::shared_ptr<OperationWait>& wait) ABSL_LOCKS_EXCLUDED(mutex_);
  void Remove(const std::shared_ptr<OperationWait>& wait) ABSL_LOCKS_EXCLUDED(mutex_);
  // Answers all waits as things stand, and every later one.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Something changed; called on the txg thread.
  void Changed() ABSL_LOCKS_EXCLUDED(mutex_);
  void LookAll() ABSL_LOCKS_EXCLUDED(mutex_);
  // Registers with the pool if nothing is registered.
  void Listen() ABSL_LOCKS_EXCLUDED(mutex_);

  ServiceContext& context_;
  engine::Mutex mutex_{engine::LockRank::kWaits};
  std::set<std::shared_ptr<OperationWait>> waits_ ABSL_GUARDED_BY(mutex_);
  size_t waited_names_ ABSL_GUARDED_BY(mutex_) = 0;  // of all of them
  bool listening_ ABSL_GUARDED_BY(mutex_) = false;
  bool look_queued_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace cowshed::service

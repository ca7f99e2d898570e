// SPDX-License-Identifier: Apache-2.0
#include "service/operation_waits.h"

#include <algorithm>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "service/convert.h"
#include "service/redact.h"
#include "service/visible.h"

namespace cowshed::service {
namespace {

constexpr int kMaxNames = 1000;

std::chrono::milliseconds TimeoutOf(const v1::WaitOperationsRequest& request) {
  const int64_t seconds = std::clamp<int64_t>(request.timeout().seconds(), 0, kMaxWaitSeconds);
  const int64_t ms = seconds * 1000 + request.timeout().nanos() / 1000000;
  return std::chrono::milliseconds(std::clamp<int64_t>(ms, 0, int64_t{kMaxWaitSeconds} * 1000));
}

absl::Status TooManyWaits(size_t limit, std::string_view what) {
  return Error(absl::StatusCode::kResourceExhausted, v1::TOO_MANY_WAITS,
               engine::StrCat(limit, " ", what, " at a time, which is the limit"),
               {{"limit", std::to_string(limit)}});
}

absl::Status Validate(const std::vector<std::string>& names) {
  if (names.empty()) return InvalidField("names", "is empty");
  if (names.size() <= kMaxNames) return absl::OkStatus();
  return Error(absl::StatusCode::kInvalidArgument, v1::TOO_MANY_NAMES,
               engine::StrCat(names.size(), " names in one call, at most ", kMaxNames),
               {{"limit", std::to_string(kMaxNames)}});
}

}  // namespace

// --- one wait ---

OperationWait::OperationWait(std::shared_ptr<OperationWaits> waits, ServiceContext& context,
                             Caller caller, const v1::WaitOperationsRequest& request,
                             v1::WaitOperationsResponse* reply)
    : waits_(std::move(waits)),
      context_(context),
      caller_(std::move(caller)),
      names_(request.names().begin(), request.names().end()),
      any_(request.mode() == v1::WAIT_MODE_ANY),
      timeout_(TimeoutOf(request)),
      reply_(reply),
      unfinished_(names_.begin(), names_.end()) {}

void OperationWait::Start(const absl::Status& admitted) {
  self_ = shared_from_this();
  absl::Status status = admitted;
  if (status.ok()) status = Validate(names_);
  bool waits = timeout_.count() > 0;
  if (status.ok() && waits) {
    const auto added = waits_->Add(self_);
    status = added.status();
    waits = added.value_or(false);
  }
  if (status.ok() && !waits) {
    if (context_.control.TrySubmit([self = self_] { self->Look(/*now_or_never=*/true); })) return;
    status = Busy();
  }
  if (!status.ok()) {
    engine::MutexLock lock(mutex_);
    return Answer(status);
  }
  {
    // The timer, a part of this call, keeps its callback: a strong reference would be a cycle.
    timer_.Set(std::chrono::system_clock::now() + timeout_, [weak = weak_from_this()](bool fired) {
      const auto self = fired ? weak.lock() : nullptr;
      if (self != nullptr) self->TimeIsUp();
    });
  }
  context_.control.Submit([self = self_] { self->Look(/*now_or_never=*/false); });
}

void OperationWait::TimeIsUp() {
  engine::MutexLock lock(mutex_);
  // While the call is not answered the server is there, and its workers with it.
  if (answered_) return;
  context_.control.Submit([self = shared_from_this()] { self->Look(/*now_or_never=*/true); });
}

void OperationWait::Look(bool now_or_never) {
  engine::MutexLock lock(mutex_);
  if (answered_) return;
  bool over = now_or_never;
  for (auto name = unfinished_.begin(); name != unfinished_.end() && !over;) {
    const auto operation = See(*name);
    if (!operation.ok()) return Answer(operation.status());
    if (operation->done()) {
      name = unfinished_.erase(name);
      over = any_;
    } else {
      ++name;
    }
  }
  if (!over && !unfinished_.empty()) return;
  const auto done = FillReply();
  if (done.ok()) reply_->set_done(*done);
  Answer(done.status());
}

absl::StatusOr<engine::OperationInfo> OperationWait::See(const std::string& name) const {
  return SeeOperation(context_.pool, *caller_.rights, RuleOf<v1::WaitOperationsRequest>(), name,
                      READER);
}

absl::StatusOr<bool> OperationWait::FillReply() {
  size_t finished = 0;
  for (const auto& name : names_) {
    ASSIGN_OR_RETURN(const auto operation, See(name));
    Fill(operation, reply_->add_operations());
    if (operation.done()) ++finished;
  }
  return any_ ? finished > 0 : finished == names_.size();
}

void OperationWait::Answer(const absl::Status& status) {
  if (answered_) return;
  answered_ = true;
  if (!status.ok()) reply_->Clear();
  context_.Audit(caller_, RuleOf<v1::WaitOperationsRequest>(), status, nullptr, nullptr);
  Redact(*caller_.rights, reply_);
  Finish(context_.ToGrpc(Redacted(*caller_.rights, status)));
}

void OperationWait::OnCancel() {
  engine::MutexLock lock(mutex_);
  Answer(absl::CancelledError());
}

void OperationWait::OnDone() {
  timer_.Cancel();
  waits_->Remove(self_);
  const auto self = std::move(self_);  // the last reference, unless a worker has one
}

// --- all waits ---

absl::StatusOr<bool> OperationWaits::Add(const std::shared_ptr<OperationWait>& wait) {
  {
    engine::MutexLock lock(mutex_);
    if (stopped_) return false;
    const Limits& limits = context_.limits;
    if (waits_.size() >= limits.waits_max) {
      return TooManyWaits(limits.waits_max, "calls wait for operations");
    }
    if (waited_names_ + wait->name_count() > limits.waited_names_max) {
      return TooManyWaits(limits.waited_names_max, "operations are waited for");
    }
    waits_.insert(wait);
    waited_names_ += wait->name_count();
  }
  Listen();
  return true;
}

void OperationWaits::Remove(const std::shared_ptr<OperationWait>& wait) {
  engine::MutexLock lock(mutex_);
  if (waits_.erase(wait) > 0) waited_names_ -= wait->name_count();
}

void OperationWaits::Stop() {
  std::set<std::shared_ptr<OperationWait>> waits;
  {
    engine::MutexLock lock(mutex_);
    stopped_ = true;
    waits = waits_;
  }
  for (const auto& wait : waits) wait->Look(/*now_or_never=*/true);
}

void OperationWaits::Listen() {
  {
    engine::MutexLock lock(mutex_);
    if (listening_ || stopped_) return;
    listening_ = true;
  }
  context_.pool.OnOperationsChanged([self = shared_from_this()] { self->Changed(); });
}

void OperationWaits::Changed() {
  engine::MutexLock lock(mutex_);
  listening_ = false;
  if (stopped_ || look_queued_ || waits_.empty()) return;
  look_queued_ = true;
  context_.control.Submit([self = shared_from_this()] { self->LookAll(); });
}

void OperationWaits::LookAll() {
  Listen();
  std::set<std::shared_ptr<OperationWait>> waits;
  {
    engine::MutexLock lock(mutex_);
    look_queued_ = false;
    waits = waits_;
  }
  for (const auto& wait : waits) wait->Look(/*now_or_never=*/false);
}

}  // namespace cowshed::service

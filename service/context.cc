// SPDX-License-Identifier: Apache-2.0
#include "service/context.h"

#include <utility>

#include "service/digest.h"
#include "service/parse.h"

namespace cowshed::service {

void Callbacks::Add(int count) {
  engine::MutexLock lock(mutex_);
  count_ += count;
  if (count_ == 0) none_.NotifyAll();
}

int Callbacks::count() const {
  engine::MutexLock lock(mutex_);
  return count_;
}

void Callbacks::WaitForNone() {
  engine::MutexLock lock(mutex_);
  while (count_ > 0) none_.Wait(mutex_);
}

ServiceContext::ServiceContext(engine::Pool& the_pool, const Limits& the_limits,
                               Access::Roles roles, metrics::ServiceStats& stats)
    : pool(the_pool),
      limits(the_limits),
      boot_id(RandomHex(16)),
      start_time_ms(NowMs()),
      access(std::move(roles)),
      tokens(the_pool.uid()),
      streams(the_limits.streams_max, stats),
      request_memory(the_limits.request_memory_bytes),
      control(the_limits.control_workers, the_limits.queue_max, stats),
      data(the_limits.data_workers, the_limits.data_queue_max, stats) {}

absl::Status ServiceContext::CheckBootId(const std::string& expected) const {
  if (expected.empty() || expected == boot_id) return absl::OkStatus();
  return Error(absl::StatusCode::kAborted, v1::SERVER_RESTARTED,
               "the server was restarted: writes that were not flushed may be lost",
               {{"boot_id", boot_id}});
}

absl::Status Stopping() {
  return Error(absl::StatusCode::kUnavailable, v1::SERVER_STOPPING, "the server is stopping");
}

}  // namespace cowshed::service

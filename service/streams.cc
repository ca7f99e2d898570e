// SPDX-License-Identifier: Apache-2.0
#include "service/streams.h"

#include "engine/base/strings.h"
#include "service/status.h"

namespace cowshed::service {

absl::Status StreamRegistry::Add(OpenStream* stream) {
  engine::MutexLock lock(mutex_);
  if (!ended_.ok()) return ended_;
  if (streams_.size() >= streams_max_) {
    return Error(absl::StatusCode::kResourceExhausted, v1::TOO_MANY_STREAMS,
                 engine::StrCat(streams_max_, " data streams are open, which is the limit"),
                 {{"limit", std::to_string(streams_max_)}});
  }
  streams_.insert(stream);
  stats_.data_streams.fetch_add(1, std::memory_order_relaxed);
  return absl::OkStatus();
}

void StreamRegistry::Remove(OpenStream* stream) {
  engine::MutexLock lock(mutex_);
  if (streams_.erase(stream) > 0) stats_.data_streams.fetch_sub(1, std::memory_order_relaxed);
}

void StreamRegistry::EndAll(const absl::Status& status) {
  engine::MutexLock lock(mutex_);
  ended_ = status;
  for (OpenStream* stream : streams_) stream->End(status);
}

void StreamRegistry::CutStalled(std::chrono::steady_clock::time_point now) {
  engine::MutexLock lock(mutex_);
  for (OpenStream* stream : streams_) stream->CutIfStalled(now);
}

}  // namespace cowshed::service

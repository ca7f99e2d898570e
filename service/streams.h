// SPDX-License-Identifier: Apache-2.0
//
// The open data streams (Read, Write, Diff) of the server: how many there may be, and how they are
// ended from outside, when the server stops or when a client no longer takes what it asked for.
//
// Threads     Thread-safe. A stream's methods are called with the registry's lock held, which keeps
//             the stream alive: they must not call the registry.
// Ownership   Borrows the streams: each removes itself before it goes.
// Cost        Add and Remove O(log streams); CutStalled looks at every open stream.
#pragma once

#include <chrono>
#include <cstddef>
#include <set>

#include "absl/status/status.h"
#include "engine/base/mutex.h"
#include "metrics/service_stats.h"

namespace cowshed::service {

class OpenStream {
 public:
  virtual ~OpenStream() = default;
  // Ends the stream with `status`, now. Does nothing if it has ended.
  virtual void End(const absl::Status& status) = 0;
  // Ends the stream if its client has taken nothing, or sent nothing, for too long.
  virtual void CutIfStalled(std::chrono::steady_clock::time_point now) = 0;
};

class StreamRegistry {
 public:
  StreamRegistry(size_t streams_max, metrics::ServiceStats& stats)
      : streams_max_(streams_max), stats_(stats) {}

  // RESOURCE_EXHAUSTED TOO_MANY_STREAMS past the limit, UNAVAILABLE once ended.
  absl::Status Add(OpenStream* stream) ABSL_LOCKS_EXCLUDED(mutex_);
  void Remove(OpenStream* stream) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends all open streams, and refuses new ones from now on.
  void EndAll(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  void CutStalled(std::chrono::steady_clock::time_point now) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  const size_t streams_max_;
  metrics::ServiceStats& stats_;
  engine::Mutex mutex_{engine::LockRank::kStreams};
  std::set<OpenStream*> streams_ ABSL_GUARDED_BY(mutex_);
  absl::Status ended_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cowshed::service

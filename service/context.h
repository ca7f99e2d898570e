// SPDX-License-Identifier: Apache-2.0
//
// What every service of one server shares: the pool, the workers, the tokens, the open streams, and
// who the server is. Services hold a reference; the server owns it.
//
// Invariants  Whatever is given to the pool to call back goes through Counted: the server waits for
//             all of it before it goes. It may run on the txg thread, so it answers, which never
//             blocks, and does nothing else.
// Threads     Thread-safe: every member is, or is const.
// Ownership   Borrows the pool and the counters, which outlive it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/pool.h"
#include "metrics/service_stats.h"
#include "service/access.h"
#include "service/audit.h"
#include "service/executor.h"
#include "service/status.h"
#include "service/streams.h"
#include "service/tokens.h"

namespace cowshed::service {

inline constexpr uint64_t kMaxChunkBytes = 1 << 20;
inline constexpr uint64_t kAckIntervalBytes = 8 << 20;
inline constexpr uint32_t kMaxWaitSeconds = 60;
// A request of 10,000 names with as many etags fits.
inline constexpr uint64_t kMaxRequestBytes = 8 << 20;
// Answering this many one after another costs the txg thread less than handing them over.
inline constexpr int kFewCallbacks = 4;

// Knobs of the service; see `cowshed serve --help`.
struct Limits {
  size_t control_workers = 8;   // lifecycle calls and queries: short, mostly cached reads
  size_t data_workers = 32;     // byte calls: they may wait for the disk, or for space
  size_t queue_max = 1024;      // calls that wait for a control worker: small messages
  size_t data_queue_max = 256;  // calls that wait for a data worker: up to 1 MiB of memory each
  size_t streams_max = 64;      // open Read, Write and Diff streams
  size_t connections_max = 4096;
  size_t lifecycle_max = 8192;      // lifecycle calls that the pool has not answered
  size_t waits_max = 4096;          // open calls of WaitOperations
  size_t waited_names_max = 65536;  // operations they wait for: each is looked up at a change
  size_t request_memory_bytes = size_t{256} << 20;  // of requests under way, the small ones aside
  size_t rpc_memory_bytes = size_t{512} << 20;      // of the library, for all connections
  size_t nbd_connections_max = 256;                 // each has a thread
  size_t nbd_workers = 32;                          // for requests of NBD that wait for the disk
  uint32_t nbd_requests_max = 128;                  // of one NBD connection that are not answered
  size_t nbd_memory_bytes = size_t{256} << 20;      // of their replies, of all connections
  std::chrono::milliseconds idle_timeout{300000};   // a Write whose client sends nothing is cut
  std::chrono::milliseconds handshake_timeout{20000};  // for a new connection to become one
  std::chrono::milliseconds connection_idle{1800000};  // without a call: closed, as HTTP/2 does
  std::chrono::milliseconds stall_timeout{60000};  // a client that takes nothing that long is cut
  std::chrono::milliseconds stall_grace{10000};    // to take the answer that says so
  std::chrono::milliseconds drain_timeout{5000};   // for calls under way when the server stops
};

// Counts callbacks that the pool has not called yet.
class Callbacks {
 public:
  void Add(int count) ABSL_LOCKS_EXCLUDED(mutex_);
  int count() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Blocks until there is none.
  void WaitForNone() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  mutable engine::Mutex mutex_{engine::LockRank::kCallbacks};
  engine::CondVar none_;
  int count_ ABSL_GUARDED_BY(mutex_) = 0;
};

// One callback in the pool's hands: counted from construction to destruction.
class Ticket {
 public:
  explicit Ticket(Callbacks& callbacks) : callbacks_(&callbacks) { callbacks.Add(1); }
  Ticket(Ticket&& other) noexcept : callbacks_(std::exchange(other.callbacks_, nullptr)) {}
  Ticket& operator=(Ticket&&) = delete;
  ~Ticket() {
    if (callbacks_ != nullptr) callbacks_->Add(-1);
  }

 private:
  Callbacks* callbacks_;
};

// The memory of requests that are under way and larger than kSmallRequestBytes; how many there may
// be of the small ones follows from the queues.
class RequestMemory {
 public:
  static constexpr size_t kSmallRequestBytes = 4096;

  explicit RequestMemory(size_t bytes_max) : bytes_max_(bytes_max) {}
  // Takes part of it, until the last copy of what it returns has gone; null if there is not enough.
  // REQUIRES: the memory outlives that.
  std::shared_ptr<const void> Take(size_t size_bytes) {
    if (bytes_.fetch_add(size_bytes) + size_bytes > bytes_max_) {
      bytes_ -= size_bytes;
      return nullptr;
    }
    return {this, [this, size_bytes](const void*) { bytes_ -= size_bytes; }};
  }

 private:
  const size_t bytes_max_;
  std::atomic<size_t> bytes_{0};
};

struct ServiceContext {
  // Empty `secret`: one for this start. `audit_log` may be null.
  ServiceContext(engine::Pool& the_pool, const Limits& the_limits, bool certificates, Policy policy,
                 const std::string& secret, std::unique_ptr<AuditLog> audit_log,
                 metrics::ServiceStats& stats);

  engine::Pool& pool;
  metrics::ServiceStats& stats;
  const Limits limits;
  const std::string boot_id;
  const int64_t start_time_ms;
  Access access;
  Tokens tokens;
  const std::unique_ptr<AuditLog> audit_log;
  std::vector<std::string> nbd_addresses;  // where NBD is served; set before any call comes
  StreamRegistry streams;
  std::atomic<bool> stopping{false};
  Callbacks callbacks;
  RequestMemory request_memory;
  Executor control;
  Executor data;

  grpc::Status ToGrpc(const absl::Status& status) { return service::ToGrpc(status, tokens); }
  // Wraps `task` as a callback for the pool. One of a few is run at once; of many, workers run them
  // while the txg thread goes on.
  template <typename Task>
  auto Counted(Task task) {
    return [ticket = Ticket(callbacks), this, task = std::move(task)](auto argument) mutable {
      if (callbacks.count() <= kFewCallbacks) return task(std::move(argument));
      Executor::Task later = [ticket = std::move(ticket), task = std::move(task),
                              argument = std::move(argument)]() mutable {
        task(std::move(argument));
      };
      if (!control.SubmitUnlessStopped(later)) later();
    };
  }
  // Leaves a line in the audit log if the call changes something or was refused for want of rights;
  // counts the refusals. Once per call, before it is answered.
  void Audit(const Caller& caller, const MethodRule& rule, const absl::Status& status,
             const google::protobuf::Message* request, const google::protobuf::Message* reply,
             bool replayed = false);
  // ABORTED SERVER_RESTARTED if `expected` is the boot_id of another start; empty: any.
  absl::Status CheckBootId(const std::string& expected) const;
};

// UNAVAILABLE SERVER_STOPPING.
absl::Status Stopping();
// RESOURCE_EXHAUSTED SERVER_BUSY: no room in a queue, or for another request.
absl::Status Busy();

}  // namespace cowshed::service

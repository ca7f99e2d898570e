// SPDX-License-Identifier: Apache-2.0
//
// The audit log: one JSON line for every call that changes something, done or not, and for every
// call that was refused for want of rights.
//
// Model       A line is made before the call is answered and written by a thread of the log's own,
//             so that no call waits for a disk; Close writes what is left. Past `kQueueLines` that
//             wait, the oldest are given up and counted: a log that cannot be written never stops
//             the service. Files are rotated by size: PATH, PATH.1, and so on, the oldest goes.
// Invariants  A call leaves exactly one line. No line holds bytes of a dataset, a token or a key.
// Threads     Write from any thread; it never blocks on the file.
// Cost        One line formatted, one lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "metrics/service_stats.h"

namespace spdlog {
class logger;
namespace details {
class thread_pool;
}
}  // namespace spdlog

namespace cowshed::service {

struct AuditRecord {
  std::string who;     // Caller::name
  std::string peer;    // Caller::peer
  std::string method;  // "CreateDataset"
  std::vector<std::string> names;
  std::string request_id;
  std::string code;    // "OK", or a status code
  std::string reason;  // ErrorReason of a failure
  uint64_t txg = 0;    // 0: none
  bool validate_only = false;
  bool replayed = false;  // the reply of an earlier call was given again; nothing was done
};

// As it is written, without the end of the line.
std::string AuditLine(const AuditRecord& record, int64_t unix_ms);

class AuditLog {
 public:
  static constexpr size_t kQueueLines = 8192;
  static constexpr size_t kNamesInLine = 100;  // `names_total` tells of more

  struct Options {
    std::string path;  // empty: no log
    uint64_t file_bytes = 64 << 20;
    uint32_t files = 10;  // beside the current one
  };

  // UNAVAILABLE "PATH: why" if the file can not be opened.
  static absl::StatusOr<std::unique_ptr<AuditLog>> Open(const Options& options,
                                                        metrics::ServiceStats& stats);
  ~AuditLog() { Close(); }

  void Write(const AuditRecord& record);
  // Writes what waits. Nothing may be written afterwards.
  void Close();

 private:
  explicit AuditLog(metrics::ServiceStats& stats) : stats_(stats) {}

  metrics::ServiceStats& stats_;
  std::atomic<uint64_t> overruns_{0};  // that are counted
  std::shared_ptr<spdlog::details::thread_pool> thread_;
  std::shared_ptr<spdlog::logger> logger_;
};

}  // namespace cowshed::service

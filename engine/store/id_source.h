// SPDX-License-Identifier: Apache-2.0
//
// One counter numbers datasets, snapshots, directories, logs, jobs and operations, so an id is
// unique over all kinds and over time. The pool record stores it with every txg; ids of a txg that
// failed are burnt.
//
// Threads     Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

namespace cowshed::engine {

enum class DatasetId : uint64_t {};
enum class SnapshotId : uint64_t {};
enum class DirectoryId : uint64_t {};
enum class LogId : uint64_t {};
enum class LivelistId : uint64_t {};
enum class DeadlistId : uint64_t {};
enum class JobId : uint64_t {};
enum class OperationId : uint64_t {};

class IdSource {
 public:
  void Reset(uint64_t next) { next_.store(next); }
  template <typename Id>
  Id Take() {
    return static_cast<Id>(next_.fetch_add(1));
  }
  uint64_t next() const { return next_.load(); }

 private:
  std::atomic<uint64_t> next_{1};
};

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// A small pool in a temporary directory, with calls that wait, a clock that stands still until it
// is told to move, and crashes. Every test that ends with a TempPool ends with the checker: the
// destructor drains the background, checks the pool and expects no finding.
//
// Threads     Externally synchronised; the Pool itself is thread-safe.
// Ownership   Owns the pool and its directory. Volumes must go before Reopen, Crash and the end.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/pool.h"
#include "engine/store/meta_store.h"
#include "tests/support/await.h"

namespace cowshed::engine {

class TempPool {
 public:
  using Tweak = std::function<void(PoolOptions*)>;

  // 64 MiB, small reserves, a clock at kStartMs, everything else as by default; then `tweak`.
  explicit TempPool(const Tweak& tweak = {});
  ~TempPool();
  TempPool(const TempPool&) = delete;
  TempPool& operator=(const TempPool&) = delete;

  Pool& operator*() { return *pool_; }
  Pool* operator->() { return pool_.get(); }
  const PoolOptions& options() const { return options_; }
  const std::string& directory() const { return options_.directory; }

  // Closes and opens again. The tweaks of `change` stay.
  void Reopen(const Tweak& change = {});
  // As Reopen, from a copy of what is on disk at this moment: what was accepted and not flushed may
  // be lost, whatever was committed is there.
  void Crash();
  // Closes the pool, changes its metadata behind its back, and opens it again.
  void Damage(const std::function<void(WriteTxn& txn)>& change);
  // Closes for good: the destructor checks nothing any more. For tests that leave damage behind.
  void Abandon();

  static constexpr int64_t kStartMs = 1700000000000;
  int64_t now_ms() const { return clock_->load(); }
  void Advance(int64_t ms) { clock_->fetch_add(ms); }

  // Drains the background and returns what the checker finds.
  std::vector<CheckFinding> DrainAndCheck();
  // Expects that it finds nothing.
  void ExpectClean();

  // Waits for a lifecycle call: Call(&Pool::DestroyDatasets, args).
  template <typename Args>
  absl::StatusOr<Outcome> Call(void (Pool::*verb)(Args, Idempotency, OutcomeCallback), Args args) {
    Await<absl::StatusOr<Outcome>> done;
    ((*pool_).*verb)(std::move(args), std::nullopt, done.Callback());
    return done.Wait();
  }
  absl::StatusOr<Outcome> Create(const std::string& name, uint64_t size_bytes = 1 << 20,
                                 uint32_t block_bytes = 4096);
  absl::StatusOr<Outcome> Snapshot(const std::string& name);  // "dataset@snap"
  absl::StatusOr<Outcome> Clone(const std::string& source, const std::string& name);
  absl::StatusOr<Outcome> Destroy(const std::string& name, bool recursive = false,
                                  bool cascade = false);
  absl::StatusOr<Outcome> DestroySnapshot(const std::string& name, bool defer = false);
  absl::StatusOr<Outcome> Hold(const std::string& snapshot, const std::string& tag);
  absl::StatusOr<Outcome> Release(const std::string& snapshot, const std::string& tag);
  absl::StatusOr<Outcome> Rollback(const std::string& name);  // to the newest snapshot
  absl::StatusOr<Outcome> ResetToOrigin(const std::string& name);
  absl::StatusOr<Outcome> Promote(const std::string& name);
  absl::StatusOr<Outcome> Rename(const std::string& name, const std::string& new_name);
  absl::StatusOr<Outcome> Resize(const std::string& name, uint64_t size_bytes);
  absl::StatusOr<Txg> Sync();

  absl::Status Write(const std::string& name, uint64_t offset, std::string_view data);
  absl::StatusOr<std::string> Read(const std::string& name, uint64_t offset, uint64_t length);
  absl::Status Discard(const std::string& name, uint64_t offset, uint64_t length);
  absl::StatusOr<Txg> Flush(const std::string& name);
  absl::Status MakeDurable(const std::string& name);

 private:
  void Open();

  std::shared_ptr<std::atomic<int64_t>> clock_;
  std::string root_;         // removed in the end, with all copies in it
  uint32_t generation_ = 0;  // of the copies
  PoolOptions options_;
  std::unique_ptr<Pool> pool_;
};

// Files of a test go to memory where there is enough of it: random tests sync thousands of times.
// COWSHED_TEST_ROOT names another place.
std::string FastTempRoot();

}  // namespace cowshed::engine

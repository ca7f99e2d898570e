// SPDX-License-Identifier: Apache-2.0
//
// The engine's counters: plain atomics that the engine bumps and anybody may copy. The engine never
// learns what becomes of them; metrics/ gives them names.
//
// Threads     Every member may be read at any time; only the engine writes.
// Cost        Reading is O(1): nothing here ever walks the pool.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace cowshed::engine {

using Counter = std::atomic<uint64_t>;

// A fixed-bucket histogram: bucket i counts values <= bounds[i], the last one everything above.
template <size_t N>
class Histogram {
 public:
  explicit constexpr Histogram(const std::array<double, N>& bounds) : bounds_(bounds) {}
  void Observe(double value) {
    size_t i = 0;
    while (i < N && value > bounds_[i]) ++i;
    buckets_[i].fetch_add(1, std::memory_order_relaxed);
    double sum = sum_.load(std::memory_order_relaxed);
    while (!sum_.compare_exchange_weak(sum, sum + value, std::memory_order_relaxed)) {
    }
  }
  std::span<const double> bounds() const { return bounds_; }
  uint64_t bucket(size_t i) const { return buckets_[i].load(std::memory_order_relaxed); }
  double sum() const { return sum_.load(std::memory_order_relaxed); }
  uint64_t count() const {
    uint64_t total = 0;
    for (const auto& bucket : buckets_) total += bucket.load(std::memory_order_relaxed);
    return total;
  }

 private:
  std::array<double, N> bounds_;
  std::array<Counter, N + 1> buckets_{};
  std::atomic<double> sum_{0};
};

inline constexpr std::array<double, 12> kSyncSecondsBounds = {
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5};
inline constexpr std::array<double, 12> kReclaimSecondsBounds = {
    0.001, 0.005, 0.02, 0.1, 0.5, 2, 10, 60, 300, 1200, 5400, 21600};
inline constexpr std::array<double, 10> kEntriesBounds = {1,   10,  100, 1e3, 1e4,
                                                          1e5, 5e5, 1e6, 5e6, 1e7};
using SyncHistogram = Histogram<12>;
using ReclaimHistogram = Histogram<12>;
using EntriesHistogram = Histogram<10>;

enum class SyncPhase : uint8_t { kData, kTasks, kFsync, kCommit, kTotal, kCount };
enum class DestroyKind : uint8_t { kDataset, kClone, kSnapshot, kRollback, kCount };
enum class DestroyMethod : uint8_t { kLivelist, kDeadlist, kTreeWalk, kCount };
enum class ReclaimFailure : uint8_t { kDamagedList, kDoubleFree, kIo, kCount };
enum class WindowEnd : uint8_t { kExpired, kSpace, kUndone, kCount };
enum class DropReason : uint8_t { kDamaged, kCostly, kCount };
enum class RebuildResult : uint8_t { kCompleted, kCancelled, kFailed, kCount };
enum class AttachMode : uint8_t { kReadOnly, kReadWrite, kShared, kCount };
enum class CondenseResult : uint8_t { kCompleted, kCancelled, kFailed, kCount };
// Why a durable write waited for a txg: there is no ring; it was much data; the ring was full; a
// cut was being committed.
enum class LogFallback : uint8_t { kNoRing, kLarge, kFull, kCut, kCount };
enum class Alarm : uint8_t {
  kPoolSuspended,
  kPoolReserveReached,
  kHostFull,
  kLivelistDamaged,
  kReclaimStalled,
  kExpiryBlocked,
  kCount
};

template <typename E, typename T = Counter>
struct PerEnum {
  std::array<T, static_cast<size_t>(E::kCount)> values{};
  T& operator[](E e) { return values[static_cast<size_t>(e)]; }
  const T& operator[](E e) const { return values[static_cast<size_t>(e)]; }
};

struct PoolStats {
  // Gauges, as of the last commit.
  Counter datasets, clones, snapshots, deferred_snapshots, holds;
  Counter capacity_bytes, allocated_bytes, available_bytes, freeing_bytes;
  Counter txg, dirty_bytes, dirty_limit_bytes;
  Counter livelists, livelist_entries, livelist_sublists, livelist_bytes;
  Counter livelist_entries_max;  // sampled every 60 s
  Counter reclaim_pending_items, reclaim_pending_bytes;
  Counter reclaim_oldest_pending_ms;                     // unix time, 0 when empty
  Counter reclaim_waiting_items, reclaim_waiting_bytes;  // destroyed datasets that are kept yet
  Counter reclaim_stalled_bytes;                         // of pending
  Counter reclaim_paused;                                // 0 or 1
  Counter reclaim_rate_limit_bytes_per_second;           // 0: none
  Counter reclaim_round_budget_us;                       // that the last round was sized by
  Counter meta_map_bytes, meta_used_bytes, meta_file_bytes, meta_readers;
  Counter meta_oldest_reader_lag_txns;
  Counter meta_copy_ms, meta_copy_bytes;   // of the newest copy: unix time, 0: none; its size
  Counter log_ring_bytes, log_used_bytes;  // of the intent log; 0: there is none
  PerEnum<Alarm> alarms;                   // 0 or 1

  Counter scrub_running, scrub_finish_ms;    // 0 or 1; unix time of the last one's end, 0: none
  Counter backup_running, backup_finish_ms;  // of the last that succeeded in this process

  PerEnum<AttachMode> attachments;  // that are there now

  // Totals since the process started.
  Counter scrub_read_bytes, scrub_errors;
  Counter backup_copied_bytes, backup_failures;
  Counter read_bytes, write_bytes, blocks_written_bytes, checksum_errors;
  Counter copied_bytes;  // of clients' data, from memory to memory, in the engine
  Counter node_cache_hits, node_cache_misses;
  Counter reclaim_freed_bytes, expired, request_replays;
  Counter attachments_cut;  // asked to end by the server
  Counter meta_copies, meta_copy_failures;
  Counter log_batches, log_written_bytes, log_waiters;  // of the intent log; waiters it answered
  Counter log_replayed_entries, log_lost_entries;  // when the pool was opened; into damage: lost
  PerEnum<LogFallback> log_fallbacks;
  PerEnum<DestroyKind> destroy_requests;
  PerEnum<DestroyMethod> destroy_methods;
  PerEnum<ReclaimFailure> reclaim_failures;
  PerEnum<WindowEnd> window_ends;
  PerEnum<DropReason> livelist_dropped;
  PerEnum<RebuildResult> livelist_rebuilds;
  PerEnum<CondenseResult> condenses;
  Counter condense_entries_in, condense_entries_out;  // of completed runs
  Counter condense_written_bytes;  // of all runs: pages of shadow logs and what was carried over

  std::array<SyncHistogram, static_cast<size_t>(SyncPhase::kCount)> sync_seconds = {
      SyncHistogram(kSyncSecondsBounds), SyncHistogram(kSyncSecondsBounds),
      SyncHistogram(kSyncSecondsBounds), SyncHistogram(kSyncSecondsBounds),
      SyncHistogram(kSyncSecondsBounds)};
  SyncHistogram reclaim_batch_seconds{kSyncSecondsBounds};
  SyncHistogram reclaim_txg_seconds{kSyncSecondsBounds};  // what a round added to its txg
  SyncHistogram condense_seconds{kSyncSecondsBounds};
  SyncHistogram log_write_seconds{kSyncSecondsBounds};  // the synchronous write of a batch
  std::array<ReclaimHistogram, static_cast<size_t>(DestroyKind::kCount)> reclaim_seconds = {
      ReclaimHistogram(kReclaimSecondsBounds), ReclaimHistogram(kReclaimSecondsBounds),
      ReclaimHistogram(kReclaimSecondsBounds), ReclaimHistogram(kReclaimSecondsBounds)};
  EntriesHistogram livelist_length_entries{kEntriesBounds};
};

}  // namespace cowshed::engine

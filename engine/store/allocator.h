// SPDX-License-Identifier: Apache-2.0
//
// Which sectors of `blocks` are free.
//
// The file is cut in regions of kRegionSectors sectors, each with a bitmap in the metadata store
// (bit set = not free) and a free count in a persisted summary, so that opening a pool reads the
// summary and no bitmap. Allocation is log-structured: next-fit through the emptiest region, on to
// the next emptiest when it has no run left, so that one txg's blocks lie together.
//
// Frees do not touch bitmaps: they are appended to the free log (kFreeLog), one stream per txg, and
// kept in memory by region. FlushRegions() later clears the bits of whole regions whose frees have
// become reusable (I3), so scattered frees cost a log append, not a bitmap each; a chunk of the
// free log is dropped once each region it names has been flushed past it. The log is bounded
// (free_log_max_runs): past it more regions are flushed per txg, and its replay at open is short.
//
// Invariants  I1: a sector's bit is set iff it is referenced or in the free log. I3 by
//             ReaderEpochs. A double free, or a free of a free sector, is DATA_LOSS before anything
//             changes, found by the bitmap and the free log.
// Threads     All mutation: txg thread only. The counters: any thread.
// Failure     After a txg that failed before its commit call Reload(): the state on disk is the
//             state.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/store/format.h"
#include "engine/store/meta_store.h"

namespace cowshed::engine {

struct AllocatorOptions {
  uint32_t free_log_max_runs = 65536;  // replayed at open: 64 Ki runs load in some 10 ms
  uint32_t regions_cached = 256;       // bitmaps kept in memory, 4 KiB each
  uint64_t punch_min_sectors = 256;    // runs >= 1 MiB are returned to the host
};

class Allocator {
 public:
  explicit Allocator(const AllocatorOptions& options);
  ~Allocator();

  // Makes the records of an empty pool of `capacity_sectors`, and loads them. The sectors before
  // kFirstDataSector are taken: they count as allocated and Enumerate shows them.
  absl::Status Create(WriteTxn& txn, uint64_t capacity_sectors);
  // Reads the summary and the free log; drops all cached state first. Runs that a punch is at work
  // on stay withheld if their flush was committed, and are forgotten if it was not.
  absl::Status Reload(const MetaTxn& txn, uint64_t capacity_sectors);
  // Adds or removes sectors at the end. Removing ones in use, in the free log or withheld for a
  // punch is FAILED_PRECONDITION.
  absl::Status Resize(WriteTxn& txn, uint64_t capacity_sectors);

  // Takes one run of exactly `sectors`. NOT_FOUND if no run is that long, RESOURCE_EXHAUSTED if
  // that many sectors are not free at all. `kind` and `birth` are copied into the run. A run lies
  // within one region, so none is longer than kRegionSectors.
  absl::StatusOr<Run> Allocate(WriteTxn& txn, uint32_t sectors, BlockKind kind, Txg birth);
  // Takes as many runs as it needs, longest first: the fallback for gangs.
  absl::StatusOr<std::vector<Run>> AllocatePieces(WriteTxn& txn, uint32_t sectors, BlockKind kind,
                                                  Txg birth);
  // Logs frees of txg `now`. The sectors are unavailable until FlushRegions has taken them. Runs
  // may cross regions. DATA_LOSS, naming the run, if one of them is free or freed already: then
  // nothing has changed.
  absl::Status Free(WriteTxn& txn, Txg now, std::span<const Run> runs);

  // Clears bits for up to `max_regions` regions (those with most to give first), for frees logged
  // in txgs <= `reusable_up_to`. Runs of punch_min_sectors or more are withheld and appended to
  // `*to_punch` when it is given; EndPunch makes them allocatable. Returns the sectors it freed.
  absl::StatusOr<uint64_t> FlushRegions(WriteTxn& txn, Txg reusable_up_to, uint32_t max_regions,
                                        std::vector<Run>* to_punch);
  // The punch of `runs` is over (done or given up): they may be allocated again. In memory only.
  void EndPunch(std::span<const Run> runs);
  // Writes the free log's part of WriteBack now: who frees much sees what it costs.
  absl::Status WriteFrees(WriteTxn& txn, Txg now);
  // Writes dirty bitmaps, summary and free log of this txg. Last call on it before the commit.
  absl::Status WriteBack(WriteTxn& txn, Txg now);

  uint64_t capacity_sectors() const { return capacity_sectors_.load(); }
  // Not free: referenced, queued for reclaim or in the free log.
  uint64_t allocated_sectors() const { return allocated_sectors_.load(); }
  // In the free log: freed for good, not allocatable yet.
  uint64_t free_logged_sectors() const { return free_logged_sectors_.load(); }
  // Allocatable at once: free, and neither withheld for a punch nor in a damaged region.
  uint64_t available_sectors() const { return available_sectors_.load(); }
  uint64_t free_log_runs() const { return free_log_runs_.load(); }
  // Free, and allocatable once their punch is done.
  uint64_t withheld_sectors() const { return withheld_sectors_.load(); }
  // Regions whose bitmap was found damaged. Nothing is allocated there and frees stay logged until
  // a repair; everything else goes on.
  uint64_t damaged_regions() const { return damaged_regions_.load(); }

  // For the checker: calls `visit` for each maximal run of not-free sectors (`in_free_log` = false)
  // and for each run in the free log (true; `birth` is the txg of the free). Reads every bitmap
  // through `txn`, not the state in memory. A damaged region is passed over and reported at the
  // end as DATA_LOSS.
  static absl::Status Enumerate(const MetaTxn& txn, uint64_t capacity_sectors,
                                const std::function<void(const Run&, bool in_free_log)>& visit);
  // For the repair: makes all records anew, with exactly `referenced` (by address, without overlap,
  // from kFirstDataSector on) and the superblocks' sectors taken and an empty free log.
  static absl::Status Rebuild(WriteTxn& txn, uint64_t capacity_sectors,
                              std::span<const Run> referenced);

 private:
  struct State;
  absl::StatusOr<std::vector<Run>> CheckedPieces(const MetaTxn& txn, std::span<const Run> runs);
  absl::Status FlushRegion(WriteTxn& txn, uint32_t region, Txg reusable_up_to,
                           std::vector<Run>* to_punch);
  void PublishCounters();

  AllocatorOptions options_;
  std::unique_ptr<State> state_;
  std::atomic<uint64_t> capacity_sectors_{0};
  std::atomic<uint64_t> allocated_sectors_{0};
  std::atomic<uint64_t> free_logged_sectors_{0};
  std::atomic<uint64_t> free_log_runs_{0};
  std::atomic<uint64_t> available_sectors_{0};
  std::atomic<uint64_t> withheld_sectors_{0};
  std::atomic<uint64_t> damaged_regions_{0};
};

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// Every knob of the engine: unit, default, and why that default.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace cowshed::engine {

class File;

struct PoolOptions {
  std::string directory;          // holds meta/, blocks and lock
  std::string blocks_path;        // the data file or block device; empty: directory/blocks
  bool create_if_missing = true;  // else NOT_FOUND where there is no pool
  bool read_only = false;         // check and inspect: no background work, no writes

  // Capacity of a new pool's data file. 0: the host's free space, rounded down to 1 GiB; the file
  // is sparse, so the figure is a limit, not a reservation. A device gives its own size.
  uint64_t capacity_bytes = 0;
  uint64_t meta_map_bytes = uint64_t{1} << 40;  // LMDB address space; costs nothing until used
  // Kept allocated past the metadata's last used page, so that deletes work on a full host: 64 MiB
  // is some 16,000 pages, hundreds of worst-case reclaim txgs.
  uint64_t meta_reserve_bytes = 64 << 20;
  // Kept in `blocks` for the node rewrites of discards: the larger of this and 1/32 of capacity.
  uint64_t blocks_reserve_bytes = 64 << 20;

  // A txg closes on these, or at once for a flush or a lifecycle call. 5 s bounds what a crash can
  // take of unflushed writes, as for a disk's cache.
  std::chrono::milliseconds txg_interval{5000};
  uint64_t txg_dirty_bytes = 64 << 20;   // enough for sequential runs of many MiB
  uint64_t dirty_max_bytes = 256 << 20;  // open and syncing together; then writers wait
  // The dirty limit shrinks until a sync takes about this long: a flush pays for everybody's data.
  std::chrono::milliseconds sync_target{1000};
  std::chrono::milliseconds write_wait_max{30000};  // then RESOURCE_EXHAUSTED

  uint64_t node_cache_bytes = 64 << 20;       // 16,384 nodes map 2 M blocks: 32 GiB at 16 KiB
  uint32_t open_heads_max = 4096;             // idle heads kept open, some 300 bytes each
  uint64_t livelist_max_entries = 500000;     // blocks in a sublist before the next one starts
  uint64_t deadlist_tail_max_entries = 4096;  // distributed to buckets in the background past it
  uint64_t discard_direct_blocks = 4096;      // larger discards go to the background trim
  uint64_t trim_pointers_per_txg = 65536;     // some 30 ms of work in a txg
  uint64_t rebuild_bite_pointers = 50000;     // of a tree walked for a lost livelist, per txg

  // Reclaim: what it may add to a txg while others work: a tenth of a disk's flush at worst. The
  // pacer measures what applying costs and sizes the bites by it (reclaim_pacer.h); the two below
  // bound a bite however cheap it gets, and with it the pages of its commit.
  std::chrono::microseconds reclaim_txg_budget{2000};
  uint64_t reclaim_bite_runs = 50000;
  // Memory for finding the survivors of one sublist, by reclaim and by condense each. 0: 1 % of the
  // machine's RAM; a sublist that needs more is read in several passes.
  uint64_t reclaim_memory_bytes = 0;
  uint32_t reclaim_jobs_per_txg = 256;  // small jobs that share one txg
  uint64_t drop_pages_per_bite = 500;   // LMDB pages of dead logs per txg: at most 3 ms
  uint64_t bulk_names_per_txg = 1000;   // datasets of a big prefix taken apart per txg
  uint32_t free_log_max_runs = 65536;
  uint32_t regions_flushed_per_txg = 64;

  // Condense: when a sublist is worth it (tree/condense_policy.h has the arithmetic). Less than 512
  // entries, 12 KiB, is not.
  uint64_t condense_min_entries = 512;
  // ... and as many new ones as this part of what the last condense left: below 100 %, so that a
  // list that is overwritten steadily stays below twice its survivors; not less, for condense I/O
  // grows with 1 / this.
  uint32_t condense_growth_percent = 85;
  uint32_t condense_chunks_per_txg = 256;  // of 169 entries, a page of LMDB each: 1 MiB, some 3 ms
  // The intent log is made as large as this and 1/64 of the capacity allow, when somebody first
  // wants durable writes. It holds what they write between two txgs; below 256 KiB, or with 0,
  // there is none, and they wait for a txg each.
  uint64_t intent_log_max_bytes = 64 << 20;
  bool punch_holes = true;  // runs >= 1 MiB go back to the host
  uint64_t punch_bytes_per_second = uint64_t{4} << 30;

  // Scrub: 16 MiB are read in some 10-100 ms, so that a commit for each bite costs little; a
  // quarter of it, and as long a pause, while others work.
  uint64_t scrub_bite_bytes = 16 << 20;
  // Online check: pointers of a tree looked at in one view, some 100 ms.
  uint64_t check_bite_pointers = 65536;
  // A backup keeps frees in the free log; past this many runs, some 100 MiB of memory, it gives up.
  uint64_t backup_free_log_max_runs = 1000000;

  uint64_t operations_kept_ms = 7 * 86400000ull;  // done operations
  uint64_t requests_kept_ms = 86400000ull;        // request_id replies
  uint64_t requests_kept_max = 1000000;
  std::chrono::milliseconds expire_poll{1000};  // how late an expiry may act

  // Copies of the metadata in the pool (store/meta_copy.h), where a txg has come since the last. An
  // hour bounds what a lost metadata file takes; 0: none.
  std::chrono::milliseconds meta_copy_interval{3600000};
  uint64_t meta_copy_bytes_per_second = 32 << 20;  // a tenth of what a slow disk writes

  // Test seams. The clock gives unix milliseconds; the wrapper sees every access to `blocks`.
  std::function<int64_t()> clock_ms;
  std::function<std::unique_ptr<File>(std::unique_ptr<File>)> wrap_blocks_file;
  bool background_work = true;  // false: only Pool::DrainBackground does any
};

}  // namespace cowshed::engine

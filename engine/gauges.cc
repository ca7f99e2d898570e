// SPDX-License-Identifier: Apache-2.0
#include "engine/gauges.h"

#include <algorithm>
#include <cstring>

#include "engine/base/status_macros.h"
#include "engine/tree/live_list.h"

namespace cowshed::engine {
namespace {

// Of a host's free space, left to the metadata of what is written into the rest.
constexpr uint64_t kHostSlackBytes = 8 << 20;

// Jobs are numbered as they are queued, so the first is the oldest. 0 when the queue is empty.
absl::StatusOr<uint64_t> OldestJobMs(const MetaStore& meta) {
  ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn, meta.BeginRead());
  MetaCursor cursor(*txn, Table::kJobs);
  cursor.Seek(Key(uint64_t{0}));
  RETURN_IF_ERROR(cursor.status());
  if (!cursor.valid()) return 0;
  ASSIGN_OR_RETURN(const JobRecord job, JobRecord::Decode(cursor.value()));
  return static_cast<uint64_t>(job.create_time_ms);
}

}  // namespace

uint64_t HostFreeBytes(const PoolParts& parts, uint64_t before) {
  const absl::StatusOr<uint64_t> host = parts.blocks.file().HostFreeBytes();
  return host.ok() ? *host - std::min(*host, kHostSlackBytes) : before;
}

void PublishGauges(PoolParts& parts, const PoolRecord& record) {
  PoolStats& stats = parts.stats;
  stats.datasets = record.datasets;
  stats.clones = record.clones;
  stats.snapshots = record.snapshots;
  stats.deferred_snapshots = record.deferred_snapshots;
  stats.holds = record.holds;
  stats.livelists = record.livelists;
  stats.livelist_entries = record.livelist_entries;
  stats.livelist_sublists = record.livelist_sublists;
  stats.livelist_bytes = record.livelist_sectors * kSectorBytes;
  stats.reclaim_pending_items = record.jobs;
  stats.reclaim_pending_bytes = record.freeing_sectors * kSectorBytes;
  stats.reclaim_waiting_items = record.waiting_items;
  stats.reclaim_waiting_bytes = record.waiting_sectors * kSectorBytes;
  stats.reclaim_stalled_bytes = record.stalled_sectors * kSectorBytes;
  stats.reclaim_paused = record.reclaim_paused ? 1 : 0;
  stats.reclaim_rate_limit_bytes_per_second = record.reclaim_rate_bytes_per_second;
  stats.txg = record.txg;
  stats.freeing_bytes =
      (record.freeing_sectors + parts.allocator.free_logged_sectors()) * kSectorBytes;
}

void RefreshGauges(PoolParts& parts, const WriteState& writes) {
  PoolStats& stats = parts.stats;
  const Allocator& allocator = parts.allocator;
  stats.dirty_bytes = writes.dirty_bytes;
  stats.dirty_limit_bytes = writes.dirty_limit_bytes;
  stats.capacity_bytes = allocator.capacity_sectors() * kSectorBytes;
  stats.allocated_bytes =
      allocator.allocated_sectors() * kSectorBytes - stats.log_ring_bytes.load();
  stats.available_bytes = writes.available_sectors * kSectorBytes;
  stats.blocks_written_bytes = parts.blocks.bytes_written();
  stats.checksum_errors = parts.blocks.checksum_errors();
  stats.node_cache_hits = parts.tree.cache().hits();
  stats.node_cache_misses = parts.tree.cache().misses();
  if (stats.reclaim_pending_items == 0) {
    stats.reclaim_oldest_pending_ms = 0;
  } else if (const auto oldest = OldestJobMs(parts.meta); oldest.ok()) {
    stats.reclaim_oldest_pending_ms = *oldest;
  }
}

void RefreshMetaGauges(PoolParts& parts) {
  // A process that looked at the metadata and died keeps its slot, and with it old pages.
  (void)parts.meta.ClearDeadReaders();
  const MetaStoreStats meta = parts.meta.stats();
  parts.stats.meta_map_bytes = meta.map_bytes;
  parts.stats.meta_used_bytes = meta.used_bytes;
  parts.stats.meta_file_bytes = meta.file_bytes;
  parts.stats.meta_readers = meta.readers;
  parts.stats.meta_oldest_reader_lag_txns = meta.oldest_reader_lag_txns;
}

absl::StatusOr<uint64_t> LongestLivelist(const MetaTxn& txn) {
  uint64_t longest = 0;
  uint64_t entries = 0;
  uint64_t list = 0;
  MetaCursor cursor(txn, Table::kSublists);
  // What is damaged is left out: whoever needs it will find it.
  for (cursor.Seek(Key(uint64_t{0})); cursor.valid() || absl::IsDataLoss(cursor.status());
       cursor.Next()) {
    if (!cursor.valid()) continue;
    if (cursor.value().size() != sizeof(SublistRecord)) continue;  // an attached log
    const auto here = KeyNumber<uint64_t>(cursor.key(), 0);
    if (here != list) entries = 0;
    list = here;
    SublistRecord record;
    std::memcpy(static_cast<void*>(&record), cursor.value().data(), sizeof(record));
    entries += record.entries;
    longest = std::max(longest, entries);
  }
  RETURN_IF_ERROR(cursor.status());
  return longest;
}

}  // namespace cowshed::engine

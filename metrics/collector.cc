// SPDX-License-Identifier: Apache-2.0
#include "metrics/collector.h"

#include <chrono>
#include <string_view>
#include <utility>

#include "metrics/families.h"

namespace cowshed::metrics {
namespace {

using engine::Counter;
using engine::PerEnum;
using engine::PoolStats;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Families = std::vector<MetricFamily>;

// A metric without labels that shows one member of Stats.
template <typename Stats>
struct Scalar {
  std::string_view name;
  MetricType type;
  std::string_view help;
  std::atomic<uint64_t> Stats::*member;
  double scale = 1;  // of the member, to reach the metric's unit
};

constexpr MetricType kGauge = MetricType::Gauge;
constexpr MetricType kCounter = MetricType::Counter;

constexpr Scalar<PoolStats> kPoolScalars[] = {
    {"cowshed_datasets", kGauge, "Datasets, clones included.", &PoolStats::datasets},
    {"cowshed_clones", kGauge, "Datasets that have an origin.", &PoolStats::clones},
    {"cowshed_snapshots", kGauge, "Snapshots, deferred ones included.", &PoolStats::snapshots},
    {"cowshed_deferred_snapshots", kGauge, "Snapshots that go when their last clone or hold does.",
     &PoolStats::deferred_snapshots},
    {"cowshed_holds", kGauge, "Holds on snapshots.", &PoolStats::holds},
    {"cowshed_pool_capacity_bytes", kGauge, "Size of the data file.", &PoolStats::capacity_bytes},
    {"cowshed_pool_allocated_bytes", kGauge,
     "Sectors that are not free, without the ring of the intent log.", &PoolStats::allocated_bytes},
    {"cowshed_pool_available_bytes", kGauge,
     "What writes may still take: neither allocated nor held in reserve.",
     &PoolStats::available_bytes},
    {"cowshed_pool_freeing_bytes", kGauge, "Allocated, but only until reclaim has freed it.",
     &PoolStats::freeing_bytes},
    {"cowshed_txg", kGauge, "Number of the last committed transaction group.", &PoolStats::txg},
    {"cowshed_txg_dirty_bytes", kGauge, "Written bytes that are not committed yet.",
     &PoolStats::dirty_bytes},
    {"cowshed_txg_dirty_limit_bytes", kGauge, "Dirty bytes at which writers have to wait.",
     &PoolStats::dirty_limit_bytes},
    {"cowshed_livelists", kGauge, "Livelists of datasets.", &PoolStats::livelists},
    {"cowshed_livelist_entries", kGauge, "Entries (runs) in all livelists, ALLOC and FREE.",
     &PoolStats::livelist_entries},
    {"cowshed_livelist_sublists", kGauge, "Sublists of all livelists.",
     &PoolStats::livelist_sublists},
    {"cowshed_livelist_bytes", kGauge, "What the blocks in all livelists hold in the data file.",
     &PoolStats::livelist_bytes},
    {"cowshed_livelist_entries_max", kGauge, "Entries of the longest livelist, sampled every 60 s.",
     &PoolStats::livelist_entries_max},
    {"cowshed_reclaim_pending_items", kGauge, "Destroyed datasets and snapshots not reclaimed yet.",
     &PoolStats::reclaim_pending_items},
    {"cowshed_reclaim_pending_bytes", kGauge, "What the pending items still hold.",
     &PoolStats::reclaim_pending_bytes},
    {"cowshed_reclaim_oldest_pending_timestamp_seconds", kGauge,
     "Unix time at which the oldest pending item was destroyed; 0 when nothing is pending.",
     &PoolStats::reclaim_oldest_pending_ms, 1e-3},
    {"cowshed_reclaim_waiting_items", kGauge,
     "Destroyed datasets not queued yet: in their undelete window, or needed by clones that wait.",
     &PoolStats::reclaim_waiting_items},
    {"cowshed_reclaim_waiting_bytes", kGauge, "What the waiting items own.",
     &PoolStats::reclaim_waiting_bytes},
    {"cowshed_reclaim_stalled_bytes", kGauge, "Of the pending bytes, what needs a repair first.",
     &PoolStats::reclaim_stalled_bytes},
    {"cowshed_reclaim_paused", kGauge, "Whether reclaim is paused.", &PoolStats::reclaim_paused},
    {"cowshed_reclaim_rate_limit_bytes_per_second", kGauge,
     "Bytes per second that reclaim may give back; 0 without a limit.",
     &PoolStats::reclaim_rate_limit_bytes_per_second},
    {"cowshed_reclaim_round_budget_seconds", kGauge,
     "What the last round of reclaim was allowed to add to its transaction group.",
     &PoolStats::reclaim_round_budget_us, 1e-6},
    {"cowshed_lmdb_map_bytes", kGauge, "Address space of the metadata, its upper limit.",
     &PoolStats::meta_map_bytes},
    {"cowshed_lmdb_used_bytes", kGauge, "Metadata pages in use.", &PoolStats::meta_used_bytes},
    {"cowshed_lmdb_file_bytes", kGauge, "Size of the metadata file, its reserve included.",
     &PoolStats::meta_file_bytes},
    {"cowshed_lmdb_readers", kGauge, "Open metadata read transactions.", &PoolStats::meta_readers},
    {"cowshed_lmdb_oldest_reader_lag_txns", kGauge,
     "Commits since the oldest open read transaction began: pages freed by them cannot be reused.",
     &PoolStats::meta_oldest_reader_lag_txns},
    {"cowshed_meta_copy_timestamp_seconds", kGauge,
     "Unix time of the newest copy of the metadata in the pool; 0 without one.",
     &PoolStats::meta_copy_ms, 1e-3},
    {"cowshed_meta_copy_bytes", kGauge, "Size of the newest copy of the metadata.",
     &PoolStats::meta_copy_bytes},
    {"cowshed_meta_copies_total", kCounter, "Copies of the metadata made and verified.",
     &PoolStats::meta_copies},
    {"cowshed_meta_copy_failures_total", kCounter, "Copies of the metadata given up.",
     &PoolStats::meta_copy_failures},
    {"cowshed_intent_log_ring_bytes", kGauge,
     "Size of the intent log's ring; 0 until a durable write first wants one.",
     &PoolStats::log_ring_bytes},
    {"cowshed_intent_log_used_bytes", kGauge,
     "Bytes of the ring that a crash would have to replay.", &PoolStats::log_used_bytes},
    {"cowshed_intent_log_batches_total", kCounter, "Batches written to the intent log.",
     &PoolStats::log_batches},
    {"cowshed_intent_log_written_bytes_total", kCounter, "Bytes written to the intent log.",
     &PoolStats::log_written_bytes},
    {"cowshed_intent_log_waiters_total", kCounter,
     "Durable writes answered by the intent log; by batches, how many shared one.",
     &PoolStats::log_waiters},
    {"cowshed_intent_log_replayed_entries_total", kCounter,
     "Entries replayed when the pool was opened.", &PoolStats::log_replayed_entries},
    {"cowshed_intent_log_lost_entries_total", kCounter,
     "Entries that could not be replayed when the pool was opened: their place is damaged.",
     &PoolStats::log_lost_entries},
    {"cowshed_read_bytes_total", kCounter, "Bytes read by clients.", &PoolStats::read_bytes},
    {"cowshed_write_bytes_total", kCounter, "Bytes written by clients.", &PoolStats::write_bytes},
    {"cowshed_engine_copied_bytes_total", kCounter,
     "Bytes of clients' data copied from memory to memory by the engine.",
     &PoolStats::copied_bytes},
    {"cowshed_blocks_written_bytes_total", kCounter,
     "Bytes of blocks and nodes written to the data file.", &PoolStats::blocks_written_bytes},
    {"cowshed_scrub_running", kGauge, "Whether a scrub is under way.", &PoolStats::scrub_running},
    {"cowshed_scrub_finish_timestamp_seconds", kGauge,
     "Unix time at which the last scrub came to its end; 0 before the first.",
     &PoolStats::scrub_finish_ms, 1e-3},
    {"cowshed_scrub_read_bytes_total", kCounter, "Bytes read and verified by scrubs.",
     &PoolStats::scrub_read_bytes},
    {"cowshed_scrub_errors_total", kCounter, "Blocks and nodes that scrubs found damaged.",
     &PoolStats::scrub_errors},
    {"cowshed_backup_running", kGauge, "Whether a backup is under way.",
     &PoolStats::backup_running},
    {"cowshed_backup_finish_timestamp_seconds", kGauge,
     "Unix time at which the last backup of this process was whole; 0 before the first.",
     &PoolStats::backup_finish_ms, 1e-3},
    {"cowshed_backup_copied_bytes_total", kCounter, "Bytes of blocks copied by backups.",
     &PoolStats::backup_copied_bytes},
    {"cowshed_backup_failures_total", kCounter, "Backups that did not come to their end.",
     &PoolStats::backup_failures},
    {"cowshed_checksum_errors_total", kCounter, "Blocks and nodes that failed their checksum.",
     &PoolStats::checksum_errors},
    {"cowshed_livelist_condense_written_bytes_total", kCounter,
     "Bytes of metadata that condense wrote, in whole pages.", &PoolStats::condense_written_bytes},
    {"cowshed_reclaim_freed_bytes_total", kCounter, "Bytes freed by reclaim.",
     &PoolStats::reclaim_freed_bytes},
    {"cowshed_attachments_cut_total", kCounter,
     "Attachments that the server ended: detached, or by a forced destroy, rollback or shrink.",
     &PoolStats::attachments_cut},
    {"cowshed_expired_total", kCounter, "Datasets destroyed and holds released at their expiry.",
     &PoolStats::expired},
    {"cowshed_request_replays_total", kCounter,
     "Calls answered with the stored reply of an earlier one with the same request_id.",
     &PoolStats::request_replays},
};

constexpr Scalar<ServiceStats> kServiceScalars[] = {
    {"cowshed_executor_queue_length", kGauge, "Jobs that wait for a worker.",
     &ServiceStats::executor_queue_length},
    {"cowshed_service_copied_bytes_total", kCounter,
     "Bytes of clients' data copied from memory to memory by the service.",
     &ServiceStats::copied_bytes},
    {"cowshed_executor_rejected_total", kCounter, "Jobs refused because the queue was full.",
     &ServiceStats::executor_rejected},
    {"cowshed_data_streams", kGauge, "Open Read, Write and Diff streams.",
     &ServiceStats::data_streams},
    {"cowshed_connections", kGauge, "Open client connections, without those of NBD.",
     &ServiceStats::connections},
    {"cowshed_certificate_expiry_timestamp_seconds", kGauge,
     "Unix time at which the TLS certificate in use ends; 0 without TLS.",
     &ServiceStats::certificate_expiry_seconds},
    {"cowshed_calls_denied_total", kCounter, "Calls refused for want of rights.",
     &ServiceStats::calls_denied},
    {"cowshed_audit_lines_total", kCounter, "Lines given to the audit log.",
     &ServiceStats::audit_lines},
    {"cowshed_audit_failures_total", kCounter, "Lines of the audit log that were lost.",
     &ServiceStats::audit_failures},
    {"cowshed_reload_failures_total", kCounter,
     "Reloads that kept the policy or certificate in force because the new file is broken.",
     &ServiceStats::reload_failures},
};

// The label values, in the order of the enums of engine/stats.h.
constexpr std::string_view kSyncPhases[] = {"data", "tasks", "fsync", "commit", "total"};
constexpr std::string_view kDestroyKinds[] = {"dataset", "clone", "snapshot", "rollback"};
constexpr std::string_view kDestroyMethods[] = {"livelist", "deadlist", "tree_walk"};
constexpr std::string_view kReclaimFailures[] = {"damaged_list", "double_free", "io"};
constexpr std::string_view kWindowEnds[] = {"expired", "space", "undone"};
constexpr std::string_view kDropReasons[] = {"damaged", "costly"};
constexpr std::string_view kLogFallbacks[] = {"no_ring", "large", "full", "cut"};
constexpr std::string_view kResults[] = {"completed", "cancelled", "failed"};
constexpr std::string_view kAttachModes[] = {"read_only", "read_write", "shared"};
constexpr std::string_view kNbdCommands[] = {"read",  "write",        "flush",       "trim",
                                             "cache", "write_zeroes", "block_status"};
constexpr std::string_view kNbdErrors[] = {
    "permission",    "io",       "no_memory",       "invalid",           "no_space", "overflow",
    "not_supported", "shutdown", "broken_protocol", "handshake_timeout", "tls",      "stalled"};
constexpr std::string_view kAlarms[] = {"pool_suspended",  "pool_reserve_reached",
                                        "host_full",       "livelist_damaged",
                                        "reclaim_stalled", "expiry_blocked"};

template <typename Stats, size_t N>
void AddScalars(const Scalar<Stats> (&scalars)[N], const Stats& stats, Families& families) {
  for (const auto& scalar : scalars) {
    MetricFamily& family = families.emplace_back(MakeFamily(scalar.name, scalar.help, scalar.type));
    const uint64_t value = (stats.*scalar.member).load(std::memory_order_relaxed);
    AddSample(family, {}, static_cast<double>(value) * scalar.scale);
  }
}

// One family with a label that takes the values of enum E.
template <typename E, size_t N>
void AddPerEnum(MetricFamily family, std::string_view label,
                const std::string_view (&label_values)[N], const PerEnum<E>& counters,
                Families& families) {
  static_assert(N == static_cast<size_t>(E::kCount), "a label value for each enum value");
  for (size_t i = 0; i < N; ++i) {
    AddSample(family, {{std::string(label), std::string(label_values[i])}},
              static_cast<double>(counters[static_cast<E>(i)].load(std::memory_order_relaxed)));
  }
  families.push_back(std::move(family));
}

template <size_t Bounds, size_t N>
void AddHistograms(MetricFamily family, std::string_view label,
                   const std::string_view (&label_values)[N],
                   const std::array<engine::Histogram<Bounds>, N>& histograms, Families& families) {
  for (size_t i = 0; i < N; ++i) {
    AddHistogram(family, {{std::string(label), std::string(label_values[i])}}, histograms[i]);
  }
  families.push_back(std::move(family));
}

template <size_t Bounds>
void AddHistogramFamily(std::string_view name, std::string_view help,
                        const engine::Histogram<Bounds>& histogram, Families& families) {
  AddHistogram(families.emplace_back(MakeFamily(name, help, MetricType::Histogram)), {}, histogram);
}

// Two counters that are one family, told apart by a label.
void AddPair(MetricFamily family, std::string_view label, std::string_view first_value,
             const Counter& first, std::string_view second_value, const Counter& second,
             Families& families) {
  AddSample(family, {{std::string(label), std::string(first_value)}},
            static_cast<double>(first.load(std::memory_order_relaxed)));
  AddSample(family, {{std::string(label), std::string(second_value)}},
            static_cast<double>(second.load(std::memory_order_relaxed)));
  families.push_back(std::move(family));
}

void AddDestroyAndReclaim(const PoolStats& pool, Families& families) {
  AddPerEnum(MakeFamily("cowshed_destroy_requests_total",
                        "Objects whose destruction was acknowledged; rollback: the discarded "
                        "state of a dataset.",
                        kCounter),
             "kind", kDestroyKinds, pool.destroy_requests, families);
  AddPerEnum(MakeFamily("cowshed_destroy_method_total", "How destroyed objects were taken apart.",
                        kCounter),
             "method", kDestroyMethods, pool.destroy_methods, families);
  AddPerEnum(MakeFamily("cowshed_reclaim_failures_total",
                        "Reclaim jobs that could not go on as planned.", kCounter),
             "reason", kReclaimFailures, pool.reclaim_failures, families);
  AddPerEnum(MakeFamily("cowshed_undelete_window_ends_total",
                        "Undelete windows that ended: by their time, early for space, or by an "
                        "undestroy.",
                        kCounter),
             "reason", kWindowEnds, pool.window_ends, families);
  AddHistograms(MakeFamily("cowshed_reclaim_latency_seconds",
                           "From the acknowledged destroy to the last sector free, restarts "
                           "included.",
                           MetricType::Histogram),
                "kind", kDestroyKinds, pool.reclaim_seconds, families);
  AddHistogramFamily("cowshed_reclaim_batch_duration_seconds",
                     "Time of one round of reclaim, from its preparation until it was durable.",
                     pool.reclaim_batch_seconds, families);
  AddHistogramFamily("cowshed_reclaim_txg_duration_seconds",
                     "What one round of reclaim added to its transaction group.",
                     pool.reclaim_txg_seconds, families);
}

void AddLivelists(const PoolStats& pool, Families& families) {
  AddPerEnum(MakeFamily("cowshed_livelist_dropped_total",
                        "Livelists given up; destroying their dataset walks its tree.", kCounter),
             "reason", kDropReasons, pool.livelist_dropped, families);
  AddPerEnum(MakeFamily("cowshed_livelist_rebuild_total", "Rebuilds of livelists.", kCounter),
             "result", kResults, pool.livelist_rebuilds, families);
  AddPerEnum(
      MakeFamily("cowshed_livelist_condense_total", "Condense runs over livelists.", kCounter),
      "result", kResults, pool.condenses, families);
  AddPair(MakeFamily("cowshed_livelist_condense_entries_total",
                     "Entries that condense read (in) and wrote (out).", kCounter),
          "direction", "in", pool.condense_entries_in, "out", pool.condense_entries_out, families);
  AddHistogramFamily("cowshed_livelist_condense_duration_seconds", "Duration of condense runs.",
                     pool.condense_seconds, families);
  AddHistogramFamily("cowshed_livelist_length_entries",
                     "Entries of a sublist or livelist when it is sealed, condensed or destroyed.",
                     pool.livelist_length_entries, families);
}

void AddPool(const PoolStats& pool, Families& families) {
  AddPerEnum(MakeFamily("cowshed_alarm_active", "1 while the alarm is raised, else 0.", kGauge),
             "alarm", kAlarms, pool.alarms, families);
  AddPerEnum(MakeFamily("cowshed_attachments",
                        "Connections that use a dataset or snapshot as a "
                        "device.",
                        kGauge),
             "mode", kAttachModes, pool.attachments, families);
  AddHistograms(MakeFamily("cowshed_txg_sync_duration_seconds",
                           "Duration of the phases of a sync; phase=\"total\" is the whole of it.",
                           MetricType::Histogram),
                "phase", kSyncPhases, pool.sync_seconds, families);
  AddHistogramFamily("cowshed_lmdb_commit_duration_seconds",
                     "Duration of metadata commits, the point of durability.",
                     pool.sync_seconds[static_cast<size_t>(engine::SyncPhase::kCommit)], families);
  AddHistogramFamily("cowshed_intent_log_write_duration_seconds",
                     "Duration of the synchronous write of a batch.", pool.log_write_seconds,
                     families);
  AddPerEnum(MakeFamily("cowshed_intent_log_fallbacks_total",
                        "Durable writes that waited for a transaction group instead.", kCounter),
             "reason", kLogFallbacks, pool.log_fallbacks, families);
  AddPair(MakeFamily("cowshed_node_cache_requests_total",
                     "Look-ups in the cache of indirect nodes.", kCounter),
          "result", "hit", pool.node_cache_hits, "miss", pool.node_cache_misses, families);
}

void AddNbd(const NbdStats& nbd, Families& families) {
  AddSample(
      families.emplace_back(MakeFamily("cowshed_nbd_connections", "Open NBD connections.", kGauge)),
      {}, static_cast<double>(nbd.connections.load(std::memory_order_relaxed)));
  AddPerEnum(MakeFamily("cowshed_nbd_requests_total",
                        "NBD requests answered, those with an error too.", kCounter),
             "command", kNbdCommands, nbd.requests, families);
  AddPair(MakeFamily("cowshed_nbd_bytes_total", "Bytes that NBD clients read and wrote.", kCounter),
          "direction", "read", nbd.read_bytes, "write", nbd.written_bytes, families);
  AddPerEnum(MakeFamily("cowshed_nbd_errors_total",
                        "NBD errors answered, and connections that the server ended.", kCounter),
             "reason", kNbdErrors, nbd.errors, families);
  AddHistograms(
      MakeFamily("cowshed_nbd_request_duration_seconds",
                 "From an NBD request read to its reply on its way.", MetricType::Histogram),
      "command", kNbdCommands, nbd.request_seconds, families);
}

}  // namespace

Collector::Collector(const PoolStats& pool, const ServiceStats& service, BuildInfo build)
    : pool_(pool), service_(service), build_(std::move(build)) {}

Families Collector::Collect() const {
  const auto start = std::chrono::steady_clock::now();
  Families families;
  families.reserve(72);
  AddSample(families.emplace_back(
                MakeFamily("cowshed_build_info", "What runs here, as labels; always 1.", kGauge)),
            {{"version", build_.version}, {"revision", build_.revision}, {"format", build_.format}},
            1);
  AddScalars(kPoolScalars, pool_, families);
  AddPool(pool_, families);
  AddLivelists(pool_, families);
  AddDestroyAndReclaim(pool_, families);
  AddScalars(kServiceScalars, service_, families);
  AddNbd(service_.nbd, families);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  AddSample(
      families.emplace_back(MakeFamily("cowshed_scrape_duration_seconds",
                                       "Time this scrape took to copy the counters.", kGauge)),
      {}, took.count());
  return families;
}

}  // namespace cowshed::metrics

// SPDX-License-Identifier: Apache-2.0
//
// The service's counters beside the engine's PoolStats: plain atomics that the service bumps where
// things happen and the collector copies at a scrape. RPCs themselves are counted by RpcMetrics.
//
// Invariants  A gauge goes down as often as it went up: bump it in a constructor/destructor pair.
// Threads     Every member may be read and written at any time; relaxed order is enough.
// Ownership   One per server; outlives the exposer.
#pragma once

#include <atomic>
#include <cstdint>

#include "metrics/nbd_stats.h"

namespace cowshed::metrics {

struct ServiceStats {
  // Gauges.
  std::atomic<uint64_t> executor_queue_length{0};  // jobs that wait for a worker
  std::atomic<uint64_t> data_streams{0};           // open Read, Write and Diff streams
  std::atomic<uint64_t> connections{0};            // open client connections of gRPC
  // Unix time at which the TLS certificate in use ends; 0 without TLS.
  std::atomic<uint64_t> certificate_expiry_seconds{0};

  // Totals since the process started.
  std::atomic<uint64_t> executor_rejected{0};  // jobs refused because the queue was full
  std::atomic<uint64_t> calls_denied{0};       // calls refused for want of rights
  std::atomic<uint64_t> audit_lines{0};        // lines given to the audit log
  std::atomic<uint64_t> audit_failures{0};     // of them, lines lost or not written
  std::atomic<uint64_t> reload_failures{0};    // SIGHUPs that found a broken file

  NbdStats nbd;
};

}  // namespace cowshed::metrics

// SPDX-License-Identifier: Apache-2.0
//
// Gives the engine's and the service's plain counters their names, labels and help texts as
// Prometheus metrics (the catalogue of docs/operations.md). A scrape copies atomics: it takes no
// lock of the engine, opens no transaction and walks nothing, so it costs the same for an empty
// pool and for one with a million clones, and it still answers when the pool is suspended.
//
// Invariants  Every series exists from the first scrape on, at 0: an alert never waits for a first
//             event. Labels come from enums only, so the number of series is fixed.
// Threads     Collect may run on any thread, also concurrently.
// Ownership   Borrows the stats; they outlive the collector.
// Cost        O(number of series), some 250; no allocation is kept.
#pragma once

#include <string>
#include <vector>

#include "engine/stats.h"
#include "metrics/service_stats.h"
#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"

namespace cowshed::metrics {

// The labels of cowshed_build_info.
struct BuildInfo {
  std::string version;   // of the program, as `cowshed --version` says
  std::string revision;  // of the sources; "unknown" where the build had none
  std::string format;    // of the pool on disk
};

class Collector : public prometheus::Collectable {
 public:
  Collector(const engine::PoolStats& pool, const ServiceStats& service, BuildInfo build);

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const engine::PoolStats& pool_;
  const ServiceStats& service_;
  const BuildInfo build_;
};

}  // namespace cowshed::metrics

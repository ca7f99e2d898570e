// SPDX-License-Identifier: Apache-2.0
//
// The standard process_* metrics (prometheus-cpp has none), read from /proc at each scrape. A
// figure that /proc does not give is left out rather than shown as 0.
//
// Threads     Collect may run on any thread, also concurrently.
// Cost        Three small files and one directory listing of the open descriptors a scrape.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"

namespace cowshed::metrics {

class ProcessCollector : public prometheus::Collectable {
 public:
  // `proc`: where the process file system is mounted; a test gives a folder of its own.
  explicit ProcessCollector(std::string proc = "/proc") : proc_(std::move(proc)) {}

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const std::string proc_;
};

}  // namespace cowshed::metrics

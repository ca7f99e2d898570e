// SPDX-License-Identifier: Apache-2.0
//
// How a copied counter becomes a sample of a Prometheus family: the few lines that every collector
// here shares.
//
// Threads     Free functions on the caller's values; atomics are read relaxed.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/stats.h"
#include "prometheus/client_metric.h"
#include "prometheus/metric_family.h"
#include "prometheus/metric_type.h"

namespace cowshed::metrics {

using SampleLabels = std::vector<prometheus::ClientMetric::Label>;

inline prometheus::MetricFamily MakeFamily(std::string_view name, std::string_view help,
                                           prometheus::MetricType type) {
  prometheus::MetricFamily family;
  family.name = name;
  family.help = help;
  family.type = type;
  return family;
}

// Adds one sample to a counter or gauge family.
inline void AddSample(prometheus::MetricFamily& family, SampleLabels labels, double value) {
  prometheus::ClientMetric metric;
  metric.label = std::move(labels);
  if (family.type == prometheus::MetricType::Counter) {
    metric.counter.value = value;
  } else {
    metric.gauge.value = value;
  }
  family.metric.push_back(std::move(metric));
}

// Adds one histogram. The count is that of the buckets as copied, so the two agree even while
// others observe; the sum may be an observation ahead or behind.
template <size_t N>
void AddHistogram(prometheus::MetricFamily& family, SampleLabels labels,
                  const engine::Histogram<N>& histogram) {
  prometheus::ClientMetric metric;
  metric.label = std::move(labels);
  metric.histogram.bucket.reserve(N + 1);
  uint64_t cumulative = 0;
  for (size_t i = 0; i <= N; ++i) {
    cumulative += histogram.bucket(i);
    const double bound = i < N ? histogram.bounds()[i] : std::numeric_limits<double>::infinity();
    metric.histogram.bucket.push_back({cumulative, bound});
  }
  metric.histogram.sample_count = cumulative;
  metric.histogram.sample_sum = histogram.sum();
  family.metric.push_back(std::move(metric));
}

}  // namespace cowshed::metrics

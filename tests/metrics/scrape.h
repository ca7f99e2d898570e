// SPDX-License-Identifier: Apache-2.0
//
// What the tests of metrics/ share: a scrape over HTTP as Prometheus does it, and look-ups in what
// a collector returns.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "metrics/exposer.h"
#include "prometheus/metric_family.h"

namespace cowshed::metrics {

// Sends one GET and returns the whole answer, status line and headers included; empty if nobody
// listens at 127.0.0.1:`port`.
std::string HttpGet(uint16_t port, const std::string& path);

// The text after the headers.
std::string BodyOf(const std::string& answer);

// The sample of `family` whose labels are exactly `labels`; of a histogram its count.
std::optional<double> ValueOf(const std::vector<prometheus::MetricFamily>& families,
                              const std::string& family,
                              const std::map<std::string, std::string>& labels = {});

}  // namespace cowshed::metrics

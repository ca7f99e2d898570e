// SPDX-License-Identifier: Apache-2.0
//
// Prints what a scrape of an idle server returns, by a real scrape of a real exposer. The tests of
// deploy/ feed it to promtool and compare it with what dashboards, rules and docs name.
#include <iostream>

#include "cowshed/v1/data.pb.h"
#include "cowshed/v1/dataset.pb.h"
#include "cowshed/v1/operation.pb.h"
#include "cowshed/v1/pool.pb.h"
#include "metrics/collector.h"
#include "metrics/exposer.h"
#include "metrics/process_collector.h"
#include "metrics/rpc_metrics.h"
#include "tests/metrics/scrape.h"

namespace cowshed::metrics {
namespace {

int Print() {
  const engine::PoolStats pool;
  const ServiceStats service;
  std::vector<RpcMethod> methods;
  for (const auto* file :
       {v1::Dataset::descriptor()->file(), v1::ReadRangeRequest::descriptor()->file(),
        v1::Operation::descriptor()->file(), v1::Pool::descriptor()->file()}) {
    for (int i = 0; i < file->service_count(); ++i) {
      for (RpcMethod& method : MethodsOf(*file->service(i))) methods.push_back(std::move(method));
    }
  }
  auto exposer = Exposer::Listen(
      "127.0.0.1:0",
      {std::make_shared<Collector>(pool, service, BuildInfo{"0.0.0", "unknown", "1"}),
       std::make_shared<RpcMetrics>(std::move(methods)), std::make_shared<ProcessCollector>()});
  if (!exposer.ok()) {
    std::cerr << exposer.status() << "\n";
    return 1;
  }
  const std::string text = BodyOf(HttpGet((*exposer)->port(), "/metrics"));
  std::cout << text;
  return text.empty() ? 1 : 0;
}

}  // namespace
}  // namespace cowshed::metrics

int main() { return cowshed::metrics::Print(); }

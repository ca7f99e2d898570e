// SPDX-License-Identifier: Apache-2.0
//
// Counts RPCs under the names that go-grpc-prometheus made usual (grpc_server_started_total and its
// siblings), by means of a gRPC server interceptor, so that no service has to remember to count.
//
// Model       One row of atomics per method, made before the server starts. A call looks its row up
//             once, then only adds. `started` is counted when the request's metadata has arrived,
//             `handled` with the status just before it is sent: a client that has its answer is
//             in the counters already. A call that ends without a status of ours counts as
//             Canceled, or as DeadlineExceeded if its deadline has passed; so does a CANCELLED
//             status, because the library reports an expired deadline to the server as a
//             cancellation.
// Invariants  The set of series is fixed at construction. A method outside the list counts under
//             service and method "other", so a client can not make up series. Each call that
//             started is handled exactly once.
// Threads     Thread-safe; lock-free. Bind the list before the first call.
// Ownership   Factories and the interceptors they make borrow the RpcMetrics: it outlives the
//             server.
// Cost        A call: one hash lookup, one small allocation (the library's contract), about five
//             relaxed atomic adds.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/stats.h"
#include "grpcpp/support/server_interceptor.h"
#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"

namespace google::protobuf {
class ServiceDescriptor;
}

namespace cowshed::metrics {

enum class RpcType : uint8_t { kUnary, kClientStream, kServerStream, kBidiStream };

struct RpcMethod {
  std::string service;  // fully qualified: "cowshed.v1.DatasetService"
  std::string method;   // "CreateDataset"
  RpcType type = RpcType::kUnary;
};

// All methods of `service`, as the list's entries.
std::vector<RpcMethod> MethodsOf(const google::protobuf::ServiceDescriptor& service);

class RpcMetrics : public prometheus::Collectable {
 public:
  static constexpr size_t kCodes = 17;  // OK .. UNAUTHENTICATED
  // From an LMDB read to a call that waits for a slow sync.
  static constexpr std::array<double, 12> kSecondsBounds = {
      0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10, 30};

  explicit RpcMetrics(std::vector<RpcMethod> methods);

  // For ServerBuilder::experimental().SetInterceptorCreators.
  std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> NewInterceptorFactory();

  std::vector<prometheus::MetricFamily> Collect() const override;

  // The counters of one method; the interceptor's view.
  struct Row {
    std::string path;  // "/service/method"
    RpcMethod method;
    engine::Counter started{0}, received{0}, sent{0};
    std::array<engine::Counter, kCodes> handled{};
    engine::Histogram<12> seconds{kSecondsBounds};
  };
  // `path` is "/service/method"; the row of "other" (per type) if it is not in the list.
  Row& RowOf(std::string_view path, RpcType type);

 private:
  std::deque<Row> rows_;  // stable addresses; the last four are "other", by type
  std::unordered_map<std::string_view, Row*> by_path_;  // keys are the rows' own paths
};

}  // namespace cowshed::metrics

// SPDX-License-Identifier: Apache-2.0
#include "metrics/rpc_metrics.h"

#include <cstring>
#include <utility>

#include "google/protobuf/descriptor.h"
#include "grpcpp/server_context.h"
#include "metrics/families.h"

namespace cowshed::metrics {
namespace {

using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::InterceptorBatchMethods;
using grpc::experimental::ServerRpcInfo;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Clock = std::chrono::steady_clock;

constexpr std::string_view kTypeNames[] = {"unary", "client_stream", "server_stream",
                                           "bidi_stream"};
constexpr size_t kTypes = std::size(kTypeNames);

// The codes in numeric order, spelt as Go's grpc does: what dashboards and alerts expect.
constexpr std::string_view kCodeNames[RpcMetrics::kCodes] = {
    "OK",       "Canceled",       "Unknown",          "InvalidArgument",   "DeadlineExceeded",
    "NotFound", "AlreadyExists",  "PermissionDenied", "ResourceExhausted", "FailedPrecondition",
    "Aborted",  "OutOfRange",     "Unimplemented",    "Internal",          "Unavailable",
    "DataLoss", "Unauthenticated"};

RpcType TypeOf(ServerRpcInfo::Type type) {
  switch (type) {
    case ServerRpcInfo::Type::UNARY:
      return RpcType::kUnary;
    case ServerRpcInfo::Type::CLIENT_STREAMING:
      return RpcType::kClientStream;
    case ServerRpcInfo::Type::SERVER_STREAMING:
      return RpcType::kServerStream;
    case ServerRpcInfo::Type::BIDI_STREAMING:
      break;
  }
  return RpcType::kBidiStream;
}

void Bump(engine::Counter& counter) { counter.fetch_add(1, std::memory_order_relaxed); }

// Counts one call. The library calls Intercept for one batch after the other, never concurrently
// for the hooks used here, and deletes the interceptor when the call is over.
class CallCounter : public grpc::experimental::Interceptor {
 public:
  CallCounter(RpcMetrics::Row& row, std::chrono::system_clock::time_point deadline)
      : row_(row), deadline_(Earliest(deadline)), start_(Clock::now()) {
    Bump(row_.started);
  }
  // No status of ours went out: the client is gone, or the library answered a request that it could
  // not parse.
  ~CallCounter() override {
    if (!handled_) Handle(grpc::StatusCode::CANCELLED);
  }

  void Intercept(InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_MESSAGE) &&
        methods->GetRecvMessage() != nullptr) {  // null: the end of the client's stream
      Bump(row_.received);
    }
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_MESSAGE)) {
      Bump(row_.sent);
    }
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      Handle(methods->GetSendStatus().error_code());
    }
    methods->Proceed();
  }

 private:
  using SystemTime = std::chrono::system_clock::time_point;

  // When the client may give the call up for its deadline: a time-out travels rounded up by as much
  // as a hundredth, and counts here from its arrival.
  static SystemTime Earliest(SystemTime deadline) {
    const auto left = deadline - std::chrono::system_clock::now();
    return deadline - left / 100 - std::chrono::milliseconds(5);
  }

  void Handle(grpc::StatusCode code) {
    handled_ = true;
    if (code == grpc::StatusCode::CANCELLED && std::chrono::system_clock::now() >= deadline_) {
      code = grpc::StatusCode::DEADLINE_EXCEEDED;
    }
    size_t index = static_cast<size_t>(code);
    if (index >= RpcMetrics::kCodes) index = static_cast<size_t>(grpc::StatusCode::UNKNOWN);
    const std::chrono::duration<double> took = Clock::now() - start_;
    row_.seconds.Observe(took.count());
    Bump(row_.handled[index]);
  }

  RpcMetrics::Row& row_;
  const SystemTime deadline_;
  const Clock::time_point start_;
  bool handled_ = false;
};

class Factory : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit Factory(RpcMetrics& metrics) : metrics_(metrics) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(ServerRpcInfo* info) override {
    return new CallCounter(metrics_.RowOf(info->method(), TypeOf(info->type())),
                           info->server_context()->deadline());
  }

 private:
  RpcMetrics& metrics_;
};

SampleLabels LabelsOf(const RpcMethod& method) {
  return {{"grpc_type", std::string(kTypeNames[static_cast<size_t>(method.type)])},
          {"grpc_service", method.service},
          {"grpc_method", method.method}};
}

double Load(const engine::Counter& counter) {
  return static_cast<double>(counter.load(std::memory_order_relaxed));
}

}  // namespace

std::vector<RpcMethod> MethodsOf(const google::protobuf::ServiceDescriptor& service) {
  std::vector<RpcMethod> methods;
  for (int i = 0; i < service.method_count(); ++i) {
    const google::protobuf::MethodDescriptor& method = *service.method(i);
    const RpcType type =
        method.client_streaming()
            ? (method.server_streaming() ? RpcType::kBidiStream : RpcType::kClientStream)
            : (method.server_streaming() ? RpcType::kServerStream : RpcType::kUnary);
    methods.push_back({service.full_name(), method.name(), type});
  }
  return methods;
}

RpcMetrics::RpcMetrics(std::vector<RpcMethod> methods) {
  for (RpcMethod& method : methods) {
    std::string path = "/" + method.service + "/" + method.method;
    if (by_path_.count(path) > 0) continue;
    Row& row = rows_.emplace_back();
    row.path = std::move(path);
    row.method = std::move(method);
    by_path_.emplace(row.path, &row);
  }
  for (size_t type = 0; type < kTypes; ++type) {
    rows_.emplace_back().method = {"other", "other", static_cast<RpcType>(type)};
  }
}

RpcMetrics::Row& RpcMetrics::RowOf(std::string_view path, RpcType type) {
  const auto found = by_path_.find(path);
  if (found != by_path_.end()) return *found->second;
  return rows_[rows_.size() - kTypes + static_cast<size_t>(type)];
}

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>
RpcMetrics::NewInterceptorFactory() {
  return std::make_unique<Factory>(*this);
}

std::vector<MetricFamily> RpcMetrics::Collect() const {
  auto started = MakeFamily("grpc_server_started_total", "RPCs that began.", MetricType::Counter);
  auto handled = MakeFamily("grpc_server_handled_total", "RPCs that ended, by status code.",
                            MetricType::Counter);
  auto received = MakeFamily("grpc_server_msg_received_total", "Messages received from clients.",
                             MetricType::Counter);
  auto sent =
      MakeFamily("grpc_server_msg_sent_total", "Messages sent to clients.", MetricType::Counter);
  auto seconds = MakeFamily("grpc_server_handling_seconds", "From an RPC's start to its status.",
                            MetricType::Histogram);
  for (const Row& row : rows_) {
    const SampleLabels labels = LabelsOf(row.method);
    AddSample(started, labels, Load(row.started));
    AddSample(received, labels, Load(row.received));
    AddSample(sent, labels, Load(row.sent));
    AddHistogram(seconds, labels, row.seconds);
    for (size_t code = 0; code < kCodes; ++code) {
      SampleLabels with_code = labels;
      with_code.push_back({"grpc_code", std::string(kCodeNames[code])});
      AddSample(handled, std::move(with_code), Load(row.handled[code]));
    }
  }
  return {std::move(started), std::move(handled), std::move(received), std::move(sent),
          std::move(seconds)};
}

}  // namespace cowshed::metrics

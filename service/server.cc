// SPDX-License-Identifier: Apache-2.0
#include "service/server.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "engine/base/status_macros.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/server_posix.h"
#include "spdlog/spdlog.h"

namespace cowshed::service {
namespace {

using std::chrono::milliseconds;

// Somewhat more than our own limit, which gives a reason: past this the library answers by itself.
constexpr int kMaxReceivedBytes = static_cast<int>(kMaxRequestBytes) + (2 << 20);
constexpr int kMaxMetadataBytes = 8 << 10;
// Past it calls queue in the library without a word; our own limits are lower and give a reason.
constexpr int kMaxConcurrentCalls = 1024;
constexpr int kClientPingIntervalMinMs = 10000;  // clients ping every 30 s
constexpr int kServerPingIntervalMs = 60000;     // finds clients whose host has gone
constexpr int kPingTimeoutMs = 20000;
constexpr milliseconds kHousekeepingMax{250};  // how late health follows the pool

const char* const kServices[] = {"cowshed.v1.DatasetService", "cowshed.v1.DataService",
                                 "cowshed.v1.AttachmentService", "cowshed.v1.OperationService",
                                 "cowshed.v1.PoolService"};

void SetArguments(const Limits& limits, grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(kMaxReceivedBytes);
  builder.SetMaxSendMessageSize(kMaxReceivedBytes);
  // Whoever opens calls or sends halves of messages in great numbers meets this bound: the library
  // then reads no more from connections, closes idle ones and cancels calls.
  grpc::ResourceQuota quota("cowshed");
  quota.Resize(limits.rpc_memory_bytes);
  builder.SetResourceQuota(quota);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                             static_cast<int>(limits.handshake_timeout.count()));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS,
                             static_cast<int>(limits.connection_idle.count()));
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxConcurrentCalls);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kClientPingIntervalMinMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kServerPingIntervalMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPingTimeoutMs);
}

// A method without a rule is a defect that shall show at once, not at its first call.
void CheckRules() {
  for (const char* name : kServices) {
    const auto* service =
        google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(name);
    for (int i = 0; i < service->method_count(); ++i) RuleOf(service->method(i)->input_type());
  }
}

}  // namespace

Server::Server(engine::Pool& pool, ServerOptions options, std::unique_ptr<AuditLog> audit_log,
               metrics::ServiceStats& stats)
    : options_(std::move(options)),
      stats_(stats),
      context_(pool, options_.limits, options_.roles.certificates,
               options_.policy ? *options_.policy : Policy::Of(options_.roles), options_.secret,
               std::move(audit_log), stats),
      datasets_(context_),
      data_(context_),
      attachments_(context_, !options_.tls.certificate.empty()),
      operations_(context_),
      pool_(context_) {}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(engine::Pool& pool, ServerOptions options,
                                                      metrics::ServiceStats& stats,
                                                      metrics::RpcMetrics* rpc_metrics) {
  options.sockets.tls = !options.tls.certificate.empty();
  std::unique_ptr<AuditLog> audit_log;
  if (!options.audit.path.empty()) {
    ASSIGN_OR_RETURN(audit_log, AuditLog::Open(options.audit, stats));
  }
  std::unique_ptr<Server> server(new Server(pool, std::move(options), std::move(audit_log), stats));
  RETURN_IF_ERROR(server->Build(rpc_metrics));
  return server;
}

absl::Status Server::Build(metrics::RpcMetrics* rpc_metrics) {
  CheckRules();
  std::vector<ListeningSocket> sockets;
  for (const auto& address : options_.listen) {
    ASSIGN_OR_RETURN(sockets.emplace_back(), Listen(address, options_.sockets));
    addresses_.push_back(sockets.back().address);
  }
  if (!options_.nbd_listen.empty()) {
    ASSIGN_OR_RETURN(nbd_, nbd::NbdServer::Listen(context_, options_.nbd_listen, options_.sockets,
                                                  options_.tls));
    context_.nbd_addresses = nbd_->addresses();
  }
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  SetArguments(options_.limits, builder);
  for (grpc::Service* service :
       {static_cast<grpc::Service*>(&datasets_), static_cast<grpc::Service*>(&data_),
        static_cast<grpc::Service*>(&attachments_), static_cast<grpc::Service*>(&operations_),
        static_cast<grpc::Service*>(&pool_)}) {
    builder.RegisterService(service);
  }
  if (rpc_metrics != nullptr) {
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> factories;
    factories.push_back(rpc_metrics->NewInterceptorFactory());
    builder.experimental().SetInterceptorCreators(std::move(factories));
  }
  ASSIGN_OR_RETURN(tls_, Tls::Make(options_.tls));
  acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, tls_->credentials());
  server_ = builder.BuildAndStart();
  if (server_ == nullptr) {
    return absl::InternalError("the gRPC server can not be built: see its log");
  }
  stats_.certificate_expiry_seconds = options_.tls.expiry_seconds;
  SetHealth(context_.pool.health().ok());
  listener_ = std::make_unique<Listener>(std::move(sockets), options_.limits.connections_max,
                                         stats_.connections);
  housekeeper_ = std::thread([this] { KeepHouse(); });
  if (nbd_ != nullptr) RETURN_IF_ERROR(nbd_->Start());
  return listener_->Start([this](Connection connection) { Serve(std::move(connection)); });
}

absl::Status Server::Install(const TlsOptions& tls) {
  RETURN_IF_ERROR(tls_->Install(tls));
  if (nbd_ != nullptr && nbd_->encrypts()) RETURN_IF_ERROR(nbd_->Install(tls));
  stats_.certificate_expiry_seconds = tls.expiry_seconds;
  return absl::OkStatus();
}

void Server::Serve(Connection connection) {
  if (connection.kind == SocketKind::kUnix) {
    FileDescriptor fd = context_.access.Claim(std::move(connection.fd), connection.peer);
    if (fd.valid()) grpc::AddInsecureChannelFromFd(server_.get(), fd.Release());
    return;
  }
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
  parameters.fd = connection.fd.Release();
  acceptor_->HandleNewConnection(&parameters);
}

void Server::KeepHouse() {
  const auto interval = std::min(
      {kHousekeepingMax, options_.limits.stall_timeout / 4, options_.limits.idle_timeout / 4});
  bool serving = true;
  engine::MutexLock lock(mutex_);
  while (!stopping_) {
    const auto now = std::chrono::steady_clock::now();
    const absl::Status health = context_.pool.health();
    if (health.ok() != serving) {
      serving = health.ok();
      spdlog::error("the pool {}", serving ? "takes changes again" : health.ToString());
      SetHealth(serving);
    }
    context_.streams.CutStalled(now);
    wake_.WaitUntil(mutex_, now + interval);
  }
}

void Server::SetHealth(bool serving) {
  grpc::HealthCheckServiceInterface* const health = server_->GetHealthCheckService();
  health->SetServingStatus("", serving);
  for (const char* service : kServices) health->SetServingStatus(service, serving);
}

void Server::Stop() {
  if (server_ == nullptr) return;
  {
    engine::MutexLock lock(mutex_);
    stopping_ = true;
    wake_.NotifyAll();
  }
  if (housekeeper_.joinable()) housekeeper_.join();
  server_->GetHealthCheckService()->Shutdown();
  if (listener_ != nullptr) listener_->Stop();
  context_.stopping = true;
  if (nbd_ != nullptr) nbd_->BeginStop();
  operations_.Stop();
  context_.streams.EndAll(Stopping());
  server_->Shutdown(std::chrono::system_clock::now() + options_.limits.drain_timeout);
  server_->Wait();
  server_.reset();
  if (nbd_ != nullptr) nbd_->Stop();
  // What cancelled calls left behind: steps on the workers, then callbacks with the pool, which the
  // sync brings in.
  context_.control.Stop();
  context_.data.Stop();
  context_.pool.Sync(context_.Counted([](const absl::StatusOr<engine::Txg>& txg) {
    if (!txg.ok()) spdlog::error("the last sync failed: {}", txg.status().ToString());
  }));
  context_.callbacks.WaitForNone();
}

std::vector<metrics::RpcMethod> Server::Methods() {
  std::vector<metrics::RpcMethod> methods;
  const auto* pool = google::protobuf::DescriptorPool::generated_pool();
  for (const char* name : kServices) {
    const auto of_service = metrics::MethodsOf(*pool->FindServiceByName(name));
    methods.insert(methods.end(), of_service.begin(), of_service.end());
  }
  return methods;
}

}  // namespace cowshed::service

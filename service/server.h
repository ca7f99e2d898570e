// SPDX-License-Identifier: Apache-2.0
//
// The server over one pool: listens, serves the five services of gRPC with health and reflection
// and, where it is asked to, NBD, and stops in order.
//
// Model       Stop: health says NOT_SERVING, listeners close, waits are answered, streams end with
//             SERVER_STOPPING, calls under way finish (within the drain timeout; then they are
//             cancelled), the pool is synced. Whatever was acknowledged is durable when it returns.
// Threads     Start and Stop from one thread. A housekeeping thread follows the pool's health and
//             cuts stalled streams.
// Ownership   Borrows pool, counters and RPC metrics, which outlive it. Owns everything else.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/mutex.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "metrics/rpc_metrics.h"
#include "metrics/service_stats.h"
#include "service/attachment_service.h"
#include "service/context.h"
#include "service/data_service.h"
#include "service/dataset_service.h"
#include "service/listener.h"
#include "service/nbd/nbd_server.h"
#include "service/operation_service.h"
#include "service/pool_service.h"
#include "service/tls.h"

namespace cowshed::service {

struct ServerOptions {
  std::vector<std::string> listen;      // `unix:PATH` or `HOST:PORT` each
  std::vector<std::string> nbd_listen;  // the same, for NBD; none: it is not served
  Limits limits;
  ListenOptions sockets;  // its member `tls` follows from the next one
  TlsOptions tls;
  Policy::Flags roles;           // where there is no
  std::optional<Policy> policy;  // of its own
  std::string secret;            // seals tokens; empty: one for this start
  AuditLog::Options audit;
};

class Server {
 public:
  // Starts to serve. `rpc_metrics` may be null.
  static absl::StatusOr<std::unique_ptr<Server>> Start(engine::Pool& pool, ServerOptions options,
                                                       metrics::ServiceStats& stats,
                                                       metrics::RpcMetrics* rpc_metrics);
  ~Server() { Stop(); }

  // Idempotent.
  void Stop();

  // Puts a policy in force, from the next call on; what is open goes on.
  void Replace(Policy policy) { context_.access.Replace(std::move(policy)); }
  // Uses other certificates, for connections to come. See Tls::Install.
  absl::Status Install(const TlsOptions& tls);

  // Where it listens, with the ports chosen.
  const std::vector<std::string>& addresses() const { return addresses_; }
  const std::vector<std::string>& nbd_addresses() const { return context_.nbd_addresses; }
  const std::string& boot_id() const { return context_.boot_id; }

  // All methods it serves, for RpcMetrics.
  static std::vector<metrics::RpcMethod> Methods();

 private:
  Server(engine::Pool& pool, ServerOptions options, std::unique_ptr<AuditLog> audit_log,
         metrics::ServiceStats& stats);

  absl::Status Build(metrics::RpcMetrics* rpc_metrics);
  void Serve(Connection connection);
  void KeepHouse() ABSL_LOCKS_EXCLUDED(mutex_);
  void SetHealth(bool serving);

  const ServerOptions options_;
  metrics::ServiceStats& stats_;
  ServiceContext context_;
  DatasetServiceImpl datasets_;
  DataServiceImpl data_;
  AttachmentServiceImpl attachments_;
  OperationServiceImpl operations_;
  PoolServiceImpl pool_;
  std::vector<std::string> addresses_;
  std::unique_ptr<Tls> tls_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<nbd::NbdServer> nbd_;
  std::thread housekeeper_;
  engine::Mutex mutex_{engine::LockRank::kServer};
  engine::CondVar wake_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace cowshed::service

// SPDX-License-Identifier: Apache-2.0
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <memory>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "engine/base/status_macros.h"
#include "engine/pool.h"
#include "grpc/grpc.h"
#include "metrics/collector.h"
#include "metrics/exposer.h"
#include "metrics/process_collector.h"
#include "service/commands.h"
#include "service/service_manager.h"
#include "spdlog/spdlog.h"

namespace cowshed::service {
namespace {

// Each connection takes two descriptors; the usual soft limit of 1,024 is for programs that use
// select(2).
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

// Waits for a signal to stop, and lets the next one kill.
void WaitForStop() {
  const sigset_t signals = StopSignals();
  int signal = 0;
  sigwait(&signals, &signal);
  spdlog::info("{}: stopping", strsignal(signal));
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

void PrintAddresses(const Server& server, const metrics::Exposer* exposer,
                    const std::string& directory, const engine::Pool& pool) {
  for (const auto& address : server.addresses()) std::printf("listening on %s\n", address.c_str());
  if (exposer != nullptr) std::printf("metrics on %s\n", exposer->address().c_str());
  std::printf("pool %s (uid %s)\n", directory.c_str(), pool.uid().c_str());
  std::printf("try: cow list\n");
  std::fflush(stdout);
}

absl::StatusOr<ServerOptions> ServerOptionsOf(const ServeOptions& options) {
  ServerOptions server;
  server.listen = options.listen;
  server.limits = options.limits;
  ASSIGN_OR_RETURN(server.tls,
                   ReadTls(options.tls_certificate, options.tls_key, options.tls_client_ca));
  server.roles.certificates = !options.tls_client_ca.empty();
  server.roles.admins = {options.admins.begin(), options.admins.end()};
  server.roles.readers = {options.readers.begin(), options.readers.end()};
  return server;
}

absl::Status Run(const ServeOptions& options) {
  ASSIGN_OR_RETURN(auto server_options, ServerOptionsOf(options));
  ASSIGN_OR_RETURN(const auto pool, engine::Pool::Open(options.pool));
  const uint64_t wanted = options.pool.capacity_bytes / engine::kSectorBytes * engine::kSectorBytes;
  const uint64_t capacity = pool->space().capacity_bytes;
  if (wanted != 0 && wanted != capacity) {
    spdlog::warn("--capacity {} is ignored: the pool exists and has a capacity of {} bytes", wanted,
                 capacity);
  }
  metrics::ServiceStats stats;
  const auto rpc_metrics = std::make_shared<metrics::RpcMetrics>(Server::Methods());
  ASSIGN_OR_RETURN(const auto server,
                   Server::Start(*pool, std::move(server_options), stats, rpc_metrics.get()));
  std::unique_ptr<metrics::Exposer> exposer;
  if (!options.metrics_listen.empty() && options.metrics_listen != "off") {
    const metrics::BuildInfo build{COWSHED_VERSION, "unknown",
                                   std::to_string(engine::kFormatVersion)};
    ASSIGN_OR_RETURN(
        exposer,
        metrics::Exposer::Listen(options.metrics_listen,
                                 {std::make_shared<metrics::Collector>(pool->stats(), stats, build),
                                  rpc_metrics, std::make_shared<metrics::ProcessCollector>()}));
  }
  PrintAddresses(*server, exposer.get(), options.pool.directory, *pool);
  NotifyServiceManager("READY=1");
  WaitForStop();
  NotifyServiceManager("STOPPING=1");
  server->Stop();
  spdlog::info("stopped; txg {} is durable", pool->committed_txg());
  return absl::OkStatus();
}

}  // namespace

int Serve(const ServeOptions& options) {
  // Blocked before any thread starts, so that all inherit it and only WaitForStop sees them.
  const sigset_t signals = StopSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  RaiseDescriptorLimit();
  // Debian's Abseil keeps a graph of all locks that gRPC takes, to find deadlocks in gRPC.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  // gRPC stays up until the process ends: its own clean-up may wait 10 s for a thread that polls.
  grpc_init();
  const absl::Status status = Run(options);
  if (status.ok()) return 0;
  spdlog::error("{}", std::string(status.message()));
  return 1;
}

}  // namespace cowshed::service

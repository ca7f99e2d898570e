// SPDX-License-Identifier: Apache-2.0
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "engine/base/status_macros.h"
#include "engine/pool.h"
#include "grpc/grpc.h"
#include "metrics/collector.h"
#include "metrics/exposer.h"
#include "metrics/process_collector.h"
#include "service/commands.h"
#include "service/secret.h"
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

sigset_t WaitedSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGHUP);
  return signals;
}

void PrintAddresses(const Server& server, const metrics::Exposer* exposer,
                    const std::string& directory, const engine::Pool& pool) {
  for (const auto& address : server.addresses()) std::printf("listening on %s\n", address.c_str());
  for (const auto& address : server.nbd_addresses()) std::printf("nbd on %s\n", address.c_str());
  if (exposer != nullptr) std::printf("metrics on %s\n", exposer->address().c_str());
  std::printf("pool %s (uid %s)\n", directory.c_str(), pool.uid().c_str());
  std::printf("try: cow list\n");
  std::fflush(stdout);
}

absl::StatusOr<ServerOptions> ServerOptionsOf(const ServeOptions& options) {
  ServerOptions server;
  server.listen = options.listen;
  server.nbd_listen = options.nbd_listen;
  server.limits = options.limits;
  server.sockets.insecure = options.insecure;
  server.sockets.unix_mode = static_cast<mode_t>(std::stoul(options.unix_mode, nullptr, 8));
  ASSIGN_OR_RETURN(server.tls, ReadTls(options.tls));
  server.roles.certificates = !options.tls.client_ca.empty();
  server.roles.admins = {options.admins.begin(), options.admins.end()};
  server.roles.readers = {options.readers.begin(), options.readers.end()};
  server.roles.users = {options.unix_allow_uids.begin(), options.unix_allow_uids.end()};
  server.audit = options.audit;
  if (options.policy.empty()) return server;
  if (!options.admins.empty() || !options.readers.empty() || !options.unix_allow_uids.empty()) {
    return absl::InvalidArgumentError(
        "--policy says who may do what: not together with --admin, --reader, --unix-allow-uid");
  }
  ASSIGN_OR_RETURN(server.policy, Policy::Read(options.policy));
  return server;
}

// Puts the files as they are now in force, each if it is whole; says and counts what is not.
void Reload(const ServeOptions& options, Server& server, metrics::ServiceStats& stats) {
  const auto report = [&stats](const char* what, const absl::Status& status) {
    if (status.ok()) return spdlog::info("{} reloaded", what);
    stats.reload_failures.fetch_add(1, std::memory_order_relaxed);
    spdlog::error("{} not reloaded, the one in force stays: {}", what,
                  std::string(status.message()));
  };
  if (!options.policy.empty()) {
    auto policy = Policy::Read(options.policy);
    if (policy.ok()) server.Replace(*std::move(policy));
    report("policy", policy.status());
  }
  if (!options.tls.certificate.empty()) {
    const auto tls = ReadTls(options.tls);
    report("certificate", tls.ok() ? server.Install(*tls) : tls.status());
  }
}

// Reloads at SIGHUP; returns at a signal to stop, and lets the next one kill.
void WaitForStop(const ServeOptions& options, Server& server, metrics::ServiceStats& stats) {
  sigset_t signals = WaitedSignals();
  int signal = 0;
  while (sigwait(&signals, &signal) == 0 && signal == SIGHUP) Reload(options, server, stats);
  spdlog::info("{}: stopping", strsignal(signal));
  sigdelset(&signals, SIGHUP);
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

void WarnOfOpenDoors(const ServeOptions& options, const Server& server,
                     const metrics::Exposer* exposer) {
  const auto is_local = [](const std::string& address) {
    return address.rfind("127.", 0) == 0 || address.rfind("[::1]", 0) == 0 ||
           address.rfind("unix:", 0) == 0;
  };
  std::vector<std::string> addresses = server.addresses();
  addresses.insert(addresses.end(), server.nbd_addresses().begin(), server.nbd_addresses().end());
  for (const auto& address : addresses) {
    if (is_local(address) || !options.policy.empty() || !options.tls.client_ca.empty()) continue;
    spdlog::warn("{}: everybody who can connect may do everything (--tls-client-ca, --policy)",
                 address);
  }
  if (exposer != nullptr && !is_local(exposer->address())) {
    spdlog::warn("{}: everybody who can connect may read the metrics", exposer->address());
  }
}

absl::Status Run(const ServeOptions& options) {
  ASSIGN_OR_RETURN(auto server_options, ServerOptionsOf(options));
  ASSIGN_OR_RETURN(const auto pool, engine::Pool::Open(options.pool));
  if (const uint64_t lost = pool->stats().log_lost_entries.load(); lost > 0) {
    spdlog::error(
        "{} durable writes could not be replayed: what is there is damaged (cowshed check)", lost);
  }
  ASSIGN_OR_RETURN(server_options.secret,
                   ReadOrMakeSecret(options.pool.directory + "/token.secret"));
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
  WarnOfOpenDoors(options, *server, exposer.get());
  NotifyServiceManager("READY=1");
  WaitForStop(options, *server, stats);
  NotifyServiceManager("STOPPING=1");
  server->Stop();
  spdlog::info("stopped; txg {} is durable", pool->committed_txg());
  return absl::OkStatus();
}

}  // namespace

int Serve(const ServeOptions& options) {
  // Blocked before any thread starts, so that all inherit it and only WaitForStop sees them.
  const sigset_t signals = WaitedSignals();
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

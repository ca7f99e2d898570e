// SPDX-License-Identifier: Apache-2.0
#include "service/nbd/nbd_server.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <system_error>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "service/nbd/handshake.h"
#include "service/nbd/transmission.h"
#include "spdlog/spdlog.h"

namespace cowshed::service::nbd {
namespace {

// Finds clients whose host has gone: after about three minutes.
constexpr int kKeepAliveIdleSeconds = 60;
constexpr int kKeepAliveIntervalSeconds = 30;
constexpr int kKeepAliveProbes = 4;

// HOST:PORT of the other end.
std::string AddressOf(int fd) {
  sockaddr_storage peer{};
  socklen_t size = sizeof(peer);
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  auto* const generic = reinterpret_cast<sockaddr*>(&peer);
  if (getpeername(fd, generic, &size) != 0 ||
      getnameinfo(generic, size, host, sizeof(host), port, sizeof(port),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "unknown";
  }
  const bool v6 = peer.ss_family == AF_INET6;
  return engine::StrCat(v6 ? "[" : "", host, v6 ? "]:" : ":", port);
}

void KeepAlive(int fd) {
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &kKeepAliveIdleSeconds, sizeof(int));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &kKeepAliveIntervalSeconds, sizeof(int));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &kKeepAliveProbes, sizeof(int));
}

Client ClientOf(const Connection& connection, uint64_t number, const Access& access) {
  Client client;
  if (connection.kind == SocketKind::kUnix) {
    client.peer = connection.peer;
    client.from = "unix";
    client.text = engine::StrCat("uid:", connection.peer.uid, " pid:", connection.pid);
    // Of a process outside our namespace of pids the kernel says 0, whichever it is.
    client.one_process = connection.pid != 0;
    client.holder = client.one_process ? client.text : engine::StrCat("connection:", number);
    return client;
  }
  client.peer = access.TcpPeer({});
  client.from = AddressOf(connection.fd.get());
  client.text = client.from;
  client.holder = engine::StrCat("connection:", number);
  return client;
}

// Under what the metrics count the end of a connection; nothing if it was the client's, or asked
// for.
std::optional<metrics::NbdError> CountedAs(const absl::Status& why, bool encrypts) {
  using metrics::NbdError;
  switch (why.code()) {
    case absl::StatusCode::kInvalidArgument:
      return NbdError::kBrokenProtocol;
    case absl::StatusCode::kDeadlineExceeded:
      return NbdError::kHandshakeTimeout;
    case absl::StatusCode::kAborted:
      return ReasonOf(why) == "READER_STALLED" ? std::optional(NbdError::kStalled) : std::nullopt;
    case absl::StatusCode::kUnavailable:
      return encrypts && ReasonOf(why).empty() ? std::optional(NbdError::kTls) : std::nullopt;
    default:
      return std::nullopt;
  }
}

}  // namespace

NbdServer::NbdServer(ServiceContext& context)
    : context_(context),
      memory_(context.limits.nbd_memory_bytes),
      workers_(context.limits.nbd_workers, /*queue_max=*/0, context.stats) {}

absl::StatusOr<std::unique_ptr<NbdServer>> NbdServer::Listen(ServiceContext& context,
                                                             const std::vector<std::string>& listen,
                                                             const ListenOptions& sockets,
                                                             const TlsOptions& tls) {
  std::unique_ptr<NbdServer> server(new NbdServer(context));
  if (!tls.certificate.empty()) {
    ASSIGN_OR_RETURN(server->tls_, TlsServer::Make(tls));
  }
  std::vector<ListeningSocket> listening;
  for (const std::string& address : listen) {
    ASSIGN_OR_RETURN(listening.emplace_back(), service::Listen(address, sockets));
    server->addresses_.push_back(listening.back().address);
  }
  server->listener_ = std::make_unique<Listener>(
      std::move(listening), context.limits.nbd_connections_max, context.stats.nbd.connections);
  return server;
}

absl::Status NbdServer::Start() {
  return listener_->Start([this](Connection connection) { Accept(std::move(connection)); });
}

void NbdServer::Accept(Connection connection) {
  JoinEnded();
  if (connection.kind == SocketKind::kTcp) KeepAlive(connection.fd.get());
  auto waker = std::make_shared<Waker>();
  if (!waker->valid()) return spdlog::warn("NBD: no descriptor left for a new connection");
  const engine::MutexLock lock(mutex_);
  if (stopping_) return;
  const uint64_t number = next_++;
  Running& running = running_[number];
  running.waker = waker;
  try {
    running.thread = std::thread([this, number, waker, taken = std::move(connection)]() mutable {
      Serve(number, std::move(taken), waker);
    });
  } catch (const std::system_error& error) {
    spdlog::warn("NBD: no thread for a new connection: {}", error.what());
    running_.erase(number);
  }
}

void NbdServer::Serve(uint64_t number, Connection connection, const std::shared_ptr<Waker>& waker) {
  Client client = ClientOf(connection, number, context_.access);
  const bool local = connection.kind == SocketKind::kUnix;
  const absl::Status why = Converse(client, std::move(connection.fd), local, waker);
  if (const auto error = CountedAs(why, !local && encrypts())) {
    context_.stats.nbd.errors[*error].fetch_add(1, std::memory_order_relaxed);
    spdlog::warn("NBD: {}: closed: {}", client.text, std::string(why.message()));
  } else if (!why.ok() && !absl::IsCancelled(why)) {
    spdlog::info("NBD: {}: closed: {}", client.text, std::string(why.message()));
  }
  departures_.Add();
  Forget(number);
}

absl::Status NbdServer::Converse(Client& client, FileDescriptor socket, bool local,
                                 const std::shared_ptr<Waker>& waker) {
  Handshake handshake(context_, departures_, local ? nullptr : tls_.get(), client,
                      MakePlainStream(std::move(socket)), waker);
  ASSIGN_OR_RETURN(Session session, handshake.Run());
  spdlog::debug("NBD: {} attached {}", client.text, session.exported.info.name);
  const auto transmission =
      std::make_shared<Transmission>(context_, workers_, memory_, waker, std::move(session));
  return transmission->Run();
}

void NbdServer::Forget(uint64_t number) {
  const engine::MutexLock lock(mutex_);
  const auto running = running_.find(number);
  ended_.push_back(std::move(running->second.thread));
  running_.erase(running);
  if (running_.empty()) none_.NotifyAll();
}

void NbdServer::JoinEnded() {
  std::vector<std::thread> ended;
  {
    const engine::MutexLock lock(mutex_);
    ended.swap(ended_);
  }
  for (std::thread& thread : ended) thread.join();
}

void NbdServer::BeginStop() {
  if (listener_ != nullptr) listener_->Stop();
  const auto deadline = Clock::now() + context_.limits.drain_timeout;
  const engine::MutexLock lock(mutex_);
  stopping_ = true;
  for (const auto& [_, running] : running_) running.waker->End(Stopping(), deadline);
}

void NbdServer::Stop() {
  BeginStop();
  {
    const engine::MutexLock lock(mutex_);
    while (!running_.empty()) none_.Wait(mutex_);
  }
  JoinEnded();
  workers_.Stop();
}

}  // namespace cowshed::service::nbd

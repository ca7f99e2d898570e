// SPDX-License-Identifier: Apache-2.0
#include "service/listener.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "engine/base/strings.h"
#include "spdlog/spdlog.h"

namespace cowshed::service {
namespace {

constexpr int kAcceptPauseMs = 50;

absl::Status AddToEpoll(int epoll, int fd, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0) return absl::OkStatus();
  return absl::InternalError(engine::StrCat("epoll_ctl: ", strerror(errno)));
}

// Who is at the other end of a unix socket, as of its connect(2); nothing if the kernel can't say.
std::optional<Peer> PeerOf(int fd, pid_t* pid) {
  Peer peer;
  peer.kind = Peer::Kind::kUnix;
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return std::nullopt;
  peer.uid = credentials.uid;
  *pid = credentials.pid;
  std::vector<gid_t> groups(64);
  size = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
  while (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &size) != 0) {
    if (errno != ERANGE) return std::nullopt;
    groups.resize(size / sizeof(gid_t));
  }
  groups.resize(size / sizeof(gid_t));
  peer.gids.assign(groups.begin(), groups.end());
  peer.gids.push_back(credentials.gid);
  return peer;
}

}  // namespace

Listener::Listener(std::vector<ListeningSocket> sockets, size_t connections_max,
                   std::atomic<uint64_t>& open_connections)
    : sockets_(std::move(sockets)),
      connections_max_(connections_max),
      open_connections_(open_connections) {}

absl::Status Listener::Start(Accepted accepted) {
  accepted_ = std::move(accepted);
  epoll_ = FileDescriptor(epoll_create1(EPOLL_CLOEXEC));
  stop_ = FileDescriptor(eventfd(0, EFD_CLOEXEC));
  absl::Status status = AddToEpoll(epoll_.get(), stop_.get(), EPOLLIN);
  for (const auto& socket : sockets_) {
    status.Update(AddToEpoll(epoll_.get(), socket.socket.get(), EPOLLIN));
  }
  if (status.ok()) thread_ = std::thread([this] { Run(); });
  return status;
}

void Listener::Stop() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    if (write(stop_.get(), &one, sizeof(one)) == sizeof(one)) thread_.join();
  }
  sockets_.clear();
  open_connections_.fetch_sub(connections_.size(), std::memory_order_relaxed);
  connections_.clear();
}

void Listener::Run() {
  while (true) {
    std::array<epoll_event, 64> events;
    const int count = epoll_wait(epoll_.get(), events.data(), events.size(), -1);
    for (int i = 0; i < count; ++i) {
      const int fd = events[i].data.fd;
      if (fd == stop_.get()) return;
      if (connections_.contains(fd)) {
        Forget(fd);
        continue;
      }
      for (const auto& socket : sockets_) {
        if (socket.socket.get() == fd) Accept(socket);
      }
    }
  }
}

void Listener::Accept(const ListeningSocket& socket) {
  FileDescriptor fd(accept4(socket.socket.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!fd.valid()) {
    const int error = errno;
    if (error == EAGAIN || error == ECONNABORTED || error == EINTR) return;
    spdlog::warn("{}: accept: {}", socket.address, strerror(error));
    // Out of descriptors or memory, and the connection still waits: give others time to go.
    poll(nullptr, 0, kAcceptPauseMs);
    return;
  }
  if (connections_.size() >= connections_max_) {
    spdlog::warn("{}: {} connections are open, which is the limit: a new one is closed",
                 socket.address, connections_max_);
    return;
  }
  Connection connection;
  connection.kind = socket.kind;
  if (socket.kind == SocketKind::kUnix) {
    const auto peer = PeerOf(fd.get(), &connection.pid);
    if (!peer) return;
    connection.peer = *peer;
  } else {
    const int on = 1;
    setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }
  Watch(fd.get());
  connection.fd = std::move(fd);
  accepted_(std::move(connection));
}

// gRPC does not say when a connection ends. A duplicate of its descriptor does: gRPC shuts a socket
// down before it closes it, and so does the peer.
void Listener::Watch(int fd) {
  FileDescriptor duplicate(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!duplicate.valid() || !AddToEpoll(epoll_.get(), duplicate.get(), EPOLLRDHUP).ok()) return;
  const int key = duplicate.get();
  connections_.emplace(key, std::move(duplicate));
  open_connections_.fetch_add(1, std::memory_order_relaxed);
}

void Listener::Forget(int duplicate) {
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, duplicate, nullptr);
  connections_.erase(duplicate);
  open_connections_.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace cowshed::service

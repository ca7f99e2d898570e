// SPDX-License-Identifier: Apache-2.0
//
// Listening sockets of our own, for what gRPC's do not do: the kernel's word on who calls (unix), a
// cap on connections, a refusal where somebody listens already, and errors that name address and
// errno. Accepted connections go to the gRPC server.
//
// Unix        `unix:PATH`. A lock file PATH.lock, held for as long as the listener lives, says that
//             the socket is taken: a socket without a holder is left over from a crash and
//             replaced, unless somebody answers on it. The socket is created for its owner and
//             group only, unless a mode is given.
// TCP         `HOST:PORT`, numeric or by name, [::1]:PORT for IPv6; port 0 takes a free one. No
//             SO_REUSEPORT: two servers never share a port by accident. Without TLS it is bound to
//             loopback only, unless `insecure`.
// Threads     Start and Stop from one thread; one thread of its own accepts.
// Ownership   Sockets, lock files, and one duplicate of each connection's descriptor, by which it
//             learns that the connection has ended.
// Cost        One thread in epoll.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "service/file_descriptor.h"
#include "service/policy.h"

namespace cowshed::service {

enum class SocketKind { kUnix, kTcp };

// A socket that listens. On a unix socket's end its file goes, then the lock.
struct ListeningSocket {
  ListeningSocket() = default;
  ListeningSocket(ListeningSocket&&) = default;
  ListeningSocket& operator=(ListeningSocket&&) = default;
  ~ListeningSocket();

  SocketKind kind = SocketKind::kTcp;
  std::string address;  // as printed: `unix:PATH` or `HOST:PORT` with the real port
  FileDescriptor socket;
  FileDescriptor lock;  // unix
};

struct ListenOptions {
  bool tls = false;       // TCP connections are encrypted
  bool insecure = false;  // even if they are not, other machines may connect
  mode_t unix_mode = 0660;
};

// Opens `address`. INVALID_ARGUMENT where it is none, or not a safe one; UNAVAILABLE
// "ADDRESS: what: errno" otherwise.
absl::StatusOr<ListeningSocket> Listen(const std::string& address, const ListenOptions& options);

// A new connection: the server's to close.
struct Connection {
  SocketKind kind = SocketKind::kTcp;
  FileDescriptor fd;
  Peer peer;
  pid_t pid = 0;  // kUnix: of the process that connected
};

class Listener {
 public:
  using Accepted = std::function<void(Connection)>;

  // Counts what is open in `open_connections`. Connections past `connections_max` are closed at
  // once, without a word: a GOAWAY with a reason makes gRPC's clients believe in a restart and
  // connect again without a pause.
  Listener(std::vector<ListeningSocket> sockets, size_t connections_max,
           std::atomic<uint64_t>& open_connections);
  ~Listener() { Stop(); }

  // Begins to accept.
  absl::Status Start(Accepted accepted);
  // Accepts no more, and removes the unix sockets. Connections stay. Idempotent.
  void Stop();

 private:
  void Run();
  void Accept(const ListeningSocket& socket);
  void Watch(int fd);
  void Forget(int duplicate);

  std::vector<ListeningSocket> sockets_;
  const size_t connections_max_;
  std::atomic<uint64_t>& open_connections_;
  Accepted accepted_;
  FileDescriptor epoll_;
  FileDescriptor stop_;                        // an eventfd
  std::map<int, FileDescriptor> connections_;  // duplicates, by descriptor; the thread's
  std::thread thread_;
};

}  // namespace cowshed::service

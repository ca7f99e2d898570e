// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "service/listener.h"

namespace cowshed::service {
namespace {

constexpr int kBacklog = 1024;
constexpr std::string_view kUnixScheme = "unix:";

absl::Status Failed(std::string_view address, std::string_view what, int error) {
  return absl::UnavailableError(engine::StrCat(address, ": ", what, ": ", strerror(error)));
}

// --- unix ---

sockaddr_un UnixAddress(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

// Takes PATH.lock; UNAVAILABLE while another server holds it.
absl::StatusOr<FileDescriptor> TakeLock(const std::string& address, const std::string& path) {
  FileDescriptor lock(open((path + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock.valid()) return Failed(address, "can not create its lock file", errno);
  if (flock(lock.get(), LOCK_EX | LOCK_NB) == 0) return lock;
  if (errno != EWOULDBLOCK) return Failed(address, "can not lock its lock file", errno);
  return Failed(address, "another server listens there", EADDRINUSE);
}

// Removes a socket that nobody listens on any more.
absl::Status RemoveStale(const std::string& address, const std::string& path) {
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0) {
    return errno == ENOENT ? absl::OkStatus() : Failed(address, "can not be examined", errno);
  }
  if (!S_ISSOCK(status.st_mode)) return Failed(address, "is no socket", EEXIST);
  const FileDescriptor probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_un target = UnixAddress(path);
  if (connect(probe.get(), reinterpret_cast<const sockaddr*>(&target), sizeof(target)) == 0) {
    return Failed(address, "another program listens there", EADDRINUSE);
  }
  if (errno != ECONNREFUSED) return Failed(address, "can not be tried", errno);
  return unlink(path.c_str()) == 0 ? absl::OkStatus()
                                   : Failed(address, "can not be replaced", errno);
}

absl::StatusOr<ListeningSocket> ListenUnix(const std::string& address, mode_t mode) {
  const std::string path = address.substr(kUnixScheme.size());
  if (path.empty()) return absl::InvalidArgumentError(address + ": no path given");
  if (path.size() >= sizeof(sockaddr_un::sun_path)) return Failed(address, "path", ENAMETOOLONG);
  ListeningSocket result;
  result.kind = SocketKind::kUnix;
  result.address = address;
  ASSIGN_OR_RETURN(result.lock, TakeLock(address, path));
  RETURN_IF_ERROR(RemoveStale(address, path));
  result.socket = FileDescriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int fd = result.socket.get();
  const sockaddr_un where = UnixAddress(path);
  // The file is created with the socket's own mode, so it is never open to more than it will be;
  // the umask, which belongs to the whole process, stays alone.
  if (fd < 0 || fchmod(fd, mode) != 0) return Failed(address, "socket", errno);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&where), sizeof(where)) != 0) {
    return Failed(address, "bind", errno);
  }
  if (chmod(path.c_str(), mode) != 0) return Failed(address, "chmod", errno);
  if (listen(fd, kBacklog) != 0) return Failed(address, "listen", errno);
  return result;
}

// --- TCP ---

struct HostPort {
  std::string host;
  std::string port;
};

std::optional<HostPort> SplitHostPort(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return std::nullopt;
  HostPort result{address.substr(0, colon), address.substr(colon + 1)};
  uint32_t port = 0;
  if (!absl::SimpleAtoi(result.port, &port) || port > 65535) return std::nullopt;
  std::string& host = result.host;
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string::npos) {
    return std::nullopt;
  }
  if (host.empty()) return std::nullopt;
  return result;
}

// HOST:PORT of a bound socket, numeric.
absl::StatusOr<std::string> BoundAddress(const std::string& address, int fd) {
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  auto* const generic = reinterpret_cast<sockaddr*>(&bound);
  if (getsockname(fd, generic, &size) != 0) return Failed(address, "getsockname", errno);
  if (const int error = getnameinfo(generic, size, host, sizeof(host), port, sizeof(port),
                                    NI_NUMERICHOST | NI_NUMERICSERV);
      error != 0) {
    return absl::UnavailableError(engine::StrCat(address, ": ", gai_strerror(error)));
  }
  const bool v6 = bound.ss_family == AF_INET6;
  return engine::StrCat(v6 ? "[" : "", host, v6 ? "]:" : ":", port);
}

// Only this machine can connect.
bool IsLoopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const auto* const v4 = reinterpret_cast<const sockaddr_in*>(address);
    return ntohl(v4->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
  }
  const in6_addr& v6 = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  const bool mapped = IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == IN_LOOPBACKNET;
  return address->sa_family == AF_INET6 && (IN6_IS_ADDR_LOOPBACK(&v6) || mapped);
}

absl::StatusOr<ListeningSocket> ListenTcp(const std::string& address,
                                          const ListenOptions& options) {
  const auto host_port = SplitHostPort(address);
  if (!host_port) {
    return absl::InvalidArgumentError(engine::StrCat(address, ": neither unix:PATH nor HOST:PORT"));
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  // RFC 6761: loopback, also where no hosts file says so.
  const char* host = host_port->host == "localhost" ? "127.0.0.1" : host_port->host.c_str();
  if (const int error = getaddrinfo(host, host_port->port.c_str(), &hints, &found); error != 0) {
    return absl::UnavailableError(engine::StrCat(address, ": ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  if (!options.tls && !options.insecure && !IsLoopback(found->ai_addr)) {
    return absl::InvalidArgumentError(engine::StrCat(
        address,
        ": other machines can connect there, and without TLS: give --tls-certificate and "
        "--tls-key, or --insecure if everybody who reaches it may do everything"));
  }
  ListeningSocket result;
  result.socket =
      FileDescriptor(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int fd = result.socket.get();
  const int on = 1;
  if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0) {
    return Failed(address, "socket", errno);
  }
  if (bind(fd, found->ai_addr, found->ai_addrlen) != 0) return Failed(address, "bind", errno);
  if (listen(fd, kBacklog) != 0) return Failed(address, "listen", errno);
  ASSIGN_OR_RETURN(result.address, BoundAddress(address, fd));
  return result;
}

}  // namespace

ListeningSocket::~ListeningSocket() {
  if (kind != SocketKind::kUnix || !socket.valid()) return;
  // Under the lock: what lies there is ours.
  unlink(address.substr(kUnixScheme.size()).c_str());
}

absl::StatusOr<ListeningSocket> Listen(const std::string& address, const ListenOptions& options) {
  const bool unix_socket = address.compare(0, kUnixScheme.size(), kUnixScheme) == 0;
  return unix_socket ? ListenUnix(address, options.unix_mode) : ListenTcp(address, options);
}

}  // namespace cowshed::service

// SPDX-License-Identifier: Apache-2.0
#include "metrics/exposer.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <exception>
#include <optional>
#include <utility>

#include "engine/base/strings.h"
#include "prometheus/exposer.h"

namespace cowshed::metrics {
namespace {

using engine::StrCat;

// One resolved address to bind.
struct Endpoint {
  sockaddr_storage address = {};
  socklen_t address_bytes = 0;
  std::string host;  // numeric, in brackets for IPv6
  uint16_t port = 0;
};

absl::Status NotAnAddress(const std::string& address, const char* why) {
  return absl::InvalidArgumentError(
      StrCat("metrics address \"", address, "\" is not HOST:PORT: ", why));
}

absl::StatusOr<Endpoint> Resolve(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return NotAnAddress(address, "no port");
  std::string host = address.substr(0, colon);
  const bool bracketed = host.size() >= 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string::npos) {
    return NotAnAddress(address, "IPv6 goes in brackets");
  }
  if (host.empty()) return NotAnAddress(address, "no host (0.0.0.0 means every interface)");

  Endpoint endpoint;
  const char* end = address.data() + address.size();
  const auto parsed = std::from_chars(address.data() + colon + 1, end, endpoint.port);
  if (parsed.ec != std::errc() || parsed.ptr != end) {
    return NotAnAddress(address, "the port is no number up to 65535");
  }

  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  // RFC 6761: loopback, also where no hosts file says so.
  if (host == "localhost") host = "127.0.0.1";
  if (const int rc = getaddrinfo(host.c_str(), nullptr, &hints, &found); rc != 0) {
    return NotAnAddress(address, gai_strerror(rc));
  }
  endpoint.address_bytes = found->ai_addrlen;
  std::memcpy(&endpoint.address, found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);

  char numeric[INET6_ADDRSTRLEN] = {};
  if (endpoint.address.ss_family == AF_INET6) {
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&endpoint.address);
    v6->sin6_port = htons(endpoint.port);
    inet_ntop(AF_INET6, &v6->sin6_addr, numeric, sizeof(numeric));
    endpoint.host = StrCat("[", numeric, "]");
  } else {
    auto* v4 = reinterpret_cast<sockaddr_in*>(&endpoint.address);
    v4->sin_port = htons(endpoint.port);
    inet_ntop(AF_INET, &v4->sin_addr, numeric, sizeof(numeric));
    endpoint.host = numeric;
  }
  return endpoint;
}

// Why `endpoint` cannot be listened on, as the kernel says it; 0 if it can. The HTTP library keeps
// the reason to itself.
int ListenErrno(const Endpoint& endpoint) {
  const int fd = socket(endpoint.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno;
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const auto* address = reinterpret_cast<const sockaddr*>(&endpoint.address);
  int error = 0;
  if (bind(fd, address, endpoint.address_bytes) != 0 || listen(fd, 1) != 0) error = errno;
  close(fd);
  return error;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Exposer>> Exposer::Listen(
    const std::string& address,
    std::vector<std::shared_ptr<prometheus::Collectable>> collectables) {
  const absl::StatusOr<Endpoint> endpoint = Resolve(address);
  if (!endpoint.ok()) return endpoint.status();
  std::unique_ptr<prometheus::Exposer> server;
  try {
    server = std::make_unique<prometheus::Exposer>(StrCat(endpoint->host, ":", endpoint->port));
  } catch (const std::exception& exception) {
    const int error = ListenErrno(*endpoint);
    return absl::UnavailableError(StrCat("cannot serve metrics on ", address, ": ",
                                         error != 0 ? std::strerror(error) : exception.what()));
  }
  return std::unique_ptr<Exposer>(
      new Exposer(endpoint->host, std::move(server), std::move(collectables)));
}

Exposer::Exposer(std::string host, std::unique_ptr<prometheus::Exposer> server,
                 std::vector<std::shared_ptr<prometheus::Collectable>> collectables)
    : host_(std::move(host)), collectables_(std::move(collectables)), server_(std::move(server)) {
  port_ = static_cast<uint16_t>(server_->GetListeningPorts().front());
  for (const auto& collectable : collectables_) server_->RegisterCollectable(collectable);
}

Exposer::~Exposer() = default;

}  // namespace cowshed::metrics

// SPDX-License-Identifier: Apache-2.0
//
// Serves the metrics over HTTP at /metrics, on a port of its own, so that a scrape never competes
// with RPCs for the service's threads. No TLS and no authentication: bind it to loopback or to a
// network that may see the figures.
//
// Threads     Thread-safe; two HTTP threads of its own.
// Ownership   Shares the collectables with the caller. What they borrow outlives the exposer, whose
//             destructor waits for a scrape under way.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "prometheus/collectable.h"

namespace prometheus {
class Exposer;
}

namespace cowshed::metrics {

class Exposer {
 public:
  // Listens on `address`, HOST:PORT ("127.0.0.1:9742", "[::1]:9742", "localhost:0"); port 0 takes a
  // free one. INVALID_ARGUMENT for an address that is none, UNAVAILABLE naming address and errno
  // where it can not listen.
  static absl::StatusOr<std::unique_ptr<Exposer>> Listen(
      const std::string& address,
      std::vector<std::shared_ptr<prometheus::Collectable>> collectables);
  ~Exposer();
  Exposer(const Exposer&) = delete;
  Exposer& operator=(const Exposer&) = delete;

  const std::string& host() const { return host_; }  // numeric, in brackets for IPv6
  uint16_t port() const { return port_; }            // the one chosen if 0 was asked for
  std::string address() const { return host_ + ":" + std::to_string(port_); }

 private:
  Exposer(std::string host, std::unique_ptr<prometheus::Exposer> server,
          std::vector<std::shared_ptr<prometheus::Collectable>> collectables);

  const std::string host_;
  uint16_t port_ = 0;
  const std::vector<std::shared_ptr<prometheus::Collectable>> collectables_;
  std::unique_ptr<prometheus::Exposer> server_;  // destroyed first
};

}  // namespace cowshed::metrics

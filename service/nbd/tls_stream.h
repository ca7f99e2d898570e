// SPDX-License-Identifier: Apache-2.0
//
// TLS for NBD: what STARTTLS turns a connection into. gRPC's TLS (service/tls.h) serves gRPC only,
// so this one speaks to OpenSSL itself, with the same certificates.
//
// Model       Certificates are a context of OpenSSL's, replaced whole by Install; a connection
// keeps
//             the one that it began with. TLS 1.2 or newer, no sessions to resume. With an
//             authority for clients, a client may come without a certificate, to be told so by the
//             server in NBD's own words; one that does not hold is refused here.
// Threads     TlsServer is thread-safe. OpenSSL's state of one connection is not: a lock of the
//             stream's is held around each call of it, none of which waits.
// Ownership   A stream owns its socket.
#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/mutex.h"
#include "service/nbd/stream.h"
#include "service/nbd/waker.h"
#include "service/tls.h"

namespace cowshed::service::nbd {

// A connection after its handshake.
struct TlsConnection {
  std::unique_ptr<Stream> stream;
  // Whom a verified certificate names: its SANs, or the CN where it has none. Empty without one.
  std::vector<std::string> names;
};

class TlsServer {
 public:
  // REQUIRES: a certificate in `options`.
  static absl::StatusOr<std::unique_ptr<TlsServer>> Make(const TlsOptions& options);

  // Handshakes to come use `options`.
  absl::Status Install(const TlsOptions& options) ABSL_LOCKS_EXCLUDED(mutex_);

  // The handshake over `plain`'s socket. UNAVAILABLE, saying why; DEADLINE_EXCEEDED.
  absl::StatusOr<TlsConnection> Accept(std::unique_ptr<Stream> plain, Waker& waker,
                                       Clock::time_point deadline) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  TlsServer() = default;

  mutable engine::Mutex mutex_{engine::LockRank::kLeaf};
  std::shared_ptr<SSL_CTX> context_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cowshed::service::nbd

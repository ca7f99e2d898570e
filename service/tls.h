// SPDX-License-Identifier: Apache-2.0
//
// TLS of the TCP listeners, with certificates that can be replaced while the server runs.
//
// Model       ReadTls reads the files and proves that they fit together; only then does Install
//             hand them to gRPC, which reads them again for handshakes to come. A set that is
//             broken is never installed, so the one in force stays; connections live on with what
//             they began with.
// How         gRPC 1.51 reloads from files only, and forgets the old set before it looks at the new
//             one. So it gets files that only ever hold a good set: anonymous ones in memory
//             (memfd), read through /proc/self/fd, replaced whole by dup2. Key and certificate are
//             one file, each set has a time stamp of its own: what gRPC reads belongs together.
// Threads     Install from one thread at a time; gRPC's refresh thread reads.
// Ownership   The two files, and gRPC's credentials.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/security/server_credentials.h"
#include "service/file_descriptor.h"

namespace cowshed::service {

// Paths of PEM files; empty: not given.
struct TlsPaths {
  std::string certificate;
  std::string key;
  std::string client_ca;
};

// PEM texts. Without a certificate the listeners speak in the clear.
struct TlsOptions {
  std::string certificate;
  std::string key;
  std::string client_ca;        // demands certificates of clients; see Access
  uint64_t expiry_seconds = 0;  // unix time at which the certificate ends
};

// Reads the files. INVALID_ARGUMENT naming the file that is missing, unreadable, no certificate or
// no key, or the two that do not belong together.
absl::StatusOr<TlsOptions> ReadTls(const TlsPaths& paths);

class Tls {
 public:
  // How late a handshake may still use the set before, at most.
  static constexpr unsigned kRefreshSeconds = 1;

  // Credentials for `options`; in the clear without a certificate.
  static absl::StatusOr<std::unique_ptr<Tls>> Make(const TlsOptions& options);

  const std::shared_ptr<grpc::ServerCredentials>& credentials() const { return credentials_; }

  // Handshakes use `options` from now on. FAILED_PRECONDITION if it turns TLS or the demand for
  // client certificates on or off: that takes a restart.
  absl::Status Install(const TlsOptions& options);

 private:
  Tls() = default;
  // Puts `text` in the place of what `file` holds.
  absl::Status Put(const std::string& text, FileDescriptor* file);

  FileDescriptor pair_;  // key and certificate
  FileDescriptor ca_;
  int64_t version_ = 0;  // the time stamp of the next set, in seconds
  std::shared_ptr<grpc::ServerCredentials> credentials_;
};

}  // namespace cowshed::service

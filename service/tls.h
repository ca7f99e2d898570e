// SPDX-License-Identifier: Apache-2.0
//
// What the TCP listeners need for TLS, read once at the start.
//
// Threads     Free functions, thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace cowshed::service {

// PEM texts. Without a certificate the listeners speak in the clear.
struct TlsOptions {
  std::string certificate;
  std::string key;
  std::string client_ca;        // demands certificates of clients; see Access
  uint64_t expiry_seconds = 0;  // unix time at which the certificate ends
};

// Reads the files (an empty path: not given). INVALID_ARGUMENT naming the file that is missing,
// unreadable or no certificate.
absl::StatusOr<TlsOptions> ReadTls(const std::string& certificate_path, const std::string& key_path,
                                   const std::string& client_ca_path);

}  // namespace cowshed::service

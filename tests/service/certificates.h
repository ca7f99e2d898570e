// SPDX-License-Identifier: Apache-2.0
//
// Certificates made for one test: an authority, and what it signs.
//
// Threads     Externally synchronised.
#pragma once

#include <openssl/x509.h>

#include <memory>
#include <string>

#include "grpcpp/channel.h"

namespace cowshed::service {

struct Certificate {
  std::string pem;
  std::string key_pem;
};

// What a certificate says besides its name.
struct Traits {
  bool with_san = true;  // the name is a DNS SAN, too
  long days = 1;
  std::string san = "";  // another name than the CN
};

class Authority {
 public:
  Authority();
  ~Authority();
  // A certificate for the DNS name `name`.
  Certificate Sign(const std::string& name, const Traits& traits = {}) const;
  const std::string& pem() const { return pem_; }

 private:
  EVP_PKEY* key_;
  X509* certificate_;
  std::string pem_;
};

// A channel to the server `cowshed.test` at `address`, of `authority`, for a client with this
// certificate; none for an empty one.
std::shared_ptr<grpc::Channel> ConnectTls(const std::string& address, const Authority& authority,
                                          const Certificate& client);

}  // namespace cowshed::service

// SPDX-License-Identifier: Apache-2.0
//
// Certificates made for one test: an authority, and what it signs.
//
// Threads     Externally synchronised.
#pragma once

#include <openssl/x509.h>

#include <memory>
#include <string>

namespace cowshed::service {

struct Certificate {
  std::string pem;
  std::string key_pem;
};

class Authority {
 public:
  Authority();
  ~Authority();
  // A certificate for the DNS name `name` (its SAN), good for a day.
  Certificate Sign(const std::string& name) const;
  const std::string& pem() const { return pem_; }

 private:
  EVP_PKEY* key_;
  X509* certificate_;
  std::string pem_;
};

}  // namespace cowshed::service

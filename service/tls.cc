// SPDX-License-Identifier: Apache-2.0
#include "service/tls.h"

#include <openssl/bio.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <ctime>
#include <fstream>
#include <memory>
#include <sstream>

#include "engine/base/status_macros.h"
#include "engine/base/strings.h"

namespace cowshed::service {
namespace {

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  if (path.empty()) return std::string();
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file || text.str().empty()) {
    return absl::InvalidArgumentError(engine::StrCat(path, ": can not be read"));
  }
  return text.str();
}

// When the first certificate of a PEM text ends; 0 if there is none.
uint64_t ExpirySeconds(const std::string& pem) {
  const std::unique_ptr<BIO, decltype(&BIO_free_all)> bio(
      BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), BIO_free_all);
  const std::unique_ptr<X509, decltype(&X509_free)> certificate(
      PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr), X509_free);
  std::tm end{};
  if (certificate == nullptr || ASN1_TIME_to_tm(X509_get0_notAfter(certificate.get()), &end) != 1) {
    return 0;
  }
  return static_cast<uint64_t>(timegm(&end));
}

}  // namespace

absl::StatusOr<TlsOptions> ReadTls(const std::string& certificate_path, const std::string& key_path,
                                   const std::string& client_ca_path) {
  TlsOptions tls;
  if (certificate_path.empty() != key_path.empty()) {
    return absl::InvalidArgumentError("a certificate and its key go together");
  }
  if (certificate_path.empty() && !client_ca_path.empty()) {
    return absl::InvalidArgumentError("certificates of clients need one of the server");
  }
  ASSIGN_OR_RETURN(tls.certificate, ReadFile(certificate_path));
  ASSIGN_OR_RETURN(tls.key, ReadFile(key_path));
  ASSIGN_OR_RETURN(tls.client_ca, ReadFile(client_ca_path));
  if (tls.certificate.empty()) return tls;
  tls.expiry_seconds = ExpirySeconds(tls.certificate);
  if (tls.expiry_seconds == 0) {
    return absl::InvalidArgumentError(engine::StrCat(certificate_path, ": holds no certificate"));
  }
  return tls;
}

}  // namespace cowshed::service

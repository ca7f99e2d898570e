// SPDX-License-Identifier: Apache-2.0
#include "service/tls.h"

#include <fcntl.h>
#include <openssl/bio.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <fstream>
#include <memory>
#include <sstream>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_credentials_options.h"

namespace cowshed::service {
namespace {

using BioPtr = std::unique_ptr<BIO, decltype(&BIO_free_all)>;
using X509Ptr = std::unique_ptr<X509, decltype(&X509_free)>;
using KeyPtr = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;

absl::Status Wrong(const std::string& path, std::string_view what) {
  return absl::InvalidArgumentError(engine::StrCat(path, ": ", what));
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  if (path.empty()) return std::string();
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file || text.str().empty()) return Wrong(path, "can not be read");
  return text.str();
}

BioPtr BioOf(const std::string& pem) {
  return {BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), BIO_free_all};
}

// The first certificate of a PEM text; null if there is none.
X509Ptr FirstCertificate(const std::string& pem) {
  return {PEM_read_bio_X509(BioOf(pem).get(), nullptr, nullptr, nullptr), X509_free};
}

// A key that is locked by a pass phrase is none: nobody is asked.
KeyPtr KeyOf(const std::string& pem) {
  const auto no_phrase = [](char*, int, int, void*) { return 0; };
  return {PEM_read_bio_PrivateKey(BioOf(pem).get(), nullptr, no_phrase, nullptr), EVP_PKEY_free};
}

uint64_t ExpirySeconds(const X509* certificate) {
  std::tm end{};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &end) != 1) return 0;
  return static_cast<uint64_t>(timegm(&end));
}

std::string PathOf(const FileDescriptor& file) {
  return engine::StrCat("/proc/self/fd/", file.get());
}

absl::Status SystemError(std::string_view what) {
  return absl::UnavailableError(engine::StrCat("TLS: ", what, ": ", strerror(errno)));
}

}  // namespace

absl::StatusOr<TlsOptions> ReadTls(const TlsPaths& paths) {
  TlsOptions tls;
  if (paths.certificate.empty() != paths.key.empty()) {
    return absl::InvalidArgumentError("a certificate and its key go together");
  }
  if (paths.certificate.empty() && !paths.client_ca.empty()) {
    return absl::InvalidArgumentError("certificates of clients need one of the server");
  }
  ASSIGN_OR_RETURN(tls.certificate, ReadFile(paths.certificate));
  ASSIGN_OR_RETURN(tls.key, ReadFile(paths.key));
  ASSIGN_OR_RETURN(tls.client_ca, ReadFile(paths.client_ca));
  if (tls.certificate.empty()) return tls;
  const X509Ptr certificate = FirstCertificate(tls.certificate);
  if (certificate == nullptr) return Wrong(paths.certificate, "holds no certificate");
  tls.expiry_seconds = ExpirySeconds(certificate.get());
  if (tls.expiry_seconds == 0) return Wrong(paths.certificate, "has no end that can be read");
  const KeyPtr key = KeyOf(tls.key);
  if (key == nullptr) return Wrong(paths.key, "holds no private key without a pass phrase");
  if (X509_check_private_key(certificate.get(), key.get()) != 1) {
    return Wrong(paths.key, engine::StrCat("is not the key of ", paths.certificate));
  }
  if (!tls.client_ca.empty() && FirstCertificate(tls.client_ca) == nullptr) {
    return Wrong(paths.client_ca, "holds no certificate");
  }
  return tls;
}

absl::StatusOr<std::unique_ptr<Tls>> Tls::Make(const TlsOptions& options) {
  std::unique_ptr<Tls> tls(new Tls);
  if (options.certificate.empty()) {
    tls->credentials_ = grpc::InsecureServerCredentials();
    return tls;
  }
  RETURN_IF_ERROR(tls->Put(options.key + "\n" + options.certificate, &tls->pair_));
  if (!options.client_ca.empty()) RETURN_IF_ERROR(tls->Put(options.client_ca, &tls->ca_));
  auto provider = std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
      PathOf(tls->pair_), PathOf(tls->pair_), tls->ca_.valid() ? PathOf(tls->ca_) : "",
      kRefreshSeconds);
  grpc::experimental::TlsServerCredentialsOptions credentials(std::move(provider));
  credentials.watch_identity_key_cert_pairs();
  if (tls->ca_.valid()) {
    credentials.watch_root_certs();
    // A client without a certificate gets through to be told so, with a reason.
    credentials.set_cert_request_type(GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  tls->credentials_ = grpc::experimental::TlsServerCredentials(credentials);
  return tls;
}

absl::Status Tls::Install(const TlsOptions& options) {
  if (pair_.valid() != !options.certificate.empty() || ca_.valid() != !options.client_ca.empty()) {
    return absl::FailedPreconditionError(
        "TLS and the demand for client certificates are turned on and off by a restart only");
  }
  if (!pair_.valid()) return absl::OkStatus();
  RETURN_IF_ERROR(Put(options.key + "\n" + options.certificate, &pair_));
  return ca_.valid() ? Put(options.client_ca, &ca_) : absl::OkStatus();
}

absl::Status Tls::Put(const std::string& text, FileDescriptor* file) {
  FileDescriptor next(memfd_create("cowshed-tls", MFD_CLOEXEC));
  if (!next.valid() || fchmod(next.get(), S_IRUSR) != 0) return SystemError("memfd_create");
  if (write(next.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    return SystemError("write");
  }
  // gRPC compares whole seconds before and after it reads.
  if (version_ == 0) version_ = std::time(nullptr);
  const timespec stamp[2] = {{++version_, 0}, {version_, 0}};
  if (futimens(next.get(), stamp) != 0) return SystemError("futimens");
  if (!file->valid()) {
    *file = std::move(next);
  } else if (dup3(next.get(), file->get(), O_CLOEXEC) < 0) {
    return SystemError("dup3");
  }
  return absl::OkStatus();
}

}  // namespace cowshed::service

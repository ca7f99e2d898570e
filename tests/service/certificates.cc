// SPDX-License-Identifier: Apache-2.0
#include "tests/service/certificates.h"

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include "grpcpp/create_channel.h"

namespace cowshed::service {
namespace {

constexpr long kDaySeconds = 86400;

std::string TextOf(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  std::string text(data, static_cast<size_t>(size));
  BIO_free(bio);
  return text;
}

std::string PemOf(X509* certificate) {
  BIO* bio = BIO_new(BIO_s_mem());
  PEM_write_bio_X509(bio, certificate);
  return TextOf(bio);
}

std::string PemOf(EVP_PKEY* key) {
  BIO* bio = BIO_new(BIO_s_mem());
  PEM_write_bio_PrivateKey(bio, key, nullptr, nullptr, 0, nullptr, nullptr);
  return TextOf(bio);
}

void AddExtension(X509* certificate, int nid, const std::string& value) {
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, nid, value.c_str());
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

// An unsigned certificate of `name` for `key`.
X509* Draft(const std::string& name, EVP_PKEY* key, long serial, long days = 1) {
  X509* certificate = X509_new();
  X509_set_version(certificate, X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), serial);
  X509_gmtime_adj(X509_getm_notBefore(certificate), -60);
  X509_gmtime_adj(X509_getm_notAfter(certificate), days * kDaySeconds);
  X509_set_pubkey(certificate, key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  return certificate;
}

}  // namespace

Authority::Authority()
    : key_(EVP_PKEY_Q_keygen(nullptr, nullptr, "EC", "P-256")),
      certificate_(Draft("authority", key_, 1)) {
  X509_set_issuer_name(certificate_, X509_get_subject_name(certificate_));
  AddExtension(certificate_, NID_basic_constraints, "critical,CA:TRUE");
  X509_sign(certificate_, key_, EVP_sha256());
  pem_ = PemOf(certificate_);
}

Authority::~Authority() {
  X509_free(certificate_);
  EVP_PKEY_free(key_);
}

Certificate Authority::Sign(const std::string& name, const Traits& traits) const {
  static long serial = 2;
  EVP_PKEY* key = EVP_PKEY_Q_keygen(nullptr, nullptr, "EC", "P-256");
  X509* certificate = Draft(name, key, serial++, traits.days);
  X509_set_issuer_name(certificate, X509_get_subject_name(certificate_));
  if (traits.with_san)
    AddExtension(certificate, NID_subject_alt_name,
                 "DNS:" + (traits.san.empty() ? name : traits.san));
  X509_sign(certificate, key_, EVP_sha256());
  Certificate result{PemOf(certificate), PemOf(key)};
  X509_free(certificate);
  EVP_PKEY_free(key);
  return result;
}

std::shared_ptr<grpc::Channel> ConnectTls(const std::string& address, const Authority& authority,
                                          const Certificate& client) {
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = authority.pem();
  options.pem_cert_chain = client.pem;
  options.pem_private_key = client.key_pem;
  grpc::ChannelArguments arguments;
  arguments.SetSslTargetNameOverride("cowshed.test");
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::SslCredentials(options), arguments);
}

}  // namespace cowshed::service

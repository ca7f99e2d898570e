// SPDX-License-Identifier: Apache-2.0
#include "service/digest.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <array>
#include <cstring>
#include <vector>

#include "absl/strings/escaping.h"
#include "engine/base/check.h"

namespace cowshed::service {
namespace {

const unsigned char* Bytes(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

}  // namespace

std::string Hmac(std::string_view key, std::string_view message, size_t size_bytes) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned int digest_bytes = 0;
  const bool made = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), Bytes(message),
                         message.size(), digest.data(), &digest_bytes) != nullptr;
  COWSHED_CHECK(made && size_bytes <= digest_bytes, "HMAC-SHA-256 is always available");
  return std::string(reinterpret_cast<const char*>(digest.data()), size_bytes);
}

uint64_t Fingerprint(std::string_view message) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  const bool made = EVP_Digest(message.data(), message.size(), digest.data(), nullptr, EVP_sha256(),
                               nullptr) == 1;
  COWSHED_CHECK(made, "SHA-256 is always available");
  uint64_t fingerprint = 0;
  std::memcpy(&fingerprint, digest.data(), sizeof(fingerprint));
  return fingerprint;
}

std::string RandomHex(size_t size_bytes) {
  std::vector<unsigned char> random(size_bytes);
  COWSHED_CHECK(RAND_bytes(random.data(), static_cast<int>(size_bytes)) == 1,
                "the system has randomness");
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(random.data()), size_bytes));
}

}  // namespace cowshed::service

// SPDX-License-Identifier: Apache-2.0
//
// The few uses of cryptography in the service, so that OpenSSL has one home: keyed digests that
// prove a token is one of ours, fingerprints of requests, and random identities.
//
// Threads     Free functions, thread-safe.
// Cost        A digest of a token's size takes about a microsecond.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace cowshed::service {

// HMAC-SHA-256 of `message` under `key`, cut to `size_bytes` (at most 32).
std::string Hmac(std::string_view key, std::string_view message, size_t size_bytes);

// The first 64 bits of SHA-256: two different requests never share it by accident.
uint64_t Fingerprint(std::string_view message);

// `size_bytes` of the system's randomness as lower-case hex digits.
std::string RandomHex(size_t size_bytes);

}  // namespace cowshed::service

// SPDX-License-Identifier: Apache-2.0
//
// How values and keys of the metadata store are put into bytes: values little-endian and in the
// order of the calls, keys big-endian so that LMDB sorts them as numbers.
//
// Threads     Externally synchronised.
// Ownership   Decoder borrows the bytes it reads.
#pragma once

#include <concepts>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "absl/status/status.h"

namespace cowshed::engine {

class Encoder {
 public:
  // Appends a number, an enum or a trivially copyable on-disk struct as it lies in memory.
  template <typename T>
  Encoder& Put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  // Appends a 16-bit length and the bytes. REQUIRES: at most 65,535 bytes.
  Encoder& PutString(std::string_view value) {
    Put(static_cast<uint16_t>(value.size()));
    bytes_.append(value);
    return *this;
  }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Reads in the same order. After a short read every further Get yields zeros; Finish() tells.
class Decoder {
 public:
  explicit Decoder(std::string_view bytes) : rest_(bytes) {}

  template <typename T>
  Decoder& Get(T* value) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (rest_.size() < sizeof(T)) {
      ok_ = false;
      std::memset(static_cast<void*>(value), 0, sizeof(T));
      return *this;
    }
    std::memcpy(static_cast<void*>(value), rest_.data(), sizeof(T));
    rest_.remove_prefix(sizeof(T));
    return *this;
  }
  Decoder& GetString(std::string* value) {
    uint16_t length = 0;
    Get(&length);
    if (rest_.size() < length) {
      ok_ = false;
      length = 0;
    }
    value->assign(rest_.substr(0, length));
    rest_.remove_prefix(length);
    return *this;
  }
  bool ok() const { return ok_; }
  size_t remaining() const { return rest_.size(); }
  // OK if everything was there and nothing is left; else DATA_LOSS naming `what`.
  absl::Status Finish(std::string_view what) const {
    if (ok_ && rest_.empty()) {
      return absl::OkStatus();
    }
    return absl::DataLossError(std::string(what) + " has a wrong length");
  }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

// A key of big-endian numbers, optionally ending in bytes.
class Key {
 public:
  Key() = default;
  template <typename... Parts>
  explicit Key(Parts... parts) {
    (Append(parts), ...);
  }
  template <typename T>
  requires std::unsigned_integral<T> || std::is_enum_v<T> Key& Append(T number) {
    for (int shift = static_cast<int>(sizeof(T)) * 8 - 8; shift >= 0; shift -= 8) {
      bytes_.push_back(static_cast<char>(static_cast<uint64_t>(number) >> shift));
    }
    return *this;
  }
  Key& Append(std::string_view text) {
    bytes_.append(text);
    return *this;
  }
  // NOLINTNEXTLINE(google-explicit-constructor): a key is its bytes wherever one is asked for.
  operator std::string_view() const { return bytes_; }

 private:
  std::string bytes_;
};

// Reads the number at byte `offset` of a key. REQUIRES: the key is long enough.
template <typename T>
T KeyNumber(std::string_view key, size_t offset) {
  uint64_t number = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    number = number << 8 | static_cast<unsigned char>(key[offset + i]);
  }
  return static_cast<T>(number);
}

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// The bytes of a fuzzer's input, taken from the front. After the last one there are only zeros, so
// that every input is a valid one.
//
// Threads     Externally synchronised.
// Ownership   Borrows the input.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace cowshed::fuzz {

class ByteSource {
 public:
  ByteSource(const uint8_t* data, size_t size) : rest_(reinterpret_cast<const char*>(data), size) {}
  explicit ByteSource(std::string_view bytes) : rest_(bytes) {}

  bool empty() const { return rest_.empty(); }
  uint8_t Take() { return Number<uint8_t>(); }
  template <typename T>
  T Number() {
    T number = 0;
    const std::string_view bytes = Bytes(sizeof(T));
    if (!bytes.empty()) std::memcpy(&number, bytes.data(), bytes.size());
    return number;
  }
  // The next `size` bytes, or as many as there are.
  std::string_view Bytes(size_t size) {
    const std::string_view bytes = rest_.substr(0, size);
    rest_.remove_prefix(bytes.size());
    return bytes;
  }
  std::string_view Rest() { return Bytes(rest_.size()); }

 private:
  std::string_view rest_;
};

}  // namespace cowshed::fuzz

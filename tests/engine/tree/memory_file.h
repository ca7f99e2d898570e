// SPDX-License-Identifier: Apache-2.0
//
// A data file in memory that counts its reads.
//
// Threads     Externally synchronised.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <unordered_map>

#include "engine/store/file.h"
#include "engine/store/format.h"
#include "tests/support/testing.h"

namespace cowshed::engine {

// A sparse file in memory, in whole sectors.
class MemoryFile final : public File {
 public:
  absl::Status Read(uint64_t offset, std::span<std::byte> out) const override {
    for (size_t done = 0; done < out.size(); done += kSectorBytes) {
      const size_t bytes = std::min<size_t>(kSectorBytes, out.size() - done);
      const auto sector = sectors_.find((offset + done) / kSectorBytes);
      if (sector == sectors_.end()) {
        std::memset(out.data() + done, 0, bytes);
      } else {
        std::memcpy(out.data() + done, sector->second.data(), bytes);
      }
    }
    ++reads_;
    return absl::OkStatus();
  }
  absl::Status Write(uint64_t offset, std::span<const std::byte> data) override {
    for (size_t done = 0; done < data.size(); done += kSectorBytes) {
      const size_t bytes = std::min<size_t>(kSectorBytes, data.size() - done);
      std::memcpy(sectors_[(offset + done) / kSectorBytes].data(), data.data() + done, bytes);
    }
    return absl::OkStatus();
  }
  absl::Status WriteV(uint64_t offset, std::span<const iovec> pieces) override {
    for (const iovec& piece : pieces) {
      const auto* data = static_cast<const std::byte*>(piece.iov_base);
      EXPECT_OK(Write(offset, std::span(data, piece.iov_len)));
      offset += piece.iov_len;
    }
    return absl::OkStatus();
  }
  absl::Status Sync() override { return absl::OkStatus(); }
  absl::Status Punch(uint64_t, uint64_t) override { return absl::OkStatus(); }
  absl::Status Truncate(uint64_t bytes) override {
    size_bytes_ = bytes;
    return absl::OkStatus();
  }
  absl::StatusOr<uint64_t> SizeBytes() const override { return size_bytes_; }
  absl::StatusOr<uint64_t> HostFreeBytes() const override { return uint64_t{1} << 40; }
  bool is_device() const override { return false; }

  uint64_t reads() const { return reads_; }

 private:
  std::unordered_map<uint64_t, std::array<std::byte, kSectorBytes>> sectors_;
  uint64_t size_bytes_ = 0;
  mutable uint64_t reads_ = 0;
};

}  // namespace cowshed::engine

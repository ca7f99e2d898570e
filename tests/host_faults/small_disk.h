// SPDX-License-Identifier: Apache-2.0
//
// A small file system of this process alone, that tests may fill: a tmpfs, or an ext4 in a file.
// It is mounted in a mount namespace of its own, so nobody else sees it and nothing stays behind.
//
// Threads     Externally synchronised. Made before the process has a second thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "tests/support/testing.h"

namespace cowshed::engine {

class SmallDisk {
 public:
  enum class Kind : uint8_t { kTmpfs, kExt4 };

  // FAILED_PRECONDITION, with the reason, where this machine does not allow it.
  static absl::StatusOr<std::unique_ptr<SmallDisk>> Mount(Kind kind, uint64_t bytes);
  ~SmallDisk();
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  std::string path() const { return dir_.Path("disk"); }
  uint64_t free_bytes() const;
  // Another program fills it, to the last byte; and tidies up after itself.
  void Fill();
  void RemoveFiller();

 private:
  SmallDisk() = default;
  TempDir dir_;
  bool mounted_ = false;
};

}  // namespace cowshed::engine

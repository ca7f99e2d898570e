// SPDX-License-Identifier: Apache-2.0
//
// Keeps an open file allocated, and written, ahead of its last used byte. LMDB grows its file in
// the middle of a commit, where a full host would be an error after which nothing is known; so the
// host is asked beforehand, and a commit only ever writes what the host has given already.
//
// Threads     Externally synchronised, except allocated_bytes().
// Ownership   Borrows the descriptor.
// Cost        A comparison where enough is allocated.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"

namespace cowshed::engine {

class SpaceAhead {
 public:
  // Makes the host give all bytes before `end_bytes`, holes included; takes what it can get from a
  // full host and says RESOURCE_EXHAUSTED.
  absl::Status Allocate(int descriptor, uint64_t end_bytes);
  // Keeps the bytes that come next after `used_end_bytes` written once: whoever is the first to
  // write an allocated page waits for the file system's journal, too. Errors cost only speed.
  void WriteZeros(int descriptor, uint64_t used_end_bytes);
  // The host has given all bytes before this one.
  uint64_t allocated_bytes() const { return allocated_bytes_.load(); }

 private:
  std::atomic<uint64_t> allocated_bytes_{0};
  uint64_t written_bytes_ = 0;  // all before it were written since the file was opened, or are used
};

}  // namespace cowshed::engine

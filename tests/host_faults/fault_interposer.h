// SPDX-License-Identifier: Apache-2.0
//
// Makes the host itself fail: calls of the C library that touch a file are caught on their way and
// fail on command, whoever makes them. That reaches what no seam of ours does: the file of the
// metadata store, which LMDB writes by itself, the locks, the directories.
//
// Model       A program that uses this door gets open, mkdir, flock, pread(v2), pwrite(v),
//             writev, fsync, fdatasync, fallocate and ftruncate from here; each forwards to the
//             next definition, as a rule the C library's. Calls on matching files are counted from
//             1; a fault meets number `at` alone, or every one from there on. A file is known by
//             the path of its descriptor at the time of the call.
// Threads     Thread-safe. One fault at a time, for the whole process.
// Cost        A relaxed load a call while no fault is set.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cowshed::engine {

enum class HostCall : uint8_t { kOpen, kLock, kRead, kWrite, kSync, kAllocate, kTruncate };

struct HostFault {
  enum class Way : uint8_t {
    kError,    // fails with `error`, having done nothing
    kShort,    // of a write: half of the bytes are written, and that is said
    kPretend,  // says that it was done, and does nothing
  };
  std::string path_part;        // calls on files whose path contains this count
  std::vector<HostCall> calls;  // these kinds; empty: all
  uint64_t at = 0;              // 0: none fails, they are only counted
  bool for_ever = false;
  Way way = Way::kError;
  int error = 5;  // EIO
};

// From now on; counts anew.
void SetHostFault(const HostFault& fault);
// Every call is forwarded again. The count stays.
void HealHost();
// Matching calls since SetHostFault.
uint64_t HostCallsCounted();

}  // namespace cowshed::engine

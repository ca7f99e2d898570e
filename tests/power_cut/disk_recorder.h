// SPDX-License-Identifier: Apache-2.0
//
// Records what this process does to the files below one directory: every write with its bytes,
// every change of length, hole, new name and sync, in the order in which the host saw them.
//
// Model       The program's own definitions of pwrite, fdatasync and their kin come before libc's,
//             for LMDB's library, too; each does its work through libc and notes what it did. So
//             both files of a pool are seen, and no seam can be forgotten. A call is noted under
//             one lock that it also runs under: the log's order is the order of the effects.
// Not seen    Stores through a mapping: LMDB maps its file read-only. Locks (lock, lock.mdb): a
//             pool needs nothing that is in them.
// Threads     Thread-safe; one recorder at a time. Without one the calls cost a load more.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cowshed::engine {

struct DiskOp {
  enum class Kind : uint8_t {
    kCreate,        // a new name: `path`
    kRename,        // of `path`: path number `bytes`
    kWrite,         // `data` at `offset`
    kPunch,         // zeros over `bytes` bytes at `offset`
    kLength,        // the file has at least `bytes` bytes
    kSync,          // of a file: its bytes; of a directory: the names in it
    kBegin,         // mark: the workload begins what leads to state `bytes`
    kAcknowledged,  // mark: state `bytes` was acknowledged as durable
  };
  Kind kind = Kind::kWrite;
  uint32_t path = 0;         // index into DiskLog::paths
  bool synchronous = false;  // of a write: durable once it is done (O_DSYNC)
  uint64_t offset = 0;
  uint64_t bytes = 0;
  std::string data;

  bool is_mark() const { return kind == Kind::kBegin || kind == Kind::kAcknowledged; }
};

struct DiskLog {
  std::vector<std::string> paths;  // below the recorded directory; "" is that directory
  std::vector<bool> is_directory;  // by path
  std::vector<DiskOp> ops;
};

class DiskRecorder {
 public:
  // Records from now on what happens below `root`, an existing directory without symbolic links in
  // its path.
  explicit DiskRecorder(const std::string& root);
  ~DiskRecorder();
  DiskRecorder(const DiskRecorder&) = delete;
  DiskRecorder& operator=(const DiskRecorder&) = delete;

  void Begin(uint64_t state);
  void Acknowledge(uint64_t state);
  // Ends the recording.
  DiskLog Take();
};

}  // namespace cowshed::engine

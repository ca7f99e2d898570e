// SPDX-License-Identifier: Apache-2.0
//
// Notices that somebody reads a volume from front to back and has to wait for the disk, and says
// what should be on its way when he comes there.
//
// The host reads ahead within a file; but the blocks of a dataset lie where they were written, in
// runs that another order of writing left. Only the tree knows what comes next, so we tell the host
// ourselves: a window that doubles while the stream goes on, and is moved on when half of it has
// been read. A stream that never waits (all is in memory) is left alone: it costs nothing then.
//
// Model       One stream for each volume that was opened, which is one for each client. Requests
//             that are under way together, and so come a little out of order, are still one stream.
// Threads     Thread-safe.
// Cost        One short lock for each read.
#pragma once

#include <cstdint>

#include "engine/base/mutex.h"

namespace cowshed::engine {

class ReadAhead {
 public:
  struct Range {
    uint64_t offset_bytes = 0;
    uint64_t length_bytes = 0;
  };
  static constexpr uint64_t kFirstWindowBytes = 512 << 10;
  // Some 4 ms of a disk of 1 GB/s: more than it takes to answer, little enough to be in vain.
  static constexpr uint64_t kMaxWindowBytes = 4 << 20;
  // How far from the end of the stream a read may begin and belong to it.
  static constexpr uint64_t kSlackBytes = 1 << 20;

  // [offset, offset + length) has been read; `waited`: for the disk. What the host should be told
  // to read now; of no length: nothing.
  Range Next(uint64_t offset, uint64_t length, bool waited) ABSL_LOCKS_EXCLUDED(mutex_);
  // The host has been told of `range`; else Next asks for it again.
  void Told(const Range& range) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  Mutex mutex_{LockRank::kLeaf};
  uint64_t end_ ABSL_GUARDED_BY(mutex_) = 0;     // the farthest that the stream has come
  uint64_t told_ ABSL_GUARDED_BY(mutex_) = 0;    // the host knows of everything before
  uint64_t window_ ABSL_GUARDED_BY(mutex_) = 0;  // 0: no stream that waits
  uint64_t reads_ ABSL_GUARDED_BY(mutex_) = 0;   // of the stream
};

}  // namespace cowshed::engine

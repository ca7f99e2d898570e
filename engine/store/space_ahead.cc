// SPDX-License-Identifier: Apache-2.0
#include "engine/store/space_ahead.h"

#include <algorithm>

#include "engine/store/file.h"

namespace cowshed::engine {

// fallocate succeeds at once where there are blocks already, so this also fills the holes that
// pages leave which LMDB took and gave back unwritten.
absl::Status SpaceAhead::Allocate(int descriptor, uint64_t end_bytes) {
  constexpr uint64_t kSmallestStepBytes = 64 << 10;
  uint64_t begin_bytes = allocated_bytes_.load();
  uint64_t step_bytes = end_bytes > begin_bytes ? end_bytes - begin_bytes : 0;
  while (begin_bytes < end_bytes) {
    step_bytes = std::min(step_bytes, end_bytes - begin_bytes);
    absl::Status status = AllocateRange(descriptor, begin_bytes, step_bytes);
    if (status.ok()) {
      begin_bytes += step_bytes;
      allocated_bytes_.store(begin_bytes);
      continue;
    }
    if (absl::IsUnimplemented(status)) {
      return absl::FailedPreconditionError(
          "metadata store: the host's file system cannot allocate ahead (fallocate)");
    }
    if (!absl::IsResourceExhausted(status) || step_bytes <= kSmallestStepBytes) return status;
    step_bytes /= 2;
  }
  return absl::OkStatus();
}

void SpaceAhead::WriteZeros(int descriptor, uint64_t used_end_bytes) {
  constexpr uint64_t kStepBytes = 1 << 20;  // some 100 commits of one clone each
  written_bytes_ = std::max(written_bytes_, used_end_bytes);
  const uint64_t end_bytes = std::min(used_end_bytes + kStepBytes, allocated_bytes_.load());
  // Where it fails, only speed is lost: what is wrong with the disk, a commit will tell.
  if (written_bytes_ + kStepBytes / 2 <= end_bytes &&
      engine::WriteZeros(descriptor, written_bytes_, end_bytes - written_bytes_).ok()) {
    written_bytes_ = end_bytes;
  }
}

}  // namespace cowshed::engine

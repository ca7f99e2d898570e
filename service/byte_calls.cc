// SPDX-License-Identifier: Apache-2.0
#include "service/byte_calls.h"

#include "engine/base/status_macros.h"

namespace cowshed::service {

absl::StatusOr<std::shared_ptr<engine::Volume>> OpenForWriting(ServiceContext& context,
                                                               const std::string& dataset,
                                                               const std::string& expected_uid) {
  ASSIGN_OR_RETURN(auto volume, context.pool.OpenVolume(dataset, expected_uid));
  if (volume->read_only()) {
    return Error(absl::StatusCode::kFailedPrecondition, v1::SNAPSHOT_IS_READ_ONLY,
                 engine::StrCat("snapshot ", volume->name(), " can not be written"),
                 {{"name", volume->name()}});
  }
  return volume;
}

absl::Status CheckRange(const engine::Volume& volume, uint64_t offset_bytes,
                        uint64_t length_bytes) {
  const uint64_t size_bytes = volume.size_bytes();
  if (offset_bytes <= size_bytes && length_bytes <= size_bytes - offset_bytes) {
    return absl::OkStatus();
  }
  return Error(absl::StatusCode::kOutOfRange, v1::BEYOND_SIZE,
               engine::StrCat("offset ", offset_bytes, ", length ", length_bytes, " is beyond the ",
                              size_bytes, " bytes of ", volume.name()),
               {{"size_bytes", std::to_string(size_bytes)}});
}

absl::Status CheckChunk(uint64_t size_bytes) {
  if (size_bytes <= kMaxChunkBytes) return absl::OkStatus();
  return Error(absl::StatusCode::kInvalidArgument, v1::CHUNK_TOO_LARGE,
               engine::StrCat(size_bytes, " bytes in one piece, at most ", kMaxChunkBytes),
               {{"limit", std::to_string(kMaxChunkBytes)}});
}

void Empty(ServiceContext& context, engine::Volume& volume, uint64_t offset_bytes,
           uint64_t length_bytes, ContentDone done) {
  const absl::Status in_range = CheckRange(volume, offset_bytes, length_bytes);
  if (!in_range.ok()) return done(in_range, 0);
  volume.Discard(
      offset_bytes, length_bytes,
      context.Counted([length_bytes, done = std::move(done)](absl::Status status) mutable {
        done(std::move(status), length_bytes);
      }));
}

}  // namespace cowshed::service

// SPDX-License-Identifier: Apache-2.0
//
// What the calls on bytes share: opening for writing, the range check, and applying one piece of
// content (bytes, zeros, or a discard), which WriteRange and the Write stream take alike.
//
// Threads     Free functions for workers: a write may wait for memory or space.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "engine/base/strings.h"
#include "engine/pool.h"
#include "service/context.h"

namespace cowshed::service {

// The head of `dataset`. FAILED_PRECONDITION SNAPSHOT_IS_READ_ONLY if the name is a snapshot's.
absl::StatusOr<std::shared_ptr<engine::Volume>> OpenForWriting(ServiceContext& context,
                                                               const std::string& dataset,
                                                               const std::string& expected_uid);

// OUT_OF_RANGE BEYOND_SIZE unless the range ends within the volume.
absl::Status CheckRange(const engine::Volume& volume, uint64_t offset_bytes, uint64_t length_bytes);

// INVALID_ARGUMENT CHUNK_TOO_LARGE past 1 MiB.
absl::Status CheckChunk(uint64_t size_bytes);

using ContentDone = absl::AnyInvocable<void(absl::Status, uint64_t accepted_bytes)>;

// Makes a range read as zeros; `done` may come from the txg thread.
void Empty(ServiceContext& context, engine::Volume& volume, uint64_t offset_bytes,
           uint64_t length_bytes, ContentDone done);

// Applies the content of a WriteRangeRequest or WriteChunk (the oneof data | zero_bytes |
// discard_bytes) at its offset; `done` gets how many bytes were accepted.
template <typename Content>
void WriteContent(ServiceContext& context, engine::Volume& volume, const Content& content,
                  ContentDone done) {
  if (content.content_case() == Content::kData) {
    const std::string& data = content.data();
    absl::Status status = CheckChunk(data.size());
    if (status.ok()) status = CheckRange(volume, content.offset_bytes(), data.size());
    if (status.ok()) {
      status = volume.Write(content.offset_bytes(), std::as_bytes(std::span(data)));
    }
    return done(status, data.size());
  }
  const bool zeros = content.content_case() == Content::kZeroBytes;
  if (!zeros && content.content_case() != Content::kDiscardBytes) {
    return done(InvalidField("content", "is missing"), 0);
  }
  Empty(context, volume, content.offset_bytes(),
        zeros ? content.zero_bytes() : content.discard_bytes(), std::move(done));
}

}  // namespace cowshed::service

// SPDX-License-Identifier: Apache-2.0
//
// The messages of Read and Write streams as bytes, without the copies that the protobuf library
// makes of what they carry. A chunk is nearly all data, at the end of a few bytes of fields:
//
//   ReadChunk     offset_bytes, name, uid, size_bytes | tag and length of data | data
//   WriteRequest  tag and length of chunk | offset_bytes | tag and length of data | data
//
// EncodeReadChunk puts the memory that the volume filled behind the fields. WriteFrame finds the
// data in the slices that came from the socket; a message of any other shape (a header, a flush,
// fields in another order) goes through the library, which knows all that is legal.
//
// Threads     One thread at a time.
// Ownership   A WriteFrame borrows the buffer it was parsed from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "cowshed/v1/data.pb.h"
#include "engine/base/mutex.h"
#include "engine/pool.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"

namespace cowshed::service {

// Memory for the data of one stream's chunks, used again once the socket has taken it: fresh memory
// costs the kernel a page fault for every 4 KiB.
// Threads     Thread-safe: the library lets go of chunks on its own threads.
// Ownership   Shared by the stream and every chunk that is under way.
class ChunkMemory : public std::enable_shared_from_this<ChunkMemory> {
 public:
  explicit ChunkMemory(size_t chunk_bytes) : chunk_bytes_(chunk_bytes) {}

  // `bytes` (at most a chunk) of memory, to be filled before anybody else sees the slice.
  grpc::Slice Take(size_t bytes, std::span<std::byte>* memory) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Chunk {
    std::shared_ptr<ChunkMemory> owner;  // while it is under way
    std::unique_ptr<std::byte[]> bytes;
  };
  static void Release(void* chunk);

  const size_t chunk_bytes_;
  engine::Mutex mutex_{engine::LockRank::kLeaf};
  std::vector<std::unique_ptr<Chunk>> free_ ABSL_GUARDED_BY(mutex_);
};

// `fields` without data, and `data` behind it unless that is empty.
grpc::ByteBuffer EncodeReadChunk(const v1::ReadChunk& fields, const grpc::Slice& data);
grpc::ByteBuffer EncodeAck(const v1::WriteAck& ack);
// False: these bytes are no such message.
bool Decode(grpc::ByteBuffer& buffer, google::protobuf::Message* message);

// One message of a Write stream.
class WriteFrame {
 public:
  // INVALID_ARGUMENT if these bytes are no WriteRequest.
  absl::Status Parse(grpc::ByteBuffer& buffer);

  // Data that was found where it lies; else message() has all there is.
  bool has_slices() const { return has_slices_; }
  uint64_t offset_bytes() const { return offset_bytes_; }
  uint64_t data_bytes() const { return data_bytes_; }
  const v1::WriteRequest& message() const { return message_; }

  // Writes the data found. Whole blocks are copied once, into memory that the volume takes over.
  // REQUIRES: has_slices().
  absl::Status WriteTo(engine::Volume& volume) const;

 private:
  bool FindSlices(grpc::ByteBuffer& buffer);

  v1::WriteRequest message_;
  bool has_slices_ = false;
  uint64_t offset_bytes_ = 0;
  uint64_t data_bytes_ = 0;
  std::vector<std::span<const std::byte>> slices_;
};

}  // namespace cowshed::service

// SPDX-License-Identifier: Apache-2.0
#include "service/frames.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "engine/base/status_macros.h"
#include "google/protobuf/io/coded_stream.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "service/status.h"

namespace cowshed::service {
namespace {

using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;

constexpr uint32_t kVarint = 0;
constexpr uint32_t kLengthDelimited = 2;
constexpr uint32_t Tag(int field, uint32_t type) {
  return static_cast<uint32_t>(field) << 3 | type;
}

constexpr uint32_t kReadDataTag = Tag(v1::ReadChunk::kDataFieldNumber, kLengthDelimited);
constexpr uint32_t kChunkTag = Tag(v1::WriteRequest::kChunkFieldNumber, kLengthDelimited);
constexpr uint32_t kOffsetTag = Tag(v1::WriteChunk::kOffsetBytesFieldNumber, kVarint);
constexpr uint32_t kWriteDataTag = Tag(v1::WriteChunk::kDataFieldNumber, kLengthDelimited);
constexpr size_t kMaxTagAndLength = 10;

// Reads the bytes of slices one after another.
class Gatherer {
 public:
  explicit Gatherer(std::span<const std::span<const std::byte>> slices) : slices_(slices) {}
  // Fills `out`. REQUIRES: that many bytes are left.
  void Copy(std::span<std::byte> out) {
    while (!out.empty()) {
      const std::span<const std::byte> slice = slices_.front().subspan(used_);
      const size_t count = std::min(slice.size(), out.size());
      std::memcpy(out.data(), slice.data(), count);
      out = out.subspan(count);
      used_ += count;
      if (used_ < slices_.front().size()) continue;
      slices_ = slices_.subspan(1);
      used_ = 0;
    }
  }

 private:
  std::span<const std::span<const std::byte>> slices_;
  size_t used_ = 0;  // of the first
};

}  // namespace

grpc::Slice ChunkMemory::Take(size_t bytes, std::span<std::byte>* memory) {
  std::unique_ptr<Chunk> chunk;
  {
    engine::MutexLock lock(mutex_);
    if (!free_.empty()) {
      chunk = std::move(free_.back());
      free_.pop_back();
    }
  }
  if (chunk == nullptr) {
    chunk = std::make_unique<Chunk>();
    chunk->bytes.reset(new std::byte[chunk_bytes_]);
  }
  chunk->owner = shared_from_this();
  std::byte* const begin = chunk->bytes.get();
  *memory = std::span(begin, bytes);
  return grpc::Slice(begin, bytes, Release, chunk.release());
}

void ChunkMemory::Release(void* chunk) {
  std::unique_ptr<Chunk> released(static_cast<Chunk*>(chunk));
  const std::shared_ptr<ChunkMemory> owner = std::move(released->owner);
  engine::MutexLock lock(owner->mutex_);
  owner->free_.push_back(std::move(released));
}

grpc::ByteBuffer EncodeReadChunk(const v1::ReadChunk& fields, const grpc::Slice& data) {
  std::string head = fields.SerializeAsString();
  if (data.size() == 0) {
    const grpc::Slice only(head);
    return grpc::ByteBuffer(&only, 1);
  }
  std::array<uint8_t, kMaxTagAndLength> bytes{};
  uint8_t* end = CodedOutputStream::WriteTagToArray(kReadDataTag, bytes.data());
  end = CodedOutputStream::WriteVarint32ToArray(static_cast<uint32_t>(data.size()), end);
  head.append(bytes.data(), end);
  const std::array<grpc::Slice, 2> slices = {grpc::Slice(head), data};
  return grpc::ByteBuffer(slices.data(), slices.size());
}

grpc::ByteBuffer EncodeAck(const v1::WriteAck& ack) {
  const grpc::Slice slice(ack.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

bool Decode(grpc::ByteBuffer& buffer, google::protobuf::Message* message) {
  grpc::ProtoBufferReader reader(&buffer);
  return reader.status().ok() && message->ParseFromZeroCopyStream(&reader);
}

absl::Status WriteFrame::Parse(grpc::ByteBuffer& buffer) {
  slices_.clear();
  offset_bytes_ = data_bytes_ = 0;
  has_slices_ = FindSlices(buffer);
  if (has_slices_ || Decode(buffer, &message_)) return absl::OkStatus();
  return absl::InvalidArgumentError("a message of the stream is no WriteRequest");
}

bool WriteFrame::FindSlices(grpc::ByteBuffer& buffer) {
  grpc::ProtoBufferReader reader(&buffer);
  if (!reader.status().ok()) return false;
  CodedInputStream in(&reader);
  // A length that reaches the end of the message: nothing comes behind.
  const auto reaches_end = [&](uint32_t* length) {
    return in.ReadVarint32(length) &&
           static_cast<size_t>(in.CurrentPosition()) + *length == buffer.Length();
  };
  uint32_t length = 0;
  if (in.ReadTag() != kChunkTag || !reaches_end(&length)) return false;
  uint32_t tag = in.ReadTag();
  if (tag == kOffsetTag) {
    if (!in.ReadVarint64(&offset_bytes_)) return false;
    tag = in.ReadTag();
  }
  if (tag != kWriteDataTag || !reaches_end(&length)) return false;
  data_bytes_ = length;
  while (length > 0) {
    const void* begin = nullptr;
    int size = 0;
    if (!in.GetDirectBufferPointer(&begin, &size)) return false;
    size = static_cast<int>(std::min<uint32_t>(static_cast<uint32_t>(size), length));
    slices_.emplace_back(static_cast<const std::byte*>(begin), static_cast<size_t>(size));
    if (!in.Skip(size)) return false;
    length -= static_cast<uint32_t>(size);
  }
  return true;
}

absl::Status WriteFrame::WriteTo(engine::Volume& volume) const {
  Gatherer gatherer(slices_);
  const uint64_t block_bytes = volume.block_bytes();
  const uint64_t end = offset_bytes_ + data_bytes_;
  const uint64_t first = (offset_bytes_ + block_bytes - 1) / block_bytes;
  const uint64_t last = std::max(end / block_bytes, first);  // whole blocks: [first, last)
  const auto write_part = [&](uint64_t from, uint64_t to) -> absl::Status {
    if (from >= to) return absl::OkStatus();
    std::vector<std::byte> part(to - from);
    gatherer.Copy(part);
    return volume.Write(from, part);
  };
  RETURN_IF_ERROR(write_part(offset_bytes_, std::min(end, first * block_bytes)));
  std::vector<engine::BlockBytes> blocks(last - first);
  for (engine::BlockBytes& block : blocks) {
    block.reset(new std::byte[block_bytes]);
    gatherer.Copy(std::span(block.get(), block_bytes));
  }
  if (!blocks.empty()) RETURN_IF_ERROR(volume.WriteBlocks(first, blocks));
  return write_part(std::max(offset_bytes_, last * block_bytes), end);
}

}  // namespace cowshed::service

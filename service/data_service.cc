// SPDX-License-Identifier: Apache-2.0
#include "service/data_service.h"

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "engine/base/status_macros.h"
#include "service/byte_calls.h"
#include "service/chunk_stream.h"
#include "service/frames.h"
#include "service/unary.h"
#include "service/write_stream.h"

namespace cowshed::service {
namespace {

constexpr size_t kExtentsPerChunk = 1000;

absl::Status ReadInto(engine::Volume& volume, uint64_t offset_bytes, std::string* out) {
  return volume.Read(offset_bytes, std::as_writable_bytes(std::span(*out)));
}

// The source of a Read stream: a place in a volume. Chunks end at multiples of 1 MiB; holes that
// begin a chunk are sent as such.
class ReadSource {
 public:
  ReadSource(ServiceContext& context, const v1::ReadRequest& request)
      : context_(context), request_(request), next_(request.offset_bytes()) {}

  absl::StatusOr<bool> Fill(grpc::ByteBuffer* chunk, uint64_t* offset_bytes) {
    const bool first = volume_ == nullptr;
    if (first) RETURN_IF_ERROR(Open());
    if (next_ == end_ && !first) return false;
    *offset_bytes = next_;
    v1::ReadChunk fields;
    Describe(first, &fields);
    grpc::Slice data;
    if (next_ < end_) RETURN_IF_ERROR(FillContent(&fields, &data));
    *chunk = EncodeReadChunk(fields, data);
    return true;
  }

 private:
  absl::Status FillContent(v1::ReadChunk* fields, grpc::Slice* data) {
    ASSIGN_OR_RETURN(const uint64_t next_data, volume_->NextData(next_));
    if (next_data > next_) {
      fields->set_zero_bytes(std::min(next_data, end_) - next_);
      next_ += fields->zero_bytes();
      return absl::OkStatus();
    }
    const uint64_t size = std::min(end_ - next_, kMaxChunkBytes - next_ % kMaxChunkBytes);
    std::span<std::byte> memory;
    *data = memory_->Take(size, &memory);
    RETURN_IF_ERROR(volume_->Read(next_, memory));
    next_ += size;
    return absl::OkStatus();
  }

  absl::Status Open() {
    ASSIGN_OR_RETURN(volume_, context_.pool.OpenVolume(request_.name(), request_.expected_uid()));
    const uint64_t size = volume_->size_bytes();
    const uint64_t length =
        request_.has_length_bytes() ? request_.length_bytes() : size - std::min(size, next_);
    RETURN_IF_ERROR(CheckRange(*volume_, next_, length));
    end_ = next_ + length;
    return absl::OkStatus();
  }

  // Sets what does not depend on the bytes.
  void Describe(bool first, v1::ReadChunk* chunk) {
    chunk->set_offset_bytes(next_);
    if (!first) return;
    chunk->set_name(volume_->name());
    chunk->set_uid(volume_->uid());
    chunk->set_size_bytes(volume_->size_bytes());
  }

  ServiceContext& context_;
  const v1::ReadRequest request_;
  const std::shared_ptr<ChunkMemory> memory_ = std::make_shared<ChunkMemory>(kMaxChunkBytes);
  std::shared_ptr<engine::Volume> volume_;
  uint64_t next_;
  uint64_t end_ = 0;
};

// The source of a Diff stream: walks on from the end of the last extent, so that nothing of the
// pool is held between chunks.
class DiffSource {
 public:
  DiffSource(ServiceContext& context, const v1::DiffRequest& request)
      : context_(context),
        from_(request.from_snapshot()),
        to_(request.to_snapshot()),
        next_(request.start_offset_bytes()) {}

  absl::StatusOr<bool> Fill(v1::DiffChunk* chunk, uint64_t* offset_bytes) {
    if (complete_) return false;
    chunk->Clear();
    const bool first = !opened_;
    if (first) RETURN_IF_ERROR(Open(chunk));
    complete_ = true;
    RETURN_IF_ERROR(context_.pool.Diff(from_, to_, next_, [&](const engine::DiffExtent& extent) {
      v1::Extent* out = chunk->add_extents();
      out->set_offset_bytes(extent.offset_bytes);
      out->set_length_bytes(extent.length_bytes);
      out->set_kind(extent.data ? v1::EXTENT_KIND_DATA : v1::EXTENT_KIND_HOLE);
      next_ = extent.offset_bytes + extent.length_bytes;
      complete_ = chunk->extents_size() < static_cast<int>(kExtentsPerChunk);
      return complete_;
    }));
    *offset_bytes = chunk->extents().empty() ? 0 : chunk->extents(0).offset_bytes();
    return first || chunk->extents_size() > 0;
  }

 private:
  // Pins what `@latest` means and says so in the first chunk.
  absl::Status Open(v1::DiffChunk* chunk) {
    ASSIGN_OR_RETURN(const auto to, context_.pool.GetSnapshot(to_));
    to_ = to.name;
    if (next_ > to.size_bytes) {
      return Error(
          absl::StatusCode::kOutOfRange, v1::BEYOND_SIZE,
          engine::StrCat("offset ", next_, " is beyond the ", to.size_bytes, " bytes of ", to_),
          {{"size_bytes", std::to_string(to.size_bytes)}});
    }
    if (!from_.empty()) {
      ASSIGN_OR_RETURN(const auto from, context_.pool.GetSnapshot(from_));
      from_ = from.name;
      if (from.create_txg > to.create_txg) {
        return Error(absl::StatusCode::kFailedPrecondition, v1::SNAPSHOTS_UNRELATED,
                     engine::StrCat(from_, " is not older than ", to_),
                     {{"from", from_}, {"to", to_}});
      }
      chunk->set_from_size_bytes(from.size_bytes);
    }
    chunk->set_from_snapshot(from_);
    chunk->set_to_snapshot(to_);
    chunk->set_size_bytes(to.size_bytes);
    opened_ = true;
    return absl::OkStatus();
  }

  ServiceContext& context_;
  std::string from_;
  std::string to_;
  uint64_t next_;
  bool opened_ = false;
  bool complete_ = false;
};

}  // namespace

grpc::ServerUnaryReactor* DataServiceImpl::ReadRange(Rpc* rpc, const v1::ReadRangeRequest* request,
                                                     v1::ReadRangeResponse* reply) {
  return Query(context_, rpc, context_.data, request, reply,
               [this](const auto& from, v1::ReadRangeResponse* to) -> absl::Status {
                 if (from.length_bytes() > kMaxChunkBytes) {
                   return InvalidField("length_bytes", "is more than 1 MiB: use Read");
                 }
                 ASSIGN_OR_RETURN(auto volume,
                                  context_.pool.OpenVolume(from.name(), from.expected_uid()));
                 RETURN_IF_ERROR(CheckRange(*volume, from.offset_bytes(), from.length_bytes()));
                 to->mutable_data()->resize(from.length_bytes());
                 RETURN_IF_ERROR(ReadInto(*volume, from.offset_bytes(), to->mutable_data()));
                 to->set_name(volume->name());
                 to->set_uid(volume->uid());
                 return absl::OkStatus();
               });
}

grpc::ServerUnaryReactor* DataServiceImpl::WriteRange(Rpc* rpc,
                                                      const v1::WriteRangeRequest* request,
                                                      v1::WriteRangeResponse* reply) {
  return Deferred(context_, rpc, context_.data, request, reply,
                  [this](const auto& from, v1::WriteRangeResponse* to, Done done) {
                    absl::Status status = context_.CheckBootId(from.expect_boot_id());
                    if (!status.ok()) return done(status);
                    auto opened = OpenForWriting(context_, from.dataset(), from.expected_uid());
                    if (!opened.ok()) return done(opened.status());
                    engine::Volume& volume = **opened;
                    // The open txg is a later one than any that has committed before the write.
                    to->set_txg(context_.pool.committed_txg() + 1);
                    WriteContent(
                        context_, volume, from,
                        [this, to, volume = *std::move(opened), durable = from.durable(),
                         done = std::move(done)](const absl::Status& written, uint64_t) mutable {
                          to->set_boot_id(context_.boot_id);
                          to->set_uid(volume->uid());
                          if (!written.ok() || !durable) return done(written);
                          engine::Volume& written_to = *volume;
                          written_to.MakeDurable(context_.Counted(
                              [volume = std::move(volume), done = std::move(done)](
                                  absl::Status status) mutable { done(std::move(status)); }));
                        });
                  });
}

grpc::ServerUnaryReactor* DataServiceImpl::Flush(Rpc* rpc, const v1::FlushRequest* request,
                                                 v1::FlushResponse* reply) {
  return Deferred(
      context_, rpc, context_.data, request, reply,
      [this](const auto& from, v1::FlushResponse* to, Done done) {
        absl::Status status = context_.CheckBootId(from.expect_boot_id());
        if (!status.ok()) return done(status);
        auto volume = OpenForWriting(context_, from.dataset(), from.expected_uid());
        if (!volume.ok()) return done(volume.status());
        to->set_boot_id(context_.boot_id);
        if (from.data_only()) {
          (*volume)->MakeDurable(
              context_.Counted([done = std::move(done), volume = *volume](
                                   absl::Status durable) mutable { done(std::move(durable)); }));
          return;
        }
        (*volume)->Flush(context_.Counted([to, done = std::move(done), volume = *volume](
                                              const absl::StatusOr<engine::Txg>& txg) mutable {
          if (txg.ok()) to->set_txg(*txg);
          done(txg.status());
        }));
      });
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* DataServiceImpl::Read(Rpc* rpc,
                                                                  const grpc::ByteBuffer* bytes) {
  v1::ReadRequest request;
  grpc::ByteBuffer copy(*bytes);                 // of references
  if (!Decode(copy, &request)) request.Clear();  // of no name: refused as such
  auto source = std::make_shared<ReadSource>(context_, request);
  return ChunkStream<grpc::ByteBuffer>::Start(
      context_, rpc, request, [source](grpc::ByteBuffer* chunk, uint64_t* offset_bytes) {
        return source->Fill(chunk, offset_bytes);
      });
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* DataServiceImpl::Write(Rpc* rpc) {
  return WriteStream::Start(context_, rpc);
}

grpc::ServerWriteReactor<v1::DiffChunk>* DataServiceImpl::Diff(Rpc* rpc,
                                                               const v1::DiffRequest* request) {
  auto source = std::make_shared<DiffSource>(context_, *request);
  return ChunkStream<v1::DiffChunk>::Start(context_, rpc, *request,
                                           [source](v1::DiffChunk* chunk, uint64_t* offset_bytes) {
                                             return source->Fill(chunk, offset_bytes);
                                           });
}

}  // namespace cowshed::service

// SPDX-License-Identifier: Apache-2.0
//
// A server stream of chunks that workers make ahead of the socket: Read and Diff.
//
// Model       Two buffers. While gRPC sends one, a worker fills the other; then they swap. A chunk
//             is made under its own reader epoch, and nothing of the pool is held while the client
//             takes its time: at worst two chunks of memory, and one that the library still sends.
// Invariants  The source is called by one worker at a time. Finish is called once. A stream that
//             failed sends the chunks made before the failure first, unless it is ended from
//             outside. A client that has taken nothing for the stall timeout gets READER_STALLED
//             with the offset to resume from; if it does not even take that, the call is cancelled.
// Threads     Reactions come from gRPC, Produce from workers, End and CutIfStalled from the
//             registry: one mutex orders them.
// Ownership   Owns itself from Start until the library's OnDone; workers share it meanwhile.
#pragma once

#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "engine/base/mutex.h"
#include "grpcpp/support/server_callback.h"
#include "service/context.h"

namespace cowshed::service {

template <typename Chunk>
class ChunkStream final : public grpc::ServerWriteReactor<Chunk>,
                          public OpenStream,
                          public std::enable_shared_from_this<ChunkStream<Chunk>> {
 public:
  // Fills the next chunk and says from which offset a client resumes that did not get it; false:
  // there is none, the stream is complete.
  using Source = absl::AnyInvocable<absl::StatusOr<bool>(Chunk*, uint64_t* offset_bytes)>;

  // Opens the stream for `rpc`, or answers why not.
  static grpc::ServerWriteReactor<Chunk>* Start(ServiceContext& context,
                                                grpc::CallbackServerContext* rpc,
                                                const google::protobuf::Message& request,
                                                Source source) {
    auto stream = std::shared_ptr<ChunkStream>(new ChunkStream(context, rpc, std::move(source)));
    stream->self_ = stream;
    const MethodRule& rule = RuleOf(request.GetDescriptor());
    const Admission admission = context.access.Admit(*rpc, rule, &request);
    absl::Status status = admission.status;
    context.Audit(admission.caller, rule, status, &request, nullptr);
    if (status.ok()) status = context.streams.Add(stream.get());
    if (!status.ok()) {
      stream->End(status);
    } else {
      engine::MutexLock lock(stream->mutex_);
      stream->Pump();
    }
    return stream.get();
  }

  void OnWriteDone(bool ok) override {
    engine::MutexLock lock(mutex_);
    sending_ = false;
    if (!ok) return Finish(absl::CancelledError());
    Pump();
  }

  void OnCancel() override { End(absl::CancelledError()); }

  void OnDone() override {
    context_.streams.Remove(this);
    const auto self = std::move(self_);  // the last reference, unless a worker has one
  }

  void End(const absl::Status& status) override {
    engine::MutexLock lock(mutex_);
    Finish(status);
  }

  void CutIfStalled(std::chrono::steady_clock::time_point now) override {
    engine::MutexLock lock(mutex_);
    const Limits& limits = context_.limits;
    if (!sending_ ||
        now - sending_since_ < (finished_ ? limits.stall_grace : limits.stall_timeout)) {
      return;
    }
    if (finished_) return rpc_->TryCancel();
    Finish(Error(absl::StatusCode::kAborted, v1::READER_STALLED,
                 "the reader took nothing for too long; resume at offset_bytes",
                 {{"offset_bytes", std::to_string(buffers_[sent_].offset_bytes)}}));
    sending_since_ = now;
  }

 private:
  struct Buffer {
    Chunk chunk;
    uint64_t offset_bytes = 0;
  };

  ChunkStream(ServiceContext& context, grpc::CallbackServerContext* rpc, Source source)
      : context_(context), rpc_(rpc), source_(std::move(source)) {}

  // Does whatever can be done next.
  void Pump() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (finished_) return;
    if (ready_ && !sending_) {
      sent_ = 1 - sent_;
      ready_ = false;
      sending_ = true;
      sending_since_ = std::chrono::steady_clock::now();
      this->StartWrite(&buffers_[sent_].chunk);
    }
    if (end_ && !ready_ && !sending_) return Finish(*end_);
    if (!end_ && !ready_ && !making_) {
      making_ = true;
      context_.data.Submit([self = this->shared_from_this()] { self->Produce(); });
    }
  }

  // Fills the buffer that is not being sent. A worker's part.
  void Produce() ABSL_LOCKS_EXCLUDED(mutex_) {
    Buffer* buffer = nullptr;
    {
      engine::MutexLock lock(mutex_);
      if (finished_) return;
      buffer = &buffers_[1 - sent_];  // `making_` keeps it ours: only a ready chunk is swapped
    }
    const absl::StatusOr<bool> made = source_(&buffer->chunk, &buffer->offset_bytes);
    engine::MutexLock lock(mutex_);
    making_ = false;
    if (made.ok() && *made) {
      ready_ = true;
    } else {
      end_ = made.status();
    }
    Pump();
  }

  void Finish(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (finished_) return;
    finished_ = true;
    grpc::ServerWriteReactor<Chunk>::Finish(context_.ToGrpc(status));
  }

  ServiceContext& context_;
  grpc::CallbackServerContext* const rpc_;
  Source source_;  // touched by the worker that set `making_`
  std::shared_ptr<ChunkStream> self_;
  engine::Mutex mutex_{engine::LockRank::kCall};
  std::array<Buffer, 2> buffers_;  // [sent_] is gRPC's, the other one the worker's
  int sent_ ABSL_GUARDED_BY(mutex_) = 0;
  bool making_ ABSL_GUARDED_BY(mutex_) = false;   // a worker fills the other buffer
  bool ready_ ABSL_GUARDED_BY(mutex_) = false;    // it is filled
  bool sending_ ABSL_GUARDED_BY(mutex_) = false;  // gRPC has [sent_]
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::chrono::steady_clock::time_point sending_since_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);  // the source is exhausted
};

}  // namespace cowshed::service

// SPDX-License-Identifier: Apache-2.0
//
// One Write stream: a header, then chunks that are applied in the order sent, with acknowledgements
// of how far it is.
//
// Model       Two message buffers: while a worker applies one, gRPC reads the next. A flush, and a
//             discard so large that it goes to the background, hold the stream up until the pool
//             calls back; no worker waits for that. Acks queue behind one another; a client that
//             does not take them is not read from any more, and cut like a stalled reader. One that
//             sends nothing while nothing of its own is under way is cut with STREAM_IDLE.
// Invariants  accepted_bytes counts what the pool has taken, in the order sent, and never falls.
//             Whatever ends the stream with an error says it in metadata accepted_bytes. An ack
//             follows every 8 MiB at the latest, every flush, and the last chunk.
// Threads     Reactions come from gRPC, Apply from workers, End from the registry: one mutex.
// Ownership   Owns itself from Start until OnDone; workers and callbacks share it meanwhile.
#pragma once

#include <array>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "cowshed/v1/data.grpc.pb.h"
#include "engine/base/mutex.h"
#include "service/context.h"
#include "service/frames.h"

namespace cowshed::service {

class WriteStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                          public OpenStream,
                          public std::enable_shared_from_this<WriteStream> {
 public:
  // Opens the stream for `rpc`, or answers why not.
  static grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Start(
      ServiceContext& context, grpc::CallbackServerContext* rpc);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override { End(absl::CancelledError()); }
  void OnDone() override;
  void End(const absl::Status& status) override;
  void CutIfStalled(std::chrono::steady_clock::time_point now) override;

 private:
  WriteStream(ServiceContext& context, grpc::CallbackServerContext* rpc)
      : context_(context), rpc_(rpc) {}

  // Does whatever can be done next.
  void Pump() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendAck() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The server has nothing to do, and waits for the client to send.
  bool Idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return reading_ && !applying_ && !have_next_ && !sending_ && acks_.empty();
  }
  void Finish(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Applies one message; Applied follows, at once or from a callback of the pool.
  void Apply(grpc::ByteBuffer& message) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Open(const v1::WriteRequest& request);
  void ApplyChunk(const v1::WriteChunk& chunk) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status ApplyData();
  // The message in hand is done: `bytes` more are accepted, or `status` says why not; `durable`:
  // so is all before it, in `flushed_txg` if it was a flush.
  void Applied(const absl::Status& status, uint64_t bytes, bool durable,
               std::optional<engine::Txg> flushed_txg) ABSL_LOCKS_EXCLUDED(mutex_);

  ServiceContext& context_;
  grpc::CallbackServerContext* const rpc_;
  Caller caller_;                           // set at the start
  std::shared_ptr<engine::Volume> volume_;  // set by the header, before any chunk
  WriteFrame frame_;                        // the worker's: the message in hand
  std::shared_ptr<WriteStream> self_;

  engine::Mutex mutex_{engine::LockRank::kCall};
  std::array<grpc::ByteBuffer, 2> requests_;
  grpc::ByteBuffer ack_;                     // gRPC's while sending_
  int applied_ ABSL_GUARDED_BY(mutex_) = 0;  // requests_[applied_] is the worker's
  bool applying_ ABSL_GUARDED_BY(mutex_) = false;
  bool have_next_ ABSL_GUARDED_BY(mutex_) = false;    // the other one has been read
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;      // gRPC reads into the other one
  bool half_closed_ ABSL_GUARDED_BY(mutex_) = false;  // the client has sent all
  bool sending_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<v1::WriteAck> acks_ ABSL_GUARDED_BY(mutex_);
  v1::WriteRequest header_ ABSL_GUARDED_BY(mutex_);  // for the audit log: what it wrote to
  v1::WriteAck flushed_ ABSL_GUARDED_BY(mutex_);     // and what of it is durable
  uint64_t accepted_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t acked_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::chrono::steady_clock::time_point sending_since_ ABSL_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point reading_since_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cowshed::service

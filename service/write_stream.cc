// SPDX-License-Identifier: Apache-2.0
#include "service/write_stream.h"

#include <span>
#include <utility>

#include "engine/base/status_macros.h"
#include "service/byte_calls.h"
#include "service/redact.h"

namespace cowshed::service {
namespace {

// More acks than a client at work ever leaves unread: a flush each.
constexpr size_t kMaxQueuedAcks = 16;

absl::Status HeaderMissing() { return InvalidField("header", "must come first"); }

}  // namespace

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* WriteStream::Start(
    ServiceContext& context, grpc::CallbackServerContext* rpc) {
  auto stream = std::shared_ptr<WriteStream>(new WriteStream(context, rpc));
  stream->self_ = stream;
  Admission admission = context.access.Admit(*rpc, RuleOf<v1::WriteRequest>(), nullptr);
  stream->caller_ = std::move(admission.caller);
  absl::Status status = admission.status;
  if (status.ok()) status = context.streams.Add(stream.get());
  if (!status.ok()) {
    stream->End(status);
  } else {
    engine::MutexLock lock(stream->mutex_);
    stream->Pump();
  }
  return stream.get();
}

void WriteStream::OnReadDone(bool ok) {
  engine::MutexLock lock(mutex_);
  reading_ = false;
  have_next_ = ok;
  half_closed_ = !ok;
  Pump();
}

void WriteStream::OnWriteDone(bool ok) {
  engine::MutexLock lock(mutex_);
  sending_ = false;
  reading_since_ = std::chrono::steady_clock::now();
  if (!ok) return Finish(absl::CancelledError());
  Pump();
}

void WriteStream::OnDone() {
  context_.streams.Remove(this);
  const auto self = std::move(self_);  // the last reference, unless a worker has one
}

void WriteStream::End(const absl::Status& status) {
  engine::MutexLock lock(mutex_);
  Finish(status);
}

void WriteStream::CutIfStalled(std::chrono::steady_clock::time_point now) {
  engine::MutexLock lock(mutex_);
  const Limits& limits = context_.limits;
  if (!finished_ && Idle() && now - reading_since_ >= limits.idle_timeout) {
    return Finish(Error(absl::StatusCode::kAborted, v1::STREAM_IDLE,
                        "the client sent nothing for too long; open the stream again"));
  }
  if (!sending_ || now - sending_since_ < (finished_ ? limits.stall_grace : limits.stall_timeout)) {
    return;
  }
  if (finished_) return rpc_->TryCancel();
  Finish(Error(absl::StatusCode::kAborted, v1::READER_STALLED,
               "the writer took no acknowledgement for too long"));
  sending_since_ = now;
}

void WriteStream::Finish(const absl::Status& status) {
  if (finished_) return;
  finished_ = true;
  context_.Audit(caller_, RuleOf<v1::WriteRequest>(), status, &header_, &flushed_);
  const auto accepted = std::to_string(accepted_bytes_);
  ServerBidiReactor::Finish(context_.ToGrpc(
      WithMetadata(Redacted(*caller_.rights, status), {{"accepted_bytes", accepted}})));
}

void WriteStream::Pump() {
  if (finished_) return;
  if (have_next_ && !applying_) {
    applied_ = 1 - applied_;
    have_next_ = false;
    applying_ = true;
    context_.data.Submit(
        [self = shared_from_this(), request = &requests_[applied_]] { self->Apply(*request); });
  }
  if (!reading_ && !have_next_ && !half_closed_ && acks_.size() < kMaxQueuedAcks) {
    reading_ = true;
    reading_since_ = std::chrono::steady_clock::now();
    StartRead(&requests_[1 - applied_]);
  }
  const bool all_applied = half_closed_ && !have_next_ && !applying_;
  if (all_applied && acked_bytes_ < accepted_bytes_) SendAck();
  if (!sending_ && !acks_.empty()) {
    ack_ = EncodeAck(acks_.front());
    acks_.pop_front();
    sending_ = true;
    sending_since_ = std::chrono::steady_clock::now();
    StartWrite(&ack_);
  }
  if (!all_applied || sending_) return;
  Finish(volume_ != nullptr ? absl::OkStatus() : InvalidField("header", "is missing"));
}

void WriteStream::SendAck() {
  acked_bytes_ = accepted_bytes_;
  v1::WriteAck& ack = acks_.emplace_back();
  ack.set_accepted_bytes(accepted_bytes_);
  ack.set_boot_id(context_.boot_id);
}

void WriteStream::Apply(grpc::ByteBuffer& message) {
  const absl::Status parsed = frame_.Parse(message);
  if (!parsed.ok()) return Applied(parsed, 0, false, std::nullopt);
  if (volume_ == nullptr) {
    return Applied(frame_.has_slices() ? HeaderMissing() : Open(frame_.message()), 0, false,
                   std::nullopt);
  }
  if (frame_.has_slices()) return Applied(ApplyData(), frame_.data_bytes(), false, std::nullopt);
  if (!frame_.message().has_chunk()) {
    return Applied(InvalidField("chunk", "is missing"), 0, false, std::nullopt);
  }
  ApplyChunk(frame_.message().chunk());
}

absl::Status WriteStream::ApplyData() {
  RETURN_IF_ERROR(CheckChunk(frame_.data_bytes()));
  RETURN_IF_ERROR(CheckRange(*volume_, frame_.offset_bytes(), frame_.data_bytes()));
  context_.stats.copied_bytes += frame_.data_bytes();
  return frame_.WriteTo(*volume_);
}

absl::Status WriteStream::Open(const v1::WriteRequest& request) {
  if (!request.has_header()) return HeaderMissing();
  const v1::WriteHeader& header = request.header();
  {
    engine::MutexLock lock(mutex_);
    *header_.mutable_header() = header;
  }
  RETURN_IF_ERROR(MayCall(*caller_.rights, RuleOf<v1::WriteRequest>(), &request));
  RETURN_IF_ERROR(context_.CheckBootId(header.expect_boot_id()));
  ASSIGN_OR_RETURN(volume_, OpenForWriting(context_, header.dataset(), header.expected_uid()));
  return absl::OkStatus();
}

void WriteStream::ApplyChunk(const v1::WriteChunk& chunk) {
  if (chunk.content_case() == v1::WriteChunk::kFlush) {
    if (!chunk.flush()) {
      return Applied(InvalidField("flush", "can only be true"), 0, false, std::nullopt);
    }
    volume_->Flush(
        context_.Counted([self = shared_from_this()](const absl::StatusOr<engine::Txg>& txg) {
          self->Applied(txg.status(), 0, false,
                        txg.ok() ? std::optional<engine::Txg>(*txg) : std::nullopt);
        }));
    return;
  }
  if (chunk.content_case() == v1::WriteChunk::kMakeDurable) {
    if (!chunk.make_durable()) {
      return Applied(InvalidField("make_durable", "can only be true"), 0, false, std::nullopt);
    }
    volume_->MakeDurable(context_.Counted([self = shared_from_this()](const absl::Status& status) {
      self->Applied(status, 0, true, std::nullopt);
    }));
    return;
  }
  WriteContent(context_, *volume_, chunk,
               [self = shared_from_this()](const absl::Status& status, uint64_t bytes) {
                 self->Applied(status, bytes, false, std::nullopt);
               });
}

void WriteStream::Applied(const absl::Status& status, uint64_t bytes, bool durable,
                          std::optional<engine::Txg> flushed_txg) {
  engine::MutexLock lock(mutex_);
  applying_ = false;
  reading_since_ = std::chrono::steady_clock::now();  // silence counts from the last thing done
  if (!status.ok()) return Finish(status);
  accepted_bytes_ += bytes;
  // What the next chunk may add must not go past the interval.
  const bool due = accepted_bytes_ - acked_bytes_ > kAckIntervalBytes - kMaxChunkBytes;
  if (due || durable || flushed_txg) SendAck();
  if (durable) acks_.back().set_durable(true);
  if (flushed_txg) {
    acks_.back().set_flushed_txg(*flushed_txg);
    flushed_.set_flushed_txg(*flushed_txg);
  }
  Pump();
}

}  // namespace cowshed::service

// SPDX-License-Identifier: Apache-2.0
//
// What requests do, on whichever thread, and how they are answered.
#include <algorithm>
#include <utility>

#include "engine/base/bytes.h"
#include "engine/base/check.h"
#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "service/nbd/errors.h"
#include "service/nbd/transmission.h"

namespace cowshed::service::nbd {
namespace {

// One chunk of a structured reply: a few calls of the system per MiB, and still in the cache of the
// processor when it is sent.
constexpr uint64_t kPieceBytes = Memory::kBufferBytes;
constexpr uint64_t kZerosBytes = 1 << 20;

metrics::NbdCommand CountedAs(const Request& request) {
  using metrics::NbdCommand;
  switch (static_cast<Command>(request.command)) {
    case Command::kWrite:
      return NbdCommand::kWrite;
    case Command::kFlush:
      return NbdCommand::kFlush;
    case Command::kTrim:
      return NbdCommand::kTrim;
    case Command::kCache:
      return NbdCommand::kCache;
    case Command::kWriteZeroes:
      return NbdCommand::kWriteZeroes;
    case Command::kBlockStatus:
      return NbdCommand::kBlockStatus;
    default:
      return NbdCommand::kRead;
  }
}

bool IsKnown(const Request& request) {
  return request.command <= static_cast<uint16_t>(Command::kBlockStatus) &&
         !request.Is(Command::kDisconnect);
}

Reply WithHead(const ReplyHead& head) {
  Reply reply;
  reply.head = head;
  return reply;
}

}  // namespace

// --- reads ---

void Transmission::RunOnWorker(const Task& task, void (Transmission::*work)(const Task&)) {
  Executor::Task later = [self = shared_from_this(), task, work] {
    (self.get()->*work)(task);
    self->output_.Send();
  };
  if (!workers_.SubmitUnlessStopped(later)) Fail(task, Stopping());
}

// What memory has is answered here, by the connection's thread. For the rest the host has begun to
// read, and a worker waits; so it does where there is much to copy.
void Transmission::Read(const Task& task) {
  const Request& request = task.request;
  if (request.length_bytes > kPieceBytes) return RunOnWorker(task, &Transmission::ReadOnWorker);
  Reply reply;
  MakeBody(reply, memory_, request.length_bytes);
  const auto read = volume_->ReadCached(request.offset_bytes, {reply.body.get(), reply.body_bytes});
  if (!read.ok()) return FailAt(task, request.offset_bytes, read.status());
  if (!*read) return RunOnWorker(task, &Transmission::ReadOnWorker);
  PushAll(task, std::move(reply));
}

void Transmission::ReadOnWorker(const Task& task) {
  if (rules_.structured && !task.request.Has(command_flags::kDf)) return ReadInChunks(task);
  const Request& request = task.request;
  Reply reply;
  MakeBody(reply, memory_, request.length_bytes);
  const absl::Status status =
      volume_->Read(request.offset_bytes, {reply.body.get(), reply.body_bytes});
  if (!status.ok()) return FailAt(task, request.offset_bytes, status);
  PushAll(task, std::move(reply));
}

// All that a read asked for is the body of `reply`.
void Transmission::PushAll(const Task& task, Reply reply) {
  const Request& request = task.request;
  if (!rules_.structured) {
    reply.head = SimpleReply(request.cookie, Errno::kOk);
  } else if (request.length_bytes == 0) {
    reply.head = NoneChunk(request.cookie);
  } else if (!request.Has(command_flags::kDf) &&
             engine::IsZero({reply.body.get(), reply.body_bytes})) {
    FreeBody(reply, memory_);
    reply.head = HoleChunk(request.cookie, request.offset_bytes, request.length_bytes, true);
  } else {
    reply.head = DataChunk(request.cookie, request.offset_bytes, request.length_bytes, true);
  }
  PushLast(task, std::move(reply));
}

// Holes travel as such; data in pieces, each sent while the next one is read.
void Transmission::ReadInChunks(const Task& task) {
  const Request& request = task.request;
  uint64_t at = request.offset_bytes;
  const uint64_t end = at + request.length_bytes;
  while (true) {
    const auto data = volume_->NextData(at);
    if (!data.ok()) return FailAt(task, at, data.status());
    Reply reply;
    uint64_t next = std::min(*data, end);
    if (next > at) {
      const auto hole_bytes = static_cast<uint32_t>(next - at);
      reply.head = HoleChunk(request.cookie, at, hole_bytes, next == end);
    } else {
      const uint64_t piece_end = std::min(end, at + kPieceBytes);
      next = piece_end;
      if (piece_end - at > info_.block_bytes) {
        const auto hole = volume_->NextHole(at, piece_end);
        if (!hole.ok()) return FailAt(task, at, hole.status());
        if (*hole > at) next = *hole;
      }
      MakeBody(reply, memory_, next - at);
      const absl::Status status = volume_->Read(at, {reply.body.get(), reply.body_bytes});
      if (!status.ok()) return FailAt(task, at, status);
      reply.head = DataChunk(request.cookie, at, reply.body_bytes, next == end);
    }
    at = next;
    if (at == end) return PushLast(task, std::move(reply));
    output_.Push(std::move(reply));
    output_.Send();
  }
}

void Transmission::ReadAhead(const Task& task) {
  const Request& request = task.request;
  std::unique_ptr<std::byte[]> bytes = memory_.NewBuffer();
  uint64_t at = request.offset_bytes;
  const uint64_t end = at + request.length_bytes;
  while (at < end) {
    const auto data = volume_->NextData(at);
    if (!data.ok()) return Fail(task, data.status());
    at = std::min(*data, end);
    const uint64_t count = std::min(end - at, kPieceBytes);
    const absl::Status status = volume_->Read(at, {bytes.get(), count});
    if (!status.ok()) return Fail(task, status);
    at += count;
  }
  memory_.KeepBuffer(std::move(bytes));
  Succeed(task);
}

// --- changes ---

// Whole blocks of zeros are no data to the volume, which makes holes of them all the same.
void Transmission::WriteZeros(const Task& task) {
  static const auto& zeros = *new std::vector<std::byte>(kZerosBytes);
  const Request& request = task.request;
  absl::Status status;
  for (uint64_t done = 0; done < request.length_bytes && status.ok();) {
    const uint64_t at = request.offset_bytes + done;
    // Up to the end of a block, except the last piece.
    const uint64_t count =
        std::min(request.length_bytes - done, kZerosBytes - at % info_.block_bytes);
    status = volume_->Write(at, {zeros.data(), count});
    done += count;
  }
  Changed(task, status);
}

void Transmission::Discard(const Task& task) {
  const Request& request = task.request;
  volume_->Discard(request.offset_bytes, request.length_bytes,
                   context_.Counted([self = shared_from_this(), task](const absl::Status& status) {
                     self->Changed(task, status);
                     self->output_.Send();
                   }));
}

void Transmission::Changed(const Task& task, const absl::Status& status) {
  if (!status.ok()) return Fail(task, status);
  return task.request.Has(command_flags::kFua) ? Flush(task) : Succeed(task);
}

void Transmission::Flush(const Task& task) {
  if (rules_.read_only) return Succeed(task);  // nothing of ours could be lost
  volume_->MakeDurable(
      context_.Counted([self = shared_from_this(), task](const absl::Status& status) {
        status.ok() ? self->Succeed(task) : self->Fail(task, status);
        self->output_.Send();
      }));
}

// --- what is where ---

void Transmission::BlockStatus(const Task& task) {
  const bool compares =
      std::any_of(contexts_.begin(), contexts_.end(),
                  [](const MetaContext& context) { return !context.since.empty(); });
  if (!compares || volume_->read_only()) return RunOnWorker(task, &Transmission::TellExtents);
  // Trees are compared as committed. The pool's sync, not the volume's flush: that would use up the
  // one report of writes lost by a rollback, which is the client's.
  context_.pool.Sync(
      context_.Counted([self = shared_from_this(), task](const absl::StatusOr<engine::Txg>& txg) {
        if (txg.ok()) return self->RunOnWorker(task, &Transmission::TellExtents);
        self->Fail(task, txg.status());
        self->output_.Send();
      }));
}

void Transmission::TellExtents(const Task& task) {
  std::vector<Reply> replies;
  for (const MetaContext& context : contexts_) {
    const auto extents = ExtentsOf(context_.pool, *volume_, info_, context, task.request);
    if (!extents.ok()) return Fail(task, extents.status());
    Reply& reply = replies.emplace_back();
    reply.SetBody(EncodeExtents(*extents));
    reply.head = BlockStatusChunk(task.request.cookie, context.id, reply.body_bytes,
                                  replies.size() == contexts_.size());
  }
  for (size_t i = 0; i + 1 < replies.size(); ++i) output_.Push(std::move(replies[i]));
  PushLast(task, std::move(replies.back()));
}

// --- replies ---

void Transmission::Succeed(const Task& task) {
  PushLast(task, WithHead(SimpleReply(task.request.cookie, Errno::kOk)));
}

void Transmission::PushLast(const Task& task, Reply reply) {
  Count(task, Errno::kOk);
  reply.last = true;
  reply.reserved_bytes = task.reserved_bytes;
  output_.Push(std::move(reply));
}

void Transmission::Fail(const Task& task, const absl::Status& status) {
  Fail(task, ErrnoOf(status), engine::StdView(status.message()));
}

void Transmission::Fail(const Task& task, Errno error, std::string_view text) {
  PushError(task, error, EncodeErrorText(text), ChunkType::kError);
}

void Transmission::FailAt(const Task& task, uint64_t offset, const absl::Status& status) {
  PushError(task, ErrnoOf(status), EncodeErrorOffsetText(engine::StdView(status.message()), offset),
            ChunkType::kErrorOffset);
}

void Transmission::PushError(const Task& task, Errno error, std::string body, ChunkType type) {
  Count(task, error);
  Reply reply;
  const uint64_t cookie = task.request.cookie;
  if (rules_.structured) {
    reply.SetBody(body);
    reply.head = ErrorChunk(cookie, type, error, reply.body_bytes);
  } else {
    reply.head = SimpleReply(cookie, error);
  }
  reply.last = true;
  reply.reserved_bytes = task.reserved_bytes;
  output_.Push(std::move(reply));
}

void Transmission::Count(const Task& task, Errno error) {
  metrics::NbdStats& stats = context_.stats.nbd;
  const auto relaxed = std::memory_order_relaxed;
  if (error != Errno::kOk) stats.errors[nbd::CountedAs(error)].fetch_add(1, relaxed);
  if (!IsKnown(task.request)) return;
  const metrics::NbdCommand command = CountedAs(task.request);
  stats.requests[command].fetch_add(1, relaxed);
  const std::chrono::duration<double> took = Clock::now() - task.start;
  stats.request_seconds[static_cast<size_t>(command)].Observe(took.count());
  if (error != Errno::kOk) return;
  if (command == metrics::NbdCommand::kRead) {
    stats.read_bytes.fetch_add(task.request.length_bytes, relaxed);
  } else if (command == metrics::NbdCommand::kWrite) {
    stats.written_bytes.fetch_add(task.request.length_bytes, relaxed);
  }
}

}  // namespace cowshed::service::nbd

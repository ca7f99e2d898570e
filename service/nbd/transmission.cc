// SPDX-License-Identifier: Apache-2.0
//
// The connection's own thread: reads requests, and writes what comes with them.
#include "service/nbd/transmission.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "service/nbd/errors.h"

namespace cowshed::service::nbd {
namespace {

// Replies of requests done here that wait for each other: few calls of the system, early answers.
constexpr uint32_t kUnsentMax = 4;

absl::Status Stalled() {
  return Error(absl::StatusCode::kAborted, v1::READER_STALLED,
               "the client took no replies for too long");
}

}  // namespace

Transmission::Transmission(ServiceContext& context, Executor& workers, Memory& memory,
                           std::shared_ptr<Waker> waker, Session session)
    : context_(context),
      workers_(workers),
      memory_(memory),
      waker_(std::move(waker)),
      info_(std::move(session.exported.info)),
      rules_{info_.size_bytes, (info_.flags & export_flags::kReadOnly) != 0, session.structured,
             !session.contexts.empty()},
      contexts_(std::move(session.contexts)),
      volume_(session.exported.attachment->share_volume()),
      output_(std::move(session.stream), waker_, memory, context.limits.nbd_requests_max,
              kReplyBytesMax),
      attachment_(std::move(session.exported.attachment)) {}

absl::Status Transmission::Run() {
  while (!over_) {
    NoteEnding();
    const Next next = TakeAll();
    output_.Send();
    unsent_ = 0;
    if (IsOver(next)) break;
    Wait(next);
  }
  output_.Fail();
  attachment_.reset();
  return why_;
}

void Transmission::NoteEnding() {
  if (refusing_) return;
  const auto ending = waker_->ending();
  if (!ending) return;
  refusing_ = true;
  why_ = ending->why;
  deadline_ = std::min(deadline_, ending->deadline);
}

// Whether there is nothing left to do, or no time.
bool Transmission::IsOver(Next next) {
  if (over_ || next == Next::kEnd) return true;
  if (!leaving_ && !refusing_) return false;
  return (output_.Idle() && (leaving_ || drained_)) || Clock::now() >= deadline_;
}

Transmission::Next Transmission::TakeAll() {
  while (!leaving_) {
    if (payload_) {
      if (!TakePayload()) return Next::kInput;
      continue;
    }
    if (input_.size() < kRequestBytes) return Next::kInput;
    const auto request = DecodeRequest(input_.bytes().first(kRequestBytes));
    if (!request.ok()) {
      why_ = request.status();
      return Next::kEnd;
    }
    if (!TakeRequest(*request)) return over_ ? Next::kEnd : Next::kRoom;
    if (++unsent_ >= kUnsentMax) {
      output_.Send();
      unsent_ = 0;
    }
  }
  return Next::kRoom;
}

bool Transmission::TakeRequest(const Request& request) {
  if (request.Is(Command::kDisconnect)) {
    leaving_ = true;
    deadline_ = std::min(deadline_, Clock::now() + context_.limits.drain_timeout);
    return true;
  }
  auto refusal = Judge(request, rules_);
  if (refusing_) refusal = Refusal{Errno::kShutdown, std::string(why_.message())};
  Task task{request, 0, Clock::now()};
  if (request.Is(Command::kRead) && !refusal) task.reserved_bytes = request.length_bytes;
  if (!output_.Take(task.reserved_bytes)) return false;
  input_.Drop(kRequestBytes);
  attachment_->counters().requests.fetch_add(1, std::memory_order_relaxed);
  if (request.Is(Command::kWrite)) {
    BeginPayload(task, std::move(refusal));
  } else if (refusal) {
    Fail(task, refusal->error, refusal->text);
  } else {
    Begin(task);
  }
  return !over_;
}

void Transmission::BeginPayload(const Task& task, std::optional<Refusal> refusal) {
  if (task.request.length_bytes > kSkippedBytesMax) {
    why_ = absl::InvalidArgumentError(
        engine::StrCat("a write of ", task.request.length_bytes, " bytes"));
    over_ = true;
    return;
  }
  payload_ = refusal ? Payload{task, 0, refusal->error, std::move(refusal->text)}
                     : Payload{task, 0, Errno::kOk, ""};
}

// Writes what of a payload has come, up to the end of a block: what lies in one block is written
// with it.
bool Transmission::TakePayload() {
  Payload& payload = *payload_;
  const Request& request = payload.task.request;
  const uint32_t missing = request.length_bytes - payload.taken_bytes;
  const uint64_t offset = request.offset_bytes + payload.taken_bytes;
  auto take = static_cast<uint32_t>(std::min<size_t>(missing, input_.size()));
  if (take < missing && payload.error == Errno::kOk) {
    const auto beyond = static_cast<uint32_t>((offset + take) % info_.block_bytes);
    take -= std::min(take, beyond);
  }
  if (take > 0 && payload.error == Errno::kOk) {
    const absl::Status status = volume_->Write(offset, input_.bytes().first(take));
    payload.error = ErrnoOf(status);
    payload.text = std::string(status.message());
  }
  input_.Drop(take);
  payload.taken_bytes += take;
  if (payload.taken_bytes < request.length_bytes) return take > 0;
  const Payload done = *std::exchange(payload_, std::nullopt);
  if (done.error != Errno::kOk) {
    Fail(done.task, done.error, done.text);
    return true;
  }
  attachment_->counters().written_bytes.fetch_add(request.length_bytes, std::memory_order_relaxed);
  Changed(done.task, absl::OkStatus());
  return true;
}

void Transmission::Begin(const Task& task) {
  switch (static_cast<Command>(task.request.command)) {
    case Command::kRead:
      attachment_->counters().read_bytes.fetch_add(task.request.length_bytes,
                                                   std::memory_order_relaxed);
      return Read(task);
    case Command::kFlush:
      return Flush(task);
    case Command::kTrim:
      return Discard(task);
    case Command::kWriteZeroes:
      return task.request.Has(command_flags::kNoHole) ? RunOnWorker(task, &Transmission::WriteZeros)
                                                      : Discard(task);
    case Command::kCache:
      return RunOnWorker(task, &Transmission::ReadAhead);
    case Command::kBlockStatus:
      return BlockStatus(task);
    case Command::kWrite:
    case Command::kDisconnect:
      break;
  }
}

void Transmission::Receive() {
  const ssize_t count = input_.Fill(output_.stream());
  if (count > 0) {
    eager_ = static_cast<size_t>(count) >= 2 * kRequestBytes;
    drained_ = false;
    return;
  }
  eager_ = false;
  if (count == -EAGAIN) {
    drained_ = refusing_;
    return;
  }
  // At an end in the middle of something the client has died, which is none of our errors.
  over_ = true;
}

// Waits for what is missing, for the socket to take what is queued, or for the waker.
void Transmission::Wait(Next next) {
  Stream& stream = output_.stream();
  const bool wants_input = next == Next::kInput;
  if (wants_input && (eager_ || refusing_ || stream.pending())) {
    const size_t before = input_.size();
    Receive();
    if (over_ || input_.size() > before) return;
    if (refusing_ && output_.Idle()) return;
  }
  const Clock::time_point blocked_since = output_.blocked_since();
  const bool blocked = blocked_since != Clock::time_point::max();
  short events = wants_input ? POLLIN : 0;
  if (blocked) events |= stream.send_wants_input() ? POLLIN : POLLOUT;
  const Clock::time_point stalled =
      blocked ? blocked_since + context_.limits.stall_timeout : Clock::time_point::max();
  pollfd polled[2] = {{stream.fd(), events, 0}, {waker_->fd(), POLLIN, 0}};
  poll(polled, 2, PollTimeout(std::min(stalled, deadline_)));
  if (polled[1].revents != 0) waker_->Clear();
  if (blocked && Clock::now() >= stalled && output_.blocked_since() == blocked_since) {
    why_ = Stalled();
    over_ = true;
    return;
  }
  if (wants_input && polled[0].revents != 0) return Receive();
  // Nobody is there any more, though nothing was to be read or sent now.
  if ((polled[0].revents & (POLLERR | POLLHUP)) != 0) over_ = true;
}

}  // namespace cowshed::service::nbd

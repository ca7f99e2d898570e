// SPDX-License-Identifier: Apache-2.0
#include "service/nbd/output.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace cowshed::service::nbd {
namespace {

// What of a connection's reservation comes out of the memory of all.
uint64_t SharedOf(uint64_t reserved_bytes) {
  return reserved_bytes - std::min(reserved_bytes, Output::kAssuredBytes);
}

}  // namespace

void Reply::SetBody(std::string_view text) {
  body_bytes = static_cast<uint32_t>(text.size());
  body = std::unique_ptr<std::byte[]>(new std::byte[text.size()]);
  std::memcpy(body.get(), text.data(), text.size());
}

// Small ones come from the heap, which keeps them; those in between would waste most of a buffer.
void MakeBody(Reply& reply, Memory& memory, uint64_t size_bytes) {
  reply.body_bytes = static_cast<uint32_t>(size_bytes);
  reply.buffered = size_bytes > Memory::kBufferBytes / 4 && size_bytes <= Memory::kBufferBytes;
  reply.body =
      reply.buffered ? memory.NewBuffer() : std::unique_ptr<std::byte[]>(new std::byte[size_bytes]);
}

void FreeBody(Reply& reply, Memory& memory) {
  if (reply.buffered) memory.KeepBuffer(std::move(reply.body));
  reply.body.reset();
  reply.body_bytes = 0;
  reply.buffered = false;
}

Output::~Output() { memory_.Give(SharedOf(reserved_bytes_)); }

bool Output::Take(uint64_t size_bytes) {
  const engine::MutexLock lock(mutex_);
  const bool fits = reserved_bytes_ == 0 || reserved_bytes_ + size_bytes <= bytes_max_;
  const uint64_t shared_bytes = SharedOf(reserved_bytes_ + size_bytes) - SharedOf(reserved_bytes_);
  if (in_flight_ >= requests_max_ || !fits ||
      (shared_bytes > 0 && !memory_.Take(shared_bytes, waker_))) {
    wanted_ = true;
    return false;
  }
  ++in_flight_;
  reserved_bytes_ += size_bytes;
  return true;
}

void Output::Push(Reply reply) {
  const engine::MutexLock lock(mutex_);
  if (failed_) {
    if (reply.last) Leave(reply);
    return;
  }
  queue_.push_back(std::move(reply));
}

void Output::Send() {
  Parts parts;
  if (!Begin(&parts)) return;
  while (Continue(stream_->Send(parts.all()), &parts)) Free(&parts.sent);
  Free(&parts.sent);
}

void Output::Free(std::vector<Reply>* sent) {
  for (Reply& reply : *sent) {
    if (reply.buffered) memory_.KeepBuffer(std::move(reply.body));
  }
  sent->clear();
}

bool Output::Begin(Parts* parts) {
  const engine::MutexLock lock(mutex_);
  if (sending_ || failed_ || queue_.empty()) return false;
  sending_ = true;
  ListParts(parts);
  return true;
}

bool Output::Continue(ssize_t count, Parts* parts) {
  bool blocks = false;
  {
    const engine::MutexLock lock(mutex_);
    if (count > 0) {
      Sent(static_cast<size_t>(count), &parts->sent);
      blocked_since_ = Clock::time_point::max();
    } else if (count == -EAGAIN) {
      blocks = blocked_since_ == Clock::time_point::max();
      if (blocks) blocked_since_ = Clock::now();
    } else {
      failed_ = true;
    }
    if (failed_) Drop();
    sending_ = count > 0 && !queue_.empty();
    if (sending_) ListParts(parts);
    if (sending_ || (!failed_ && !blocks)) return sending_;
  }
  // Whoever reads the connection polls the socket for us, or learns that it is over.
  if (!blocks) stream_->Shutdown();
  waker_->Wake();
  return false;
}

void Output::Fail() {
  {
    const engine::MutexLock lock(mutex_);
    failed_ = true;
    if (!sending_) Drop();
  }
  stream_->Shutdown();
}

Clock::time_point Output::blocked_since() const {
  const engine::MutexLock lock(mutex_);
  return blocked_since_;
}

uint32_t Output::in_flight() const {
  const engine::MutexLock lock(mutex_);
  return in_flight_;
}

bool Output::Idle() {
  const engine::MutexLock lock(mutex_);
  wanted_ = in_flight_ > 0;
  return in_flight_ == 0;
}

void Output::Parts::Add(const std::byte* bytes, size_t size, size_t* skip) {
  const size_t skipped = std::min(size, *skip);
  *skip -= skipped;
  if (size == skipped) return;
  parts[count++] = {const_cast<std::byte*>(bytes) + skipped, size - skipped};
}

void Output::ListParts(Parts* parts) const {
  parts->count = 0;
  size_t skip = front_sent_;
  for (const Reply& reply : queue_) {
    if (parts->count + 2 > Parts::kMax) break;
    parts->Add(reply.head.bytes.data(), reply.head.size, &skip);
    parts->Add(reply.body.get(), reply.body_bytes, &skip);
  }
}

void Output::Sent(size_t count, std::vector<Reply>* sent) {
  count += front_sent_;
  while (!queue_.empty()) {
    Reply& front = queue_.front();
    const size_t size = front.head.size + front.body_bytes;
    if (count < size) break;
    count -= size;
    if (front.last) Leave(front);
    sent->push_back(std::move(front));
    queue_.pop_front();
  }
  front_sent_ = count;
}

void Output::Drop() {
  for (const Reply& reply : queue_) {
    if (reply.last) Leave(reply);
  }
  queue_.clear();
  front_sent_ = 0;
}

void Output::Leave(const Reply& reply) {
  --in_flight_;
  const uint64_t shared_bytes = SharedOf(reserved_bytes_);
  reserved_bytes_ -= reply.reserved_bytes;
  memory_.Give(shared_bytes - SharedOf(reserved_bytes_));
  if (std::exchange(wanted_, false)) waker_->Wake();
}

}  // namespace cowshed::service::nbd

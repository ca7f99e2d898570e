// SPDX-License-Identifier: Apache-2.0
//
// The way out of one connection: replies, from whichever thread has them, and the count of requests
// that are still to be answered.
//
// Model       Push queues a reply, Send sends what is queued: the thread that finds nobody sending
//             sends for all, several replies in one call of the system; the others go on. Nobody
//             waits for a slow client: what the socket does not take stays queued, and the thread
//             that reads the connection polls for it (blocked).
// Bounds      Take admits a request if there is room for it and for its reply; it is in flight
//             until its last reply has left. The memory of replies is thereby bounded, per
//             connection and over all.
// Threads     Thread-safe.
// Ownership   Owns the stream, so that a late reply has one to go to; after Fail it goes nowhere.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "engine/base/mutex.h"
#include "service/nbd/memory.h"
#include "service/nbd/stream.h"
#include "service/nbd/waker.h"
#include "service/nbd/wire.h"

namespace cowshed::service::nbd {

// A simple reply, or one chunk of a structured one.
struct Reply {
  ReplyHead head;
  std::unique_ptr<std::byte[]> body;
  uint32_t body_bytes = 0;
  bool buffered = false;        // the body is a buffer of Memory's
  bool last = false;            // nothing of its request is in flight any more
  uint64_t reserved_bytes = 0;  // of the request, given back with its last reply

  void SetBody(std::string_view text);
};

// A body of `size_bytes` without a value yet.
void MakeBody(Reply& reply, Memory& memory, uint64_t size_bytes);
// Takes the body away again.
void FreeBody(Reply& reply, Memory& memory);

class Output {
 public:
  // Of replies, each connection's own whatever others hold: those that ask for much and take
  // nothing must not hold up anybody. 16 in flight of the default block size.
  static constexpr uint64_t kAssuredBytes = 16 * (16 << 10);

  Output(std::unique_ptr<Stream> stream, std::shared_ptr<Waker> waker, Memory& memory,
         uint32_t requests_max, uint64_t bytes_max)
      : stream_(std::move(stream)),
        waker_(std::move(waker)),
        memory_(memory),
        requests_max_(requests_max),
        bytes_max_(bytes_max) {}
  ~Output();

  Stream& stream() { return *stream_; }

  // Takes a request into flight, with `size_bytes` for its reply. False if there is no room: the
  // waker says when to try again.
  bool Take(uint64_t size_bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  void Push(Reply reply) ABSL_LOCKS_EXCLUDED(mutex_);
  void Send() ABSL_LOCKS_EXCLUDED(mutex_);
  // Drops all that is queued or will be, and wakes whoever waits for the socket.
  void Fail() ABSL_LOCKS_EXCLUDED(mutex_);

  // Since when the client has taken nothing of what is queued; never, if it takes.
  Clock::time_point blocked_since() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Requests that were taken and whose last reply has not left.
  uint32_t in_flight() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether nothing is in flight. If not, the waker says when to look again.
  bool Idle() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // What one call of the system takes of the queue.
  struct Parts {
    static constexpr size_t kMax = 64;
    std::array<iovec, kMax> parts;
    size_t count = 0;
    std::vector<Reply> sent;  // what has left, to be freed without the lock
    std::span<const iovec> all() const { return {parts.data(), count}; }
    void Add(const std::byte* bytes, size_t size, size_t* skip);
  };

  void Free(std::vector<Reply>* sent);
  // Makes this thread the one that sends, if it is needed.
  bool Begin(Parts* parts) ABSL_LOCKS_EXCLUDED(mutex_);
  // After a call of the system that returned `count`; false: this thread is done.
  bool Continue(ssize_t count, Parts* parts) ABSL_LOCKS_EXCLUDED(mutex_);
  void ListParts(Parts* parts) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `count` bytes have left.
  void Sent(size_t count, std::vector<Reply>* sent) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Drop() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The request of `reply`, its last, is not in flight any more.
  void Leave(const Reply& reply) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::unique_ptr<Stream> stream_;
  const std::shared_ptr<Waker> waker_;
  Memory& memory_;
  const uint32_t requests_max_;
  const uint64_t bytes_max_;

  mutable engine::Mutex mutex_{engine::LockRank::kNbdConnection};
  std::deque<Reply> queue_ ABSL_GUARDED_BY(mutex_);
  size_t front_sent_ ABSL_GUARDED_BY(mutex_) = 0;  // bytes of the first reply
  uint32_t in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t reserved_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool sending_ ABSL_GUARDED_BY(mutex_) = false;  // by one thread, which alone shortens the queue
  bool failed_ ABSL_GUARDED_BY(mutex_) = false;
  bool wanted_ ABSL_GUARDED_BY(mutex_) = false;  // the reader waits for room, or for the end
  Clock::time_point blocked_since_ ABSL_GUARDED_BY(mutex_) = Clock::time_point::max();
};

}  // namespace cowshed::service::nbd

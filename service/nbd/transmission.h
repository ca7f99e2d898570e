// SPDX-License-Identifier: Apache-2.0
//
// The second part of a connection: requests of one attachment, answered as they are done.
//
// Model       The connection's thread reads requests, many at a time, and does itself what only
//             touches memory: writes go into the volume from the buffer they came in, piece by
//             piece, and so do zeros; small reads are answered from memory. What waits for the
//             disk is done by workers: reads of what memory lacks, and whatever looks at much of a
//             volume. Flushes and large discards are called back by the pool. Whoever has a reply
//             sends it.
// Order       None between requests in flight, as the protocol has it. A flush covers every write
//             that was answered before it came.
// Bounds      See Output: past them no request is read until a reply has left. A write takes no
//             memory beyond the buffer.
// Ending      The client goes, or End of the waker: requests from then on are answered ESHUTDOWN,
//             those in flight get until its deadline. A client that takes no replies for
//             stall_timeout is cut.
// Threads     Run is the connection's thread; the rest is called by workers and by the pool's
//             callbacks, which therefore share the object.
// Ownership   Owns the output and, while Run lasts, the attachment.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "service/context.h"
#include "service/executor.h"
#include "service/nbd/handshake.h"
#include "service/nbd/input.h"
#include "service/nbd/output.h"
#include "service/nbd/request_rules.h"

namespace cowshed::service::nbd {

class Transmission : public std::enable_shared_from_this<Transmission> {
 public:
  // Replies on their way of one connection: two of the largest.
  static constexpr uint64_t kReplyBytesMax = 2 * uint64_t{kPayloadBytesMax};

  Transmission(ServiceContext& context, Executor& workers, Memory& memory,
               std::shared_ptr<Waker> waker, Session session);

  // Returns why it ended; OK: the client went.
  absl::Status Run();

 private:
  // A request in flight.
  struct Task {
    Request request;
    uint64_t reserved_bytes = 0;
    Clock::time_point start;
  };
  // A WRITE whose bytes are still coming.
  struct Payload {
    Task task;
    uint32_t taken_bytes = 0;
    Errno error = Errno::kOk;  // the first; what still comes is dropped
    std::string text;
  };
  enum class Next { kInput, kRoom, kEnd };

  // --- the connection's thread: transmission.cc ---
  // Does what has come. Says what is missing to go on.
  Next TakeAll();
  // False if it is not all here yet.
  bool TakePayload();
  bool TakeRequest(const Request& request);
  void Wait(Next next);
  void Receive();
  void NoteEnding();
  bool IsOver(Next next);
  void BeginPayload(const Task& task, std::optional<Refusal> refusal);
  void Begin(const Task& task);

  // --- any thread: requests.cc ---
  void Read(const Task& task);
  void ReadOnWorker(const Task& task);
  void PushAll(const Task& task, Reply reply);
  void ReadInChunks(const Task& task);
  void WriteZeros(const Task& task);
  void Discard(const Task& task);
  void ReadAhead(const Task& task);
  void Flush(const Task& task);
  void BlockStatus(const Task& task);
  void TellExtents(const Task& task);
  // The change that `task` asked for has been accepted, or has failed.
  void Changed(const Task& task, const absl::Status& status);
  void RunOnWorker(const Task& task, void (Transmission::*work)(const Task&));

  void Succeed(const Task& task);
  void Fail(const Task& task, const absl::Status& status);
  void Fail(const Task& task, Errno error, std::string_view text);
  void FailAt(const Task& task, uint64_t offset, const absl::Status& status);
  void PushError(const Task& task, Errno error, std::string body, ChunkType type);
  void PushLast(const Task& task, Reply reply);
  void Count(const Task& task, Errno error);

  ServiceContext& context_;
  Executor& workers_;
  Memory& memory_;
  const std::shared_ptr<Waker> waker_;
  const ExportInfo info_;
  const ExportRules rules_;
  const std::vector<MetaContext> contexts_;
  const std::shared_ptr<engine::Volume> volume_;
  Output output_;

  // The connection's thread alone.
  std::unique_ptr<engine::Attachment> attachment_;
  Input input_;
  std::optional<Payload> payload_;
  uint32_t unsent_ = 0;    // replies pushed since the last Send
  bool eager_ = false;     // several requests came at once: more may be there already
  bool leaving_ = false;   // DISC: no more requests
  bool refusing_ = false;  // the connection is to end
  bool drained_ = false;   // and the socket had nothing more
  bool over_ = false;
  absl::Status why_;
  Clock::time_point deadline_ = Clock::time_point::max();
};

}  // namespace cowshed::service::nbd

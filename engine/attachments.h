// SPDX-License-Identifier: Apache-2.0
//
// Attachments: who uses which volume as a device, for as long as its connection lives. They are
// kept in memory only: a restart cuts every connection, and so ends every attachment.
//
// Lease       Of a dataset, one holder at a time may write through an attachment: a device has one
//             owner. Several connections of one holder share the lease; `shared` attachments take
//             none and bear others that are shared. Readers, and bytes written by Volume without an
//             attachment, are not bound by it.
// Cutting     An attachment is asked to end through its `cut`; it ends when it is destroyed, and
//             until then it keeps its lease: bytes may still be on their way.
// Destroyed   Whoever destroys, rolls back or shrinks what is attached is refused with the
//             attachments as blockers, or cuts them (`force`). The check is part of the task; what
//             is attached between it and the commit is cut when that is published, so no order of
//             the two leaves an attachment of what is no more. A volume that is attached is of one
//             generation of its head: bytes that were on their way when it was rolled back or made
//             smaller are refused with DATASET_CHANGED, not written into what came of it.
// Threads     Thread-safe.
// Ownership   An Attachment holds its volume, and borrows the table, which outlives it.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "engine/base/mutex.h"
#include "engine/pool.h"

namespace cowshed::engine {

struct Publication;

struct AttachArgs {
  std::string name;        // a dataset or "dataset@snap"
  bool read_only = false;  // a snapshot is always attached so
  bool shared = false;     // write without a lease
  std::string holder;      // whose lease it is: one client process
  std::string client;      // as people see it: who, and from where
  std::string protocol;    // "nbd"
  // Asks for the end, with the reason. Any thread, more than once, even when the attachment is
  // ending or has ended; returns without waiting.
  std::function<void(const absl::Status& why)> cut;
};

struct AttachmentInfo {
  std::string id;    // unique for as long as the pool is open
  std::string name;  // of the volume as it was called when it was attached
  std::string uid;
  bool read_only = false;
  bool shared = false;
  std::string client;
  std::string protocol;
  int64_t since_ms = 0;
  uint64_t read_bytes = 0;
  uint64_t written_bytes = 0;
  uint64_t requests = 0;
  bool ending = false;  // it has been cut, and is not over yet
  uint64_t number = 0;  // `id`: rises with time
  uint64_t object = 0;  // the number of the dataset or snapshot within the pool
};

// What an attachment has done so far; its connection counts.
struct AttachmentCounters {
  std::atomic<uint64_t> read_bytes{0};
  std::atomic<uint64_t> written_bytes{0};
  std::atomic<uint64_t> requests{0};
};

class Attachment {
 public:
  ~Attachment();
  Attachment(const Attachment&) = delete;
  Attachment& operator=(const Attachment&) = delete;

  Volume& volume() const { return *volume_; }
  // For what is still under way when the attachment ends.
  std::shared_ptr<Volume> share_volume() const { return volume_; }
  bool read_only() const { return read_only_; }
  const std::string& id() const { return id_; }
  AttachmentCounters& counters() { return counters_; }

 private:
  friend class Attachments;
  Attachment(Attachments& table, const AttachArgs& args, std::shared_ptr<Volume> volume,
             uint64_t number, int64_t since_ms);
  AttachmentInfo Info(bool ending) const;
  AttachMode mode() const;

  Attachments& table_;
  const std::shared_ptr<Volume> volume_;
  const uint64_t number_;
  const uint64_t object_;
  const std::string id_;
  const std::string name_;
  const bool read_only_;
  const bool shared_;
  const std::string holder_;
  const std::string client_;
  const std::string protocol_;
  const int64_t since_ms_;
  const std::function<void(const absl::Status&)> cut_;
  AttachmentCounters counters_;
};

// One attached dataset or snapshot.
struct AttachedObject {
  uint64_t object = 0;
  bool snapshot = false;
  uint64_t count = 0;  // of its attachments that are not ending
};

class Attachments {
 public:
  // Gives a volume of the generation of its head that is current.
  using Opener = std::function<absl::StatusOr<std::shared_ptr<Volume>>(const std::string& name)>;

  Attachments(Opener open, std::function<int64_t()> clock_ms, PoolStats& stats)
      : open_(std::move(open)), clock_ms_(std::move(clock_ms)), stats_(stats) {}

  // As Pool::OpenVolume; FAILED_PRECONDITION ATTACHED, naming the holder, where another one has the
  // writer lease.
  absl::StatusOr<std::unique_ptr<Attachment>> Attach(const AttachArgs& args)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Oldest first. `uid` empty: of all volumes.
  std::vector<AttachmentInfo> List(const std::string& uid = "") const ABSL_LOCKS_EXCLUDED(mutex_);
  size_t Count() const ABSL_LOCKS_EXCLUDED(mutex_);
  // What is attached, by number; and the attachments of one of these, numbered above `after`, at
  // most `count_max` of them. Those that are ending are left out: they are in nobody's way.
  std::vector<AttachedObject> Objects() const ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<AttachmentInfo> ListOf(uint64_t object, uint64_t after, size_t count_max) const
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Asks those to end for which `why` has a reason, and calls `ended` with their number once the
  // last of them is over, on the thread that ended it.
  void End(absl::FunctionRef<absl::Status(const AttachmentInfo&)> why,
           absl::AnyInvocable<void(size_t)> ended) ABSL_LOCKS_EXCLUDED(mutex_);
  // After a commit: asks all to end that it destroyed, rolled back, cut down or found damaged.
  // REQUIRES: the heads are published, so that nobody attaches to them any more.
  void CutOff(const Publication& publication) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  friend class Attachment;
  struct Entry {
    Attachment* attachment = nullptr;
    bool ending = false;
  };
  // Somebody waits for the end of these.
  struct Ending {
    std::set<uint64_t> left;
    size_t count = 0;
    absl::AnyInvocable<void(size_t)> ended;
  };
  using Why = absl::FunctionRef<absl::Status(const Attachment&)>;

  absl::StatusOr<std::unique_ptr<Attachment>> TryAttach(const AttachArgs& args,
                                                        std::shared_ptr<Volume> volume)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CheckLease(const AttachArgs& args, const Volume& volume) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CutWhere(Why why, absl::AnyInvocable<void(size_t)> ended = nullptr)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Remove(const Attachment& attachment) ABSL_LOCKS_EXCLUDED(mutex_);

  const Opener open_;
  const std::function<int64_t()> clock_ms_;
  PoolStats& stats_;
  mutable Mutex mutex_{LockRank::kAttachments};
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<uint64_t, Entry> entries_ ABSL_GUARDED_BY(mutex_);  // by number: oldest first
  std::list<Ending> endings_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cowshed::engine

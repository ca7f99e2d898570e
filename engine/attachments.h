// SPDX-License-Identifier: Apache-2.0
//
// Attachments: who uses which volume as a device, for as long as its connection lives. They are
// kept in memory only: a restart cuts every connection, and so ends every attachment.
//
// Lease       Of a dataset, one holder at a time may write through an attachment: a device has one
//             owner. Several connections of one holder share the lease; `shared` attachments take
//             none and bear others that are shared. Readers, and bytes written by Volume without an
//             attachment, are not bound by it.
// Cutting     An attachment is asked to end through its `cut`; it ends when it is destroyed.
// Threads     Thread-safe.
// Ownership   An Attachment holds its volume, and borrows the table, which outlives it.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "engine/base/mutex.h"
#include "engine/pool.h"

namespace cowshed::engine {

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
  AttachmentInfo Info() const;

  Attachments& table_;
  const std::shared_ptr<Volume> volume_;
  const uint64_t number_;
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

class Attachments {
 public:
  using Opener = std::function<absl::StatusOr<std::shared_ptr<Volume>>(const std::string& name)>;

  Attachments(Opener open, std::function<int64_t()> clock_ms)
      : open_(std::move(open)), clock_ms_(std::move(clock_ms)) {}

  // As Pool::OpenVolume; FAILED_PRECONDITION ATTACHED, naming the holder, where another one has the
  // writer lease.
  absl::StatusOr<std::unique_ptr<Attachment>> Attach(const AttachArgs& args)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Oldest first. `uid` empty: of all volumes.
  std::vector<AttachmentInfo> List(const std::string& uid = "") const ABSL_LOCKS_EXCLUDED(mutex_);
  size_t Count() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Asks the attachment `id` to end; false if there is none.
  bool Cut(const std::string& id, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  // Asks all of one volume to end. Returns how many.
  size_t CutAll(const std::string& uid, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  friend class Attachment;
  size_t CutWhere(absl::FunctionRef<bool(const Attachment&)> chosen, const absl::Status& why)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Remove(const Attachment& attachment) ABSL_LOCKS_EXCLUDED(mutex_);

  const Opener open_;
  const std::function<int64_t()> clock_ms_;
  mutable Mutex mutex_{LockRank::kAttachments};
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<uint64_t, Attachment*> attachments_ ABSL_GUARDED_BY(mutex_);  // by number: oldest first
};

}  // namespace cowshed::engine

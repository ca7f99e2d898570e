// SPDX-License-Identifier: Apache-2.0
//
// A File that fails on command and remembers what was done: the tests' hand on the seam to the
// host.
//
// Model       Operations are counted from 1 in one sequence. A plan fails number k
//             alone or every one from k on; a write that fails may first put down a part of its
//             bytes, as a power cut would.
// Threads     Thread-safe.
// Ownership   A FaultFile and its test share the FaultPlan.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "engine/base/mutex.h"
#include "engine/store/file.h"

namespace cowshed::engine {

enum class FileOp : uint8_t { kRead, kWrite, kWriteDurable, kSync, kPunch, kTruncate };

struct FileCall {
  FileOp op = FileOp::kRead;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  absl::Status status;
};

class FaultPlan {
 public:
  struct Failure {
    uint64_t at = 0;        // number of the operation, from 1; 0 = none
    bool for_ever = false;  // and all after it
    absl::Status status = absl::UnavailableError("injected: input/output error");
    uint64_t torn_bytes = 0;  // of a failing write, this many are written
    uint64_t from_byte = 0;   // operations before this place neither count nor fail
  };
  // Counts anew from the next operation on.
  void Fail(const Failure& failure);
  // Only operations of this kind count (all by default).
  void CountOnly(FileOp op);
  void Heal() { Fail({}); }

  // Operations counted since the last Fail or Heal.
  uint64_t counted() const;
  // Everything that was called since the last ClearCalls, in order.
  std::vector<FileCall> calls() const;
  void ClearCalls();

 private:
  friend class FaultFile;
  // The failure that this operation meets, if any.
  absl::Status Next(FileOp op, uint64_t offset, uint64_t* torn_bytes);
  void Record(const FileCall& call);

  mutable Mutex mutex_{LockRank::kLeaf};
  Failure failure_ ABSL_GUARDED_BY(mutex_);
  bool count_all_ ABSL_GUARDED_BY(mutex_) = true;
  FileOp counted_op_ ABSL_GUARDED_BY(mutex_) = FileOp::kRead;
  uint64_t counted_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<FileCall> calls_ ABSL_GUARDED_BY(mutex_);
};

class FaultFile : public File {
 public:
  FaultFile(std::unique_ptr<File> file, std::shared_ptr<FaultPlan> plan)
      : file_(std::move(file)), plan_(std::move(plan)) {}

  absl::Status Read(uint64_t offset, std::span<std::byte> out) const override;
  // One read that counts; one that would have had to wait is none.
  absl::Status ReadV(uint64_t offset, std::span<const iovec> pieces, ReadMode mode) const override;
  void WillNeed(uint64_t offset, uint64_t bytes) const override { file_->WillNeed(offset, bytes); }
  absl::Status Write(uint64_t offset, std::span<const std::byte> data) override;
  absl::Status WriteV(uint64_t offset, std::span<const iovec> pieces) override;
  absl::Status WriteDurable(uint64_t offset, std::span<const std::byte> data) override;
  absl::Status Sync() override;
  absl::Status Punch(uint64_t offset, uint64_t bytes) override;
  absl::Status Truncate(uint64_t bytes) override;
  absl::StatusOr<uint64_t> SizeBytes() const override { return file_->SizeBytes(); }
  absl::StatusOr<uint64_t> HostFreeBytes() const override { return file_->HostFreeBytes(); }
  bool is_device() const override { return file_->is_device(); }

 private:
  std::unique_ptr<File> file_;
  std::shared_ptr<FaultPlan> plan_;
};

}  // namespace cowshed::engine

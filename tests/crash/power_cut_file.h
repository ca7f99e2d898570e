// SPDX-License-Identifier: Apache-2.0
//
// A File that remembers which of its writes a power cut could still take back: those since the last
// sync that succeeded. PowerCut makes images of a pool as such a cut would leave it.
//
// Model       What a write replaced is kept until the next sync. An image keeps a prefix of the
//             unsynced writes and undoes the rest; a prefix may end within a write.
// Threads     One thread writes; images are made on it, or while it stands still.
// Ownership   The record outlives the files: what a dead process wrote is as unsynced as before.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/store/file.h"

namespace cowshed::engine {

class UnsyncedWrites {
 public:
  size_t count() const { return writes_.size(); }
  // Called before each write and each sync of a RecordingFile.
  void OnAccess(std::function<void()> hook) { hook_ = std::move(hook); }
  // Takes back all but the first `kept` writes in the copy of the file at `path`; of the first one
  // taken back, `torn_bytes` stay.
  absl::Status UndoIn(const std::string& path, size_t kept, uint64_t torn_bytes = 0) const;

 private:
  friend class RecordingFile;
  struct Write {
    uint64_t offset = 0;
    std::vector<std::byte> before;
  };
  std::function<void()> hook_;
  std::vector<Write> writes_;
};

class RecordingFile final : public File {
 public:
  RecordingFile(std::unique_ptr<File> file, std::shared_ptr<UnsyncedWrites> unsynced)
      : file_(std::move(file)), unsynced_(std::move(unsynced)) {}

  absl::Status Read(uint64_t offset, std::span<std::byte> out) const override {
    return file_->Read(offset, out);
  }
  absl::Status Write(uint64_t offset, std::span<const std::byte> data) override;
  absl::Status WriteV(uint64_t offset, std::span<const iovec> pieces) override;
  absl::Status Sync() override;
  absl::Status Punch(uint64_t offset, uint64_t bytes) override;
  absl::Status Truncate(uint64_t bytes) override { return file_->Truncate(bytes); }
  absl::StatusOr<uint64_t> SizeBytes() const override { return file_->SizeBytes(); }
  absl::StatusOr<uint64_t> HostFreeBytes() const override { return file_->HostFreeBytes(); }
  bool is_device() const override { return file_->is_device(); }

 private:
  absl::Status Remember(uint64_t offset, uint64_t bytes);

  std::unique_ptr<File> file_;
  std::shared_ptr<UnsyncedWrites> unsynced_;
};

}  // namespace cowshed::engine

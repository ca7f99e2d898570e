// SPDX-License-Identifier: Apache-2.0
#include "tests/crash/power_cut_file.h"

#include <algorithm>
#include <utility>

#include "engine/base/status_macros.h"

namespace cowshed::engine {

absl::Status UnsyncedWrites::UndoIn(const std::string& path, size_t kept,
                                    uint64_t torn_bytes) const {
  ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                   OpenFile(path, /*create=*/false, /*read_only=*/false));
  for (size_t i = writes_.size(); i > kept; --i) {
    const Write& write = writes_[i - 1];
    const uint64_t stays = i - 1 == kept ? std::min<uint64_t>(torn_bytes, write.before.size()) : 0;
    RETURN_IF_ERROR(file->Write(write.offset + stays, std::span(write.before).subspan(stays)));
  }
  return absl::OkStatus();
}

absl::Status RecordingFile::Remember(uint64_t offset, uint64_t bytes) {
  if (unsynced_->hook_) unsynced_->hook_();
  UnsyncedWrites::Write write;
  write.offset = offset;
  write.before.resize(bytes);
  RETURN_IF_ERROR(file_->Read(offset, write.before));
  unsynced_->writes_.push_back(std::move(write));
  return absl::OkStatus();
}

absl::Status RecordingFile::Write(uint64_t offset, std::span<const std::byte> data) {
  RETURN_IF_ERROR(Remember(offset, data.size()));
  return file_->Write(offset, data);
}

absl::Status RecordingFile::WriteV(uint64_t offset, std::span<const iovec> pieces) {
  uint64_t bytes = 0;
  for (const iovec& piece : pieces) bytes += piece.iov_len;
  RETURN_IF_ERROR(Remember(offset, bytes));
  return file_->WriteV(offset, pieces);
}

absl::Status RecordingFile::Sync() {
  if (unsynced_->hook_) unsynced_->hook_();
  RETURN_IF_ERROR(file_->Sync());
  unsynced_->writes_.clear();
  return absl::OkStatus();
}

absl::Status RecordingFile::Punch(uint64_t offset, uint64_t bytes) {
  RETURN_IF_ERROR(Remember(offset, bytes));
  return file_->Punch(offset, bytes);
}

}  // namespace cowshed::engine

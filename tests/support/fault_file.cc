// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fault_file.h"

#include <algorithm>

namespace cowshed::engine {

void FaultPlan::Fail(const Failure& failure) {
  const MutexLock lock(mutex_);
  failure_ = failure;
  counted_ = 0;
}

void FaultPlan::CountOnly(FileOp op) {
  const MutexLock lock(mutex_);
  count_all_ = false;
  counted_op_ = op;
}

uint64_t FaultPlan::counted() const {
  const MutexLock lock(mutex_);
  return counted_;
}

std::vector<FileCall> FaultPlan::calls() const {
  const MutexLock lock(mutex_);
  return calls_;
}

void FaultPlan::ClearCalls() {
  const MutexLock lock(mutex_);
  calls_.clear();
}

absl::Status FaultPlan::Next(FileOp op, uint64_t offset, uint64_t* torn_bytes) {
  const MutexLock lock(mutex_);
  if ((!count_all_ && op != counted_op_) || offset < failure_.from_byte) {
    return absl::OkStatus();
  }
  ++counted_;
  const bool fails = failure_.at != 0 &&
                     (counted_ == failure_.at || (failure_.for_ever && counted_ > failure_.at));
  *torn_bytes = fails ? failure_.torn_bytes : 0;
  return fails ? failure_.status : absl::OkStatus();
}

void FaultPlan::Record(const FileCall& call) {
  const MutexLock lock(mutex_);
  calls_.push_back(call);
}

absl::Status FaultFile::Read(uint64_t offset, std::span<std::byte> out) const {
  uint64_t torn_bytes = 0;
  absl::Status status = plan_->Next(FileOp::kRead, offset, &torn_bytes);
  if (status.ok()) {
    status = file_->Read(offset, out);
  }
  plan_->Record({FileOp::kRead, offset, out.size(), status});
  return status;
}

absl::Status FaultFile::ReadV(uint64_t offset, std::span<const iovec> pieces, ReadMode mode) const {
  absl::Status done = file_->ReadV(offset, pieces, mode);
  if (absl::IsCancelled(done)) return done;
  uint64_t torn_bytes = 0;
  absl::Status status = plan_->Next(FileOp::kRead, offset, &torn_bytes);
  if (status.ok()) status = std::move(done);
  uint64_t bytes = 0;
  for (const iovec& piece : pieces) bytes += piece.iov_len;
  plan_->Record({FileOp::kRead, offset, bytes, status});
  return status;
}

absl::Status FaultFile::Write(uint64_t offset, std::span<const std::byte> data) {
  const iovec piece{const_cast<std::byte*>(data.data()), data.size()};
  return WriteV(offset, std::span(&piece, 1));
}

absl::Status FaultFile::WriteV(uint64_t offset, std::span<const iovec> pieces) {
  uint64_t torn_bytes = 0;
  absl::Status status = plan_->Next(FileOp::kWrite, offset, &torn_bytes);
  uint64_t bytes = 0;
  std::vector<iovec> torn;
  for (const iovec& piece : pieces) {
    const uint64_t left = torn_bytes - std::min<uint64_t>(torn_bytes, bytes);
    torn.push_back({piece.iov_base, std::min<size_t>(piece.iov_len, left)});
    bytes += piece.iov_len;
  }
  if (status.ok()) {
    status = file_->WriteV(offset, pieces);
  } else if (const absl::Status partly = file_->WriteV(offset, torn); !partly.ok()) {
    status = partly;
  }
  plan_->Record({FileOp::kWrite, offset, bytes, status});
  return status;
}

absl::Status FaultFile::WriteDurable(uint64_t offset, std::span<const std::byte> data) {
  uint64_t torn_bytes = 0;
  absl::Status status = plan_->Next(FileOp::kWriteDurable, offset, &torn_bytes);
  if (status.ok()) {
    status = file_->WriteDurable(offset, data);
  } else if (torn_bytes > 0) {
    status.Update(file_->Write(offset, data.first(std::min<size_t>(data.size(), torn_bytes))));
  }
  plan_->Record({FileOp::kWriteDurable, offset, data.size(), status});
  return status;
}

absl::Status FaultFile::Sync() {
  uint64_t torn_bytes = 0;
  absl::Status status = plan_->Next(FileOp::kSync, 0, &torn_bytes);
  if (status.ok()) {
    status = file_->Sync();
  }
  plan_->Record({FileOp::kSync, 0, 0, status});
  return status;
}

absl::Status FaultFile::Punch(uint64_t offset, uint64_t bytes) {
  uint64_t torn_bytes = 0;
  absl::Status status = plan_->Next(FileOp::kPunch, offset, &torn_bytes);
  if (status.ok()) {
    status = file_->Punch(offset, bytes);
  }
  plan_->Record({FileOp::kPunch, offset, bytes, status});
  return status;
}

absl::Status FaultFile::Truncate(uint64_t bytes) {
  uint64_t torn_bytes = 0;
  absl::Status status = plan_->Next(FileOp::kTruncate, 0, &torn_bytes);
  if (status.ok()) {
    status = file_->Truncate(bytes);
  }
  plan_->Record({FileOp::kTruncate, 0, bytes, status});
  return status;
}

}  // namespace cowshed::engine

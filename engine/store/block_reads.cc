// SPDX-License-Identifier: Apache-2.0
//
// BlockStore::ReadMany: runs of neighbours with one call of the host each.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "engine/base/check.h"
#include "engine/base/status_macros.h"
#include "engine/store/block_store.h"

namespace cowshed::engine {
namespace {

// A run ends here, so that the checksums find its bytes in the cache of the core that read them.
constexpr uint64_t kRunBytesMax = 256 << 10;
// Blocks of a run at most: of the least size.
constexpr size_t kRunBlocksMax = kRunBytesMax / kSectorBytes;

uint64_t BytesOf(const BlockPtr& pointer) { return uint64_t{pointer.sectors} * kSectorBytes; }

bool IsPlain(const BlockPtr& pointer) {
  return !pointer.is_hole() && !pointer.is_gang() && pointer.codec == Codec::kNone;
}

bool IsWhole(const BlockRead& read) { return read.out.size() == BytesOf(read.pointer); }

// How many of `reads`, from the first on, lie side by side in the file.
size_t RunLength(std::span<const BlockRead> reads) {
  if (!IsPlain(reads[0].pointer)) return 1;
  uint64_t bytes = BytesOf(reads[0].pointer);
  size_t count = 1;
  for (; count < reads.size(); ++count) {
    const BlockPtr& before = reads[count - 1].pointer;
    const BlockPtr& next = reads[count].pointer;
    bytes += BytesOf(next);
    if (!IsPlain(next) || next.address != before.address + before.sectors || bytes > kRunBytesMax) {
      break;
    }
  }
  return count;
}

// The pieces of memory that a run is read into.
class Pieces {
 public:
  void Add(std::span<std::byte> memory) {
    if (count_ > 0) {
      iovec& last = pieces_[count_ - 1];
      if (static_cast<std::byte*>(last.iov_base) + last.iov_len == memory.data()) {
        last.iov_len += memory.size();
        return;
      }
    }
    pieces_[count_++] = {memory.data(), memory.size()};
  }
  std::span<const iovec> all() const { return std::span(pieces_).first(count_); }

 private:
  std::array<iovec, kRunBlocksMax> pieces_;
  size_t count_ = 0;
};

}  // namespace

absl::Status BlockStore::ReadOne(const BlockRead& read, ReadMode mode) const {
  if (read.pointer.is_hole()) {
    std::memset(read.out.data(), 0, read.out.size());
    return absl::OkStatus();
  }
  if (IsWhole(read)) return Read(read.pointer, read.out, mode);
  // Not value-initialised: every byte is read.
  const std::unique_ptr<std::byte[]> whole(new std::byte[BytesOf(read.pointer)]);
  RETURN_IF_ERROR(Read(read.pointer, std::span(whole.get(), BytesOf(read.pointer)), mode));
  std::memcpy(read.out.data(), whole.get() + read.skip, read.out.size());
  return absl::OkStatus();
}

absl::Status BlockStore::ReadRun(std::span<const BlockRead> run, ReadMode mode,
                                 size_t* failed) const {
  *failed = 0;
  if (run.size() == 1) return ReadOne(run[0], mode);
  // A part of a block is read beside, whole: only so can it be proven.
  uint64_t beside_bytes = 0;
  for (const BlockRead& read : run) {
    RETURN_IF_ERROR(CheckPlace(read.pointer.address, read.pointer.sectors));
    if (!IsWhole(read)) beside_bytes += BytesOf(read.pointer);
    ++*failed;
  }
  *failed = 0;
  const std::unique_ptr<std::byte[]> beside(beside_bytes > 0 ? new std::byte[beside_bytes]
                                                             : nullptr);
  std::array<std::byte*, kRunBlocksMax> places;
  Pieces pieces;
  for (size_t i = 0, used = 0; i < run.size(); ++i) {
    const uint64_t bytes = BytesOf(run[i].pointer);
    places[i] = IsWhole(run[i]) ? run[i].out.data() : beside.get() + used;
    if (!IsWhole(run[i])) used += bytes;
    pieces.Add(std::span(places[i], bytes));
  }
  RETURN_IF_ERROR(file_->ReadV(run[0].pointer.address * kSectorBytes, pieces.all(), mode));
  for (size_t i = 0; i < run.size(); ++i) {
    *failed = i;
    RETURN_IF_ERROR(CheckBytes(run[i].pointer, std::span(places[i], BytesOf(run[i].pointer))));
    if (!IsWhole(run[i])) {
      std::memcpy(run[i].out.data(), places[i] + run[i].skip, run[i].out.size());
    }
  }
  return absl::OkStatus();
}

absl::Status BlockStore::ReadMany(std::span<const BlockRead> reads, ReadMode mode,
                                  ReadReport* report) const {
  for (const BlockRead& read : reads) {
    COWSHED_CHECK(read.pointer.is_hole() || read.skip + read.out.size() <= BytesOf(read.pointer),
                  "a read lies within its block");
  }
  for (size_t i = 0; i < reads.size();) {
    const std::span run = reads.subspan(i, RunLength(reads.subspan(i)));
    size_t failed = 0;
    absl::Status status;
    if (mode == ReadMode::kWait && !report->waited) {
      status = ReadRun(run, ReadMode::kCached, &failed);
      if (absl::IsCancelled(status)) {
        report->waited = true;
        std::vector<BlockPtr> rest;
        for (const BlockRead& read : reads.subspan(i + run.size())) rest.push_back(read.pointer);
        WillNeed(rest);
      }
    }
    if (mode != ReadMode::kWait || report->waited) status = ReadRun(run, mode, &failed);
    if (!status.ok()) {
      report->failed = i + failed;
      return status;
    }
    i += run.size();
  }
  return absl::OkStatus();
}

// Of a gang only the list is known: its pieces are few and rare.
void BlockStore::WillNeed(std::span<const BlockPtr> pointers) const {
  uint64_t begin = 0;
  uint64_t end = 0;
  const auto tell = [&] {
    if (end > begin) file_->WillNeed(begin * kSectorBytes, (end - begin) * kSectorBytes);
  };
  for (const BlockPtr& pointer : pointers) {
    if (pointer.is_hole()) continue;
    const uint64_t sectors = pointer.is_gang() ? 1 : pointer.sectors;
    if (!CheckPlace(pointer.address, sectors).ok()) continue;
    if (pointer.address != end) {
      tell();
      begin = pointer.address;
    }
    end = pointer.address + sectors;
  }
  tell();
}

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
#include "engine/volume.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/base/strings.h"

namespace cowshed::engine {

absl::Status DestroyedError(std::string_view name) {
  return MakeError(absl::StatusCode::kAborted, "DATASET_DESTROYED",
                   StrCat(name, " has been destroyed"), {{"name", std::string(name)}});
}

absl::Status ChangedError(std::string_view name) {
  return MakeError(absl::StatusCode::kAborted, "DATASET_CHANGED",
                   StrCat(name, " was rolled back or made smaller while it was attached"),
                   {{"name", std::string(name)}});
}

absl::Status BeyondSizeError(uint64_t offset, uint64_t length, uint64_t size) {
  return MakeError(absl::StatusCode::kOutOfRange, "BEYOND_SIZE",
                   StrCat("bytes ", offset, "+", length, " reach past the size of ", size),
                   {{"size_bytes", StrCat(size)}});
}

namespace {

// A block, or the way to it, does not match its checksum.
absl::Status DamagedBlock(uint64_t block, const absl::Status& why, std::string_view uid) {
  return MakeError(absl::StatusCode::kDataLoss, "CHECKSUM_MISMATCH",
                   StrCat("block ", block, " is damaged: ", StdView(why.message())),
                   {{"uid", std::string(uid)}, {"block", StrCat(block)}});
}

}  // namespace

absl::Status TreeReader::ReadBlock(const BlockPtr& pointer, uint64_t block, uint64_t skip,
                                   std::span<std::byte> out, std::string_view uid) const {
  if (pointer.is_hole()) {
    std::memset(out.data(), 0, out.size());
    return absl::OkStatus();
  }
  const uint64_t bytes = uint64_t{pointer.sectors} * kSectorBytes;
  absl::Status status;
  if (skip == 0 && out.size() == bytes) {
    status = parts_.blocks.Read(pointer, out);
  } else {
    std::vector<std::byte> whole(bytes);
    status = parts_.blocks.Read(pointer, whole);
    if (status.ok()) std::memcpy(out.data(), whole.data() + skip, out.size());
  }
  return absl::IsDataLoss(status) ? DamagedBlock(block, status, uid) : status;
}

absl::Status TreeReader::Read(const TreeState& tree, uint64_t offset, std::span<std::byte> out,
                              std::string_view uid) const {
  if (out.empty()) return absl::OkStatus();
  const uint64_t block_bytes = tree.block_bytes;
  const uint64_t first = offset / block_bytes;
  const uint64_t last = (offset + out.size() - 1) / block_bytes;
  std::vector<BlockPtr> pointers(last - first + 1);
  const absl::Status found = parts_.tree.Lookup(tree, first, pointers);
  if (absl::IsDataLoss(found)) return DamagedBlock(first, found, uid);
  RETURN_IF_ERROR(found);
  for (uint64_t block = first; block <= last; ++block) {
    const uint64_t skip = block == first ? offset % block_bytes : 0;
    const uint64_t count = std::min(block_bytes - skip, out.size());
    RETURN_IF_ERROR(ReadBlock(pointers[block - first], block, skip, out.first(count), uid));
    out = out.subspan(count);
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> TreeReader::NextHole(const TreeState& tree, uint64_t from,
                                              uint64_t end) const {
  std::array<BlockPtr, kNodeFanout> pointers;
  while (from < end) {
    const uint64_t count = std::min(end - from, kNodeFanout - from % kNodeFanout);
    RETURN_IF_ERROR(parts_.tree.Lookup(tree, from, std::span(pointers).first(count)));
    for (uint64_t i = 0; i < count; ++i) {
      if (pointers[i].is_hole()) return from + i;
    }
    from += count;
  }
  return end;
}

namespace {

class SnapshotVolume final : public Volume {
 public:
  SnapshotVolume(PoolParts& parts, std::shared_ptr<SnapshotView> view, std::string name)
      : parts_(parts), reader_(parts), view_(std::move(view)), name_(std::move(name)) {}

  const std::string& uid() const override { return view_->uid; }
  std::string name() const override { return name_; }
  bool read_only() const override { return true; }
  uint64_t size_bytes() const override { return view_->tree.size_bytes; }
  uint32_t block_bytes() const override { return view_->tree.block_bytes; }

  absl::Status Read(uint64_t offset, std::span<std::byte> out) override {
    if (offset > size_bytes() || out.size() > size_bytes() - offset) {
      return BeyondSizeError(offset, out.size(), size_bytes());
    }
    const ReaderEpochs::Guard epoch(parts_.epochs);
    if (view_->destroyed) return DestroyedError(name_);
    parts_.stats.read_bytes += out.size();
    return reader_.Read(view_->tree, offset, out, view_->uid);
  }
  absl::StatusOr<uint64_t> NextData(uint64_t offset) override {
    const ReaderEpochs::Guard epoch(parts_.epochs);
    if (view_->destroyed) return DestroyedError(name_);
    ASSIGN_OR_RETURN(const uint64_t block,
                     parts_.tree.NextData(view_->tree, offset / block_bytes()));
    return std::min(std::max(offset, block * block_bytes()), size_bytes());
  }
  absl::StatusOr<uint64_t> NextHole(uint64_t offset, uint64_t end) override {
    const ReaderEpochs::Guard epoch(parts_.epochs);
    if (view_->destroyed) return DestroyedError(name_);
    const uint64_t last = (end + block_bytes() - 1) / block_bytes();
    ASSIGN_OR_RETURN(const uint64_t block,
                     reader_.NextHole(view_->tree, offset / block_bytes(), last));
    return std::min(std::max(offset, block * block_bytes()), end);
  }
  absl::Status Write(uint64_t /*offset*/, std::span<const std::byte> /*data*/) override {
    return ReadOnly();
  }
  void Discard(uint64_t /*offset*/, uint64_t /*length*/,
               absl::AnyInvocable<void(absl::Status)> done) override {
    done(ReadOnly());
  }
  void Flush(absl::AnyInvocable<void(absl::StatusOr<Txg>)> done) override { done(ReadOnly()); }
  void MakeDurable(absl::AnyInvocable<void(absl::Status)> done) override { done(ReadOnly()); }

 private:
  absl::Status ReadOnly() const {
    return MakeError(absl::StatusCode::kFailedPrecondition, "SNAPSHOT_IS_READ_ONLY",
                     StrCat(name_, " is a snapshot: clone it to write"), {{"name", name_}});
  }

  PoolParts& parts_;
  TreeReader reader_;
  std::shared_ptr<SnapshotView> view_;
  std::string name_;
};

}  // namespace

std::shared_ptr<Volume> MakeSnapshotVolume(PoolParts& parts, std::shared_ptr<SnapshotView> view,
                                           std::string name) {
  return std::make_shared<SnapshotVolume>(parts, std::move(view), std::move(name));
}

}  // namespace cowshed::engine

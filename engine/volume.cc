// SPDX-License-Identifier: Apache-2.0
#include "engine/volume.h"

#include <algorithm>
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
    return ReadAs(ReadMode::kWait, offset, out);
  }
  absl::StatusOr<bool> ReadCached(uint64_t offset, std::span<std::byte> out) override {
    const absl::Status status = ReadAs(ReadMode::kCached, offset, out);
    if (absl::IsCancelled(status)) return false;
    RETURN_IF_ERROR(status);
    return true;
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
  absl::Status WriteBlocks(uint64_t /*first_block*/, std::span<BlockBytes> /*blocks*/) override {
    return ReadOnly();
  }
  void Discard(uint64_t /*offset*/, uint64_t /*length*/,
               absl::AnyInvocable<void(absl::Status)> done) override {
    done(ReadOnly());
  }
  void Flush(absl::AnyInvocable<void(absl::StatusOr<Txg>)> done) override { done(ReadOnly()); }
  void MakeDurable(absl::AnyInvocable<void(absl::Status)> done) override { done(ReadOnly()); }

 private:
  absl::Status ReadAs(ReadMode mode, uint64_t offset, std::span<std::byte> out) {
    if (offset > size_bytes() || out.size() > size_bytes() - offset) {
      return BeyondSizeError(offset, out.size(), size_bytes());
    }
    const ReaderEpochs::Guard epoch(parts_.epochs);
    if (view_->destroyed) return DestroyedError(name_);
    std::vector<Piece> pieces;
    pieces.reserve(out.size() / block_bytes() + 2);
    ForEachPiece(offset, out, block_bytes(), [&](const Piece& piece) { pieces.push_back(piece); });
    bool waited = false;
    RETURN_IF_ERROR(reader_.Read(view_->tree, pieces, mode, view_->uid, &waited));
    parts_.stats.read_bytes += out.size();
    reader_.GoAhead(view_->tree, ahead_, offset, out.size(), mode, waited);
    return absl::OkStatus();
  }

  absl::Status ReadOnly() const {
    return MakeError(absl::StatusCode::kFailedPrecondition, "SNAPSHOT_IS_READ_ONLY",
                     StrCat(name_, " is a snapshot: clone it to write"), {{"name", name_}});
  }

  PoolParts& parts_;
  TreeReader reader_;
  ReadAhead ahead_;
  std::shared_ptr<SnapshotView> view_;
  std::string name_;
};

}  // namespace

std::shared_ptr<Volume> MakeSnapshotVolume(PoolParts& parts, std::shared_ptr<SnapshotView> view,
                                           std::string name) {
  return std::make_shared<SnapshotVolume>(parts, std::move(view), std::move(name));
}

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// The volume of a head: reads through its layers, writes into the open one.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "engine/base/bytes.h"
#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/intent_log.h"
#include "engine/lifecycle.h"
#include "engine/trim.h"
#include "engine/volume.h"

namespace cowshed::engine {
namespace {

// Well below the least dirty limit, so that a part always fits.
constexpr size_t kWritePartBytes = 1 << 20;
// 1 PiB in 4 KiB blocks: 2^38 blocks, fan-out 2^7.
constexpr uint64_t kMaxTreeHeight = 6;

class HeadVolume final : public Volume, public std::enable_shared_from_this<HeadVolume> {
 public:
  HeadVolume(PoolParts& parts, TxgManager& txgs, std::shared_ptr<Head> head, std::string name,
             Holding holding)
      : parts_(parts),
        txgs_(txgs),
        reader_(parts),
        head_(std::move(head)),
        name_(std::move(name)),
        replays_(holding == Holding::kReplays) {
    const MutexLock lock(head_->mutex);
    block_bytes_ = head_->tree.block_bytes;
    if (holding == Holding::kPinned) generation_ = head_->generation;
  }

  const std::string& uid() const override { return head_->uid; }
  std::string name() const override { return name_; }
  bool read_only() const override { return false; }
  uint64_t size_bytes() const override {
    const MutexLock lock(head_->mutex);
    return head_->tree.size_bytes;
  }
  uint32_t block_bytes() const override { return block_bytes_; }

  absl::Status Read(uint64_t offset, std::span<std::byte> out) override {
    return ReadAs(ReadMode::kWait, offset, out);
  }
  absl::StatusOr<bool> ReadCached(uint64_t offset, std::span<std::byte> out) override;
  absl::StatusOr<uint64_t> NextData(uint64_t offset) override;
  absl::StatusOr<uint64_t> NextHole(uint64_t offset, uint64_t end) override;
  absl::Status Write(uint64_t offset, std::span<const std::byte> data) override;
  absl::Status WriteBlocks(uint64_t first_block, std::span<BlockBytes> blocks) override;
  void Discard(uint64_t offset, uint64_t length,
               absl::AnyInvocable<void(absl::Status)> done) override;
  void Flush(absl::AnyInvocable<void(absl::StatusOr<Txg>)> done) override;
  void MakeDurable(absl::AnyInvocable<void(absl::Status)> done) override;

 private:
  // What a change found beneath its blocks, and how many blocks it is about.
  struct Beneath {
    TreeState tree;
    uint64_t generation = 0;
    std::vector<BlockPtr> pointers;
  };
  // One block of a write: `data` goes to `skip`. `bytes` is the whole block, unless it is zero.
  struct NewBlock {
    uint64_t block = 0;
    uint64_t skip = 0;
    std::span<const std::byte> data;
    std::unique_ptr<std::byte[]> bytes;
  };

  absl::Status CheckThere() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(head_->mutex);
  absl::Status CheckRange(uint64_t offset, uint64_t length) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(head_->mutex);
  absl::Status ReadAs(ReadMode mode, uint64_t offset, std::span<std::byte> out);
  // Fills what the layers have of a read, and collects what lies beneath them.
  void ReadLayers(uint64_t offset, std::span<std::byte> out, std::vector<Piece>* beneath)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(head_->mutex);
  absl::Status LookBeneath(uint64_t first, uint64_t count, Beneath* beneath);
  bool IsStale(const Beneath& beneath) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(head_->mutex);
  absl::StatusOr<std::vector<NewBlock>> FillBlocks(uint64_t offset, std::span<const std::byte> data,
                                                   const Beneath& beneath);
  std::vector<NewBlock> TakeBlocks(uint64_t first, std::span<BlockBytes> whole) const;
  absl::Status CheckQuota(const std::vector<NewBlock>& blocks, const Beneath& beneath) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(head_->mutex);
  void Insert(NewBlock& block, const BlockPtr& pointer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(head_->mutex);
  // What of a block is new, in bytes from its start.
  struct Fresh {
    uint64_t begin = 0;
    uint64_t end = 0;
  };
  void Put(uint64_t block, std::unique_ptr<std::byte[]> bytes, Fresh fresh, bool grows)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(head_->mutex);
  // What a write brings: bytes to be copied, or whole blocks to be taken over.
  struct Content {
    uint64_t offset = 0;
    uint64_t length = 0;
    std::span<const std::byte> data;
    std::span<BlockBytes> whole;
  };
  // One attempt; false if the head moved on meanwhile.
  absl::StatusOr<bool> TryWrite(const Content& content);
  absl::StatusOr<bool> Place(const Content& content, int64_t* used_bytes, int64_t* used_sectors);
  absl::Status WritePart(const Content& content);
  absl::StatusOr<bool> TryDiscard(uint64_t first, uint64_t count);
  absl::StatusOr<bool> PlaceHoles(uint64_t first, uint64_t count, int64_t* used_bytes);
  absl::Status ZeroBytes(uint64_t offset, uint64_t length);
  absl::Status LossSince(uint64_t unflushed, uint64_t logged) const;
  void NoteUnflushed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(head_->mutex);

  PoolParts& parts_;
  TxgManager& txgs_;
  TreeReader reader_;
  ReadAhead ahead_;
  std::shared_ptr<Head> head_;
  const std::string name_;
  const bool replays_;  // what was accepted before a crash: no quota, no claim on free space
  uint32_t block_bytes_ = 0;
  std::optional<uint64_t> generation_;  // of the head, where the volume is pinned to it
  // Head::rollbacks when the first unflushed write was accepted; kNothing: there is none.
  static constexpr uint64_t kNothing = UINT64_MAX;
  std::atomic<uint64_t> unflushed_since_{kNothing};
  std::atomic<uint64_t> logged_since_{kNothing};  // ... of those that MakeDurable has seen to
};

absl::Status HeadVolume::CheckThere() const {
  if (head_->destroyed) return DestroyedError(name_);
  const bool changed = generation_.has_value() && *generation_ != head_->generation;
  return changed ? ChangedError(name_) : absl::OkStatus();
}

absl::Status HeadVolume::CheckRange(uint64_t offset, uint64_t length) const {
  RETURN_IF_ERROR(CheckThere());
  const uint64_t size = head_->tree.size_bytes;
  if (offset > size || length > size - offset) return BeyondSizeError(offset, length, size);
  return absl::OkStatus();
}

void HeadVolume::ReadLayers(uint64_t offset, std::span<std::byte> out,
                            std::vector<Piece>* beneath) {
  const auto& open = head_->open.blocks;
  const auto& syncing = head_->syncing.blocks;
  auto in_open = open.lower_bound(offset / block_bytes_);
  auto in_syncing = syncing.lower_bound(offset / block_bytes_);
  ForEachPiece(offset, out, block_bytes_, [&](const Piece& piece) {
    const DirtyBlock* dirty = nullptr;
    if (in_syncing != syncing.end() && in_syncing->first == piece.block) {
      dirty = &(in_syncing++)->second;
    }
    if (in_open != open.end() && in_open->first == piece.block) dirty = &(in_open++)->second;
    if (dirty == nullptr) {
      beneath->push_back(piece);
    } else if (dirty->bytes == nullptr) {
      std::memset(piece.out.data(), 0, piece.out.size());
    } else {
      std::memcpy(piece.out.data(), dirty->bytes.get() + piece.skip, piece.out.size());
      parts_.stats.copied_bytes += piece.out.size();
    }
  });
}

absl::Status HeadVolume::ReadAs(ReadMode mode, uint64_t offset, std::span<std::byte> out) {
  const ReaderEpochs::Guard epoch(parts_.epochs);
  TreeState tree;
  std::vector<Piece> beneath;
  beneath.reserve(out.size() / block_bytes_ + 2);
  {
    const MutexLock lock(head_->mutex);
    RETURN_IF_ERROR(CheckRange(offset, out.size()));
    tree = head_->tree;
    ReadLayers(offset, out, &beneath);
  }
  bool waited = false;
  RETURN_IF_ERROR(reader_.Read(tree, beneath, mode, head_->uid, &waited));
  parts_.stats.read_bytes += out.size();
  if (!beneath.empty()) reader_.GoAhead(tree, ahead_, offset, out.size(), mode, waited);
  return absl::OkStatus();
}

absl::StatusOr<bool> HeadVolume::ReadCached(uint64_t offset, std::span<std::byte> out) {
  const absl::Status status = ReadAs(ReadMode::kCached, offset, out);
  if (absl::IsCancelled(status)) return false;
  RETURN_IF_ERROR(status);
  return true;
}

absl::StatusOr<uint64_t> HeadVolume::NextData(uint64_t offset) {
  const ReaderEpochs::Guard epoch(parts_.epochs);
  for (uint64_t from = offset / block_bytes_;;) {
    TreeState tree;
    uint64_t dirty = 0;
    {
      const MutexLock lock(head_->mutex);
      RETURN_IF_ERROR(CheckThere());
      tree = head_->tree;
      dirty = head_->FirstDirty(from, tree.block_count(), /*data=*/true);
    }
    ASSIGN_OR_RETURN(const uint64_t stored, parts_.tree.NextData(tree, from));
    const uint64_t block = std::min(stored, dirty);
    bool overlaid = false;  // by a hole
    if (stored < dirty) {
      const MutexLock lock(head_->mutex);
      const DirtyBlock* const above = head_->FindDirty(stored);
      overlaid = above != nullptr && above->bytes == nullptr;
    }
    if (!overlaid) return std::min(std::max(offset, block * block_bytes_), tree.size_bytes);
    from = stored + 1;
  }
}

absl::StatusOr<uint64_t> HeadVolume::NextHole(uint64_t offset, uint64_t end) {
  const ReaderEpochs::Guard epoch(parts_.epochs);
  const uint64_t last = (end + block_bytes_ - 1) / block_bytes_;
  for (uint64_t from = offset / block_bytes_;; ++from) {
    TreeState tree;
    uint64_t dirty = 0;
    {
      const MutexLock lock(head_->mutex);
      RETURN_IF_ERROR(CheckThere());
      tree = head_->tree;
      dirty = head_->FirstDirty(from, last, /*data=*/false);
      while (from < dirty && head_->FindDirty(from) != nullptr) ++from;
    }
    ASSIGN_OR_RETURN(const uint64_t block, reader_.NextHole(tree, from, dirty));
    const MutexLock lock(head_->mutex);
    if (block >= dirty || head_->FindDirty(block) == nullptr) {
      return std::min(std::max(offset, block * block_bytes_), end);
    }
    from = block;
  }
}

absl::Status HeadVolume::LookBeneath(uint64_t first, uint64_t count, Beneath* beneath) {
  {
    const MutexLock lock(head_->mutex);
    RETURN_IF_ERROR(CheckRange(first * block_bytes_, 0));
    beneath->tree = head_->tree;
    beneath->generation = head_->generation;
  }
  beneath->pointers.resize(count);
  // Also loads the nodes that the sync will rewrite, so that it need not wait for the disk.
  return parts_.tree.Lookup(beneath->tree, first, beneath->pointers);
}

bool HeadVolume::IsStale(const Beneath& beneath) const {
  return head_->generation != beneath.generation || !(head_->tree.root == beneath.tree.root) ||
         head_->tree.trim_txg != beneath.tree.trim_txg;
}

// Cuts a write into blocks. Full ones are copied, partial ones get the rest from beneath.
absl::StatusOr<std::vector<HeadVolume::NewBlock>> HeadVolume::FillBlocks(
    uint64_t offset, std::span<const std::byte> data, const Beneath& beneath) {
  std::vector<NewBlock> blocks;
  blocks.reserve(beneath.pointers.size());
  while (!data.empty()) {
    NewBlock& block = blocks.emplace_back();
    block.block = offset / block_bytes_;
    block.skip = offset % block_bytes_;
    block.data = data.first(std::min<uint64_t>(block_bytes_ - block.skip, data.size()));
    data = data.subspan(block.data.size());
    offset += block.data.size();
    const bool whole = block.data.size() == block_bytes_;
    if (whole && IsZero(block.data)) continue;
    // Not value-initialised: every byte is written below.
    block.bytes = std::unique_ptr<std::byte[]>(new std::byte[block_bytes_]);
    if (!whole) {
      RETURN_IF_ERROR(reader_.ReadBlock(beneath.pointers[blocks.size() - 1], block.block, 0,
                                        std::span(block.bytes.get(), block_bytes_), head_->uid));
    }
    std::memcpy(block.bytes.get() + block.skip, block.data.data(), block.data.size());
    parts_.stats.copied_bytes += block.data.size();
  }
  return blocks;
}

// As FillBlocks, of blocks that are moved in.
std::vector<HeadVolume::NewBlock> HeadVolume::TakeBlocks(uint64_t first,
                                                         std::span<BlockBytes> whole) const {
  std::vector<NewBlock> blocks(whole.size());
  for (size_t i = 0; i < whole.size(); ++i) {
    blocks[i].block = first + i;
    blocks[i].data = std::span(whole[i].get(), block_bytes_);
    if (!IsZero(blocks[i].data)) blocks[i].bytes = std::move(whole[i]);
  }
  return blocks;
}

absl::Status HeadVolume::CheckQuota(const std::vector<NewBlock>& blocks,
                                    const Beneath& beneath) const {
  if (!head_->quota_bytes.has_value() || replays_) return absl::OkStatus();
  uint64_t growth = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const bool grows =
        beneath.pointers[i].is_hole() && head_->FindDirty(blocks[i].block) == nullptr;
    if (grows && blocks[i].bytes != nullptr) growth += block_bytes_ / kSectorBytes;
  }
  const uint64_t would_be = head_->referenced_sectors + head_->syncing.growth_sectors +
                            head_->open.growth_sectors + growth;
  if (growth == 0 || would_be * kSectorBytes <= *head_->quota_bytes) return absl::OkStatus();
  return MakeError(
      absl::StatusCode::kResourceExhausted, "QUOTA_EXCEEDED",
      StrCat(name_, " would reference more than its quota of ", *head_->quota_bytes, " bytes"),
      {{"name", name_}, {"quota_bytes", StrCat(*head_->quota_bytes)}});
}

// Sets a block of the open layer and keeps the layer's sums.
void HeadVolume::Put(uint64_t block, std::unique_ptr<std::byte[]> bytes, Fresh fresh, bool grows) {
  Layer& open = head_->open;
  const auto [it, inserted] = open.blocks.try_emplace(block);
  if (inserted) {
    open.admitted_sectors += block_bytes_ / kSectorBytes + head_->tree.height;
    if (grows && bytes != nullptr) open.growth_sectors += block_bytes_ / kSectorBytes;
  } else {
    open.bytes -= it->second.Cost(block_bytes_);
    open.unlogged_bytes -= it->second.LogCost();
  }
  DirtyBlock& dirty = it->second;
  dirty.bytes = std::move(bytes);
  open.bytes += dirty.Cost(block_bytes_);
  if (dirty.unlogged_begin == dirty.unlogged_end) {
    open.unlogged.push_back(block);
    dirty.unlogged_begin = static_cast<uint32_t>(fresh.begin);
    dirty.unlogged_end = static_cast<uint32_t>(fresh.end);
  } else {
    dirty.unlogged_begin = std::min(dirty.unlogged_begin, static_cast<uint32_t>(fresh.begin));
    dirty.unlogged_end = std::max(dirty.unlogged_end, static_cast<uint32_t>(fresh.end));
  }
  open.unlogged_bytes += dirty.LogCost();
}

void HeadVolume::Insert(NewBlock& block, const BlockPtr& pointer) {
  const DirtyBlock* upper = head_->FindDirty(block.block);
  const bool partial = block.data.size() < block_bytes_;
  if (partial && upper != nullptr) {
    // A layer knows the block better than the tree: take the rest from there.
    if (upper->bytes != nullptr) {
      std::memcpy(block.bytes.get(), upper->bytes.get(), block_bytes_);
    } else {
      std::memset(block.bytes.get(), 0, block_bytes_);
    }
    std::memcpy(block.bytes.get() + block.skip, block.data.data(), block.data.size());
  }
  if (partial && IsZero({block.bytes.get(), block_bytes_})) block.bytes.reset();
  const Fresh fresh{block.skip, block.skip + block.data.size()};
  Put(block.block, std::move(block.bytes), fresh, upper == nullptr && pointer.is_hole());
}

void HeadVolume::NoteUnflushed() {
  uint64_t nothing = kNothing;
  unflushed_since_.compare_exchange_strong(nothing, head_->rollbacks);
}

absl::StatusOr<bool> HeadVolume::TryWrite(const Content& content) {
  const uint64_t count =
      (content.offset + content.length - 1) / block_bytes_ - content.offset / block_bytes_ + 1;
  const uint64_t bytes = count * block_bytes_;
  const uint64_t sectors = replays_ ? 0 : count * (block_bytes_ / kSectorBytes + kMaxTreeHeight);
  // Before the reader epoch: what it may wait for is space that an open epoch would hold back.
  RETURN_IF_ERROR(txgs_.Admit(bytes, sectors));
  int64_t used_bytes = 0;
  int64_t used_sectors = 0;
  absl::StatusOr<bool> result = Place(content, &used_bytes, &used_sectors);
  txgs_.Unadmit(bytes - static_cast<uint64_t>(used_bytes),
                sectors - static_cast<uint64_t>(used_sectors));
  return result;
}

absl::StatusOr<bool> HeadVolume::Place(const Content& content, int64_t* used_bytes,
                                       int64_t* used_sectors) {
  const uint64_t first = content.offset / block_bytes_;
  const uint64_t count = (content.offset + content.length - 1) / block_bytes_ - first + 1;
  const ReaderEpochs::Guard epoch(parts_.epochs);
  Beneath beneath;
  RETURN_IF_ERROR(LookBeneath(first, count, &beneath));
  std::vector<NewBlock> blocks;
  if (content.whole.empty()) {
    ASSIGN_OR_RETURN(blocks, FillBlocks(content.offset, content.data, beneath));
  } else {
    blocks = TakeBlocks(first, content.whole);
  }
  const MutexLock lock(head_->mutex);
  RETURN_IF_ERROR(CheckRange(content.offset, content.length));
  if (IsStale(beneath)) {
    for (size_t i = 0; i < content.whole.size(); ++i) {
      if (blocks[i].bytes != nullptr) content.whole[i] = std::move(blocks[i].bytes);
    }
    return false;
  }
  RETURN_IF_ERROR(CheckQuota(blocks, beneath));
  const auto bytes_before = static_cast<int64_t>(head_->open.bytes);
  const auto sectors_before = static_cast<int64_t>(head_->open.admitted_sectors);
  for (size_t i = 0; i < blocks.size(); ++i) Insert(blocks[i], beneath.pointers[i]);
  if (replays_) head_->open.admitted_sectors = static_cast<uint64_t>(sectors_before);
  *used_bytes = static_cast<int64_t>(head_->open.bytes) - bytes_before;
  *used_sectors = static_cast<int64_t>(head_->open.admitted_sectors) - sectors_before;
  NoteUnflushed();
  return true;
}

absl::Status HeadVolume::WritePart(const Content& content) {
  ASSIGN_OR_RETURN(bool accepted, TryWrite(content));
  while (!accepted) {
    ASSIGN_OR_RETURN(accepted, TryWrite(content));
  }
  parts_.heads.MarkDirty(head_);
  parts_.stats.write_bytes += content.length;
  return absl::OkStatus();
}

absl::Status HeadVolume::Write(uint64_t offset, std::span<const std::byte> data) {
  {
    const MutexLock lock(head_->mutex);
    RETURN_IF_ERROR(CheckRange(offset, data.size()));
  }
  while (!data.empty()) {
    // In parts that fit the dirty limit; each part is accepted whole or not at all.
    const auto part = data.first(std::min<size_t>(data.size(), kWritePartBytes));
    RETURN_IF_ERROR(WritePart({.offset = offset, .length = part.size(), .data = part}));
    data = data.subspan(part.size());
    offset += part.size();
  }
  return absl::OkStatus();
}

absl::Status HeadVolume::WriteBlocks(uint64_t first_block, std::span<BlockBytes> blocks) {
  uint64_t offset = first_block * block_bytes_;
  {
    const MutexLock lock(head_->mutex);
    RETURN_IF_ERROR(CheckRange(offset, blocks.size() * block_bytes_));
  }
  while (!blocks.empty()) {
    const auto part = blocks.first(std::min<size_t>(blocks.size(), kWritePartBytes / block_bytes_));
    const uint64_t length = part.size() * block_bytes_;
    RETURN_IF_ERROR(WritePart({.offset = offset, .length = length, .whole = part}));
    blocks = blocks.subspan(part.size());
    offset += length;
  }
  return absl::OkStatus();
}

// Makes whole blocks holes, where they are not holes already.
absl::StatusOr<bool> HeadVolume::TryDiscard(uint64_t first, uint64_t count) {
  const uint64_t bytes = count * DirtyBlock().Cost(block_bytes_);
  // No sectors are admitted: the nodes that a discard rewrites come out of the reserve.
  RETURN_IF_ERROR(txgs_.Admit(bytes, 0));
  int64_t used_bytes = 0;
  absl::StatusOr<bool> result = PlaceHoles(first, count, &used_bytes);
  txgs_.Unadmit(bytes - static_cast<uint64_t>(used_bytes), 0);
  return result;
}

absl::StatusOr<bool> HeadVolume::PlaceHoles(uint64_t first, uint64_t count, int64_t* used_bytes) {
  const ReaderEpochs::Guard epoch(parts_.epochs);
  Beneath beneath;
  RETURN_IF_ERROR(LookBeneath(first, count, &beneath));
  const MutexLock lock(head_->mutex);
  RETURN_IF_ERROR(CheckRange(first * block_bytes_, 0));
  if (IsStale(beneath)) return false;
  const auto bytes_before = static_cast<int64_t>(head_->open.bytes);
  const uint64_t sectors_before = head_->open.admitted_sectors;
  for (uint64_t i = 0; i < count; ++i) {
    if (!beneath.pointers[i].is_hole() || head_->FindDirty(first + i) != nullptr) {
      Put(first + i, nullptr, {0, block_bytes_}, false);
    }
  }
  *used_bytes = static_cast<int64_t>(head_->open.bytes) - bytes_before;
  head_->open.admitted_sectors = sectors_before;
  NoteUnflushed();
  return true;
}

absl::Status HeadVolume::ZeroBytes(uint64_t offset, uint64_t length) {
  if (length == 0) return absl::OkStatus();
  const std::vector<std::byte> zeros(length);
  return Write(offset, zeros);
}

void HeadVolume::Discard(uint64_t offset, uint64_t length,
                         absl::AnyInvocable<void(absl::Status)> done) {
  uint64_t size = 0;
  absl::Status status;
  {
    const MutexLock lock(head_->mutex);
    status = CheckRange(offset, length);
    size = head_->tree.size_bytes;
  }
  const uint64_t end = offset + length;
  const uint64_t first = (offset + block_bytes_ - 1) / block_bytes_;
  // The last block of a dataset may be short: reaching the end covers it.
  const uint64_t last = end == size ? (end + block_bytes_ - 1) / block_bytes_ : end / block_bytes_;
  if (status.ok() && (first >= last || length == 0)) {
    status = ZeroBytes(offset, length);
    return done(status);
  }
  if (status.ok()) status = ZeroBytes(offset, first * block_bytes_ - offset);
  if (status.ok() && last * block_bytes_ < end) {
    status = ZeroBytes(last * block_bytes_, end - last * block_bytes_);
  }
  if (!status.ok()) return done(status);
  if (last - first > parts_.options.discard_direct_blocks && !replays_) {
    Task task;
    task.run = [head = head_, generation = generation_, name = name_, first,
                last](TxgContext& context) -> absl::StatusOr<Verdict> {
      if (generation.has_value()) {
        const auto change = context.publication.heads.find(head->id);
        const bool cut =
            change != context.publication.heads.end() && change->second.cut != LayerCut::kNone;
        const MutexLock lock(head->mutex);
        if (cut || *generation != head->generation) return ChangedError(name);
      }
      return DiscardBlocks(context, head->id, first, last);
    };
    task.done = [done = std::move(done)](absl::StatusOr<Txg> result) mutable {
      done(result.status());
    };
    // On a full host it waits for the data accepted before it, so it does not count as freeing
    // space.
    return txgs_.Submit(std::move(task));
  }
  absl::StatusOr<bool> accepted = TryDiscard(first, last - first);
  while (accepted.ok() && !*accepted) accepted = TryDiscard(first, last - first);
  if (accepted.ok()) parts_.heads.MarkDirty(head_);
  done(accepted.status());
}

// What has become of writes that were accepted, as seen when they should be durable: the first of
// those that were neither flushed nor logged, and of those that were logged since the last flush.
absl::Status HeadVolume::LossSince(uint64_t unflushed, uint64_t logged) const {
  const MutexLock lock(head_->mutex);
  if (unflushed != kNothing && head_->destroyed) return DestroyedError(name_);
  const uint64_t first = std::min(unflushed, logged);
  if (first != kNothing && head_->rollbacks != first && !head_->damage.ok()) {
    return absl::DataLossError(StrCat("what was written to ", name_,
                                      " and not flushed is lost, for a node of it is ",
                                      "damaged: ", StdView(head_->damage.message())));
  }
  if (unflushed != kNothing && head_->rollbacks != unflushed) {
    return MakeError(absl::StatusCode::kAborted, "DATASET_CHANGED",
                     StrCat(name_, " was rolled back: unflushed writes went with it"),
                     {{"name", name_}});
  }
  return absl::OkStatus();
}

void HeadVolume::Flush(absl::AnyInvocable<void(absl::StatusOr<Txg>)> done) {
  const uint64_t unflushed = unflushed_since_.exchange(kNothing);
  const uint64_t logged = logged_since_.exchange(kNothing);
  txgs_.Flush(head_.get(), [self = shared_from_this(), unflushed, logged,
                            done = std::move(done)](absl::StatusOr<Txg> result) mutable {
    const absl::Status loss = result.ok() ? self->LossSince(unflushed, logged) : absl::OkStatus();
    done(loss.ok() ? std::move(result) : absl::StatusOr<Txg>(loss));
  });
}

void HeadVolume::MakeDurable(absl::AnyInvocable<void(absl::Status)> done) {
  const uint64_t unflushed = unflushed_since_.exchange(kNothing);
  uint64_t logged = kNothing;
  if (!logged_since_.compare_exchange_strong(logged, unflushed))
    logged = std::min(logged, unflushed);
  parts_.log->MakeDurable(head_, [self = shared_from_this(), unflushed, logged,
                                  done = std::move(done)](absl::Status status) mutable {
    if (status.ok()) status = self->LossSince(unflushed, logged);
    if (!status.ok()) self->logged_since_.store(kNothing);  // it has been told
    done(std::move(status));
  });
}

}  // namespace

std::shared_ptr<Volume> MakeHeadVolume(PoolParts& parts, TxgManager& txgs,
                                       std::shared_ptr<Head> head, std::string name,
                                       Holding holding) {
  return std::make_shared<HeadVolume>(parts, txgs, std::move(head), std::move(name), holding);
}

}  // namespace cowshed::engine

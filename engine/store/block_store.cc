// SPDX-License-Identifier: Apache-2.0
#include "engine/store/block_store.h"

#include <limits.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/hash.h"
#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/store/features.h"

namespace cowshed::engine {
namespace {

// Long enough to be sequential, short enough that the page cache need not find 2 MiB of memory side
// by side for it: where that is scarce, or given back to a hypervisor, longer writes took up to ten
// times as long.
constexpr size_t kMaxWriteBytes = 1 << 20;

template <typename T>
std::span<const std::byte> BytesOf(const T& object) {
  return std::as_bytes(std::span(&object, 1));
}

// Of a struct whose last member is the checksum of all bytes before it.
template <typename T>
uint64_t OwnChecksum(const T& object) {
  static_assert(offsetof(T, checksum) == sizeof(T) - sizeof(uint64_t));
  return Hash64(BytesOf(object).first(offsetof(T, checksum)));
}

absl::Status Failed() {
  return absl::FailedPreconditionError("I7: a write or sync of blocks failed, it takes no more");
}

std::string Name(const BlockPtr& pointer) {
  return StrCat("block at sector ", pointer.address, " born in txg ", pointer.birth);
}

absl::Status ReadSectors(const File& file, uint64_t offset, std::span<std::byte> out,
                         ReadMode mode) {
  if (mode == ReadMode::kWait) return file.Read(offset, out);
  const iovec piece{out.data(), out.size()};
  return file.ReadV(offset, std::span(&piece, 1), mode);
}

// The superblock in `slot`, if it is one of ours and whole.
absl::StatusOr<std::optional<Superblock>> ReadSuperblock(const File& file, uint32_t slot) {
  Superblock superblock;
  RETURN_IF_ERROR(
      file.Read(uint64_t{slot} * kSectorBytes, std::as_writable_bytes(std::span(&superblock, 1))));
  if (superblock.magic != Superblock::kMagic || superblock.checksum != OwnChecksum(superblock)) {
    return std::optional<Superblock>();
  }
  return std::optional<Superblock>(superblock);
}

}  // namespace

absl::StatusOr<std::unique_ptr<BlockStore>> BlockStore::Create(std::unique_ptr<File> file,
                                                               const Superblock& superblock) {
  std::unique_ptr<BlockStore> store(new BlockStore(std::move(file)));
  RETURN_IF_ERROR(store->Lengthen(superblock.capacity_sectors));
  RETURN_IF_ERROR(store->WriteSuperblock(superblock, 1));
  RETURN_IF_ERROR(store->WriteSuperblock(superblock, 0));
  RETURN_IF_ERROR(store->file_->Sync());
  return store;
}

absl::StatusOr<std::unique_ptr<BlockStore>> BlockStore::Open(std::unique_ptr<File> file) {
  std::unique_ptr<BlockStore> store(new BlockStore(std::move(file)));
  std::optional<Superblock> newest;
  for (uint32_t slot = 0; slot < 2; ++slot) {
    ASSIGN_OR_RETURN(const std::optional<Superblock> found, ReadSuperblock(*store->file_, slot));
    if (found.has_value() && (!newest.has_value() || found->stamp_txg > newest->stamp_txg)) {
      newest = found;
      store->slot_ = slot;
    }
  }
  if (!newest.has_value()) {
    return absl::FailedPreconditionError("blocks has no valid superblock");
  }
  RETURN_IF_ERROR(CheckReadable(newest->version, newest->features, "blocks"));
  if (newest->sector_bytes != kSectorBytes) {
    return absl::FailedPreconditionError(
        StrCat("blocks has sectors of ", newest->sector_bytes, " bytes, not ", kSectorBytes));
  }
  store->superblock_ = *newest;
  store->capacity_sectors_.store(newest->capacity_sectors);
  return store;
}

absl::Status BlockStore::Lengthen(uint64_t capacity_sectors) {
  ASSIGN_OR_RETURN(const uint64_t size_bytes, file_->SizeBytes());
  const uint64_t wanted_bytes = capacity_sectors * kSectorBytes;
  return size_bytes >= wanted_bytes ? absl::OkStatus() : file_->Truncate(wanted_bytes);
}

absl::Status BlockStore::WriteSuperblock(Superblock superblock, uint32_t slot) {
  superblock.checksum = OwnChecksum(superblock);
  RETURN_IF_ERROR(file_->Write(uint64_t{slot} * kSectorBytes, BytesOf(superblock)));
  superblock_ = superblock;
  slot_ = slot;
  capacity_sectors_.store(superblock.capacity_sectors);
  return absl::OkStatus();
}

// Pointers are proved by their parents, so one that points outside is damage or a bug.
absl::Status BlockStore::CheckPlace(uint64_t address, uint64_t sectors) const {
  const uint64_t capacity_sectors = capacity_sectors_.load(std::memory_order_relaxed);
  if (address < kFirstDataSector || address >= capacity_sectors ||
      sectors > capacity_sectors - address) {
    return absl::DataLossError(
        StrCat("sectors [", address, ", ", address + sectors, ") lie outside the pool"));
  }
  return absl::OkStatus();
}

absl::Status BlockStore::Read(const BlockPtr& pointer, std::span<std::byte> out,
                              ReadMode mode) const {
  if (pointer.is_hole()) {
    std::fill(out.begin(), out.end(), std::byte{0});
    return absl::OkStatus();
  }
  COWSHED_CHECK(out.size() == uint64_t{pointer.sectors} * kSectorBytes,
                "a read has room for exactly the block");
  if (pointer.codec != Codec::kNone) {
    return absl::DataLossError(StrCat(Name(pointer), " has an unknown codec"));
  }
  if (pointer.is_gang()) {
    ASSIGN_OR_RETURN(const GangSector gang, ReadGang(pointer, mode));
    std::span<std::byte> rest = out;
    for (const GangSector::Piece& piece : std::span(gang.pieces).first(gang.piece_count)) {
      const size_t bytes = size_t{piece.sectors} * kSectorBytes;
      RETURN_IF_ERROR(ReadSectors(*file_, piece.address * kSectorBytes, rest.first(bytes), mode));
      rest = rest.subspan(bytes);
    }
  } else {
    RETURN_IF_ERROR(CheckPlace(pointer.address, pointer.sectors));
    RETURN_IF_ERROR(ReadSectors(*file_, pointer.address * kSectorBytes, out, mode));
  }
  return CheckBytes(pointer, out);
}

absl::Status BlockStore::CheckBytes(const BlockPtr& pointer,
                                    std::span<const std::byte> bytes) const {
  if (Hash64(bytes) != pointer.checksum) {
    checksum_errors_.fetch_add(1);
    return absl::DataLossError(StrCat(Name(pointer), " has a wrong checksum"));
  }
  return absl::OkStatus();
}

absl::StatusOr<GangSector> BlockStore::ReadGang(const BlockPtr& pointer, ReadMode mode) const {
  GangSector gang;
  RETURN_IF_ERROR(CheckPlace(pointer.address, 1));
  RETURN_IF_ERROR(ReadSectors(*file_, pointer.address * kSectorBytes,
                              std::as_writable_bytes(std::span(&gang, 1)), mode));
  const auto damaged = [&](std::string_view what) {
    checksum_errors_.fetch_add(1);
    return absl::DataLossError(StrCat("gang of ", Name(pointer), " ", what));
  };
  if (gang.magic != GangSector::kMagic || gang.checksum != OwnChecksum(gang)) {
    return damaged("has a wrong checksum");
  }
  if (gang.birth != pointer.birth || gang.piece_count > GangSector::kMaxPieces) {
    return damaged("is not the one pointed at");
  }
  uint64_t sectors = 0;
  for (const GangSector::Piece& piece : std::span(gang.pieces).first(gang.piece_count)) {
    RETURN_IF_ERROR(CheckPlace(piece.address, piece.sectors));
    sectors += piece.sectors;
  }
  if (sectors != pointer.sectors) {
    return damaged("has another length");
  }
  return gang;
}

absl::Status BlockStore::Extents(const BlockPtr& pointer, std::vector<Run>* extents) const {
  if (pointer.is_hole()) {
    return absl::OkStatus();
  }
  Run run{.address = pointer.address,
          .birth = pointer.birth,
          .sectors = pointer.sectors,
          .kind = pointer.kind};
  if (!pointer.is_gang()) {
    extents->push_back(run);
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const GangSector gang, ReadGang(pointer));
  run.sectors = 1;
  extents->push_back(run);
  for (const GangSector::Piece& piece : std::span(gang.pieces).first(gang.piece_count)) {
    run.address = piece.address;
    run.sectors = piece.sectors;
    extents->push_back(run);
  }
  return absl::OkStatus();
}

absl::StatusOr<Txg> BlockStore::SyncStamped(Txg txg, Txg committed_stamp,
                                            uint64_t capacity_sectors) {
  if (failed_.load()) {
    return Failed();
  }
  if (!written_since_sync_.load() && capacity_sectors == superblock_.capacity_sectors) {
    return committed_stamp;
  }
  COWSHED_CHECK(txg > superblock_.stamp_txg && txg > committed_stamp, "stamps rise");
  Superblock next = superblock_;
  next.capacity_sectors = capacity_sectors;
  next.stamp_txg = txg;
  next.base_stamp_txg = committed_stamp;
  // One sync makes the txg's data and its stamp durable: a stamp without its data is never
  // committed to, and base_stamp_txg keeps the pair valid until then.
  absl::Status status = Lengthen(capacity_sectors);
  if (status.ok()) {
    // A newest stamp that was not committed is that of a txg which died: perhaps it is not durable.
    status = WriteSuperblock(next, superblock_.stamp_txg == committed_stamp ? 1 - slot_ : slot_);
  }
  if (status.ok()) {
    status = file_->Sync();
  }
  if (!status.ok()) {
    failed_.store(true);
    return status;
  }
  written_since_sync_.store(false);
  return txg;
}

absl::Status BlockStore::health() const { return failed_.load() ? Failed() : absl::OkStatus(); }

absl::Status BlockStore::WriteZeros(const Run& run) {
  RETURN_IF_ERROR(CheckPlace(run.address, run.sectors));
  const std::vector<std::byte> zeros(std::min<size_t>(run.sectors, kMaxWriteBytes / kSectorBytes) *
                                     kSectorBytes);
  written_since_sync_.store(true);
  for (uint64_t done_bytes = 0, bytes = uint64_t{run.sectors} * kSectorBytes; done_bytes < bytes;) {
    const size_t count = std::min<uint64_t>(bytes - done_bytes, zeros.size());
    RETURN_IF_ERROR(
        file_->Write(run.address * kSectorBytes + done_bytes, std::span(zeros).first(count)));
    done_bytes += count;
  }
  return absl::OkStatus();
}

absl::Status BlockStore::WriteLog(uint64_t sector, std::span<const std::byte> batch) {
  RETURN_IF_ERROR(health());
  const absl::Status status = file_->WriteDurable(sector * kSectorBytes, batch);
  if (!status.ok()) failed_.store(true);
  return status;
}

absl::Status BlockStore::Punch(const Run& run) {
  RETURN_IF_ERROR(CheckPlace(run.address, run.sectors));
  return file_->Punch(run.address * kSectorBytes, uint64_t{run.sectors} * kSectorBytes);
}

BlockWriter::BlockWriter(BlockStore& store, Allocator& allocator, WriteTxn& txn, Txg txg)
    : store_(store), allocator_(allocator), txn_(txn), txg_(txg) {}

absl::StatusOr<BlockPtr> BlockWriter::Add(BlockKind kind, uint8_t level,
                                          std::span<const std::byte> data,
                                          std::vector<Run>* extents) {
  COWSHED_CHECK(!data.empty() && data.size() % kSectorBytes == 0 && data.size() <= kMaxBlockBytes,
                "a block is 1..32 whole sectors");
  BlockPtr pointer{.birth = txg_,
                   .checksum = Hash64(data),
                   .sectors = static_cast<uint16_t>(data.size() / kSectorBytes),
                   .kind = kind,
                   .level = level};
  ++blocks_added_;
  const absl::StatusOr<Run> run = allocator_.Allocate(txn_, pointer.sectors, kind, txg_);
  if (absl::IsNotFound(run.status())) {
    return AddGang(pointer, data, extents);
  }
  RETURN_IF_ERROR(run.status());
  pointer.address = run->address;
  pending_.push_back({.address = run->address, .data = data});
  if (extents != nullptr) {
    extents->push_back(*run);
  }
  return pointer;
}

absl::StatusOr<BlockPtr> BlockWriter::AddGang(BlockPtr pointer, std::span<const std::byte> data,
                                              std::vector<Run>* extents) {
  if (allocator_.available_sectors() < uint64_t{pointer.sectors} + 1) {
    return absl::ResourceExhaustedError("no room for a block in pieces and their list");
  }
  ASSIGN_OR_RETURN(const Run list, allocator_.Allocate(txn_, 1, pointer.kind, txg_));
  ASSIGN_OR_RETURN(const std::vector<Run> pieces,
                   allocator_.AllocatePieces(txn_, pointer.sectors, pointer.kind, txg_));
  auto gang = std::make_unique<GangSector>();
  gang->birth = txg_;
  for (const Run& piece : pieces) {
    gang->pieces[gang->piece_count++] = {.address = piece.address, .sectors = piece.sectors};
    const size_t bytes = size_t{piece.sectors} * kSectorBytes;
    pending_.push_back({.address = piece.address, .data = data.first(bytes)});
    data = data.subspan(bytes);
  }
  gang->checksum = OwnChecksum(*gang);
  pending_.push_back({.address = list.address, .data = BytesOf(*gang)});
  gangs_.push_back(std::move(gang));
  if (extents != nullptr) {
    extents->push_back(list);
    extents->insert(extents->end(), pieces.begin(), pieces.end());
  }
  pointer.address = list.address;
  pointer.flags |= BlockPtr::kGang;
  return pointer;
}

absl::StatusOr<BlockPtr> BlockWriter::AddNode(uint8_t level, std::shared_ptr<const Node> node,
                                              std::vector<Run>* extents) {
  ASSIGN_OR_RETURN(const BlockPtr pointer, Add(BlockKind::kNode, level, BytesOf(*node), extents));
  nodes_.push_back(std::move(node));
  return pointer;
}

absl::Status BlockWriter::Flush() {
  if (store_.failed_.load()) {
    return Failed();
  }
  std::sort(pending_.begin(), pending_.end(),
            [](const Pending& a, const Pending& b) { return a.address < b.address; });
  std::span<const Pending> rest = pending_;
  while (!rest.empty()) {
    size_t count = 1;
    size_t bytes = rest[0].data.size();
    while (count < rest.size() && count < IOV_MAX && bytes < kMaxWriteBytes &&
           rest[count - 1].address + rest[count - 1].data.size() / kSectorBytes ==
               rest[count].address) {
      bytes += rest[count].data.size();
      ++count;
    }
    RETURN_IF_ERROR(WriteAdjacent(rest.first(count)));
    rest = rest.subspan(count);
  }
  pending_.clear();
  nodes_.clear();
  gangs_.clear();
  return absl::OkStatus();
}

absl::Status BlockWriter::WriteAdjacent(std::span<const Pending> blocks) {
  std::array<iovec, IOV_MAX> pieces;
  uint64_t bytes = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    pieces[i] = {const_cast<std::byte*>(blocks[i].data.data()), blocks[i].data.size()};
    bytes += blocks[i].data.size();
  }
  store_.written_since_sync_.store(true);
  RETURN_IF_ERROR(store_.file_->WriteV(blocks.front().address * kSectorBytes,
                                       std::span(pieces).first(blocks.size())));
  store_.bytes_written_.fetch_add(bytes);
  return absl::OkStatus();
}

}  // namespace cowshed::engine

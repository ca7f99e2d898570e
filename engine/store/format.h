// SPDX-License-Identifier: Apache-2.0
//
// Every byte of the data file `blocks`, and the small structures that metadata values share.
// docs/on-disk-format.md draws them; tests/golden pins them. All integers are little-endian; keys
// in the metadata store are big-endian so that they sort. Zero is never a valid magic or kind.
//
//   blocks:   | superblock A | superblock B | reserved (sectors 2..15) | sectors 16.. : data, nodes
//   |
//
// A superblock is written over the older of the two, so a torn write leaves the newest one whole.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace cowshed::engine {

static_assert(std::endian::native == std::endian::little,
              "records are stored as they lie in memory");

// A transaction group's number; 0 is "before everything", the first txg of a pool is 1.
using Txg = uint64_t;

inline constexpr uint32_t kSectorBytes = 4096;
inline constexpr uint64_t kFirstDataSector = 16;
inline constexpr uint32_t kMinBlockBytes = 4096;
inline constexpr uint32_t kMaxBlockBytes = 131072;

// A region's bitmap has to fit, with its 8-byte checksum, into the 4,080 bytes that LMDB can keep
// in one overflow page (4,096 less its 16-byte header): (4,080 - 8) x 8 bits = 32,576 sectors.
inline constexpr uint32_t kMaxValueBytes = 4080;
inline constexpr uint32_t kValueChecksumBytes = 8;
inline constexpr uint32_t kMaxPayloadBytes = kMaxValueBytes - kValueChecksumBytes;
inline constexpr uint32_t kRegionSectors = kMaxPayloadBytes * 8;

enum class BlockKind : uint8_t { kNone = 0, kData = 1, kNode = 2 };
enum class Codec : uint8_t { kNone = 0 };

// Where a child lies and how to prove it is the right one. All bytes zero is a hole. A pointer with
// kGang in `flags` points at one sector that lists the pieces (GangSector); `sectors` then counts
// the pieces' sectors, not that one.
struct BlockPtr {
  uint64_t address = 0;   // first sector in `blocks`
  Txg birth = 0;          // txg in which it was written
  uint64_t checksum = 0;  // XXH3-64 of the stored bytes (of the assembled pieces for a gang)
  uint16_t sectors = 0;   // stored length
  BlockKind kind = BlockKind::kNone;
  Codec codec = Codec::kNone;
  uint8_t level = 0;  // 0 = data, n = node whose children have level n - 1
  uint8_t flags = 0;
  uint16_t reserved = 0;  // zero

  static constexpr uint8_t kGang = 1;
  bool is_hole() const { return kind == BlockKind::kNone; }
  bool is_gang() const { return (flags & kGang) != 0; }
  // A block at (address, birth) never changes: equality needs no checksum.
  bool operator==(const BlockPtr& other) const {
    return address == other.address && birth == other.birth;
  }
};
static_assert(sizeof(BlockPtr) == 32);

inline constexpr uint32_t kNodeFanout = 128;
inline constexpr uint32_t kNodeFanoutBits = 7;

// An indirect block: exactly one sector.
struct Node {
  std::array<BlockPtr, kNodeFanout> children;
};
static_assert(sizeof(Node) == kSectorBytes);

// `sectors` consecutive sectors that were all written in one txg. The unit of allocation, of
// livelists and of deadlists: one run stands for as many blocks as lie together.
struct Run {
  uint64_t address = 0;
  Txg birth = 0;
  uint32_t sectors = 0;
  BlockKind kind = BlockKind::kNone;

  uint64_t end() const { return address + sectors; }
  bool operator==(const Run&) const = default;
};

// The one sector a gang pointer points at.
struct GangSector {
  static constexpr uint64_t kMagic = 0x31474e4147574f43;  // "COWGANG1"
  struct Piece {
    uint64_t address = 0;
    uint32_t sectors = 0;
    uint32_t reserved = 0;
  };
  static constexpr uint32_t kMaxPieces = 32;  // a 128 KiB block in single sectors

  uint64_t magic = kMagic;
  Txg birth = 0;
  uint32_t piece_count = 0;
  uint32_t reserved = 0;
  std::array<Piece, kMaxPieces> pieces;
  std::array<uint8_t, kSectorBytes - 24 - kMaxPieces * 16 - 8> padding{};
  uint64_t checksum = 0;  // XXH3-64 of all bytes before it
};
static_assert(sizeof(GangSector::Piece) == 16);
static_assert(sizeof(GangSector) == kSectorBytes);

// Feature bits. An unknown bit in `incompatible` refuses to open, in `read_only_compatible` to
// write; unknown `compatible` bits are ignored.
struct FeatureMasks {
  uint64_t incompatible = 0;
  uint64_t read_only_compatible = 0;
  uint64_t compatible = 0;
};
// Incompatible: the pool has an intent log, which a program that does not know it would not replay.
// Bit 0 of every mask is never assigned: that of a feature which no program knows.
inline constexpr uint64_t kIntentLogFeature = 2;
inline constexpr FeatureMasks kKnownFeatures{.incompatible = kIntentLogFeature};
inline constexpr uint32_t kFormatVersion = 1;

struct PoolUid {
  uint64_t high = 0;
  uint64_t low = 0;
  bool operator==(const PoolUid&) const = default;
};

// Identifies `blocks` and ties it to its metadata store. Written, and synced, with the data of
// each txg that writes any; `base_stamp_txg` is the stamp that the metadata store held before, so
// that after a crash between the two syncs the pair still proves that it belongs together.
struct Superblock {
  static constexpr uint64_t kMagic = 0x3144454853574f43;  // "COWSHED1"

  uint64_t magic = kMagic;
  uint32_t version = kFormatVersion;
  uint32_t sector_bytes = kSectorBytes;
  PoolUid pool_uid;
  FeatureMasks features;
  uint64_t capacity_sectors = 0;
  Txg stamp_txg = 0;
  Txg base_stamp_txg = 0;
  std::array<uint8_t, 512 - 80 - 8> reserved{};
  uint64_t checksum = 0;  // XXH3-64 of all bytes before it
};
static_assert(sizeof(Superblock) == 512, "one disk sector: written whole or not at all");

// What a tree looks like: everything needed to read one head or snapshot. Blocks in
// [trim_begin_block, trim_end_block) born up to trim_txg read as zeros: a discard or shrink that
// the background has not taken apart yet (trim_txg 0 = none).
struct TreeState {
  BlockPtr root;
  uint64_t size_bytes = 0;
  uint64_t trim_begin_block = 0;
  uint64_t trim_end_block = 0;
  Txg trim_txg = 0;
  uint32_t block_bytes = 0;
  uint8_t height = 0;  // level of the root; a tree of height h spans 128^h blocks
  std::array<uint8_t, 3> reserved{};

  uint32_t block_sectors() const { return block_bytes / kSectorBytes; }
  uint64_t block_count() const { return (size_bytes + block_bytes - 1) / block_bytes; }
  bool trimmed(uint64_t block, Txg birth) const {
    return birth <= trim_txg && block >= trim_begin_block && block < trim_end_block;
  }
};
static_assert(sizeof(TreeState) == 72);

}  // namespace cowshed::engine

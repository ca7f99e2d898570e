// SPDX-License-Identifier: Apache-2.0
//
// Blocks by pointer: reads that prove what they return, and writes of one txg that go out as long
// sequential runs.
//
// BlockStore reads a pointer's sectors (assembling gangs) and checks its checksum: DATA_LOSS, never
// wrong bytes. ReadMany reads blocks that lie side by side with one call of the host, straight to
// where they are wanted; each is proven by its own checksum all the same. BlockWriter belongs to
// one txg: Add() allocates and checksums at once and gives the pointer, Flush() writes what was
// added with as few pwritev calls as the addresses allow.
//
// Invariants  I2: Sync() comes after the last Flush() and before the commit that references it.
// Threads     BlockStore: thread-safe. BlockWriter: txg thread only.
// Ownership   BlockWriter borrows the bytes given to Add until Flush returns.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/store/allocator.h"
#include "engine/store/file.h"
#include "engine/store/format.h"

namespace cowshed::engine {

// A block, or a part of it, that somebody wants: `out` gets its bytes from `skip` on.
struct BlockRead {
  BlockPtr pointer;
  uint64_t skip = 0;
  std::span<std::byte> out;
};

// What there is to say of a ReadMany.
struct ReadReport {
  size_t failed = 0;    // on an error: which of the reads it was
  bool waited = false;  // not all came from memory
};

class BlockStore {
 public:
  // Makes the file as long as the superblock's capacity, writes both superblocks of a new pool and
  // syncs them. FAILED_PRECONDITION if a device is too small.
  static absl::StatusOr<std::unique_ptr<BlockStore>> Create(std::unique_ptr<File> file,
                                                            const Superblock& superblock);
  // Reads the newest valid superblock. FAILED_PRECONDITION if there is none, the version is newer
  // or an incompatible feature bit is unknown.
  static absl::StatusOr<std::unique_ptr<BlockStore>> Open(std::unique_ptr<File> file);

  // The newest on disk. Txg thread only, once the pool is open.
  const Superblock& superblock() const { return superblock_; }

  // Fills `out` (pointer.sectors x 4 KiB). DATA_LOSS on a wrong checksum. A hole yields zeros.
  // CANCELLED: kCached, and it would have had to wait.
  absl::Status Read(const BlockPtr& pointer, std::span<std::byte> out,
                    ReadMode mode = ReadMode::kWait) const;
  // All of `reads`, in their order; errors as above. What has to be waited for is told to the host
  // in one go, so that the disk reads the runs side by side.
  absl::Status ReadMany(std::span<const BlockRead> reads, ReadMode mode, ReadReport* report) const;
  // These blocks will be read soon. A hint.
  void WillNeed(std::span<const BlockPtr> pointers) const;
  // The sectors a pointer occupies: one run, or for a gang its list sector and its pieces. Appends.
  absl::Status Extents(const BlockPtr& pointer, std::vector<Run>* extents) const;

  // Stamps `txg` and the capacity into a superblock and syncs everything written so far, unless
  // nothing was written since the last successful sync and the capacity is the same; returns the
  // stamp that the metadata store is to hold from now on. `committed_stamp` is the one it holds:
  // the base of the new one, and its superblock is not touched, for it is the only one known to be
  // durable. A larger capacity lengthens a regular file. After an error nothing is written or
  // synced any more (I7). Txg thread only.
  absl::StatusOr<Txg> SyncStamped(Txg txg, Txg committed_stamp, uint64_t capacity_sectors);
  absl::Status Punch(const Run& run);
  // Writes zeros over sectors that no block has. Durable with the next SyncStamped.
  absl::Status WriteZeros(const Run& run);
  // Writes whole sectors of the intent log from `sector` on: they are durable once it returns OK.
  // After an error the store takes no writes any more (I7). Any thread, one at a time.
  absl::Status WriteLog(uint64_t sector, std::span<const std::byte> batch);
  // I7: takes no writes any more.
  void Fail() { failed_.store(true); }
  // OK, or that a write or sync has failed and nothing is written any more.
  absl::Status health() const;

  File& file() { return *file_; }
  uint64_t checksum_errors() const { return checksum_errors_.load(); }
  uint64_t bytes_written() const { return bytes_written_.load(); }

 private:
  friend class BlockWriter;
  explicit BlockStore(std::unique_ptr<File> file) : file_(std::move(file)) {}
  absl::StatusOr<GangSector> ReadGang(const BlockPtr& pointer,
                                      ReadMode mode = ReadMode::kWait) const;
  absl::Status ReadRun(std::span<const BlockRead> run, ReadMode mode, size_t* failed) const;
  absl::Status ReadOne(const BlockRead& read, ReadMode mode) const;
  absl::Status CheckBytes(const BlockPtr& pointer, std::span<const std::byte> bytes) const;
  absl::Status CheckPlace(uint64_t address, uint64_t sectors) const;
  absl::Status WriteSuperblock(Superblock superblock, uint32_t slot);
  absl::Status Lengthen(uint64_t capacity_sectors);

  std::unique_ptr<File> file_;
  Superblock superblock_;
  uint32_t slot_ = 0;                          // where superblock_ lies
  std::atomic<uint64_t> capacity_sectors_{0};  // of superblock_, for readers
  std::atomic<bool> written_since_sync_{false};
  std::atomic<bool> failed_{false};  // I7
  mutable std::atomic<uint64_t> checksum_errors_{0};
  std::atomic<uint64_t> bytes_written_{0};
};

class BlockWriter {
 public:
  BlockWriter(BlockStore& store, Allocator& allocator, WriteTxn& txn, Txg txg);

  // Places one block of data.size() bytes (a multiple of the sector), as one run where there is
  // one, else as a gang; `extents` (if given) receives the sectors it took. RESOURCE_EXHAUSTED if
  // the pool is full. The bytes must stay unchanged until Flush.
  absl::StatusOr<BlockPtr> Add(BlockKind kind, uint8_t level, std::span<const std::byte> data,
                               std::vector<Run>* extents);
  // As Add, and the writer keeps the node's bytes itself.
  absl::StatusOr<BlockPtr> AddNode(uint8_t level, std::shared_ptr<const Node> node,
                                   std::vector<Run>* extents);
  // Writes everything added since the last Flush.
  absl::Status Flush();
  Txg txg() const { return txg_; }
  // Blocks placed so far, those whose placing failed included.
  uint64_t blocks_added() const { return blocks_added_; }

 private:
  struct Pending {
    uint64_t address;
    std::span<const std::byte> data;
  };
  absl::StatusOr<BlockPtr> AddGang(BlockPtr pointer, std::span<const std::byte> data,
                                   std::vector<Run>* extents);
  absl::Status WriteAdjacent(std::span<const Pending> blocks);

  BlockStore& store_;
  Allocator& allocator_;
  WriteTxn& txn_;
  Txg txg_;
  uint64_t blocks_added_ = 0;
  std::vector<Pending> pending_;
  std::vector<std::shared_ptr<const Node>> nodes_;
  std::vector<std::unique_ptr<GangSector>> gangs_;
};

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// The metadata store: an LMDB environment in `meta/`, and the only file that knows LMDB.
//
// One write transaction at a time is the metadata half of a txg; its commit is the pool's single
// durability point (I7). Readers see the last commit and never block the writer. Every value is
// followed by a checksum that covers its table, its key and itself, so a value that was moved,
// swapped or flipped is DATA_LOSS, never believed. Values stay within one overflow page
// (kMaxPayloadBytes); larger things are cut by their owners.
//
// The file is allocated ahead of its last used page (Reserve), so that a full host file system is
// noticed before a commit and never inside one.
//
// Threads     MetaStore: thread-safe. A transaction: one thread at a time (MDB_NOTLS); a WriteTxn
//             ends on the thread that began it.
// Ownership   Cursors must end before their transaction, transactions before their store. Views
//             handed out stay valid until the transaction ends or, in a WriteTxn, until its next
//             Put or Delete.
// Cost        Get O(log n); a ReadTxn reuses a parked reader slot, no system call.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace cowshed::engine {

// Each is one LMDB database; the number is on disk (it seeds the value checksum). Never renumber.
// Keys and values of each: store/records.h, except those marked with their own file.
enum class Table : uint8_t {
  kPool = 1,         // "pool" -> PoolRecord
  kNames,            // directory id, segment -> NameRecord
  kDirectories,      // directory id -> DirectoryRecord
  kDatasets,         // dataset id -> DatasetRecord
  kSnapshots,        // snapshot id -> SnapshotRecord
  kSnapshotsByTxg,   // dataset id, create txg -> snapshot id
  kSnapshotsByName,  // dataset id, name -> snapshot id
  kClones,           // origin snapshot id, dataset id -> empty
  kHolds,            // snapshot id, tag -> HoldRecord
  kExpiry,           // unix ms, dataset/snapshot id, tag -> empty
  kStates,           // state, object id -> empty or RebuildRecord (not plainly ACTIVE; trim.h)
  kSublists,         // livelist id, start txg -> SublistRecord (tree/live_list.h)
  kDeadBuckets,      // deadlist id, start txg, log id -> BucketRecord (tree/dead_list.h)
  kLogs,             // log id, chunk number -> runs (tree/pointer_log.h)
  kDroppedLogs,      // log id -> empty: to be removed in bites
  kLogHolders,       // log id -> holders, only where more than one (tree/pointer_log.h)
  kRegions,          // region -> bitmap (store/allocator.h)
  kRegionSums,       // chunk -> free counts (store/allocator.h)
  kFreeLog,          // txg, chunk number -> runs (store/allocator.h)
  kJobs,             // job id -> JobRecord
  kOperations,       // operation id -> OperationRecord
  kRequests,         // request key hash, chunk number -> reply
  kRequestTimes,     // unix ms, request key hash -> empty
  kCount
};

struct MetaStoreOptions {
  uint64_t map_bytes = uint64_t{1} << 40;  // address space, set once; memory is not used by it
  uint64_t reserve_bytes = 64 << 20;       // kept allocated past the last used page
  uint32_t max_readers = 1024;             // >= all threads of the process
};

struct MetaStoreStats {
  uint64_t map_bytes = 0;
  uint64_t used_bytes = 0;  // pages in use, without free ones
  uint64_t file_bytes = 0;  // allocated on the host
  uint32_t readers = 0;
  uint64_t oldest_reader_lag_txns = 0;
};

class MetaTxn {
 public:
  virtual ~MetaTxn();
  MetaTxn(const MetaTxn&) = delete;
  MetaTxn& operator=(const MetaTxn&) = delete;

  // The value without its checksum; nullopt if absent; DATA_LOSS if the checksum is wrong.
  absl::StatusOr<std::optional<std::string_view>> Get(Table table, std::string_view key) const;

 protected:
  friend class MetaCursor;
  MetaTxn() = default;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class ReadTxn final : public MetaTxn {
 public:
  ~ReadTxn() override;  // parks the reader slot for the next one

 private:
  friend class MetaStore;
  ReadTxn() = default;
};

class WriteTxn final : public MetaTxn {
 public:
  ~WriteTxn() override;  // aborts unless committed

  // REQUIRES: value.size() <= kMaxPayloadBytes; key of 1..500 bytes.
  absl::Status Put(Table table, std::string_view key, std::string_view value);
  // Removing what is not there is OK.
  absl::Status Delete(Table table, std::string_view key);
  // Pages this transaction has dirtied so far, an upper bound used for admission.
  uint64_t dirty_pages() const;
  // Changes so far, one that failed included: equal to before if and only if nothing was changed.
  uint64_t changes() const;
  // Makes everything durable. RESOURCE_EXHAUSTED: nothing was written, the map is full. After any
  // other error the store takes no further writes (I7); reads go on.
  absl::Status Commit();

 private:
  friend class MetaStore;
  WriteTxn() = default;
};

// Walks one table in key order. While a WriteTxn changes the table under a cursor, the cursor must
// be positioned anew. Check status() when valid() turns false; a damaged entry can be stepped over
// with Next or Prev.
class MetaCursor {
 public:
  MetaCursor(const MetaTxn& txn, Table table);
  ~MetaCursor();
  MetaCursor(const MetaCursor&) = delete;
  MetaCursor& operator=(const MetaCursor&) = delete;

  void Seek(std::string_view key);        // first key >= `key`
  void SeekBefore(std::string_view key);  // last key < `key`
  void Next();
  void Prev();
  // Positioned on an entry, and its key starts with `prefix`.
  bool valid() const;
  bool ValidFor(std::string_view prefix) const;
  std::string_view key() const;
  std::string_view value() const;
  // OK, or DATA_LOSS / INTERNAL of the move that made valid() false.
  const absl::Status& status() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class MetaStore {
 public:
  // Opens, or with `create` makes, the environment in `directory`. FAILED_PRECONDITION if it is
  // damaged or not ours; a second environment of the same process on it is refused by Pool's lock.
  static absl::StatusOr<std::unique_ptr<MetaStore>> Open(const std::string& directory, bool create,
                                                         bool read_only,
                                                         const MetaStoreOptions& options);
  ~MetaStore();

  absl::StatusOr<std::unique_ptr<ReadTxn>> BeginRead() const;
  // Waits for the previous WriteTxn. FAILED_PRECONDITION after a failed commit.
  absl::StatusOr<std::unique_ptr<WriteTxn>> BeginWrite();

  // Makes sure `pages` more pages and the reserve are allocated on the host. RESOURCE_EXHAUSTED if
  // the host, or the map, is full; what is allocated already stays usable down to zero. REQUIRES:
  // no WriteTxn is open, for zeros are written where it would put pages.
  absl::Status Reserve(uint64_t pages);
  // A commit of `pages` fits in what the host has given: past the last used page, or in free pages
  // that no reader sees any more.
  bool FitsAllocated(uint64_t pages) const;
  // ... in the map, and leaves the reserve. Else only what frees pages should go on.
  bool FitsMap(uint64_t pages) const;
  // Frees the slots of readers whose process is gone: they would keep pages from being reused.
  absl::Status ClearDeadReaders();
  // Bytes allocated past the last used page: what a commit can grow into without the host.
  uint64_t headroom_bytes() const;
  MetaStoreStats stats() const;
  // Writes the last commit, without free pages, to a file or pipe. A reader for as long as it
  // takes.
  absl::Status CopyTo(int descriptor) const;

 private:
  MetaStore() = default;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cowshed::engine

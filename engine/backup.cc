// SPDX-License-Identifier: Apache-2.0
#include "engine/backup.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "engine/base/failpoints.h"
#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/errors.h"
#include "engine/operations.h"
#include "engine/reclaimer.h"
#include "engine/store/pool_uid.h"
#include "engine/trim.h"

namespace cowshed::engine {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr uint64_t kPieceBytes = 1 << 20;  // a read and a write
constexpr auto kBookInterval = std::chrono::seconds(1);
constexpr uint64_t kForgetPerTxn = 10000;

Key BackupKey(OperationId id) { return Key(StateKey::kBackup, id); }

std::string PartialOf(const std::string& directory) { return directory + ".partial"; }

// Whether a backup can be made there: the directory is empty or absent, and its parent is there.
absl::Status CheckTarget(const std::string& directory) {
  const auto refuse = [&](std::string_view why) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "BACKUP_TARGET",
                     StrCat(directory, " ", why), {{"directory", directory}});
  };
  std::error_code error;
  if (fs::exists(PartialOf(directory), error)) {
    return refuse("can not be written: remove DIR.partial, an unfinished backup");
  }
  if (fs::exists(directory, error) &&
      (!fs::is_directory(directory, error) || !fs::is_empty(directory, error) || error)) {
    return refuse("is not an empty directory");
  }
  if (!fs::is_directory(fs::path(directory).parent_path(), error)) {
    return refuse("has no parent directory on the server's host");
  }
  return absl::OkStatus();
}

Run RingOf(const PoolRecord& pool) {
  return {.address = pool.intent_log.address,
          .sectors = static_cast<uint32_t>(pool.intent_log.sectors),
          .kind = BlockKind::kData};
}

// Sectors of the data file that the copy needs, in rising order of address. What is in the free
// log is not free in the bitmaps, but nobody reads it any more; of the intent log, which is younger
// than the copy, there is nothing in it.
class SectorsToCopy {
 public:
  SectorsToCopy(const MetaTxn& txn, const PoolRecord& pool)
      : txn_(txn), capacity_sectors_(pool.capacity_sectors) {
    if (pool.has_intent_log()) freed_.push_back(RingOf(pool));
  }

  absl::Status Load() {
    RETURN_IF_ERROR(
        Allocator::Enumerate(txn_, capacity_sectors_, [this](const Run& run, bool in_free_log) {
          if (in_free_log) freed_.push_back(run);
        }));
    std::sort(freed_.begin(), freed_.end(),
              [](const Run& a, const Run& b) { return a.address < b.address; });
    return Visit([this](uint64_t begin, uint64_t end) { count_ += end - begin; });
  }
  uint64_t count() const { return count_; }

  // Calls `visit(begin, end)`.
  template <typename Visitor>
  absl::Status Visit(const Visitor& visit) const {
    auto freed = freed_.begin();
    return Allocator::Enumerate(txn_, capacity_sectors_, [&](const Run& run, bool in_free_log) {
      if (in_free_log) return;
      uint64_t begin = std::max(run.address, kFirstDataSector);
      for (; freed != freed_.end() && freed->address < run.end(); ++freed) {
        if (freed->address > begin) visit(begin, freed->address);
        begin = std::max(begin, freed->end());
        if (freed->end() > run.end()) break;
      }
      if (begin < run.end()) visit(begin, run.end());
    });
  }

 private:
  const MetaTxn& txn_;
  const uint64_t capacity_sectors_;
  std::vector<Run> freed_;
  uint64_t count_ = 0;
};

absl::Status DeleteSome(MetaStore& meta, Table table, bool* more) {
  std::vector<std::string> keys;
  {
    ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn, meta.BeginRead());
    MetaCursor cursor(*txn, table);
    for (cursor.Seek(""); cursor.valid() && keys.size() < kForgetPerTxn; cursor.Next()) {
      keys.emplace_back(cursor.key());
    }
    RETURN_IF_ERROR(cursor.status());
  }
  *more = !keys.empty();
  if (keys.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::unique_ptr<WriteTxn> txn, meta.BeginWrite());
  for (const std::string& key : keys) RETURN_IF_ERROR(txn->Delete(table, key));
  return txn->Commit();
}

// Frees the ring and forgets cuts: the copy is as of its commit, and nothing is replayed into it.
absl::Status DropIntentLog(WriteTxn& txn, PoolRecord* pool) {
  if (!pool->has_intent_log()) return absl::OkStatus();
  Allocator allocator({});
  RETURN_IF_ERROR(allocator.Reload(txn, pool->capacity_sectors));
  const Run ring = RingOf(*pool);
  RETURN_IF_ERROR(allocator.Free(txn, pool->txg, std::span(&ring, 1)));
  RETURN_IF_ERROR(allocator.WriteBack(txn, pool->txg));
  pool->DropIntentLog();
  const Key prefix(StateKey::kLogCut);
  while (true) {
    std::string key;
    {
      MetaCursor cursor(txn, Table::kStates);
      cursor.Seek(prefix);
      RETURN_IF_ERROR(cursor.status());
      if (!cursor.ValidFor(prefix)) return absl::OkStatus();
      key = cursor.key();
    }
    RETURN_IF_ERROR(txn.Delete(Table::kStates, key));
  }
}

// Makes the copied metadata those of another pool, which knows nothing of this backup.
absl::Status MakeAnother(MetaStore& copy, OperationId backup, const PoolUid& uid) {
  for (const Table table : {Table::kRequests, Table::kRequestTimes}) {
    for (bool more = true; more;) RETURN_IF_ERROR(DeleteSome(copy, table, &more));
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<WriteTxn> txn, copy.BeginWrite());
  ASSIGN_OR_RETURN(PoolRecord pool, LoadRecord<PoolRecord>(*txn, PoolRecord::kKey));
  RETURN_IF_ERROR(DropIntentLog(*txn, &pool));
  pool.uid = uid;
  pool.requests = 0;
  RETURN_IF_ERROR(StoreRecord(*txn, PoolRecord::kKey, pool));
  RETURN_IF_ERROR(txn->Delete(Table::kStates, BackupKey(backup)));
  RETURN_IF_ERROR(txn->Delete(Table::kOperations, Key(backup)));
  return txn->Commit();
}

// The write through LMDB that follows syncs it.
absl::Status CopyMeta(const MetaStore& meta, const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (descriptor < 0) return absl::ErrnoToStatus(errno, View(StrCat("make ", path)));
  absl::Status status = meta.CopyTo(descriptor);
  if (::close(descriptor) != 0 && status.ok()) {
    status = absl::ErrnoToStatus(errno, View(StrCat("close ", path)));
  }
  return status;
}

}  // namespace

absl::StatusOr<std::string> BackupTarget(const std::string& directory) {
  if (directory.empty() || directory.front() != '/') {
    return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_FIELD",
                     "the directory of a backup is an absolute path on the server's host",
                     {{"field", "directory"}});
  }
  const std::string target = (fs::path(directory) / "").lexically_normal().parent_path().string();
  RETURN_IF_ERROR(CheckTarget(target));
  return target;
}

absl::StatusOr<Verdict> StartBackup(TxgContext& context, const absl::StatusOr<std::string>& target,
                                    Outcome* outcome) {
  {
    MetaCursor cursor(context.meta, Table::kStates);
    cursor.Seek(Key(StateKey::kBackup));
    RETURN_IF_ERROR(cursor.status());
    if (cursor.ValidFor(Key(StateKey::kBackup))) {
      return MakeError(absl::StatusCode::kFailedPrecondition, "BACKUP_RUNNING",
                       "another backup is under way");
    }
  }
  RETURN_IF_ERROR(target.status());
  ASSIGN_OR_RETURN(const OperationId id,
                   BeginOperation(context, OperationKind::kBackup, DestroyKind::kDataset, *target,
                                  /*target_count=*/1));
  RETURN_IF_ERROR(AddPending(context, id));
  RETURN_IF_ERROR(context.meta.Put(Table::kStates, BackupKey(id), ""));
  ASSIGN_OR_RETURN(outcome->operation, SealOperation(context, id));
  context.jobs_changed = true;
  PoolStats& stats = context.parts.stats;
  context.after_commit.emplace_back([&stats] { stats.backup_running = 1; });
  return Verdict::kApplied;
}

absl::StatusOr<bool> Copier::Step() {
  if (looked_ && parts_.stats.backup_running == 0) return false;
  ASSIGN_OR_RETURN(const std::optional<Entry> entry, Find());
  looked_ = true;
  if (!entry.has_value()) return false;
  if (entry->txg <= opened_txg_) {
    RETURN_IF_ERROR(Finish(*entry, absl::AbortedError("the program ended in the middle of it")));
    return true;
  }
  const std::string partial = PartialOf(entry->directory);
  absl::Status result = Copy(*entry, partial);
  if (!result.ok()) {
    std::error_code ignored;  // what could not be removed is still recognisable by its name
    fs::remove_all(partial, ignored);
  }
  // A pool that is closing takes no task any more: its next opening tells.
  RETURN_IF_ERROR(Finish(*entry, result));
  return true;
}

absl::StatusOr<std::optional<Copier::Entry>> Copier::Find() {
  ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn, parts_.meta.BeginRead());
  const Key prefix(StateKey::kBackup);
  MetaCursor cursor(*txn, Table::kStates);
  cursor.Seek(prefix);
  RETURN_IF_ERROR(cursor.status());
  if (!cursor.ValidFor(prefix)) return std::nullopt;
  Entry entry;
  entry.id = KeyNumber<OperationId>(cursor.key(), 1);
  ASSIGN_OR_RETURN(const OperationRecord record, LoadRecord<OperationRecord>(*txn, Key(entry.id)));
  entry.directory = record.target;
  entry.txg = record.txg;
  return entry;
}

absl::Status Copier::MayGoOn() const {
  if (stopping_.load()) return absl::AbortedError("the server is being stopped");
  if (txgs_.reclaim_load().writers_wait) {
    return absl::ResourceExhaustedError(
        "a writer waits for space, and the backup kept what was freed: make room, then try again");
  }
  if (parts_.stats.alarms[Alarm::kHostFull] != 0) {
    return absl::ResourceExhaustedError("the host of the pool is full");
  }
  if (parts_.allocator.free_log_runs() > parts_.options.backup_free_log_max_runs) {
    return absl::ResourceExhaustedError(
        "more was freed during the backup than can be kept for it: try when less is destroyed");
  }
  return absl::OkStatus();
}

absl::Status Copier::Copy(const Entry& entry, const std::string& partial) {
  RETURN_IF_ERROR(CheckTarget(entry.directory));
  std::error_code error;
  fs::create_directories(partial + "/meta", error);
  RETURN_IF_ERROR(FileSystemStatus(error, StrCat("make ", partial)));
  fs::permissions(partial, fs::perms::owner_all, error);
  const ReaderEpochs::Guard epoch(parts_.epochs);  // before the metadata: see above
  RETURN_IF_ERROR(CopyMeta(parts_.meta, partial + "/meta/data.mdb"));
  RETURN_IF_ERROR(Failpoints::Hit("backup.meta_copied"));
  {
    MetaStoreOptions options;
    options.map_bytes = parts_.options.meta_map_bytes;
    options.reserve_bytes = 0;  // the pool that opens it makes its own
    ASSIGN_OR_RETURN(
        const std::unique_ptr<MetaStore> copy,
        MetaStore::Open(partial + "/meta", /*create=*/false, /*read_only=*/false, options));
    RETURN_IF_ERROR(CopyBlocks(entry, *copy, partial));
  }
  fs::remove(partial + "/meta/lock.mdb", error);
  RETURN_IF_ERROR(SyncDirectory(partial + "/meta"));
  RETURN_IF_ERROR(SyncDirectory(partial));
  RETURN_IF_ERROR(Failpoints::Hit("backup.before_rename"));
  fs::rename(partial, entry.directory, error);
  RETURN_IF_ERROR(FileSystemStatus(error, StrCat("rename ", partial)));
  return SyncDirectory(fs::path(entry.directory).parent_path().string());
}

absl::Status Copier::CopyBlocks(const Entry& entry, MetaStore& copy, const std::string& partial) {
  const PoolUid uid = NewPoolUid();
  ASSIGN_OR_RETURN(std::unique_ptr<File> file,
                   OpenFile(partial + "/blocks", /*create=*/true, /*read_only=*/false));
  Superblock superblock;
  std::unique_ptr<BlockStore> blocks;
  {
    ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn, copy.BeginRead());
    ASSIGN_OR_RETURN(const PoolRecord pool, LoadRecord<PoolRecord>(*txn, PoolRecord::kKey));
    superblock.pool_uid = uid;
    superblock.features = pool.features;
    superblock.features.incompatible &= ~kIntentLogFeature;
    superblock.capacity_sectors = pool.capacity_sectors;
    superblock.stamp_txg = superblock.base_stamp_txg = pool.blocks_stamp_txg;
    ASSIGN_OR_RETURN(blocks, BlockStore::Create(std::move(file), superblock));
    SectorsToCopy sectors(*txn, pool);
    RETURN_IF_ERROR(sectors.Load());
    RETURN_IF_ERROR(Book(entry, 0, sectors.count()));
    std::vector<std::byte> buffer(kPieceBytes);
    absl::Status status;
    uint64_t done_sectors = 0;
    auto booked = Clock::now();
    const absl::Status visited = sectors.Visit([&](uint64_t begin, uint64_t end) {
      while (begin < end && status.ok()) {
        const uint64_t count = std::min(end - begin, kPieceBytes / kSectorBytes);
        const std::span piece = std::span(buffer).first(count * kSectorBytes);
        status = MayGoOn();
        const iovec memory{piece.data(), piece.size()};
        if (status.ok()) {
          status = parts_.blocks.file().ReadV(begin * kSectorBytes, std::span(&memory, 1),
                                              ReadMode::kScan);
        }
        if (status.ok()) status = blocks->file().Write(begin * kSectorBytes, piece);
        begin += count;
        done_sectors += count;
        parts_.stats.backup_copied_bytes += piece.size();
        if (status.ok() && Clock::now() - booked >= kBookInterval) {
          status = Book(entry, done_sectors, std::nullopt);
          booked = Clock::now();
        }
      }
    });
    RETURN_IF_ERROR(status);
    RETURN_IF_ERROR(visited);
    RETURN_IF_ERROR(Book(entry, done_sectors, std::nullopt));
  }
  RETURN_IF_ERROR(blocks->file().Sync());
  return MakeAnother(copy, entry.id, uid);
}

absl::Status Copier::Book(const Entry& entry, uint64_t done_sectors,
                          std::optional<uint64_t> total_sectors) {
  return RunTask(txgs_, [&](TxgContext& context) -> absl::StatusOr<Verdict> {
    if (total_sectors.has_value()) {
      RETURN_IF_ERROR(PlanOperation(context, entry.id, *total_sectors, 0));
    }
    RETURN_IF_ERROR(BookProgress(context, entry.id, done_sectors));
    return Verdict::kApplied;
  });
}

absl::Status Copier::Finish(const Entry& entry, const absl::Status& result) {
  return RunTask(txgs_, [&](TxgContext& context) -> absl::StatusOr<Verdict> {
    RETURN_IF_ERROR(context.meta.Delete(Table::kStates, BackupKey(entry.id)));
    if (result.ok()) {
      RETURN_IF_ERROR(EndPending(context, entry.id));
    } else {
      RETURN_IF_ERROR(FailOperation(context, entry.id, std::string(StdView(result.message()))));
    }
    PoolStats& stats = parts_.stats;
    context.after_commit.emplace_back([&stats, ok = result.ok(), now_ms = context.now_ms] {
      stats.backup_running = 0;
      if (ok) {
        stats.backup_finish_ms = static_cast<uint64_t>(now_ms);
      } else {
        ++stats.backup_failures;
      }
    });
    return Verdict::kApplied;
  });
}

}  // namespace cowshed::engine

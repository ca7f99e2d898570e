// SPDX-License-Identifier: Apache-2.0
#include "engine/repair.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <span>
#include <system_error>
#include <utility>

#include "engine/base/failpoints.h"
#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/checker.h"
#include "engine/repair_state.h"
#include "engine/store/file.h"
#include "engine/store/intent_log_batch.h"
#include "engine/store/lmdb_pages.h"
#include "engine/store/meta_copy.h"
#include "engine/trim.h"

namespace cowshed::engine {
namespace {

namespace fs = std::filesystem;

// Ids given out after the copy was made must not come again: clients may still know them.
constexpr uint64_t kIdsLeftOut = uint64_t{1} << 32;

std::string BlocksPath(const PoolOptions& options) {
  return options.blocks_path.empty() ? options.directory + "/blocks" : options.blocks_path;
}

class RepairImpl final : public Repair {
 public:
  explicit RepairImpl(const RepairOptions& options)
      : options_(options), scratch_(options.pool.directory + "/meta.repair") {}
  ~RepairImpl() override {
    store_.reset();
    std::error_code ignored;
    if (lock_ != nullptr && !applied_) fs::remove_all(scratch_, ignored);
  }

  const std::vector<std::string>& plan() const override { return state_->plan; }
  const std::vector<CheckFinding>& lost() const override { return state_->lost; }
  const CheckReport& report() const override { return report_; }

  absl::Status Prepare() {
    struct stat info {};
    if (::stat(BlocksPath(options_.pool).c_str(), &info) != 0) {
      return absl::NotFoundError(StrCat("no pool in ", options_.pool.directory));
    }
    ASSIGN_OR_RETURN(lock_, FileLock::Acquire(options_.pool.directory + "/lock"));
    ASSIGN_OR_RETURN(std::unique_ptr<File> file,
                     OpenFile(BlocksPath(options_.pool), /*create=*/false, /*read_only=*/true));
    ASSIGN_OR_RETURN(blocks_, BlockStore::Open(std::move(file)));
    RETURN_IF_ERROR(Salvage());
    SettleRecords(state_.get());
    RETURN_IF_ERROR(Derive());
    return Prove();
  }

  absl::StatusOr<std::string> Apply() override {
    store_.reset();
    RETURN_IF_ERROR(OverwriteUnreadableNodes());
    RETURN_IF_ERROR(Failpoints::Hit("repair.apply"));
    return PutInPlace();
  }

 private:
  // The records of the metadata, else those of the newest copy of this pool that can be read.
  absl::Status Salvage() {
    const std::string meta = options_.pool.directory + "/meta/data.mdb";
    std::string why = "as asked for";
    if (!options_.from_copy) {
      const absl::StatusOr<bool> readable = SalvageRecords(meta, state_.get());
      if (readable.value_or(false)) return FillGaps();
      why = "the metadata cannot be read: ";
      why += readable.ok() ? state_->plan.empty() ? "it is empty" : state_->plan.back()
                           : std::string(StdView(readable.status().message()));
    }
    for (const MetaCopy& copy : ListMetaCopies(options_.pool.directory)) {
      auto state = std::make_unique<RepairState>();
      const absl::StatusOr<bool> readable =
          SalvageRecords(copy.directory + "/data.mdb", state.get());
      if (!readable.value_or(false) || !state->pool.has_value() ||
          state->pool->uid != blocks_->superblock().pool_uid) {
        continue;
      }
      state_ = std::move(state);
      state_->verify_data = true;
      from_copy_ = true;
      state_->plan.insert(state_->plan.begin(),
                          StrCat("the state of txg ", state_->pool->txg,
                                 " is brought back from the copy ", copy.directory, ": ", why));
      return absl::OkStatus();
    }
    return absl::FailedPreconditionError(StrCat("no copy of the metadata can be read; ", why));
  }

  absl::Status FillGaps() {
    for (const MetaCopy& copy : ListMetaCopies(options_.pool.directory)) {
      RETURN_IF_ERROR(SalvageFromCopy(copy.directory + "/data.mdb", copy.txg, state_.get()));
    }
    if (!state_->pool.has_value()) {
      // All that is in it is counted anew, or in the superblock, or a setting.
      state_->pool.emplace();
      state_->pool->uid = blocks_->superblock().pool_uid;
      state_->Lose("pool",
                   "its record is lost: settings of reclaim are the defaults again, and durable "
                   "writes that only the intent log held are lost");
    }
    return state_->pool->uid == blocks_->superblock().pool_uid
               ? absl::OkStatus()
               : absl::FailedPreconditionError("blocks belongs to another pool than the metadata");
  }

  absl::Status Derive() {
    const Superblock& superblock = blocks_->superblock();
    PoolRecord& pool = *state_->pool;
    if (!from_copy_ && pool.blocks_stamp_txg != superblock.stamp_txg &&
        pool.blocks_stamp_txg != superblock.base_stamp_txg) {
      state_->plan.push_back("blocks and metadata are of different times: all data is read");
      state_->verify_data = true;
      state_->log_is_known = false;
    }
    pool.capacity_sectors = superblock.capacity_sectors;
    state_->txg = std::max(pool.txg, superblock.stamp_txg);
    for (const auto& [id, snapshot] : state_->snapshots) {
      state_->txg = std::max(state_->txg, snapshot.txg);
    }
    ++state_->txg;
    RETURN_IF_ERROR(SettleIntentLog());
    pool.txg = state_->txg;
    pool.blocks_stamp_txg = superblock.stamp_txg;
    pool.next_id = std::max(pool.next_id, GreatestId() + 1) + (from_copy_ ? kIdsLeftOut : 0);
    state_->ids.Reset(pool.next_id);

    std::error_code error;
    fs::remove_all(scratch_, error);
    MetaStoreOptions meta;
    meta.map_bytes = options_.pool.meta_map_bytes;
    meta.reserve_bytes = options_.pool.meta_reserve_bytes;
    ASSIGN_OR_RETURN(store_, MetaStore::Open(scratch_, /*create=*/true, /*read_only=*/false, meta));
    ASSIGN_OR_RETURN(const std::unique_ptr<WriteTxn> txn, store_->BeginWrite());
    RETURN_IF_ERROR(
        MarkAndSweep(state_.get(), *blocks_, options_.pool.deadlist_tail_max_entries, *txn));
    RETURN_IF_ERROR(WriteRecords(state_.get(), *txn));
    pool.next_id = state_->ids.next();
    RETURN_IF_ERROR(StoreRecord(*txn, PoolRecord::kKey, pool));
    RETURN_IF_ERROR(txn->Commit());
    state_->plan.push_back(StrCat("bitmaps, lists, sums and indexes are made anew from ",
                                  state_->datasets.size(), " datasets and ",
                                  state_->snapshots.size(), " snapshots"));
    if (!state_->unreadable_nodes.empty()) {
      state_->plan.push_back(StrCat(state_->unreadable_nodes.size(),
                                    " nodes that cannot be read are overwritten with zeros"));
    }
    return absl::OkStatus();
  }

  // What it holds was written to the heads of the last commit. Where those come back it stays, for
  // the next opening to replay; else its ring becomes free as everything that nobody marks.
  absl::Status SettleIntentLog() {
    PoolRecord& pool = *state_->pool;
    if (!pool.has_intent_log()) return absl::OkStatus();
    IntentLogBacklog backlog;
    std::string why_not;
    // Of what is younger than a copy nothing is promised.
    if (!from_copy_) RETURN_IF_ERROR(JudgeIntentLog(&backlog, &why_not));
    if (why_not.empty() && backlog.batches > 0) {
      state_->plan.push_back(StrCat("the intent log stays: ", backlog.batches, " batches with ",
                                    backlog.bytes, " bytes of durable writes are replayed when ",
                                    "the pool is opened"));
      SpareOlderHeads();
      return absl::OkStatus();
    }
    if (!why_not.empty()) {
      state_->Lose("intent log", why_not + ": durable writes since the last commit are lost");
    }
    state_->plan.emplace_back("the intent log is dropped: the first durable write makes a new one");
    pool.DropIntentLog();
    state_->log_cuts.clear();
    return absl::OkStatus();
  }

  // What is in it, and why that cannot be replayed, if so.
  absl::Status JudgeIntentLog(IntentLogBacklog* backlog, std::string* why_not) {
    if (!state_->log_is_known) {
      *why_not = "what is in it is not known any more";
      return absl::OkStatus();
    }
    const auto found = ReadIntentLogBacklog(blocks_->file(), state_->pool->intent_log);
    if (!found.ok() && !absl::IsDataLoss(found.status())) return found.status();
    if (!found.ok()) {
      *why_not = StdView(found.status().message());
    } else if (options_.drop_log && found->batches > 0) {
      *why_not = "as asked for";
    } else if (LostLogCut()) {
      *why_not = "what was rolled back since it was written is not known any more";
    } else {
      *backlog = *found;
    }
    return absl::OkStatus();
  }

  bool LostLogCut() const {
    return std::any_of(state_->damaged.begin(), state_->damaged.end(), [](const auto& damaged) {
      return damaged.first == Table::kStates && IsLogCut(damaged.second);
    });
  }

  // As a rollback of each to nothing would.
  void SpareOlderHeads() {
    for (const DatasetId id : state_->older_heads) {
      Encoder cut;
      cut.Put(IntentLogCut{.layer = state_->pool->intent_log.committed_layer});
      state_->log_cuts.emplace(Key(StateKey::kLogCut, id, state_->txg), cut.Take());
      state_->Lose(state_->NameOf(id), "what the intent log holds for it is left out");
    }
  }

  uint64_t GreatestId() const {
    uint64_t greatest = kFirstId;
    const auto look = [&greatest](const auto& records) {
      if (!records.empty()) {
        greatest = std::max(greatest, static_cast<uint64_t>(records.rbegin()->first));
      }
    };
    look(state_->directories);
    look(state_->datasets);
    look(state_->snapshots);
    look(state_->jobs);
    look(state_->operations);
    return greatest;
  }

  absl::Status Prove() {
    ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn, store_->BeginRead());
    ASSIGN_OR_RETURN(report_, CheckPool(*txn, *blocks_, state_->pool->uid));
    return absl::OkStatus();
  }

  absl::Status OverwriteUnreadableNodes() {
    ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                     OpenFile(BlocksPath(options_.pool), /*create=*/false, /*read_only=*/false));
    const std::array<std::byte, kSectorBytes> zeros{};
    for (const uint64_t sector : state_->unreadable_nodes) {
      RETURN_IF_ERROR(file->Write(sector * kSectorBytes, zeros));
    }
    // Also what was stamped before a crash, and is believed from now on.
    return file->Sync();
  }

  absl::StatusOr<std::string> PutInPlace() {
    const std::string& directory = options_.pool.directory;
    const std::string meta = directory + "/meta";
    std::string aside;
    for (int i = 1; aside.empty(); ++i) {
      const std::string name = StrCat(directory, "/meta.damaged.", i);
      if (!fs::exists(name)) aside = name;
    }
    std::error_code error;
    fs::create_directory(meta, error);
    RETURN_IF_ERROR(SyncDirectory(scratch_));
    // In one step, so that at any moment there is a pool.
    if (::renameat2(AT_FDCWD, scratch_.c_str(), AT_FDCWD, meta.c_str(), RENAME_EXCHANGE) != 0) {
      return absl::ErrnoToStatus(errno, StrCat("exchange ", scratch_, " and ", meta));
    }
    applied_ = true;
    fs::rename(scratch_, aside, error);
    RETURN_IF_ERROR(FileSystemStatus(error, StrCat("rename to ", aside)));
    RETURN_IF_ERROR(SyncDirectory(directory));
    return aside;
  }

  const RepairOptions options_;
  const std::string scratch_;
  std::unique_ptr<FileLock> lock_;
  std::unique_ptr<BlockStore> blocks_;
  std::unique_ptr<MetaStore> store_;
  std::unique_ptr<RepairState> state_ = std::make_unique<RepairState>();
  CheckReport report_;
  bool from_copy_ = false;
  bool applied_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Repair>> Repair::Prepare(const RepairOptions& options) {
  auto repair = std::make_unique<RepairImpl>(options);
  RETURN_IF_ERROR(repair->Prepare());
  return std::unique_ptr<Repair>(std::move(repair));
}

absl::Status CheckMetaPages(const PoolOptions& options) {
  struct stat info {};
  const std::string path = options.directory + "/meta/data.mdb";
  if (::stat(path.c_str(), &info) != 0) {
    return absl::NotFoundError(StrCat("no pool in ", options.directory));
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<FileLock> lock,
                   FileLock::Acquire(options.directory + "/lock"));
  ASSIGN_OR_RETURN(const LmdbReport report, WalkLmdb(path));
  return report.ok() ? absl::OkStatus()
                     : absl::DataLossError(
                           StrCat("the metadata's page structure is damaged: ", report.Summary()));
}

std::vector<MetaCopyInfo> InspectMetaCopies(const PoolOptions& options) {
  std::vector<MetaCopyInfo> copies;
  for (const MetaCopy& copy : ListMetaCopies(options.directory)) {
    const absl::StatusOr<LmdbReport> report = WalkLmdb(copy.directory + "/data.mdb");
    copies.push_back(
        {copy.directory, copy.txg, copy.time_ms, copy.bytes, report.ok() && report->ok()});
  }
  return copies;
}

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// Opening, making and closing a pool. Opening reads the pool record, the allocator's summary and
// the free log: its cost does not depend on what is in the pool, and there is nothing to replay.
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/gauges.h"
#include "engine/livelist_drop.h"
#include "engine/pool_impl.h"
#include "engine/store/features.h"
#include "engine/store/pool_uid.h"

namespace cowshed::engine {
namespace {

constexpr uint64_t kGiB = 1 << 30;
constexpr uint64_t kMinCapacityBytes = 1 << 20;
constexpr auto kReclaimInterval = std::chrono::milliseconds(1000);
constexpr auto kGaugeInterval = std::chrono::milliseconds(1000);
constexpr auto kCondenseInterval = std::chrono::milliseconds(100);
constexpr auto kMetaCopyPoll = std::chrono::milliseconds(1000);
constexpr auto kHousekeepingInterval = std::chrono::milliseconds(100);

int64_t SystemClockMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

uint64_t PhysicalMemoryBytes() {
  return static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

std::string ParentOf(const std::string& path) {
  const size_t slash = path.rfind('/', path.find_last_not_of('/'));
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

// Each directory that is made is durable: what is acknowledged below it has a way to it.
absl::Status MakeDirectory(const std::string& path) {
  for (size_t at = path.find('/', 1);; at = path.find('/', at + 1)) {
    const std::string part = path.substr(0, at);
    if (::mkdir(part.c_str(), 0750) == 0) {
      RETURN_IF_ERROR(SyncDirectory(ParentOf(part)));
    } else if (errno != EEXIST) {
      return absl::ErrnoToStatus(errno, StrCat("cannot make directory ", part));
    }
    if (at == std::string::npos) return absl::OkStatus();
  }
}

// The names of a new pool are durable, those too that a process made which died over it: for this
// one they were there already. Who may not read the parent of the pool has not made the pool's
// name.
absl::Status SyncNames(const PoolOptions& options) {
  RETURN_IF_ERROR(SyncDirectory(options.directory + "/meta"));
  RETURN_IF_ERROR(SyncDirectory(options.directory));
  if (!options.blocks_path.starts_with("/dev/")) {
    RETURN_IF_ERROR(SyncDirectory(ParentOf(options.blocks_path)));
  }
  const absl::Status parent = SyncDirectory(ParentOf(options.directory));
  return absl::IsPermissionDenied(parent) ? absl::OkStatus() : parent;
}

// Asked before the record is decoded, which a newer version may have made longer. Version, uid and
// masks stay its first fields for ever.
absl::Status CheckMetadataReadable(const ReadTxn& txn) {
  ASSIGN_OR_RETURN(const std::optional<std::string_view> bytes,
                   txn.Get(PoolRecord::kTable, PoolRecord::kKey));
  if (!bytes.has_value()) return absl::OkStatus();
  PoolRecord record;
  Decoder decoder(*bytes);
  decoder.Get(&record.version).Get(&record.uid).Get(&record.features);
  if (!decoder.ok()) return absl::DataLossError("pool record has a wrong length");
  return CheckReadable(record.version, record.features, "metadata");
}

}  // namespace

PoolImpl::PoolImpl(PoolOptions options)
    : options_(std::move(options)),
      heads_(options_.open_heads_max),
      attachments_(
          [this](const std::string& name) { return OpenVolume(name, "", Holding::kPinned); },
          [this] { return options_.clock_ms(); }, stats_) {
  if (!options_.clock_ms) options_.clock_ms = SystemClockMs;
  if (options_.reclaim_memory_bytes == 0) {
    options_.reclaim_memory_bytes = PhysicalMemoryBytes() / 100;
  }
  if (options_.blocks_path.empty()) options_.blocks_path = options_.directory + "/blocks";
}

absl::StatusOr<std::unique_ptr<PoolImpl>> PoolImpl::Open(const PoolOptions& options) {
  std::unique_ptr<PoolImpl> pool(new PoolImpl(options));
  RETURN_IF_ERROR(pool->OpenFiles());
  pool->nodes_ = std::make_unique<NodeCache>(pool->options_.node_cache_bytes);
  pool->tree_ = std::make_unique<BlockTree>(*pool->blocks_, *pool->nodes_);
  pool->ids_.Reset(pool->opened_.next_id);
  pool->epochs_.Publish(pool->opened_.txg);
  pool->pacer_ = std::make_unique<ReclaimPacer>(pool->options_.reclaim_txg_budget,
                                                pool->options_.reclaim_bite_runs,
                                                pool->options_.reclaim_jobs_per_txg);
  pool->parts_ = std::make_unique<PoolParts>(
      PoolParts{pool->options_, *pool->meta_, *pool->blocks_, *pool->allocator_, *pool->tree_,
                pool->epochs_, pool->ids_, pool->heads_, pool->attachments_, pool->stats_,
                *pool->pacer_, pool->opened_.uid});
  pool->txgs_ = std::make_unique<TxgManager>(*pool->parts_, pool->opened_);
  if (!pool->options_.read_only) pool->StartBackground();
  return pool;
}

PoolImpl::~PoolImpl() {
  if (copier_ != nullptr) copier_->Stop();
  for (const std::unique_ptr<BackgroundTask>& task : tasks_) task->Stop();
  if (txgs_ != nullptr) txgs_->Stop();
}

absl::Status PoolImpl::OpenFiles() {
  const std::string meta_directory = options_.directory + "/meta";
  if (options_.create_if_missing && !options_.read_only) {
    RETURN_IF_ERROR(MakeDirectory(options_.directory));
    RETURN_IF_ERROR(MakeDirectory(meta_directory));
  }
  struct stat info {};
  if (::stat(meta_directory.c_str(), &info) != 0) {
    return absl::NotFoundError(StrCat("no pool in ", options_.directory));
  }
  ASSIGN_OR_RETURN(lock_, FileLock::Acquire(options_.directory + "/lock"));
  RETURN_IF_ERROR(CheckMetaRoots(options_.directory));
  MetaStoreOptions meta_options;
  meta_options.map_bytes = options_.meta_map_bytes;
  meta_options.reserve_bytes = options_.meta_reserve_bytes;
  const bool may_create = options_.create_if_missing && !options_.read_only;
  ASSIGN_OR_RETURN(meta_,
                   MetaStore::Open(meta_directory, may_create, options_.read_only, meta_options));
  AllocatorOptions allocator_options;
  allocator_options.free_log_max_runs = options_.free_log_max_runs;
  allocator_ = std::make_unique<Allocator>(allocator_options);
  ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn, meta_->BeginRead());
  RETURN_IF_ERROR(CheckMetadataReadable(*txn));
  ASSIGN_OR_RETURN(std::optional<PoolRecord> record,
                   FindRecord<PoolRecord>(*txn, PoolRecord::kKey));
  if (!record.has_value()) {
    if (!may_create) return absl::NotFoundError(StrCat("no pool in ", options_.directory));
    return CreateFiles();
  }
  opened_ = *std::move(record);
  ASSIGN_OR_RETURN(std::unique_ptr<File> file,
                   OpenFile(options_.blocks_path, /*create=*/false, options_.read_only));
  if (options_.wrap_blocks_file) file = options_.wrap_blocks_file(std::move(file));
  ASSIGN_OR_RETURN(blocks_, BlockStore::Open(std::move(file)));
  RETURN_IF_ERROR(CheckPair(opened_));
  return allocator_->Reload(*txn, opened_.capacity_sectors);
}

// The two files must be of one pool and of one moment.
absl::Status PoolImpl::CheckPair(const PoolRecord& record) const {
  const Superblock& superblock = blocks_->superblock();
  if (!options_.read_only) {
    RETURN_IF_ERROR(CheckWritable(superblock.features, "blocks"));
    RETURN_IF_ERROR(CheckWritable(record.features, "metadata"));
  }
  if (!(superblock.pool_uid == record.uid)) {
    return absl::FailedPreconditionError(StrCat(
        options_.blocks_path, " belongs to another pool than ", options_.directory, "/meta"));
  }
  if (superblock.stamp_txg != record.blocks_stamp_txg &&
      superblock.base_stamp_txg != record.blocks_stamp_txg) {
    return absl::FailedPreconditionError(
        StrCat("blocks (stamp ", superblock.stamp_txg, ") and metadata (stamp ",
               record.blocks_stamp_txg, ") are of different times: one of them is an old copy"));
  }
  return absl::OkStatus();
}

absl::Status PoolImpl::CreateFiles() {
  ASSIGN_OR_RETURN(std::unique_ptr<File> file,
                   OpenFile(options_.blocks_path, /*create=*/true, /*read_only=*/false));
  if (options_.wrap_blocks_file) file = options_.wrap_blocks_file(std::move(file));
  ASSIGN_OR_RETURN(const uint64_t existing, file->SizeBytes());
  if (existing > 0) {
    // A pool that was being made when it crashed has stamp 0; anything later has data.
    std::array<std::byte, sizeof(Superblock)> head{};
    RETURN_IF_ERROR(file->Read(0, head));
    Superblock found;
    std::memcpy(static_cast<void*>(&found), head.data(), sizeof(found));
    if (found.magic == Superblock::kMagic && found.stamp_txg != 0) {
      return absl::FailedPreconditionError(
          StrCat(options_.blocks_path, " holds the data of a pool whose metadata is missing"));
    }
  }
  uint64_t capacity = options_.capacity_bytes;
  if (file->is_device()) {
    capacity = existing;
  } else if (capacity == 0) {
    ASSIGN_OR_RETURN(const uint64_t host_free, file->HostFreeBytes());
    capacity = host_free >= kGiB ? host_free / kGiB * kGiB : host_free;
  }
  if (capacity < kMinCapacityBytes) {
    return absl::InvalidArgumentError("a pool needs a capacity of at least 1 MiB");
  }
  opened_.uid = NewPoolUid();
  opened_.capacity_sectors = capacity / kSectorBytes;
  opened_.create_time_ms = options_.clock_ms();
  if (!file->is_device()) RETURN_IF_ERROR(file->Truncate(opened_.capacity_sectors * kSectorBytes));
  Superblock superblock;
  superblock.pool_uid = opened_.uid;
  superblock.capacity_sectors = opened_.capacity_sectors;
  ASSIGN_OR_RETURN(blocks_, BlockStore::Create(std::move(file), superblock));
  RETURN_IF_ERROR(SyncNames(options_));
  RETURN_IF_ERROR(meta_->Reserve(0));
  ASSIGN_OR_RETURN(const std::unique_ptr<WriteTxn> txn, meta_->BeginWrite());
  RETURN_IF_ERROR(allocator_->Create(*txn, opened_.capacity_sectors));
  RETURN_IF_ERROR(StoreRecord(*txn, Key(kRootDirectory), DirectoryRecord()));
  RETURN_IF_ERROR(StoreRecord(*txn, PoolRecord::kKey, opened_));
  return txn->Commit();
}

void PoolImpl::StartBackground() {
  reclaimer_ = std::make_unique<Reclaimer>(*parts_, *txgs_);
  rebuilder_ = std::make_unique<Rebuilder>(*parts_, *txgs_);
  trimmer_ = std::make_unique<Trimmer>(*parts_, *txgs_);
  housekeeper_ = std::make_unique<Housekeeper>(*parts_, *txgs_);
  expirer_ = std::make_unique<Expirer>(*parts_, *txgs_);
  windows_ = std::make_unique<WindowKeeper>(*parts_, *txgs_);
  puncher_ = std::make_unique<Puncher>(*parts_, *txgs_);
  const auto drop = [](DropReason reason) {
    return
        [reason](TxgContext& context, DatasetId id) { return DropLivelist(context, id, reason); };
  };
  condenser_ = std::make_unique<Condenser>(
      *parts_, *txgs_, CondenseHooks{drop(DropReason::kDamaged), drop(DropReason::kCostly)});
  scrubber_ = std::make_unique<Scrubber>(*parts_, *txgs_);
  copier_ = std::make_unique<Copier>(*parts_, *txgs_, opened_.txg);
  const auto add = [&](std::chrono::milliseconds interval, BackgroundTask::Step step) {
    tasks_.push_back(std::make_unique<BackgroundTask>(interval, std::move(step)));
    return tasks_.back().get();
  };
  BackgroundTask* const housekeeping =
      add(kHousekeepingInterval, [this] { return housekeeper_->Step(); });
  BackgroundTask* const reclaim =
      add(kReclaimInterval, [this, housekeeping]() -> absl::StatusOr<bool> {
        ASSIGN_OR_RETURN(const bool more, reclaimer_->Step());
        // The queue is done: what it freed need not wait for the interval to become free again.
        if (!more) housekeeping->Wake();
        return more;
      });
  BackgroundTask* const rebuild = add(kReclaimInterval, [this] { return rebuilder_->Step(); });
  BackgroundTask* const trim = add(kReclaimInterval, [this] { return trimmer_->Step(); });
  add(kCondenseInterval, [this] { return condenser_->Step(); });
  add(options_.expire_poll, [this] { return expirer_->Step(); });
  add(kHousekeepingInterval, [this] { return windows_->Step(); });
  add(kGaugeInterval, [this]() -> absl::StatusOr<bool> {
    txgs_->RefreshGauges();
    RefreshMetaGauges(*parts_);
    return false;
  });
  meta_copier_ = std::make_unique<MetaCopier>(*parts_, *txgs_);
  add(kMetaCopyPoll, [this] { return meta_copier_->Step(); });
  BackgroundTask* const scrub = add(kReclaimInterval, [this] { return scrubber_->Step(); });
  BackgroundTask* const backup = add(kReclaimInterval, [this] { return copier_->Step(); });
  BackgroundTask* const punch = add(kReclaimInterval, [this] { return puncher_->Step(); });
  txgs_->SetListeners(
      [wake = std::array{reclaim, rebuild, trim, scrub, backup}] {
        for (BackgroundTask* const task : wake) task->Wake();
      },
      [this, punch](std::vector<Run> runs) {
        puncher_->Add(std::move(runs));
        punch->Wake();
      });
  txgs_->Start();
  if (!options_.background_work) return;
  for (const std::unique_ptr<BackgroundTask>& task : tasks_) task->Start();
}

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
#include "engine/store/meta_store.h"

#include <lmdb.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/failpoints.h"
#include "engine/base/mutex.h"
#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/store/file.h"
#include "engine/store/format.h"
#include "engine/store/meta_tables.h"

namespace cowshed::engine {
namespace {

constexpr size_t kTableCount = static_cast<size_t>(Table::kCount);
constexpr size_t kMaxKeyBytes = 500;

// Values above this leave the leaf for an overflow page: half a page less its header, two bytes of
// index and eight of node header.
constexpr size_t kMaxLeafNodeBytes = 2030;

std::string_view ToView(const MDB_val& value) {
  return {static_cast<const char*>(value.mv_data), value.mv_size};
}

MDB_val ToVal(std::string_view bytes) { return {bytes.size(), const_cast<char*>(bytes.data())}; }

absl::Status LmdbStatus(int rc, std::string_view what) {
  if (rc == MDB_SUCCESS) {
    return absl::OkStatus();
  }
  const std::string text = StrCat("metadata store: ", what, ": ", mdb_strerror(rc));
  switch (rc) {
    case MDB_MAP_FULL:
    case MDB_DBS_FULL:
    case MDB_READERS_FULL:
    case MDB_TXN_FULL:
    case ENOSPC:
    case EDQUOT:
      return absl::ResourceExhaustedError(text);
    case MDB_CORRUPTED:
    case MDB_PAGE_NOTFOUND:
    case MDB_CURSOR_FULL:
    case MDB_PAGE_FULL:
      return absl::DataLossError(text);
    case MDB_INVALID:
    case MDB_VERSION_MISMATCH:
    case MDB_INCOMPATIBLE:
    case MDB_PANIC:
    case MDB_BAD_TXN:
      return absl::FailedPreconditionError(text);
    case MDB_NOTFOUND:
      return absl::NotFoundError(text);
    case EIO:
      return absl::UnavailableError(text);
    default:
      return rc > 0 ? absl::ErrnoToStatus(rc, View(text)) : absl::InternalError(text);
  }
}

// What transactions, cursors and the store share.
struct Environment {
  ~Environment() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    COWSHED_CHECK(active.empty(), "transactions end before their store");
    for (MDB_txn* const txn : parked) {
      mdb_txn_abort(txn);
    }
    if (env != nullptr) {
      mdb_env_close(env);
    }
  }

  MDB_dbi table(Table which) const { return tables[static_cast<size_t>(which)]; }
  // End of the last page that is in use or on the free list of LMDB.
  uint64_t UsedEndBytes() const {
    MDB_envinfo info{};
    mdb_env_info(env, &info);
    return (info.me_last_pgno + 1) * page_bytes;
  }
  absl::Status AllocateUpTo(uint64_t end_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(growth_mutex);
  void WriteAhead() ABSL_EXCLUSIVE_LOCKS_REQUIRED(growth_mutex);
  absl::StatusOr<MDB_txn*> TakeReader();
  void ParkReader(MDB_txn* txn);

  MDB_env* env = nullptr;
  std::array<MDB_dbi, kTableCount> tables{};
  uint64_t page_bytes = 0;
  bool read_only = false;
  MetaStoreOptions options;
  std::atomic<bool> failed{false};  // I7

  Mutex growth_mutex{LockRank::kMetaGrowth};
  // The host has given all bytes before this one. Written under growth_mutex.
  std::atomic<uint64_t> allocated_bytes{0};
  // All bytes before this one have been written since the store was opened, or are in use.
  uint64_t written_bytes ABSL_GUARDED_BY(growth_mutex) = 0;

  Mutex readers_mutex{LockRank::kMetaReaders};
  std::vector<MDB_txn*> parked ABSL_GUARDED_BY(readers_mutex);
  std::map<uint64_t, uint32_t> active ABSL_GUARDED_BY(readers_mutex);  // snapshot id -> readers
};

// fallocate succeeds at once where there are blocks already, so this also fills the holes that
// pages leave which LMDB took and gave back unwritten. Takes what it can get from a full host.
absl::Status Environment::AllocateUpTo(uint64_t end_bytes) {
  constexpr uint64_t kSmallestStepBytes = 64 << 10;
  int descriptor = -1;
  RETURN_IF_ERROR(LmdbStatus(mdb_env_get_fd(env, &descriptor), "descriptor"));
  uint64_t begin_bytes = allocated_bytes.load();
  uint64_t step_bytes = end_bytes > begin_bytes ? end_bytes - begin_bytes : 0;
  while (begin_bytes < end_bytes) {
    step_bytes = std::min(step_bytes, end_bytes - begin_bytes);
    absl::Status status = AllocateRange(descriptor, begin_bytes, step_bytes);
    if (status.ok()) {
      begin_bytes += step_bytes;
      allocated_bytes.store(begin_bytes);
      continue;
    }
    if (absl::IsUnimplemented(status)) {
      return absl::FailedPreconditionError(
          "metadata store: the host's file system cannot allocate ahead (fallocate)");
    }
    if (!absl::IsResourceExhausted(status) || step_bytes <= kSmallestStepBytes) return status;
    step_bytes /= 2;
  }
  return absl::OkStatus();
}

// Keeps the pages that the next transactions take written once: a commit that is the first to write
// one waits for the file system's journal, too.
void Environment::WriteAhead() {
  constexpr uint64_t kStepBytes = 1 << 20;  // some 100 commits of one clone each
  const uint64_t used_end_bytes = UsedEndBytes();
  written_bytes = std::max(written_bytes, used_end_bytes);
  const uint64_t end_bytes = std::min(used_end_bytes + kStepBytes, allocated_bytes.load());
  int descriptor = -1;
  // Where it fails, only speed is lost: what is wrong with the disk, a commit will tell.
  if (failed.load() || written_bytes + kStepBytes / 2 > end_bytes ||
      mdb_env_get_fd(env, &descriptor) != MDB_SUCCESS ||
      !WriteZeros(descriptor, written_bytes, end_bytes - written_bytes).ok()) {
    return;
  }
  written_bytes = end_bytes;
}

absl::StatusOr<MDB_txn*> Environment::TakeReader() {
  MDB_txn* txn = nullptr;
  {
    const MutexLock lock(readers_mutex);
    if (!parked.empty()) {
      txn = parked.back();
      parked.pop_back();
    }
  }
  const int rc =
      txn != nullptr ? mdb_txn_renew(txn) : mdb_txn_begin(env, nullptr, MDB_RDONLY, &txn);
  if (rc != MDB_SUCCESS) {
    mdb_txn_abort(txn);  // Of a fresh one that failed, null: allowed.
    return LmdbStatus(rc, "begin read");
  }
  const MutexLock lock(readers_mutex);
  ++active[mdb_txn_id(txn)];
  return txn;
}

void Environment::ParkReader(MDB_txn* txn) {
  const uint64_t id = mdb_txn_id(txn);
  mdb_txn_reset(txn);
  const MutexLock lock(readers_mutex);
  const auto it = active.find(id);
  if (--it->second == 0) {
    active.erase(it);
  }
  parked.push_back(txn);
}

}  // namespace

struct MetaTxn::Impl {
  Environment* environment = nullptr;
  MDB_txn* txn = nullptr;  // null once committed
  struct Writes {
    uint64_t changes = 0;
    uint64_t overflow_pages = 0;
  };
  std::array<Writes, kTableCount> writes{};  // of a WriteTxn
};

struct MetaStore::Impl : Environment {};

// ---- Transactions -------------------------------------------------------------------------------

MetaTxn::~MetaTxn() = default;

absl::StatusOr<std::optional<std::string_view>> MetaTxn::Get(Table table,
                                                             std::string_view key) const {
  COWSHED_CHECK(impl_->txn != nullptr, "a transaction is not used after its commit");
  MDB_val lmdb_key = ToVal(key);
  MDB_val stored{};
  const int rc = mdb_get(impl_->txn, impl_->environment->table(table), &lmdb_key, &stored);
  if (rc == MDB_NOTFOUND) {
    return std::optional<std::string_view>();
  }
  RETURN_IF_ERROR(LmdbStatus(rc, "get"));
  ASSIGN_OR_RETURN(const std::string_view value, ProveValue(table, key, ToView(stored)));
  return std::optional<std::string_view>(value);
}

ReadTxn::~ReadTxn() {
  if (impl_ != nullptr) {
    impl_->environment->ParkReader(impl_->txn);
  }
}

WriteTxn::~WriteTxn() {
  if (impl_ != nullptr && impl_->txn != nullptr) {
    mdb_txn_abort(impl_->txn);
  }
}

absl::Status WriteTxn::Put(Table table, std::string_view key, std::string_view value) {
  COWSHED_CHECK(impl_->txn != nullptr, "a transaction is not used after its commit");
  COWSHED_CHECK(!key.empty() && key.size() <= kMaxKeyBytes, "a key has 1..500 bytes");
  COWSHED_CHECK(value.size() <= kMaxPayloadBytes, "a value fits in one overflow page");
  Impl::Writes& writes = impl_->writes[static_cast<size_t>(table)];
  ++writes.changes;
  RETURN_IF_ERROR(Failpoints::Hit("meta.put"));
  // Key and value may be views into pages that LMDB is about to move: copy both.
  std::array<char, kMaxKeyBytes> key_bytes;
  std::array<char, kMaxValueBytes> bytes;
  const uint64_t checksum = ValueChecksum(table, key, value);
  std::memcpy(key_bytes.data(), key.data(), key.size());
  if (!value.empty()) {
    std::memcpy(bytes.data(), value.data(), value.size());
  }
  std::memcpy(bytes.data() + value.size(), &checksum, sizeof(checksum));

  MDB_val lmdb_key{key.size(), key_bytes.data()};
  MDB_val stored{value.size() + kValueChecksumBytes, bytes.data()};
  writes.overflow_pages += key.size() + stored.mv_size > kMaxLeafNodeBytes ? 1 : 0;
  return LmdbStatus(mdb_put(impl_->txn, impl_->environment->table(table), &lmdb_key, &stored, 0),
                    "put");
}

absl::Status WriteTxn::Delete(Table table, std::string_view key) {
  COWSHED_CHECK(impl_->txn != nullptr, "a transaction is not used after its commit");
  COWSHED_CHECK(!key.empty() && key.size() <= kMaxKeyBytes, "a key has 1..500 bytes");
  std::array<char, kMaxKeyBytes> key_bytes;
  std::memcpy(key_bytes.data(), key.data(), key.size());
  MDB_val lmdb_key{key.size(), key_bytes.data()};
  const int rc = mdb_del(impl_->txn, impl_->environment->table(table), &lmdb_key, nullptr);
  if (rc == MDB_NOTFOUND) {
    return absl::OkStatus();
  }
  ++impl_->writes[static_cast<size_t>(table)].changes;
  return LmdbStatus(rc, "delete");
}

uint64_t WriteTxn::changes() const {
  uint64_t changes = 0;
  for (const Impl::Writes& writes : impl_->writes) changes += writes.changes;
  return changes;
}

// LMDB does not tell how many pages are dirty. A change dirties the path to its leaf and at worst
// splits every page of it, yet a table never has more dirty pages than pages.
uint64_t WriteTxn::dirty_pages() const {
  uint64_t pages = 0;
  uint64_t changes = 0;
  for (size_t i = 1; i < kTableCount && impl_->txn != nullptr; ++i) {
    const Impl::Writes& writes = impl_->writes[i];
    if (writes.changes == 0) {
      continue;
    }
    MDB_stat stat{};
    mdb_stat(impl_->txn, impl_->environment->tables[i], &stat);
    const uint64_t per_change = 2 * uint64_t{stat.ms_depth} + 1;
    pages +=
        std::min<uint64_t>(writes.changes * per_change, stat.ms_branch_pages + stat.ms_leaf_pages) +
        writes.overflow_pages;
    changes += writes.changes;
  }
  if (changes == 0) {
    return 0;
  }
  // Free list records hold 8 bytes for each page given up: those copied and those deleted. Eight
  // more pages: paths of the free list and of the table of tables, and the meta page.
  constexpr uint64_t kFreeListPagesPerRecordPage = 256;
  return pages + (pages + changes) / kFreeListPagesPerRecordPage + 8;
}

absl::Status WriteTxn::Commit() {
  COWSHED_CHECK(impl_->txn != nullptr, "a transaction commits once");
  absl::Status status = Failpoints::Hit("meta.before_commit");
  if (status.ok()) {
    status = LmdbStatus(mdb_txn_commit(std::exchange(impl_->txn, nullptr)), "commit");
  }
  if (status.ok()) {
    status = Failpoints::Hit("meta.after_commit");
  }
  if (!status.ok()) {
    impl_->environment->failed.store(true);
  }
  return status;
}

// ---- Cursor -------------------------------------------------------------------------------------

struct MetaCursor::Impl {
  ~Impl() {
    if (cursor != nullptr) {
      mdb_cursor_close(cursor);
    }
  }

  // Moves, and fills the entry or says why there is none.
  void Move(MDB_cursor_op op, std::string_view target = {}) {
    valid = false;
    if (cursor == nullptr) {
      return;  // `status` tells.
    }
    MDB_val lmdb_key = ToVal(target);
    MDB_val stored{};
    const int rc = mdb_cursor_get(cursor, &lmdb_key, &stored, op);
    status = rc == MDB_NOTFOUND ? absl::OkStatus() : LmdbStatus(rc, "move");
    if (rc != MDB_SUCCESS) return;
    key = ToView(lmdb_key);
    absl::StatusOr<std::string_view> verified = ProveValue(table, key, ToView(stored));
    status = verified.status();
    if (verified.ok()) {
      value = *verified;
      valid = true;
    }
  }

  MDB_cursor* cursor = nullptr;
  Table table{};
  bool valid = false;
  std::string_view key;
  std::string_view value;
  absl::Status status;
};

MetaCursor::MetaCursor(const MetaTxn& txn, Table table) : impl_(std::make_unique<Impl>()) {
  COWSHED_CHECK(txn.impl_->txn != nullptr, "a transaction is not used after its commit");
  impl_->table = table;
  impl_->status = LmdbStatus(
      mdb_cursor_open(txn.impl_->txn, txn.impl_->environment->table(table), &impl_->cursor),
      "cursor");
}

MetaCursor::~MetaCursor() = default;

void MetaCursor::Seek(std::string_view key) {
  impl_->Move(key.empty() ? MDB_FIRST : MDB_SET_RANGE, key);
}

void MetaCursor::SeekBefore(std::string_view key) {
  if (key.empty()) {
    impl_->valid = false;
    return;
  }
  // The entry at or after `key` is only passed by: its value need not be sound.
  MDB_val lmdb_key = ToVal(key);
  MDB_val stored{};
  const int rc = impl_->cursor == nullptr
                     ? MDB_NOTFOUND
                     : mdb_cursor_get(impl_->cursor, &lmdb_key, &stored, MDB_SET_RANGE);
  if (rc != MDB_SUCCESS && rc != MDB_NOTFOUND) {
    impl_->valid = false;
    impl_->status = LmdbStatus(rc, "move");
    return;
  }
  impl_->Move(rc == MDB_SUCCESS ? MDB_PREV : MDB_LAST);
}

void MetaCursor::Next() { impl_->Move(MDB_NEXT); }
void MetaCursor::Prev() { impl_->Move(MDB_PREV); }
bool MetaCursor::valid() const { return impl_->valid; }
bool MetaCursor::ValidFor(std::string_view prefix) const {
  return impl_->valid && impl_->key.starts_with(prefix);
}
std::string_view MetaCursor::key() const { return impl_->key; }
std::string_view MetaCursor::value() const { return impl_->value; }
const absl::Status& MetaCursor::status() const { return impl_->status; }

// ---- Store --------------------------------------------------------------------------------------

namespace {

// Makes or finds every table; their handles then serve all transactions.
absl::Status OpenTables(Environment& environment, bool create) {
  MDB_txn* txn = nullptr;
  RETURN_IF_ERROR(
      LmdbStatus(mdb_txn_begin(environment.env, nullptr, create ? 0 : MDB_RDONLY, &txn), "begin"));
  for (size_t i = 1; i < kTableCount; ++i) {
    const int rc = mdb_dbi_open(txn, TableName(static_cast<Table>(i)), create ? MDB_CREATE : 0,
                                &environment.tables[i]);
    if (rc != MDB_SUCCESS) {
      mdb_txn_abort(txn);
      return rc == MDB_NOTFOUND || rc == MDB_INCOMPATIBLE
                 ? absl::FailedPreconditionError(
                       StrCat("metadata store has no table ", TableName(static_cast<Table>(i))))
                 : LmdbStatus(rc, StrCat("table ", TableName(static_cast<Table>(i))));
    }
  }
  return LmdbStatus(mdb_txn_commit(txn), "commit of tables");
}

absl::Status OpenEnvironment(Environment& environment, const std::string& directory) {
  MDB_env*& env = environment.env;
  const MetaStoreOptions& options = environment.options;
  RETURN_IF_ERROR(LmdbStatus(mdb_env_create(&env), "create"));
  RETURN_IF_ERROR(LmdbStatus(mdb_env_set_maxdbs(env, kTableCount), "set tables"));
  RETURN_IF_ERROR(LmdbStatus(mdb_env_set_mapsize(env, options.map_bytes), "set map size"));
  RETURN_IF_ERROR(LmdbStatus(mdb_env_set_maxreaders(env, options.max_readers), "set readers"));
  const unsigned flags = MDB_NOTLS | (environment.read_only ? MDB_RDONLY : 0);
  RETURN_IF_ERROR(
      LmdbStatus(mdb_env_open(env, directory.c_str(), flags, 0600), StrCat("open ", directory)));
  MDB_stat stat{};
  RETURN_IF_ERROR(LmdbStatus(mdb_env_stat(env, &stat), "stat"));
  environment.page_bytes = stat.ms_psize;
  int dead_readers = 0;
  return LmdbStatus(mdb_reader_check(env, &dead_readers), "reader check");
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetaStore>> MetaStore::Open(const std::string& directory,
                                                           bool create, bool read_only,
                                                           const MetaStoreOptions& options) {
  struct stat info {};
  const std::string data_path = directory + "/data.mdb";
  const bool exists = stat(data_path.c_str(), &info) == 0;
  create = create && !read_only;
  if (!exists && !create) {
    return absl::FailedPreconditionError(StrCat(directory, " holds no metadata store"));
  }
  if (create && mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return absl::ErrnoToStatus(errno, View(StrCat("mkdir ", directory)));
  }
  std::unique_ptr<MetaStore> store(new MetaStore);
  store->impl_ = std::make_unique<Impl>();
  Environment& environment = *store->impl_;
  environment.options = options;
  environment.read_only = read_only;
  RETURN_IF_ERROR(OpenEnvironment(environment, directory));
  RETURN_IF_ERROR(OpenTables(environment, create));
  if (create && !exists) {
    // The new names are durable once their directories are.
    RETURN_IF_ERROR(SyncDirectory(directory));
    RETURN_IF_ERROR(SyncDirectory(directory + "/.."));
  }
  if (!read_only) {
    // A full host must not keep the pool closed: deletes are what it needs.
    const absl::Status reserved = store->Reserve(0);
    if (!reserved.ok() && !absl::IsResourceExhausted(reserved)) return reserved;
  }
  return store;
}

MetaStore::~MetaStore() = default;

absl::Status MetaStore::CopyTo(int descriptor) const {
  return LmdbStatus(mdb_env_copyfd2(impl_->env, descriptor, MDB_CP_COMPACT), "copy");
}

absl::StatusOr<std::unique_ptr<ReadTxn>> MetaStore::BeginRead() const {
  ASSIGN_OR_RETURN(MDB_txn* const lmdb_txn, impl_->TakeReader());
  std::unique_ptr<ReadTxn> txn(new ReadTxn);
  txn->impl_ = std::make_unique<ReadTxn::Impl>();
  txn->impl_->environment = impl_.get();
  txn->impl_->txn = lmdb_txn;
  return txn;
}

absl::StatusOr<std::unique_ptr<WriteTxn>> MetaStore::BeginWrite() {
  if (impl_->read_only) {
    return absl::FailedPreconditionError("metadata store is open for reading only");
  }
  std::unique_ptr<WriteTxn> txn(new WriteTxn);
  txn->impl_ = std::make_unique<WriteTxn::Impl>();
  txn->impl_->environment = impl_.get();
  // The failure may come while this one waits for its turn: look before and after.
  const auto refuse = [] {
    return absl::FailedPreconditionError("I7: a commit failed, the metadata store takes no writes");
  };
  if (impl_->failed.load()) return refuse();
  RETURN_IF_ERROR(
      LmdbStatus(mdb_txn_begin(impl_->env, nullptr, 0, &txn->impl_->txn), "begin write"));
  if (impl_->failed.load()) return refuse();
  return txn;
}

absl::Status MetaStore::Reserve(uint64_t pages) {
  constexpr uint64_t kStepBytes = 4 << 20;  // so that not every txg asks the host
  const MutexLock lock(impl_->growth_mutex);
  const uint64_t needed_bytes = impl_->UsedEndBytes() + pages * impl_->page_bytes;
  if (needed_bytes > impl_->options.map_bytes) {
    return absl::ResourceExhaustedError(StrCat("metadata store: ", needed_bytes,
                                               " bytes do not fit in its map of ",
                                               impl_->options.map_bytes));
  }
  const uint64_t wanted_bytes =
      std::min(needed_bytes + impl_->options.reserve_bytes, impl_->options.map_bytes);
  absl::Status status;
  if (wanted_bytes > impl_->allocated_bytes.load()) {
    const uint64_t rounded_bytes = std::min(
        (wanted_bytes + kStepBytes - 1) / kStepBytes * kStepBytes, impl_->options.map_bytes);
    status = impl_->AllocateUpTo(rounded_bytes);
  }
  impl_->WriteAhead();
  return impl_->allocated_bytes.load() >= wanted_bytes ? absl::OkStatus() : status;
}

uint64_t MetaStore::headroom_bytes() const {
  const uint64_t allocated_bytes = impl_->allocated_bytes.load();
  const uint64_t used_end_bytes = impl_->UsedEndBytes();
  return allocated_bytes > used_end_bytes ? allocated_bytes - used_end_bytes : 0;
}

MetaStoreStats MetaStore::stats() const {
  MetaStoreStats stats;
  MDB_envinfo info{};
  mdb_env_info(impl_->env, &info);
  stats.map_bytes = info.me_mapsize;
  int descriptor = -1;
  struct stat file {};
  if (mdb_env_get_fd(impl_->env, &descriptor) == MDB_SUCCESS && fstat(descriptor, &file) == 0) {
    stats.file_bytes = static_cast<uint64_t>(file.st_blocks) * 512;
  }
  {
    const MutexLock lock(impl_->readers_mutex);
    for (const auto& [id, readers] : impl_->active) {
      stats.readers += readers;
    }
    if (!impl_->active.empty() && impl_->active.begin()->first < info.me_last_txnid) {
      stats.oldest_reader_lag_txns = info.me_last_txnid - impl_->active.begin()->first;
    }
  }
  const absl::StatusOr<std::unique_ptr<ReadTxn>> txn = BeginRead();
  if (!txn.ok()) return stats;
  // Databases 0 and 1 are LMDB's free list and its table of tables; two pages are its meta pages.
  uint64_t pages = 2;
  std::vector<MDB_dbi> databases = {0, 1};
  databases.insert(databases.end(), impl_->tables.begin() + 1, impl_->tables.end());
  for (const MDB_dbi database : databases) {
    MDB_stat stat{};
    if (mdb_stat((*txn)->impl_->txn, database, &stat) == MDB_SUCCESS) {
      pages += stat.ms_branch_pages + stat.ms_leaf_pages + stat.ms_overflow_pages;
    }
  }
  stats.used_bytes = pages * impl_->page_bytes;
  return stats;
}

}  // namespace cowshed::engine

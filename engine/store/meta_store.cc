// SPDX-License-Identifier: Apache-2.0
#include "engine/store/meta_store.h"

#include <lmdb.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/failpoints.h"
#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/store/file.h"
#include "engine/store/format.h"
#include "engine/store/meta_environment.h"
#include "engine/store/meta_tables.h"

namespace cowshed::engine {
namespace {

constexpr size_t kMaxKeyBytes = 500;

// Values above this leave the leaf for an overflow page: half a page less its header, two bytes of
// index and eight of node header.
constexpr size_t kMaxLeafNodeBytes = 2030;

std::string_view ToView(const MDB_val& value) {
  return {static_cast<const char*>(value.mv_data), value.mv_size};
}

MDB_val ToVal(std::string_view bytes) { return {bytes.size(), const_cast<char*>(bytes.data())}; }

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

struct MetaStore::Impl : Environment {
  using Environment::Environment;
};

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
  int rc = MDB_SUCCESS;
  if (status.ok()) {
    rc = mdb_txn_commit(std::exchange(impl_->txn, nullptr));
    status = LmdbStatus(rc, "commit");
  }
  // LMDB meets these while it still looks for pages, before it writes the first.
  if (rc == MDB_MAP_FULL || rc == MDB_TXN_FULL) return status;
  if (absl::IsResourceExhausted(status)) status = absl::UnavailableError(status.message());
  if (status.ok()) status = Failpoints::Hit("meta.after_commit");
  if (!status.ok()) impl_->environment->failed.store(true);
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
  if (!exists) RETURN_IF_ERROR(Environment::Make(directory, options));
  std::unique_ptr<MetaStore> store(new MetaStore);
  store->impl_ = std::make_unique<Impl>(options, read_only);
  RETURN_IF_ERROR(store->impl_->Open(directory, create));
  if (create) {
    // The new names are durable once their directories are; perhaps an earlier open did not get
    // that far.
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
  const uint64_t map_bytes = impl_->options.map_bytes;
  const uint64_t needed_bytes = impl_->UsedEndBytes() + pages * impl_->page_bytes;
  if (needed_bytes > map_bytes && !impl_->Fits(map_bytes, pages * impl_->page_bytes)) {
    return absl::ResourceExhaustedError(
        StrCat("metadata store: ", pages, " pages do not fit in its map of ", map_bytes, " bytes"));
  }
  const uint64_t wanted_bytes = std::min(needed_bytes + impl_->options.reserve_bytes, map_bytes);
  int descriptor = -1;
  RETURN_IF_ERROR(LmdbStatus(mdb_env_get_fd(impl_->env, &descriptor), "descriptor"));
  absl::Status status;
  if (wanted_bytes > impl_->ahead.allocated_bytes()) {
    status = impl_->ahead.Allocate(
        descriptor, std::min((wanted_bytes + kStepBytes - 1) / kStepBytes * kStepBytes, map_bytes));
  }
  if (!impl_->failed.load()) impl_->ahead.WriteZeros(descriptor, impl_->UsedEndBytes());
  return impl_->ahead.allocated_bytes() >= wanted_bytes ? absl::OkStatus() : status;
}

bool MetaStore::FitsAllocated(uint64_t pages) const {
  return impl_->Fits(impl_->ahead.allocated_bytes(), pages * impl_->page_bytes);
}

bool MetaStore::FitsMap(uint64_t pages) const {
  return impl_->Fits(impl_->options.map_bytes,
                     pages * impl_->page_bytes + impl_->options.reserve_bytes);
}

absl::Status MetaStore::ClearDeadReaders() {
  int dead_readers = 0;
  return LmdbStatus(mdb_reader_check(impl_->env, &dead_readers), "reader check");
}

uint64_t MetaStore::headroom_bytes() const {
  const uint64_t allocated_bytes = impl_->ahead.allocated_bytes();
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

// SPDX-License-Identifier: Apache-2.0
#include "engine/store/meta_environment.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/store/meta_tables.h"

namespace cowshed::engine {

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

namespace {

// Makes or finds every table; their handles then serve all transactions.
absl::Status OpenTables(MDB_env* env, bool create, TableHandles& tables) {
  MDB_txn* txn = nullptr;
  RETURN_IF_ERROR(LmdbStatus(mdb_txn_begin(env, nullptr, create ? 0 : MDB_RDONLY, &txn), "begin"));
  for (size_t i = 1; i < kTableCount; ++i) {
    const int rc =
        mdb_dbi_open(txn, TableName(static_cast<Table>(i)), create ? MDB_CREATE : 0, &tables[i]);
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

// LMDB tells its readers, those of other processes included, only as lines of text: process, thread
// and transaction, the last a dash for a slot that is idle.
int FindOldest(const char* line, void* oldest) {
  size_t txn = 0;
  if (std::sscanf(line, "%*d %*x %zu", &txn) == 1) {
    *static_cast<size_t*>(oldest) = std::min(*static_cast<size_t*>(oldest), txn);
  }
  return 0;
}

}  // namespace

Environment::~Environment() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  COWSHED_CHECK(active.empty(), "transactions end before their store");
  for (MDB_txn* const txn : parked) mdb_txn_abort(txn);
  if (reading_again != nullptr) mdb_env_close(reading_again);
  if (env != nullptr) mdb_env_close(env);
}

absl::Status Environment::Open(const std::string& directory, bool create) {
  path = directory;
  RETURN_IF_ERROR(LmdbStatus(mdb_env_create(&env), "create"));
  RETURN_IF_ERROR(LmdbStatus(mdb_env_set_maxdbs(env, kTableCount), "set tables"));
  RETURN_IF_ERROR(LmdbStatus(mdb_env_set_mapsize(env, options.map_bytes), "set map size"));
  RETURN_IF_ERROR(LmdbStatus(mdb_env_set_maxreaders(env, options.max_readers), "set readers"));
  const unsigned flags = MDB_NOTLS | (read_only ? MDB_RDONLY : 0);
  RETURN_IF_ERROR(
      LmdbStatus(mdb_env_open(env, directory.c_str(), flags, 0600), StrCat("open ", directory)));
  MDB_stat stat{};
  RETURN_IF_ERROR(LmdbStatus(mdb_env_stat(env, &stat), "stat"));
  page_bytes = stat.ms_psize;
  int dead_readers = 0;
  RETURN_IF_ERROR(LmdbStatus(mdb_reader_check(env, &dead_readers), "reader check"));
  return OpenTables(env, create, tables);
}

absl::Status Environment::Make(const std::string& directory, const MetaStoreOptions& options) {
  const std::filesystem::path aside = directory + "/new";
  std::error_code error;
  std::filesystem::remove_all(aside, error);
  if (!error) std::filesystem::create_directories(aside, error);
  if (!error) {
    Environment environment(options, /*only_reads=*/false);
    RETURN_IF_ERROR(environment.Open(aside.string(), /*create=*/true));
  }
  if (!error) std::filesystem::rename(aside / "data.mdb", directory + "/data.mdb", error);
  if (error) {
    return absl::ErrnoToStatus(error.value(), View(StrCat("cannot make ", directory)));
  }
  std::filesystem::remove_all(aside, error);  // If it stays, nothing depends on it.
  return absl::OkStatus();
}

uint64_t Environment::UsedEndBytes() const {
  MDB_envinfo info{};
  mdb_env_info(env, &info);
  return (info.me_last_pgno + 1) * page_bytes;
}

absl::StatusOr<MDB_txn*> Environment::TakeReader() {
  MDB_txn* txn = nullptr;
  MDB_env* source = nullptr;
  {
    const MutexLock lock(readers_mutex);
    source = reading_again != nullptr ? reading_again : env;
    if (!parked.empty()) {
      txn = parked.back();
      parked.pop_back();
    }
  }
  int rc = txn != nullptr ? mdb_txn_renew(txn) : mdb_txn_begin(source, nullptr, MDB_RDONLY, &txn);
  if (rc == MDB_PANIC) {
    mdb_txn_abort(std::exchange(txn, nullptr));
    ASSIGN_OR_RETURN(source, ReadAgain());
    rc = mdb_txn_begin(source, nullptr, MDB_RDONLY, &txn);
  }
  if (rc != MDB_SUCCESS) {
    mdb_txn_abort(txn);  // Of a fresh one that failed, null: allowed.
    return LmdbStatus(rc, "begin read");
  }
  const MutexLock lock(readers_mutex);
  ++active[mdb_txn_id(txn)];
  return txn;
}

// LMDB's locks protect readers from a writer: there is none any more, so this does without them.
absl::StatusOr<MDB_env*> Environment::ReadAgain() {
  const MutexLock lock(readers_mutex);
  if (reading_again != nullptr) return reading_again;
  for (MDB_txn* const txn : std::exchange(parked, {})) mdb_txn_abort(txn);
  MDB_env* again = nullptr;
  absl::Status status = LmdbStatus(mdb_env_create(&again), "create");
  if (status.ok()) {
    mdb_env_set_maxdbs(again, kTableCount);
    mdb_env_set_mapsize(again, options.map_bytes);
    const unsigned flags = MDB_NOTLS | MDB_RDONLY | MDB_NOLOCK;
    status = LmdbStatus(mdb_env_open(again, path.c_str(), flags, 0600), "open again");
  }
  // Opened in the same order, the tables have the same handles.
  TableHandles same{};
  if (status.ok()) status = OpenTables(again, /*create=*/false, same);
  if (status.ok() && same != tables) status = absl::InternalError("metadata store: other handles");
  if (!status.ok()) {
    mdb_env_close(again);
    return status;
  }
  return reading_again = again;
}

void Environment::ParkReader(MDB_txn* txn) {
  const uint64_t id = mdb_txn_id(txn);
  mdb_txn_reset(txn);
  const MutexLock lock(readers_mutex);
  const auto it = active.find(id);
  if (--it->second == 0) {
    active.erase(it);
  }
  if (reading_again != nullptr && mdb_txn_env(txn) != reading_again) {
    mdb_txn_abort(txn);
  } else {
    parked.push_back(txn);
  }
}

// LMDB takes pages that were freed before the oldest reader began; each record of its free list
// (database 0) begins with how many pages it holds. Counts no further than it needs to.
bool Environment::Fits(uint64_t limit_bytes, uint64_t bytes) {
  const uint64_t used_end_bytes = UsedEndBytes();
  uint64_t room_bytes = limit_bytes > used_end_bytes ? limit_bytes - used_end_bytes : 0;
  if (room_bytes >= bytes) return true;
  const absl::StatusOr<MDB_txn*> txn = TakeReader();
  if (!txn.ok()) return false;
  size_t oldest = mdb_txn_id(*txn);
  mdb_reader_list(env, FindOldest, &oldest);
  MDB_cursor* cursor = nullptr;
  MDB_val key{};
  MDB_val pages{};
  if (mdb_cursor_open(*txn, 0, &cursor) == MDB_SUCCESS) {
    while (room_bytes < bytes && mdb_cursor_get(cursor, &key, &pages, MDB_NEXT) == MDB_SUCCESS) {
      size_t freed_in = 0;
      size_t count = 0;
      std::memcpy(&freed_in, key.mv_data, sizeof(freed_in));
      std::memcpy(&count, pages.mv_data, sizeof(count));
      if (freed_in >= oldest) break;
      room_bytes += count * page_bytes;
    }
    mdb_cursor_close(cursor);
  }
  ParkReader(*txn);
  return room_bytes >= bytes;
}

}  // namespace cowshed::engine

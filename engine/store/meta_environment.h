// SPDX-License-Identifier: Apache-2.0
//
// The LMDB environment below the metadata store: how it is made, opened, read and filled. Only
// meta_store.cc uses it.
//
// Making      A new store is made aside and then takes its place: there is a whole one or none.
// Readers     A reader's slot is parked for the next one. Once LMDB could not write a meta page it
//             lets nobody in any more, readers included; what is committed is there all the same,
//             and is then read through a second environment.
// Space       Pages are taken past the last used one, or from those that were freed before the
//             oldest reader began.
#pragma once

#include <lmdb.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/mutex.h"
#include "engine/store/meta_store.h"
#include "engine/store/space_ahead.h"

namespace cowshed::engine {

inline constexpr size_t kTableCount = static_cast<size_t>(Table::kCount);
using TableHandles = std::array<MDB_dbi, kTableCount>;

// What LMDB says, as a Status that names the store.
absl::Status LmdbStatus(int rc, std::string_view what);

// Threads     Thread-safe; a transaction is one thread's at a time.
// Ownership   Owns the environment and the parked readers; all transactions end before it.
struct Environment {
  Environment(const MetaStoreOptions& the_options, bool only_reads)
      : options(the_options), read_only(only_reads) {}
  ~Environment();
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

  // Opens what is in `directory`; `create` makes tables that are missing.
  absl::Status Open(const std::string& directory, bool create);
  // Makes a store where there is none.
  static absl::Status Make(const std::string& directory, const MetaStoreOptions& options);

  MDB_dbi table(Table which) const { return tables[static_cast<size_t>(which)]; }
  // End of the last page that is in use or on the free list of LMDB.
  uint64_t UsedEndBytes() const;
  // A commit of `bytes` ends before `limit_bytes`, or finds the rest in free pages.
  bool Fits(uint64_t limit_bytes, uint64_t bytes);
  absl::StatusOr<MDB_txn*> TakeReader();
  void ParkReader(MDB_txn* txn);

  const MetaStoreOptions options;
  const bool read_only;
  MDB_env* env = nullptr;
  TableHandles tables{};
  uint64_t page_bytes = 0;
  std::string path;                 // of the directory
  std::atomic<bool> failed{false};  // I7

  Mutex growth_mutex{LockRank::kMetaGrowth};  // held while the file is made to grow
  SpaceAhead ahead;

  mutable Mutex readers_mutex{LockRank::kMetaReaders};
  MDB_env* reading_again ABSL_GUARDED_BY(readers_mutex) = nullptr;
  std::vector<MDB_txn*> parked ABSL_GUARDED_BY(readers_mutex);
  std::map<uint64_t, uint32_t> active ABSL_GUARDED_BY(readers_mutex);  // snapshot id -> readers

 private:
  absl::StatusOr<MDB_env*> ReadAgain();
};

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// A pool with everything in it, ways to break its files, and what a broken or repaired one may
// still show.
//
// Threads     Externally synchronised.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/pool.h"
#include "engine/store/meta_store.h"
#include "tests/support/await.h"
#include "tests/support/pool_script.h"
#include "tests/support/temp_pool.h"

namespace cowshed::engine {

// Snapshots, clones of snapshots and of heads, promotion, overwrites, discards and trims; holds,
// deferral, an undelete window, jobs that wait, a condense under way.
void FillPool(TempPool& pool);
// No background but what is drained, a small file, low bounds.
TempPool::Tweak DamageOptions();

// A copy of a closed pool's directory, its holes kept.
void CopyPool(const std::string& from, const std::string& to);

// Writes durably to the beginning of each of `names`, and makes `to` the pool as a crash would
// leave it then: the intent log alone has the writes. `image` gets them, too.
void CopyWithDurableWrites(PoolOptions options, const std::string& to,
                           const std::vector<std::string>& names, PoolImage* image);

// Where the values of a metadata file lie.
struct ValuePlace {
  std::string table;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};
std::vector<ValuePlace> FindValues(const std::string& pool_directory);
void FlipBits(const std::string& path, uint64_t offset, uint8_t mask);
// Overwrites bytes of a file; returns what was there.
std::string Overwrite(const std::string& path, uint64_t offset, const std::string& bytes);
// Changes the metadata of a closed pool.
void ChangeMeta(const std::string& pool_directory,
                const std::function<void(WriteTxn& txn)>& change);

// Waits for a lifecycle call on a pool that is no TempPool.
template <typename Args>
absl::StatusOr<Outcome> CallPool(Pool& pool, void (Pool::*verb)(Args, Idempotency, OutcomeCallback),
                                 Args args) {
  Await<absl::StatusOr<Outcome>> done;
  (pool.*verb)(std::move(args), std::nullopt, done.Callback());
  return done.Wait();
}

// What reading everything that `expected` names gave: bytes that are not as expected, and blocks
// that are DATA_LOSS. A name that is missing is passed over.
struct ReadResult {
  std::string wrong;            // for people; empty: none
  std::set<std::string> lossy;  // names with blocks that cannot be read
  std::set<std::string> missing;
};
ReadResult ReadAgain(Pool& pool, const PoolImage& expected);

// Destroys everything a pool holds, held or not.
absl::Status DestroyAll(Pool& pool);

}  // namespace cowshed::engine

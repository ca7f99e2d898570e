// SPDX-License-Identifier: Apache-2.0
#include "engine/meta_copier.h"

#include <algorithm>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/store/lmdb_pages.h"

namespace cowshed::engine {
namespace {

constexpr int64_t kMinuteMs = 60000;

}  // namespace

MetaCopier::MetaCopier(PoolParts& parts, TxgManager& txgs) : parts_(parts), txgs_(txgs) {
  const int64_t interval_ms = parts_.options.meta_copy_interval.count();
  next_ms_ = parts_.options.clock_ms() + std::min(interval_ms, kMinuteMs);
  const std::vector<MetaCopy> copies = ListMetaCopies(parts_.options.directory);
  if (copies.empty()) return;
  Show(copies.front());
  copied_txg_ = copies.front().txg;
  next_ms_ = std::min(copies.front().time_ms, parts_.options.clock_ms()) + interval_ms;
}

absl::StatusOr<bool> MetaCopier::Step() {
  const int64_t interval_ms = parts_.options.meta_copy_interval.count();
  const int64_t now_ms = parts_.options.clock_ms();
  const Txg txg = txgs_.committed_txg();
  if (interval_ms == 0 || now_ms < next_ms_ || txg == copied_txg_ || !txgs_.health().ok()) {
    return false;
  }
  const absl::StatusOr<MetaCopy> copy = CopyMeta(parts_.meta, parts_.options.directory, txg,
                                                 parts_.options.meta_copy_bytes_per_second);
  if (!copy.ok()) {
    ++parts_.stats.meta_copy_failures;
    next_ms_ = now_ms + std::min(interval_ms, kMinuteMs);
    return copy.status();
  }
  ++parts_.stats.meta_copies;
  Show(*copy);
  copied_txg_ = txg;
  next_ms_ = now_ms + interval_ms;
  return false;
}

void MetaCopier::Show(const MetaCopy& copy) {
  parts_.stats.meta_copy_ms = static_cast<uint64_t>(copy.time_ms);
  parts_.stats.meta_copy_bytes = copy.bytes;
}

absl::Status CheckMetaRoots(const std::string& pool_directory) {
  const absl::Status status = CheckLmdbRoots(pool_directory + "/meta/data.mdb");
  return absl::IsDataLoss(status)
             ? absl::DataLossError(StrCat(StdView(status.message()),
                                          "; `cowshed check --repair` can bring the pool back"))
             : status;
}

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// Keeps copies of the metadata in the pool (store/meta_copy.h): one whenever the newest is older
// than `meta_copy_interval` and a txg has been committed since. A pool without any gets its first
// one a minute after it was opened, or after the interval if that is shorter.
//
// Threads     One thread at a time.
// Cost        Between copies: a comparison. The gauges are read from the directory once, at the
//             first step.
#pragma once

#include "absl/status/statusor.h"
#include "engine/store/meta_copy.h"
#include "engine/txg.h"

namespace cowshed::engine {

class MetaCopier {
 public:
  MetaCopier(PoolParts& parts, TxgManager& txgs);
  // Never more than one copy, so never true. A copy that fails is counted, and tried again after a
  // minute.
  absl::StatusOr<bool> Step();

 private:
  void Show(const MetaCopy& copy);

  PoolParts& parts_;
  TxgManager& txgs_;
  int64_t next_ms_ = 0;
  Txg copied_txg_ = 0;
};

// DATA_LOSS if what LMDB reads first of a pool's metadata does not hold together, with advice.
absl::Status CheckMetaRoots(const std::string& pool_directory);

}  // namespace cowshed::engine

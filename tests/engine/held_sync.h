// SPDX-License-Identifier: Apache-2.0
//
// Holds the txg thread in the middle of a sync, so that a test decides what the next txg consists
// of: everything submitted while one is held shares that txg.
//
//   HeldSync held(pool);
//   pool->CreateDataset(...);  // waits for the next txg
//   held.Release();
//
// Threads     Externally synchronised. One at a time: the failpoint is the process's.
// Assumes     A pool without background work, whose txgs could be held instead.
// Ownership   Borrows the pool. A held pool must be released before a call is waited for.
#pragma once

#include <string>
#include <thread>
#include <utility>

#include "engine/base/failpoints.h"
#include "tests/support/temp_pool.h"
#include "tests/support/testing.h"

namespace cowshed::engine {

class HeldSync {
 public:
  // Starts a txg of its own (it creates the dataset `pilot`) and holds it before its fsync.
  explicit HeldSync(TempPool& pool, const std::string& pilot = "pilot") {
    EXPECT_OK(Failpoints::Arm("sync.before_fsync=pause"));
    CreateDatasetArgs args;
    args.name = pilot;
    args.size_bytes = 4096;
    pool->CreateDataset(std::move(args), std::nullopt, pilot_.Callback());
    while (Failpoints::Hits("sync.before_fsync") == 0 && !pilot_.Ready()) {
      std::this_thread::yield();
    }
    EXPECT_FALSE(pilot_.Ready()) << "the pool takes no changes";
  }
  ~HeldSync() { Release(); }
  HeldSync(const HeldSync&) = delete;
  HeldSync& operator=(const HeldSync&) = delete;

  // Lets the held txg commit. Returns its number.
  Txg Release() {
    if (txg_ == 0) {
      Failpoints::Disarm("sync.before_fsync");
      txg_ = ValueOf(pilot_.Wait()).txg;
    }
    return txg_;
  }

 private:
  Await<absl::StatusOr<Outcome>> pilot_;
  Txg txg_ = 0;
};

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// An allocator on a metadata store of its own, and txgs to use it in.
//
// Threads     Externally synchronised.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "engine/store/allocator.h"
#include "engine/store/meta_store.h"
#include "engine/store/region_records.h"
#include "tests/support/testing.h"

namespace cowshed::engine {

class AllocatorFixture {
 public:
  explicit AllocatorFixture(const AllocatorOptions& options = {}) : options_(options) {
    meta_ = ValueOf(MetaStore::Open(directory_.Path("meta"), true, false,
                                    {.map_bytes = uint64_t{1} << 32, .reserve_bytes = 0}));
  }

  void Create(uint64_t capacity_sectors) {
    allocator_ = std::make_unique<Allocator>(options_);
    const auto txn = ValueOf(meta_->BeginWrite());
    ASSERT_OK(allocator_->Create(*txn, capacity_sectors));
    ASSERT_OK(txn->Commit());
  }
  // As after a restart.
  void Reopen() {
    const uint64_t capacity_sectors = allocator_->capacity_sectors();
    allocator_ = std::make_unique<Allocator>(options_);
    Reload(capacity_sectors);
  }
  void Reload(uint64_t capacity_sectors) {
    const auto txn = ValueOf(meta_->BeginRead());
    ASSERT_OK(allocator_->Reload(*txn, capacity_sectors));
  }

  // Runs `body(txn, txg)` and commits it with what the allocator has to write.
  template <typename Body>
  void InTxg(Body body) {
    const auto txn = ValueOf(meta_->BeginWrite());
    ++txg_;
    body(*txn, txg_);
    ASSERT_OK(allocator_->WriteBack(*txn, txg_));
    ASSERT_OK(txn->Commit());
  }
  // Runs `body` and aborts: with WriteBack or without it.
  template <typename Body>
  void InFailedTxg(bool write_back, Body body) {
    const uint64_t capacity_sectors = allocator_->capacity_sectors();
    {
      const auto txn = ValueOf(meta_->BeginWrite());
      ++txg_;
      body(*txn, txg_);
      if (write_back) {
        ASSERT_OK(allocator_->WriteBack(*txn, txg_));
      }
    }
    Reload(capacity_sectors);
  }

  Run Allocate(uint32_t sectors) {
    Run run;
    InTxg([&](WriteTxn& txn, Txg txg) {
      run = ValueOf(allocator_->Allocate(txn, sectors, BlockKind::kData, txg));
    });
    return run;
  }
  void Free(const std::vector<Run>& runs) {
    InTxg([&](WriteTxn& txn, Txg txg) { EXPECT_OK(allocator_->Free(txn, txg, runs)); });
  }
  // Flushes everything logged so far; returns the sectors it freed.
  uint64_t Flush(uint32_t max_regions = 1000, std::vector<Run>* to_punch = nullptr) {
    uint64_t freed = 0;
    InTxg([&](WriteTxn& txn, Txg txg) {
      freed = ValueOf(allocator_->FlushRegions(txn, txg - 1, max_regions, to_punch));
    });
    return freed;
  }
  uint64_t Records(Table table) {
    const auto txn = ValueOf(meta_->BeginRead());
    MetaCursor cursor(*txn, table);
    uint64_t records = 0;
    for (cursor.Seek(""); cursor.valid(); cursor.Next()) {
      ++records;
    }
    EXPECT_OK(cursor.status());
    return records;
  }
  // What Enumerate shows: runs that are not free, and runs in the free log.
  std::pair<std::vector<Run>, std::vector<Run>> Enumerate() {
    const auto txn = ValueOf(meta_->BeginRead());
    std::pair<std::vector<Run>, std::vector<Run>> runs;
    EXPECT_OK(Allocator::Enumerate(*txn, allocator_->capacity_sectors(),
                                   [&runs](const Run& run, bool in_free_log) {
                                     (in_free_log ? runs.second : runs.first).push_back(run);
                                   }));
    return runs;
  }

  Allocator& allocator() { return *allocator_; }
  MetaStore& meta() { return *meta_; }
  Txg txg() const { return txg_; }

 private:
  AllocatorOptions options_;
  TempDir directory_;
  std::unique_ptr<MetaStore> meta_;
  std::unique_ptr<Allocator> allocator_;
  Txg txg_ = 0;
};

}  // namespace cowshed::engine

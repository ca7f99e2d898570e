// SPDX-License-Identifier: Apache-2.0
//
// A metadata store in a temporary directory with one write transaction open that is never
// committed, and random numbers that can be repeated.
//
// Threads     Externally synchronised.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "engine/store/format.h"
#include "engine/store/id_source.h"
#include "engine/store/meta_store.h"
#include "tests/support/testing.h"

namespace cowshed::engine {

// Within a fixture the name Run is taken by GoogleTest: there it is engine::Run, or these.
using Runs = std::vector<Run>;

class Random {
 public:
  explicit Random(uint64_t seed) : generator_(seed) {}
  // In [0, bound).
  uint64_t Below(uint64_t bound) { return generator_() % bound; }
  uint64_t Between(uint64_t first, uint64_t last) { return first + Below(last - first + 1); }
  bool OneIn(uint64_t n) { return Below(n) == 0; }
  std::mt19937_64& generator() { return generator_; }

 private:
  std::mt19937_64 generator_;
};

class MetaFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    const MetaStoreOptions options = {
        .map_bytes = uint64_t{1} << 32, .reserve_bytes = 0, .max_readers = 16};
    meta_ = ValueOf(MetaStore::Open(directory_.Path("meta"), /*create=*/true,
                                    /*read_only=*/false, options));
    Rewind();
  }
  void TearDown() override { txn_.reset(); }

  // Starts over with an empty store.
  void Rewind() {
    txn_.reset();
    txn_ = ValueOf(meta_->BeginWrite());
  }

  TempDir directory_;
  std::unique_ptr<MetaStore> meta_;
  std::unique_ptr<WriteTxn> txn_;
  IdSource ids_;
};

}  // namespace cowshed::engine

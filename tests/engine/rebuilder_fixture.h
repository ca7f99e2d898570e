// SPDX-License-Identifier: Apache-2.0
//
// A pool without background work, a lineage in it, and the means to lose a livelist and to stop its
// rebuild anywhere.
//
// Threads     Externally synchronised.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "engine/base/failpoints.h"
#include "tests/support/temp_pool.h"
#include "tests/support/testing.h"

namespace cowshed::engine {

inline constexpr uint64_t kBlock = 4096;

class RebuilderTest : public ::testing::Test {
 protected:
  RebuilderTest()
      : pool_([](PoolOptions* options) {
          options->background_work = false;
          options->rebuild_bite_pointers = 20;
          options->reclaim_bite_runs = 7;
        }) {}
  void SetUp() override { empty_bytes_ = pool_->space().allocated_bytes; }
  void TearDown() override { Failpoints::DisarmAll(); }

  static std::string Fill(char byte, uint64_t blocks) { return std::string(blocks * kBlock, byte); }
  void WriteAndFlush(const std::string& name, uint64_t block, const std::string& data) {
    ASSERT_OK(pool_.Write(name, block * kBlock, data));
    ASSERT_OK(pool_.Flush(name).status());
  }
  // d with three snapshots and blocks born and killed between them; c, a clone of d@2.
  void MakeLineage() {
    ASSERT_OK(pool_.Create("d").status());
    WriteAndFlush("d", 0, Fill('a', 60));
    WriteAndFlush("d", 30, Fill('A', 5));
    ASSERT_OK(pool_.Snapshot("d@1").status());
    WriteAndFlush("d", 20, Fill('b', 60));
    ASSERT_OK(pool_.Snapshot("d@2").status());
    ASSERT_OK(pool_.Discard("d", 0, 10 * kBlock));
    WriteAndFlush("d", 40, Fill('c', 10));
    ASSERT_OK(pool_.Snapshot("d@3").status());
    WriteAndFlush("d", 45, Fill('d', 30));
    ASSERT_OK(pool_.Clone("d@2", "c").status());
    WriteAndFlush("c", 5, Fill('e', 20));
  }
  void ExpectContent(const std::string& name) {
    std::string want = Fill('\0', 10) + Fill('a', 10) + Fill('b', 60);
    want.replace(40 * kBlock, 10 * kBlock, Fill('c', 10));
    want.replace(45 * kBlock, 30 * kBlock, Fill('d', 30));
    EXPECT_TRUE(ValueOf(pool_.Read(name, 0, 80 * kBlock)) == want);
  }
  // The list of `name` is found damaged by the write of one block.
  void Drop(const std::string& name, DropReason reason = DropReason::kDamaged) {
    const std::string point =
        reason == DropReason::kDamaged ? "livelist.damaged" : "livelist.costly";
    ASSERT_OK(Failpoints::Arm(point + "=true:count=1"));
    WriteAndFlush(name, 100, Fill('x', 1));
    EXPECT_EQ(Failpoints::Hits(point), 1u);
    Failpoints::Disarm(point);
    EXPECT_EQ(StateOf(name), LivelistState::kDropped);
  }
  LivelistInfo ListOf(const std::string& name) { return ValueOf(pool_->GetLivelist(name, 0, 100)); }
  LivelistState StateOf(const std::string& name) { return ListOf(name).state; }
  void ExpectWhole(const std::string& name) {
    const LivelistInfo list = ListOf(name);
    EXPECT_EQ(list.state, LivelistState::kWhole);
    EXPECT_EQ(list.total.bytes, ValueOf(pool_->GetDataset(name)).used_bytes);
  }
  const PoolStats& stats() { return pool_->stats(); }
  uint64_t Rebuilds(RebuildResult result) { return stats().livelist_rebuilds[result]; }
  void ExpectSound() {
    const CheckReport report = ValueOf(pool_->Check());
    EXPECT_TRUE(report.ok()) << report.findings[0].name << ": " << report.findings[0].message;
  }
  void ExpectEmpty() {
    pool_.ExpectClean();
    EXPECT_EQ(pool_->space().allocated_bytes, empty_bytes_);
    EXPECT_EQ(pool_->space().freeing_bytes, 0u);
    EXPECT_EQ(stats().livelist_entries, 0u);
    EXPECT_EQ(stats().livelist_sublists, 0u);
  }
  // Lets the rebuild run until it has passed `place` that often, then stand still.
  void StopAt(const std::string& place, int passes = 0) {
    ASSERT_OK(Failpoints::Arm(place + "=error:skip=" + std::to_string(passes)));
    EXPECT_CODE(pool_->DrainBackground(), kInternal);
  }

  TempPool pool_;
  uint64_t empty_bytes_ = 0;
};

}  // namespace cowshed::engine

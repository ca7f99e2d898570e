// SPDX-License-Identifier: Apache-2.0
//
// The scrub: everything once, damage named, a place that survives restarts, and manners.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/base/failpoints.h"
#include "engine/names.h"
#include "engine/store/records.h"
#include "tests/support/temp_pool.h"
#include "tests/support/testing.h"

namespace cowshed::engine {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kBlock = 4096;

// A block that differs from every other one.
std::string Block(uint64_t number) {
  std::string block(kBlock, '\0');
  for (uint64_t i = 0; i < kBlock; i += 8) {
    const uint64_t word = number * 1000003 + i;
    block.replace(i, 8, reinterpret_cast<const char*>(&word), 8);
  }
  return block;
}

class ScrubTest : public ::testing::Test {
 protected:
  ~ScrubTest() override { Failpoints::DisarmAll(); }

  // Blocks [first, first + count) with the numbers from `number` on.
  void Write(const std::string& name, uint64_t first, uint64_t count, uint64_t number) {
    for (uint64_t i = 0; i < count; ++i) {
      ASSERT_OK(pool_.Write(name, (first + i) * kBlock, Block(number + i)));
    }
    ASSERT_OK(pool_.Flush(name).status());
  }
  // d with two snapshots, a clone of the first that has a snapshot, and a clone of that.
  void MakeLineage() {
    ASSERT_OK(pool_.Create("d").status());
    Write("d", 0, 200, 1000);
    ASSERT_OK(pool_.Snapshot("d@1").status());
    Write("d", 50, 50, 2000);
    ASSERT_OK(pool_.Snapshot("d@2").status());
    Write("d", 0, 20, 3000);
    ASSERT_OK(pool_.Clone("d@1", "c").status());
    Write("c", 100, 30, 4000);
    ASSERT_OK(pool_.Snapshot("c@x").status());
    ASSERT_OK(pool_.Clone("c@x", "e").status());
    Write("e", 10, 5, 5000);
  }
  OperationInfo Start(std::optional<uint64_t> rate = std::nullopt) {
    return *ValueOf(pool_.Call(&Pool::StartScrub, StartScrubArgs{rate})).operation;
  }
  OperationInfo Get(const OperationInfo& operation) {
    return ValueOf(pool_->GetOperation(operation.name));
  }
  OperationInfo Finish(const OperationInfo& operation) {
    EXPECT_OK(pool_->DrainBackground());
    return Get(operation);
  }
  // Flips bits of a block in the file, while the pool is open: nothing caches data.
  void DamageBlock(uint64_t number) {
    const std::string block = Block(number);
    std::fstream file(pool_.directory() + "/blocks",
                      std::ios::binary | std::ios::in | std::ios::out);
    std::string sector(kSectorBytes, '\0');
    while (file.read(sector.data(), kSectorBytes)) {
      if (sector != block) continue;
      file.seekp(static_cast<std::streamoff>(file.tellg()) - 100);
      file.put(static_cast<char>(block[kSectorBytes - 100] ^ 4));
      return;
    }
    ADD_FAILURE() << "no block " << number;
  }

  TempPool pool_{[](PoolOptions* options) {
    options->background_work = false;
    options->capacity_bytes = 16 << 20;
    options->scrub_bite_bytes = 40 * kBlock;
  }};
};

TEST_F(ScrubTest, ReadsEveryReferencedSectorOnce) {
  MakeLineage();
  ASSERT_OK(pool_->DrainBackground());
  const OperationInfo begun = Start();
  EXPECT_EQ(begun.kind, OperationKind::kScrub);
  EXPECT_FALSE(begun.done());
  EXPECT_EQ(pool_->stats().scrub_running, 1u);
  const OperationInfo done = Finish(begun);
  EXPECT_EQ(done.state, OperationState::kSucceeded);
  EXPECT_EQ(done.errors, 0u);
  const uint64_t referenced_bytes = ValueOf(pool_->Check()).referenced_bytes;
  EXPECT_EQ(done.done_bytes, referenced_bytes);
  EXPECT_EQ(done.total_bytes, referenced_bytes) << "what it planned to read";
  EXPECT_EQ(pool_->stats().scrub_running, 0u);
  EXPECT_EQ(pool_->stats().scrub_read_bytes, referenced_bytes);
  EXPECT_EQ(pool_->stats().scrub_finish_ms, static_cast<uint64_t>(pool_.now_ms()));
}

TEST_F(ScrubTest, AWalkThatForgetsSnapshotsReadsLess) {
  MakeLineage();
  ASSERT_OK(pool_->DrainBackground());
  ASSERT_OK(Failpoints::Arm("mutate.scrub_skips_snapshots=true"));
  EXPECT_LT(Finish(Start()).done_bytes, ValueOf(pool_->Check()).referenced_bytes);
}

TEST_F(ScrubTest, NamesTheDamagedBlocksAndGoesOn) {
  MakeLineage();
  DamageBlock(1060);  // of d@1 and c: d has overwritten it
  DamageBlock(3005);  // of d alone
  DamageBlock(4003);  // of c@x, c and e
  const OperationInfo done = Finish(Start());
  EXPECT_EQ(done.state, OperationState::kSucceeded);
  EXPECT_EQ(done.errors, 3u);
  ASSERT_EQ(done.damaged.size(), 3u);
  EXPECT_EQ(done.damaged[0].name, "d@1");
  EXPECT_EQ(done.damaged[0].first_block, 60u);
  EXPECT_EQ(done.damaged[0].block_count, 1u);
  EXPECT_FALSE(done.damaged[0].node);
  EXPECT_EQ(done.damaged[1].name, "c@x");
  EXPECT_EQ(done.damaged[1].first_block, 103u);
  EXPECT_EQ(done.damaged[2].name, "d");
  EXPECT_EQ(done.damaged[2].first_block, 5u);
  EXPECT_EQ(pool_->stats().scrub_errors, 3u);
  // Names are those of now; what has been destroyed has none.
  ASSERT_OK(pool_.Rename("c", "f").status());
  ASSERT_OK(pool_.Destroy("d", /*recursive=*/true, /*cascade=*/true).status());
  ASSERT_OK(pool_->DrainBackground());
  EXPECT_EQ(Get(done).damaged[0].name, "");
  pool_.Abandon();
}

TEST_F(ScrubTest, ADamagedNodeCostsWhatIsBelowIt) {
  MakeLineage();
  uint64_t root_address = 0;
  pool_.Damage([&](WriteTxn& txn) {
    const auto id = *ValueOf(Names::Find(txn, "d"));
    root_address = ValueOf(LoadRecord<DatasetRecord>(txn, Key(id))).tree.root.address;
  });
  std::fstream file(pool_.directory() + "/blocks", std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(root_address * kSectorBytes + 7));
  file.put('x');
  file.close();
  const OperationInfo done = Finish(Start());
  EXPECT_EQ(done.errors, 1u);
  ASSERT_EQ(done.damaged.size(), 1u);
  EXPECT_EQ(done.damaged[0].name, "d");
  EXPECT_TRUE(done.damaged[0].node);
  EXPECT_EQ(done.damaged[0].first_block, 0u);
  EXPECT_GT(done.damaged[0].block_count, 128u);
  pool_.Abandon();
}

TEST_F(ScrubTest, KeepsTheFirstTwentyPlacesAndCountsAll) {
  MakeLineage();
  for (uint64_t i = 0; i < 30; ++i) DamageBlock(1000 + i);
  const OperationInfo done = Finish(Start());
  EXPECT_EQ(done.errors, 30u);
  EXPECT_EQ(done.damaged.size(), kMaxDamagedPlaces);
  pool_.Reopen();
  EXPECT_EQ(Get(done).errors, 30u);
  EXPECT_EQ(Get(done).damaged.size(), kMaxDamagedPlaces);
  pool_.Abandon();
}

TEST_F(ScrubTest, GoesOnAfterARestart) {
  MakeLineage();
  ASSERT_OK(pool_->DrainBackground());
  const OperationInfo begun = Start();
  ASSERT_OK(Failpoints::Arm("scrub.bite=error:skip=3"));
  EXPECT_FALSE(pool_->DrainBackground().ok());
  const OperationInfo halfway = Get(begun);
  EXPECT_EQ(halfway.state, OperationState::kRunning);
  EXPECT_GT(halfway.done_bytes, 0u);
  Failpoints::DisarmAll();
  pool_.Crash();
  EXPECT_EQ(Get(begun).done_bytes, halfway.done_bytes);
  const OperationInfo done = Finish(begun);
  EXPECT_EQ(done.state, OperationState::kSucceeded);
  EXPECT_EQ(done.done_bytes, ValueOf(pool_->Check()).referenced_bytes);
  EXPECT_EQ(pool_->stats().scrub_read_bytes, done.done_bytes - halfway.done_bytes)
      << "what had been read before is not read again";
}

TEST_F(ScrubTest, PausesAndGoesOn) {
  MakeLineage();
  ASSERT_OK(pool_->DrainBackground());
  const OperationInfo begun = Start();
  ASSERT_OK(Failpoints::Arm("scrub.bite=error:skip=2"));
  EXPECT_FALSE(pool_->DrainBackground().ok());
  Failpoints::DisarmAll();
  const auto paused = ValueOf(pool_.Call(&Pool::CancelScrub, CancelScrubArgs{.pause = true}));
  EXPECT_EQ(paused.operation->state, OperationState::kPending);
  EXPECT_EQ(pool_->stats().scrub_running, 0u);
  pool_.Reopen();
  const OperationInfo still = Finish(begun);
  EXPECT_EQ(still.state, OperationState::kPending);
  EXPECT_EQ(still.done_bytes, paused.operation->done_bytes);
  EXPECT_EQ(Start().name, begun.name);
  const OperationInfo done = Finish(begun);
  EXPECT_EQ(done.state, OperationState::kSucceeded);
  EXPECT_EQ(done.done_bytes, ValueOf(pool_->Check()).referenced_bytes);
}

TEST_F(ScrubTest, OneThatIsCancelledFailsAndTheNextIsAnother) {
  MakeLineage();
  EXPECT_CODE(pool_.Call(&Pool::CancelScrub, CancelScrubArgs{}), kFailedPrecondition);
  const OperationInfo begun = Start();
  EXPECT_EQ(Start().name, begun.name) << "one at a time";
  ASSERT_OK(pool_.Call(&Pool::CancelScrub, CancelScrubArgs{}).status());
  EXPECT_EQ(Get(begun).state, OperationState::kFailed);
  EXPECT_THAT(Get(begun).error, HasSubstr("cancelled"));
  EXPECT_CODE(pool_.Call(&Pool::CancelScrub, CancelScrubArgs{}), kFailedPrecondition);
  const OperationInfo next = Start();
  EXPECT_NE(next.name, begun.name);
  EXPECT_EQ(Finish(next).state, OperationState::kSucceeded);
}

TEST_F(ScrubTest, KeepsToItsRate) {
  MakeLineage();
  ASSERT_OK(pool_->DrainBackground());
  const auto begin = std::chrono::steady_clock::now();
  const OperationInfo done = Finish(Start(4 << 20));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  // The pause after the last bite, of at most a quarter of a second, is nobody's.
  EXPECT_GT(took.count() + 0.26, static_cast<double>(done.done_bytes) / (4 << 20));
  EXPECT_GT(took.count(), 0.02);
}

TEST_F(ScrubTest, CoversWhatAWindowKeeps) {
  MakeLineage();
  DestroyDatasetsArgs args;
  args.names = {"e"};
  args.reclaim_after_ms = 60000;
  ASSERT_OK(pool_.Call(&Pool::DestroyDatasets, args).status());
  DamageBlock(5002);
  const OperationInfo done = Finish(Start());
  EXPECT_EQ(done.errors, 1u);
  pool_.Abandon();
}

// Between two bites snapshots come and go, clones are made and promoted; a block that was there at
// the begin and is there in the end has been read.
TEST_F(ScrubTest, MissesNothingWhileLineagesChange) {
  const auto change = [this](uint64_t step) {
    const std::string n = std::to_string(step);
    switch (step % 6) {
      case 0:
        ASSERT_OK(pool_.Snapshot("d@n" + n).status());
        return;
      case 1:
        Write("d", step * 7 % 200, 3, 100000 + step * 10);
        return;
      case 2:
        ASSERT_OK(
            pool_.DestroySnapshot(step == 2 ? "d@2" : "d@n" + std::to_string(step - 2)).status());
        return;
      case 3:
        ASSERT_OK(pool_.Snapshot("e@n" + n).status());
        return;
      case 4:
        Write("e", step * 5 % 200, 2, 200000 + step * 10);
        return;
      default:
        if (step == 5) ASSERT_OK(pool_.Promote("c").status());
        return;
    }
  };
  MakeLineage();
  for (uint64_t number : {1005, 1150, 2030, 3010, 4020, 5001}) DamageBlock(number);
  const OperationInfo begun = Start();
  for (uint64_t step = 0; step < 40 && !Get(begun).done(); ++step) {
    ASSERT_OK(Failpoints::Arm("scrub.bite=error:skip=1"));
    (void)pool_->DrainBackground();  // one bite, unless it is done
    change(step);
    Failpoints::DisarmAll();
  }
  const OperationInfo done = Finish(begun);
  EXPECT_EQ(done.state, OperationState::kSucceeded);
  EXPECT_GE(done.errors, 6u);
  std::set<uint64_t> blocks;
  for (const DamagedPlace& place : done.damaged) blocks.insert(place.first_block);
  EXPECT_THAT(blocks, ::testing::ElementsAre(5, 10, 11, 80, 120, 150));
  pool_.Abandon();
}

}  // namespace
}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// Lookup, NextData, Warm, Rewrite and TrimStep. Walk and Diff: block_tree_walk_test.cc.
#include "engine/tree/block_tree.h"

#include <algorithm>

#include "tests/engine/tree/tree_fixture.h"

namespace cowshed::engine {
namespace {

class BlockTreeTest : public TreeFixture {};

TEST_F(BlockTreeTest, HeightIsTheLeastThatSpansTheBlocks) {
  EXPECT_EQ(BlockTree::HeightFor(0), 1);
  EXPECT_EQ(BlockTree::HeightFor(1), 1);
  EXPECT_EQ(BlockTree::HeightFor(128), 1);
  EXPECT_EQ(BlockTree::HeightFor(129), 2);
  EXPECT_EQ(BlockTree::HeightFor(128 * 128), 2);
  EXPECT_EQ(BlockTree::HeightFor(128 * 128 + 1), 3);
  EXPECT_EQ(BlockTree::HeightFor(uint64_t{1} << 52), 8);
}

TEST_F(BlockTreeTest, AnEmptyTreeIsAllHoles) {
  const ModelTree model = NewTree(1000);
  CheckLookup(model, 0, 1000);
  CheckNextData(model);
  EXPECT_OK(tree().Warm(model.state, 0, 1000));
  EXPECT_TRUE(Referenced(model.state).empty());
}

TEST_F(BlockTreeTest, AWriteReplacesThePathAndNothingElse) {
  ModelTree model = NewTree(128 * 128 * 128);
  ASSERT_EQ(model.state.height, 3);
  now_ = 1;
  Rewrite(&model, NewDataAt({5, 300, 128 * 128 + 7}));
  EXPECT_EQ(Referenced(model.state).size(), 3u + 3 + 2 + 1);
  now_ = 2;
  Rewrite(&model, NewDataAt({300}));
  EXPECT_EQ(Referenced(model.state, 1).size(), 1u + 3);  // the block and its path
  CheckLookup(model, 0, 400);
  CheckLookup(model, 128 * 128, 20);
  CheckNextData(model);
}

TEST_F(BlockTreeTest, ASubtreeOfHolesIsAHole) {
  ModelTree model = NewTree(128 * 128);
  now_ = 1;
  Rewrite(&model, NewDataAt({5, 6, 300}));
  now_ = 2;
  Rewrite(&model, {Hole(5), Hole(6)});
  EXPECT_EQ(Referenced(model.state).size(), 1u + 1 + 1);
  now_ = 3;
  Rewrite(&model, {Hole(300)});
  EXPECT_TRUE(model.state.root.is_hole());
}

TEST_F(BlockTreeTest, HolesWhereNothingIsChangeNothing) {
  ModelTree model = NewTree(128 * 128);
  now_ = 1;
  Rewrite(&model, {Hole(5), Hole(20000)});
  EXPECT_TRUE(model.state.root.is_hole());
  Rewrite(&model, NewDataAt({5}));
  const BlockPtr root = model.state.root;
  now_ = 2;
  Rewrite(&model, {Hole(4), Hole(5000), Hole(uint64_t{1} << 40)});
  EXPECT_EQ(model.state.root, root);
  EXPECT_EQ(model.state.height, 2);
}

TEST_F(BlockTreeTest, ATreeGrowsAboveItsOldRoot) {
  ModelTree model = NewTree(100);
  now_ = 1;
  Rewrite(&model, NewDataAt({5, 99}));
  const BlockPtr old_root = model.state.root;
  model.state.size_bytes = uint64_t{kBlockBytes} * (uint64_t{1} << 30);
  now_ = 2;
  Rewrite(&model, NewDataAt({uint64_t{1} << 29}));
  EXPECT_EQ(model.state.height, 5);
  EXPECT_EQ(model.state.root.level, 5);
  EXPECT_TRUE(Referenced(model.state).contains(PlaceOf(old_root)));
  CheckLookup(model, 0, 300);
  CheckLookup(model, uint64_t{1} << 29, 5);
  CheckNextData(model);
  now_ = 3;
  Rewrite(&model, NewDataAt({5, (uint64_t{1} << 29) + 1}));
  CheckNextData(model);
}

TEST_F(BlockTreeTest, GrowthReachesTheOldRootWhenItsBlocksChange) {
  ModelTree model = NewTree(100);
  now_ = 1;
  Rewrite(&model, NewDataAt({5, 99}));
  now_ = 2;
  Rewrite(&model, NewDataAt({5, 200, 128 * 128 * 128}));
  EXPECT_EQ(model.state.height, 4);
  CheckLookup(model, 0, 300);
}

TEST_F(BlockTreeTest, ALookUpTouchesEachNodeOnce) {
  ModelTree model = NewTree(128 * 128);
  now_ = 1;
  std::vector<uint64_t> blocks;
  for (uint64_t block = 100; block < 400; ++block) {
    blocks.push_back(block);
  }
  Rewrite(&model, NewDataAt(blocks));
  const uint64_t before = pool_->file->reads();
  CheckLookup(model, 50, 400);
  EXPECT_EQ(pool_->file->reads() - before, 1u + 4);  // the root and four of level 1, no cache
}

TEST_F(BlockTreeTest, WarmNodesAreNotReadAgain) {
  NewPool(1 << 20);
  ModelTree model = NewTree(128 * 128);
  now_ = 1;
  Rewrite(&model, NewDataAt({1, 200, 5000}));
  NodeCache cold(1 << 20);
  const BlockTree other(*pool_->store, cold);
  const uint64_t before = pool_->file->reads();
  EXPECT_OK(other.Warm(model.state, 0, 5001));
  EXPECT_EQ(pool_->file->reads() - before, 1u + 3);
  std::vector<BlockPtr> found(5001);
  EXPECT_OK(other.Lookup(model.state, 0, found));
  EXPECT_EQ(pool_->file->reads() - before, 1u + 3);
}

// A level's new nodes lie side by side, so replacing them again frees one run, not single nodes.
TEST_F(BlockTreeTest, NodesOfALevelDieTogether) {
  ModelTree model = NewTree(128 * 128 * 128);
  std::vector<uint64_t> blocks;
  for (uint64_t node = 0; node < 128; ++node) {  // three lowest nodes below each of 128
    for (uint64_t lowest = 0; lowest < 3; ++lowest) blocks.push_back((node * 128 + lowest) * 128);
  }
  now_ = 1;
  Rewrite(&model, NewDataAt(blocks));
  now_ = 2;
  BlockWriter writer(*pool_->store, pool_->allocator, *txn_, now_);
  PointerChanges changes(now_, 0);
  const std::vector<BlockTree::Update> updates = NewDataAt(blocks);
  ASSERT_OK(tree().Rewrite(&model.state, updates, writer, changes));
  changes.Settle();
  EXPECT_EQ(changes.freed_sums().node_sectors, 128u * 3 + 128 + 1);
  const auto nodes = std::count_if(changes.freed().begin(), changes.freed().end(),
                                   [](const auto& run) { return run.kind == BlockKind::kNode; });
  EXPECT_EQ(nodes, 1);
}

TEST_F(BlockTreeTest, ARewriteReplacesEachNodeOnce) {
  ModelTree model = NewTree(128 * 128);
  std::vector<uint64_t> blocks;
  for (uint64_t block = 0; block < 128 * 128; ++block) {
    blocks.push_back(block);
  }
  now_ = 1;
  PointerChanges changes(now_, 0);
  BlockWriter writer(*pool_->store, pool_->allocator, *txn_, now_);
  ASSERT_OK(tree().Rewrite(&model.state, NewDataAt(blocks), writer, changes));
  EXPECT_EQ(changes.born_sums().node_sectors, 128u + 1);
  EXPECT_EQ(changes.killed_sums().total(), 0u);
  EXPECT_EQ(changes.data_blocks_delta(), 128 * 128);
}

// ---- Damage -------------------------------------------------------------------------------------

// Puts a node with these children in place of the root.
class DamagedTreeTest : public TreeFixture {
 protected:
  absl::Status LookupUnder(const std::vector<BlockPtr>& children) {
    BlockWriter writer(*pool_->store, pool_->allocator, *txn_, now_);
    auto node = std::make_shared<Node>();
    std::copy(children.begin(), children.end(), node->children.begin());
    TreeState state = NewTree(128 * 128).state;
    state.root = ValueOf(writer.AddNode(2, node, nullptr));
    EXPECT_OK(writer.Flush());
    return tree().ReadNode(state.root).status();
  }
  BlockPtr Child() {
    BlockPtr child;
    child.address = 100;
    child.birth = now_;
    child.sectors = 1;
    child.kind = BlockKind::kNode;
    child.level = 1;
    return child;
  }
};

TEST_F(DamagedTreeTest, AChildThatCannotBeItsNodesIsDataLoss) {
  now_ = 5;
  EXPECT_OK(LookupUnder({Child()}));
  BlockPtr younger = Child();
  younger.birth = now_ + 1;
  EXPECT_TRUE(absl::IsDataLoss(LookupUnder({Child(), younger})));  // I4
  BlockPtr unborn = Child();
  unborn.birth = 0;
  EXPECT_TRUE(absl::IsDataLoss(LookupUnder({unborn})));
  BlockPtr of_another_level = Child();
  of_another_level.level = 2;
  EXPECT_TRUE(absl::IsDataLoss(LookupUnder({of_another_level})));
  BlockPtr data = Child();
  data.kind = BlockKind::kData;
  EXPECT_TRUE(absl::IsDataLoss(LookupUnder({data})));
  BlockPtr no_true_hole;
  no_true_hole.address = 77;
  EXPECT_TRUE(absl::IsDataLoss(LookupUnder({no_true_hole})));
}

TEST_F(DamagedTreeTest, AFlippedBitIsDataLossEverywhere) {
  ModelTree model = NewTree(128 * 128);
  now_ = 1;
  Rewrite(&model, NewDataAt({5, 300}));
  std::vector<std::byte> sector(kSectorBytes);
  const uint64_t offset = model.state.root.address * kSectorBytes;
  ASSERT_OK(pool_->file->Read(offset, sector));
  sector[70] ^= std::byte{1};
  ASSERT_OK(pool_->file->Write(offset, sector));
  std::vector<BlockPtr> out(1);
  EXPECT_TRUE(absl::IsDataLoss(tree().Lookup(model.state, 5, out)));
  EXPECT_TRUE(absl::IsDataLoss(tree().NextData(model.state, 0).status()));
  uint64_t next = 0;
  EXPECT_TRUE(absl::IsDataLoss(
      tree()
          .Walk(model.state, 0, &next, 10, [](const BlockPtr&) { return absl::OkStatus(); })
          .status()));
  EXPECT_EQ(next, 0u);
  EXPECT_TRUE(absl::IsDataLoss(
      tree()
          .Diff(TreeState{}, model.state, &next, 10, [](const BlockTree::Extent&) { return true; })
          .status()));
  const TreeState before = model.state;
  now_ = 2;
  PointerChanges changes(now_, 0);
  BlockWriter writer(*pool_->store, pool_->allocator, *txn_, now_);
  EXPECT_TRUE(absl::IsDataLoss(tree().Rewrite(&model.state, NewDataAt({6}), writer, changes)));
  EXPECT_EQ(model.state.root, before.root);
  EXPECT_EQ(model.state.height, before.height);
}

// ---- Trim ---------------------------------------------------------------------------------------

TEST_F(BlockTreeTest, ATrimHidesAtOnceAndIsTakenApartInBites) {
  ModelTree model = NewTree(128 * 128);
  now_ = 1;
  std::vector<uint64_t> blocks;
  for (uint64_t block = 0; block < 2000; block += 3) {
    blocks.push_back(block);
  }
  Rewrite(&model, NewDataAt(blocks));
  StartTrim(&model, 100, 1500);
  CheckLookup(model, 0, 2000);
  CheckNextData(model);
  int steps = 1;
  for (now_ = 2; !TrimStep(&model, 50); ++now_, ++steps) {
    CheckLookup(model, 0, 2000);
    ASSERT_LT(steps, 100);
  }
  EXPECT_GT(steps, 7);
  EXPECT_EQ(model.state.trim_txg, 0u);
  CheckLookup(model, 0, 2000);
  CheckNextData(model);
}

TEST_F(BlockTreeTest, WhatIsWrittenAfterATrimStays) {
  ModelTree model = NewTree(128 * 128);
  now_ = 1;
  Rewrite(&model, NewDataAt({10, 11, 12, 500, 9000}));
  StartTrim(&model, 0, 128 * 128);
  now_ = 2;
  Rewrite(&model, NewDataAt({11, 13, 600}));
  CheckLookup(model, 0, 1000);
  now_ = 3;
  EXPECT_TRUE(TrimStep(&model, 1000));
  CheckLookup(model, 0, 1000);
  EXPECT_EQ(Referenced(model.state).size(), 3u + 2 + 1);
}

TEST_F(BlockTreeTest, ATrimCrossesHugeHolesInOneStep) {
  ModelTree model = NewTree(uint64_t{1} << 40);
  now_ = 1;
  Rewrite(&model, NewDataAt({0, uint64_t{1} << 20, uint64_t{1} << 30, (uint64_t{1} << 40) - 1}));
  StartTrim(&model, 0, uint64_t{1} << 40);
  now_ = 2;
  EXPECT_TRUE(TrimStep(&model, 100));
  EXPECT_TRUE(model.state.root.is_hole());
}

TEST_F(BlockTreeTest, AWhollyTrimmedSubtreeIsKilledWithoutBeingRewritten) {
  ModelTree model = NewTree(128 * 128);
  now_ = 1;
  std::vector<uint64_t> blocks;
  for (uint64_t block = 0; block < 128 * 4; ++block) {
    blocks.push_back(block);
  }
  Rewrite(&model, NewDataAt(blocks));
  StartTrim(&model, 0, 128 * 3);
  now_ = 2;
  PointerChanges changes(now_, 0);
  BlockWriter writer(*pool_->store, pool_->allocator, *txn_, now_);
  EXPECT_TRUE(ValueOf(tree().TrimStep(&model.state, 1000, writer, changes)));
  EXPECT_EQ(changes.born_sums().total(), 1u);  // the root
  EXPECT_EQ(changes.killed_sums().node_sectors, 3u + 1);
  EXPECT_EQ(changes.data_blocks_delta(), -128 * 3);
}

TEST_F(BlockTreeTest, ATrimOfNothingIsDoneAtOnce) {
  ModelTree model = NewTree(128 * 128);
  now_ = 1;
  EXPECT_TRUE(TrimStep(&model, 1));
  StartTrim(&model, 5, 5000);
  now_ = 2;
  EXPECT_TRUE(TrimStep(&model, 1));
  EXPECT_EQ(model.state.trim_end_block, 0u);
}

TEST_F(BlockTreeTest, BitesOfOnePointerGetThere) {
  ModelTree model = NewTree(128 * 128 * 128);
  now_ = 1;
  Rewrite(&model, NewDataAt({1, 2, 127, 128, 129, 16383, 16384, 16385, 40000}));
  StartTrim(&model, 2, 16385);
  int steps = 1;
  uint64_t cursor = 2;
  for (now_ = 2; !TrimStep(&model, 1); ++now_, ++steps) {
    EXPECT_GT(model.state.trim_begin_block, cursor);
    cursor = model.state.trim_begin_block;
    ASSERT_LT(steps, 50);
  }
  CheckNextData(model);
}

// ---- Gangs --------------------------------------------------------------------------------------

TEST_F(BlockTreeTest, AKilledGangGivesUpItsListAndAllItsPieces) {
  // A pool whose free sectors lie alone: every other one is taken.
  constexpr uint64_t kSmallPool = kFirstDataSector + 400;
  ASSERT_OK(pool_->allocator.Create(*txn_, kSmallPool));
  ASSERT_OK(pool_->allocator.Reload(*txn_, kSmallPool));
  now_ = 1;
  Runs spare;
  while (true) {
    const auto run = pool_->allocator.Allocate(*txn_, 1, BlockKind::kData, now_);
    if (!run.ok()) {
      break;
    }
    if (run->address % 2 == 0) {
      spare.push_back(*run);
    }
  }
  ASSERT_OK(pool_->allocator.Free(*txn_, now_, spare));
  ASSERT_OK(pool_->allocator.WriteBack(*txn_, now_));
  EXPECT_EQ(ValueOf(pool_->allocator.FlushRegions(*txn_, now_, 10, nullptr)), spare.size());

  now_ = 2;
  ModelTree model = NewTree(100);
  const std::vector<std::byte> data(kBlockBytes, std::byte{7});
  BlockTree::Update update;
  update.block = 3;
  {
    BlockWriter writer(*pool_->store, pool_->allocator, *txn_, now_);
    update.pointer = ValueOf(writer.Add(BlockKind::kData, 0, data, &update.extents));
    ASSERT_TRUE(update.pointer.is_gang());
    PointerChanges changes(now_, 0);
    ASSERT_OK(tree().Rewrite(&model.state, std::span(&update, 1), writer, changes));
    ASSERT_OK(writer.Flush());
    EXPECT_EQ(changes.born_sums().total(), 5u + 1);
  }
  now_ = 3;
  BlockWriter writer(*pool_->store, pool_->allocator, *txn_, now_);
  PointerChanges changes(now_, 0);
  const BlockTree::Update hole = Hole(3);
  ASSERT_OK(tree().Rewrite(&model.state, std::span(&hole, 1), writer, changes));
  changes.Settle();
  EXPECT_EQ(changes.killed_sums(), (SectorSums{.data_sectors = 5, .node_sectors = 1}));
  EXPECT_EQ(changes.data_blocks_delta(), -1);
  PlaceSet freed;
  for (const engine::Run& run : changes.freed()) {
    freed.insert({run.address, run.birth});
  }
  for (const engine::Run& run : update.extents) {
    EXPECT_TRUE(freed.contains({run.address, run.birth}));
  }
}

// ---- Everything against a map -------------------------------------------------------------------

class BlockTreeModel : public TreeFixture {
 protected:
  // A place near others, or far away, so that nodes are shared and paths are long.
  uint64_t SomeBlock(Random& random) {
    const uint64_t near = random.Below(300);
    switch (random.Below(4)) {
      case 0:
        return (block_count_ - 1) - near % block_count_;
      case 1:
        return random.Below(block_count_);
      default:
        return near % block_count_;
    }
  }

  std::vector<BlockTree::Update> SomeUpdates(Random& random) {
    std::set<uint64_t> blocks;
    for (uint64_t i = random.Between(1, 30); i > 0; --i) {
      const uint64_t first = SomeBlock(random);
      for (uint64_t n = random.OneIn(3) ? random.Below(40) : 1; n > 0; --n) {
        blocks.insert(std::min(first + n, block_count_ - 1));
      }
    }
    std::vector<BlockTree::Update> updates;
    updates.reserve(blocks.size());
    for (const uint64_t block : blocks) {
      updates.push_back(random.OneIn(4) ? Hole(block) : NewData(block));
    }
    return updates;
  }

  void Step(Random& random, ModelTree* model) {
    ++now_;
    switch (random.Below(6)) {
      case 0:
        if (model->state.trim_txg == 0) {
          const uint64_t begin = SomeBlock(random);
          const uint64_t end = random.OneIn(3) ? block_count_ : begin + random.Below(500);
          StartTrim(model, begin, end);
          break;
        }
        [[fallthrough]];
      case 1:
      case 2:
        TrimStep(model, random.OneIn(2) ? random.Between(1, 5) : random.Between(1, 300));
        break;
      case 3:
        if (random.OneIn(4) && block_count_ < uint64_t{1} << 40) {
          block_count_ *= random.Between(1, 200);
          model->state.size_bytes = block_count_ * kBlockBytes;
          break;
        }
        [[fallthrough]];
      default:
        Rewrite(model, SomeUpdates(random));
    }
  }

  uint64_t block_count_ = 0;
};

TEST_F(BlockTreeModel, RandomChangesMatchAMap) {
  for (const uint64_t seed : TestSeeds(25)) {
    SCOPED_TRACE(seed);
    Random random(seed);
    NewPool(random.OneIn(2) ? 0 : random.Between(1, 100) * 5000);
    block_count_ = std::array<uint64_t, 4>{1, 100, 20000, uint64_t{1} << 34}[random.Below(4)];
    ModelTree model = NewTree(block_count_);
    for (int step = 0; step < 60 && !HasFatalFailure(); ++step) {
      Step(random, &model);
      CheckLookup(model, 0, std::min<uint64_t>(block_count_, 400));
      CheckLookup(model, block_count_ - std::min<uint64_t>(block_count_, 400),
                  std::min<uint64_t>(block_count_, 400));
      CheckNextData(model);
    }
    while (!TrimStep(&model, 100)) {
      ++now_;
    }
    PlaceSet data;
    for (const auto& [block, pointer] : model.blocks) {
      data.insert(PlaceOf(pointer));
    }
    PlaceSet found = Referenced(model.state);
    std::erase_if(found, [](const auto& place) { return place.first < kCapacitySectors; });
    EXPECT_EQ(found, data);  // nothing trimmed is left
  }
}

}  // namespace
}  // namespace cowshed::engine

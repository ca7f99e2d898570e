// SPDX-License-Identifier: Apache-2.0
//
// BlockTree::Walk and Diff.
#include <algorithm>
#include <optional>

#include "tests/engine/tree/tree_fixture.h"

namespace cowshed::engine {
namespace {

using Extent = BlockTree::Extent;

struct Difference {
  bool data = false;
  bool operator==(const Difference&) const = default;
};
using Differences = std::map<uint64_t, Difference>;  // by block

Differences BruteForce(const BlockMap& older, const BlockMap& newer) {
  Differences differences;
  for (const auto& [block, pointer] : older) {
    const auto now = newer.find(block);
    if (now == newer.end() || !(now->second == pointer)) {
      differences[block] = {.data = now != newer.end()};
    }
  }
  for (const auto& [block, pointer] : newer) {
    if (!older.contains(block)) {
      differences[block] = {.data = true};
    }
  }
  return differences;
}

class WalkFixture : public TreeFixture {
 protected:
  // Walks in bites; checks order, cursor and that nothing comes twice.
  PlaceSet WalkInBites(const TreeState& state, Txg min_birth, uint64_t bite) {
    PlaceSet visited;
    uint64_t next = 0;
    for (bool at_end = false; !at_end;) {
      const uint64_t before = next;
      uint64_t count = 0;
      at_end = ValueOf(tree().Walk(state, min_birth, &next, bite, [&](const BlockPtr& pointer) {
        EXPECT_GT(pointer.birth, min_birth);
        CheckChildrenCameFirst(pointer, min_birth, visited);
        EXPECT_TRUE(visited.insert(PlaceOf(pointer)).second) << "visited twice";
        ++count;
        return absl::OkStatus();
      }));
      EXPECT_LE(count, bite + state.root.level);
      EXPECT_TRUE(at_end || next > before || count > 0) << "no progress";
      EXPECT_GE(next, before);
    }
    // A walk that is over stays over.
    EXPECT_TRUE(ValueOf(tree().Walk(state, min_birth, &next, bite, [](const BlockPtr&) {
      ADD_FAILURE() << "visited after the end";
      return absl::OkStatus();
    })));
    return visited;
  }

  void CheckChildrenCameFirst(const BlockPtr& pointer, Txg min_birth, const PlaceSet& visited) {
    if (pointer.level == 0) {
      return;
    }
    const auto node = ValueOf(tree().ReadNode(pointer));
    for (const BlockPtr& child : node->children) {
      if (!child.is_hole() && child.birth > min_birth) {
        EXPECT_TRUE(visited.contains(PlaceOf(child)));
      }
    }
  }

  // Compares in bites; checks order and cursor.
  Differences DiffInBites(const TreeState& older, const TreeState& newer, uint64_t bite,
                          uint64_t max_extents) {
    Differences differences;
    uint64_t next = 0;
    uint64_t end_of_last = 0;
    for (bool at_end = false; !at_end;) {
      uint64_t extents = 0;
      std::optional<Extent> last;
      const uint64_t before = next;
      at_end = ValueOf(tree().Diff(older, newer, &next, bite, [&](const Extent& extent) {
        EXPECT_GE(extent.first_block, end_of_last);
        EXPECT_GT(extent.block_count, 0u);
        EXPECT_FALSE(last.has_value() && last->data == extent.data &&
                     last->first_block + last->block_count == extent.first_block)
            << "not joined";
        for (uint64_t i = 0; i < extent.block_count; ++i) {
          EXPECT_TRUE(differences.insert({extent.first_block + i, {.data = extent.data}}).second);
        }
        end_of_last = extent.first_block + extent.block_count;
        last = extent;
        return ++extents < max_extents;
      }));
      EXPECT_TRUE(at_end || next > before) << "no progress";
      EXPECT_GE(next, end_of_last);
    }
    return differences;
  }
};

TEST_F(WalkFixture, VisitsChildrenBeforeTheirNodeAndTheRootLast) {
  ModelTree model = NewTree(128 * 128);
  now_ = 1;
  Rewrite(&model, NewDataAt({5, 6, 300}));
  std::vector<uint8_t> levels;
  uint64_t next = 0;
  EXPECT_TRUE(ValueOf(tree().Walk(model.state, 0, &next, 100, [&](const BlockPtr& pointer) {
    levels.push_back(pointer.level);
    return absl::OkStatus();
  })));
  EXPECT_EQ(levels, (std::vector<uint8_t>{0, 0, 1, 0, 1, 2}));
  EXPECT_EQ(next, 128u * 128);
}

TEST_F(WalkFixture, PrunesByBirth) {
  ModelTree model = NewTree(128 * 128 * 128);
  now_ = 1;
  Rewrite(&model, NewDataAt({5, 300, 40000}));
  now_ = 2;
  Rewrite(&model, NewDataAt({6}));
  EXPECT_EQ(Referenced(model.state, 1).size(), 1u + 3);
  EXPECT_TRUE(Referenced(model.state, 2).empty());
}

TEST_F(WalkFixture, AVisitorsErrorEndsTheWalkAndKeepsTheCursor) {
  ModelTree model = NewTree(128);
  now_ = 1;
  Rewrite(&model, NewDataAt({5, 6, 7}));
  uint64_t next = 0;
  EXPECT_FALSE(ValueOf(
      tree().Walk(model.state, 0, &next, 1, [](const BlockPtr&) { return absl::OkStatus(); })));
  EXPECT_EQ(next, 6u);
  const auto result = tree().Walk(model.state, 0, &next, 10, [](const BlockPtr& pointer) {
    return pointer.level == 0 ? absl::OkStatus() : absl::AbortedError("stop");
  });
  EXPECT_TRUE(absl::IsAborted(result.status()));
  EXPECT_EQ(next, 6u);
}

TEST_F(WalkFixture, ADiffJoinsExtentsAcrossNodes) {
  ModelTree older = NewTree(128 * 128);
  now_ = 1;
  Rewrite(&older, NewDataAt({400, 401}));
  ModelTree newer = older;
  now_ = 2;
  std::vector<BlockTree::Update> updates;
  for (uint64_t block = 100; block < 300; ++block) {
    updates.push_back(NewData(block));
  }
  updates.push_back(Hole(400));
  Rewrite(&newer, updates);
  std::vector<Extent> extents;
  uint64_t next = 0;
  EXPECT_TRUE(
      ValueOf(tree().Diff(older.state, newer.state, &next, 10000, [&](const Extent& extent) {
        extents.push_back(extent);
        return true;
      })));
  ASSERT_EQ(extents.size(), 2u);
  EXPECT_EQ(extents[0].first_block, 100u);
  EXPECT_EQ(extents[0].block_count, 200u);
  EXPECT_TRUE(extents[0].data);
  EXPECT_EQ(extents[1].first_block, 400u);
  EXPECT_EQ(extents[1].block_count, 1u);
  EXPECT_FALSE(extents[1].data);  // pruning by birth would miss the hole
}

TEST_F(WalkFixture, ADiffPassesOverWhatIsShared) {
  ModelTree older = NewTree(128 * 128 * 128);
  now_ = 1;
  std::vector<uint64_t> blocks;
  for (uint64_t block = 0; block < 128 * 100; ++block) {
    blocks.push_back(block);
  }
  Rewrite(&older, NewDataAt(blocks));
  ModelTree newer = older;
  now_ = 2;
  Rewrite(&newer, NewDataAt({5000}));
  const uint64_t before = pool_->file->reads();
  EXPECT_EQ(DiffInBites(older.state, newer.state, 1000, 1000).size(), 1u);
  EXPECT_EQ(pool_->file->reads() - before, 2u * 3);  // both paths
}

TEST_F(WalkFixture, ADiffSeesWhatOneTrimHidesAndAnotherDoesNot) {
  ModelTree older = NewTree(128 * 128);
  now_ = 1;
  std::vector<uint64_t> blocks;
  for (uint64_t block = 0; block < 1000; ++block) {
    blocks.push_back(block);
  }
  Rewrite(&older, NewDataAt(blocks));
  ModelTree newer = older;
  StartTrim(&newer, 100, 700);  // the roots are equal
  EXPECT_EQ(DiffInBites(older.state, newer.state, 1000, 1000),
            BruteForce(older.blocks, newer.blocks));
  EXPECT_EQ(DiffInBites(newer.state, older.state, 1000, 1000),
            BruteForce(newer.blocks, older.blocks));
  // Both hide the same: nothing differs and nothing is read.
  const uint64_t before = pool_->file->reads();
  EXPECT_TRUE(DiffInBites(newer.state, newer.state, 1000, 1000).empty());
  EXPECT_EQ(pool_->file->reads(), before);
}

TEST_F(WalkFixture, ADiffStopsWhenItsVisitorHasEnough) {
  ModelTree model = NewTree(1000);
  now_ = 1;
  Rewrite(&model, NewDataAt({5, 6, 300, 302}));
  uint64_t next = 0;
  const auto one = [](const Extent&) { return false; };
  EXPECT_FALSE(ValueOf(tree().Diff(TreeState{}, model.state, &next, 1000, one)));
  EXPECT_EQ(next, 7u);
  EXPECT_FALSE(ValueOf(tree().Diff(TreeState{}, model.state, &next, 1000, one)));
  EXPECT_EQ(next, 301u);
  EXPECT_FALSE(ValueOf(tree().Diff(TreeState{}, model.state, &next, 1000, one)));
  EXPECT_EQ(next, 303u);
  EXPECT_TRUE(ValueOf(tree().Diff(TreeState{}, model.state, &next, 1000, one)));
}

// Random trees that go apart, of several heights, some with trims: each pair and each walk.
class WalkModel : public WalkFixture {
 protected:
  ModelTree Changed(Random& random, ModelTree model) {
    for (uint64_t txgs = random.Between(1, 3); txgs > 0; --txgs) {
      ++now_;
      if (random.OneIn(3) && model.state.trim_txg == 0) {
        const uint64_t begin = random.Below(600);
        StartTrim(&model, begin, begin + random.Below(900));
        continue;
      }
      if (random.OneIn(3)) {
        TrimStep(&model, random.Between(1, 200));
        continue;
      }
      std::set<uint64_t> blocks;
      const uint64_t span = random.OneIn(5) ? uint64_t{1} << random.Between(8, 30) : 900;
      for (uint64_t i = random.Between(1, 60); i > 0; --i) {
        const uint64_t first = random.Below(span);
        for (uint64_t n = 0; n < (random.OneIn(8) ? 60 : 2); ++n) {
          blocks.insert(first + n);
        }
      }
      std::vector<BlockTree::Update> updates;
      updates.reserve(blocks.size());
      for (const uint64_t block : blocks) {
        updates.push_back(random.OneIn(3) ? Hole(block) : NewData(block));
      }
      Rewrite(&model, updates);
    }
    return model;
  }

  void CheckWalks(const std::vector<ModelTree>& trees, Random& random) {
    for (const ModelTree& model : trees) {
      const Txg min_birth = random.OneIn(2) ? 0 : random.Below(now_ + 1);
      const PlaceSet all = Referenced(model.state);
      PlaceSet expected;
      for (const auto& place : all) {
        if (place.second > min_birth) {
          expected.insert(place);
        }
      }
      for (const uint64_t bite : {uint64_t{1}, uint64_t{2}, uint64_t{3}, random.Between(4, 40)}) {
        EXPECT_EQ(WalkInBites(model.state, min_birth, bite), expected);
      }
      for (const auto& [block, pointer] : model.blocks) {
        EXPECT_TRUE(all.contains(PlaceOf(pointer)));
      }
    }
  }
};

TEST_F(WalkModel, RandomTreesMatchBruteForce) {
  for (const uint64_t seed : TestSeeds(50)) {
    SCOPED_TRACE(seed);
    Random random(seed);
    NewPool(random.OneIn(2) ? 0 : 1 << 20);
    std::vector<ModelTree> trees = {NewTree(random.OneIn(2) ? 100 : 20000)};
    while (trees.size() < 6 && !HasFatalFailure()) {
      trees.push_back(Changed(random, trees[random.Below(trees.size())]));
    }
    CheckWalks(trees, random);
    for (const ModelTree& older : trees) {
      for (const ModelTree& newer : trees) {
        const Differences expected = BruteForce(older.blocks, newer.blocks);
        EXPECT_EQ(DiffInBites(older.state, newer.state, UINT64_MAX, UINT64_MAX), expected);
        EXPECT_EQ(DiffInBites(older.state, newer.state, random.Between(1, 20), UINT64_MAX),
                  expected);
        EXPECT_EQ(DiffInBites(older.state, newer.state, random.Between(1, 2000), 1), expected);
      }
    }
    const ModelTree& any = trees.back();
    EXPECT_EQ(DiffInBites(trees.front().state, any.state, 1, UINT64_MAX),
              BruteForce(trees.front().blocks, any.blocks));
  }
}

}  // namespace
}  // namespace cowshed::engine

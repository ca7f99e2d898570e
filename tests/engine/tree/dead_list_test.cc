// SPDX-License-Identifier: Apache-2.0
#include "engine/tree/dead_list.h"

#include <algorithm>
#include <map>
#include <set>

#include "engine/base/failpoints.h"
#include "engine/store/codec.h"
#include "tests/engine/tree/meta_fixture.h"

namespace cowshed::engine {
namespace {

constexpr DeadlistId kList{7};
constexpr DeadlistId kOther{9};

engine::Run Dead(uint64_t address, uint32_t sectors, Txg birth, BlockKind kind = BlockKind::kData) {
  return {.address = address, .birth = birth, .sectors = sectors, .kind = kind};
}

bool ByAddress(const engine::Run& a, const engine::Run& b) { return a.address < b.address; }

// Runs in address order, joined, so that lists can be compared however they joined.
Runs Canonical(Runs runs) {
  std::sort(runs.begin(), runs.end(), ByAddress);
  JoinNeighbours(&runs);
  return runs;
}

SectorSums SumsAbove(const Runs& runs, Txg floor) {
  SectorSums sums;
  for (const engine::Run& run : runs) {
    if (run.birth > floor) {
      sums.Add(run);
    }
  }
  return sums;
}

class DeadListTest : public MetaFixture {
 protected:
  void TearDown() override {
    Failpoints::DisarmAll();
    MetaFixture::TearDown();
  }
  absl::Status Append(const Runs& runs, DeadlistId list = kList) {
    return DeadList::Append(*txn_, list, runs, ids_);
  }
  bool Distribute(const std::vector<Txg>& bounds, uint64_t max_entries = 1 << 20,
                  DeadlistId list = kList) {
    return ValueOf(DeadList::Distribute(*txn_, list, bounds, max_entries, ids_));
  }
  Runs ReadAll(DeadlistId list = kList) {
    Runs runs;
    EXPECT_OK(DeadList::ReadAll(*txn_, list, &runs));
    return Canonical(std::move(runs));
  }
  uint64_t TailEntries(DeadlistId list = kList) {
    return ValueOf(DeadList::TailEntries(*txn_, list));
  }
  SectorSums SumAbove(Txg floor, DeadlistId list = kList) {
    return ValueOf(DeadList::SumAbove(*txn_, list, floor));
  }
  Runs RunsOf(const DeadBucket& bucket) {
    std::vector<LogEntry> entries;
    EXPECT_OK(PointerLog::ReadAll(*txn_, bucket.log, &entries));
    EXPECT_EQ(entries.size(), bucket.record.entries);
    Runs runs;
    for (const LogEntry& entry : entries) {
      EXPECT_EQ(entry.op, LogOp::kDead);
      runs.push_back(entry.run);
    }
    return runs;
  }
  bool IsDropped(LogId log) {
    return ValueOf(txn_->Get(Table::kDroppedLogs, Key(log))).has_value();
  }
};

TEST_F(DeadListTest, KillsWaitInTheTail) {
  ASSERT_OK(Append({Dead(100, 4, 3), Dead(104, 4, 3), Dead(200, 1, 5, BlockKind::kNode)}));
  ASSERT_OK(Append({Dead(300, 4, 9)}));
  EXPECT_EQ(TailEntries(), 3u);
  EXPECT_TRUE(ValueOf(DeadList::Buckets(*txn_, kList)).empty());
  EXPECT_EQ(SumAbove(0), (SectorSums{.data_sectors = 12, .node_sectors = 1}));
  EXPECT_EQ(SumAbove(3), (SectorSums{.data_sectors = 4, .node_sectors = 1}));
}

TEST_F(DeadListTest, ARunGoesToTheGreatestBoundBelowItsBirth) {
  ASSERT_OK(Append({Dead(100, 4, 1), Dead(200, 4, 5), Dead(300, 4, 6), Dead(400, 4, 9)}));
  EXPECT_TRUE(Distribute({5, 8}));
  EXPECT_EQ(TailEntries(), 0u);
  const auto buckets = ValueOf(DeadList::Buckets(*txn_, kList));
  ASSERT_EQ(buckets.size(), 3u);
  EXPECT_EQ(buckets[0].start, 0u);
  EXPECT_EQ(RunsOf(buckets[0]), (Runs{Dead(100, 4, 1), Dead(200, 4, 5)}));
  EXPECT_EQ(buckets[1].start, 5u);
  EXPECT_EQ(RunsOf(buckets[1]), (Runs{Dead(300, 4, 6)}));
  EXPECT_EQ(buckets[2].start, 8u);
  EXPECT_EQ(RunsOf(buckets[2]), (Runs{Dead(400, 4, 9)}));
}

TEST_F(DeadListTest, ABucketIsAppendedToByLaterDistributions) {
  ASSERT_OK(Append({Dead(100, 4, 6)}));
  EXPECT_TRUE(Distribute({5}));
  ASSERT_OK(Append({Dead(200, 4, 7)}));
  EXPECT_TRUE(Distribute({5}));
  const auto buckets = ValueOf(DeadList::Buckets(*txn_, kList));
  ASSERT_EQ(buckets.size(), 1u);
  EXPECT_EQ(RunsOf(buckets[0]), (Runs{Dead(100, 4, 6), Dead(200, 4, 7)}));
}

TEST_F(DeadListTest, DistributeIsBoundedByWholeChunks) {
  Runs runs;
  for (uint64_t i = 0; i < 1000; ++i) {
    runs.push_back(Dead(100 + 2 * i, 1, 1 + i % 7));
  }
  ASSERT_OK(Append(runs));
  EXPECT_FALSE(Distribute({3}, 1));
  EXPECT_EQ(TailEntries(), 1000u - 169);
  EXPECT_FALSE(Distribute({3}, 170));
  EXPECT_EQ(TailEntries(), 1000u - 3 * 169);
  ASSERT_OK(Append({Dead(9000, 1, 2)}));  // the tail goes on meanwhile
  EXPECT_FALSE(Distribute({3}, 2 * 169));
  EXPECT_TRUE(Distribute({3}, 1));
  runs.push_back(Dead(9000, 1, 2));
  EXPECT_EQ(ReadAll(), Canonical(runs));
}

TEST_F(DeadListTest, TakeAboveDetachesFromTheFloorOn) {
  ASSERT_OK(Append({Dead(100, 4, 1), Dead(200, 4, 6), Dead(300, 4, 9)}));
  EXPECT_TRUE(Distribute({5, 8}));
  const auto taken = ValueOf(DeadList::TakeAbove(*txn_, kList, 5));
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_EQ(taken[0].start, 5u);
  EXPECT_EQ(taken[0].record.sums.data_sectors, 4u);
  EXPECT_EQ(RunsOf(taken[1]), (Runs{Dead(300, 4, 9)}));
  EXPECT_FALSE(IsDropped(taken[1].log));
  EXPECT_EQ(ReadAll(), (Runs{Dead(100, 4, 1)}));
  EXPECT_EQ(SumAbove(0).total(), 4u);
  EXPECT_EQ(ValueOf(DeadList::TakeAbove(*txn_, kList, 0)).size(), 1u);
}

TEST_F(DeadListTest, AnAdoptedBucketIsOneOfTheListsOwn) {
  ASSERT_OK(Append({Dead(200, 4, 6), Dead(300, 4, 9)}));
  EXPECT_TRUE(Distribute({5, 8}));
  const auto taken = ValueOf(DeadList::TakeAbove(*txn_, kList, 8));
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_OK(DeadList::Adopt(*txn_, kOther, taken[0]));
  EXPECT_EQ(ReadAll(kOther), (Runs{Dead(300, 4, 9)}));
  EXPECT_EQ(SumAbove(8, kOther).total(), 4u);
  EXPECT_EQ(ReadAll(), (Runs{Dead(200, 4, 6)}));
}

TEST_F(DeadListTest, TheOffByOneMutationMissesTheFloorsBucket) {
  ASSERT_OK(Append({Dead(200, 4, 6), Dead(300, 4, 9)}));
  EXPECT_TRUE(Distribute({5, 8}));
  ASSERT_OK(Failpoints::Arm("mutate.deadlist_off_by_one=true"));
  EXPECT_EQ(ValueOf(DeadList::TakeAbove(*txn_, kList, 5)).size(), 1u);
}

TEST_F(DeadListTest, MergeMovesTheSmallerList) {
  ASSERT_OK(Append({Dead(100, 4, 1), Dead(200, 4, 6)}));
  EXPECT_TRUE(Distribute({5}));
  ASSERT_OK(Append({Dead(250, 4, 6)}));
  ASSERT_OK(Append({Dead(300, 4, 7)}, kOther));
  EXPECT_TRUE(Distribute({5}, 1 << 20, kOther));
  EXPECT_EQ(ValueOf(DeadList::Merge(*txn_, kList, kOther)), kList);
  EXPECT_TRUE(ReadAll(kOther).empty());
  EXPECT_EQ(ReadAll(), (Runs{Dead(100, 4, 1), Dead(200, 4, 6), Dead(250, 4, 6), Dead(300, 4, 7)}));
  EXPECT_EQ(SumAbove(5).total(), 12u);
  EXPECT_TRUE(Distribute({5}));
  EXPECT_EQ(ValueOf(DeadList::TakeAbove(*txn_, kList, 5)).size(), 2u);  // two logs of one start
}

TEST_F(DeadListTest, MergeWithAnEmptyListCostsNothing) {
  ASSERT_OK(Append({Dead(100, 4, 1)}));
  EXPECT_EQ(ValueOf(DeadList::Merge(*txn_, kOther, kList)), kList);
  EXPECT_EQ(ValueOf(DeadList::Merge(*txn_, kList, kOther)), kList);
}

TEST_F(DeadListTest, TailsOfTwoListsAreDistributedOneAfterTheOther) {
  ASSERT_OK(Append({Dead(100, 4, 1), Dead(200, 4, 6)}));
  ASSERT_OK(Append({Dead(300, 4, 1), Dead(400, 4, 6)}, kOther));
  const DeadlistId both = ValueOf(DeadList::Merge(*txn_, kList, kOther));
  EXPECT_EQ(TailEntries(both), 4u);
  EXPECT_FALSE(Distribute({5}, 1, both));
  EXPECT_TRUE(Distribute({5}, 1, both));
  EXPECT_EQ(ValueOf(DeadList::Buckets(*txn_, both)).size(), 2u);
}

TEST_F(DeadListTest, ForgetReleasesLogsInBites) {
  ASSERT_OK(Append({Dead(100, 4, 1), Dead(200, 4, 6), Dead(300, 4, 9)}));
  EXPECT_TRUE(Distribute({5, 8}));
  ASSERT_OK(Append({Dead(400, 4, 1)}));
  const auto buckets = ValueOf(DeadList::Buckets(*txn_, kList));
  EXPECT_FALSE(ValueOf(DeadList::Forget(*txn_, kList, 2)));
  EXPECT_TRUE(IsDropped(buckets[0].log) && IsDropped(buckets[1].log));
  EXPECT_FALSE(IsDropped(buckets[2].log));
  EXPECT_TRUE(ValueOf(DeadList::Forget(*txn_, kList, 2)));
  EXPECT_TRUE(IsDropped(buckets[2].log));
  EXPECT_TRUE(ReadAll().empty());
}

TEST_F(DeadListTest, ALogThatDiffersFromItsRecordIsDataLoss) {
  ASSERT_OK(Append({Dead(100, 4, 1), Dead(200, 4, 6)}));
  MetaCursor cursor(*txn_, Table::kDeadBuckets);
  cursor.Seek(Key(kList));
  ASSERT_TRUE(cursor.ValidFor(Key(kList)));
  const auto log = KeyNumber<LogId>(cursor.key(), 16);
  const std::vector<LogEntry> stray = {{.op = LogOp::kDead, .run = Dead(300, 4, 6)}};
  ASSERT_OK(PointerLog::Append(*txn_, log, stray).status());
  Runs runs;
  EXPECT_TRUE(absl::IsDataLoss(DeadList::ReadAll(*txn_, kList, &runs)));
  EXPECT_TRUE(absl::IsDataLoss(DeadList::SumAbove(*txn_, kList, 5).status()));
  const std::vector<Txg> bounds = {5};
  EXPECT_TRUE(absl::IsDataLoss(DeadList::Distribute(*txn_, kList, bounds, 100, ids_).status()));
}

// Random kills, bites, takes and merges of two lists against plain vectors of runs.
class DeadListModel : public DeadListTest {
 protected:
  void Step(Random& random) {
    const DeadlistId list = random.OneIn(2) ? a_ : b_;
    Runs& model = models_[list];
    switch (random.Below(8)) {
      case 0:
      case 1:
      case 2: {
        Runs killed;
        for (uint64_t i = random.Below(random.OneIn(4) ? 600 : 20); i > 0; --i) {
          const engine::Run run =
              Dead(address_, static_cast<uint32_t>(random.Between(1, 9)), random.Between(1, 30),
                   random.OneIn(3) ? BlockKind::kNode : BlockKind::kData);
          address_ += run.sectors + random.Below(2);
          killed.push_back(run);
        }
        ASSERT_OK(Append(killed, list));
        model.insert(model.end(), killed.begin(), killed.end());
        break;
      }
      case 3:
      case 4: {
        const uint64_t before = TailEntries(list);
        const uint64_t most = random.Between(1, 500);
        const bool done = Distribute(bounds_, most, list);
        EXPECT_EQ(done, TailEntries(list) == 0);
        EXPECT_GE(TailEntries(list) + most + 2 * 169, before);
        break;
      }
      case 5:
        EXPECT_EQ(SumAbove(Floor(random), list), SumsAbove(model, last_floor_));
        break;
      case 6:
        TakeAbove(list, Floor(random));
        break;
      default:
        if (random.OneIn(4)) {
          Merge();
        }
    }
  }

  Txg Floor(Random& random) {
    return last_floor_ = random.OneIn(3) ? 0 : bounds_[random.Below(bounds_.size())];
  }

  void TakeAbove(DeadlistId list, Txg floor) {
    EXPECT_TRUE(Distribute(bounds_, 1 << 20, list));
    Runs taken;
    for (const DeadBucket& bucket : ValueOf(DeadList::TakeAbove(*txn_, list, floor))) {
      const auto next = std::upper_bound(bounds_.begin(), bounds_.end(), bucket.start);
      for (const engine::Run& run : RunsOf(bucket)) {
        EXPECT_GT(run.birth, bucket.start);
        EXPECT_TRUE(next == bounds_.end() || run.birth <= *next) << "straddles a bound";
        taken.push_back(run);
      }
    }
    Runs& model = models_[list];
    const auto above = std::stable_partition(
        model.begin(), model.end(), [floor](const engine::Run& run) { return run.birth <= floor; });
    EXPECT_EQ(Canonical(taken), Canonical({above, model.end()}));
    model.erase(above, model.end());
  }

  void Merge() {
    const DeadlistId both = ValueOf(DeadList::Merge(*txn_, a_, b_));
    const DeadlistId gone = both == a_ ? b_ : a_;
    models_[both].insert(models_[both].end(), models_[gone].begin(), models_[gone].end());
    models_[gone].clear();
  }

  void Check() {
    for (const auto& [list, model] : models_) {
      EXPECT_EQ(ReadAll(list), Canonical(model));
      for (const Txg bound : bounds_) {
        EXPECT_EQ(SumAbove(bound, list), SumsAbove(model, bound));
      }
    }
  }

  const DeadlistId a_ = kList;
  const DeadlistId b_ = kOther;
  std::vector<Txg> bounds_;
  Txg last_floor_ = 0;
  uint64_t address_ = 100;
  std::map<DeadlistId, Runs> models_;
};

TEST_F(DeadListModel, RandomOperationsMatchVectorsOfRuns) {
  for (const uint64_t seed : TestSeeds(100)) {
    SCOPED_TRACE(seed);
    Rewind();
    Random random(seed);
    models_ = {{a_, {}}, {b_, {}}};
    std::set<Txg> bounds;
    for (uint64_t i = random.Between(1, 8); i > 0; --i) {
      bounds.insert(random.Between(1, 29));
    }
    bounds_.assign(bounds.begin(), bounds.end());
    for (int step = 0; step < 80 && !HasFatalFailure(); ++step) {
      Step(random);
    }
    Check();
  }
}

}  // namespace
}  // namespace cowshed::engine

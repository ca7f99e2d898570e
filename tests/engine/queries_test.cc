// SPDX-License-Identifier: Apache-2.0
//
// Lists and blockers, page by page, on a quiet pool and while objects come, go and are renamed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "engine/base/strings.h"
#include "tests/support/temp_pool.h"
#include "tests/support/testing.h"

namespace cowshed::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class QueriesTest : public ::testing::Test {
 protected:
  template <typename Info>
  using List = absl::StatusOr<Page<Info>> (Pool::*)(const ListArgs&);

  // All items, `page_size` at a time; calls `between` after each page.
  template <typename Info>
  std::vector<Info> All(
      List<Info> list, ListArgs args = {}, uint32_t page_size = 2,
      const std::function<void()>& between = [] {}) {
    std::vector<Info> items;
    args.page_size = page_size;
    do {
      Page<Info> page = ValueOf(((*pool_).*list)(args));
      EXPECT_LE(page.items.size(), page_size);
      for (Info& item : page.items) items.push_back(std::move(item));
      args.position = page.next;
      between();
    } while (!args.position.empty());
    return items;
  }
  template <typename Info>
  static std::vector<std::string> Names(const std::vector<Info>& items) {
    std::vector<std::string> names;
    for (const Info& item : items) names.push_back(item.name);
    return names;
  }
  std::vector<std::string> Datasets(const ListArgs& args = {}, uint32_t page_size = 2) {
    return Names(All<DatasetInfo>(&Pool::ListDatasets, args, page_size));
  }
  std::vector<std::string> Snapshots(const ListArgs& args = {}, uint32_t page_size = 2) {
    return Names(All<SnapshotInfo>(&Pool::ListSnapshots, args, page_size));
  }
  void Create(const std::vector<std::string>& names) {
    for (const std::string& name : names) ASSERT_OK(pool_.Create(name).status());
  }

  TempPool pool_;
};

TEST_F(QueriesTest, DatasetsByPrefix) {
  Create({"ci/a", "ci/a/x", "ci/ab", "ci", "d"});
  for (const uint32_t page_size : {1u, 2u, 3u, 100u}) {
    EXPECT_THAT(Datasets({}, page_size), ElementsAre("ci", "ci/a", "ci/a/x", "ci/ab", "d"));
    EXPECT_THAT(Datasets({.prefix = "ci/a"}, page_size), ElementsAre("ci/a", "ci/a/x"));
    EXPECT_THAT(Datasets({.prefix = "none"}, page_size), IsEmpty());
  }
}

TEST_F(QueriesTest, DatasetsByOriginAndLabels) {
  Create({"d", "e"});
  for (const char* name : {"d@1", "d@2", "e@1"}) ASSERT_OK(pool_.Snapshot(name).status());
  for (const char* name : {"x/1", "x/2", "y/1"}) ASSERT_OK(pool_.Clone("d@1", name).status());
  ASSERT_OK(pool_.Clone("d@2", "y/2").status());
  ASSERT_OK(pool_.Clone("e@1", "z").status());
  ASSERT_OK(pool_.Clone("d", "of-head").status());
  EXPECT_THAT(Datasets({.origin = "d@1"}, 2), ElementsAre("x/1", "x/2", "y/1"));
  for (const uint32_t page_size : {1u, 2u, 5u}) {
    EXPECT_THAT(Datasets({.origin = "d"}, page_size),
                ElementsAre("x/1", "x/2", "y/1", "y/2", "of-head"));
    EXPECT_THAT(Datasets({.prefix = "y", .origin = "d"}, page_size), ElementsAre("y/1", "y/2"));
  }
  UpdateDatasetArgs args;
  args.name = "x/2";
  args.set_labels = {{"k", "v"}, {"other", "w"}};
  ASSERT_OK(pool_.Call(&Pool::UpdateDataset, args).status());
  EXPECT_THAT(Datasets({.labels = {{"k", "v"}}}), ElementsAre("x/2"));
  EXPECT_THAT(Datasets({.labels = {{"k", "w"}}}), IsEmpty());
}

TEST_F(QueriesTest, SnapshotsByDatasetAndPrefix) {
  Create({"a", "a/x", "b"});
  for (const char* name : {"a@2", "a@1", "a/x@1", "b@1", "a@3"}) {
    ASSERT_OK(pool_.Snapshot(name).status());
  }
  ASSERT_OK(pool_.Clone("a", "c").status());  // a hidden one
  for (const uint32_t page_size : {1u, 2u, 4u, 100u}) {
    EXPECT_THAT(Snapshots({}, page_size), ElementsAre("a@2", "a@1", "a@3", "a/x@1", "b@1"));
    EXPECT_THAT(Snapshots({.prefix = "a"}, page_size), ElementsAre("a@2", "a@1", "a@3", "a/x@1"));
    EXPECT_THAT(Snapshots({.parent = "a"}, page_size), ElementsAre("a@2", "a@1", "a@3"));
  }
  EXPECT_CODE(pool_->ListSnapshots({.parent = "none"}), kNotFound);
}

TEST_F(QueriesTest, Holds) {
  Create({"a", "a/x", "b"});
  for (const char* name : {"a@1", "a/x@1", "b@1"}) {
    ASSERT_OK(pool_.Snapshot(name).status());
    for (const char* tag : {"t1", "t2", "t3"}) ASSERT_OK(pool_.Hold(name, tag).status());
  }
  const auto holds = [&](const ListArgs& args, uint32_t page_size) {
    std::vector<std::string> found;
    for (const HoldInfo& hold : All<HoldInfo>(&Pool::ListHolds, args, page_size)) {
      found.push_back(StrCat(hold.snapshot, " ", hold.tag));
    }
    return found;
  };
  for (const uint32_t page_size : {1u, 2u, 4u, 100u}) {
    EXPECT_EQ(holds({}, page_size).size(), 9u);
    EXPECT_THAT(holds({.prefix = "a"}, page_size),
                ElementsAre("a@1 t1", "a@1 t2", "a@1 t3", "a/x@1 t1", "a/x@1 t2", "a/x@1 t3"));
    EXPECT_THAT(holds({.parent = "b@1"}, page_size), ElementsAre("b@1 t1", "b@1 t2", "b@1 t3"));
  }
  for (const char* name : {"a@1", "a/x@1", "b@1"}) {
    for (const char* tag : {"t1", "t2", "t3"}) ASSERT_OK(pool_.Release(name, tag).status());
  }
}

TEST_F(QueriesTest, OperationsByKindAndState) {
  Create({"a", "b", "c"});
  ASSERT_OK(pool_.Snapshot("c@1").status());
  ASSERT_OK(pool_.Destroy("a").status());
  ASSERT_OK(pool_.DestroySnapshot("c@1").status());
  ASSERT_OK(pool_.Destroy("b").status());
  ASSERT_OK(pool_->DrainBackground());
  const auto targets = [&](const ListArgs& args) {
    std::vector<std::string> found;
    for (const OperationInfo& operation : All<OperationInfo>(&Pool::ListOperations, args, 1)) {
      found.push_back(operation.target);
    }
    return found;
  };
  EXPECT_THAT(targets({}), ElementsAre("b", "c@1", "a"));  // newest first
  EXPECT_THAT(targets({.kind = static_cast<uint8_t>(OperationKind::kDestroyDatasets)}),
              ElementsAre("b", "a"));
  EXPECT_THAT(targets({.unfinished = true}), IsEmpty());
}

TEST_F(QueriesTest, LivelistPages) {
  ASSERT_OK(pool_.Create("d").status());
  for (int i = 0; i < 5; ++i) {
    ASSERT_OK(pool_.Write("d", 0, std::string(8192, static_cast<char>('a' + i))));
    ASSERT_OK(pool_.Snapshot(StrCat("d@", i)).status());
  }
  const LivelistInfo all = ValueOf(pool_->GetLivelist("d", 0, 100));
  ASSERT_EQ(all.sublists.size(), 5u);
  EXPECT_EQ(all.next_start, 0u);
  EXPECT_EQ(all.total.blocks, 10u);
  EXPECT_EQ(all.total.bytes, ValueOf(pool_->GetDataset("d")).used_bytes);
  const LivelistInfo first = ValueOf(pool_->GetLivelist("d", 0, 2));
  EXPECT_EQ(first.sublists.size(), 2u);
  EXPECT_EQ(first.next_start, all.sublists[2].start_txg);
  EXPECT_EQ(ValueOf(pool_->GetLivelist("d", first.next_start, 100)).sublists.size(), 3u);
}

// An object that exists all the while appears exactly once, whatever happens to others.
TEST_F(QueriesTest, ListsAreStableWhileOthersComeAndGo) {
  for (const uint64_t seed : TestSeeds(5)) {
    std::mt19937_64 random(seed);
    std::vector<std::string> stable;
    std::vector<std::string> moving;
    for (int i = 0; i < 60; ++i) {
      const std::string name = StrCat("s", seed, "/", random() % 10, "/", random() % 10, "/", i);
      Create({name});
      if (i % 2 == 0) ASSERT_OK(pool_.Snapshot(name + "@snap").status());
      (i % 3 == 0 ? moving : stable).push_back(name);
    }
    int made = 0;
    const auto churn = [&] {
      std::string& name = moving[random() % moving.size()];
      const std::string fresh =
          StrCat("s", seed, "/", random() % 10, "/", random() % 10, "/new", ++made);
      switch (random() % 3) {
        case 0:
          ASSERT_OK(pool_.Rename(name, fresh).status());
          name = fresh;
          break;
        case 1:
          ASSERT_OK(pool_.Destroy(name, /*recursive=*/true).status());
          name = fresh;
          Create({fresh});
          break;
        default:
          Create({fresh});
          moving.push_back(fresh);
      }
    };
    std::map<std::string, int> seen;
    for (const std::string& name :
         Names(All<DatasetInfo>(&Pool::ListDatasets, {.prefix = StrCat("s", seed)}, 3, churn))) {
      ++seen[name];
    }
    for (const SnapshotInfo& snapshot :
         All<SnapshotInfo>(&Pool::ListSnapshots, {.prefix = StrCat("s", seed)}, 3, churn)) {
      ++seen[snapshot.name];
    }
    for (const std::string& name : stable) {
      EXPECT_EQ(seen[name], 1) << name;
      const bool snapped = pool_->GetSnapshot(name + "@snap").ok();
      EXPECT_EQ(seen[name + "@snap"], snapped ? 1 : 0) << name;
    }
    for (const auto& [name, count] : seen) EXPECT_LE(count, 1) << name;
  }
}

TEST_F(QueriesTest, PositionsOfAnotherListAreRefused) {
  Create({"a", "b", "c"});
  ListArgs args;
  args.page_size = 1;
  args.position = ValueOf(pool_->ListDatasets(args)).next;
  ASSERT_FALSE(args.position.empty());
  EXPECT_CODE(pool_->ListSnapshots(args), kInvalidArgument);
  args.prefix = "b";
  EXPECT_CODE(pool_->ListDatasets(args), kInvalidArgument);
}

class BlockersTest : public QueriesTest {
 protected:
  // All blockers of a refusal as "name[#tag] blocks blocked", `page_size` at a time.
  std::vector<std::string> AllOf(const absl::Status& refusal, uint32_t page_size) {
    const std::optional<ErrorDetails> details = GetErrorDetails(refusal);
    if (!details.has_value()) return {"no details: " + refusal.ToString()};
    std::vector<std::string> found;
    ListArgs args;
    args.page_size = page_size;
    do {
      const Page<Blocker> page = ValueOf(pool_->ListBlockers(details->blockers.query, args));
      for (const Blocker& blocker : page.items) found.push_back(Text(blocker));
      args.position = page.next;
    } while (!args.position.empty());
    EXPECT_EQ(details->blockers.total, found.size());
    const size_t first = std::min<size_t>(found.size(), 20);
    EXPECT_EQ(details->blockers.first.size(), first);
    for (size_t i = 0; i < first; ++i) EXPECT_EQ(Text(details->blockers.first[i]), found[i]);
    return found;
  }
  static std::string Text(const Blocker& blocker) {
    return StrCat(blocker.name, blocker.tag.empty() ? "" : "#", blocker.tag, " blocks ",
                  blocker.blocked_name);
  }
};

TEST_F(BlockersTest, OfADataset) {
  Create({"d"});
  for (const char* name : {"d@1", "d@2"}) ASSERT_OK(pool_.Snapshot(name).status());
  ASSERT_OK(pool_.Clone("d@1", "c/1").status());
  ASSERT_OK(pool_.Clone("d", "c/2").status());  // of a hidden snapshot: blocks the dataset itself
  ASSERT_OK(pool_.Hold("d@2", "tag").status());
  const absl::Status refusal = pool_.Destroy("d").status();
  EXPECT_EQ(refusal.code(), absl::StatusCode::kFailedPrecondition);
  for (const uint32_t page_size : {1u, 2u, 100u}) {
    EXPECT_THAT(AllOf(refusal, page_size),
                ElementsAre("d@1 blocks d", "d@2 blocks d", "c/1 blocks d@1", "d@2#tag blocks d@2",
                            "c/2 blocks d"));
  }
  ASSERT_OK(pool_.Destroy("c/1").status());  // what is listed is as it is now
  ListArgs args;
  const BlockerQuery query = GetErrorDetails(refusal)->blockers.query;
  EXPECT_EQ(ValueOf(pool_->ListBlockers(query, args)).items.size(), 4u);
}

TEST_F(BlockersTest, MoreThanAnErrorCarries) {
  Create({"d"});
  ASSERT_OK(pool_.Snapshot("d@s").status());
  for (int i = 0; i < 30; ++i) ASSERT_OK(pool_.Clone("d@s", StrCat("c/", i)).status());
  EXPECT_EQ(AllOf(pool_.DestroySnapshot("d@s").status(), 7).size(), 30u);
}

TEST_F(BlockersTest, OfARollbackAndAPromotion) {
  Create({"d"});
  for (const char* name : {"d@1", "d@2", "d@3"}) ASSERT_OK(pool_.Snapshot(name).status());
  RollbackDatasetArgs args;
  args.name = "d";
  args.snapshot = "1";
  EXPECT_THAT(AllOf(pool_.Call(&Pool::RollbackDataset, args).status(), 1),
              ElementsAre("d@2 blocks d", "d@3 blocks d"));
  ASSERT_OK(pool_.Clone("d@2", "c").status());
  for (const char* name : {"c@1", "c@2", "c@3"}) ASSERT_OK(pool_.Snapshot(name).status());
  const absl::Status refusal = pool_.Promote("c").status();
  EXPECT_EQ(refusal.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(AllOf(refusal, 1), ElementsAre("c@1 blocks d@1", "c@2 blocks d@2"));
}

}  // namespace
}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
#include "engine/catalog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "engine/base/strings.h"
#include "tests/engine/tree/meta_fixture.h"
#include "tests/support/temp_pool.h"

namespace cowshed::engine {
namespace {

using ::testing::ElementsAre;

TEST(LabelsTest, Bounds) {
  EXPECT_OK(CheckLabels({}));
  EXPECT_OK(CheckLabels({{"k", ""}, {std::string(63, 'k'), std::string(255, 'v')}}));
  EXPECT_OK(CheckLabels({{"0/a.b_c-d", "any \x01 bytes"}}));
  for (const std::string& key : {std::string(), std::string(64, 'k'), std::string("Upper"),
                                 std::string("-a"), std::string("a b")}) {
    EXPECT_CODE(CheckLabels({{key, "v"}}), kInvalidArgument) << key;
  }
  EXPECT_CODE(CheckLabels({{"k", std::string(256, 'v')}}), kInvalidArgument);
  Labels large;
  for (char key = 'a'; key < 'i'; ++key) large[std::string(1, key)] = std::string(255, 'v');
  EXPECT_OK(CheckLabels(large));  // 8 x 256 bytes
  large["i"] = "";
  EXPECT_CODE(CheckLabels(large), kInvalidArgument);
  Labels many;
  for (int i = 0; i < 65; ++i) many[StrCat("k", i)] = "v";  // one too many
  EXPECT_CODE(CheckLabels(many), kInvalidArgument);
  EXPECT_TRUE(MatchesLabels({{"a", "1"}, {"b", "2"}}, {{"a", "1"}}));
  EXPECT_TRUE(MatchesLabels({}, {}));
  EXPECT_FALSE(MatchesLabels({{"a", "1"}}, {{"a", "2"}}));
  EXPECT_FALSE(MatchesLabels({}, {{"a", "1"}}));
}

// Snapshots are found by their place in the index alone: no more than that is needed here.
class NeighbourTest : public MetaFixture {
 protected:
  void Add(uint64_t dataset, Txg txg) {
    EXPECT_OK(txn_->Put(Table::kSnapshotsByTxg, Key(dataset, txg), Key(SnapshotId{txg * 10})));
  }
  static std::vector<Txg> Txgs(const std::vector<Neighbour>& neighbours) {
    std::vector<Txg> txgs;
    for (const Neighbour& neighbour : neighbours) {
      EXPECT_EQ(neighbour.id, SnapshotId{neighbour.txg * 10});
      txgs.push_back(neighbour.txg);
    }
    return txgs;
  }
};

TEST_F(NeighbourTest, StayWithinTheDataset) {
  for (const Txg txg : {5, 9, 20}) Add(2, txg);
  Add(1, 7);
  Add(3, 8);
  const DatasetId dataset{2};
  EXPECT_EQ(ValueOf(SnapshotBefore(*txn_, dataset, 5)), std::nullopt);
  EXPECT_EQ(ValueOf(SnapshotBefore(*txn_, dataset, 6))->txg, 5u);
  EXPECT_EQ(ValueOf(SnapshotBefore(*txn_, dataset, UINT64_MAX))->txg, 20u);
  EXPECT_EQ(ValueOf(SnapshotAfter(*txn_, dataset, 20)), std::nullopt);
  EXPECT_EQ(ValueOf(SnapshotAfter(*txn_, dataset, 5))->txg, 9u);
  EXPECT_EQ(ValueOf(SnapshotAfter(*txn_, dataset, 0))->txg, 5u);
  EXPECT_THAT(Txgs(ValueOf(SnapshotsAbove(*txn_, dataset, 0))), ElementsAre(5, 9, 20));
  EXPECT_THAT(Txgs(ValueOf(SnapshotsAbove(*txn_, dataset, 5, 1))), ElementsAre(9));
  EXPECT_EQ(ValueOf(SnapshotBefore(*txn_, DatasetId{4}, 100)), std::nullopt);
}

class CatalogTest : public ::testing::Test {
 protected:
  SnapshotInfo Snapshot(const std::string& name) { return ValueOf(pool_->GetSnapshot(name)); }
  DatasetInfo Dataset(const std::string& name) { return ValueOf(pool_->GetDataset(name)); }

  TempPool pool_;
};

TEST_F(CatalogTest, LatestIsTheNewestVisibleThatIsNotOnItsWayOut) {
  ASSERT_OK(pool_.Create("d").status());
  EXPECT_CODE(pool_->GetSnapshot("d@latest"), kNotFound);
  ASSERT_OK(pool_.Snapshot("d@1").status());
  ASSERT_OK(pool_.Snapshot("d@2").status());
  EXPECT_EQ(Snapshot("d@latest").name, "d@2");
  ASSERT_OK(pool_.Clone("d", "of-head").status());  // its snapshot is hidden
  EXPECT_EQ(Snapshot("d@latest").name, "d@2");
  ASSERT_OK(pool_.Clone("d@2", "c").status());
  ASSERT_OK(pool_.DestroySnapshot("d@2", /*defer=*/true).status());
  EXPECT_TRUE(Snapshot("d@2").deferred);
  EXPECT_EQ(Snapshot("d@latest").name, "d@1");
  ASSERT_OK(pool_.Rename("d@1", "latest").status());  // unless one is called that
  ASSERT_OK(pool_.Snapshot("d@3").status());
  EXPECT_EQ(Snapshot("d@latest").name, "d@latest");
}

TEST_F(CatalogTest, UniqueIsWhatOnlyThisSnapshotHolds) {
  ASSERT_OK(pool_.Create("d", 1 << 20).status());
  ASSERT_OK(pool_.Write("d", 0, std::string(10 * 4096, 'a')));
  ASSERT_OK(pool_.Snapshot("d@1").status());
  ASSERT_OK(pool_.Snapshot("d@2").status());
  EXPECT_EQ(Snapshot("d@1").unique_bytes, 0u);
  ASSERT_OK(pool_.Write("d", 0, std::string(10 * 4096, 'b')));
  ASSERT_OK(pool_.Flush("d").status());
  EXPECT_EQ(Snapshot("d@1").unique_bytes, 0u);  // the other one has it, too
  EXPECT_EQ(Snapshot("d@2").unique_bytes, 0u);
  ASSERT_OK(pool_.DestroySnapshot("d@1").status());
  ASSERT_OK(pool_->DrainBackground());
  const uint64_t unique = Snapshot("d@2").unique_bytes;
  EXPECT_GE(unique, 10u * 4096);
  const uint64_t allocated = pool_->space().allocated_bytes;
  ASSERT_OK(pool_.DestroySnapshot("d@2").status());
  ASSERT_OK(pool_->DrainBackground());
  EXPECT_EQ(pool_->space().allocated_bytes, allocated - unique);
}

TEST_F(CatalogTest, DescribesSizesOriginsAndCounts) {
  ASSERT_OK(pool_.Create("d", 1000000, 16384).status());
  ASSERT_OK(pool_.Write("d", 0, std::string(3 * 16384, 'a')));
  ASSERT_OK(pool_.Snapshot("d@1").status());
  ASSERT_OK(pool_.Clone("d@1", "c").status());
  const DatasetInfo d = Dataset("d");
  EXPECT_EQ(d.size_bytes, 1000000u);
  EXPECT_EQ(d.block_bytes, 16384u);
  EXPECT_EQ(d.logical_bytes, 3u * 16384);
  EXPECT_EQ(d.referenced_bytes, 3u * 16384 + 4096);  // and one node
  EXPECT_EQ(d.used_bytes, d.referenced_bytes);
  EXPECT_EQ(d.written_bytes, 0u);  // all of it is in d@1
  EXPECT_EQ(d.snapshot_count, 1u);
  EXPECT_EQ(d.clone_count, 1u);
  EXPECT_EQ(d.origin, "");
  const DatasetInfo c = Dataset("c");
  EXPECT_EQ(c.origin, "d@1");
  EXPECT_EQ(c.origin_uid, Snapshot("d@1").uid);
  EXPECT_EQ(c.used_bytes, 0u);
  EXPECT_EQ(c.referenced_bytes, d.referenced_bytes);
  EXPECT_NE(c.uid, d.uid);
  EXPECT_EQ(Snapshot("d@1").written_bytes, d.referenced_bytes);
  ASSERT_OK(pool_.Clone("d", "of-head").status());
  EXPECT_EQ(Dataset("of-head").origin, "");  // a hidden snapshot has no name
  EXPECT_FALSE(Dataset("of-head").origin_uid.empty());
}

TEST_F(CatalogTest, EtagsChangeWithLifecycleAndNotWithWrites) {
  ASSERT_OK(pool_.Create("d").status());
  const std::string etag = Dataset("d").etag;
  ASSERT_OK(pool_.Write("d", 0, "data"));
  ASSERT_OK(pool_.Flush("d").status());
  EXPECT_EQ(Dataset("d").etag, etag);
  ASSERT_OK(pool_.Rename("d", "e").status());
  EXPECT_NE(Dataset("e").etag, etag);
  DestroyDatasetsArgs args;
  args.names = {"e"};
  args.etags = {{"e", etag}};
  EXPECT_CODE(pool_.Call(&Pool::DestroyDatasets, args), kAborted);
  args.etags = {{"e", Dataset("e").etag}};
  ASSERT_OK(pool_.Call(&Pool::DestroyDatasets, args).status());
}

}  // namespace
}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// Create, snapshot, clone, update, rename over the wire: what each answers, and each way to fail.
#include <gmock/gmock.h>

#include "tests/service/server_fixture.h"

namespace cowshed::service {
namespace {

using testing::ElementsAre;

class LifecycleTest : public ServerTest {};

TEST_F(LifecycleTest, CreateAnswersTheDatasetAsItIs) {
  const auto reply = Call(datasets(), &Datasets::CreateDataset, R"(
      name: 'ci/a' size_bytes: 1000001 block_size_bytes: 8192 quota_bytes: 500000
      labels { key: 'team' value: 'x' } ttl { seconds: 3600 })");
  EXPECT_GT(reply.txg(), 0u);
  const v1::Dataset& made = reply.dataset();
  EXPECT_EQ(made.name(), "ci/a");
  EXPECT_EQ(made.uid().size(), 32u);
  EXPECT_EQ(made.create_txg(), reply.txg());
  EXPECT_EQ(made.state(), v1::DATASET_STATE_ACTIVE);
  EXPECT_EQ(made.size_bytes(), 1000001u);
  EXPECT_EQ(made.block_size_bytes(), 8192u);
  EXPECT_EQ(made.quota_bytes(), 500000u);
  EXPECT_EQ(made.labels().at("team"), "x");
  EXPECT_NEAR(made.expire_time().seconds() - made.create_time().seconds(), 3600, 2);
  const auto got = Call(datasets(), &Datasets::GetDataset, "name: 'ci/a'");
  EXPECT_EQ(got.DebugString(), made.DebugString());
}

TEST_F(LifecycleTest, CreateWithoutBlockSizeTakesTheDefault) {
  EXPECT_EQ(Create("a").block_size_bytes(), 16384u);
  EXPECT_FALSE(Create("b").has_quota_bytes());
  EXPECT_FALSE(Create("c").has_expire_time());
}

TEST_F(LifecycleTest, CreateRefusesWhatIsWrong) {
  Create("a");
  const auto create = [this](const std::string& request) {
    return Try(datasets(), &Datasets::CreateDataset, request);
  };
  EXPECT_FAILS(create("name: 'a' size_bytes: 4096"), kAlreadyExists, DATASET_EXISTS);
  EXPECT_FAILS(create("size_bytes: 4096"), kInvalidArgument, INVALID_NAME);
  EXPECT_FAILS(create("name: 'a//b' size_bytes: 4096"), kInvalidArgument, INVALID_NAME);
  EXPECT_FAILS(create("name: 'a@s' size_bytes: 4096"), kInvalidArgument, INVALID_NAME);
  EXPECT_FAILS(create("name: '" + std::string(256, 'x') + "' size_bytes: 4096"), kInvalidArgument,
               INVALID_NAME);
  EXPECT_FAILS(create("name: 'b'"), kInvalidArgument, INVALID_SIZE);
  EXPECT_FAILS(create("name: 'b' size_bytes: 1125899906842625"), kInvalidArgument, INVALID_SIZE);
  for (const char* size : {"0", "2048", "12288", "262144", "4294971392"}) {
    EXPECT_FAILS(create("name: 'b' size_bytes: 4096 block_size_bytes: " + std::string(size)),
                 kInvalidArgument, INVALID_BLOCK_SIZE);
  }
  EXPECT_FAILS(create("name: 'b' size_bytes: 4096 labels { key: 'A b' value: '' }"),
               kInvalidArgument, INVALID_LABEL);
  EXPECT_FAILS(create("name: 'b' size_bytes: 4096 expire_time { seconds: 1 }"), kInvalidArgument,
               INVALID_FIELD);
  EXPECT_FAILS(create("name: 'b' size_bytes: 4096 ttl { seconds: -1 }"), kInvalidArgument,
               INVALID_FIELD);
  EXPECT_FAILS(create("name: 'b' size_bytes: 4096 ttl { }"), kInvalidArgument, INVALID_FIELD);
  EXPECT_THAT(ListNames(), ElementsAre("a"));
}

TEST_F(LifecycleTest, SnapshotsOfOneCallShareTxgAndTime) {
  Create("ci/a");
  Create("ci/a/x");
  Create("ci/ab");
  const auto reply = Call(datasets(), &Datasets::CreateSnapshots,
                          "prefix: 'ci/a' snapshot: 's' labels { key: 'k' value: 'v' }");
  ASSERT_EQ(reply.count(), 2u);
  ASSERT_EQ(reply.snapshots_size(), 2);
  EXPECT_EQ(reply.snapshots(0).name(), "ci/a@s");
  EXPECT_EQ(reply.snapshots(1).name(), "ci/a/x@s");
  for (const auto& snapshot : reply.snapshots()) {
    EXPECT_EQ(snapshot.create_txg(), reply.txg());
    EXPECT_EQ(snapshot.create_time().DebugString(), reply.create_time().DebugString());
    EXPECT_EQ(snapshot.labels().at("k"), "v");
  }
  const auto got = Call(datasets(), &Datasets::GetSnapshot, "name: 'ci/a@latest'");
  EXPECT_EQ(got.name(), "ci/a@s");
}

TEST_F(LifecycleTest, EmptyListOfSnapshotsIsOk) {
  const auto reply = Call(datasets(), &Datasets::CreateSnapshots, "");
  EXPECT_EQ(reply.txg(), 0u);
  EXPECT_EQ(reply.count(), 0u);
  EXPECT_FALSE(reply.has_create_time());
}

TEST_F(LifecycleTest, SnapshotsAreAllOrNone) {
  Create("a");
  Create("b");
  Snapshot({"a@s"});
  const auto snapshot = [this](const std::string& request) {
    return Try(datasets(), &Datasets::CreateSnapshots, request);
  };
  EXPECT_FAILS(snapshot("names: 'b@s' names: 'a@s'"), kAlreadyExists, SNAPSHOT_EXISTS);
  EXPECT_FAILS(snapshot("names: 'b@s' names: 'c@s'"), kNotFound, DATASET_NOT_FOUND);
  EXPECT_FAILS(snapshot("names: 'b@s' names: 'b@t'"), kInvalidArgument, DUPLICATE_NAME);
  EXPECT_FAILS(snapshot("names: 'b'"), kInvalidArgument, INVALID_NAME);
  EXPECT_FAILS(snapshot("names: 'b@latest'"), kInvalidArgument, INVALID_NAME);
  EXPECT_FAILS(snapshot("prefix: 'b' names: 'b@s' snapshot: 's'"), kInvalidArgument, INVALID_FIELD);
  EXPECT_FAILS(snapshot("prefix: 'b'"), kInvalidArgument, INVALID_FIELD);
  EXPECT_FAILS(snapshot("prefix: 'nothing' snapshot: 's'"), kNotFound, DATASET_NOT_FOUND);
  std::string many;
  for (int i = 0; i <= 10000; ++i) many += "names: 'b@" + std::to_string(i) + "' ";
  EXPECT_FAILS(snapshot(many), kInvalidArgument, TOO_MANY_NAMES);
  EXPECT_EQ(Call(datasets(), &Datasets::ListSnapshots, "dataset: 'b'").snapshots_size(), 0);
}

TEST_F(LifecycleTest, CloneOfASnapshotSharesItsBytes) {
  Create("a");
  Write("a", 0, "moo");
  Snapshot({"a@s"});
  Write("a", 0, "baa");
  const auto clone = Clone("a@latest", "b");
  EXPECT_EQ(clone.origin(), "a@s");
  EXPECT_FALSE(clone.origin_uid().empty());
  EXPECT_EQ(clone.used_bytes(), 0u);
  EXPECT_EQ(Read("b", 0, 3), "moo");
  EXPECT_EQ(Read("a", 0, 3), "baa");
}

TEST_F(LifecycleTest, CloneOfAHeadHidesItsOrigin) {
  Create("a");
  Write("a", 0, "moo");
  const auto clone = Clone("a", "b");
  EXPECT_EQ(clone.origin(), "");
  EXPECT_FALSE(clone.origin_uid().empty());
  EXPECT_EQ(Read("b", 0, 3), "moo");
  EXPECT_EQ(Call(datasets(), &Datasets::ListSnapshots, "dataset: 'a'").snapshots_size(), 0);
}

TEST_F(LifecycleTest, CloneReplacesInOneTxg) {
  Create("a");
  Write("a", 0, "moo");
  Snapshot({"a@s"});
  const auto first = Clone("a@s", "b");
  Write("b", 0, "baa");
  const auto reply =
      Call(datasets(), &Datasets::CloneDataset,
           "source: 'a@s' name: 'b' replace: true replace_etag: '" + first.etag() + "'");
  EXPECT_NE(reply.dataset().uid(), first.uid());
  EXPECT_EQ(reply.operation().kind(), v1::OPERATION_KIND_DESTROY_DATASETS);
  EXPECT_EQ(Read("b", 0, 3), "moo");
}

TEST_F(LifecycleTest, CloneRefusesWhatIsWrong) {
  Create("a");
  Create("b");
  Snapshot({"a@s", "b@s"});
  const auto clone = [this](const std::string& request) {
    return Try(datasets(), &Datasets::CloneDataset, request);
  };
  EXPECT_FAILS(clone("source: 'a@t' name: 'c'"), kNotFound, SNAPSHOT_NOT_FOUND);
  EXPECT_FAILS(clone("source: 'z' name: 'c'"), kNotFound, DATASET_NOT_FOUND);
  EXPECT_FAILS(clone("source: 'z@latest' name: 'c'"), kNotFound, DATASET_NOT_FOUND);
  EXPECT_FAILS(clone("source: 'a@s' name: 'b'"), kAlreadyExists, DATASET_EXISTS);
  EXPECT_FAILS(clone("source: 'a@s' name: 'c@t'"), kInvalidArgument, INVALID_NAME);
  EXPECT_FAILS(clone("source: 'a@s' name: 'b' replace: true"), kFailedPrecondition,
               DATASET_HAS_SNAPSHOTS);
  EXPECT_FAILS(clone("source: 'a@s' name: 'c' replace_etag: 'x'"), kInvalidArgument, INVALID_FIELD);
  Create("c");
  EXPECT_FAILS(clone("source: 'a@s' name: 'c' replace: true replace_etag: 'x'"), kAborted,
               ETAG_MISMATCH);
  EXPECT_FAILS(clone("source: 'a' name: 'a' replace: true"), kInvalidArgument, INVALID_FIELD);
}

TEST_F(LifecycleTest, UpdateSetsWhatTheMaskNames) {
  const auto made = Create("a");
  auto reply = Call(datasets(), &Datasets::UpdateDataset, R"(
      dataset { name: 'a' size_bytes: 2097152 quota_bytes: 9999999 }
      update_mask { paths: 'size_bytes' paths: 'quota_bytes' }
      set_labels { key: 'k' value: 'v' } ttl { seconds: 60 })");
  EXPECT_EQ(reply.dataset().size_bytes(), 2097152u);
  EXPECT_EQ(reply.dataset().quota_bytes(), 9999999u);
  EXPECT_EQ(reply.dataset().labels().at("k"), "v");
  EXPECT_TRUE(reply.dataset().has_expire_time());
  EXPECT_NE(reply.dataset().etag(), made.etag());
  reply = Call(datasets(), &Datasets::UpdateDataset,
               "dataset { name: 'a' } update_mask { paths: 'quota_bytes' paths: 'expire_time' } "
               "remove_labels: 'k' remove_labels: 'not-there' etag: '" +
                   reply.dataset().etag() + "'");
  EXPECT_FALSE(reply.dataset().has_quota_bytes());
  EXPECT_FALSE(reply.dataset().has_expire_time());
  EXPECT_TRUE(reply.dataset().labels().empty());
  EXPECT_EQ(reply.dataset().size_bytes(), 2097152u);
}

TEST_F(LifecycleTest, UpdateRefusesWhatIsWrong) {
  Create("a");
  const auto update = [this](const std::string& request) {
    return Try(datasets(), &Datasets::UpdateDataset, request);
  };
  EXPECT_FAILS(update("dataset { name: 'z' } set_labels { key: 'k' value: 'v' }"), kNotFound,
               DATASET_NOT_FOUND);
  EXPECT_FAILS(update("dataset { name: 'a' } etag: 'x' set_labels { key: 'k' value: 'v' }"),
               kAborted, ETAG_MISMATCH);
  EXPECT_FAILS(update("dataset { name: 'a' } update_mask { paths: 'name' }"), kInvalidArgument,
               INVALID_UPDATE_MASK);
  EXPECT_FAILS(update("dataset { name: 'a' } update_mask { paths: 'colour' }"), kInvalidArgument,
               INVALID_UPDATE_MASK);
  EXPECT_FAILS(update("dataset { name: 'a' } update_mask { paths: '*' }"), kInvalidArgument,
               INVALID_UPDATE_MASK);
  EXPECT_FAILS(update("dataset { name: 'a' } update_mask { paths: 'size_bytes' }"),
               kInvalidArgument, INVALID_SIZE);
  EXPECT_FAILS(update("dataset { name: 'a' } update_mask { paths: 'expire_time' } "
                      "ttl { seconds: 5 }"),
               kInvalidArgument, INVALID_FIELD);
  EXPECT_FAILS(
      update("dataset { name: 'a' } set_labels { key: 'k' value: 'v' } remove_labels: 'k'"),
      kInvalidArgument, INVALID_LABEL);
}

TEST_F(LifecycleTest, RenameTakesTheSnapshotsAlong) {
  const auto made = Create("a");
  Snapshot({"a@s"});
  const auto reply = Call(datasets(), &Datasets::RenameDataset, "name: 'a' new_name: 'b/c'");
  EXPECT_EQ(reply.dataset().uid(), made.uid());
  EXPECT_EQ(Call(datasets(), &Datasets::GetSnapshot, "name: 'b/c@s'").dataset_uid(), made.uid());
  const auto renamed =
      Call(datasets(), &Datasets::RenameSnapshot, "name: 'b/c@s' new_name: 'b/c@t'");
  EXPECT_EQ(renamed.snapshot().name(), "b/c@t");
}

TEST_F(LifecycleTest, RenameRefusesWhatIsWrong) {
  Create("a");
  Create("b");
  Snapshot({"a@s"});
  Snapshot({"a@t"});
  const auto dataset = [this](const std::string& request) {
    return Try(datasets(), &Datasets::RenameDataset, request);
  };
  EXPECT_FAILS(dataset("name: 'a' new_name: 'b'"), kAlreadyExists, DATASET_EXISTS);
  EXPECT_FAILS(dataset("name: 'z' new_name: 'y'"), kNotFound, DATASET_NOT_FOUND);
  EXPECT_FAILS(dataset("name: 'a' new_name: '" + std::string(255, 'x') + "'"), kInvalidArgument,
               INVALID_NAME);
  EXPECT_FAILS(dataset("name: 'a' new_name: 'c' etag: 'x'"), kAborted, ETAG_MISMATCH);
  const auto snapshot = [this](const std::string& request) {
    return Try(datasets(), &Datasets::RenameSnapshot, request);
  };
  EXPECT_FAILS(snapshot("name: 'a@s' new_name: 'a@t'"), kAlreadyExists, SNAPSHOT_EXISTS);
  EXPECT_FAILS(snapshot("name: 'a@z' new_name: 'a@y'"), kNotFound, SNAPSHOT_NOT_FOUND);
  EXPECT_FAILS(snapshot("name: 'a@s' new_name: 'b@s'"), kInvalidArgument, INVALID_NAME);
  EXPECT_FAILS(snapshot("name: 'a@latest' new_name: 'a@y'"), kInvalidArgument, INVALID_NAME);
}

TEST_F(LifecycleTest, UnknownObjectsAreNotFound) {
  EXPECT_FAILS(Try(datasets(), &Datasets::GetDataset, "name: 'a'"), kNotFound, DATASET_NOT_FOUND);
  EXPECT_FAILS(Try(datasets(), &Datasets::GetSnapshot, "name: 'a@s'"), kNotFound,
               DATASET_NOT_FOUND);
  EXPECT_FAILS(Try(datasets(), &Datasets::ListSnapshots, "dataset: 'a'"), kNotFound,
               DATASET_NOT_FOUND);
  Create("a");
  EXPECT_FAILS(Try(datasets(), &Datasets::GetSnapshot, "name: 'a@s'"), kNotFound,
               SNAPSHOT_NOT_FOUND);
  EXPECT_FAILS(Try(datasets(), &Datasets::GetSnapshot, "name: 'a@latest'"), kNotFound,
               SNAPSHOT_NOT_FOUND);
  EXPECT_FAILS(Try(datasets(), &Datasets::ListHolds, "snapshot: 'a@s'"), kNotFound,
               SNAPSHOT_NOT_FOUND);
}

TEST_F(LifecycleTest, ExpiredDatasetIsDestroyedByTheServer) {
  pool_options_.expire_poll = std::chrono::milliseconds(10);
  Restart();
  Call(datasets(), &Datasets::CreateDataset, "name: 'a' size_bytes: 4096 ttl { nanos: 50000000 }");
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (Try(datasets(), &Datasets::GetDataset, "name: 'a'").ok() &&
         std::chrono::steady_clock::now() < deadline) {
  }
  EXPECT_FAILS(Try(datasets(), &Datasets::GetDataset, "name: 'a'"), kNotFound, DATASET_NOT_FOUND);
  EXPECT_EQ(pool_->stats().expired, 1u);
}

}  // namespace
}  // namespace cowshed::service

// SPDX-License-Identifier: Apache-2.0
//
// Destroy, hold, roll back, promote over the wire: what each answers, what blocks it, and that the
// blockers are all told.
#include <gmock/gmock.h>

#include <set>

#include "tests/service/server_fixture.h"

namespace cowshed::service {
namespace {

using testing::ElementsAre;

class DestroyTest : public ServerTest {
 protected:
  grpc::Status Destroy(const std::string& request) {
    return Try(datasets(), &Datasets::DestroyDatasets, request);
  }
  grpc::Status DestroySnapshots(const std::string& request) {
    return Try(datasets(), &Datasets::DestroySnapshots, request);
  }
  grpc::Status Rollback(const std::string& request) {
    return Try(datasets(), &Datasets::RollbackDataset, request);
  }
  std::vector<std::string> AllBlockers(const std::string& list_token, int page_size = 100) {
    std::vector<std::string> names;
    std::string token;
    do {
      const auto page = Call(datasets(), &Datasets::ListBlockers,
                             "list_token: '" + list_token + "' page_token: '" + token +
                                 "' page_size: " + std::to_string(page_size));
      for (const auto& blocker : page.blockers()) names.push_back(blocker.name());
      token = page.next_page_token();
    } while (!token.empty());
    return names;
  }
};

TEST_F(DestroyTest, NamesAreGoneAtOnceAndTheOperationEnds) {
  Create("ci/a");
  Write("ci/a", 0, std::string(100000, 'x'));
  Create("ci/b");
  Create("cix");
  const auto reply = Call(datasets(), &Datasets::DestroyDatasets, "prefix: 'ci'");
  EXPECT_GT(reply.txg(), 0u);
  EXPECT_EQ(reply.plan().dataset_count(), 2u);
  EXPECT_THAT(ListNames(), ElementsAre("cix"));
  EXPECT_FAILS(Try(datasets(), &Datasets::GetDataset, "name: 'ci/a'"), kNotFound,
               DATASET_NOT_FOUND);
  const auto waited = Call(operations(), &Operations::WaitOperations,
                           "names: '" + reply.operation().name() + "' timeout { seconds: 30 }");
  ASSERT_TRUE(waited.done());
  EXPECT_EQ(waited.operations(0).state(), v1::OPERATION_STATE_SUCCEEDED);
  EXPECT_EQ(waited.operations(0).done_bytes(), waited.operations(0).total_bytes());
}

TEST_F(DestroyTest, OwnSnapshotsBlockUnlessRecursive) {
  Create("a");
  Snapshot({"a@s"});
  Snapshot({"a@t"});
  const auto failure = FailureOf(Destroy("names: 'a'"));
  EXPECT_EQ(failure.code, absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(failure.reason, v1::ErrorReason_Name(v1::DATASET_HAS_SNAPSHOTS));
  EXPECT_EQ(failure.blockers.total(), 2u);
  ASSERT_EQ(failure.blockers.blockers_size(), 2);
  EXPECT_EQ(failure.blockers.blockers(0).kind(), v1::BLOCKER_KIND_SNAPSHOT);
  EXPECT_EQ(failure.blockers.blockers(0).blocked_name(), "a");
  EXPECT_THAT(AllBlockers(failure.blockers.list_token(), 1), ElementsAre("a@s", "a@t"));
  EXPECT_TRUE(Destroy("names: 'a' recursive: true").ok());
}

TEST_F(DestroyTest, ClonesBlockUnlessCascade) {
  Create("a");
  Snapshot({"a@s"});
  Clone("a@s", "b");
  const auto failure = FailureOf(Destroy("names: 'a' recursive: true"));
  EXPECT_EQ(failure.code, absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(failure.reason, v1::ErrorReason_Name(v1::SNAPSHOT_HAS_CLONES));
  ASSERT_EQ(failure.blockers.blockers_size(), 1);
  EXPECT_EQ(failure.blockers.blockers(0).kind(), v1::BLOCKER_KIND_CLONE);
  EXPECT_EQ(failure.blockers.blockers(0).name(), "b");
  EXPECT_EQ(failure.blockers.blockers(0).blocked_name(), "a@s");
  EXPECT_FAILS(DestroySnapshots("names: 'a@s'"), kFailedPrecondition, SNAPSHOT_HAS_CLONES);
  EXPECT_TRUE(Destroy("names: 'a' cascade: true").ok());
  EXPECT_TRUE(ListNames().empty());
}

TEST_F(DestroyTest, HoldsBlockAndDeferWaitsForTheLast) {
  Create("a");
  Snapshot({"a@s"});
  const auto hold = Call(datasets(), &Datasets::HoldSnapshot,
                         "snapshot: 'a@latest' tag: 'keep' owner: 'ops' ttl { seconds: 600 }");
  EXPECT_EQ(hold.hold().snapshot(), "a@s");
  EXPECT_TRUE(hold.hold().has_expire_time());
  const auto failure = FailureOf(DestroySnapshots("names: 'a@s'"));
  EXPECT_EQ(failure.code, absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(failure.reason, v1::ErrorReason_Name(v1::SNAPSHOT_HAS_HOLDS));
  ASSERT_EQ(failure.blockers.blockers_size(), 1);
  EXPECT_EQ(failure.blockers.blockers(0).kind(), v1::BLOCKER_KIND_HOLD);
  EXPECT_EQ(failure.blockers.blockers(0).tag(), "keep");
  EXPECT_FAILS(Destroy("names: 'a' recursive: true"), kFailedPrecondition, SNAPSHOT_HAS_HOLDS);

  const auto deferred = Call(datasets(), &Datasets::DestroySnapshots, "names: 'a@s' defer: true");
  EXPECT_EQ(deferred.plan().deferred_count(), 1u);
  EXPECT_FALSE(deferred.has_operation());
  const auto listed = Call(datasets(), &Datasets::ListHolds, "prefix: 'a'");
  ASSERT_EQ(listed.holds_size(), 1);
  EXPECT_EQ(listed.holds(0).owner(), "ops");
  const auto released = Call(datasets(), &Datasets::ReleaseHold, "snapshot: 'a@s' tag: 'keep'");
  EXPECT_TRUE(released.snapshot_destroyed());
  EXPECT_EQ(released.hold().tag(), "keep");
  EXPECT_FAILS(Try(datasets(), &Datasets::GetSnapshot, "name: 'a@s'"), kNotFound,
               SNAPSHOT_NOT_FOUND);
}

TEST_F(DestroyTest, HoldRefusesWhatIsWrong) {
  Create("a");
  Snapshot({"a@s"});
  const auto hold = [this](const std::string& request) {
    return Try(datasets(), &Datasets::HoldSnapshot, request);
  };
  EXPECT_TRUE(hold("snapshot: 'a@s' tag: 't'").ok());
  EXPECT_FAILS(hold("snapshot: 'a@s' tag: 't'"), kAlreadyExists, HOLD_EXISTS);
  EXPECT_FAILS(hold("snapshot: 'a@z' tag: 't'"), kNotFound, SNAPSHOT_NOT_FOUND);
  EXPECT_FAILS(hold("snapshot: 'a@s' tag: ''"), kInvalidArgument, INVALID_FIELD);
  EXPECT_FAILS(Try(datasets(), &Datasets::ReleaseHold, "snapshot: 'a@s' tag: 'z'"), kNotFound,
               HOLD_NOT_FOUND);
  EXPECT_FAILS(Try(datasets(), &Datasets::ReleaseHold, "snapshot: 'a@z' tag: 't'"), kNotFound,
               SNAPSHOT_NOT_FOUND);
}

TEST_F(DestroyTest, DestroyIsAllOrNone) {
  Create("a");
  Create("b");
  EXPECT_FAILS(Destroy("names: 'a' names: 'z'"), kNotFound, DATASET_NOT_FOUND);
  EXPECT_FAILS(Destroy("names: 'a' names: 'a'"), kInvalidArgument, DUPLICATE_NAME);
  EXPECT_FAILS(Destroy("names: 'a' etags { key: 'a' value: 'x' }"), kAborted, ETAG_MISMATCH);
  EXPECT_FAILS(Destroy(""), kInvalidArgument, INVALID_FIELD);
  EXPECT_FAILS(Destroy("names: 'a' prefix: 'a'"), kInvalidArgument, INVALID_FIELD);
  EXPECT_FAILS(Destroy("prefix: 'z'"), kNotFound, DATASET_NOT_FOUND);
  std::string many;
  for (int i = 0; i <= 10000; ++i) many += "names: 'x" + std::to_string(i) + "' ";
  EXPECT_FAILS(Destroy(many), kInvalidArgument, TOO_MANY_NAMES);
  EXPECT_THAT(ListNames(), ElementsAre("a", "b"));
  const auto missing =
      Call(datasets(), &Datasets::DestroyDatasets, "names: 'z' allow_missing: true");
  EXPECT_EQ(missing.txg(), 0u);
  EXPECT_FALSE(missing.has_operation());
}

TEST_F(DestroyTest, PlanTellsWhatWouldHappenAndHoldsToIt) {
  Create("a");
  Write("a", 0, std::string(50000, 'x'));
  Snapshot({"a@s"});
  const auto plan =
      Call(datasets(), &Datasets::DestroyDatasets, "names: 'a' validate_only: true").plan();
  EXPECT_EQ(plan.blockers().total(), 1u);
  EXPECT_THAT(AllBlockers(plan.blockers().list_token()), ElementsAre("a@s"));
  const auto recursive =
      Call(datasets(), &Datasets::DestroyDatasets, "names: 'a' recursive: true validate_only: true")
          .plan();
  EXPECT_FALSE(recursive.has_blockers());
  EXPECT_EQ(recursive.dataset_count(), 1u);
  EXPECT_EQ(recursive.snapshot_count(), 1u);
  EXPECT_GE(recursive.freed_bytes(), 50000u);
  EXPECT_THAT(ListNames(), ElementsAre("a"));
  Snapshot({"a@t"});
  const std::string stale = "names: 'a' recursive: true plan_etag: '" + recursive.plan_etag() + "'";
  EXPECT_FAILS(Destroy(stale), kAborted, PLAN_CHANGED);
  const auto fresh =
      Call(datasets(), &Datasets::DestroyDatasets, "names: 'a' recursive: true validate_only: true")
          .plan();
  EXPECT_TRUE(Destroy("names: 'a' recursive: true plan_etag: '" + fresh.plan_etag() + "'").ok());
}

TEST_F(DestroyTest, SnapshotsGoByNameAndByRange) {
  Create("a");
  for (const char* name : {"a@1", "a@2", "a@3", "a@4", "a@5"}) Snapshot({name});
  EXPECT_TRUE(DestroySnapshots("names: 'a@1'").ok());
  const auto range =
      Call(datasets(), &Datasets::DestroySnapshots, "range { dataset: 'a' first: '3' last: '4' }");
  EXPECT_EQ(range.plan().snapshot_count(), 2u);
  EXPECT_FAILS(DestroySnapshots("names: 'a@1'"), kNotFound, SNAPSHOT_NOT_FOUND);
  EXPECT_TRUE(DestroySnapshots("names: 'a@1' allow_missing: true").ok());
  EXPECT_FAILS(DestroySnapshots("range { dataset: 'z' }"), kNotFound, DATASET_NOT_FOUND);
  EXPECT_FAILS(DestroySnapshots("range { first: '3' }"), kInvalidArgument, INVALID_FIELD);
  EXPECT_FAILS(DestroySnapshots("names: 'a@2' range { dataset: 'a' }"), kInvalidArgument,
               INVALID_FIELD);
  EXPECT_FAILS(DestroySnapshots("names: 'a@2' names: 'a@2'"), kInvalidArgument, DUPLICATE_NAME);
  const auto left = Call(datasets(), &Datasets::ListSnapshots, "dataset: 'a'");
  ASSERT_EQ(left.snapshots_size(), 2);
  EXPECT_EQ(left.snapshots(0).name(), "a@2");
  EXPECT_EQ(left.snapshots(1).name(), "a@5");
}

TEST_F(DestroyTest, RollbackForgetsWhatCameAfter) {
  Create("a");
  Write("a", 0, "old");
  Snapshot({"a@s"});
  Write("a", 0, "new");
  const auto reply = Call(datasets(), &Datasets::RollbackDataset, "name: 'a' expected_target: 's'");
  EXPECT_EQ(reply.target(), "a@s");
  EXPECT_GT(reply.txg(), 0u);
  EXPECT_EQ(Read("a", 0, 3), "old");
}

TEST_F(DestroyTest, ResetGoesBackToTheOrigin) {
  Create("a");
  Write("a", 0, "old");
  Snapshot({"a@s"});
  Clone("a@s", "b");
  Write("b", 0, "new");
  const auto reply = Call(datasets(), &Datasets::RollbackDataset, "name: 'b' origin: true");
  EXPECT_EQ(reply.target(), "a@s");
  EXPECT_EQ(Read("b", 0, 3), "old");
}

TEST_F(DestroyTest, RollbackRefusesWhatIsWrong) {
  Create("a");
  EXPECT_FAILS(Rollback("name: 'z'"), kNotFound, DATASET_NOT_FOUND);
  EXPECT_FAILS(Rollback("name: 'a'"), kFailedPrecondition, NO_ROLLBACK_TARGET);
  EXPECT_FAILS(Rollback("name: 'a' origin: true"), kFailedPrecondition, NOT_A_CLONE);
  EXPECT_FAILS(Rollback("name: 'a' origin: false"), kInvalidArgument, INVALID_FIELD);
  EXPECT_FAILS(Rollback("name: 'a' snapshot: 'b@s'"), kInvalidArgument, INVALID_FIELD);
  Snapshot({"a@s"});
  Snapshot({"a@t"});
  EXPECT_FAILS(Rollback("name: 'a' snapshot: 'a@z'"), kNotFound, SNAPSHOT_NOT_FOUND);
  EXPECT_FAILS(Rollback("name: 'a' etag: 'x'"), kAborted, ETAG_MISMATCH);
  const auto changed = FailureOf(Rollback("name: 'a' expected_target: 's'"));
  EXPECT_EQ(changed.code, absl::StatusCode::kAborted);
  EXPECT_EQ(changed.reason, v1::ErrorReason_Name(v1::ROLLBACK_TARGET_CHANGED));
  const auto newer = FailureOf(Rollback("name: 'a' snapshot: 'a@s'"));
  EXPECT_EQ(newer.code, absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(newer.reason, v1::ErrorReason_Name(v1::NEWER_SNAPSHOTS_EXIST));
  EXPECT_THAT(AllBlockers(newer.blockers.list_token()), ElementsAre("a@t"));
  EXPECT_TRUE(Rollback("name: 'a' snapshot: 'a@s' destroy_newer: true").ok());
  EXPECT_FAILS(Try(datasets(), &Datasets::GetSnapshot, "name: 'a@t'"), kNotFound,
               SNAPSHOT_NOT_FOUND);
}

TEST_F(DestroyTest, RollbackRefusesOverClonesAndHolds) {
  Create("a");
  Snapshot({"a@s"});
  Snapshot({"a@t"});
  Clone("a@t", "b");
  const std::string request = "name: 'a' snapshot: 'a@s' destroy_newer: true";
  EXPECT_FAILS(Rollback(request), kFailedPrecondition, SNAPSHOT_HAS_CLONES);
  EXPECT_TRUE(Destroy("names: 'b'").ok());
  Call(datasets(), &Datasets::HoldSnapshot, "snapshot: 'a@t' tag: 'x'");
  EXPECT_FAILS(Rollback(request), kFailedPrecondition, SNAPSHOT_HAS_HOLDS);
}

TEST_F(DestroyTest, PromoteTurnsCloneAndOriginAround) {
  const auto parent = Create("a");
  Write("a", 0, "moo");
  Snapshot({"a@s"});
  const auto clone = Clone("a@s", "b");
  const auto reply = Call(datasets(), &Datasets::PromoteDataset, "name: 'b'");
  EXPECT_EQ(reply.dataset().uid(), clone.uid());
  EXPECT_EQ(reply.dataset().origin(), "");
  EXPECT_EQ(reply.former_parent().uid(), parent.uid());
  EXPECT_EQ(reply.former_parent().origin(), "b@s");
  EXPECT_EQ(reply.moved_snapshot_count(), 1u);
  EXPECT_EQ(Read("a", 0, 3), "moo");
}

TEST_F(DestroyTest, PromoteRefusesWhatIsWrong) {
  Create("a");
  Snapshot({"a@s"});
  Clone("a@s", "b");
  Snapshot({"b@s"});
  const auto promote = [this](const std::string& request) {
    return Try(datasets(), &Datasets::PromoteDataset, request);
  };
  EXPECT_FAILS(promote("name: 'z'"), kNotFound, DATASET_NOT_FOUND);
  EXPECT_FAILS(promote("name: 'a'"), kFailedPrecondition, NOT_A_CLONE);
  EXPECT_FAILS(promote("name: 'b' etag: 'x'"), kAborted, ETAG_MISMATCH);
  const auto collision = FailureOf(promote("name: 'b'"));
  EXPECT_EQ(collision.code, absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(collision.reason, v1::ErrorReason_Name(v1::SNAPSHOT_NAME_COLLISION));
  ASSERT_EQ(collision.blockers.total(), 1u);
  EXPECT_EQ(collision.blockers.blockers(0).kind(), v1::BLOCKER_KIND_NAME_COLLISION);
  EXPECT_EQ(AllBlockers(collision.blockers.list_token()).size(), 1u);
}

TEST_F(DestroyTest, FiveThousandClonesAreAllTold) {
  constexpr size_t kClones = 5000;
  Create("golden");
  Snapshot({"golden@s"});
  std::vector<std::thread> makers;
  for (size_t maker = 0; maker < 8; ++maker) {
    makers.emplace_back([this, maker] {
      for (size_t i = maker; i < kClones; i += 8) Clone("golden@s", "c/" + std::to_string(i));
    });
  }
  for (auto& maker : makers) maker.join();
  const auto failure = FailureOf(DestroySnapshots("names: 'golden@s'"));
  EXPECT_EQ(failure.reason, v1::ErrorReason_Name(v1::SNAPSHOT_HAS_CLONES));
  EXPECT_EQ(failure.blockers.total(), kClones);
  EXPECT_LE(failure.blockers.blockers_size(), 20);
  EXPECT_LE(failure.details_bytes, kMaxDetailsBytes);
  const auto names = AllBlockers(failure.blockers.list_token(), 1000);
  EXPECT_EQ(names.size(), kClones);
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), kClones);
  // The token tells of things as they are: what has gone no longer blocks.
  const auto destroyed = Call(datasets(), &Datasets::DestroyDatasets, "prefix: 'c'");
  EXPECT_TRUE(Call(operations(), &Operations::WaitOperations,
                   "names: '" + destroyed.operation().name() + "' timeout { seconds: 60 }")
                  .done());
  EXPECT_TRUE(AllBlockers(failure.blockers.list_token()).empty());
  EXPECT_TRUE(DestroySnapshots("names: 'golden@s'").ok());
}

TEST_F(DestroyTest, MoreBlockedObjectsThanATokenHoldsAreAllTold) {
  std::set<std::string> expected;
  std::string request;
  for (int i = 0; i < 100; ++i) {
    const std::string name = "d" + std::to_string(i);
    Create(name, 4096);
    request += "names: '" + name + "' ";
    expected.insert(name + "@s");
  }
  Call(datasets(), &Datasets::CreateSnapshots, [&] {
    std::string names;
    for (const auto& name : expected) names += "names: '" + name + "' ";
    return names;
  }());
  const auto failure = FailureOf(Destroy(request));
  EXPECT_EQ(failure.blockers.total(), 100u);
  const auto names = AllBlockers(failure.blockers.list_token(), 7);
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()), expected);
}

TEST_F(DestroyTest, LongNamesLeaveRoomForTheReason) {
  const std::string name(200, 'n');
  Create(name);
  for (int i = 0; i < 20; ++i) {
    Snapshot({name + "@" + std::string(40, 's') + std::to_string(i)});
  }
  const auto failure = FailureOf(Destroy("names: '" + name + "'"));
  EXPECT_EQ(failure.reason, v1::ErrorReason_Name(v1::DATASET_HAS_SNAPSHOTS));
  EXPECT_EQ(failure.blockers.total(), 20u);
  EXPECT_LE(failure.details_bytes, kMaxDetailsBytes);
  EXPECT_GT(failure.blockers.blockers_size(), 0);
  EXPECT_EQ(AllBlockers(failure.blockers.list_token()).size(), 20u);
}

}  // namespace
}  // namespace cowshed::service

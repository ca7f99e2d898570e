// SPDX-License-Identifier: Apache-2.0
//
// request_id: a call repeated does nothing twice and gets the first answer, across restarts and
// after the object has gone.
#include <gmock/gmock.h>

#include <thread>

#include "tests/service/server_fixture.h"

namespace cowshed::service {
namespace {

using testing::ElementsAre;

class RequestIdTest : public ServerTest {};

constexpr char kCreate[] = "name: 'a' size_bytes: 4096 request_id: 'r1'";

TEST_F(RequestIdTest, RepeatGetsTheFirstReply) {
  const auto first = Call(datasets(), &Datasets::CreateDataset, kCreate);
  const auto again = Call(datasets(), &Datasets::CreateDataset, kCreate);
  EXPECT_EQ(again.DebugString(), first.DebugString());
  EXPECT_EQ(pool_->stats().request_replays, 1u);
}

TEST_F(RequestIdTest, RepeatOutlivesObjectAndServer) {
  const auto first = Call(datasets(), &Datasets::CreateDataset, kCreate);
  Call(datasets(), &Datasets::DestroyDatasets, "names: 'a'");
  Restart();
  const auto again = Call(datasets(), &Datasets::CreateDataset, kCreate);
  EXPECT_EQ(again.DebugString(), first.DebugString());
  EXPECT_TRUE(ListNames().empty());
}

TEST_F(RequestIdTest, EveryVerbRepeats) {
  const auto repeats = [this](auto& stub, auto method, const std::string& request) {
    const std::string with_id = request + " request_id: 'same'";
    const auto first = Call(stub, method, with_id);
    EXPECT_EQ(Call(stub, method, with_id).DebugString(), first.DebugString()) << request;
  };
  repeats(datasets(), &Datasets::CreateDataset, "name: 'a' size_bytes: 4096");
  repeats(datasets(), &Datasets::UpdateDataset,
          "dataset { name: 'a' } set_labels { key: 'k' value: 'v' }");
  repeats(datasets(), &Datasets::CreateSnapshots, "names: 'a@s'");
  repeats(datasets(), &Datasets::HoldSnapshot, "snapshot: 'a@s' tag: 't'");
  repeats(datasets(), &Datasets::ReleaseHold, "snapshot: 'a@s' tag: 't'");
  repeats(datasets(), &Datasets::CloneDataset, "source: 'a@s' name: 'b'");
  repeats(datasets(), &Datasets::PromoteDataset, "name: 'b'");
  repeats(datasets(), &Datasets::RenameDataset, "name: 'a' new_name: 'c'");
  repeats(datasets(), &Datasets::RenameSnapshot, "name: 'b@s' new_name: 'b@t'");
  repeats(datasets(), &Datasets::RollbackDataset, "name: 'b'");
  repeats(datasets(), &Datasets::DestroyDatasets, "names: 'c'");
  repeats(datasets(), &Datasets::DestroySnapshots, "names: 'b@t'");
}

TEST_F(RequestIdTest, RepeatInFlightJoinsTheFirst) {
  constexpr int kCallers = 16;
  std::vector<v1::CreateDatasetResponse> replies(kCallers);
  std::vector<std::thread> callers;
  for (int i = 0; i < kCallers; ++i) {
    callers.emplace_back(
        [this, &replies, i] { replies[i] = Call(datasets(), &Datasets::CreateDataset, kCreate); });
  }
  for (auto& caller : callers) caller.join();
  for (const auto& reply : replies) {
    EXPECT_EQ(reply.DebugString(), replies[0].DebugString());
  }
  EXPECT_THAT(ListNames(), ElementsAre("a"));
}

TEST_F(RequestIdTest, OtherContentsAreRefused) {
  Call(datasets(), &Datasets::CreateDataset, kCreate);
  EXPECT_FAILS(
      Try(datasets(), &Datasets::CreateDataset, "name: 'a' size_bytes: 8192 request_id: 'r1'"),
      kInvalidArgument, REQUEST_ID_REUSED);
}

TEST_F(RequestIdTest, BelongsToMethodAndCaller) {
  Call(datasets(), &Datasets::CreateDataset, kCreate);
  Call(datasets(), &Datasets::CreateSnapshots, "names: 'a@s' request_id: 'r1'");
  // Over TCP the caller is another one than over the unix socket.
  const auto tcp = v1::DatasetService::NewStub(Connect(tcp_address()));
  EXPECT_FAILS(Try(*tcp, &Datasets::CreateDataset, kCreate), kAlreadyExists, DATASET_EXISTS);
}

TEST_F(RequestIdTest, FailuresAreNotKept) {
  const std::string clone = "source: 'a@s' name: 'b' request_id: 'r2'";
  EXPECT_FAILS(Try(datasets(), &Datasets::CloneDataset, clone), kNotFound, DATASET_NOT_FOUND);
  Create("a");
  Snapshot({"a@s"});
  EXPECT_TRUE(Try(datasets(), &Datasets::CloneDataset, clone).ok());
}

TEST_F(RequestIdTest, PlansAreMadeAnew) {
  Create("a");
  const std::string plan = "names: 'a' recursive: true validate_only: true request_id: 'r3'";
  EXPECT_EQ(Call(datasets(), &Datasets::DestroyDatasets, plan).plan().snapshot_count(), 0u);
  Snapshot({"a@s"});
  EXPECT_EQ(Call(datasets(), &Datasets::DestroyDatasets, plan).plan().snapshot_count(), 1u);
}

TEST_F(RequestIdTest, TooLongIsRefused) {
  EXPECT_FAILS(Try(datasets(), &Datasets::CreateDataset,
                   "name: 'a' size_bytes: 4096 request_id: '" + std::string(65, 'r') + "'"),
               kInvalidArgument, INVALID_FIELD);
}

}  // namespace
}  // namespace cowshed::service

// SPDX-License-Identifier: Apache-2.0
#include "service/status.h"

#include <gmock/gmock.h>

#include "service/tokens.h"
#include "tests/service/server_fixture.h"

namespace cowshed::service {
namespace {

class StatusTest : public testing::Test {
 protected:
  Tokens tokens_{"a pool's uid"};
};

TEST_F(StatusTest, CodeReasonAndMetadataTravel) {
  const auto failure = FailureOf(ToGrpc(Error(absl::StatusCode::kNotFound, v1::DATASET_NOT_FOUND,
                                              "dataset a not found", {{"name", "a"}}),
                                        tokens_));
  EXPECT_EQ(failure.code, absl::StatusCode::kNotFound);
  EXPECT_EQ(failure.reason, "DATASET_NOT_FOUND");
  EXPECT_EQ(failure.message, "dataset a not found");
  EXPECT_EQ(failure.metadata.at("name"), "a");
  EXPECT_FALSE(failure.retry);
  EXPECT_TRUE(ToGrpc(absl::OkStatus(), tokens_).ok());
}

TEST_F(StatusTest, ErrorWithoutAReasonIsADefect) {
  EXPECT_FAILS(ToGrpc(absl::NotFoundError("key"), tokens_), kInternal, INTERNAL);
  EXPECT_EQ(ToGrpc(absl::CancelledError(), tokens_).error_code(), grpc::StatusCode::CANCELLED);
}

// A call that met no free reader of the metadata was told of a defect of the server.
TEST_F(StatusTest, WhatTheMachineLacksForNowIsNoDefect) {
  const auto failure = FailureOf(ToGrpc(absl::ResourceExhaustedError("MDB_READERS_FULL"), tokens_));
  EXPECT_EQ(failure.code, absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(failure.reason, "SERVER_BUSY");
  EXPECT_TRUE(failure.retry);
}

TEST_F(StatusTest, WaitingHelpsOnlyWhereItIsSaid) {
  const auto retries = [&](v1::ErrorReason reason) {
    return FailureOf(ToGrpc(Error(absl::StatusCode::kUnavailable, reason, "x"), tokens_)).retry;
  };
  EXPECT_TRUE(retries(v1::SERVER_BUSY));
  EXPECT_TRUE(retries(v1::TOO_MANY_STREAMS));
  EXPECT_TRUE(retries(v1::SERVER_STOPPING));
  EXPECT_FALSE(retries(v1::POOL_FULL));
}

TEST_F(StatusTest, DetailsAndMessageAreCutToSize) {
  engine::ErrorDetails details;
  details.reason = "SNAPSHOT_HAS_CLONES";
  details.blockers.total = 70;
  for (int i = 0; i < 20; ++i) {
    details.blockers.first.push_back(
        {engine::BlockerKind::kClone, std::string(255, 'c'), std::string(255, 's'), ""});
  }
  details.blockers.query.targets.resize(Tokens::kTargetsInToken,
                                        {engine::BlockerKind::kClone, ~uint64_t{0}, ~uint64_t{0}});
  for (int i = 0; i < 30; ++i) {
    details.metadata["k" + std::to_string(i)] = std::string(300, 'v');
  }
  const auto failure = FailureOf(ToGrpc(
      engine::MakeError(absl::StatusCode::kFailedPrecondition, std::string(5000, 'm'), details),
      tokens_));
  EXPECT_LE(failure.details_bytes, kMaxDetailsBytes);
  EXPECT_EQ(failure.message.size(), kMaxMessageBytes);
  EXPECT_EQ(failure.reason, "SNAPSHOT_HAS_CLONES");
  EXPECT_EQ(failure.blockers.total(), 70u);
  const auto query = engine::ValueOf(tokens_.OpenBlockers(failure.blockers.list_token()));
  EXPECT_EQ(query.targets.size(), Tokens::kTargetsInToken);
}

TEST_F(StatusTest, MessageIsNeverCutWithinACharacter) {
  std::string message(kMaxMessageBytes - 1, 'm');
  message += "\u00e4\u00e4";
  const auto status = ToGrpc(Error(absl::StatusCode::kInternal, v1::INTERNAL, message), tokens_);
  EXPECT_EQ(status.error_message(), std::string(kMaxMessageBytes - 1, 'm'));
}

TEST_F(StatusTest, AddedMetadataYieldsToWhatIsThere) {
  const absl::Status status =
      WithMetadata(Error(absl::StatusCode::kAborted, v1::DATASET_DESTROYED, "x", {{"name", "a"}}),
                   {{"name", "b"}, {"accepted_bytes", "7"}});
  const auto failure = FailureOf(ToGrpc(status, tokens_));
  EXPECT_EQ(failure.metadata.at("name"), "a");
  EXPECT_EQ(failure.metadata.at("accepted_bytes"), "7");
  EXPECT_EQ(ReasonOf(status), "DATASET_DESTROYED");
}

}  // namespace
}  // namespace cowshed::service

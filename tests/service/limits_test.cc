// SPDX-License-Identifier: Apache-2.0
//
// Every limit of docs/api.md: just within it a call works, just past it the answer says which limit
// it was.
#include <gmock/gmock.h>

#include <string>
#include <thread>
#include <vector>

#include "tests/service/server_fixture.h"
#include "tests/support/await.h"

namespace cowshed::service {
namespace {

using std::chrono::milliseconds;

class LimitsTest : public ServerTest {
 protected:
  // A dataset with one label.
  grpc::Status CreateLabelled(const std::string& name, const std::string& key,
                              const std::string& value) {
    return Try(datasets(), &Datasets::CreateDataset,
               "name: '" + name + "' size_bytes: 4096 labels { key: '" + key + "' value: '" +
                   value + "' }");
  }
};

std::string Repeat(const std::string& text, size_t count) {
  std::string all;
  for (size_t i = 0; i < count; ++i) all += text;
  return all;
}

TEST_F(LimitsTest, NamesAreBoundedInBytesAndSoInDepth) {
  const std::string deep = Repeat("d/", 127) + "d";  // 128 segments in 255 bytes
  Create(deep, 4096);
  EXPECT_THAT(ListNames("d"), testing::ElementsAre(deep));
  EXPECT_FAILS(Try(datasets(), &Datasets::CreateDataset,
                   "name: '" + Repeat("d/", 127) + "dd' size_bytes: 4096"),
               kInvalidArgument, INVALID_NAME);
  EXPECT_FAILS(Try(datasets(), &Datasets::GetDataset, "name: '" + std::string(1 << 20, 'n') + "'"),
               kInvalidArgument, INVALID_NAME);
  // A dataset may be so long that no snapshot's name fits behind it.
  EXPECT_FAILS(Try(datasets(), &Datasets::CreateSnapshots, "names: '" + deep + "@s'"),
               kInvalidArgument, INVALID_NAME);
  Call(datasets(), &Datasets::DestroyDatasets, "prefix: 'd'");
}

TEST_F(LimitsTest, PrefixesFollowTheRulesOfNames) {
  Create("a/x", 4096);
  for (const char* prefix : {"a/", "/a", "a//x", "a@s", " "}) {
    EXPECT_FAILS(Try(datasets(), &Datasets::DestroyDatasets,
                     "prefix: '" + std::string(prefix) + "' recursive: true"),
                 kInvalidArgument, INVALID_NAME);
  }
  EXPECT_FAILS(Try(datasets(), &Datasets::DestroyDatasets, "prefix: ''"), kInvalidArgument,
               INVALID_FIELD);
}

// Lists took any prefix and answered nothing for one that breaks the rules.
TEST_F(LimitsTest, ListsRefuseAPrefixThatIsNone) {
  Create("a/x", 4096);
  for (const std::string& prefix : {std::string("a//x"), std::string("a@s"), std::string(256, 'p'),
                                    std::string(1 << 16, 'p')}) {
    const std::string request = "prefix: '" + prefix + "'";
    EXPECT_FAILS(Try(datasets(), &Datasets::ListDatasets, request), kInvalidArgument, INVALID_NAME);
    EXPECT_FAILS(Try(datasets(), &Datasets::ListSnapshots, request), kInvalidArgument,
                 INVALID_NAME);
    EXPECT_FAILS(Try(datasets(), &Datasets::ListHolds, request), kInvalidArgument, INVALID_NAME);
  }
}

TEST_F(LimitsTest, LabelsAreBoundedInSizeAndNumber) {
  EXPECT_TRUE(CreateLabelled("a", std::string(63, 'k'), std::string(255, 'v')).ok());
  EXPECT_FAILS(CreateLabelled("b", std::string(64, 'k'), "v"), kInvalidArgument, INVALID_LABEL);
  EXPECT_FAILS(CreateLabelled("b", "k", std::string(256, 'v')), kInvalidArgument, INVALID_LABEL);
  EXPECT_FAILS(CreateLabelled("b", "", "v"), kInvalidArgument, INVALID_LABEL);
  const auto many = [](int count, size_t value_bytes) {
    std::string request = "name: 'm' size_bytes: 4096";
    for (int i = 0; i < count; ++i) {
      request += " labels { key: 'k" + std::to_string(i) + "' value: '" +
                 std::string(value_bytes, 'v') + "' }";
    }
    return request;
  };
  EXPECT_FAILS(Try(datasets(), &Datasets::CreateDataset, many(65, 1)), kInvalidArgument,
               INVALID_LABEL);
  EXPECT_FAILS(Try(datasets(), &Datasets::CreateDataset, many(9, 250)), kInvalidArgument,
               INVALID_LABEL);
  EXPECT_TRUE(Try(datasets(), &Datasets::CreateDataset, many(64, 1)).ok());
}

TEST_F(LimitsTest, BatchesAreBounded) {
  const auto names = [](int count) {
    v1::DestroyDatasetsRequest request;
    request.set_allow_missing(true);
    for (int i = 0; i < count; ++i) request.add_names("n" + std::to_string(i));
    return request;
  };
  v1::DestroyDatasetsResponse reply;
  EXPECT_TRUE(Try(datasets(), &Datasets::DestroyDatasets, names(10000), &reply).ok());
  const grpc::Status refused = Try(datasets(), &Datasets::DestroyDatasets, names(10001), &reply);
  EXPECT_FAILS(refused, kInvalidArgument, TOO_MANY_NAMES);
  EXPECT_EQ(FailureOf(refused).metadata.at("limit"), "10000");
  EXPECT_FAILS(Try(operations(), &Operations::WaitOperations, Repeat("names: 'o' ", 1001)),
               kInvalidArgument, TOO_MANY_NAMES);
}

TEST_F(LimitsTest, PagesAreLoweredToTheLargest) {
  engine::Await<absl::StatusOr<engine::Outcome>> last;
  for (int i = 0; i < 1001; ++i) {
    engine::CreateDatasetArgs args;
    args.name = "p" + std::to_string(i);
    args.size_bytes = 4096;
    if (i < 1000) {
      pool_->CreateDataset(args, std::nullopt, [](const absl::StatusOr<engine::Outcome>&) {});
    } else {
      pool_->CreateDataset(args, std::nullopt, last.Callback());
    }
  }
  EXPECT_OK(last.Wait().status());
  EXPECT_EQ(Call(datasets(), &Datasets::ListDatasets, "page_size: 2147483647").datasets_size(),
            1000);
  EXPECT_EQ(Call(datasets(), &Datasets::ListDatasets, "").datasets_size(), 100);
  EXPECT_FAILS(Try(datasets(), &Datasets::ListDatasets, "page_size: -1"), kInvalidArgument,
               INVALID_FIELD);
}

TEST_F(LimitsTest, RequestIdsTagsAndOwnersAreBounded) {
  const std::string id64(64, 'i');
  EXPECT_TRUE(Try(datasets(), &Datasets::CreateDataset,
                  "name: 'a' size_bytes: 4096 request_id: '" + id64 + "'")
                  .ok());
  EXPECT_FAILS(Try(datasets(), &Datasets::CreateDataset,
                   "name: 'b' size_bytes: 4096 request_id: '" + id64 + "i'"),
               kInvalidArgument, INVALID_FIELD);
  Snapshot({"a@s"});
  const auto hold = [&](size_t tag_bytes, size_t owner_bytes) {
    return Try(datasets(), &Datasets::HoldSnapshot,
               "snapshot: 'a@s' tag: '" + std::string(tag_bytes, 't') + "' owner: '" +
                   std::string(owner_bytes, 'o') + "'");
  };
  EXPECT_TRUE(hold(128, 255).ok());
  EXPECT_FAILS(hold(129, 0), kInvalidArgument, INVALID_FIELD);
  EXPECT_FAILS(hold(0, 0), kInvalidArgument, INVALID_FIELD);
  EXPECT_FAILS(hold(1, 256), kInvalidArgument, INVALID_FIELD);
}

TEST_F(LimitsTest, HoldsOfASnapshotAreBounded) {
  Create("a", 4096);
  Snapshot({"a@s"});
  engine::Await<absl::StatusOr<engine::Outcome>> last;
  for (int i = 0; i < 10000; ++i) {
    engine::HoldSnapshotArgs args;
    args.snapshot = "a@s";
    args.tag = std::to_string(i);
    if (i < 9999) {
      pool_->HoldSnapshot(args, std::nullopt, [](const absl::StatusOr<engine::Outcome>&) {});
    } else {
      pool_->HoldSnapshot(args, std::nullopt, last.Callback());
    }
  }
  EXPECT_OK(last.Wait().status());
  const std::string one_more = "snapshot: 'a@s' tag: 'more'";
  const grpc::Status refused = Try(datasets(), &Datasets::HoldSnapshot, one_more);
  EXPECT_FAILS(refused, kResourceExhausted, TOO_MANY_HOLDS);
  EXPECT_EQ(FailureOf(refused).metadata.at("limit"), "10000");
  Call(datasets(), &Datasets::ReleaseHold, "snapshot: 'a@s' tag: '7'");
  EXPECT_TRUE(Try(datasets(), &Datasets::HoldSnapshot, one_more).ok());
}

TEST_F(LimitsTest, MessagesAreBoundedAndTheAnswerSaysHow) {
  v1::GetDatasetRequest query;
  query.set_name(std::string((8 << 20) + 1, 'n'));
  v1::Dataset dataset;
  const grpc::Status refused = Try(datasets(), &Datasets::GetDataset, query, &dataset);
  EXPECT_FAILS(refused, kInvalidArgument, MESSAGE_TOO_LARGE);
  EXPECT_EQ(FailureOf(refused).metadata.at("limit"), std::to_string(8 << 20));
  v1::CreateDatasetRequest change;
  change.set_name(query.name());
  v1::CreateDatasetResponse created;
  EXPECT_FAILS(Try(datasets(), &Datasets::CreateDataset, change, &created), kInvalidArgument,
               MESSAGE_TOO_LARGE);
  v1::WriteRangeRequest write;
  write.set_data(query.name());
  v1::WriteRangeResponse written;
  EXPECT_FAILS(Try(data(), &Data::WriteRange, write, &written), kInvalidArgument,
               MESSAGE_TOO_LARGE);
  // Past 10 MiB the library does not even read it.
  query.set_name(std::string(10 << 20, 'n'));
  EXPECT_EQ(Try(datasets(), &Datasets::GetDataset, query, &dataset).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(LimitsTest, RequestsUnderWayAreBoundedTogether) {
  server_options_.limits.request_memory_bytes = 1 << 20;
  Restart();
  Create("a", 4 << 20);
  Write("a", 0, std::string((1 << 20) - 1000, 'w'));
  Write("a", 0, std::string((1 << 20) - 1000, 'w'));  // the first one's share came back
  v1::WriteRangeRequest write;
  write.set_dataset("a");
  write.set_data(std::string(1 << 20, 'w'));
  v1::WriteRangeResponse written;
  const grpc::Status refused = Try(data(), &Data::WriteRange, write, &written);
  EXPECT_FAILS(refused, kResourceExhausted, SERVER_BUSY);
  EXPECT_TRUE(FailureOf(refused).retry);
  Create("b", 4096);  // small ones are not counted
}

TEST_F(LimitsTest, MetadataIsBounded) {
  grpc::ClientContext context;
  context.AddMetadata("big", std::string(20 << 10, 'm'));
  v1::ListDatasetsResponse reply;
  EXPECT_EQ(datasets().ListDatasets(&context, {}, &reply).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  // The library may close the connection as well; others are served.
  const auto other = v1::DatasetService::NewStub(Connect(tcp_address()));
  Call(*other, &Datasets::ListDatasets, "");
}

TEST_F(LimitsTest, LifecycleCallsInFlightAreBounded) {
  server_options_.limits.lifecycle_max = 0;
  Restart();
  const grpc::Status refused =
      Try(datasets(), &Datasets::CreateDataset, "name: 'a' size_bytes: 4096");
  EXPECT_FAILS(refused, kResourceExhausted, SERVER_BUSY);
  EXPECT_TRUE(FailureOf(refused).retry);
}

TEST_F(LimitsTest, SilentWriterIsCutAndToldWhatWasAccepted) {
  server_options_.limits.idle_timeout = milliseconds(200);
  Restart();
  Create("a", 1 << 20);
  grpc::ClientContext context;
  const auto stream = data().Write(&context);
  EXPECT_TRUE(stream->Write(Text<v1::WriteRequest>("header { dataset: 'a' }")));
  EXPECT_TRUE(stream->Write(Text<v1::WriteRequest>("chunk { data: 'seven b' }")));
  v1::WriteAck ack;
  while (stream->Read(&ack)) {
  }
  const auto failure = FailureOf(stream->Finish());
  EXPECT_EQ(failure.code, absl::StatusCode::kAborted);
  EXPECT_EQ(failure.reason, v1::ErrorReason_Name(v1::STREAM_IDLE));
  EXPECT_EQ(failure.metadata.at("accepted_bytes"), "7");
  while (stats_->data_streams != 0) std::this_thread::yield();
  EXPECT_EQ(Read("a", 0, 7), "seven b");
}

TEST_F(LimitsTest, WriterThatOpensAndSaysNothingIsCut) {
  server_options_.limits.idle_timeout = milliseconds(100);
  Restart();
  grpc::ClientContext context;
  const auto stream = data().Write(&context);
  v1::WriteAck ack;
  EXPECT_FALSE(stream->Read(&ack));
  EXPECT_FAILS(stream->Finish(), kAborted, STREAM_IDLE);
}

TEST_F(LimitsTest, WriterThatGoesOnIsNotIdle) {
  server_options_.limits.idle_timeout = milliseconds(1500);
  Restart();
  Create("a", 1 << 20);
  grpc::ClientContext context;
  const auto stream = data().Write(&context);
  EXPECT_TRUE(stream->Write(Text<v1::WriteRequest>("header { dataset: 'a' }")));
  for (int i = 0; i < 20; ++i) {  // more than the limit together
    std::this_thread::sleep_for(milliseconds(100));
    EXPECT_TRUE(stream->Write(Text<v1::WriteRequest>("chunk { data: 'b' }")));
  }
  stream->WritesDone();
  v1::WriteAck ack;
  while (stream->Read(&ack)) {
  }
  EXPECT_TRUE(stream->Finish().ok());
}

class WaitLimitsTest : public LimitsTest {
 protected:
  // Destroys a dataset into a window: an operation that does not end by itself.
  std::string Waiting() {
    Create("w", 4096);
    return Call(datasets(), &Datasets::DestroyDatasets,
                "names: 'w' reclaim_after { seconds: 1000 }")
        .operation()
        .name();
  }
  std::string WaitFor(const std::string& operation, int times) const {
    return Repeat("names: '" + operation + "' ", times) + "timeout { seconds: 60 }";
  }
};

TEST_F(WaitLimitsTest, OpenWaitsAreBounded) {
  server_options_.limits.waits_max = 1;
  Restart();
  const std::string operation = Waiting();
  // Takes the only place, until the server stops.
  std::thread waiter([&] {
    grpc::Status status;
    do {
      status = Try(operations(), &Operations::WaitOperations, WaitFor(operation, 1));
    } while (FailureOf(status).reason == v1::ErrorReason_Name(v1::TOO_MANY_WAITS));
  });
  grpc::Status second;
  do {
    second = Try(operations(), &Operations::WaitOperations,
                 "names: '" + operation + "' timeout { nanos: 10000000 }");
  } while (second.ok());
  EXPECT_FAILS(second, kResourceExhausted, TOO_MANY_WAITS);
  EXPECT_TRUE(FailureOf(second).retry);
  // A look that does not wait takes no place.
  Call(operations(), &Operations::WaitOperations, "names: '" + operation + "'");
  server_->Stop();
  waiter.join();
}

TEST_F(WaitLimitsTest, WaitedNamesAreBoundedTogether) {
  server_options_.limits.waited_names_max = 10;
  Restart();
  const std::string operation = Waiting();
  const grpc::Status refused =
      Try(operations(), &Operations::WaitOperations, WaitFor(operation, 11));
  EXPECT_FAILS(refused, kResourceExhausted, TOO_MANY_WAITS);
  EXPECT_EQ(FailureOf(refused).metadata.at("limit"), "10");
  Call(operations(), &Operations::WaitOperations,
       Repeat("names: '" + operation + "' ", 10) + "timeout { nanos: 10000000 }");
}

TEST_F(LimitsTest, ServerInfoNamesThem) {
  const auto limits = Call(pools(), &Pools::GetServerInfo, "").limits();
  EXPECT_EQ(limits.max_message_bytes(), 8u << 20);
  EXPECT_EQ(limits.max_connections(), server_options_.limits.connections_max);
  EXPECT_EQ(limits.max_waits(), server_options_.limits.waits_max);
  EXPECT_EQ(limits.max_write_idle_seconds(), 300u);
  EXPECT_EQ(limits.max_request_id_bytes(), 64u);
  EXPECT_EQ(limits.max_tag_bytes(), 128u);
}

}  // namespace
}  // namespace cowshed::service

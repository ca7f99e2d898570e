// SPDX-License-Identifier: Apache-2.0
//
// The Write stream: acknowledgements, flushes, order, and what an error leaves known.
#include <gmock/gmock.h>

#include <thread>

#include "tests/service/server_fixture.h"

namespace cowshed::service {
namespace {

constexpr uint64_t kMiB = 1 << 20;

// One stream: what is sent, and the acks that came.
class Writer {
 public:
  Writer(Data& data, const std::string& header) : stream_(data.Write(&context_)) {
    v1::WriteRequest request;
    *request.mutable_header() = Text<v1::WriteHeader>(header);
    stream_->Write(request);
  }
  bool Chunk(const std::string& chunk) {
    v1::WriteRequest request;
    *request.mutable_chunk() = Text<v1::WriteChunk>(chunk);
    return stream_->Write(request);
  }
  bool Bytes(uint64_t offset_bytes, const std::string& bytes) {
    v1::WriteRequest request;
    request.mutable_chunk()->set_offset_bytes(offset_bytes);
    request.mutable_chunk()->set_data(bytes);
    return stream_->Write(request);
  }
  bool Send(const v1::WriteRequest& request) { return stream_->Write(request); }
  bool ReadAck(v1::WriteAck* ack) { return stream_->Read(ack); }
  // Half-closes, takes all acks, and returns how the stream ended.
  grpc::Status Finish(std::vector<v1::WriteAck>* acks = nullptr) {
    stream_->WritesDone();
    v1::WriteAck ack;
    while (stream_->Read(&ack)) {
      if (acks != nullptr) acks->push_back(ack);
    }
    return stream_->Finish();
  }
  void Cancel() { context_.TryCancel(); }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::WriteRequest, v1::WriteAck>> stream_;
};

class WriteStreamTest : public ServerTest {};

TEST_F(WriteStreamTest, AcksComeAtLeastEvery8MiBAndAtTheEnd) {
  Create("a", 64 * kMiB);
  Writer writer(data(), "dataset: 'a'");
  const std::string bytes(kMiB, 'm');
  for (uint64_t i = 0; i < 20; ++i) ASSERT_TRUE(writer.Bytes(i * kMiB, bytes));
  std::vector<v1::WriteAck> acks;
  EXPECT_TRUE(writer.Finish(&acks).ok());
  ASSERT_GE(acks.size(), 3u);
  uint64_t before = 0;
  for (const auto& ack : acks) {
    EXPECT_LE(ack.accepted_bytes() - before, 8 * kMiB);
    EXPECT_FALSE(ack.has_flushed_txg());
    EXPECT_EQ(ack.boot_id(), server_->boot_id());
    before = ack.accepted_bytes();
  }
  EXPECT_EQ(before, 20 * kMiB);
  EXPECT_EQ(Read("a", 19 * kMiB, 3), "mmm");
}

TEST_F(WriteStreamTest, FlushIsAcknowledgedWithItsTxgAndIsDurable) {
  Create("a", kMiB);
  Writer writer(data(), "dataset: 'a'");
  writer.Bytes(0, "moo");
  writer.Chunk("flush: true");
  v1::WriteAck ack;
  ASSERT_TRUE(writer.ReadAck(&ack));
  EXPECT_EQ(ack.accepted_bytes(), 3u);
  EXPECT_GT(ack.flushed_txg(), 0u);
  EXPECT_GE(pool_->committed_txg(), ack.flushed_txg());
  writer.Bytes(3, "baa");
  writer.Chunk("flush: true");
  writer.Chunk("flush: true");
  std::vector<v1::WriteAck> acks;
  EXPECT_TRUE(writer.Finish(&acks).ok());
  ASSERT_EQ(acks.size(), 2u);
  EXPECT_EQ(acks[0].accepted_bytes(), 6u);
  EXPECT_TRUE(acks[1].has_flushed_txg());
  Restart();
  EXPECT_EQ(Read("a", 0, 6), "moobaa");
}

TEST_F(WriteStreamTest, MakeDurableIsAcknowledgedWithoutATxg) {
  Create("a", kMiB);
  Call(data(), &Data::WriteRange, "dataset: 'a' data: '...' durable: true");
  Writer writer(data(), "dataset: 'a'");
  writer.Bytes(0, "moo");
  writer.Chunk("make_durable: true");
  v1::WriteAck ack;
  ASSERT_TRUE(writer.ReadAck(&ack));
  EXPECT_EQ(ack.accepted_bytes(), 3u);
  EXPECT_TRUE(ack.durable());
  EXPECT_FALSE(ack.has_flushed_txg());
  EXPECT_EQ(pool_->stats().log_batches.load(), 1u);
  writer.Bytes(3, "baa");
  std::vector<v1::WriteAck> acks;
  EXPECT_TRUE(writer.Finish(&acks).ok());
  ASSERT_EQ(acks.size(), 1u);
  EXPECT_FALSE(acks[0].durable());
}

TEST_F(WriteStreamTest, ChunksApplyInOrder) {
  Create("a", 4 * kMiB);
  Writer writer(data(), "dataset: 'a'");
  for (int i = 0; i < 200; ++i) writer.Bytes(0, std::to_string(1000 + i));
  writer.Bytes(kMiB, std::string(kMiB, 'x'));
  writer.Chunk("offset_bytes: 1048586 zero_bytes: 100");
  writer.Chunk("offset_bytes: 1065000 discard_bytes: 65536");
  std::vector<v1::WriteAck> acks;
  EXPECT_TRUE(writer.Finish(&acks).ok());
  EXPECT_EQ(acks.back().accepted_bytes(), 200 * 4 + kMiB + 100 + 65536);
  EXPECT_EQ(Read("a", 0, 4), "1199");
  EXPECT_EQ(Read("a", kMiB, 120),
            std::string(10, 'x') + std::string(100, '\0') + std::string(10, 'x'));
  EXPECT_EQ(Read("a", 1065000, 3), std::string(3, '\0'));
}

TEST_F(WriteStreamTest, ErrorInTheMiddleTellsWhatWasAccepted) {
  Create("a", kMiB);
  Writer writer(data(), "dataset: 'a'");
  writer.Bytes(0, std::string(1000, 'a'));
  writer.Bytes(kMiB - 1, "xy");
  writer.Bytes(1000, std::string(1000, 'b'));
  const auto failure = FailureOf(writer.Finish());
  EXPECT_EQ(failure.code, absl::StatusCode::kOutOfRange);
  EXPECT_EQ(failure.reason, v1::ErrorReason_Name(v1::BEYOND_SIZE));
  EXPECT_EQ(failure.metadata.at("accepted_bytes"), "1000");
  EXPECT_EQ(failure.metadata.at("size_bytes"), std::to_string(kMiB));
  EXPECT_EQ(Read("a", 0, 1001), std::string(1000, 'a') + '\0');
}

TEST_F(WriteStreamTest, HeaderAndChunksAreChecked) {
  const auto made = Create("a", kMiB);
  Snapshot({"a@s"});
  const auto header = [this](const std::string& text) { return Writer(data(), text).Finish(); };
  EXPECT_FAILS(header("dataset: 'z'"), kNotFound, DATASET_NOT_FOUND);
  EXPECT_FAILS(header("dataset: 'a@s'"), kFailedPrecondition, SNAPSHOT_IS_READ_ONLY);
  EXPECT_FAILS(header("dataset: 'a' expected_uid: 'x'"), kAborted, ETAG_MISMATCH);
  EXPECT_FAILS(header("dataset: 'a' expect_boot_id: 'x'"), kAborted, SERVER_RESTARTED);
  EXPECT_TRUE(header("dataset: 'a' expected_uid: '" + made.uid() + "' expect_boot_id: '" +
                     server_->boot_id() + "'")
                  .ok());
  const auto chunk = [this](const std::string& text) {
    Writer writer(data(), "dataset: 'a'");
    writer.Chunk(text);
    return writer.Finish();
  };
  EXPECT_FAILS(chunk(""), kInvalidArgument, INVALID_FIELD);
  EXPECT_FAILS(chunk("flush: false"), kInvalidArgument, INVALID_FIELD);
  EXPECT_FAILS(chunk("make_durable: false"), kInvalidArgument, INVALID_FIELD);
  EXPECT_FAILS(chunk("data: '" + std::string(kMiB + 1, 'x') + "'"), kInvalidArgument,
               CHUNK_TOO_LARGE);
  EXPECT_FAILS(chunk("zero_bytes: 1048577"), kOutOfRange, BEYOND_SIZE);
}

TEST_F(WriteStreamTest, HeaderComesFirstAndOnce) {
  Create("a", kMiB);
  grpc::ClientContext context;
  auto stream = data().Write(&context);
  stream->Write(Text<v1::WriteRequest>("chunk { data: 'x' }"));
  stream->WritesDone();
  EXPECT_FAILS(stream->Finish(), kInvalidArgument, INVALID_FIELD);
  grpc::ClientContext empty;
  stream = data().Write(&empty);
  stream->WritesDone();
  EXPECT_FAILS(stream->Finish(), kInvalidArgument, INVALID_FIELD);
  Writer twice(data(), "dataset: 'a'");
  twice.Send(Text<v1::WriteRequest>("header { dataset: 'a' }"));
  EXPECT_FAILS(twice.Finish(), kInvalidArgument, INVALID_FIELD);
}

TEST_F(WriteStreamTest, RenameIsHarmlessAndDestroyEndsIt) {
  Create("a", kMiB);
  Writer writer(data(), "dataset: 'a'");
  writer.Bytes(0, "moo");
  writer.Chunk("flush: true");
  v1::WriteAck ack;
  ASSERT_TRUE(writer.ReadAck(&ack));
  Call(datasets(), &Datasets::RenameDataset, "name: 'a' new_name: 'b'");
  writer.Bytes(3, "baa");
  writer.Chunk("flush: true");
  ASSERT_TRUE(writer.ReadAck(&ack));
  EXPECT_EQ(Read("b", 0, 6), "moobaa");
  Call(datasets(), &Datasets::DestroyDatasets, "names: 'b'");
  writer.Bytes(0, "x");
  const auto failure = FailureOf(writer.Finish());
  EXPECT_EQ(failure.code, absl::StatusCode::kAborted);
  EXPECT_EQ(failure.reason, v1::ErrorReason_Name(v1::DATASET_DESTROYED));
  EXPECT_EQ(failure.metadata.at("accepted_bytes"), "6");
}

TEST_F(WriteStreamTest, CancelKeepsWhatWasAccepted) {
  Create("a", kMiB);
  Writer writer(data(), "dataset: 'a'");
  writer.Bytes(0, "moo");
  writer.Chunk("flush: true");
  v1::WriteAck ack;
  ASSERT_TRUE(writer.ReadAck(&ack));
  writer.Cancel();
  EXPECT_EQ(writer.Finish().error_code(), grpc::StatusCode::CANCELLED);
  while (stats_->data_streams != 0) std::this_thread::yield();
  EXPECT_EQ(Read("a", 0, 3), "moo");
}

TEST_F(WriteStreamTest, ManyStreamsAtOnce) {
  constexpr int kStreams = 16;
  Create("a", kStreams * 4 * kMiB);
  std::vector<std::thread> writers;
  for (int i = 0; i < kStreams; ++i) {
    writers.emplace_back([this, i] {
      Writer writer(data(), "dataset: 'a'");
      const std::string bytes(kMiB / 4, static_cast<char>('a' + i));
      for (int k = 0; k < 16; ++k) writer.Bytes((i * 16 + k) * kMiB / 4, bytes);
      writer.Chunk("flush: true");
      EXPECT_TRUE(writer.Finish().ok());
    });
  }
  for (auto& writer : writers) writer.join();
  for (int i = 0; i < kStreams; ++i) {
    EXPECT_EQ(Read("a", (i * 4 + 3) * kMiB, kMiB), std::string(kMiB, static_cast<char>('a' + i)));
  }
}

TEST_F(WriteStreamTest, StopEndsStreamsWithAReason) {
  Create("a", kMiB);
  Writer writer(data(), "dataset: 'a'");
  writer.Bytes(0, "moo");
  writer.Chunk("flush: true");
  v1::WriteAck ack;
  ASSERT_TRUE(writer.ReadAck(&ack));
  std::thread stopper([this] { server_->Stop(); });
  const auto failure = [&] {
    while (writer.ReadAck(&ack)) {
    }
    return FailureOf(writer.Finish());
  }();
  stopper.join();
  EXPECT_EQ(failure.code, absl::StatusCode::kUnavailable);
  EXPECT_EQ(failure.reason, v1::ErrorReason_Name(v1::SERVER_STOPPING));
  EXPECT_EQ(failure.metadata.at("accepted_bytes"), "3");
}

}  // namespace
}  // namespace cowshed::service

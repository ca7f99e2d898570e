// SPDX-License-Identifier: Apache-2.0
//
// Bytes over the wire: ranges, the Read and Diff streams, and what a reader that takes nothing
// gets.
#include <gmock/gmock.h>

#include <fstream>
#include <numeric>

#include "tests/service/server_fixture.h"

namespace cowshed::service {
namespace {

constexpr uint64_t kMiB = 1 << 20;

// Bytes that differ from block to block and within a block.
std::string Pattern(size_t size, unsigned seed) {
  std::string bytes(size, '\0');
  uint64_t state = seed * 2654435761u + 1;
  for (char& byte : bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<char>(state >> 56);
  }
  return bytes;
}

class DataServiceTest : public ServerTest {
 protected:
  // Reads a whole stream; the pieces as they came are in `chunks`.
  grpc::Status ReadAll(const std::string& request, std::string* bytes,
                       std::vector<v1::ReadChunk>* chunks = nullptr) {
    grpc::ClientContext context;
    const auto reader = data().Read(&context, Text<v1::ReadRequest>(request));
    v1::ReadChunk chunk;
    while (reader->Read(&chunk)) {
      bytes->append(chunk.data());
      bytes->append(chunk.zero_bytes(), '\0');
      if (chunks != nullptr) chunks->push_back(chunk);
    }
    return reader->Finish();
  }
  grpc::Status DiffAll(const std::string& request, std::vector<v1::DiffChunk>* chunks) {
    grpc::ClientContext context;
    const auto reader = data().Diff(&context, Text<v1::DiffRequest>(request));
    v1::DiffChunk chunk;
    while (reader->Read(&chunk)) chunks->push_back(chunk);
    return reader->Finish();
  }
  v1::FlushResponse Flush(const std::string& name) {
    return Call(data(), &Data::Flush, "dataset: '" + name + "'");
  }
};

TEST_F(DataServiceTest, RangesReadBackAtAnyOffset) {
  Create("a", 300000);
  const std::string bytes = Pattern(70000, 1);
  Write("a", 12345, bytes);
  EXPECT_EQ(Read("a", 12345, 70000), bytes);
  EXPECT_EQ(Read("a", 0, 12345), std::string(12345, '\0'));
  EXPECT_EQ(Read("a", 300000, 0), "");
  const auto flushed = Flush("a");
  EXPECT_GT(flushed.txg(), 0u);
  EXPECT_EQ(flushed.boot_id(), server_->boot_id());
  EXPECT_EQ(Read("a", 12345, 70000), bytes);
}

TEST_F(DataServiceTest, ZerosAndDiscardsReadAsZeros) {
  Create("a", 4 * kMiB);
  const std::string bytes = Pattern(kMiB, 2);
  for (uint64_t i = 0; i < 4; ++i) Write("a", i * kMiB, bytes);
  Call(data(), &Data::WriteRange, "dataset: 'a' offset_bytes: 1000 zero_bytes: 2000000");
  Call(data(), &Data::WriteRange, "dataset: 'a' offset_bytes: 3145728 discard_bytes: 1048576");
  std::string expected = bytes + bytes + bytes + std::string(kMiB, '\0');
  std::fill(expected.begin() + 1000, expected.begin() + 2001000, '\0');
  std::string read;
  EXPECT_TRUE(ReadAll("name: 'a'", &read).ok());
  EXPECT_EQ(read, expected);
}

TEST_F(DataServiceTest, WriteRangeNamesTheTxgAndTheBoot) {
  const auto made = Create("a");
  const auto reply = Call(data(), &Data::WriteRange,
                          "dataset: 'a' data: 'moo' expected_uid: '" + made.uid() + "'");
  EXPECT_EQ(reply.boot_id(), server_->boot_id());
  EXPECT_EQ(reply.uid(), made.uid());
  EXPECT_LE(reply.txg(), Flush("a").txg());
}

// A durable write, and a data-only flush, need no txg once the intent log has its ring.
TEST_F(DataServiceTest, DurableWritesNeedNoTxg) {
  Create("a");
  Call(data(), &Data::WriteRange, "dataset: 'a' data: 'moo' durable: true");
  const auto reply = Call(data(), &Data::WriteRange, "dataset: 'a' data: 'mow' durable: true");
  EXPECT_EQ(reply.boot_id(), server_->boot_id());
  Write("a", 3, "!");
  const auto flushed = Call(data(), &Data::Flush, "dataset: 'a' data_only: true");
  EXPECT_EQ(flushed.boot_id(), server_->boot_id());
  EXPECT_EQ(flushed.txg(), 0u);
  EXPECT_EQ(pool_->stats().log_batches.load(), 2u);
  EXPECT_EQ(Read("a", 0, 4), "mow!");
  Snapshot({"a@s"});
  EXPECT_FAILS(Try(data(), &Data::Flush, "dataset: 'a@s' data_only: true"), kFailedPrecondition,
               SNAPSHOT_IS_READ_ONLY);
}

TEST_F(DataServiceTest, RangesRefuseWhatIsWrong) {
  Create("a", 5000);
  Snapshot({"a@s"});
  const auto read = [this](const std::string& request) {
    return Try(data(), &Data::ReadRange, request);
  };
  const auto write = [this](const std::string& request) {
    return Try(data(), &Data::WriteRange, request);
  };
  EXPECT_FAILS(read("name: 'z' length_bytes: 1"), kNotFound, DATASET_NOT_FOUND);
  EXPECT_FAILS(read("name: 'a@z' length_bytes: 1"), kNotFound, SNAPSHOT_NOT_FOUND);
  EXPECT_FAILS(read("name: 'a' offset_bytes: 4999 length_bytes: 2"), kOutOfRange, BEYOND_SIZE);
  EXPECT_FAILS(read("name: 'a' offset_bytes: 18446744073709551615 length_bytes: 2"), kOutOfRange,
               BEYOND_SIZE);
  EXPECT_FAILS(read("name: 'a' length_bytes: 1048577"), kInvalidArgument, INVALID_FIELD);
  EXPECT_FAILS(read("name: 'a' length_bytes: 1 expected_uid: 'x'"), kAborted, ETAG_MISMATCH);
  EXPECT_FAILS(write("dataset: 'z' data: 'x'"), kNotFound, DATASET_NOT_FOUND);
  EXPECT_FAILS(write("dataset: 'a@s' data: 'x'"), kFailedPrecondition, SNAPSHOT_IS_READ_ONLY);
  EXPECT_FAILS(write("dataset: 'a' offset_bytes: 5000 data: 'x'"), kOutOfRange, BEYOND_SIZE);
  EXPECT_FAILS(write("dataset: 'a' zero_bytes: 5001"), kOutOfRange, BEYOND_SIZE);
  EXPECT_FAILS(write("dataset: 'a'"), kInvalidArgument, INVALID_FIELD);
  EXPECT_FAILS(write("dataset: 'a' data: '" + std::string(kMiB + 1, 'x') + "'"), kInvalidArgument,
               CHUNK_TOO_LARGE);
  EXPECT_FAILS(write("dataset: 'a' data: 'x' expected_uid: 'x'"), kAborted, ETAG_MISMATCH);
  EXPECT_FAILS(write("dataset: 'a' data: 'x' expect_boot_id: 'x'"), kAborted, SERVER_RESTARTED);
  EXPECT_FAILS(Try(data(), &Data::Flush, "dataset: 'a@s'"), kFailedPrecondition,
               SNAPSHOT_IS_READ_ONLY);
}

TEST_F(DataServiceTest, FlushAfterARestartIsRefused) {
  Create("a");
  const std::string boot_id = Call(data(), &Data::WriteRange, "dataset: 'a' data: 'moo'").boot_id();
  const std::string flush = "dataset: 'a' expect_boot_id: '" + boot_id + "'";
  Call(data(), &Data::Flush, flush);
  Restart();
  const auto failure = FailureOf(Try(data(), &Data::Flush, flush));
  EXPECT_EQ(failure.reason, v1::ErrorReason_Name(v1::SERVER_RESTARTED));
  EXPECT_EQ(failure.metadata.at("boot_id"), server_->boot_id());
}

TEST_F(DataServiceTest, QuotaAndPoolRefuseBeforeTheyAccept) {
  pool_options_.directory = dir_.Path("small");
  pool_options_.capacity_bytes = 256 << 20;
  pool_options_.write_wait_max = std::chrono::milliseconds(100);
  Restart();
  Call(datasets(), &Datasets::CreateDataset, "name: 'q' size_bytes: 10485760 quota_bytes: 2097152");
  grpc::Status status;
  for (uint64_t i = 0; i < 10 && status.ok(); ++i) {
    v1::WriteRangeRequest request;
    request.set_dataset("q");
    request.set_offset_bytes(i * kMiB);
    request.set_data(Pattern(kMiB, i));
    v1::WriteRangeResponse reply;
    status = Try(data(), &Data::WriteRange, request, &reply);
  }
  EXPECT_FAILS(status, kResourceExhausted, QUOTA_EXCEEDED);
  Create("full", uint64_t{1} << 30);
  status = grpc::Status::OK;
  for (uint64_t i = 0; i < 1024 && status.ok(); ++i) {
    v1::WriteRangeRequest request;
    request.set_dataset("full");
    request.set_offset_bytes(i * kMiB);
    request.set_data(Pattern(kMiB, i));
    v1::WriteRangeResponse reply;
    status = Try(data(), &Data::WriteRange, request, &reply);
  }
  EXPECT_FAILS(status, kResourceExhausted, POOL_FULL);
  EXPECT_TRUE(Try(datasets(), &Datasets::DestroyDatasets, "names: 'full'").ok());
}

TEST_F(DataServiceTest, DamagedBlockIsTold) {
  pool_options_.directory = dir_.Path("small");
  pool_options_.capacity_bytes = 256 << 20;
  Restart();
  Create("a");
  const std::string bytes = Pattern(16384, 9);
  Write("a", 0, bytes);
  Flush("a");
  Stop();
  std::fstream blocks(pool_options_.directory + "/blocks",
                      std::ios::in | std::ios::out | std::ios::binary);
  std::string all(pool_options_.capacity_bytes, '\0');
  blocks.read(all.data(), static_cast<std::streamsize>(all.size()));
  const size_t at = all.find(bytes);
  ASSERT_NE(at, std::string::npos);
  blocks.clear();
  blocks.seekp(static_cast<std::streamoff>(at) + 100);
  blocks.put(static_cast<char>(bytes[100] + 1));
  blocks.close();
  Restart();
  check_at_end_ = false;
  const auto failure = FailureOf(Try(data(), &Data::ReadRange, "name: 'a' length_bytes: 16384"));
  EXPECT_EQ(failure.code, absl::StatusCode::kDataLoss);
  EXPECT_EQ(failure.reason, v1::ErrorReason_Name(v1::CHECKSUM_MISMATCH));
  std::string read;
  EXPECT_FAILS(ReadAll("name: 'a'", &read), kDataLoss, CHECKSUM_MISMATCH);
}

TEST_F(DataServiceTest, ReadStreamsHolesAsHoles) {
  const auto made = Create("a", 64 * kMiB);
  const std::string bytes = Pattern(3 * kMiB, 3);
  for (int i = 0; i < 3; ++i) Write("a", 32 * kMiB + i * kMiB, bytes.substr(i * kMiB, kMiB));
  Snapshot({"a@s"});
  std::string read;
  std::vector<v1::ReadChunk> chunks;
  EXPECT_TRUE(ReadAll("name: 'a@latest'", &read, &chunks).ok());
  EXPECT_EQ(read, std::string(32 * kMiB, '\0') + bytes + std::string(29 * kMiB, '\0'));
  EXPECT_LE(chunks.size(), 8u);
  EXPECT_EQ(chunks[0].name(), "a@s");
  EXPECT_EQ(chunks[0].size_bytes(), 64 * kMiB);
  EXPECT_FALSE(chunks[0].uid().empty());
  EXPECT_EQ(chunks[1].name(), "");
  uint64_t next = 0;
  for (const auto& chunk : chunks) {
    EXPECT_EQ(chunk.offset_bytes(), next);
    EXPECT_LE(chunk.data().size(), kMiB);
    next += chunk.data().size() + chunk.zero_bytes();
  }
}

TEST_F(DataServiceTest, ReadTakesAPart) {
  Create("a", 4 * kMiB);
  const std::string bytes = Pattern(kMiB, 4);
  for (int i = 0; i < 4; ++i) Write("a", i * kMiB, bytes);
  std::string read;
  EXPECT_TRUE(ReadAll("name: 'a' offset_bytes: 1000 length_bytes: 2000000", &read).ok());
  EXPECT_EQ(read, (bytes + bytes).substr(1000, 2000000));
  std::vector<v1::ReadChunk> chunks;
  read.clear();
  EXPECT_TRUE(ReadAll("name: 'a' offset_bytes: 4194304", &read, &chunks).ok());
  ASSERT_EQ(chunks.size(), 1u);
  EXPECT_EQ(chunks[0].content_case(), v1::ReadChunk::CONTENT_NOT_SET);
  EXPECT_EQ(chunks[0].name(), "a");
}

TEST_F(DataServiceTest, ReadRefusesWhatIsWrong) {
  Create("a", 5000);
  std::string read;
  EXPECT_FAILS(ReadAll("name: 'z'", &read), kNotFound, DATASET_NOT_FOUND);
  EXPECT_FAILS(ReadAll("name: 'a' offset_bytes: 5001", &read), kOutOfRange, BEYOND_SIZE);
  EXPECT_FAILS(ReadAll("name: 'a' length_bytes: 5001", &read), kOutOfRange, BEYOND_SIZE);
  EXPECT_FAILS(ReadAll("name: 'a' expected_uid: 'x'", &read), kAborted, ETAG_MISMATCH);
  EXPECT_EQ(read, "");
}

TEST_F(DataServiceTest, StreamsAreLimitedAndTheSlotComesBack) {
  server_options_.limits.streams_max = 2;
  Restart();
  Create("a", 64 * kMiB);
  for (int i = 0; i < 64; ++i) Write("a", i * kMiB, Pattern(kMiB, i));
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::ReadChunk>>> readers;
  v1::ReadChunk chunk;
  for (int i = 0; i < 2; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    readers.push_back(data().Read(contexts.back().get(), Text<v1::ReadRequest>("name: 'a'")));
    EXPECT_TRUE(readers.back()->Read(&chunk));
  }
  EXPECT_EQ(stats_->data_streams, 2u);
  std::string read;
  const auto failure = FailureOf(ReadAll("name: 'a'", &read));
  EXPECT_EQ(failure.code, absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(failure.reason, v1::ErrorReason_Name(v1::TOO_MANY_STREAMS));
  EXPECT_TRUE(failure.retry);
  for (int i = 0; i < 2; ++i) {
    contexts[i]->TryCancel();
    while (readers[i]->Read(&chunk)) {
    }
    EXPECT_EQ(readers[i]->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  while (stats_->data_streams != 0) std::this_thread::yield();
  EXPECT_TRUE(ReadAll("name: 'a'", &read).ok());
}

TEST_F(DataServiceTest, StalledReaderIsToldWhereToResume) {
  server_options_.limits.stall_timeout = std::chrono::milliseconds(100);
  server_options_.limits.stall_grace = std::chrono::seconds(60);
  Restart();
  Create("a", 64 * kMiB);
  for (int i = 0; i < 64; ++i) Write("a", i * kMiB, Pattern(kMiB, i));
  grpc::ClientContext context;
  const auto reader = data().Read(&context, Text<v1::ReadRequest>("name: 'a'"));
  std::this_thread::sleep_for(std::chrono::seconds(1));  // the stall itself
  v1::ReadChunk chunk;
  uint64_t read = 0;
  while (reader->Read(&chunk)) read += chunk.data().size();
  EXPECT_LT(read, 64 * kMiB);
  const auto failure = FailureOf(reader->Finish());
  EXPECT_EQ(failure.code, absl::StatusCode::kAborted);
  EXPECT_EQ(failure.reason, v1::ErrorReason_Name(v1::READER_STALLED));
  EXPECT_LE(std::stoull(failure.metadata.at("offset_bytes")), read);
}

TEST_F(DataServiceTest, ReaderThatNeverWakesIsCut) {
  server_options_.limits.stall_timeout = std::chrono::milliseconds(50);
  server_options_.limits.stall_grace = std::chrono::milliseconds(50);
  Restart();
  Create("a", 64 * kMiB);
  for (int i = 0; i < 64; ++i) Write("a", i * kMiB, Pattern(kMiB, i));
  grpc::ClientContext context;
  const auto reader = data().Read(&context, Text<v1::ReadRequest>("name: 'a'"));
  while (stats_->data_streams == 0) std::this_thread::yield();
  while (stats_->data_streams != 0) std::this_thread::yield();
  v1::ReadChunk chunk;
  while (reader->Read(&chunk)) {
  }
  EXPECT_FALSE(reader->Finish().ok());
}

TEST_F(DataServiceTest, DestroyEndsAReadOfIt) {
  Create("a", 256 * kMiB);
  for (int i = 0; i < 256; i += 2) Write("a", i * kMiB, Pattern(kMiB, i));
  grpc::ClientContext context;
  const auto reader = data().Read(&context, Text<v1::ReadRequest>("name: 'a'"));
  v1::ReadChunk chunk;
  EXPECT_TRUE(reader->Read(&chunk));
  Call(datasets(), &Datasets::DestroyDatasets, "names: 'a'");
  while (reader->Read(&chunk)) {
  }
  EXPECT_FAILS(reader->Finish(), kAborted, DATASET_DESTROYED);
}

TEST_F(DataServiceTest, DiffListsWhatChanged) {
  Create("a", 4 * kMiB);
  for (int i = 0; i < 4; ++i) Write("a", i * kMiB, Pattern(kMiB, i));
  Snapshot({"a@1"});
  Write("a", 2 * kMiB, "moo");
  Call(data(), &Data::WriteRange, "dataset: 'a' offset_bytes: 0 discard_bytes: 32768");
  Snapshot({"a@2"});
  std::vector<v1::DiffChunk> chunks;
  EXPECT_TRUE(DiffAll("from_snapshot: 'a@1' to_snapshot: 'a@latest'", &chunks).ok());
  ASSERT_EQ(chunks.size(), 1u);
  EXPECT_EQ(chunks[0].from_snapshot(), "a@1");
  EXPECT_EQ(chunks[0].to_snapshot(), "a@2");
  EXPECT_EQ(chunks[0].size_bytes(), 4 * kMiB);
  EXPECT_EQ(chunks[0].from_size_bytes(), 4 * kMiB);
  ASSERT_EQ(chunks[0].extents_size(), 2);
  EXPECT_EQ(chunks[0].extents(0).offset_bytes(), 0u);
  EXPECT_EQ(chunks[0].extents(0).length_bytes(), 32768u);
  EXPECT_EQ(chunks[0].extents(0).kind(), v1::EXTENT_KIND_HOLE);
  EXPECT_EQ(chunks[0].extents(1).offset_bytes(), 2 * kMiB);
  EXPECT_EQ(chunks[0].extents(1).length_bytes(), 16384u);
  EXPECT_EQ(chunks[0].extents(1).kind(), v1::EXTENT_KIND_DATA);
  chunks.clear();
  EXPECT_TRUE(DiffAll("from_snapshot: 'a@2' to_snapshot: 'a@2'", &chunks).ok());
  ASSERT_EQ(chunks.size(), 1u);
  EXPECT_EQ(chunks[0].extents_size(), 0);
}

TEST_F(DataServiceTest, DiffOfManyExtentsComesInChunksAndResumes) {
  Create("a", 96 * kMiB);
  Snapshot({"a@1"});
  // Every other block, so that no two extents touch.
  for (uint64_t block = 0; block < 3000; ++block) Write("a", block * 2 * 16384, "x");
  Snapshot({"a@2"});
  std::vector<v1::DiffChunk> chunks;
  EXPECT_TRUE(DiffAll("from_snapshot: 'a@1' to_snapshot: 'a@2'", &chunks).ok());
  EXPECT_GE(chunks.size(), 3u);
  uint64_t extents = 0;
  for (const auto& chunk : chunks) {
    EXPECT_LE(chunk.extents_size(), 1000);
    for (const auto& extent : chunk.extents()) {
      EXPECT_EQ(extent.offset_bytes(), extents++ * 2 * 16384);
    }
  }
  EXPECT_EQ(extents, 3000u);
  std::vector<v1::DiffChunk> rest;
  EXPECT_TRUE(
      DiffAll("from_snapshot: 'a@1' to_snapshot: 'a@2' start_offset_bytes: 98271232", &rest).ok());
  ASSERT_FALSE(rest.empty());
  ASSERT_GT(rest[0].extents_size(), 0);
  EXPECT_EQ(rest[0].extents(0).offset_bytes(), 98271232u);
}

TEST_F(DataServiceTest, DiffRefusesWhatIsWrong) {
  Create("a");
  Create("b");
  Snapshot({"a@1", "b@1"});
  Snapshot({"a@2"});
  std::vector<v1::DiffChunk> chunks;
  EXPECT_FAILS(DiffAll("from_snapshot: 'b@1' to_snapshot: 'a@2'", &chunks), kFailedPrecondition,
               SNAPSHOTS_UNRELATED);
  EXPECT_FAILS(DiffAll("from_snapshot: 'a@2' to_snapshot: 'a@1'", &chunks), kFailedPrecondition,
               SNAPSHOTS_UNRELATED);
  EXPECT_FAILS(DiffAll("from_snapshot: 'a@z' to_snapshot: 'a@1'", &chunks), kNotFound,
               SNAPSHOT_NOT_FOUND);
  EXPECT_FAILS(DiffAll("to_snapshot: 'a@1' start_offset_bytes: 1048577", &chunks), kOutOfRange,
               BEYOND_SIZE);
}

}  // namespace
}  // namespace cowshed::service

// SPDX-License-Identifier: Apache-2.0
//
// The bytes of stream messages: what the protobuf library says of them, we say too.
#include "service/frames.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/temp_pool.h"
#include "tests/support/testing.h"

namespace cowshed::service {
namespace {

using engine::TempPool;
using engine::ValueOf;

// A message as it may come from a socket: cut where `cuts` says.
grpc::ByteBuffer Buffer(const std::string& bytes, const std::vector<size_t>& cuts = {}) {
  std::vector<grpc::Slice> slices;
  size_t from = 0;
  for (const size_t cut : cuts) {
    slices.emplace_back(bytes.substr(from, cut - from));
    from = cut;
  }
  slices.emplace_back(bytes.substr(from));
  return grpc::ByteBuffer(slices.data(), slices.size());
}

std::string BytesOf(grpc::ByteBuffer buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) bytes.append(slice.begin(), slice.end());
  return bytes;
}

v1::WriteRequest Chunk(uint64_t offset, const std::string& data) {
  v1::WriteRequest request;
  request.mutable_chunk()->set_offset_bytes(offset);
  request.mutable_chunk()->set_data(data);
  return request;
}

std::string Pattern(size_t count, uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  std::string bytes(count, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

class FramesTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kBlock = 4096;
  void SetUp() override { ASSERT_OK(pool_.Create("d", 20 * kBlock - 10, kBlock).status()); }

  // Parses and applies a chunk that is cut like that; the dataset must hold its data then.
  void ExpectWritten(uint64_t offset, const std::string& data, const std::vector<size_t>& cuts) {
    grpc::ByteBuffer buffer = Buffer(Chunk(offset, data).SerializeAsString(), cuts);
    WriteFrame frame;
    ASSERT_OK(frame.Parse(buffer));
    ASSERT_TRUE(frame.has_slices());
    ASSERT_EQ(frame.offset_bytes(), offset);
    ASSERT_EQ(frame.data_bytes(), data.size());
    ASSERT_OK(frame.WriteTo(*ValueOf(pool_->OpenVolume("d", ""))));
    ASSERT_TRUE(ValueOf(pool_.Read("d", offset, data.size())) == data);
  }

  TempPool pool_;
};

TEST_F(FramesTest, AReadChunkIsWhatTheLibraryWouldMakeOfIt) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{127}, size_t{128}, size_t{1} << 20}) {
    v1::ReadChunk fields;
    fields.set_offset_bytes(uint64_t{1} << 40);
    fields.set_name("d@s");
    fields.set_size_bytes(77);
    const auto memory = std::make_shared<ChunkMemory>(1 << 20);
    std::span<std::byte> out;
    const grpc::Slice data = size > 0 ? memory->Take(size, &out) : grpc::Slice();
    const std::string bytes = Pattern(size);
    if (size > 0) std::memcpy(out.data(), bytes.data(), size);
    v1::ReadChunk parsed;
    ASSERT_TRUE(parsed.ParseFromString(BytesOf(EncodeReadChunk(fields, data))));
    if (size > 0) fields.set_data(bytes);
    EXPECT_EQ(parsed.SerializeAsString(), fields.SerializeAsString());
  }
}

TEST_F(FramesTest, MemoryIsUsedAgainOnceAChunkHasGone) {
  const auto memory = std::make_shared<ChunkMemory>(4096);
  std::span<std::byte> first;
  std::span<std::byte> second;
  std::span<std::byte> third;
  {
    const grpc::Slice one = memory->Take(10, &first);
    const grpc::Slice two = memory->Take(4096, &second);
    EXPECT_NE(first.data(), second.data());
  }
  const grpc::Slice three = memory->Take(7, &third);
  EXPECT_TRUE(third.data() == first.data() || third.data() == second.data());
  EXPECT_EQ(third.size(), 7u);
}

// The library lets go of a chunk when it likes, on any thread, after the stream has ended.
TEST_F(FramesTest, ChunksOutliveTheirStream) {
  auto memory = std::make_shared<ChunkMemory>(4096);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    std::span<std::byte> out;
    threads.emplace_back([slice = memory->Take(4096, &out)]() mutable { slice = grpc::Slice(); });
  }
  memory.reset();
  for (std::thread& thread : threads) thread.join();
}

TEST_F(FramesTest, DataIsFoundWhereverTheMessageIsCut) {
  const std::string data = Pattern(3 * kBlock + 100);
  const size_t length = Chunk(kBlock - 50, data).SerializeAsString().size();
  for (size_t cut = 1; cut < length; cut += cut < 40 ? 1 : 997) {
    ExpectWritten(kBlock - 50, Pattern(3 * kBlock + 100, cut), {cut});
  }
  std::vector<size_t> each_byte;
  for (size_t cut = 1; cut < 300; ++cut) each_byte.push_back(cut);
  ExpectWritten(kBlock - 50, data, each_byte);
}

TEST_F(FramesTest, WritesOfEveryAlignment) {
  const uint64_t size = 20 * kBlock - 10;
  uint64_t seed = 0;
  for (const uint64_t offset : {uint64_t{0}, uint64_t{1}, uint64_t{kBlock},
                                2 * kBlock - uint64_t{1}, 18 * uint64_t{kBlock}, size - 1}) {
    for (const uint64_t count : {uint64_t{1}, uint64_t{kBlock} - 1, uint64_t{kBlock},
                                 uint64_t{kBlock} + 1, 5 * uint64_t{kBlock}}) {
      ExpectWritten(offset, Pattern(std::min(count, size - offset), ++seed), {5});
    }
  }
}

TEST_F(FramesTest, OtherShapesGoThroughTheLibrary) {
  v1::WriteRequest header;
  header.mutable_header()->set_dataset("d");
  v1::WriteRequest flush;
  flush.mutable_chunk()->set_flush(true);
  v1::WriteRequest zeros;
  zeros.mutable_chunk()->set_zero_bytes(5);
  std::vector<std::string> messages = {header.SerializeAsString(), flush.SerializeAsString(),
                                       zeros.SerializeAsString(), std::string()};
  // Data before its offset; two chunks, which the library merges; an unknown field behind.
  v1::WriteChunk data;
  data.set_data("xyz");
  v1::WriteChunk offset;
  offset.set_offset_bytes(7);
  const std::string turned = data.SerializeAsString() + offset.SerializeAsString();
  messages.push_back(std::string("\x12") + static_cast<char>(turned.size()) + turned);
  messages.push_back(Chunk(1, "abc").SerializeAsString() + Chunk(2, "de").SerializeAsString());
  messages.push_back(Chunk(1, "abc").SerializeAsString() + "\x78\x01");
  for (const std::string& bytes : messages) {
    grpc::ByteBuffer buffer = Buffer(bytes);
    WriteFrame frame;
    ASSERT_OK(frame.Parse(buffer));
    EXPECT_FALSE(frame.has_slices());
    v1::WriteRequest expected;
    ASSERT_TRUE(expected.ParseFromString(bytes));
    EXPECT_EQ(frame.message().SerializeAsString(), expected.SerializeAsString());
  }
}

// A frame is used again for the next message: nothing of the one before may be left.
TEST_F(FramesTest, AFrameForgetsTheMessageBefore) {
  WriteFrame frame;
  grpc::ByteBuffer chunk = Buffer(Chunk(5, "data").SerializeAsString());
  ASSERT_OK(frame.Parse(chunk));
  v1::WriteRequest flush;
  flush.mutable_chunk()->set_flush(true);
  grpc::ByteBuffer second = Buffer(flush.SerializeAsString());
  ASSERT_OK(frame.Parse(second));
  EXPECT_FALSE(frame.has_slices());
  EXPECT_TRUE(frame.message().chunk().flush());
  grpc::ByteBuffer third = Buffer(Chunk(0, "x").SerializeAsString());
  ASSERT_OK(frame.Parse(third));
  EXPECT_EQ(frame.offset_bytes(), 0u);
  EXPECT_EQ(frame.data_bytes(), 1u);
}

TEST_F(FramesTest, WhatTheLibraryRefusesIsRefused) {
  std::mt19937_64 random(7);
  int refused = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string bytes =
        Chunk(random() % 1000, Pattern(random() % 40, random())).SerializeAsString();
    for (uint64_t changes = random() % 4; changes > 0 && !bytes.empty(); --changes) {
      bytes[random() % std::min<size_t>(bytes.size(), 8)] = static_cast<char>(random());
    }
    bytes.resize(bytes.size() - random() % 2);
    grpc::ByteBuffer buffer = Buffer(bytes, {bytes.size() / 2});
    WriteFrame frame;
    const absl::Status status = frame.Parse(buffer);
    v1::WriteRequest expected;
    ASSERT_EQ(status.ok(), expected.ParseFromString(bytes));
    refused += status.ok() ? 0 : 1;
    if (!status.ok() || !frame.has_slices()) continue;
    ASSERT_EQ(expected.chunk().content_case(), v1::WriteChunk::kData);
    ASSERT_EQ(frame.offset_bytes(), expected.chunk().offset_bytes());
    ASSERT_EQ(frame.data_bytes(), expected.chunk().data().size());
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace cowshed::service

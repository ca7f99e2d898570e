// SPDX-License-Identifier: Apache-2.0
//
// NBD after the handshake: every command with every flag, replies of both kinds, and every error.
#include <unistd.h>

#include <algorithm>
#include <random>
#include <thread>

#include "tests/service/nbd_fixture.h"

namespace cowshed::service {
namespace {

using namespace nbd_numbers;  // NOLINT: the protocol's own names, in a test of it

constexpr uint64_t kSize = 8 << 20;

std::string Pattern(size_t size, unsigned seed) {
  std::mt19937_64 random(seed);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

class NbdRequestsTest : public NbdTest {
 protected:
  void SetUp() override {
    NbdTest::SetUp();
    Create("d", kSize);
  }
};

TEST_F(NbdRequestsTest, BytesWrittenAreReadOverNbdAndOverGrpc) {
  for (const bool structured : {false, true}) {
    const auto client = Attach("d", structured);
    EXPECT_EQ(client->size_bytes, kSize);
    EXPECT_EQ(client->block_min, 1u);
    EXPECT_EQ(client->block_preferred, 16384u);
    EXPECT_EQ(client->payload_max, 32u << 20);
    const std::string bytes = Pattern(300000, structured);
    EXPECT_EQ(client->Write(12345, bytes), 0u);
    EXPECT_EQ(client->Read(12345, 300000).data, bytes);
    EXPECT_EQ(Read("d", 12345, 300000), bytes);
    EXPECT_EQ(client->Flush(), 0u);
    Write("d", 100, "over gRPC");
    EXPECT_EQ(client->Read(100, 9).data, "over gRPC");
    client->Disconnect();
    EXPECT_TRUE(client->AtEnd());
    AwaitAttachments(0);
  }
}

TEST_F(NbdRequestsTest, TheLargestPayloadGoesBothWays) {
  Create("large", uint64_t{64} << 20);
  for (const bool structured : {false, true}) {
    const auto client = Attach("large", structured);
    const std::string bytes = Pattern(32 << 20, 7);
    EXPECT_EQ(client->Write(1, bytes), 0u);
    const auto answer = client->Read(1, 32 << 20);
    EXPECT_TRUE(answer.data == bytes);
    EXPECT_EQ(answer.structured, structured);
    EXPECT_EQ(answer.data_chunks > 1, structured);
    const auto whole = client->Ask(kRead, 1, 32 << 20, structured ? kDf : 0);
    EXPECT_TRUE(whole.data == bytes);
    EXPECT_EQ(whole.data_chunks, structured ? 1 : 0);
  }
}

TEST_F(NbdRequestsTest, HolesTravelAsHoles) {
  const auto client = Attach("d");
  EXPECT_EQ(client->Write(1 << 20, Pattern(16384, 1)), 0u);
  const auto answer = client->Read(0, 2 << 20);
  EXPECT_EQ(answer.hole_chunks, 2);
  EXPECT_EQ(answer.data_chunks, 1);
  EXPECT_EQ(answer.data.substr(1 << 20, 16384), Pattern(16384, 1));
  EXPECT_EQ(std::count(answer.data.begin(), answer.data.end(), '\0') > (2 << 20) - 16384, true);
  EXPECT_EQ(client->Ask(kRead, 0, 1 << 20, kDf).data, std::string(1 << 20, '\0'));
  EXPECT_EQ(Attach("d?read-only", false)->Read(0, 65536).data, std::string(65536, '\0'));
}

TEST_F(NbdRequestsTest, ZerosAndTrimsReadAsZeros) {
  const auto client = Attach("d", true, {"base:allocation"});
  const auto is_hole = [&](uint64_t offset, uint32_t length) {
    const auto extents = client->Ask(kBlockStatus, offset, length).extents[1];
    return extents.size() == 1 && extents[0].flags == 3 && extents[0].length == length;
  };
  struct Way {
    uint16_t command;
    uint16_t flags;
  };
  for (const Way way :
       {Way{kTrim, 0}, Way{kTrim, kFua}, Way{kWriteZeroes, 0}, Way{kWriteZeroes, kNoHole},
        Way{kWriteZeroes, kNoHole | kFua}, Way{kWriteZeroes, kFastZero}}) {
    EXPECT_EQ(client->Write(0, Pattern(1 << 20, 3)), 0u);
    EXPECT_EQ(client->Ask(way.command, 1000, 900000, way.flags).error, 0u);
    std::string expected = Pattern(1 << 20, 3);
    expected.replace(1000, 900000, 900000, '\0');
    EXPECT_TRUE(client->Read(0, 1 << 20).data == expected) << way.command << " " << way.flags;
    EXPECT_EQ(client->Flush(), 0u);
    EXPECT_TRUE(is_hole(16384, 800 * 1024)) << way.command << " " << way.flags;
  }
  EXPECT_EQ(client->Ask(kWriteZeroes, 0, kSize).error, 0u);  // large: through the txg
  EXPECT_EQ(client->Flush(), 0u);
  EXPECT_TRUE(is_hole(0, kSize));
  EXPECT_EQ(client->Ask(kWriteZeroes, 0, 4096, kNoHole | kFastZero).error, kEnotsup);
}

TEST_F(NbdRequestsTest, RequestsInFlightAreAllAnsweredInAnyOrder) {
  const auto client = Attach("d");
  const std::string bytes = Pattern(kSize, 9);
  for (uint64_t at = 0; at < kSize; at += 1 << 20) {
    EXPECT_EQ(client->Write(at, bytes.substr(at, 1 << 20)), 0u);
  }
  std::map<uint64_t, uint64_t> offsets;
  std::mt19937_64 random(1);
  for (int i = 0; i < 64; ++i) {
    const uint64_t offset = random() % (kSize - 70000);
    offsets[client->Request(kRead, offset, 1 + static_cast<uint32_t>(random() % 70000))] = offset;
    if (i % 8 == 0) client->Request(kFlush, 0, 0);
  }
  for (int i = 0; i < 72; ++i) {
    const auto answer = client->Take();
    ASSERT_FALSE(answer.ended);
    EXPECT_EQ(answer.error, 0u) << answer.text;
    const auto offset = offsets.find(answer.cookie);
    if (offset == offsets.end()) continue;
    EXPECT_TRUE(answer.data == bytes.substr(offset->second, answer.data.size()));
    offsets.erase(offset);
  }
  EXPECT_TRUE(offsets.empty());
}

TEST_F(NbdRequestsTest, CacheReadsAheadAndIsAnswered) {
  const auto client = Attach("d");
  EXPECT_EQ(client->Write(0, Pattern(1 << 20, 4)), 0u);
  EXPECT_EQ(client->Ask(kCache, 0, kSize).error, 0u);
  EXPECT_EQ(client->Ask(kCache, 5, 0).error, 0u);
}

TEST_F(NbdRequestsTest, NothingIsReadAndWrittenToo) {
  for (const bool structured : {false, true}) {
    const auto client = Attach("d?shared", structured);
    EXPECT_EQ(client->Read(0, 0).error, 0u);
    EXPECT_EQ(client->Write(kSize, ""), 0u);
    EXPECT_EQ(client->Ask(kTrim, 7, 0).error, 0u);
  }
}

TEST_F(NbdRequestsTest, ErrorsHaveTheirNumbersAndTheirTexts) {
  Snapshot({"d@s"});
  struct Case {
    uint16_t command;
    uint64_t offset;
    uint32_t length;
    uint16_t flags;
    uint32_t error;
  };
  const Case cases[] = {
      {kRead, kSize - 1, 2, 0, kEinval},      {kRead, UINT64_MAX, 2, 0, kEinval},
      {kRead, 0, (32 << 20) + 1, 0, kEinval}, {kRead, 0, 10, kReqOne, kEinval},
      {kTrim, kSize, 1, 0, kEinval},          {kCache, kSize, 1, 0, kEinval},
      {kWriteZeroes, kSize, 1, 0, kEnospc},   {kBlockStatus, 0, 512, 0, kEinval},
      {kFlush, 0, 0, kDf, kEinval},           {11, 0, 0, 0, kEinval},
      {kRead, 0, 10, 1 << 9, kEinval},
  };
  for (const bool structured : {false, true}) {
    const auto client = Attach("d", structured);
    for (const Case& test : cases) {
      const auto answer = client->Ask(test.command, test.offset, test.length, test.flags);
      EXPECT_EQ(answer.error, test.error) << test.command << " " << test.offset;
      EXPECT_EQ(answer.text.empty(), !structured);
    }
    EXPECT_EQ(client->Write(kSize - 2, "abc"), kEnospc);
    EXPECT_EQ(client->Write(0, "DF", kDf), kEinval);
    EXPECT_EQ(client->Write(0, std::string((32 << 20) + 1, 'x')), kEinval);
    EXPECT_EQ(client->Read(0, 5).error, 0u);  // and the connection goes on
    const auto reader = Attach("d@s", structured);
    EXPECT_EQ(reader->Write(0, "no"), kEperm);
    EXPECT_EQ(reader->Ask(kTrim, 0, 1).error, kEperm);
    EXPECT_EQ(reader->Ask(kWriteZeroes, 0, 1).error, kEperm);
    EXPECT_EQ(reader->Flush(), 0u);
    EXPECT_EQ(reader->Read(0, 5).error, 0u);
  }
}

TEST_F(NbdRequestsTest, AQuotaIsNoSpace) {
  Call(datasets(), &Datasets::CreateDataset, "name: 'q' size_bytes: 8388608 quota_bytes: 1048576");
  const auto client = Attach("q");
  EXPECT_EQ(client->Write(0, Pattern(512 << 10, 1)), 0u);
  EXPECT_EQ(client->Write(1 << 20, Pattern(2 << 20, 1)), kEnospc);
  EXPECT_EQ(client->Read(0, 10).error, 0u);
}

TEST_F(NbdRequestsTest, WhatIsNoRequestEndsTheConnection) {
  const auto client = Attach("d");
  client->Send(std::string(28, 'x'));
  EXPECT_TRUE(client->AtEnd());
  AwaitAttachments(0);
  Eventually([&] { return stats_->nbd.errors[metrics::NbdError::kBrokenProtocol] == 1; });
  const auto huge = Attach("d");
  huge->Request(kWrite, 0, (64 << 20) + 1);
  EXPECT_TRUE(huge->AtEnd());
}

TEST_F(NbdRequestsTest, AClientThatGoesInTheMiddleOfAWriteLeavesNothingBehind) {
  {
    const auto client = Attach("d");
    client->Request(kWrite, 0, 1 << 20, 0, std::string(100000, 'x'));
  }
  AwaitAttachments(0);
  EXPECT_EQ(Attach("d")->Read(0, 1).error, 0u);
}

TEST_F(NbdRequestsTest, CountersAndMetricsCount) {
  const auto client = Attach("d");
  EXPECT_EQ(client->Write(0, std::string(1000, 'x')), 0u);
  EXPECT_EQ(client->Read(0, 700).error, 0u);
  EXPECT_EQ(client->Read(kSize, 1).error, kEinval);
  EXPECT_EQ(client->Flush(), 0u);
  const auto attachments = pool_->attachments().List();
  ASSERT_EQ(attachments.size(), 1u);
  EXPECT_EQ(attachments[0].protocol, "nbd");
  EXPECT_EQ(attachments[0].name, "d");
  EXPECT_EQ(attachments[0].client,
            "uid:" + std::to_string(getuid()) + " pid:" + std::to_string(getpid()));
  EXPECT_EQ(attachments[0].written_bytes, 1000u);
  EXPECT_EQ(attachments[0].read_bytes, 700u);
  EXPECT_EQ(attachments[0].requests, 4u);
  const metrics::NbdStats& nbd = stats_->nbd;
  EXPECT_EQ(nbd.connections, 1u);
  EXPECT_EQ(nbd.requests[metrics::NbdCommand::kRead], 2u);
  EXPECT_EQ(nbd.requests[metrics::NbdCommand::kFlush], 1u);
  EXPECT_EQ(nbd.written_bytes, 1000u);
  EXPECT_EQ(nbd.errors[metrics::NbdError::kInvalid], 1u);
  EXPECT_EQ(nbd.request_seconds[0].count(), 2u);
}

}  // namespace
}  // namespace cowshed::service

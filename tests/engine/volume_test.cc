// SPDX-License-Identifier: Apache-2.0
//
// The bytes of volumes: reads that mix layers, runs and holes, blocks that are handed over, reads
// that must not wait.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/status_macros.h"
#include "tests/support/temp_pool.h"
#include "tests/support/testing.h"

namespace cowshed::engine {
namespace {

constexpr uint64_t kBlock = 16384;
constexpr uint64_t kBlocks = 64;
constexpr uint64_t kSize = kBlocks * kBlock - 5000;  // the last block is a short one

std::string RandomBytes(std::mt19937_64& random, size_t count) {
  std::string bytes(count, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

class VolumeTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_OK(pool_.Create("d", kSize, kBlock).status()); }

  std::shared_ptr<Volume> Open(const std::string& name) {
    return ValueOf(pool_->OpenVolume(name, ""));
  }
  // Whole blocks, by hand-over.
  absl::Status WriteBlocks(const std::string& name, uint64_t first, const std::string& bytes) {
    std::vector<BlockBytes> blocks;
    for (size_t at = 0; at < bytes.size(); at += kBlock) {
      blocks.emplace_back(new std::byte[kBlock]);
      std::memcpy(blocks.back().get(), bytes.data() + at, kBlock);
    }
    RETURN_IF_ERROR(Open(name)->WriteBlocks(first, blocks));
    // What is left of a block that was not taken is zeros: such are holes.
    for (const BlockBytes& block : blocks) {
      if (block == nullptr) continue;
      EXPECT_EQ(std::string(reinterpret_cast<char*>(block.get()), kBlock),
                std::string(kBlock, '\0'));
    }
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> ReadCached(const std::string& name, uint64_t offset, size_t count) {
    std::string bytes(count, '?');
    ASSIGN_OR_RETURN(const bool cached,
                     Open(name)->ReadCached(offset, std::as_writable_bytes(std::span(bytes))));
    return cached ? bytes : pool_.Read(name, offset, count);
  }

  TempPool pool_;
};

TEST_F(VolumeTest, ReadsOfAllKindsEqualAPlainString) {
  std::mt19937_64 random(20261201);
  std::string oracle(kSize, '\0');
  for (int step = 0; step < 400; ++step) {
    const uint64_t offset = random() % kSize;
    const uint64_t count = random() % std::min<uint64_t>(kSize - offset + 1, 9 * kBlock);
    switch (random() % 8) {
      case 0:
        oracle.replace(offset, count, count, '\0');
        ASSERT_OK(pool_.Discard("d", offset, count));
        break;
      case 1: {
        const uint64_t first = random() % (kBlocks - 9);
        const std::string bytes = RandomBytes(random, (random() % 8 + 1) * kBlock);
        oracle.replace(first * kBlock, bytes.size(), bytes);
        ASSERT_OK(WriteBlocks("d", first, bytes));
        break;
      }
      case 2:
        ASSERT_OK(pool_.Flush("d").status());
        break;
      case 3:
      case 4: {
        const std::string bytes = RandomBytes(random, count);
        oracle.replace(offset, count, bytes);
        ASSERT_OK(pool_.Write("d", offset, bytes));
        break;
      }
      default:
        ASSERT_TRUE(ValueOf(pool_.Read("d", offset, count)) == oracle.substr(offset, count));
        ASSERT_TRUE(ValueOf(ReadCached("d", offset, count)) == oracle.substr(offset, count));
    }
  }
  ASSERT_OK(pool_.Snapshot("d@s").status());
  ASSERT_TRUE(ValueOf(pool_.Read("d@s", 0, kSize)) == oracle);
  ASSERT_TRUE(ValueOf(ReadCached("d@s", 1, kSize - 1)) == oracle.substr(1));
  pool_.Reopen();
  ASSERT_TRUE(ValueOf(pool_.Read("d", 0, kSize)) == oracle);
}

TEST_F(VolumeTest, BlocksHandedOverAreChecked) {
  const std::string two(2 * kBlock, 'x');
  // The last block is short, so it cannot be handed over whole.
  EXPECT_TRUE(absl::IsOutOfRange(WriteBlocks("d", kBlocks - 2, two)));
  ASSERT_OK(WriteBlocks("d", kBlocks - 3, two));
  ASSERT_OK(pool_.Snapshot("d@s").status());
  EXPECT_TRUE(absl::IsFailedPrecondition(WriteBlocks("d@s", 0, two)));
  EXPECT_EQ(ValueOf(pool_.Read("d", (kBlocks - 3) * kBlock, two.size())), two);
  const auto volume = Open("d");
  ASSERT_OK(pool_.DestroySnapshot("d@s").status());
  ASSERT_OK(pool_.Destroy("d").status());
  std::vector<BlockBytes> blocks;
  blocks.emplace_back(new std::byte[kBlock]{});
  EXPECT_TRUE(absl::IsAborted(volume->WriteBlocks(0, blocks)));
}

TEST_F(VolumeTest, BlocksOfZerosThatAreHandedOverAreHoles) {
  ASSERT_OK(WriteBlocks("d", 0, std::string(3 * kBlock, 'x')));
  ASSERT_OK(WriteBlocks("d", 1, std::string(kBlock, '\0')));
  ASSERT_OK(pool_.Flush("d").status());
  EXPECT_EQ(ValueOf(pool_->GetDataset("d")).referenced_bytes / kBlock, 2u);
  EXPECT_EQ(ValueOf(Open("d")->NextHole(0, kSize)), kBlock);
}

TEST_F(VolumeTest, QuotaCountsBlocksHandedOver) {
  UpdateDatasetArgs args;
  args.name = "d";
  args.quota_bytes = 4 * kBlock;
  ASSERT_OK(pool_.Call(&Pool::UpdateDataset, args).status());
  EXPECT_TRUE(absl::IsResourceExhausted(WriteBlocks("d", 0, std::string(5 * kBlock, 'x'))));
  EXPECT_EQ(ValueOf(pool_.Read("d", 0, kBlock)), std::string(kBlock, '\0'));
  ASSERT_OK(WriteBlocks("d", 0, std::string(3 * kBlock, 'x')));
}

TEST_F(VolumeTest, ReadsThatMustNotWaitAreCheckedLikeOthers) {
  std::byte byte{};
  EXPECT_TRUE(absl::IsOutOfRange(Open("d")->ReadCached(kSize, std::span(&byte, 1)).status()));
  ASSERT_OK(pool_.Snapshot("d@s").status());
  EXPECT_TRUE(absl::IsOutOfRange(Open("d@s")->ReadCached(kSize, std::span(&byte, 1)).status()));
  const auto volume = Open("d@s");
  ASSERT_OK(pool_.DestroySnapshot("d@s").status());
  EXPECT_TRUE(absl::IsAborted(volume->ReadCached(0, std::span(&byte, 1)).status()));
}

TEST_F(VolumeTest, DamageInsideALongReadNamesItsBlock) {
  std::string bytes;
  for (uint64_t i = 0; i < 20; ++i) bytes += std::string(kBlock, static_cast<char>('a' + i));
  ASSERT_OK(pool_.Write("d", 0, bytes));
  ASSERT_OK(pool_.Flush("d").status());
  std::fstream file(pool_.directory() + "/blocks", std::ios::binary | std::ios::in | std::ios::out);
  std::string sector(kSectorBytes, '\0');
  while (file.read(sector.data(), kSectorBytes) && sector != std::string(kSectorBytes, 'a' + 7)) {
  }
  file.seekp(static_cast<std::streamoff>(file.tellg()) - 100);
  file.put('!');
  file.close();
  for (const uint64_t offset : {uint64_t{0}, uint64_t{100}, 6 * kBlock + 1}) {
    const absl::Status status = pool_.Read("d", offset, 19 * kBlock - offset).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_NE(status.message().find("block 7 is damaged"), absl::string_view::npos) << status;
    EXPECT_TRUE(absl::IsDataLoss(ReadCached("d", offset, 19 * kBlock - offset).status()));
  }
  EXPECT_OK(pool_.Read("d", 8 * kBlock, 12 * kBlock).status());
  ASSERT_OK(pool_.Write("d", 7 * kBlock, std::string(kBlock, 'h')));
  EXPECT_EQ(ValueOf(pool_.Read("d", 0, bytes.size())), bytes);
}

// Every read is one view, whatever moves meanwhile: all its bytes are of one write.
TEST_F(VolumeTest, ReadsAreOneViewWhileSnapshotsAndRollbacksComeAndGo) {
  constexpr uint64_t kCount = 40 * kBlock;
  ASSERT_OK(pool_.Write("d", 0, std::string(kCount, 'a')));
  ASSERT_OK(pool_.Snapshot("d@s").status());
  std::atomic<bool> done{false};
  std::atomic<int> mixed{0};
  std::atomic<int> reads{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i) {
    readers.emplace_back([&, i] {
      const auto volume = Open("d");
      std::string bytes(kCount - 300, '\0');
      while (!done || reads < 50) {
        const auto out = std::as_writable_bytes(std::span(bytes));
        const bool read =
            (i == 0 && ValueOf(volume->ReadCached(100, out))) || volume->Read(100, out).ok();
        mixed += !read || bytes.find_first_not_of(bytes[0]) != std::string::npos ? 1 : 0;
        ++reads;
      }
    });
  }
  for (int round = 0; round < 30; ++round) {
    ASSERT_OK(pool_.Write("d", 0, std::string(kCount, static_cast<char>('b' + round % 20))));
    if (round % 3 == 0) ASSERT_OK(pool_.Flush("d").status());
    if (round % 3 == 1) ASSERT_OK(pool_.Rollback("d").status());
  }
  done = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(mixed, 0);
}

}  // namespace
}  // namespace cowshed::engine

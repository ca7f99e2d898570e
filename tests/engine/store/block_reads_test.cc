// SPDX-License-Identifier: Apache-2.0
//
// ReadMany: many blocks at a time, with few calls of the host, each block proven by itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/store/block_store.h"
#include "tests/engine/store/allocator_fixture.h"
#include "tests/support/testing.h"

namespace cowshed::engine {
namespace {

using Bytes = std::vector<std::byte>;

Bytes Pattern(uint32_t sectors, uint32_t number) {
  Bytes bytes(size_t{sectors} * kSectorBytes);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(number * 31 + i / 7 + i / kSectorBytes);
  }
  return bytes;
}

// What was asked of the host.
struct HostCalls {
  struct Range {
    uint64_t offset;
    uint64_t bytes;
    bool operator==(const Range&) const = default;
  };
  std::vector<Range> reads;  // that were answered
  std::vector<Range> hints;
  bool cold = false;  // nothing is in memory
  absl::Status status;
};

class WatchedFile final : public File {
 public:
  WatchedFile(std::unique_ptr<File> file, HostCalls* calls)
      : file_(std::move(file)), calls_(calls) {}

  absl::Status Read(uint64_t offset, std::span<std::byte> out) const override {
    const iovec piece{out.data(), out.size()};
    return ReadV(offset, std::span(&piece, 1), ReadMode::kWait);
  }
  absl::Status ReadV(uint64_t offset, std::span<const iovec> pieces, ReadMode mode) const override {
    if (calls_->cold && mode == ReadMode::kCached) return absl::CancelledError();
    RETURN_IF_ERROR(calls_->status);
    uint64_t bytes = 0;
    for (const iovec& piece : pieces) bytes += piece.iov_len;
    calls_->reads.push_back({offset, bytes});
    return file_->ReadV(offset, pieces, ReadMode::kWait);
  }
  void WillNeed(uint64_t offset, uint64_t bytes) const override {
    calls_->hints.push_back({offset, bytes});
  }
  absl::Status Write(uint64_t offset, std::span<const std::byte> data) override {
    return file_->Write(offset, data);
  }
  absl::Status WriteV(uint64_t offset, std::span<const iovec> pieces) override {
    return file_->WriteV(offset, pieces);
  }
  absl::Status Sync() override { return file_->Sync(); }
  absl::Status Punch(uint64_t offset, uint64_t bytes) override {
    return file_->Punch(offset, bytes);
  }
  absl::Status Truncate(uint64_t bytes) override { return file_->Truncate(bytes); }
  absl::StatusOr<uint64_t> SizeBytes() const override { return file_->SizeBytes(); }
  absl::StatusOr<uint64_t> HostFreeBytes() const override { return file_->HostFreeBytes(); }
  bool is_device() const override { return false; }

 private:
  const std::unique_ptr<File> file_;
  HostCalls* const calls_;
};

class BlockReadsTest : public ::testing::Test, protected AllocatorFixture {
 protected:
  using Run = ::cowshed::engine::Run;

  void SetUp() override {
    Create(kRegionSectors);
    store_ = ValueOf(BlockStore::Create(
        std::make_unique<WatchedFile>(ValueOf(OpenFile(path_, true, false)), &calls_),
        {.pool_uid = {1, 2}, .capacity_sectors = kRegionSectors}));
  }
  // Blocks of one txg: they lie side by side.
  void Write(uint32_t count, uint32_t sectors) {
    InTxg([&](WriteTxn& txn, Txg txg) {
      BlockWriter writer(*store_, allocator(), txn, txg);
      const size_t first = blocks_.size();
      for (uint32_t i = 0; i < count; ++i) {
        blocks_.push_back(Pattern(sectors, static_cast<uint32_t>(blocks_.size())));
      }
      for (uint32_t i = 0; i < count; ++i) {
        pointers_.push_back(ValueOf(writer.Add(BlockKind::kData, 0, blocks_[first + i], nullptr)));
      }
      ASSERT_OK(writer.Flush());
    });
  }
  void AddHole(uint32_t sectors) {
    blocks_.emplace_back(size_t{sectors} * kSectorBytes);
    pointers_.emplace_back();
  }
  // Reads all blocks, the first without its first bytes, the last without its last ones, into one
  // stretch of memory, and compares.
  absl::Status ReadAll(size_t cut_front = 0, size_t cut_back = 0, ReadMode mode = ReadMode::kWait) {
    Bytes expected;
    for (const Bytes& block : blocks_) expected.insert(expected.end(), block.begin(), block.end());
    expected.resize(expected.size() - cut_back);
    expected.erase(expected.begin(), expected.begin() + static_cast<ptrdiff_t>(cut_front));
    Bytes found(expected.size(), std::byte{0xee});
    std::vector<BlockRead> reads;
    std::span<std::byte> rest = found;
    for (size_t i = 0; i < blocks_.size(); ++i) {
      const size_t skip = i == 0 ? cut_front : 0;
      const size_t count = std::min(blocks_[i].size() - skip, rest.size());
      reads.push_back({pointers_[i], skip, rest.first(count)});
      rest = rest.subspan(count);
    }
    calls_.reads.clear();
    calls_.hints.clear();
    report_ = {};
    RETURN_IF_ERROR(store_->ReadMany(reads, mode, &report_));
    EXPECT_TRUE(found == expected);
    return absl::OkStatus();
  }
  void Flip(uint64_t byte) {
    std::byte value{};
    const auto file = ValueOf(OpenFile(path_, false, false));
    ASSERT_OK(file->Read(byte, std::span(&value, 1)));
    value ^= std::byte{4};
    ASSERT_OK(file->Write(byte, std::span(&value, 1)));
  }
  HostCalls::Range RangeOf(size_t first, size_t count) const {
    uint64_t bytes = 0;
    for (size_t i = first; i < first + count; ++i) bytes += blocks_[i].size();
    return {pointers_[first].address * kSectorBytes, bytes};
  }

  TempDir directory_;
  std::string path_ = directory_.Path("blocks");
  HostCalls calls_;
  std::unique_ptr<BlockStore> store_;
  std::vector<Bytes> blocks_;
  std::vector<BlockPtr> pointers_;
  ReadReport report_;
};

TEST_F(BlockReadsTest, NeighboursAreOneCall) {
  Write(10, 4);
  ASSERT_OK(ReadAll());
  EXPECT_EQ(calls_.reads, std::vector{RangeOf(0, 10)});
  EXPECT_FALSE(report_.waited);
  EXPECT_TRUE(calls_.hints.empty());
}

TEST_F(BlockReadsTest, PartsOfBlocksAreReadWithTheirNeighbours) {
  Write(5, 4);
  ASSERT_OK(ReadAll(/*cut_front=*/5000, /*cut_back=*/1));
  EXPECT_EQ(calls_.reads, std::vector{RangeOf(0, 5)});
  ASSERT_OK(ReadAll(4 * kSectorBytes - 1, 4 * kSectorBytes - 1));
}

TEST_F(BlockReadsTest, APartOfOneBlock) {
  Write(1, 32);
  ASSERT_OK(ReadAll(100, 100));
  ASSERT_OK(ReadAll(32 * kSectorBytes - 1, 0));
  ASSERT_OK(ReadAll(0, 32 * kSectorBytes - 1));
}

TEST_F(BlockReadsTest, ALongRunIsCutSoThatItStaysInTheCache) {
  Write(40, 4);
  ASSERT_OK(ReadAll());
  EXPECT_EQ(calls_.reads, (std::vector{RangeOf(0, 16), RangeOf(16, 16), RangeOf(32, 8)}));
}

TEST_F(BlockReadsTest, BlocksOfTheLeastSizeFillARun) {
  Write(70, 1);
  ASSERT_OK(ReadAll(1, 1));
  EXPECT_EQ(calls_.reads, (std::vector{RangeOf(0, 64), RangeOf(64, 6)}));
}

TEST_F(BlockReadsTest, HolesAndDistantBlocksDivideRuns) {
  Write(3, 4);
  AddHole(4);
  Write(2, 4);
  std::swap(pointers_[0], pointers_[4]);
  std::swap(blocks_[0], blocks_[4]);
  ASSERT_OK(ReadAll(77, 99));
  EXPECT_EQ(calls_.reads.size(), 4u);
}

// Gangs lie in pieces: they are put together in the middle of other blocks.
TEST_F(BlockReadsTest, GangsBetweenOthers) {
  Write(2, 4);
  std::vector<Run> frees;
  InTxg([&](WriteTxn& txn, Txg txg) {
    while (allocator().available_sectors() > 0) {
      const Run run = ValueOf(allocator().Allocate(txn, 1, BlockKind::kData, txg));
      if (run.address % 2 == 1 && frees.size() < 10) frees.push_back(run);
    }
  });
  Free(frees);
  AllocatorFixture::Flush();
  Write(1, 4);
  ASSERT_TRUE(pointers_.back().is_gang());
  std::rotate(pointers_.begin(), pointers_.begin() + 1, pointers_.end());
  std::rotate(blocks_.begin(), blocks_.begin() + 1, blocks_.end());
  ASSERT_OK(ReadAll());
  ASSERT_OK(ReadAll(3, 5));
  std::swap(pointers_[0], pointers_[1]);
  std::swap(blocks_[0], blocks_[1]);
  ASSERT_OK(ReadAll(4097, 0));  // a part of the gang
}

TEST_F(BlockReadsTest, DamageInARunIsThatOfItsBlock) {
  Write(8, 4);
  for (const size_t damaged : {0, 3, 7}) {
    const uint64_t byte = (pointers_[damaged].address + 2) * kSectorBytes + 17;
    Flip(byte);
    const uint64_t before = store_->checksum_errors();
    EXPECT_TRUE(absl::IsDataLoss(ReadAll(9, 9)));
    EXPECT_EQ(report_.failed, damaged);
    EXPECT_EQ(store_->checksum_errors(), before + 1);
    Flip(byte);
  }
  ASSERT_OK(ReadAll(9, 9));
}

TEST_F(BlockReadsTest, APointerOutOfThePoolIsDamageOfItsBlock) {
  Write(3, 4);
  pointers_[2].address = kRegionSectors - 2;
  EXPECT_TRUE(absl::IsDataLoss(ReadAll()));
  EXPECT_EQ(report_.failed, 2u);
  // A run that leaves the pool in its middle.
  pointers_[0].address = kRegionSectors - 8;
  pointers_[1].address = kRegionSectors - 4;
  pointers_[2].address = kRegionSectors;
  EXPECT_TRUE(absl::IsDataLoss(ReadAll()));
  EXPECT_EQ(report_.failed, 2u);
}

TEST_F(BlockReadsTest, AFailingDiskIsNoDamage) {
  Write(3, 4);
  calls_.status = absl::UnavailableError("input/output error");
  EXPECT_TRUE(absl::IsUnavailable(ReadAll()));
  EXPECT_EQ(store_->checksum_errors(), 0u);
}

TEST_F(BlockReadsTest, WhatHasToBeWaitedForIsToldAllAtOnce) {
  Write(20, 4);
  Write(2, 4);
  std::rotate(pointers_.begin(), pointers_.begin() + 20, pointers_.end());
  std::rotate(blocks_.begin(), blocks_.begin() + 20, blocks_.end());
  calls_.cold = true;
  ASSERT_OK(ReadAll());
  EXPECT_TRUE(report_.waited);
  EXPECT_EQ(calls_.hints, std::vector{RangeOf(2, 20)});
  EXPECT_EQ(calls_.reads, (std::vector{RangeOf(0, 2), RangeOf(2, 16), RangeOf(18, 4)}));
}

TEST_F(BlockReadsTest, ACachedReadDoesNotWait) {
  Write(20, 4);
  ASSERT_OK(ReadAll(1, 1, ReadMode::kCached));
  calls_.cold = true;
  EXPECT_TRUE(absl::IsCancelled(ReadAll(1, 1, ReadMode::kCached)));
  EXPECT_TRUE(calls_.reads.empty());
}

}  // namespace
}  // namespace cowshed::engine

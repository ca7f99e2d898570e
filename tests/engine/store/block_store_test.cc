// SPDX-License-Identifier: Apache-2.0
#include "engine/store/block_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "engine/base/hash.h"
#include "tests/engine/store/allocator_fixture.h"
#include "tests/support/fault_file.h"

namespace cowshed::engine {
namespace {

using Bytes = std::vector<std::byte>;

// Bytes that tell one block from another.
Bytes Pattern(uint32_t sectors, uint32_t number) {
  Bytes bytes(size_t{sectors} * kSectorBytes);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(number * 31 + i / 7 + i / kSectorBytes);
  }
  return bytes;
}

class BlockStoreTest : public ::testing::Test, protected AllocatorFixture {
 protected:
  using Run = ::cowshed::engine::Run;

  void MakePool(uint64_t capacity_sectors) {
    Create(capacity_sectors);
    store_ = ValueOf(BlockStore::Create(
        OpenBlocks(true), {.pool_uid = {1, 2}, .capacity_sectors = capacity_sectors}));
  }
  std::unique_ptr<File> OpenBlocks(bool create = false) {
    return std::make_unique<FaultFile>(ValueOf(OpenFile(path_, create, false)), plan_);
  }
  void OpenAgain() {
    store_.reset();
    store_ = ValueOf(BlockStore::Open(OpenBlocks()));
  }
  // Adds one block in a txg of its own and writes it.
  BlockPtr Write(const Bytes& data, std::vector<Run>* extents = nullptr) {
    BlockPtr pointer;
    InTxg([&](WriteTxn& txn, Txg txg) {
      BlockWriter writer(*store_, allocator(), txn, txg);
      pointer = ValueOf(writer.Add(BlockKind::kData, 0, data, extents));
      ASSERT_OK(writer.Flush());
    });
    return pointer;
  }
  absl::StatusOr<Bytes> Read(const BlockPtr& pointer) {
    Bytes bytes(size_t{pointer.sectors} * kSectorBytes);
    const absl::Status status = store_->Read(pointer, bytes);
    return status.ok() ? absl::StatusOr<Bytes>(bytes) : status;
  }
  void Flip(uint64_t byte) {
    std::byte value{};
    const auto file = ValueOf(OpenFile(path_, false, false));
    ASSERT_OK(file->Read(byte, std::span(&value, 1)));
    value ^= std::byte{4};
    ASSERT_OK(file->Write(byte, std::span(&value, 1)));
  }
  // Leaves every other sector free, so that no run is longer than one.
  void Fragment(uint64_t free_sectors) {
    std::vector<Run> frees;
    InTxg([&](WriteTxn& txn, Txg txg) {
      while (allocator().available_sectors() > 0) {
        const Run run = ValueOf(allocator().Allocate(txn, 1, BlockKind::kData, txg));
        if (run.address % 2 == 1 && frees.size() < free_sectors) {
          frees.push_back(run);
        }
      }
    });
    Free(frees);
    Flush();
  }

  TempDir directory_;
  std::string path_ = directory_.Path("blocks");
  std::shared_ptr<FaultPlan> plan_ = std::make_shared<FaultPlan>();
  std::unique_ptr<BlockStore> store_;
};

TEST_F(BlockStoreTest, ReadsBackWhatItWrote) {
  MakePool(kRegionSectors);
  std::vector<Bytes> blocks;
  std::vector<BlockPtr> pointers;
  std::vector<Run> extents;
  auto node = std::make_shared<Node>();
  node->children[5] = {.address = 77, .birth = 1, .kind = BlockKind::kData};
  BlockPtr node_pointer;
  InTxg([&](WriteTxn& txn, Txg txg) {
    BlockWriter writer(*store_, allocator(), txn, txg);
    EXPECT_EQ(writer.txg(), txg);
    for (const uint32_t sectors : {1u, 4u, 32u, 2u}) {
      blocks.push_back(Pattern(sectors, sectors));
      pointers.push_back(ValueOf(writer.Add(BlockKind::kData, 0, blocks.back(), &extents)));
    }
    node_pointer = ValueOf(writer.AddNode(1, node, &extents));
    node.reset();
    plan_->ClearCalls();
    ASSERT_OK(writer.Flush());
  });
  // One txg's blocks are one write.
  ASSERT_EQ(plan_->calls().size(), 1u);
  EXPECT_EQ(plan_->calls()[0].bytes, 40 * kSectorBytes);
  EXPECT_EQ(store_->bytes_written(), 40 * kSectorBytes);
  OpenAgain();
  for (size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_EQ(ValueOf(Read(pointers[i])), blocks[i]);
    EXPECT_EQ(extents[i], (Run{pointers[i].address, 1, pointers[i].sectors, BlockKind::kData}));
    std::vector<Run> found;
    ASSERT_OK(store_->Extents(pointers[i], &found));
    EXPECT_EQ(found, std::vector<Run>{extents[i]});
  }
  EXPECT_EQ(node_pointer.level, 1);
  EXPECT_EQ(node_pointer.kind, BlockKind::kNode);
  Node read;
  ASSERT_OK(store_->Read(node_pointer, std::as_writable_bytes(std::span(&read, 1))));
  EXPECT_EQ(read.children[5].address, 77u);
}

TEST_F(BlockStoreTest, LongRunsTakeFewWrites) {
  MakePool(kRegionSectors);
  const Bytes block = Pattern(1, 1);
  InTxg([&](WriteTxn& txn, Txg txg) {
    BlockWriter writer(*store_, allocator(), txn, txg);
    for (int i = 0; i < 3000; ++i) {
      ASSERT_OK(StatusOf(writer.Add(BlockKind::kData, 0, block, nullptr)));
    }
    plan_->ClearCalls();
    ASSERT_OK(writer.Flush());
    EXPECT_EQ(plan_->calls().size(), 12u);  // of at most 1 MiB, 256 blocks
    ASSERT_OK(writer.Flush());              // nothing left
    EXPECT_EQ(plan_->calls().size(), 12u);
  });
}

TEST_F(BlockStoreTest, HoleIsZeros) {
  MakePool(kRegionSectors);
  Bytes bytes = Pattern(3, 1);
  ASSERT_OK(store_->Read(BlockPtr{}, bytes));
  EXPECT_EQ(bytes, Bytes(3 * kSectorBytes));
  std::vector<Run> extents;
  ASSERT_OK(store_->Extents(BlockPtr{}, &extents));
  EXPECT_TRUE(extents.empty());
}

TEST_F(BlockStoreTest, WrongBytesAreDataLoss) {
  MakePool(kRegionSectors);
  const BlockPtr pointer = Write(Pattern(4, 1));
  Flip(pointer.address * kSectorBytes + 12345);
  EXPECT_CODE(Read(pointer), kDataLoss);
  EXPECT_EQ(store_->checksum_errors(), 1u);
  Flip(pointer.address * kSectorBytes + 12345);
  EXPECT_OK(StatusOf(Read(pointer)));
  BlockPtr outside = pointer;
  outside.address = kRegionSectors - 3;
  EXPECT_CODE(Read(outside), kDataLoss);
  outside.address = 1;
  EXPECT_CODE(Read(outside), kDataLoss);
}

TEST_F(BlockStoreTest, FailingReadIsNotDataLoss) {
  MakePool(kRegionSectors);
  const BlockPtr pointer = Write(Pattern(4, 1));
  plan_->Fail({.at = 1});
  EXPECT_CODE(Read(pointer), kUnavailable);
  EXPECT_OK(StatusOf(Read(pointer)));
  EXPECT_EQ(store_->checksum_errors(), 0u);
}

TEST_F(BlockStoreTest, FragmentedPoolTakesGangs) {
  MakePool(1000);
  Fragment(40);
  const Bytes data = Pattern(32, 3);
  std::vector<Run> extents;
  const BlockPtr pointer = Write(data, &extents);
  EXPECT_TRUE(pointer.is_gang());
  EXPECT_EQ(pointer.sectors, 32);
  EXPECT_EQ(extents.size(), 33u);
  EXPECT_EQ(extents[0].address, pointer.address);
  EXPECT_EQ(allocator().available_sectors(), 7u);
  OpenAgain();
  EXPECT_EQ(ValueOf(Read(pointer)), data);
  std::vector<Run> found;
  ASSERT_OK(store_->Extents(pointer, &found));
  EXPECT_EQ(found, extents);

  Flip(extents[17].address * kSectorBytes + 5);
  EXPECT_CODE(Read(pointer), kDataLoss);
  Flip(extents[17].address * kSectorBytes + 5);
  Flip(pointer.address * kSectorBytes + 4000);
  EXPECT_CODE(Read(pointer), kDataLoss);
  EXPECT_CODE(store_->Extents(pointer, &found), kDataLoss);
  Flip(pointer.address * kSectorBytes + 4000);
  BlockPtr other_birth = pointer;
  ++other_birth.birth;
  EXPECT_CODE(Read(other_birth), kDataLoss);
  EXPECT_EQ(store_->checksum_errors(), 4u);

  Free(found);
  EXPECT_EQ(Flush(), 33u);
}

TEST_F(BlockStoreTest, GangNeedsRoomForItsListToo) {
  MakePool(1000);
  Fragment(5);
  const Bytes five = Pattern(5, 1);
  const Bytes six = Pattern(6, 1);
  const Bytes four = Pattern(4, 1);
  InTxg([&](WriteTxn& txn, Txg txg) {
    BlockWriter writer(*store_, allocator(), txn, txg);
    EXPECT_CODE(writer.Add(BlockKind::kData, 0, six, nullptr), kResourceExhausted);
    EXPECT_CODE(writer.Add(BlockKind::kData, 0, five, nullptr), kResourceExhausted);
    EXPECT_EQ(allocator().available_sectors(), 5u);
    EXPECT_OK(StatusOf(writer.Add(BlockKind::kData, 0, four, nullptr)));
    EXPECT_EQ(allocator().available_sectors(), 0u);
    ASSERT_OK(writer.Flush());
  });
}

TEST_F(BlockStoreTest, StampIsWrittenBeforeTheSyncAndOnlyWhenNeeded) {
  MakePool(1000);
  EXPECT_EQ(ValueOf(store_->SyncStamped(1, 0, 1000)), 0u);  // nothing was written
  Write(Pattern(1, 1));
  plan_->ClearCalls();
  EXPECT_EQ(ValueOf(store_->SyncStamped(2, 0, 1000)), 2u);
  ASSERT_EQ(plan_->calls().size(), 2u);
  EXPECT_EQ(plan_->calls()[0].op, FileOp::kWrite);
  EXPECT_EQ(plan_->calls()[0].bytes, sizeof(Superblock));
  EXPECT_EQ(plan_->calls()[1].op, FileOp::kSync);
  EXPECT_EQ(ValueOf(store_->SyncStamped(3, 2, 1000)), 2u);
  EXPECT_EQ(plan_->calls().size(), 2u);
  // A new capacity is written though no block was.
  EXPECT_EQ(ValueOf(store_->SyncStamped(4, 2, 2000)), 4u);
  OpenAgain();
  EXPECT_EQ(store_->superblock().stamp_txg, 4u);
  EXPECT_EQ(store_->superblock().base_stamp_txg, 2u);
  EXPECT_EQ(store_->superblock().capacity_sectors, 2000u);
  EXPECT_EQ(store_->superblock().pool_uid, (PoolUid{1, 2}));
  EXPECT_EQ(ValueOf(store_->file().SizeBytes()), 2000u * kSectorBytes);
}

TEST_F(BlockStoreTest, TornSuperblockLeavesTheOneBefore) {
  MakePool(1000);
  Txg committed = 0;
  Txg next = 1;
  plan_->CountOnly(FileOp::kWrite);
  for (uint64_t torn_bytes = 0; torn_bytes < sizeof(Superblock); torn_bytes += 24) {
    // Odd and even stamps, with gaps: the newest must never be the one written over.
    next += 1 + torn_bytes % 3;
    Write(Pattern(1, 1));
    ASSERT_EQ(ValueOf(store_->SyncStamped(next, committed, 1000)), next);
    committed = next;
    next += 1 + torn_bytes % 5;
    Write(Pattern(1, 2));
    plan_->Fail({.at = 1, .torn_bytes = torn_bytes});
    EXPECT_CODE(store_->SyncStamped(next, committed, 1000), kUnavailable);
    plan_->Heal();
    OpenAgain();
    EXPECT_EQ(store_->superblock().stamp_txg, committed) << torn_bytes;
  }
}

TEST_F(BlockStoreTest, CrashBetweenTheSyncsKeepsTheBase) {
  MakePool(1000);
  Write(Pattern(1, 1));
  ASSERT_EQ(ValueOf(store_->SyncStamped(5, 0, 1000)), 5u);
  Write(Pattern(1, 1));
  ASSERT_EQ(ValueOf(store_->SyncStamped(8, 5, 1000)), 8u);  // its commit never came
  OpenAgain();
  EXPECT_EQ(store_->superblock().stamp_txg, 8u);
  EXPECT_EQ(store_->superblock().base_stamp_txg, 5u);
  Write(Pattern(1, 1));
  ASSERT_EQ(ValueOf(store_->SyncStamped(9, 5, 1000)), 9u);
  OpenAgain();
  EXPECT_EQ(store_->superblock().base_stamp_txg, 5u);
}

TEST_F(BlockStoreTest, FailedSyncIsFinal) {
  MakePool(1000);
  const BlockPtr pointer = Write(Pattern(2, 1));
  plan_->CountOnly(FileOp::kSync);
  plan_->Fail({.at = 1});
  EXPECT_CODE(store_->SyncStamped(2, 0, 1000), kUnavailable);
  EXPECT_CODE(store_->SyncStamped(3, 0, 1000), kFailedPrecondition);
  InTxg([&](WriteTxn& txn, Txg txg) {
    const Bytes data = Pattern(1, 1);
    BlockWriter writer(*store_, allocator(), txn, txg);
    ASSERT_OK(StatusOf(writer.Add(BlockKind::kData, 0, data, nullptr)));
    EXPECT_CODE(writer.Flush(), kFailedPrecondition);
  });
  EXPECT_OK(StatusOf(Read(pointer)));
}

TEST_F(BlockStoreTest, FailedWriteMayBeDoneAgain) {
  MakePool(1000);
  const Bytes data = Pattern(2, 1);
  InTxg([&](WriteTxn& txn, Txg txg) {
    BlockWriter writer(*store_, allocator(), txn, txg);
    const BlockPtr pointer = ValueOf(writer.Add(BlockKind::kData, 0, data, nullptr));
    plan_->Fail({.at = 1, .status = absl::ResourceExhaustedError("full"), .torn_bytes = 5000});
    EXPECT_CODE(writer.Flush(), kResourceExhausted);
    EXPECT_CODE(Read(pointer), kDataLoss);
    EXPECT_OK(writer.Flush());
    EXPECT_EQ(ValueOf(Read(pointer)), data);
  });
}

TEST_F(BlockStoreTest, RefusesWhatItDoesNotKnow) {
  const auto opens = [this](const Superblock& superblock) {
    std::filesystem::remove(path_);
    ValueOf(BlockStore::Create(OpenBlocks(true), superblock));
    return BlockStore::Open(OpenBlocks()).status();
  };
  EXPECT_OK(opens({.capacity_sectors = 100}));
  EXPECT_OK(opens({.features = {.compatible = 1}, .capacity_sectors = 100}));
  EXPECT_CODE(opens({.features = {.incompatible = 1}, .capacity_sectors = 100}),
              kFailedPrecondition);
  EXPECT_CODE(opens({.version = kFormatVersion + 1, .capacity_sectors = 100}), kFailedPrecondition);
  EXPECT_CODE(opens({.sector_bytes = 512, .capacity_sectors = 100}), kFailedPrecondition);
  std::filesystem::remove(path_);
  EXPECT_CODE(BlockStore::Open(OpenBlocks(true)), kFailedPrecondition);
}

TEST_F(BlockStoreTest, PunchedRunReadsAsZeros) {
  MakePool(1000);
  const BlockPtr pointer = Write(Pattern(32, 1));
  const Run run{.address = pointer.address, .sectors = 32};
  const absl::Status status = store_->Punch(run);
  if (absl::IsUnimplemented(status)) {
    GTEST_SKIP() << status;
  }
  ASSERT_OK(status);
  Bytes bytes(32 * kSectorBytes, std::byte{1});
  ASSERT_OK(store_->file().Read(run.address * kSectorBytes, bytes));
  EXPECT_EQ(bytes, Bytes(32 * kSectorBytes));
  EXPECT_CODE(store_->Punch({.address = 0, .sectors = 2}), kDataLoss);
}

}  // namespace
}  // namespace cowshed::engine

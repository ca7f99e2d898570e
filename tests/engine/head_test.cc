// SPDX-License-Identifier: Apache-2.0
#include "engine/head.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>

namespace cowshed::engine {
namespace {

constexpr uint32_t kBlockBytes = 4096;
constexpr DatasetId kId{20};

DatasetRecord RecordOf(uint64_t size_bytes, uint64_t root_address = 0) {
  DatasetRecord record;
  record.tree.size_bytes = size_bytes;
  record.tree.block_bytes = kBlockBytes;
  record.tree.height = 1;
  record.tree.root.address = root_address;
  return record;
}

class HeadTest : public ::testing::Test {
 protected:
  std::shared_ptr<Head> Open(DatasetId id = kId) {
    return table_.Open(id, "uid", RecordOf(10 * kBlockBytes), /*record_txg=*/100);
  }
  void Write(const std::shared_ptr<Head>& head, uint64_t block, char byte) {
    {
      const MutexLock lock(head->mutex);
      DirtyBlock& dirty = head->open.blocks[block];
      dirty.bytes = std::make_unique<std::byte[]>(kBlockBytes);
      std::memset(dirty.bytes.get(), byte, kBlockBytes);
      head->open.bytes += kBlockBytes;
      head->open.admitted_sectors += 7;
    }
    table_.MarkDirty(head);
  }
  static std::string BlocksOf(const Layer& layer) {
    std::string text;
    for (const auto& [block, dirty] : layer.blocks) {
      text += std::to_string(block) + static_cast<char>(dirty.bytes[0]) + " ";
    }
    return text;
  }
  HeadTable::Released Publish(Txg txg, LayerCut cut, uint64_t size_bytes, bool destroyed = false) {
    Publication publication;
    publication.heads[kId] = {RecordOf(size_bytes, txg), cut, destroyed};
    return table_.Publish(txg, publication, closed_);
  }

  HeadTable table_{4096};
  std::vector<std::shared_ptr<Head>> closed_;
};

TEST_F(HeadTest, OneHeadPerDataset) {
  const auto head = Open();
  EXPECT_EQ(Open(), head);
  EXPECT_NE(Open(DatasetId{21}), head);
}

TEST_F(HeadTest, RecordsOlderThanThePublishedTxgAreReadAgain) {
  table_.Publish(101, {}, {});
  EXPECT_EQ(Open(), nullptr);
  EXPECT_NE(table_.Open(kId, "uid", RecordOf(4096), 101), nullptr);
  EXPECT_EQ(table_.OpenSnapshot(SnapshotId{1}, "uid", SnapshotRecord(), 100), nullptr);
}

TEST_F(HeadTest, LayersMoveWithTheTxg) {
  const auto head = Open();
  Write(head, 3, 'a');
  Write(head, 5, 'b');
  closed_ = table_.CloseLayers();
  ASSERT_EQ(closed_.size(), 1u);
  Write(head, 3, 'c');
  {
    const MutexLock lock(head->mutex);
    EXPECT_EQ(BlocksOf(head->syncing), "3a 5b ");
    EXPECT_EQ(BlocksOf(head->open), "3c ");
  }
  const HeadTable::Released released = Publish(101, LayerCut::kNone, 10 * kBlockBytes);
  EXPECT_EQ(released.bytes, 2 * kBlockBytes);
  EXPECT_EQ(released.admitted_sectors, 14u);
  const MutexLock lock(head->mutex);
  EXPECT_TRUE(head->syncing.empty());
  EXPECT_EQ(BlocksOf(head->open), "3c ");
  EXPECT_EQ(head->tree.root.address, 101u);
  EXPECT_EQ(head->generation, 0u);
}

TEST_F(HeadTest, RollbackEmptiesTheOpenLayer) {
  const auto head = Open();
  Write(head, 3, 'a');
  const HeadTable::Released released = Publish(101, LayerCut::kAll, 10 * kBlockBytes);
  EXPECT_EQ(released.bytes, kBlockBytes);
  EXPECT_EQ(released.admitted_sectors, 7u);
  const MutexLock lock(head->mutex);
  EXPECT_TRUE(head->open.empty());
  EXPECT_EQ(head->open.bytes, 0u);
  EXPECT_EQ(head->generation, 1u);
  EXPECT_EQ(head->rollbacks, 1u);
  EXPECT_FALSE(head->destroyed);
}

TEST_F(HeadTest, ShrinkCutsTheOpenLayerToTheByte) {
  const auto head = Open();
  for (const uint64_t block : {2, 3, 4}) Write(head, block, 'a');
  const HeadTable::Released released = Publish(101, LayerCut::kShrink, 3 * kBlockBytes + 10);
  EXPECT_EQ(released.bytes, kBlockBytes);
  EXPECT_EQ(released.admitted_sectors, 0u);  // with what is left of the layer
  const MutexLock lock(head->mutex);
  EXPECT_EQ(BlocksOf(head->open), "2a 3a ");
  const std::byte* last = head->open.blocks[3].bytes.get();
  EXPECT_EQ(last[9], std::byte{'a'});
  EXPECT_EQ(last[10], std::byte{0});
  EXPECT_EQ(last[kBlockBytes - 1], std::byte{0});
  EXPECT_EQ(head->generation, 1u);
  EXPECT_EQ(head->rollbacks, 0u);
}

TEST_F(HeadTest, DestructionLetsGoOfEverything) {
  const auto head = Open();
  Write(head, 3, 'a');
  closed_ = table_.CloseLayers();
  Write(head, 4, 'b');
  const HeadTable::Released released =
      Publish(101, LayerCut::kAll, 10 * kBlockBytes, /*destroyed=*/true);
  EXPECT_EQ(released.bytes, 2 * kBlockBytes);
  EXPECT_EQ(released.admitted_sectors, 14u);
  {
    const MutexLock lock(head->mutex);
    EXPECT_TRUE(head->destroyed);
    EXPECT_TRUE(head->open.empty());
    EXPECT_TRUE(head->syncing.empty());
  }
  EXPECT_NE(table_.Open(kId, "uid", RecordOf(4096), 101), head);
}

// Bug: publishing the end of a head that only the table had left its lock after it was gone (found
// by ThreadSanitizer, seen by AddressSanitizer).
TEST_F(HeadTest, DestructionOfAHeadThatNobodyElseHas) {
  const std::weak_ptr<Head> head = Open();
  Publish(101, LayerCut::kAll, 10 * kBlockBytes, /*destroyed=*/true);
  EXPECT_TRUE(head.expired());
}

TEST_F(HeadTest, SnapshotsAreToldOfTheirEnd) {
  SnapshotRecord record;
  const auto view = table_.OpenSnapshot(SnapshotId{30}, "uid", record, 100);
  EXPECT_EQ(table_.OpenSnapshot(SnapshotId{30}, "uid", record, 100), view);
  Publication publication;
  publication.destroyed_snapshots = {SnapshotId{29}, SnapshotId{30}};
  table_.Publish(101, publication, {});
  EXPECT_TRUE(view->destroyed);
}

TEST(HeadTableTest, IdleHeadsAreEvictedAndOthersKept) {
  HeadTable table(2);
  const auto open = [&](uint64_t id) {
    return table.Open(DatasetId{id}, "uid", RecordOf(4096), 100);
  };
  const auto used = open(1);
  std::weak_ptr<Head> dirty = open(2);
  {
    const auto head = dirty.lock();
    {
      const MutexLock lock(head->mutex);
      head->open.blocks[0];
    }
    table.MarkDirty(head);
  }
  const std::weak_ptr<Head> idle = open(3);
  for (uint64_t id = 4; id < 10; ++id) open(id);
  EXPECT_TRUE(idle.expired());
  EXPECT_FALSE(dirty.expired());
  EXPECT_EQ(open(1), used);
}

}  // namespace
}  // namespace cowshed::engine

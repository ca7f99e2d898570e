// SPDX-License-Identifier: Apache-2.0
//
// The checker must find what is wrong: each test plants one error in the metadata of a sound pool.
#include "engine/checker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "engine/names.h"
#include "engine/store/allocator.h"
#include "engine/store/records.h"
#include "engine/store/region_bitmap.h"
#include "engine/store/region_records.h"
#include "engine/tree/dead_list.h"
#include "engine/tree/live_list.h"
#include "tests/support/temp_pool.h"
#include "tests/support/testing.h"

namespace cowshed::engine {
namespace {

using ::testing::HasSubstr;

class CheckerTest : public ::testing::Test {
 protected:
  CheckerTest() : pool_([](PoolOptions* options) { options->background_work = false; }) {}

  // a with two snapshots, a deadlist and frees behind it; c a clone of a@1 with blocks of its own.
  void SetUp() override {
    ASSERT_OK(pool_.Create("a").status());
    Fill("a", 'a', 40);
    ASSERT_OK(pool_.Snapshot("a@1").status());
    Fill("a", 'b', 20);
    ASSERT_OK(pool_.Snapshot("a@2").status());
    Fill("a", 'c', 30);
    Fill("a", 'd', 10);
    ASSERT_OK(pool_.Clone("a@1", "c/deep").status());
    Fill("c/deep", 'e', 10);
    ASSERT_OK(pool_.Hold("a@1", "tag").status());
    pool_.ExpectClean();
  }
  void TearDown() override { pool_.Abandon(); }

  void Fill(const std::string& name, char byte, uint64_t blocks) {
    ASSERT_OK(pool_.Write(name, 0, std::string(blocks * 4096, byte)));
    ASSERT_OK(pool_.Flush(name).status());
  }

  // Plants an error and expects a finding of `invariant` whose message contains `text`.
  void ExpectFound(const std::function<void(WriteTxn&)>& plant, const std::string& invariant,
                   const std::string& text) {
    pool_.Damage(plant);
    const CheckReport report = ValueOf(pool_->Check());
    std::string all;
    for (const CheckFinding& finding : report.findings) {
      if (finding.invariant == invariant && finding.message.find(text) != std::string::npos) return;
      all += finding.invariant + " " + finding.name + ": " + finding.message + "\n";
    }
    ADD_FAILURE() << "no finding of " << invariant << " with \"" << text << "\"; found:\n" << all;
  }

  static DatasetId IdOf(const MetaTxn& txn, const std::string& name) {
    return *ValueOf(Names::Find(txn, name));
  }
  // Changes the record of a dataset.
  static void Change(WriteTxn& txn, const std::string& name,
                     const std::function<void(DatasetRecord*)>& change) {
    const Key key(IdOf(txn, name));
    DatasetRecord record = ValueOf(LoadRecord<DatasetRecord>(txn, key));
    change(&record);
    ASSERT_OK(StoreRecord(txn, key, record));
  }
  static void ChangeBitmap(WriteTxn& txn, const std::function<void(RegionBitmap*)>& change) {
    const auto bytes = ValueOf(txn.Get(Table::kRegions, RegionKey(0)));
    RegionBitmap bitmap = ValueOf(RegionBitmap::Decode(*bytes));
    change(&bitmap);
    ASSERT_OK(txn.Put(Table::kRegions, RegionKey(0), bitmap.bytes()));
    // The sum must fit, or the whole region counts as damaged.
    const PoolRecord pool = ValueOf(LoadRecord<PoolRecord>(txn, PoolRecord::kKey));
    std::string sums(*ValueOf(txn.Get(Table::kRegionSums, RegionSumKey(0))));
    RegionSumRecord sum;
    std::memcpy(&sum, sums.data(), sizeof(sum));
    sum.free_sectors = static_cast<uint32_t>(pool.capacity_sectors) - bitmap.CountSet();
    std::memcpy(sums.data(), &sum, sizeof(sum));
    ASSERT_OK(txn.Put(Table::kRegionSums, RegionSumKey(0), sums));
  }

  TempPool pool_;
};

TEST_F(CheckerTest, ReferencedSectorThatIsFree) {
  ExpectFound(
      [](WriteTxn& txn) {
        uint64_t root = 0;
        Change(txn, "a", [&](DatasetRecord* record) { root = record->tree.root.address; });
        ChangeBitmap(txn, [&](RegionBitmap* bitmap) {
          bitmap->Clear(static_cast<uint32_t>(root), static_cast<uint32_t>(root) + 1);
        });
      },
      "I1", "are free and referenced");
}

TEST_F(CheckerTest, TakenSectorThatNothingReferences) {
  ExpectFound(
      [](WriteTxn& txn) {
        ChangeBitmap(txn, [](RegionBitmap* bitmap) { bitmap->Set(16000, 16003); });
      },
      "I1", "sectors [16000, 16003) are not free and referenced by nothing");
}

TEST_F(CheckerTest, FreeLoggedSectorThatIsReferenced) {
  ExpectFound(
      [](WriteTxn& txn) {
        Allocator allocator{AllocatorOptions{}};
        const PoolRecord pool = ValueOf(LoadRecord<PoolRecord>(txn, PoolRecord::kKey));
        ASSERT_OK(allocator.Reload(txn, pool.capacity_sectors));
        BlockPtr root;
        Change(txn, "a", [&](DatasetRecord* record) { root = record->tree.root; });
        const engine::Run run = {root.address, root.birth, 1, BlockKind::kNode};
        ASSERT_OK(allocator.Free(txn, pool.txg, std::span(&run, 1)));
        ASSERT_OK(allocator.WriteBack(txn, pool.txg));
      },
      "I1", "are logged free and referenced by a tree");
}

TEST_F(CheckerTest, WrongSums) {
  ExpectFound(
      [](WriteTxn& txn) {
        Change(txn, "a", [](DatasetRecord* record) {
          ++record->used_sectors;
          --record->referenced_sectors;
          record->written_sectors += 7;
          ++record->data_blocks;
          ++record->snapshots;
        });
      },
      "sums", "used_sectors is recorded as");
  const CheckReport report = ValueOf(pool_->Check());
  for (const char* sum : {"referenced_sectors", "written_sectors", "data_blocks", "snapshots"}) {
    bool found = false;
    for (const CheckFinding& finding : report.findings) {
      found |= finding.name == "a" && finding.message.find(sum) == 0;
    }
    EXPECT_TRUE(found) << sum;
  }
}

TEST_F(CheckerTest, WrongCountsOfThePool) {
  ExpectFound(
      [](WriteTxn& txn) {
        PoolRecord pool = ValueOf(LoadRecord<PoolRecord>(txn, PoolRecord::kKey));
        ++pool.freeing_sectors;
        ASSERT_OK(StoreRecord(txn, PoolRecord::kKey, pool));
      },
      "sums", "freeing_sectors is recorded as 1 but is 0");
}

TEST_F(CheckerTest, NameThatLeadsNowhere) {
  ExpectFound(
      [](WriteTxn& txn) {
        const NameRecord entry = {DirectoryId{}, DatasetId{999999}};
        ASSERT_OK(StoreRecord(txn, Key(kRootDirectory, std::string_view("ghost")), entry));
      },
      "names", "leads to a dataset that does not exist");
}

TEST_F(CheckerTest, DatasetWithoutName) {
  ExpectFound(
      [](WriteTxn& txn) {
        ASSERT_OK(txn.Delete(Table::kNames, Key(kRootDirectory, std::string_view("a"))));
      },
      "names", "no name leads to this dataset");
}

TEST_F(CheckerTest, SnapshotThatItsIndexLacks) {
  ExpectFound(
      [](WriteTxn& txn) {
        ASSERT_OK(txn.Delete(Table::kSnapshotsByName, Key(IdOf(txn, "a"), std::string_view("1"))));
      },
      "names", "name, state and index by name disagree");
}

TEST_F(CheckerTest, FreeMissingFromALivelist) {
  ExpectFound(
      [](WriteTxn& txn) {
        LivelistId list{};
        Change(txn, "a", [&](DatasetRecord* record) { list = record->livelist; });
        // The newest sublist logged what 'd' replaced as freed: forget all its FREEs.
        const std::vector<Sublist> sublists = ValueOf(LiveList::List(txn, list));
        const Sublist newest = sublists.back();
        ASSERT_GT(newest.record.freed.total(), 0u);
        std::vector<LogEntry> entries;
        ASSERT_OK(PointerLog::ReadAll(txn, newest.record.log, &entries));
        std::erase_if(entries, [](const LogEntry& entry) { return entry.op == LogOp::kFree; });
        IdSource ids;
        ids.Reset(1000000);
        SublistRecord record = newest.record;
        record.log = ids.Take<LogId>();
        record.entries = ValueOf(PointerLog::Append(txn, record.log, entries));
        record.freed = {};
        ASSERT_OK(txn.Put(Table::kSublists, Key(list, newest.start), Encoder().Put(record).Take()));
      },
      "I6", "survive in the livelist and nothing references them");
}

TEST_F(CheckerTest, BlockMissingFromALivelist) {
  ExpectFound(
      [](WriteTxn& txn) {
        Change(txn, "c/deep", [&](DatasetRecord* record) {
          const std::vector<Sublist> sublists = ValueOf(LiveList::List(txn, record->livelist));
          ASSERT_OK(LiveList::Remove(txn, record->livelist, sublists.back().start).status());
        });
      },
      "I6", "survives in no livelist");
}

TEST_F(CheckerTest, DeadlistThatHoldsTooMuch) {
  ExpectFound(
      [](WriteTxn& txn) {
        Change(txn, "a", [&](DatasetRecord* record) {
          const BlockPtr& root = record->tree.root;
          const engine::Run run = {root.address, root.birth, 1, BlockKind::kNode};
          IdSource ids;
          ids.Reset(1000000);
          ASSERT_OK(DeadList::Append(txn, record->deadlist, std::span(&run, 1), ids));
        });
      },
      "I5", "younger than the previous snapshot");
}

TEST_F(CheckerTest, DeadlistThatLacksSomething) {
  ExpectFound(
      [](WriteTxn& txn) {
        Change(txn, "a", [](DatasetRecord* record) { record->deadlist = DeadlistId{1000000}; });
      },
      "I5", "the deadlist holds 0 sectors");
}

TEST_F(CheckerTest, PointerWithTheWrongBirth) {
  ExpectFound(
      [](WriteTxn& txn) {
        Change(txn, "a", [](DatasetRecord* record) { --record->tree.root.birth; });
      },
      "I1", "is one that a has as born in txg");
}

TEST_F(CheckerTest, NodeThatIsDamaged) {
  ExpectFound(
      [](WriteTxn& txn) {
        Change(txn, "c/deep", [](DatasetRecord* record) { record->tree.root.checksum ^= 1; });
      },
      "damage", "");
}

TEST_F(CheckerTest, LogThatNobodyHolds) {
  ExpectFound(
      [](WriteTxn& txn) {
        const LogEntry entry = {LogOp::kDead, {20, 1, 1, BlockKind::kData}};
        ASSERT_OK(PointerLog::Append(txn, LogId{1000000}, std::span(&entry, 1)).status());
      },
      "logs", "nobody holds this log");
}

TEST_F(CheckerTest, HoldThatIsNotCounted) {
  ExpectFound(
      [](WriteTxn& txn) {
        const auto id =
            ValueOf(txn.Get(Table::kSnapshotsByName, Key(IdOf(txn, "a"), std::string_view("1"))));
        ASSERT_OK(
            txn.Delete(Table::kHolds, Key(KeyNumber<SnapshotId>(*id, 0), std::string_view("tag"))));
      },
      "sums", "holds is recorded as 1 but is 0");
}

TEST_F(CheckerTest, ReportCountsWhatItSaw) {
  const CheckReport report = ValueOf(pool_->Check());
  EXPECT_EQ(report.dataset_count, 2u);
  EXPECT_EQ(report.snapshot_count, 2u);
  // 40 of a@1, 20 of a@2, 30 of the head, 10 of them written again ('c' by 'd'), 10 of the clone.
  EXPECT_EQ(report.block_count, 40u + 20u + 30u + 10u);
  EXPECT_EQ(report.txg, pool_->committed_txg());
}

}  // namespace
}  // namespace cowshed::engine

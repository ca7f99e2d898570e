// SPDX-License-Identifier: Apache-2.0
//
// The check of a pool that works: what it finds, one kind of damage each, and that it finds nothing
// where nothing is wrong. tests/model/pool_threads_test.cc runs it against all lifecycle calls.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <string>

#include "engine/store/records.h"
#include "engine/store/region_bitmap.h"
#include "engine/store/region_records.h"
#include "tests/engine/livelist_damage.h"
#include "tests/support/temp_pool.h"
#include "tests/support/testing.h"

namespace cowshed::engine {
namespace {

using ::testing::HasSubstr;

class OnlineCheckTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(pool_.Create("d").status());
    Write("d", 'a', 100);
    ASSERT_OK(pool_.Snapshot("d@1").status());
    Write("d", 'b', 40);
    ASSERT_OK(pool_.Snapshot("d@2").status());
    Write("d", 'c', 20);
    ASSERT_OK(pool_.Clone("d@1", "c").status());
    Write("c", 'd', 30);
    ASSERT_OK(pool_.Create("gone").status());
    Write("gone", 'e', 50);
    ASSERT_OK(pool_.Destroy("gone").status());
  }
  void Write(const std::string& name, char what, uint64_t blocks) {
    ASSERT_OK(pool_.Write(name, 0, std::string(blocks * 4096, what)));
    ASSERT_OK(pool_.Flush(name).status());
  }
  CheckReport Check() { return ValueOf(pool_->CheckOnline()); }
  template <typename Record>
  static void Change(WriteTxn& txn, std::string_view key,
                     const std::function<void(Record&)>& change) {
    auto record = ValueOf(LoadRecord<Record>(txn, key));
    change(record);
    ASSERT_OK(StoreRecord(txn, key, record));
  }
  static DatasetId Dataset(WriteTxn& txn, const std::string& name) {
    return *ValueOf(Names::Find(txn, name));
  }
  void ExpectOnly(const std::string& invariant, const std::string& name,
                  const std::string& message) {
    const CheckReport report = Check();
    EXPECT_FALSE(report.ok());
    bool found = false;
    for (const CheckFinding& finding : report.findings) {
      found |= finding.invariant == invariant && finding.name == name &&
               finding.message.find(message) != std::string::npos;
    }
    EXPECT_TRUE(found) << report.findings[0].invariant << " " << report.findings[0].name << ": "
                       << report.findings[0].message;
    pool_.Abandon();
  }

  TempPool pool_{[](PoolOptions* options) { options->check_bite_pointers = 16; }};
};

TEST_F(OnlineCheckTest, FindsNothingWhereNothingIsWrong) {
  const CheckReport report = Check();
  EXPECT_TRUE(report.ok()) << report.findings[0].name << ": " << report.findings[0].message;
  const CheckReport offline = ValueOf(pool_->Check());
  EXPECT_EQ(report.dataset_count, offline.dataset_count);
  EXPECT_EQ(report.block_count, offline.block_count);
  EXPECT_EQ(report.referenced_bytes, offline.referenced_bytes);
  EXPECT_EQ(report.skipped, 0u);
}

TEST_F(OnlineCheckTest, FindsAWrongUsed) {
  pool_.Damage([](WriteTxn& txn) {
    Change<DatasetRecord>(txn, Key(Dataset(txn, "d")), [](auto& d) { ++d.used_sectors; });
  });
  ExpectOnly("sums", "d", "used_sectors");
}

TEST_F(OnlineCheckTest, FindsAWrongReferenced) {
  pool_.Damage([](WriteTxn& txn) {
    Change<DatasetRecord>(txn, Key(Dataset(txn, "c")), [](auto& d) { --d.referenced_sectors; });
  });
  ExpectOnly("sums", "c", "referenced_sectors");
}

TEST_F(OnlineCheckTest, FindsAWrongWrittenOfASnapshot) {
  pool_.Damage([](WriteTxn& txn) {
    MetaCursor cursor(txn, Table::kSnapshots);
    cursor.Seek(Key(uint64_t{0}));
    const std::string key(cursor.key());
    Change<SnapshotRecord>(txn, key, [](auto& s) { ++s.written_sectors; });
  });
  ExpectOnly("sums", "d@1", "written_sectors");
}

TEST_F(OnlineCheckTest, FindsAWrongSumOfThePool) {
  pool_.Damage([](WriteTxn& txn) {
    Change<PoolRecord>(txn, PoolRecord::kKey, [](auto& pool) { ++pool.livelist_sectors; });
  });
  ExpectOnly("sums", "pool", "livelist_sectors");
}

TEST_F(OnlineCheckTest, FindsAReferencedSectorThatIsFree) {
  pool_.Damage([](WriteTxn& txn) {
    const auto d = ValueOf(LoadRecord<DatasetRecord>(txn, Key(Dataset(txn, "d"))));
    const uint64_t address = d.tree.root.address;
    const uint32_t region = RegionOf(address);
    RegionBitmap bitmap =
        ValueOf(RegionBitmap::Decode(*ValueOf(txn.Get(Table::kRegions, RegionKey(region)))));
    const auto bit = static_cast<uint32_t>(address - RegionBegin(region));
    bitmap.Clear(bit, bit + 1);
    ASSERT_OK(txn.Put(Table::kRegions, RegionKey(region), bitmap.bytes()));
    std::string sums(*ValueOf(txn.Get(Table::kRegionSums, RegionSumKey(0))));
    RegionSumRecord sum;
    char* const at = sums.data() + region * sizeof(sum);
    std::memcpy(&sum, at, sizeof(sum));
    ++sum.free_sectors;
    std::memcpy(at, &sum, sizeof(sum));
    ASSERT_OK(txn.Put(Table::kRegionSums, RegionSumKey(0), sums));
  });
  ExpectOnly("I1", "d", "referenced and free");
}

TEST_F(OnlineCheckTest, FindsSectorsThatLeaked) {
  pool_.Damage([](WriteTxn& txn) {
    const auto id = Dataset(txn, "c");
    const auto c = ValueOf(LoadRecord<DatasetRecord>(txn, Key(id)));
    Change<DatasetRecord>(txn, Key(id), [](auto& d) { d.used_sectors = d.written_sectors = 0; });
    Change<PoolRecord>(txn, PoolRecord::kKey,
                       [&](auto& pool) { pool.livelist_sectors -= c.used_sectors; });
  });
  ExpectOnly("I1", "pool", "are not free, but");
}

TEST_F(OnlineCheckTest, FindsADamagedNode) {
  uint64_t address = 0;
  pool_.Damage([&](WriteTxn& txn) {
    address = ValueOf(LoadRecord<DatasetRecord>(txn, Key(Dataset(txn, "c")))).tree.root.address;
  });
  std::fstream file(pool_.directory() + "/blocks", std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(address * kSectorBytes + 9));
  file.put('x');
  file.close();
  ExpectOnly("damage", "c", "wrong checksum");
}

TEST_F(OnlineCheckTest, FindsADamagedLivelist) {
  DamageLivelist(pool_, "d", ListPart::kLog);
  ExpectOnly("damage", "d", "");
}

TEST_F(OnlineCheckTest, FindsALostName) {
  pool_.Damage([](WriteTxn& txn) {
    ASSERT_OK(txn.Delete(Table::kNames, Key(kRootDirectory, std::string_view("c"))));
  });
  ExpectOnly("names", "c", "under its name");
}

}  // namespace
}  // namespace cowshed::engine

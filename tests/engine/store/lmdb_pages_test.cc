// SPDX-License-Identifier: Apache-2.0
#include "engine/store/lmdb_pages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>

#include "engine/base/strings.h"
#include "engine/store/meta_store.h"
#include "engine/store/meta_tables.h"
#include "tests/support/testing.h"

namespace cowshed::engine {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kPage = 4096;

class LmdbPagesTest : public ::testing::Test {
 protected:
  // Three tables, one of them three levels deep, with overflow pages and a free list.
  void SetUp() override {
    MetaStoreOptions options;
    options.map_bytes = 1 << 28;
    options.reserve_bytes = 1 << 16;
    const auto store = ValueOf(MetaStore::Open(dir_.Path("meta"), true, false, options));
    for (int round = 0; round < 6; ++round) {
      const auto txn = ValueOf(store->BeginWrite());
      for (int i = 0; i < 3000; ++i) {
        const std::string key = StrCat(std::string(120, 'k'), 100000 + i * 7 + round);
        if (round % 2 == 0) ASSERT_OK(txn->Put(Table::kNames, key, std::string(i % 200, 'v')));
        if (round % 2 == 1 && i % 3 == 0) ASSERT_OK(txn->Delete(Table::kNames, key));
        if (i % 40 == 0) ASSERT_OK(txn->Put(Table::kLogs, key, std::string(4000, 'l')));
      }
      ASSERT_OK(txn->Put(Table::kPool, "pool", "record"));
      ASSERT_OK(txn->Commit());
    }
    const auto txn = ValueOf(store->BeginRead());
    for (const Table table : {Table::kNames, Table::kLogs, Table::kPool}) {
      MetaCursor cursor(*txn, table);
      for (cursor.Seek(""); cursor.valid(); cursor.Next()) {
        expected_[{TableName(table), std::string(cursor.key())}] = std::string(cursor.value());
      }
    }
  }

  std::string path() const { return dir_.Path("meta") + "/data.mdb"; }

  TempDir dir_;
  std::map<std::pair<std::string, std::string>, std::string> expected_;
};

TEST_F(LmdbPagesTest, ReadsWhatLmdbReads) {
  std::map<std::pair<std::string, std::string>, std::string> found;
  const LmdbReport report = ValueOf(WalkLmdb(path(), [&found](const LmdbEntry& entry) {
    const Table table = *FindTable(entry.table);
    found[{std::string(entry.table), std::string(entry.key)}] =
        std::string(ValueOf(ProveValue(table, entry.key, entry.value)));
  }));
  EXPECT_TRUE(report.ok()) << report.Summary();
  EXPECT_EQ(found, expected_);
  EXPECT_EQ(report.entries, expected_.size());
  EXPECT_OK(CheckLmdbRoots(path()));
}

// A bit of each byte of a header: page number, kind, bounds, length.
TEST_F(LmdbPagesTest, FlippedBitOfAHeaderIsFound) {
  std::set<uint64_t> pages;
  const LmdbReport report = ValueOf(WalkLmdb(
      path(), [&pages](const LmdbEntry& entry) { pages.insert(entry.value_offset / kPage); }));
  ASSERT_GT(pages.size(), 50u);
  EXPECT_LT(pages.size(), report.pages);
  std::fstream file(path(), std::ios::binary | std::ios::in | std::ios::out);
  const auto flip = [&file](uint64_t at, int bit) {
    file.seekg(static_cast<std::streamoff>(at));
    const int before = file.get();
    file.seekp(static_cast<std::streamoff>(at));
    file.put(static_cast<char>(before ^ 1 << bit));
    file.flush();
  };
  int tried = 0;
  for (const uint64_t page : pages) {
    if (page % 40 != 0) continue;
    for (const uint64_t byte : {0, 3, 7, 10, 12, 13, 14, 15}) {
      const int bit = static_cast<int>((page + byte) % 8);
      flip(page * kPage + byte, bit);
      EXPECT_FALSE(ValueOf(WalkLmdb(path())).ok()) << page << " byte " << byte << " bit " << bit;
      flip(page * kPage + byte, bit);
      ++tried;
    }
  }
  EXPECT_GT(tried, 20);
  EXPECT_TRUE(ValueOf(WalkLmdb(path())).ok());
}

TEST_F(LmdbPagesTest, TornFileIsRefused) {
  std::filesystem::resize_file(path(), 20 * kPage);
  const LmdbReport report = ValueOf(WalkLmdb(path()));
  EXPECT_FALSE(report.ok());
  EXPECT_THAT(report.findings.front(), HasSubstr("ends before its last page"));
  std::filesystem::resize_file(path(), 100);
  EXPECT_FALSE(ValueOf(WalkLmdb(path())).readable);
  EXPECT_CODE(CheckLmdbRoots(path()), kDataLoss);
}

TEST_F(LmdbPagesTest, StaleMetaPageIsFound) {
  std::fstream file(path(), std::ios::binary | std::ios::in | std::ios::out);
  // The older of the two claims to be newer: the number of its commit is at byte 144.
  for (const uint64_t page : {0, 1}) {
    const auto at = static_cast<std::streamoff>(page * kPage + 144);
    file.seekp(at);
    file.put(static_cast<char>(100 + page));
  }
  file.seekp(144);
  file.put(50);
  file.flush();
  EXPECT_CODE(CheckLmdbRoots(path()), kDataLoss);
}

}  // namespace
}  // namespace cowshed::engine

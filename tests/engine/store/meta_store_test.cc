// SPDX-License-Identifier: Apache-2.0
#include "engine/store/meta_store.h"

#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/failpoints.h"
#include "engine/base/strings.h"
#include "engine/store/codec.h"
#include "engine/store/format.h"
#include "tests/support/testing.h"

namespace cowshed::engine {
namespace {

constexpr MetaStoreOptions kSmall = {
    .map_bytes = 256 << 20, .reserve_bytes = 1 << 20, .max_readers = 16};
constexpr uint64_t kPageBytes = 4096;

class MetaStoreTest : public ::testing::Test {
 protected:
  void TearDown() override { Failpoints::DisarmAll(); }

  void Open(const MetaStoreOptions& options = kSmall, bool read_only = false) {
    store_.reset();
    store_ = ValueOf(MetaStore::Open(Directory(), /*create=*/!read_only, read_only, options));
  }
  std::string Directory() const { return directory_.Path("meta"); }
  std::string DataFile() const { return Directory() + "/data.mdb"; }

  void PutAndCommit(Table table, std::string_view key, std::string_view value) {
    const auto txn = ValueOf(store_->BeginWrite());
    ASSERT_OK(txn->Put(table, key, value));
    ASSERT_OK(txn->Commit());
  }
  std::string Read(Table table, std::string_view key) {
    const auto txn = ValueOf(store_->BeginRead());
    const auto value = ValueOf(txn->Get(table, key));
    return value.has_value() ? std::string(*value) : "(absent)";
  }
  // Changes the closed file: `change` gets all of it.
  template <typename Change>
  void Damage(Change change) {
    store_.reset();
    std::fstream file(DataFile(), std::ios::in | std::ios::out | std::ios::binary);
    std::stringstream bytes;
    bytes << file.rdbuf();
    std::string text = bytes.str();
    change(text);
    file.seekp(0);
    file.write(text.data(), static_cast<std::streamsize>(text.size()));
    file.close();
    Open();
  }

  TempDir directory_;
  std::unique_ptr<MetaStore> store_;
};

TEST_F(MetaStoreTest, KeepsValuesApartByTable) {
  Open();
  PutAndCommit(Table::kPool, "key", "one");
  PutAndCommit(Table::kRequestTimes, "key", "");
  const std::string longest(kMaxPayloadBytes, 'v');
  const std::string longest_key(500, 'k');
  PutAndCommit(Table::kLogs, longest_key, longest);
  Open();
  EXPECT_EQ(Read(Table::kPool, "key"), "one");
  EXPECT_EQ(Read(Table::kRequestTimes, "key"), "");
  EXPECT_EQ(Read(Table::kLogs, longest_key), longest);
  EXPECT_EQ(Read(Table::kJobs, "key"), "(absent)");
}

TEST_F(MetaStoreTest, ReadersSeeTheLastCommitOnly) {
  Open();
  PutAndCommit(Table::kPool, "key", "old");
  const auto before = ValueOf(store_->BeginRead());
  const auto writer = ValueOf(store_->BeginWrite());
  ASSERT_OK(writer->Put(Table::kPool, "key", "new"));
  EXPECT_EQ(ValueOf(writer->Get(Table::kPool, "key")), "new");
  EXPECT_EQ(Read(Table::kPool, "key"), "old");
  ASSERT_OK(writer->Commit());
  EXPECT_EQ(Read(Table::kPool, "key"), "new");
  EXPECT_EQ(ValueOf(before->Get(Table::kPool, "key")), "old");
  EXPECT_EQ(store_->stats().oldest_reader_lag_txns, 1u);
  EXPECT_EQ(store_->stats().readers, 1u);
}

TEST_F(MetaStoreTest, AbortedWritesLeaveNothing) {
  Open();
  {
    const auto txn = ValueOf(store_->BeginWrite());
    ASSERT_OK(txn->Put(Table::kPool, "key", "value"));
  }
  EXPECT_EQ(Read(Table::kPool, "key"), "(absent)");
  PutAndCommit(Table::kPool, "other", "value");
  EXPECT_EQ(Read(Table::kPool, "other"), "value");
}

TEST_F(MetaStoreTest, DeletingWhatIsAbsentIsFine) {
  Open();
  PutAndCommit(Table::kPool, "key", "value");
  const auto txn = ValueOf(store_->BeginWrite());
  EXPECT_OK(txn->Delete(Table::kPool, "no such key"));
  EXPECT_OK(txn->Delete(Table::kPool, "key"));
  ASSERT_OK(txn->Commit());
  EXPECT_EQ(Read(Table::kPool, "key"), "(absent)");
}

TEST_F(MetaStoreTest, PutTakesViewsOfItsOwnPages) {
  Open();
  const auto txn = ValueOf(store_->BeginWrite());
  for (uint32_t i = 0; i < 300; ++i) {
    ASSERT_OK(
        txn->Put(Table::kLogs, Key(i), std::string(100 + i, static_cast<char>('a' + i % 26))));
  }
  for (uint32_t i = 0; i < 300; ++i) {
    // A longer value for the key under the cursor: LMDB moves both while it puts them.
    MetaCursor cursor(*txn, Table::kLogs);
    cursor.Seek(Key(i));
    ASSERT_TRUE(cursor.valid());
    const std::optional<std::string_view> next =
        ValueOf(txn->Get(Table::kLogs, Key((i + 1) % 300)));
    const std::string expected(*next);
    ASSERT_OK(txn->Put(Table::kLogs, cursor.key(), *next));
    EXPECT_EQ(ValueOf(txn->Get(Table::kLogs, Key(i))), expected);
  }
}

TEST_F(MetaStoreTest, CursorWalksBothWays) {
  Open();
  const auto txn = ValueOf(store_->BeginWrite());
  for (const char* key : {"a1", "a2", "b1", "b3"}) {
    ASSERT_OK(txn->Put(Table::kNames, key, StrCat("value of ", key)));
  }
  MetaCursor cursor(*txn, Table::kNames);
  std::string seen;
  for (cursor.Seek("a"); cursor.ValidFor("a"); cursor.Next()) {
    seen += StrCat(cursor.key(), "=", cursor.value(), ";");
  }
  EXPECT_EQ(seen, "a1=value of a1;a2=value of a2;");
  EXPECT_TRUE(cursor.valid());
  EXPECT_EQ(cursor.key(), "b1");
  cursor.Seek("b2");
  EXPECT_EQ(cursor.key(), "b3");
  cursor.Prev();
  EXPECT_EQ(cursor.key(), "b1");
  cursor.SeekBefore("b1");
  EXPECT_EQ(cursor.key(), "a2");
  cursor.SeekBefore("z");
  EXPECT_EQ(cursor.key(), "b3");
  cursor.Next();
  EXPECT_FALSE(cursor.valid());
  EXPECT_OK(cursor.status());
  cursor.SeekBefore("a1");
  EXPECT_FALSE(cursor.valid());
  cursor.SeekBefore("");
  EXPECT_FALSE(cursor.valid());
  MetaCursor empty(*txn, Table::kJobs);
  empty.Seek("");
  EXPECT_FALSE(empty.valid());
  empty.SeekBefore("x");
  EXPECT_FALSE(empty.valid());
  EXPECT_OK(empty.status());
}

TEST_F(MetaStoreTest, DamagedValueIsDataLoss) {
  Open();
  const std::string value(3000, 'Q');  // on a page of its own
  PutAndCommit(Table::kPool, "a", "sound");
  PutAndCommit(Table::kPool, "b", value);
  PutAndCommit(Table::kPool, "c", "sound");
  Damage([&](std::string& bytes) {
    const size_t at = bytes.find(value);
    ASSERT_NE(at, std::string::npos);
    bytes[at + 1234] ^= 1;
  });
  const auto txn = ValueOf(store_->BeginRead());
  EXPECT_CODE(txn->Get(Table::kPool, "b"), kDataLoss);
  EXPECT_EQ(ValueOf(txn->Get(Table::kPool, "a")), "sound");
  MetaCursor cursor(*txn, Table::kPool);
  cursor.Seek("b");
  EXPECT_FALSE(cursor.valid());
  EXPECT_CODE(cursor.status(), kDataLoss);
  cursor.Next();  // A checker steps over it.
  EXPECT_TRUE(cursor.valid());
  EXPECT_EQ(cursor.key(), "c");
  cursor.SeekBefore("b");
  EXPECT_EQ(cursor.key(), "a");
}

TEST_F(MetaStoreTest, SwappedValuesAreDataLoss) {
  Open();
  const std::string one(3000, 'Q');
  const std::string two(3000, 'R');
  PutAndCommit(Table::kPool, "a", one);
  PutAndCommit(Table::kPool, "b", two);
  Damage([&](std::string& bytes) {
    const size_t at_one = bytes.find(one);
    const size_t at_two = bytes.find(two);
    ASSERT_NE(at_one, std::string::npos);
    ASSERT_NE(at_two, std::string::npos);
    for (size_t i = 0; i < one.size() + kValueChecksumBytes; ++i) {
      std::swap(bytes[at_one + i], bytes[at_two + i]);
    }
  });
  const auto txn = ValueOf(store_->BeginRead());
  EXPECT_CODE(txn->Get(Table::kPool, "a"), kDataLoss);
  EXPECT_CODE(txn->Get(Table::kPool, "b"), kDataLoss);
}

TEST_F(MetaStoreTest, FullMapRefusesAndLosesNothing) {
  Open({.map_bytes = 1 << 20, .reserve_bytes = 0, .max_readers = 4});
  PutAndCommit(Table::kPool, "key", "value");
  absl::Status status;
  {
    const auto txn = ValueOf(store_->BeginWrite());
    for (uint32_t i = 0; i < 1000 && status.ok(); ++i) {
      status = txn->Put(Table::kLogs, Key(i), std::string(4000, 'x'));
    }
  }
  EXPECT_CODE(status, kResourceExhausted);
  EXPECT_CODE(store_->Reserve(1000), kResourceExhausted);
  EXPECT_EQ(Read(Table::kPool, "key"), "value");
  PutAndCommit(Table::kPool, "key", "new value");
  EXPECT_EQ(Read(Table::kPool, "key"), "new value");
}

// A commit that found the map full counted as failed, after which nothing could be written.
TEST_F(MetaStoreTest, CommitThatFindsTheMapFullLeavesTheStoreUsable) {
  Open({.map_bytes = 1 << 20, .reserve_bytes = 0, .max_readers = 4});
  PutAndCommit(Table::kPool, "key", "value");
  // The pages that a transaction can put; with a few less, there is none for the free list.
  uint32_t most = 0;
  {
    const auto txn = ValueOf(store_->BeginWrite());
    while (txn->Put(Table::kLogs, Key(most), std::string(4000, 'x')).ok()) ++most;
  }
  absl::Status status;
  for (uint32_t less = 1; less < 10 && status.ok(); ++less) {
    const auto txn = ValueOf(store_->BeginWrite());
    for (uint32_t i = 0; i + less < most; ++i) {
      ASSERT_OK(txn->Put(Table::kLogs, Key(i), std::string(4000, 'x')));
    }
    EXPECT_FALSE(store_->FitsMap(txn->dirty_pages()));
    status = txn->Commit();
    if (status.ok()) break;
  }
  EXPECT_CODE(status, kResourceExhausted);
  EXPECT_EQ(Read(Table::kPool, "key"), "value");
  PutAndCommit(Table::kPool, "key", "new value");
  EXPECT_EQ(Read(Table::kPool, "key"), "new value");
}

TEST_F(MetaStoreTest, FailedCommitStopsAllWrites) {
  Open();
  ASSERT_OK(Failpoints::Arm("meta.before_commit=error"));
  {
    const auto txn = ValueOf(store_->BeginWrite());
    ASSERT_OK(txn->Put(Table::kPool, "before", "value"));
    EXPECT_CODE(txn->Commit(), kInternal);
  }
  Failpoints::DisarmAll();
  EXPECT_CODE(store_->BeginWrite(), kFailedPrecondition);
  EXPECT_EQ(Read(Table::kPool, "before"), "(absent)");
  Open();
  EXPECT_EQ(Read(Table::kPool, "before"), "(absent)");
  PutAndCommit(Table::kPool, "before", "value");
}

TEST_F(MetaStoreTest, FailureAfterTheCommitIsDurableAndStopsWrites) {
  Open();
  ASSERT_OK(Failpoints::Arm("meta.after_commit=error"));
  {
    const auto txn = ValueOf(store_->BeginWrite());
    ASSERT_OK(txn->Put(Table::kPool, "after", "value"));
    EXPECT_CODE(txn->Commit(), kInternal);
  }
  EXPECT_CODE(store_->BeginWrite(), kFailedPrecondition);
  Failpoints::DisarmAll();
  Open();
  EXPECT_EQ(Read(Table::kPool, "after"), "value");
}

TEST_F(MetaStoreTest, KilledBeforeCommitLosesItAndAfterCommitKeepsIt) {
  // The child alone has the environment open: LMDB does not survive a fork.
  const auto commit = [this](std::string_view point, std::string_view key) {
    Open();
    ASSERT_OK(Failpoints::Arm(StrCat(point, "=kill")));
    PutAndCommit(Table::kPool, key, "value");
  };
  EXPECT_EXIT(commit("meta.before_commit", "lost"), ::testing::KilledBySignal(SIGKILL), "");
  EXPECT_EXIT(commit("meta.after_commit", "kept"), ::testing::KilledBySignal(SIGKILL), "");
  Open();
  EXPECT_EQ(Read(Table::kPool, "lost"), "(absent)");
  EXPECT_EQ(Read(Table::kPool, "kept"), "value");
}

TEST_F(MetaStoreTest, FailedPutIsReported) {
  Open();
  ASSERT_OK(Failpoints::Arm("meta.put=enospc:skip=1:count=1"));
  const auto txn = ValueOf(store_->BeginWrite());
  EXPECT_OK(txn->Put(Table::kPool, "a", "value"));
  EXPECT_CODE(txn->Put(Table::kPool, "b", "value"), kResourceExhausted);
}

TEST_F(MetaStoreTest, OpensForReadingOnly) {
  EXPECT_CODE(MetaStore::Open(Directory(), false, true, kSmall), kFailedPrecondition);
  EXPECT_CODE(MetaStore::Open(Directory(), false, false, kSmall), kFailedPrecondition);
  Open();
  PutAndCommit(Table::kPool, "key", "value");
  Open(kSmall, /*read_only=*/true);
  EXPECT_EQ(Read(Table::kPool, "key"), "value");
  EXPECT_CODE(store_->BeginWrite(), kFailedPrecondition);
}

TEST_F(MetaStoreTest, RefusesForeignFiles) {
  std::filesystem::create_directory(Directory());
  std::ofstream(DataFile()) << std::string(16384, 'z');
  EXPECT_CODE(MetaStore::Open(Directory(), true, false, kSmall), kFailedPrecondition);
}

TEST_F(MetaStoreTest, AllocatedTailSurvivesReopenAndGrowth) {
  Open();
  const uint64_t pages = 2000;
  ASSERT_OK(store_->Reserve(pages));
  EXPECT_GE(store_->headroom_bytes(), pages * kPageBytes + kSmall.reserve_bytes);
  EXPECT_GE(store_->stats().file_bytes, pages * kPageBytes);
  const uint64_t file_bytes = std::filesystem::file_size(DataFile());
  PutAndCommit(Table::kPool, "key", "value");
  // LMDB goes by its own last page, not by the size of the file, whoever opens it.
  for (uint32_t round = 0; round < 3; ++round) {
    Open();
    EXPECT_EQ(std::filesystem::file_size(DataFile()), file_bytes);
    EXPECT_EQ(Read(Table::kPool, "key"), "value");
    EXPECT_LT(store_->stats().used_bytes, file_bytes / 2);
    const auto txn = ValueOf(store_->BeginWrite());
    for (uint32_t i = 0; i < 100; ++i) {
      ASSERT_OK(txn->Put(Table::kLogs, Key(round, i), std::string(4000, 'x')));
    }
    ASSERT_OK(txn->Commit());
  }
  Open(kSmall, /*read_only=*/true);
  EXPECT_EQ(Read(Table::kLogs, Key(2u, 99u)), std::string(4000, 'x'));
}

// What Reserve writes ahead must never fall on a page in use, whoever used it last.
TEST_F(MetaStoreTest, ZerosAreWrittenOnlyWhereNoPageIs) {
  Open();
  const auto value = [](uint32_t i) { return std::string(4000, static_cast<char>('a' + i % 26)); };
  const auto check = [&](const MetaTxn& txn, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      const auto found = ValueOf(txn.Get(Table::kLogs, Key(i, 0u)));
      ASSERT_TRUE(found.has_value() && *found == value(i)) << i << " of " << count;
    }
  };
  for (uint32_t i = 0; i < 400; ++i) {  // past the first step and the next one
    ASSERT_OK(store_->Reserve(0));
    {
      const auto reader = ValueOf(store_->BeginRead());
      PutAndCommit(Table::kLogs, Key(i, 0u), value(i));
      ASSERT_OK(store_->Reserve(0));
      if (i % 20 == 0) check(*reader, i);
    }
    if (i % 20 != 0) continue;
    Open();
    check(*ValueOf(store_->BeginRead()), i + 1);
  }
  Open();
  check(*ValueOf(store_->BeginRead()), 400);
}

TEST_F(MetaStoreTest, FullHostLeavesTheHeadroomUsable) {
  Open();
  ASSERT_OK(Failpoints::Arm("file.allocate=enospc"));
  EXPECT_CODE(store_->Reserve(10000), kResourceExhausted);
  EXPECT_GE(store_->headroom_bytes(), kSmall.reserve_bytes);
  PutAndCommit(Table::kPool, "key", "value");
  Open();  // A full host does not keep it closed.
  EXPECT_EQ(store_->headroom_bytes(), 0u);
  EXPECT_EQ(Read(Table::kPool, "key"), "value");
  Failpoints::DisarmAll();
  ASSERT_OK(store_->Reserve(1));
  EXPECT_GE(store_->headroom_bytes(), kSmall.reserve_bytes);
}

TEST_F(MetaStoreTest, ReadersReuseTheirSlots) {
  Open({.map_bytes = 1 << 24, .reserve_bytes = 0, .max_readers = 4});
  for (uint32_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(Read(Table::kPool, "key"), "(absent)");
  }
  std::vector<std::unique_ptr<ReadTxn>> readers;
  for (uint32_t i = 0; i < 4; ++i) {
    readers.push_back(ValueOf(store_->BeginRead()));
  }
  EXPECT_CODE(store_->BeginRead(), kResourceExhausted);
  readers.pop_back();
  EXPECT_OK(StatusOf(store_->BeginRead()));
}

TEST_F(MetaStoreTest, ReadersOfAllThreadsSeeWholeCommits) {
  Open();
  const auto write_both = [this](uint32_t number) {
    const auto txn = ValueOf(store_->BeginWrite());
    ASSERT_OK(txn->Put(Table::kPool, "first", Encoder().Put(number).Take()));
    ASSERT_OK(txn->Put(Table::kJobs, "second", Encoder().Put(number).Take()));
    ASSERT_OK(txn->Commit());
  };
  write_both(0);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> reads{0};
  std::vector<std::thread> readers;
  readers.reserve(3);
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&] {
      while (!stop.load()) {
        const auto txn = ValueOf(store_->BeginRead());
        const std::string first(*ValueOf(txn->Get(Table::kPool, "first")));
        EXPECT_EQ(*ValueOf(txn->Get(Table::kJobs, "second")), first);
        reads.fetch_add(1);
      }
    });
  }
  for (uint32_t number = 1; number <= 50 || reads.load() < 500; ++number) {
    write_both(number);
    ASSERT_OK(store_->Reserve(number));
  }
  stop.store(true);
  for (std::thread& reader : readers) {
    reader.join();
  }
  EXPECT_EQ(store_->stats().readers, 0u);
}

// Bytes this process has handed to write calls.
uint64_t WrittenBytes() {
  std::ifstream io("/proc/self/io");
  std::string name;
  uint64_t value = 0;
  while (io >> name >> value) {
    if (name == "wchar:") {
      return value;
    }
  }
  return 0;
}

TEST_F(MetaStoreTest, DirtyPagesBoundWhatACommitWrites) {
  if (WrittenBytes() == 0) {
    GTEST_SKIP() << "the kernel does not count writes";
  }
  for (const uint64_t seed : TestSeeds(10)) {
    std::mt19937_64 random(seed);
    Open({.map_bytes = 256 << 20, .reserve_bytes = 0, .max_readers = 4});
    for (uint32_t round = 0; round < 20; ++round) {
      const auto txn = ValueOf(store_->BeginWrite());
      EXPECT_EQ(txn->dirty_pages(), 0u);
      const uint64_t changes = uint64_t{1} << random() % 11;
      const uint64_t keys = uint64_t{1} << random() % 20;
      for (uint64_t i = 0; i < changes; ++i) {
        const auto table = static_cast<Table>(1 + random() % 6);
        Key key(random() % keys);
        key.Append(std::string(random() % 40, 'k'));
        if (random() % 4 == 0) {
          ASSERT_OK(txn->Delete(table, key));
        } else {
          ASSERT_OK(txn->Put(table, key, std::string(random() % kMaxPayloadBytes, 'v')));
        }
      }
      const uint64_t bound_pages = txn->dirty_pages();
      const uint64_t before = WrittenBytes();
      ASSERT_OK(txn->Commit());
      EXPECT_LE(WrittenBytes() - before, bound_pages * kPageBytes) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// Pools broken in every way a repair knows of: afterwards the checker is clean, the data is what it
// was, and when everything is destroyed nothing stays allocated.
#include "engine/repair.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/names.h"
#include "engine/store/intent_log_format.h"
#include "engine/store/lmdb_pages.h"
#include "engine/store/meta_copy.h"
#include "engine/store/records.h"
#include "engine/store/region_records.h"
#include "engine/tree/live_list.h"
#include "engine/trim.h"
#include "tests/crash/damaged_pool.h"
#include "tests/support/testing.h"

namespace cowshed::engine {
namespace {

using ::testing::HasSubstr;

class RepairTest : public ::testing::Test {
 protected:
  RepairTest() : pool_(DamageOptions()) {}

  void SetUp() override {
    empty_bytes_ = pool_->space().allocated_bytes;
    FillPool(pool_);
    image_ = ValueOf(ReadImage(*pool_));
    pool_.Abandon();
    options_ = pool_.options();
  }

  std::string meta_path() const { return options_.directory + "/meta/data.mdb"; }
  // Works on a copy of the pool from now on.
  void UseCopy(const std::string& name) {
    const std::string to = pool_.directory() + "." + name;
    CopyPool(pool_.directory(), to);
    options_.directory = to;
  }
  void MakeMetaCopy(uint64_t txg) {
    const auto meta = ValueOf(MetaStore::Open(options_.directory + "/meta", /*create=*/false,
                                              /*read_only=*/true, MetaStoreOptions()));
    ASSERT_OK(CopyMeta(*meta, options_.directory, txg, uint64_t{1} << 30).status());
  }
  // Dies with a durable write to each of these that no txg has seen.
  void CrashWithDurableWrites(const std::vector<std::string>& names) {
    const std::string crashed = options_.directory + ".crashed";
    CopyWithDurableWrites(options_, crashed, names, &image_);
    options_.directory = crashed;
  }
  // Damages the root of a dataset's tree.
  void DamageRoot(const std::string& name);
  std::vector<std::string> KeysOf(const std::string& table) {
    std::vector<std::string> keys;
    const auto note = [&](const LmdbEntry& entry) {
      if (entry.table == table) keys.emplace_back(entry.key);
    };
    EXPECT_OK(WalkLmdb(meta_path(), note).status());
    return keys;
  }
  // Damages the value of a key of the metadata.
  void FlipValue(const std::string& table, const std::string& key) {
    std::optional<uint64_t> offset;
    ASSERT_OK(WalkLmdb(meta_path(), [&](const LmdbEntry& entry) {
                if (entry.table == table && entry.key == key) offset = entry.value_offset;
              }).status());
    ASSERT_TRUE(offset.has_value()) << table;
    FlipBits(meta_path(), *offset + 3, 1);
  }
  std::unique_ptr<Pool> Open() { return ValueOf(Pool::Open(options_)); }

  std::unique_ptr<Repair> Prepared(bool from_copy = false) {
    auto repair = ValueOf(Repair::Prepare({options_, from_copy}));
    for (const CheckFinding& finding : repair->report().findings) {
      findings_ += finding.invariant + " " + finding.name + ": " + finding.message + "\n";
    }
    for (const CheckFinding& lost : repair->lost()) {
      lost_ += lost.name + ": " + lost.message + "\n";
    }
    return repair;
  }
  void RepairIt(bool from_copy = false) {
    const auto repair = Prepared(from_copy);
    ASSERT_OK(repair->Apply().status());
  }

  void ExpectWhole() {
    EXPECT_EQ(findings_, "");
    EXPECT_EQ(lost_, "");
    const auto pool = Open();
    const PoolImage found = ValueOf(ReadImage(*pool));
    EXPECT_TRUE(found == image_) << Difference(image_, found);
    ExpectChecked(*pool);
    ASSERT_OK(pool->DrainBackground());
    ExpectChecked(*pool);
    const PoolImage later = ValueOf(ReadImage(*pool));
    EXPECT_TRUE(later == image_) << Difference(image_, later);
    ExpectEmptied(*pool);
  }
  // Destroys everything: nothing is left.
  void ExpectEmptied(Pool& pool) {
    ASSERT_OK(DestroyAll(pool));
    pool_.Advance(10 * 86400000ll);  // past the window
    ASSERT_OK(pool.DrainBackground());
    ASSERT_OK(pool.DrainBackground());
    EXPECT_EQ(pool.space().allocated_bytes, empty_bytes_);
    EXPECT_EQ(pool.space().freeing_bytes, 0u);
    ExpectChecked(pool);
  }
  static void ExpectChecked(Pool& pool) {
    const CheckReport report = ValueOf(pool.Check());
    for (const CheckFinding& finding : report.findings) {
      ADD_FAILURE() << finding.invariant << " " << finding.name << ": " << finding.message;
    }
  }

  TempPool pool_;
  PoolOptions options_;
  PoolImage image_;
  uint64_t empty_bytes_ = 0;
  std::string findings_, lost_;
};

DatasetRecord RecordOf(WriteTxn& txn, const std::string& name) {
  return ValueOf(LoadRecord<DatasetRecord>(txn, Key(*ValueOf(Names::Find(txn, name)))));
}

void RepairTest::DamageRoot(const std::string& name) {
  BlockPtr root;
  ChangeMeta(options_.directory, [&](WriteTxn& txn) {
    root = RecordOf(txn, name).tree.root;
    // A change, so that there is something to commit.
    ASSERT_OK(
        StoreRecord(txn, PoolRecord::kKey, ValueOf(LoadRecord<PoolRecord>(txn, PoolRecord::kKey))));
  });
  Overwrite(options_.directory + "/blocks", root.address * kSectorBytes,
            std::string(kSectorBytes, '\x11'));
}

TEST_F(RepairTest, SoundPoolStaysWhatItIs) {
  RepairIt();
  ExpectWhole();
  EXPECT_TRUE(std::filesystem::exists(options_.directory + "/meta.damaged.1/data.mdb"));
  EXPECT_FALSE(std::filesystem::exists(options_.directory + "/meta.repair"));
}

TEST_F(RepairTest, PlanChangesNothing) {
  const std::string before = options_.directory + "/meta/data.mdb";
  const auto time = std::filesystem::last_write_time(before);
  EXPECT_FALSE(Prepared()->plan().empty());
  EXPECT_EQ(std::filesystem::last_write_time(before), time);
  EXPECT_FALSE(std::filesystem::exists(options_.directory + "/meta.repair"));
}

TEST_F(RepairTest, WrongSumsBitmapsAndLists) {
  ChangeMeta(options_.directory, [](WriteTxn& txn) {
    PoolRecord pool = ValueOf(LoadRecord<PoolRecord>(txn, PoolRecord::kKey));
    pool.freeing_sectors += 5;
    pool.datasets = 77;
    pool.livelist_sectors = 3;
    ASSERT_OK(StoreRecord(txn, PoolRecord::kKey, pool));
    const Key key(*ValueOf(Names::Find(txn, "a")));
    DatasetRecord record = RecordOf(txn, "a");
    record.used_sectors += 9;
    record.referenced_sectors = 1;
    record.written_sectors = 0;
    record.data_blocks = 12345;
    record.clones = 9;
    record.newest_snapshot_txg = 1;
    ASSERT_OK(StoreRecord(txn, key, record));
    ASSERT_OK(txn.Put(Table::kRegions, RegionKey(0), std::string(kMaxPayloadBytes, '\x5a')));
    const LogEntry entry = {LogOp::kDead, {20, 1, 1, BlockKind::kData}};
    ASSERT_OK(PointerLog::Append(txn, LogId{1000000}, std::span(&entry, 1)).status());
    const LivelistId list = RecordOf(txn, "dir/deep/clone").livelist;
    for (const Sublist& sublist : ValueOf(LiveList::List(txn, list))) {
      ASSERT_OK(txn.Delete(Table::kSublists, Key(list, sublist.start)));
    }
    ASSERT_OK(txn.Delete(Table::kNames, Key(kRootDirectory, std::string_view("a"))));
  });
  RepairIt();
  ExpectWhole();
}

// Of each table that follows from others every value is damaged.
TEST_F(RepairTest, EveryDerivedTableIsMadeAnew) {
  for (const char* table :
       {"names", "snapshots_by_txg", "snapshots_by_name", "sublists", "dead_buckets", "logs",
        "log_holders", "regions", "region_sums", "free_log", "states", "jobs"}) {
    SCOPED_TRACE(table);
    UseCopy(table);
    for (const ValuePlace& place : FindValues(options_.directory)) {
      if (place.table == table) FlipBits(meta_path(), place.offset + place.bytes / 2, 0x10);
    }
    findings_.clear();
    lost_.clear();
    if (std::string(table) == "jobs") {
      // The prefix that was being taken apart has lost its job: its datasets are back, not freed.
      RepairIt();
      EXPECT_EQ(findings_, "");
      EXPECT_THAT(lost_, HasSubstr("the name of this directory is lost"));
      ExpectEmptied(*Open());
      continue;
    }
    RepairIt();
    ExpectWhole();
  }
}

TEST_F(RepairTest, StalledJobsComeToAnEnd) {
  ChangeMeta(options_.directory, [](WriteTxn& txn) {
    std::vector<std::pair<JobId, JobRecord>> jobs;
    {
      MetaCursor cursor(txn, Table::kJobs);
      for (cursor.Seek(Key(uint64_t{0})); cursor.valid(); cursor.Next()) {
        jobs.emplace_back(KeyNumber<JobId>(cursor.key(), 0),
                          ValueOf(JobRecord::Decode(cursor.value())));
      }
    }
    ASSERT_FALSE(jobs.empty());
    for (auto& [id, job] : jobs) {
      if (job.kind != JobKind::kDataset) continue;
      job.stalled = true;
      job.phase = JobPhase::kFree;
      job.cursor = 1000;
      job.error = "a sublist is damaged";
      ASSERT_OK(StoreRecord(txn, Key(id), job));
    }
  });
  RepairIt();
  ExpectWhole();
}

TEST_F(RepairTest, RefusesWithoutAnythingToStandOn) {
  Overwrite(meta_path(), 0, std::string(8192, '\0'));
  const auto repair = Repair::Prepare({options_, false});
  EXPECT_CODE(repair.status(), kFailedPrecondition);
  EXPECT_THAT(std::string(repair.status().message()), HasSubstr("no copy"));
  EXPECT_CODE(Pool::Open(options_).status(), kDataLoss);
}

TEST_F(RepairTest, UnreadableMetadataComesBackFromACopy) {
  MakeMetaCopy(1);
  Overwrite(meta_path(), 0, std::string(8192, '\0'));
  EXPECT_CODE(CheckMetaPages(options_), kDataLoss);
  RepairIt();
  ExpectWhole();
}

TEST_F(RepairTest, MetadataThatIsGoneComesBackFromACopy) {
  MakeMetaCopy(1);
  std::filesystem::remove_all(options_.directory + "/meta");
  RepairIt();
  ExpectWhole();
}

// What was written since the copy is lost, and what it wrote over is named; nothing is wrong.
TEST_F(RepairTest, CopyNamesWhatHasBeenWrittenOver) {
  MakeMetaCopy(1);
  {
    const auto pool = Open();
    ASSERT_OK(DestroyAll(*pool));
    CreateDatasetArgs args;
    args.name = "later";
    args.size_bytes = 2 << 20;
    args.block_bytes = 4096;
    ASSERT_OK(CallPool(*pool, &Pool::CreateDataset, std::move(args)).status());
    const auto volume = ValueOf(pool->OpenVolume("later", ""));
    // So often that what is written goes once around the file.
    for (int round = 0; round < 10; ++round) {
      const std::string data(2 << 20, static_cast<char>('0' + round));
      ASSERT_OK(volume->Write(0, std::as_bytes(std::span(data))));
      Await<absl::StatusOr<Txg>> flushed;
      volume->Flush(flushed.Callback());
      ASSERT_OK(flushed.Wait().status());
      ASSERT_OK(pool->DrainBackground());
    }
  }
  RepairIt(/*from_copy=*/true);
  EXPECT_NE(lost_, "");
  const auto pool = Open();
  const ReadResult read = ReadAgain(*pool, image_);
  EXPECT_EQ(read.wrong, "");
  EXPECT_TRUE(read.missing.empty());
  EXPECT_FALSE(read.lossy.empty());
  for (const std::string& name : read.lossy) EXPECT_THAT(lost_, HasSubstr(name + ": blocks ["));
  ASSERT_OK(DestroyAll(*pool));
  pool_.Advance(10 * 86400000ll);
  ASSERT_OK(pool->DrainBackground());
  EXPECT_EQ(pool->space().allocated_bytes, empty_bytes_);
}

TEST_F(RepairTest, UnreadableNodeIsNamedAndTheRestGoesOn) {
  DamageRoot("dir/deep/clone");
  RepairIt();
  EXPECT_THAT(lost_, HasSubstr("dir/deep/clone: blocks [0, "));
  EXPECT_THAT(findings_, testing::Not(HasSubstr("I1")));
  EXPECT_THAT(findings_, testing::Not(HasSubstr("sums")));
  // It does not come back to life, whatever the disk gives next time.
  const auto pool = Open();
  const ReadResult read = ReadAgain(*pool, image_);
  EXPECT_EQ(read.wrong, "");
  EXPECT_EQ(read.lossy, std::set<std::string>{"dir/deep/clone"});
  ExpectEmptied(*pool);
}

TEST_F(RepairTest, LostRecordsComeFromACopyOrFromASnapshot) {
  MakeMetaCopy(1);
  std::string dataset_key, snapshot_key;
  ChangeMeta(options_.directory, [&](WriteTxn& txn) {
    dataset_key = std::string(Key(*ValueOf(Names::Find(txn, "promoted"))));
    const auto clone = RecordOf(txn, "dir/deep/clone");
    snapshot_key = std::string(Key(clone.origin));
    ASSERT_OK(
        StoreRecord(txn, PoolRecord::kKey, ValueOf(LoadRecord<PoolRecord>(txn, PoolRecord::kKey))));
  });
  int flipped = 0;
  std::vector<uint64_t> offsets;
  ASSERT_OK(WalkLmdb(meta_path(), [&](const LmdbEntry& entry) {
              if ((entry.table == "datasets" && entry.key == dataset_key) ||
                  (entry.table == "snapshots" && entry.key == snapshot_key)) {
                offsets.push_back(entry.value_offset);
              }
            }).status());
  for (const uint64_t offset : offsets) {
    FlipBits(meta_path(), offset + 3, 1);
    ++flipped;
  }
  ASSERT_EQ(flipped, 2);
  RepairIt();
  EXPECT_EQ(findings_, "");
  EXPECT_THAT(lost_, HasSubstr("promoted: its contents are those of its newest snapshot"));
  const auto pool = Open();
  PoolImage expected = image_;
  expected.contents["promoted"] = image_.contents.at("promoted@s");
  const PoolImage found = ValueOf(ReadImage(*pool));
  EXPECT_TRUE(found == expected) << Difference(expected, found);
  ExpectEmptied(*pool);
}

// ---- With writes that only the intent log holds -------------------------------------------------

TEST_F(RepairTest, DurableWritesAreReplayedAfterwards) {
  CrashWithDurableWrites({"a", "promoted"});
  RepairIt();
  ExpectWhole();
}

// Bug: a pool whose log held a write to what is damaged could not be opened any more.
TEST_F(RepairTest, LogIsReplayedAroundDamage) {
  CrashWithDurableWrites({"a", "dir/deep/clone"});
  DamageRoot("dir/deep/clone");
  const std::string crashed = options_.directory;
  options_.directory += ".repaired";
  CopyPool(crashed, options_.directory);
  RepairIt();
  for (const std::string& directory : {crashed, crashed + ".repaired"}) {
    options_.directory = directory;
    const auto pool = Open();
    const ReadResult read = ReadAgain(*pool, image_);
    EXPECT_EQ(read.wrong, "");
    EXPECT_EQ(read.lossy, std::set<std::string>{"dir/deep/clone"});
    EXPECT_EQ(pool->stats().log_replayed_entries.load(), 1u);
    EXPECT_EQ(pool->stats().log_lost_entries.load(), 1u);
  }
}

// Bug: what a txg could not put into a head with damaged lists was lost without a word.
TEST_F(RepairTest, LogThatCannotBeReplayedForDamagedListsIsKept) {
  CrashWithDurableWrites({"a", "promoted"});
  for (const std::string& key : KeysOf("dead_buckets")) FlipValue("dead_buckets", key);
  for (int attempt = 0; attempt < 2; ++attempt) {
    const absl::Status refused = Pool::Open(options_).status();
    EXPECT_CODE(refused, kDataLoss);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("the intent log cannot be replayed"));
  }
  RepairIt();
  ExpectWhole();
}

TEST_F(RepairTest, LogIsDroppedWhereAskedFor) {
  const std::string before = image_.contents.at("promoted");
  CrashWithDurableWrites({"a", "promoted"});
  auto repair = ValueOf(Repair::Prepare({options_, /*from_copy=*/false, /*drop_log=*/true}));
  ASSERT_EQ(repair->lost().size(), 1u);
  EXPECT_EQ(repair->lost()[0].message,
            "as asked for: durable writes since the last commit are lost");
  ASSERT_OK(repair->Apply().status());
  repair.reset();  // and its lock
  EXPECT_EQ(ValueOf(ReadImage(*Open())).contents.at("promoted"), before);
}

// Bug: a job kept naming an operation whose record was lost.
TEST_F(RepairTest, OperationsMayBeLost) {
  const std::vector<std::string> keys = KeysOf("operations");
  ASSERT_FALSE(keys.empty());
  for (const std::string& key : keys) {
    UseCopy("operation");
    FlipValue("operations", key);
    RepairIt();
    EXPECT_EQ(findings_, "");
  }
}

// What the log holds was written over contents that are gone.
TEST_F(RepairTest, HeadThatIsOlderGetsNothingOfTheLog) {
  MakeMetaCopy(1);
  CrashWithDurableWrites({"a", "promoted"});
  std::string key;
  ChangeMeta(options_.directory, [&](WriteTxn& txn) {
    key = std::string(Key(*ValueOf(Names::Find(txn, "promoted"))));
  });
  FlipValue("datasets", key);
  RepairIt();
  EXPECT_EQ(findings_, "");
  EXPECT_THAT(lost_, HasSubstr("promoted: its contents are those of its newest snapshot"));
  EXPECT_THAT(lost_, HasSubstr("promoted: what the intent log holds for it is left out"));
  image_.contents["promoted"] = image_.contents.at("promoted@s");
  lost_.clear();
  ExpectWhole();
}

// An older record does not say where the log begins, and what has been committed of it.
TEST_F(RepairTest, LogOfAnOlderPoolRecordIsDropped) {
  CrashWithDurableWrites({"a"});
  MakeMetaCopy(1);
  FlipValue("pool", std::string(std::string_view(PoolRecord::kKey)));
  RepairIt();
  EXPECT_EQ(findings_, "");
  EXPECT_THAT(lost_, HasSubstr("intent log: what is in it is not known any more"));
  EXPECT_NE(ValueOf(ReadImage(*Open())).contents.at("a"), image_.contents.at("a"));
}

TEST_F(RepairTest, LogWhoseCutsAreLostIsDropped) {
  CrashWithDurableWrites({"a"});
  std::string key;
  ChangeMeta(options_.directory, [&](WriteTxn& txn) {
    const auto id = *ValueOf(Names::Find(txn, "promoted"));
    key = std::string(Key(StateKey::kLogCut, id, Txg{1}));
    Encoder cut;
    cut.Put(IntentLogCut());
    ASSERT_OK(txn.Put(Table::kStates, key, cut.Take()));
  });
  FlipValue("states", key);
  RepairIt();
  EXPECT_EQ(findings_, "");
  EXPECT_THAT(lost_, HasSubstr("what was rolled back since it was written"));
}

TEST_F(RepairTest, PoolKeepsTwoCopies) {
  options_.meta_copy_interval = std::chrono::milliseconds(1000);
  const auto pool = Open();
  for (int i = 0; i < 4; ++i) {
    CreateDatasetArgs args;
    args.name = "n" + std::to_string(i);
    args.size_bytes = 1 << 20;
    ASSERT_OK(CallPool(*pool, &Pool::CreateDataset, std::move(args)).status());
    pool_.Advance(1001);
    ASSERT_OK(pool->DrainBackground());
    ASSERT_OK(pool->DrainBackground());  // nothing has changed: no further copy
  }
  EXPECT_EQ(pool->stats().meta_copies, 4u);
  const auto copies = InspectMetaCopies(options_);
  ASSERT_EQ(copies.size(), 2u);
  EXPECT_TRUE(copies[0].good && copies[1].good);
  EXPECT_EQ(pool->stats().meta_copy_bytes, copies[0].bytes);
  EXPECT_LE(copies[0].txg, pool->committed_txg());
}

}  // namespace
}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// A pool that any format version wrote opens, shows all it held and goes on living; one that uses
// what this program does not know is refused, or opened for reading only, as its masks say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "engine/base/strings.h"
#include "engine/store/format.h"
#include "engine/store/records.h"
#include "tests/golden/golden_pool.h"
#include "tests/support/superblock_change.h"
#include "tests/support/testing.h"

namespace cowshed::engine {
namespace {

using testing::HasSubstr;

std::string ReasonOf(const absl::Status& status) {
  const auto details = GetErrorDetails(status);
  return details.has_value() ? details->reason : "";
}

// The golden pool `name`, unpacked into `directory`.
void Unpack(const std::string& name, const std::string& directory) {
  std::filesystem::create_directories(directory);
  const std::string command =
      StrCat("tar -xzSf tests/golden/pools/", name, ".tar.gz -C '", directory, "'");
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
}

class GoldenPoolTest : public testing::TestWithParam<uint32_t> {
 protected:
  TempDir dir_;
};

TEST_P(GoldenPoolTest, OpensAndLives) {
  const std::string directory = dir_.Path("pool");
  Unpack(StrCat("version", GetParam()), directory);
  TempPool pool(GoldenOptions(directory));
  ExpectGoldenPool(*pool, GetParam());
  ExpectGoldenPoolLives(pool, GetParam());
}

TEST_P(GoldenPoolTest, OpensForReadingOnly) {
  const std::string directory = dir_.Path("pool");
  Unpack(StrCat("version", GetParam()), directory);
  PoolOptions options;
  GoldenOptions(directory)(&options);
  options.read_only = true;
  const std::unique_ptr<Pool> pool = ValueOf(Pool::Open(options));
  ExpectGoldenPool(*pool, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Versions, GoldenPoolTest, testing::Range(1u, kFormatVersion + 1));

TEST(GoldenLogTest, IsReplayed) {
  TempDir dir;
  Unpack("intent_log", dir.Path("pool"));
  TempPool pool(GoldenLogOptions(dir.Path("pool")));
  ExpectGoldenLog(pool);
}

// What this program writes today is what the newest golden pool holds.
TEST(GoldenPoolWriterTest, WritesWhatIsExpected) {
  TempDir dir;
  TempPool pool(GoldenOptions(dir.Path("pool")));
  WriteGoldenPool(pool);
  ExpectGoldenPool(*pool, kFormatVersion);
  pool.Abandon();
}

// Pools that say in one of their files, or in both, that they use what is not known here.
class FeaturesTest : public testing::Test {
 protected:
  FeaturesTest() {
    options_.directory = dir_.Path("pool");
    options_.capacity_bytes = 4 << 20;
    options_.meta_map_bytes = uint64_t{1} << 30;
    options_.meta_reserve_bytes = 64 << 10;
    options_.background_work = false;
    ValueOf(Pool::Open(options_));
  }
  absl::Status Open(bool read_only) {
    PoolOptions options = options_;
    options.read_only = read_only;
    return Pool::Open(options).status();
  }
  void ChangeBlocks(const std::function<void(Superblock*)>& change) {
    ChangeSuperblocks(options_.directory, change);
  }
  // `extra`: what a newer version might append to the record.
  void ChangeMetadata(const std::function<void(PoolRecord*)>& change,
                      const std::string& extra = "") {
    const MetaStoreOptions options{.map_bytes = options_.meta_map_bytes, .reserve_bytes = 0};
    const auto meta = ValueOf(MetaStore::Open(options_.directory + "/meta", /*create=*/false,
                                              /*read_only=*/false, options));
    const auto txn = ValueOf(meta->BeginWrite());
    const std::string_view bytes = *ValueOf(txn->Get(Table::kPool, PoolRecord::kKey));
    PoolRecord record = ValueOf(PoolRecord::Decode(bytes));
    change(&record);
    ASSERT_OK(txn->Put(Table::kPool, PoolRecord::kKey, record.Encode() + extra));
    ASSERT_OK(txn->Commit());
  }
  void ExpectRefused(const absl::Status& status, const std::string& why) {
    EXPECT_CODE(status, kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  }

  TempDir dir_;
  PoolOptions options_;
};

TEST_F(FeaturesTest, UnknownCompatibleBitsAreIgnored) {
  ChangeBlocks([](Superblock* superblock) { superblock->features.compatible = 0x30; });
  ChangeMetadata([](PoolRecord* record) { record->features.compatible = 0x30; });
  EXPECT_OK(Open(/*read_only=*/false));
  EXPECT_OK(Open(/*read_only=*/true));
}

TEST_F(FeaturesTest, UnknownIncompatibleBitsRefuse) {
  ChangeMetadata([](PoolRecord* record) { record->features.incompatible = 0x10; });
  const std::string why = "(incompatible mask 0x10): open the pool with a newer version";
  ExpectRefused(Open(/*read_only=*/false), "metadata uses features");
  ExpectRefused(Open(/*read_only=*/true), why);
  ChangeMetadata([](PoolRecord* record) { record->features.incompatible = 0; });
  EXPECT_OK(Open(/*read_only=*/false));
  ChangeBlocks([](Superblock* superblock) { superblock->features.incompatible = 0x10; });
  ExpectRefused(Open(/*read_only=*/false), "blocks uses features");
  ExpectRefused(Open(/*read_only=*/true), why);
}

// Only the metadata were asked: a pool whose data file said that it may only be read was written.
TEST_F(FeaturesTest, UnknownReadOnlyCompatibleBitsRefuseToWrite) {
  const std::string why = "(read-only-compatible mask 0x2)";
  ChangeBlocks([](Superblock* superblock) { superblock->features.read_only_compatible = 2; });
  ExpectRefused(Open(/*read_only=*/false), "blocks uses features");
  ExpectRefused(Open(/*read_only=*/false), why);
  EXPECT_OK(Open(/*read_only=*/true));
  ChangeBlocks([](Superblock* superblock) { superblock->features.read_only_compatible = 0; });
  ChangeMetadata([](PoolRecord* record) { record->features.read_only_compatible = 2; });
  ExpectRefused(Open(/*read_only=*/false), "metadata uses features");
  ExpectRefused(Open(/*read_only=*/false), why);
  EXPECT_OK(Open(/*read_only=*/true));
}

// The record of a newer version was decoded before anyone asked for its version: the answer was
// DATA_LOSS "has a wrong length".
TEST_F(FeaturesTest, NewerVersionIsNamed) {
  const std::string why = StrCat("format version ", kFormatVersion + 1, ", this program knows");
  ChangeMetadata([](PoolRecord* record) { record->version = kFormatVersion + 1; }, "more fields");
  ExpectRefused(Open(/*read_only=*/false), why);
  ExpectRefused(Open(/*read_only=*/true), why);
}

// A change of a pool that is open for reading only was taken, and never answered.
TEST_F(FeaturesTest, ReadOnlyPoolRefusesChanges) {
  PoolOptions options = options_;
  options.read_only = true;
  const std::unique_ptr<Pool> pool = ValueOf(Pool::Open(options));
  CreateDatasetArgs args;
  args.name = "d";
  args.size_bytes = 4096;
  Await<absl::StatusOr<Outcome>> created;
  pool->CreateDataset(args, std::nullopt, created.Callback());
  const absl::Status refused = created.Wait().status();
  EXPECT_CODE(refused, kUnavailable);
  EXPECT_EQ(ReasonOf(refused), "POOL_SUSPENDED");
  Await<absl::StatusOr<Txg>> synced;
  pool->Sync(synced.Callback());
  EXPECT_EQ(ReasonOf(synced.Wait().status()), "POOL_SUSPENDED");
}

}  // namespace
}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// Backups: of one moment whatever goes on, a pool of their own, whole or recognisable, and never at
// the cost of a writer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/failpoints.h"
#include "engine/base/hash.h"
#include "engine/base/strings.h"
#include "tests/support/temp_pool.h"
#include "tests/support/testing.h"

namespace cowshed::engine {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr uint64_t kSize = 1 << 20;

class BackupTest : public ::testing::Test {
 protected:
  ~BackupTest() override { Failpoints::DisarmAll(); }

  absl::StatusOr<Outcome> Backup(const std::string& directory) {
    return pool_.Call(&Pool::Backup, BackupArgs{directory});
  }
  OperationInfo AwaitEnd(const std::string& operation) {
    for (int i = 0; i < 6000; ++i) {
      OperationInfo info = ValueOf(pool_->GetOperation(operation));
      if (info.done()) return info;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ADD_FAILURE() << operation << " does not end";
    return {};
  }
  OperationInfo Run(const std::string& directory) {
    return AwaitEnd(ValueOf(Backup(directory)).operation->name);
  }
  static std::unique_ptr<Pool> Restore(const std::string& directory) {
    PoolOptions options;
    options.directory = directory;
    options.create_if_missing = false;
    options.meta_map_bytes = uint64_t{1} << 30;
    options.meta_reserve_bytes = 1 << 20;
    return ValueOf(Pool::Open(options));
  }
  static uint64_t DigestOf(Pool& pool, const std::string& name) {
    const auto volume = ValueOf(pool.OpenVolume(name, ""));
    std::vector<std::byte> bytes(volume->size_bytes());
    EXPECT_OK(volume->Read(0, bytes));
    return Hash64(bytes);
  }
  static void ExpectClean(Pool& pool) {
    const CheckReport report = ValueOf(pool.Check());
    for (const CheckFinding& finding : report.findings) {
      ADD_FAILURE() << finding.invariant << ": " << finding.name << ": " << finding.message;
    }
  }

  TempDir directory_;
  TempPool pool_{[](PoolOptions* options) {
    options->capacity_bytes = 256 << 20;
    options->txg_interval = std::chrono::milliseconds(5);
  }};
};

// What the intent log holds is younger than the copy: it has no log, and no ring.
TEST_F(BackupTest, HasNoIntentLog) {
  ASSERT_OK(pool_.Create("d", kSize).status());
  ASSERT_OK(pool_.Snapshot("d@s").status());
  ASSERT_OK(pool_.Write("d", 0, std::string(4096, 'a')));
  ASSERT_OK(pool_.MakeDurable("d"));
  ASSERT_OK(pool_.Write("d", 0, std::string(4096, 'b')));
  ASSERT_OK(pool_.MakeDurable("d"));
  ASSERT_OK(pool_.Rollback("d").status());
  ASSERT_GT(pool_->stats().log_ring_bytes.load(), 0u);
  ASSERT_EQ(Run(directory_.Path("b")).state, OperationState::kSucceeded);
  const auto restored = Restore(directory_.Path("b"));
  EXPECT_EQ(restored->stats().log_ring_bytes.load(), 0u);
  EXPECT_EQ(DigestOf(*restored, "d"), DigestOf(*restored, "d@s"));
  ExpectClean(*restored);
  const auto volume = ValueOf(restored->OpenVolume("d", ""));
  Await<absl::Status> durable;
  volume->MakeDurable(durable.Callback());
  ASSERT_OK(durable.Wait());  // which makes it one of its own
}

TEST_F(BackupTest, IsOfOneMomentUnderWrites) {
  std::map<std::string, uint64_t> digests;
  for (int i = 0; i < 4; ++i) {
    const std::string name = StrCat("d", i);
    ASSERT_OK(pool_.Create(name, kSize).status());
    ASSERT_OK(pool_.Write(name, 0, std::string(kSize, static_cast<char>('a' + i))));
    ASSERT_OK(pool_.Flush(name).status());
    ASSERT_OK(pool_.Snapshot(name + "@s").status());
    digests[name + "@s"] = DigestOf(*pool_, name + "@s");
  }
  std::atomic<bool> done{false};
  std::vector<std::thread> writers;
  for (int i = 0; i < 2; ++i) {
    writers.emplace_back([&, i] {
      for (uint64_t n = 0; !done; ++n) {
        const std::string name = StrCat("d", i + 2 * (n % 2));
        EXPECT_OK(pool_.Write(name, n * 8192 % kSize, std::string(8192, static_cast<char>(n))));
        if (n % 16 == 0) EXPECT_OK(pool_.Flush(name).status());
        if (n % 32 != 0) continue;
        const std::string clone = StrCat("t", i, "/", n);
        EXPECT_OK(pool_.Clone(name + "@s", clone).status());
        EXPECT_OK(pool_.Write(clone, 0, std::string(65536, 'c')));
        EXPECT_OK(pool_.Destroy(clone).status());
      }
    });
  }
  for (int round = 0; round < 5; ++round) {
    const std::string target = directory_.Path(StrCat("b", round));
    const OperationInfo operation = Run(target);
    ASSERT_EQ(operation.state, OperationState::kSucceeded) << operation.error;
    EXPECT_EQ(operation.kind, OperationKind::kBackup);
    EXPECT_EQ(operation.target, target);
    EXPECT_GT(operation.done_bytes, 4 * kSize);
    EXPECT_EQ(operation.done_bytes, operation.total_bytes);
    EXPECT_FALSE(fs::exists(target + ".partial"));
    const std::unique_ptr<Pool> copy = Restore(target);
    EXPECT_GE(copy->committed_txg(), operation.txg);
    ExpectClean(*copy);
    for (const auto& [name, digest] : digests) EXPECT_EQ(DigestOf(*copy, name), digest) << name;
    for (int i = 0; i < 4; ++i) DigestOf(*copy, StrCat("d", i));  // every block can be read
    EXPECT_NE(copy->uid(), pool_->uid());
  }
  done = true;
  for (std::thread& writer : writers) writer.join();
}

TEST_F(BackupTest, IsAPoolThatWorks) {
  ASSERT_OK(pool_.Create("d", kSize).status());
  ASSERT_OK(pool_.Write("d", 0, "text"));
  ASSERT_OK(pool_.Flush("d").status());
  Await<absl::StatusOr<Outcome>> made;
  RequestKey key{"caller/CreateDataset/1", 7, [](const Outcome&) { return std::string("reply"); }};
  CreateDatasetArgs args;
  args.name = "once";
  args.size_bytes = kSize;
  pool_->CreateDataset(args, key, made.Callback());
  ASSERT_OK(made.Wait().status());
  const OperationInfo operation = Run(directory_.Path("b"));
  ASSERT_EQ(operation.state, OperationState::kSucceeded) << operation.error;
  EXPECT_EQ(pool_->stats().backup_running, 0u);
  const std::string old_uid = ValueOf(pool_->GetDataset("d")).uid;
  {
    const std::unique_ptr<Pool> copy = Restore(directory_.Path("b"));
    EXPECT_NE(ValueOf(copy->GetDataset("d")).uid, old_uid);
    // It knows nothing of the backup it came from, nor of requests made to the other pool.
    EXPECT_CODE(copy->GetOperation(operation.name), kNotFound);
    Await<absl::StatusOr<Outcome>> again;
    copy->CreateDataset(args, key, again.Callback());
    EXPECT_CODE(again.Wait(), kAlreadyExists);
    const auto volume = ValueOf(copy->OpenVolume("d", ""));
    ASSERT_OK(volume->Write(4096, std::as_bytes(std::span("more", 4))));
    Await<absl::StatusOr<Txg>> flushed;
    volume->Flush(flushed.Callback());
    ASSERT_OK(flushed.Wait().status());
  }
  const std::unique_ptr<Pool> copy = Restore(directory_.Path("b"));
  ASSERT_OK(copy->DrainBackground());
  ExpectClean(*copy);
}

TEST_F(BackupTest, RefusesTargetsThatCanNotTakeIt) {
  fs::create_directories(directory_.Path("full/inside"));
  fs::create_directories(directory_.Path("empty"));
  fs::create_directories(directory_.Path("half.partial"));
  EXPECT_CODE(Backup("relative"), kInvalidArgument);
  EXPECT_CODE(Backup(""), kInvalidArgument);
  EXPECT_CODE(Backup(directory_.Path("full")), kFailedPrecondition);
  EXPECT_CODE(Backup(directory_.Path("half")), kFailedPrecondition);
  EXPECT_CODE(Backup(directory_.Path("no/such")), kFailedPrecondition);
  EXPECT_EQ(Run(directory_.Path("empty/")).state, OperationState::kSucceeded);
  EXPECT_TRUE(fs::exists(directory_.Path("empty/blocks")));
}

TEST_F(BackupTest, OneAtATimeAndAFailedOneLeavesNothing) {
  ASSERT_OK(pool_.Create("d", kSize).status());
  ASSERT_OK(Failpoints::Arm("backup.before_rename=pause"));
  const std::string name = ValueOf(Backup(directory_.Path("a"))).operation->name;
  EXPECT_CODE(Backup(directory_.Path("b")), kFailedPrecondition);
  while (Failpoints::Hits("backup.before_rename") == 0) std::this_thread::yield();
  ASSERT_OK(Failpoints::Arm("backup.meta_copied=error"));
  Failpoints::Disarm("backup.before_rename");
  EXPECT_EQ(AwaitEnd(name).state, OperationState::kSucceeded);
  const OperationInfo failed = Run(directory_.Path("b"));
  EXPECT_EQ(failed.state, OperationState::kFailed);
  EXPECT_FALSE(fs::exists(directory_.Path("b")));
  EXPECT_FALSE(fs::exists(directory_.Path("b.partial")));
  EXPECT_EQ(pool_->stats().backup_failures, 1u);
}

TEST_F(BackupTest, OneThatItsProcessDidNotSurviveIsToldFrom) {
  ASSERT_OK(pool_.Create("d", kSize).status());
  ASSERT_OK(Failpoints::Arm("backup.before_rename=pause"));
  const std::string name = ValueOf(Backup(directory_.Path("a"))).operation->name;
  while (Failpoints::Hits("backup.before_rename") == 0) std::this_thread::yield();
  // What a kill leaves is taken while the backup stands still: the pool goes on with that.
  const std::string killed = directory_.Path("killed");
  fs::copy(pool_.directory(), killed, fs::copy_options::recursive);
  EXPECT_TRUE(fs::exists(directory_.Path("a.partial")));
  EXPECT_FALSE(fs::exists(directory_.Path("a")));
  {
    const std::unique_ptr<Pool> pool = Restore(killed);
    ASSERT_OK(pool->DrainBackground());
    const OperationInfo info = ValueOf(pool->GetOperation(name));
    EXPECT_EQ(info.state, OperationState::kFailed);
    EXPECT_THAT(info.error, HasSubstr("program ended"));
    ExpectClean(*pool);
  }
  Failpoints::DisarmAll();
  EXPECT_EQ(AwaitEnd(name).state, OperationState::kSucceeded);
}

TEST_F(BackupTest, GivesWayToAWriterThatNeedsTheSpace) {
  constexpr uint64_t kBig = 150 << 20;
  ASSERT_OK(pool_.Create("big", kBig, 131072).status());
  const std::string piece(8 << 20, 'x');
  const auto fill = [&] {
    for (uint64_t at = 0; at + piece.size() <= kBig; at += piece.size()) {
      ASSERT_OK(pool_.Write("big", at, piece)) << at;
    }
    ASSERT_OK(pool_.Flush("big").status());
  };
  fill();
  ASSERT_OK(Failpoints::Arm("backup.meta_copied=pause"));
  const std::string name = ValueOf(Backup(directory_.Path("a"))).operation->name;
  while (Failpoints::Hits("backup.meta_copied") == 0) std::this_thread::yield();
  std::thread writer(fill);  // what it replaces is kept for the backup: there is no room for both
  // What is freed stays, so there is ever less until the writer waits: with its next piece but one.
  while (pool_->space().available_bytes > piece.size() + (1 << 20)) std::this_thread::yield();
  Failpoints::DisarmAll();
  writer.join();
  const OperationInfo info = AwaitEnd(name);
  EXPECT_EQ(info.state, OperationState::kFailed);
  EXPECT_THAT(info.error, HasSubstr("writer waits for space"));
  EXPECT_FALSE(fs::exists(directory_.Path("a.partial")));
}

}  // namespace
}  // namespace cowshed::engine

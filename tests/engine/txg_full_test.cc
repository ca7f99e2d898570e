// SPDX-License-Identifier: Apache-2.0
//
// A txg without room, and a txg that fails for good: writes are refused before they are accepted,
// what frees space goes on, and after a failed sync nothing is written any more.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <thread>

#include "engine/base/failpoints.h"
#include "engine/base/status_macros.h"
#include "engine/txg.h"
#include "tests/support/fault_file.h"
#include "tests/support/temp_pool.h"
#include "tests/support/testing.h"

namespace cowshed::engine {
namespace {

using Reply = Await<absl::StatusOr<Outcome>>;
using Flushed = Await<absl::StatusOr<Txg>>;

constexpr uint64_t kMiB = 1 << 20;

std::string ReasonOf(const absl::Status& status) {
  const auto details = GetErrorDetails(status);
  return details.has_value() ? details->reason : std::string(status.ToString());
}

class TxgFullTest : public ::testing::Test {
 protected:
  TxgFullTest()
      : pool_([this](PoolOptions* options) {
          options->capacity_bytes = 8 * kMiB;
          options->blocks_reserve_bytes = 256 << 10;
          options->write_wait_max = std::chrono::milliseconds(20000);
          options->txg_interval = std::chrono::milliseconds(10);
          options->wrap_blocks_file = [plan = plan_](std::unique_ptr<File> file) {
            return std::make_unique<FaultFile>(std::move(file), plan);
          };
        }) {}
  void TearDown() override {
    Failpoints::DisarmAll();
    plan_->Heal();
  }

  static std::string Fill(char byte, uint64_t bytes) { return std::string(bytes, byte); }
  // Every write of `blocks` fails as on a full host, until Heal.
  void FillHost() {
    plan_->CountOnly(FileOp::kWrite);
    FaultPlan::Failure failure;
    failure.at = 1;
    failure.for_ever = true;
    failure.from_byte = kFirstDataSector * kSectorBytes;  // the superblocks have their place
    failure.status = absl::ResourceExhaustedError("injected: no space on the host");
    plan_->Fail(failure);
  }
  void AwaitHostFull() {
    while (pool_->stats().alarms[Alarm::kHostFull] == 0) std::this_thread::yield();
  }
  // Accepts data of `d` that a full host keeps from being written.
  void AcceptWhileHostIsFull(char byte, Flushed& flushed) {
    FillHost();
    const std::shared_ptr<Volume> volume = ValueOf(pool_->OpenVolume("d", ""));
    const std::string data = Fill(byte, 16384);
    ASSERT_OK(volume->Write(0, std::as_bytes(std::span(data))));
    volume->Flush(flushed.Callback());
    AwaitHostFull();
  }

  std::shared_ptr<FaultPlan> plan_ = std::make_shared<FaultPlan>();
  TempPool pool_;
};

TEST_F(TxgFullTest, WritesAreRefusedBeforeTheyAreAcceptedAndResumeAfterADestroy) {
  ASSERT_OK(pool_.Create("victim", 4 * kMiB, 16384).status());
  ASSERT_OK(pool_.Write("victim", 0, Fill('v', 2 * kMiB)));
  ASSERT_OK(pool_.Flush("victim").status());
  ASSERT_OK(pool_.Create("d", 64 * kMiB, 16384).status());
  std::map<uint64_t, char> accepted;
  absl::Status status;
  for (uint64_t at = 0; status.ok() && at < 64 * kMiB; at += 65536) {
    const char byte = static_cast<char>('a' + at / 65536 % 26);
    status = pool_.Write("d", at, Fill(byte, 65536));
    if (status.ok()) accepted[at] = byte;
  }
  EXPECT_CODE(status, kResourceExhausted);
  EXPECT_EQ(ReasonOf(status), "POOL_FULL");
  EXPECT_GE(accepted.size(), 4 * kMiB / 65536);
  ASSERT_OK(pool_.Flush("d").status());
  for (const auto& [at, byte] : accepted) {
    ASSERT_EQ(ValueOf(pool_.Read("d", at, 65536)), Fill(byte, 65536)) << at;
  }
  // Discards and destroys work in a full pool, and then writes do.
  ASSERT_OK(pool_.Discard("d", 16384, 16384));
  ASSERT_OK(pool_.Flush("d").status());
  ASSERT_OK(pool_.Destroy("victim").status());
  EXPECT_OK(pool_.Write("d", 32 * kMiB, Fill('z', 256 << 10)));
  EXPECT_OK(pool_.Flush("d").status());
}

// Punches holes only once it is let.
class PatientPunchFile final : public FaultFile {
 public:
  PatientPunchFile(std::unique_ptr<File> file, std::shared_ptr<FaultPlan> plan)
      : FaultFile(std::move(file), std::move(plan)) {}
  absl::Status Punch(uint64_t offset, uint64_t bytes) override {
    RETURN_IF_ERROR(Failpoints::Hit("test.punch"));
    return FaultFile::Punch(offset, bytes);
  }
};

// A write was refused for want of space while the space was only withheld for a punch.
TEST_F(TxgFullTest, WriteWaitsForSpaceThatIsBeingPunched) {
  pool_.Reopen([this](PoolOptions* options) {
    options->wrap_blocks_file = [plan = plan_](std::unique_ptr<File> file) {
      return std::make_unique<PatientPunchFile>(std::move(file), plan);
    };
  });
  ASSERT_OK(pool_.Create("victim", 4 * kMiB, 16384).status());
  ASSERT_OK(pool_.Write("victim", 0, Fill('v', 4 * kMiB)));
  ASSERT_OK(pool_.Create("d", 64 * kMiB, 16384).status());
  absl::Status status;
  for (uint64_t at = 0; status.ok(); at += 16384) status = pool_.Write("d", at, Fill('d', 16384));
  EXPECT_EQ(ReasonOf(status), "POOL_FULL");
  ASSERT_OK(Failpoints::Arm("test.punch=pause"));
  ASSERT_OK(pool_.Destroy("victim").status());
  while (Failpoints::Hits("test.punch") == 0) std::this_thread::yield();
  while (pool_->space().freeing_bytes > 0) std::this_thread::yield();
  std::thread punching([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    Failpoints::Disarm("test.punch");
  });
  EXPECT_OK(pool_.Write("d", 32 * kMiB, Fill('z', kMiB)));
  punching.join();
}

// A write that waited for reclaim made the txg thread try empty txgs without a pause.
TEST_F(TxgFullTest, WriteThatWaitsForReclaimLetsTheTxgThreadRest) {
  pool_.Reopen([](PoolOptions* options) {
    options->background_work = false;  // so reclaim does not come
    options->write_wait_max = std::chrono::milliseconds(300);
  });
  ASSERT_OK(pool_.Create("victim", 2 * kMiB, 16384).status());
  ASSERT_OK(pool_.Write("victim", 0, Fill('v', 2 * kMiB)));
  ASSERT_OK(pool_.Create("d", 64 * kMiB, 16384).status());
  absl::Status status;
  for (uint64_t at = 0; status.ok(); at += 16384) status = pool_.Write("d", at, Fill('d', 16384));
  ASSERT_OK(pool_.Flush("d").status());
  ASSERT_OK(pool_.Destroy("victim").status());
  ASSERT_OK(Failpoints::Arm("sync.tasks_run=error:skip=1000000000"));
  EXPECT_EQ(ReasonOf(pool_.Write("d", 32 * kMiB, Fill('z', kMiB))), "POOL_FULL");
  EXPECT_LE(Failpoints::Hits("sync.tasks_run"), 50u);
  ASSERT_OK(pool_->DrainBackground());
  EXPECT_OK(pool_.Write("d", 32 * kMiB, Fill('z', 128 << 10)));
}

TEST_F(TxgFullTest, QuotaIsCheckedBeforeAWriteIsAccepted) {
  CreateDatasetArgs args;
  args.name = "d";
  args.size_bytes = 4 * kMiB;
  args.block_bytes = 16384;
  args.quota_bytes = kMiB;
  ASSERT_OK(pool_.Call(&Pool::CreateDataset, std::move(args)).status());
  absl::Status status;
  uint64_t at = 0;
  while (status.ok() && at < 4 * kMiB) {
    status = pool_.Write("d", at, Fill('q', 65536));
    if (status.ok()) at += 65536;
  }
  EXPECT_EQ(ReasonOf(status), "QUOTA_EXCEEDED");
  EXPECT_EQ(ValueOf(pool_.Read("d", at, 65536)), Fill('\0', 65536));
  ASSERT_OK(pool_.Flush("d").status());
  // All of it may be data: the nodes above come on top.
  EXPECT_LE(ValueOf(pool_->GetDataset("d")).referenced_bytes, kMiB + 4 * 4096);
}

TEST_F(TxgFullTest, FullHostHoldsWritesWhileDestroysGoOn) {
  ASSERT_OK(pool_.Create("d").status());
  ASSERT_OK(pool_.Create("victim", 4 * kMiB).status());
  ASSERT_OK(pool_.Write("victim", 0, Fill('v', kMiB)));
  ASSERT_OK(pool_.Flush("victim").status());
  const uint64_t before = pool_->space().allocated_bytes;
  Flushed flushed;
  AcceptWhileHostIsFull('a', flushed);
  ASSERT_OK(pool_.Destroy("victim").status());
  while (pool_->space().allocated_bytes + kMiB > before) std::this_thread::yield();
  EXPECT_FALSE(flushed.Ready());
  EXPECT_EQ(ValueOf(pool_.Read("d", 0, 16384)), Fill('a', 16384));
  EXPECT_OK(pool_->health());
  plan_->Heal();
  ASSERT_OK(flushed.Wait().status());
  EXPECT_EQ(pool_->stats().alarms[Alarm::kHostFull], 0u);
  EXPECT_EQ(ValueOf(pool_.Read("d", 0, 16384)), Fill('a', 16384));
}

// A snapshot taken while the host was full missed the data accepted before it.
TEST_F(TxgFullTest, SnapshotOnAFullHostWaitsForTheDataBeforeIt) {
  ASSERT_OK(pool_.Create("d").status());
  Flushed flushed;
  AcceptWhileHostIsFull('a', flushed);
  Reply snapshot;
  CreateSnapshotsArgs args;
  args.names = {"d@s"};
  pool_->CreateSnapshots(std::move(args), std::nullopt, snapshot.Callback());
  EXPECT_CODE(pool_.Destroy("missing"), kNotFound);  // a round of those that may go on
  plan_->Heal();
  ASSERT_OK(snapshot.Wait().status());
  ASSERT_OK(flushed.Wait().status());
  EXPECT_EQ(ValueOf(pool_.Read("d@s", 0, 16384)), Fill('a', 16384));
}

// A rollback on a full host was followed by the data that it had rolled back.
TEST_F(TxgFullTest, RollbackOnAFullHostTakesTheDataBeforeItAlong) {
  ASSERT_OK(pool_.Create("d").status());
  ASSERT_OK(pool_.Write("d", 0, Fill('s', 16384)));
  ASSERT_OK(pool_.Snapshot("d@s").status());
  Flushed flushed;
  AcceptWhileHostIsFull('a', flushed);
  ASSERT_OK(pool_.Rollback("d").status());
  EXPECT_EQ(ValueOf(pool_.Read("d", 0, 16384)), Fill('s', 16384));
  plan_->Heal();
  EXPECT_EQ(ReasonOf(flushed.Wait().status()), "DATASET_CHANGED");
  ASSERT_OK(pool_.Sync().status());
  EXPECT_EQ(ValueOf(pool_.Read("d", 0, 16384)), Fill('s', 16384));
}

// A txg that waited for a full host was tried again without a pause, and closing never ended.
TEST_F(TxgFullTest, FullHostIsTriedAtIntervalsAndDoesNotKeepThePoolOpen) {
  ASSERT_OK(pool_.Create("d").status());
  Flushed flushed;
  AcceptWhileHostIsFull('a', flushed);
  const uint64_t tries = plan_->counted();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_LE(plan_->counted(), tries + 10);
  pool_.Abandon();
  EXPECT_CODE(flushed.Wait(), kUnavailable);
}

TEST_F(TxgFullTest, FailedWriteIsDoneOver) {
  ASSERT_OK(pool_.Create("d").status());
  ASSERT_OK(pool_.Write("d", 0, Fill('a', 16384)));
  plan_->CountOnly(FileOp::kWrite);
  FaultPlan::Failure failure;
  failure.at = 1;
  failure.torn_bytes = 5000;
  plan_->Fail(failure);
  EXPECT_OK(pool_.Flush("d").status());
  pool_.Crash();
  EXPECT_EQ(ValueOf(pool_.Read("d", 0, 16384)), Fill('a', 16384));
}

class SuspendedPoolTest : public TxgFullTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(SuspendedPoolTest, RefusesChangesGoesOnReadingAndOpensAgain) {
  ASSERT_OK(pool_.Create("d").status());
  ASSERT_OK(pool_.Write("d", 0, Fill('a', 16384)));
  ASSERT_OK(pool_.Flush("d").status());
  ASSERT_OK(pool_.Write("d", 4096, Fill('b', 4096)));
  ASSERT_OK(Failpoints::Arm(std::string(GetParam()) + "=eio:count=1"));
  EXPECT_CODE(pool_.Flush("d"), kUnavailable);
  Failpoints::DisarmAll();
  EXPECT_EQ(pool_->stats().alarms[Alarm::kPoolSuspended], 1u);
  for (const absl::Status& refused :
       {pool_->health(), pool_.Create("e").status(), pool_.Write("d", 0, "x"),
        pool_.Flush("d").status(), pool_.Sync().status()}) {
    EXPECT_EQ(ReasonOf(refused), "POOL_SUSPENDED");
  }
  const std::string accepted = Fill('a', 4096) + Fill('b', 4096) + Fill('a', 8192);
  EXPECT_EQ(ValueOf(pool_.Read("d", 0, 16384)), accepted);
  pool_.Reopen();
  EXPECT_OK(pool_->health());
  const std::string found = ValueOf(pool_.Read("d", 0, 16384));
  EXPECT_TRUE(found == accepted || found == Fill('a', 16384));
  EXPECT_OK(pool_.Create("e").status());
}

INSTANTIATE_TEST_SUITE_P(Points, SuspendedPoolTest,
                         ::testing::Values("file.sync", "sync.before_fsync", "sync.before_commit",
                                           "meta.before_commit", "meta.after_commit",
                                           "sync.after_commit"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase_if(name, [](char c) { return c == '.' || c == '_'; });
                           return name;
                         });

// A suspended pool closed and synced further txgs: the layer being synced was replaced by the open
// one, so that reads lost accepted data, and writes went out after a failed fsync.
TEST_F(TxgFullTest, SuspendedPoolWritesNothingAndKeepsWhatItAccepted) {
  ASSERT_OK(pool_.Create("d").status());
  ASSERT_OK(Failpoints::Arm("sync.data_written=pause"));
  ASSERT_OK(pool_.Write("d", 0, Fill('a', 4096)));
  Flushed flushed;
  ValueOf(pool_->OpenVolume("d", ""))->Flush(flushed.Callback());
  while (Failpoints::Hits("sync.data_written") == 0) std::this_thread::yield();
  ASSERT_OK(pool_.Write("d", 4096, Fill('b', 4096)));  // into the next txg
  ASSERT_OK(Failpoints::Arm("sync.before_fsync=eio"));
  Failpoints::Disarm("sync.data_written");
  EXPECT_CODE(flushed.Wait(), kUnavailable);
  plan_->ClearCalls();
  // Ten times the interval at which txgs close.
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  for (const FileCall& call : plan_->calls()) EXPECT_EQ(call.op, FileOp::kRead);
  EXPECT_EQ(ValueOf(pool_.Read("d", 0, 8192)), Fill('a', 4096) + Fill('b', 4096));
  Failpoints::DisarmAll();
  pool_.Reopen();
  EXPECT_EQ(ValueOf(pool_.Read("d", 0, 8192)), Fill('\0', 8192));
}

}  // namespace
}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// A pool on a file system that really fills up, by the pool's own data or by somebody else's:
// writes are refused before they are acknowledged, what frees space goes on, the pool is never
// suspended, and all goes on by itself once there is space again. And what would happen if the
// metadata were not allocated ahead.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/errors.h"
#include "tests/host_faults/fault_interposer.h"
#include "tests/host_faults/small_disk.h"
#include "tests/support/temp_pool.h"
#include "tests/support/testing.h"

namespace cowshed::engine {
namespace {

constexpr uint64_t kMiB = 1 << 20;
// The metadata is allocated 32 MiB ahead for a txg, 1 MiB in reserve, in steps of 4 MiB.
constexpr uint64_t kDiskBytes = 128 * kMiB;
constexpr uint64_t kChunk = 64 << 10;

std::string ReasonOf(const absl::Status& status) {
  const auto details = GetErrorDetails(status);
  return details.has_value() ? details->reason : std::string(status.ToString());
}

bool Within(std::chrono::seconds time, const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + time;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

class FullDiskTest : public ::testing::TestWithParam<SmallDisk::Kind> {
 protected:
  void SetUp() override {
    auto disk = SmallDisk::Mount(GetParam(), kDiskBytes);
    if (!disk.ok()) GTEST_SKIP() << "no file system to fill: " << disk.status();
    disk_ = *std::move(disk);
    setenv("COWSHED_TEST_ROOT", disk_->path().c_str(), 1);
  }
  void TearDown() override {
    HealHost();
    pool_.reset();
    unsetenv("COWSHED_TEST_ROOT");
  }

  void OpenPool(bool punch_holes) {
    pool_ = std::make_unique<TempPool>([punch_holes](PoolOptions* options) {
      options->capacity_bytes = 1024 * kMiB;
      options->txg_interval = std::chrono::milliseconds(10);
      options->write_wait_max = std::chrono::milliseconds(500);
      options->punch_holes = punch_holes;
    });
  }
  static std::string DataOf(uint64_t at) {
    return std::string(kChunk, static_cast<char>('a' + at / kChunk % 26));
  }
  // Writes to `d` until it is refused; what was accepted is in accepted_.
  absl::Status WriteUntilRefused() {
    absl::Status status;
    for (uint64_t at = accepted_bytes_; status.ok() && at < 512 * kMiB; at += kChunk) {
      status = pool_->Write("d", at, DataOf(at));
      if (status.ok()) accepted_bytes_ = at + kChunk;
    }
    return status;
  }
  void ExpectAllAccepted() {
    for (uint64_t at = 0; at < accepted_bytes_; at += kChunk) {
      ASSERT_EQ(ValueOf(pool_->Read("d", at, kChunk)), DataOf(at)) << at;
    }
  }
  void MakeVictim(const std::string& name, uint64_t bytes) {
    ASSERT_OK(pool_->Create(name, bytes, 16384).status());
    ASSERT_OK(pool_->Write(name, 0, std::string(bytes, 'v')));
    ASSERT_OK(pool_->Flush(name).status());
  }

  std::unique_ptr<SmallDisk> disk_;
  std::unique_ptr<TempPool> pool_;
  uint64_t accepted_bytes_ = 0;
};

TEST_P(FullDiskTest, PoolThatFilledItsDiskItselfRefusesWritesAndGoesOnAfterADestroy) {
  OpenPool(/*punch_holes=*/true);
  ASSERT_NO_FATAL_FAILURE(MakeVictim("victim", 16 * kMiB));
  ASSERT_OK(pool_->Create("d", 512 * kMiB, 16384).status());
  const absl::Status refused = WriteUntilRefused();
  EXPECT_CODE(refused, kResourceExhausted);
  EXPECT_EQ(ReasonOf(refused), "POOL_FULL");
  EXPECT_GE(accepted_bytes_, 16 * kMiB);
  // What was accepted before that has its place, in `blocks` and in the metadata.
  ASSERT_OK(pool_->Flush("d").status());
  ASSERT_OK((*pool_)->health());
  ASSERT_OK(pool_->Snapshot("d@full").status());
  ASSERT_OK(pool_->Destroy("victim").status());
  const uint64_t accepted_before = accepted_bytes_;
  EXPECT_TRUE(Within(std::chrono::seconds(60), [&] {
    const absl::Status again = WriteUntilRefused();
    EXPECT_CODE(again, kResourceExhausted);
    return accepted_bytes_ >= accepted_before + 8 * kMiB;
  }));
  ASSERT_OK(pool_->Flush("d").status());
  ExpectAllAccepted();
  pool_->Reopen();
  ExpectAllAccepted();
}

TEST_P(FullDiskTest, DiskThatOthersFilledHoldsWritesWhileDestroysGoOnUntilThereIsSpace) {
  OpenPool(/*punch_holes=*/false);
  ASSERT_NO_FATAL_FAILURE(MakeVictim("victim", 8 * kMiB));
  ASSERT_OK(pool_->Create("d", 512 * kMiB, 16384).status());
  ASSERT_OK(pool_->Write("d", 0, DataOf(0)));
  ASSERT_OK(pool_->Flush("d").status());
  accepted_bytes_ = kChunk;
  disk_->Fill();
  EXPECT_EQ(disk_->free_bytes() / kChunk, 0u);
  // Some are accepted, for all that is known: these wait. Then no more are.
  const absl::Status refused = WriteUntilRefused();
  EXPECT_CODE(refused, kResourceExhausted);
  EXPECT_EQ(ReasonOf(refused), "POOL_FULL");
  EXPECT_LE(accepted_bytes_, 64 * kMiB);
  ASSERT_OK(pool_->Destroy("victim").status());
  EXPECT_TRUE(
      Within(std::chrono::seconds(60), [&] { return (*pool_)->space().freeing_bytes == 0; }));
  EXPECT_OK((*pool_)->health());
  ExpectAllAccepted();
  disk_->RemoveFiller();
  ASSERT_OK(pool_->Flush("d").status());
  EXPECT_TRUE(Within(std::chrono::seconds(60), [&] {
    return pool_->Write("d", accepted_bytes_, DataOf(accepted_bytes_)).ok();
  }));
  accepted_bytes_ += kChunk;
  ASSERT_OK(pool_->Flush("d").status());
  EXPECT_EQ((*pool_)->stats().alarms[Alarm::kHostFull], 0u);
  EXPECT_EQ((*pool_)->stats().alarms[Alarm::kPoolReserveReached], 0u);
  pool_->Reopen();
  ExpectAllAccepted();
}

// Creates datasets on a full disk, each with a record of more than 2 KiB, until some are not
// acknowledged in time. What is in flight when the host is full waits; it must not get the pool
// suspended.
class FullMetadataTest : public FullDiskTest {
 protected:
  void CreateUntilItStops() {
    while (pending_.empty() && acknowledged_.size() < 20000) CreateSome();
    EXPECT_FALSE(pending_.empty());
    std::cout << acknowledged_.size() << " datasets were acknowledged on a full disk\n";
  }
  void ExpectAllAcknowledged() {
    for (const std::string& name : acknowledged_) {
      ASSERT_OK((*pool_)->GetDataset(name).status()) << name;
    }
  }

  struct Creation {
    std::string name;
    Await<absl::StatusOr<Outcome>> reply;
  };
  std::vector<std::string> acknowledged_;
  std::vector<Creation> pending_;  // no answer yet, or an error

 private:
  void CreateSome() {
    std::vector<Creation> batch(20);
    for (Creation& creation : batch) {
      creation.name = "m/" + std::to_string(acknowledged_.size() + (&creation - batch.data()));
      CreateDatasetArgs args;
      args.name = creation.name;
      args.size_bytes = 1 << 20;
      for (int i = 0; i < 8; ++i) args.labels["k" + std::to_string(i)] = std::string(250, 'l');
      (*pool_)->CreateDataset(std::move(args), std::nullopt, creation.reply.Callback());
    }
    for (Creation& creation : batch) {
      const auto patience = std::chrono::seconds(pending_.empty() ? 3 : 0);
      const bool ready = Within(patience, [&] { return creation.reply.Ready(); });
      if (ready && creation.reply.Wait().ok()) {
        acknowledged_.push_back(creation.name);
      } else {
        pending_.push_back(std::move(creation));
      }
    }
  }
};

TEST_P(FullMetadataTest, ReserveKeepsAFullDiskOutOfTheCommit) {
  OpenPool(/*punch_holes=*/false);
  ASSERT_OK(pool_->Create("first").status());  // the first txg has the metadata allocated ahead
  disk_->Fill();
  CreateUntilItStops();
  EXPECT_OK((*pool_)->health());
  for (const Creation& creation : pending_) EXPECT_FALSE(creation.reply.Ready());
  EXPECT_EQ((*pool_)->stats().alarms[Alarm::kPoolReserveReached], 1u);
  // The reserve is there for these.
  ASSERT_OK(pool_->Destroy("first").status());
  DestroyDatasetsArgs all;
  all.prefix = "m";
  ASSERT_OK(pool_->Call(&Pool::DestroyDatasets, std::move(all)).status());
  EXPECT_OK((*pool_)->health());
  for (const Creation& creation : pending_) EXPECT_FALSE(creation.reply.Ready());
  disk_->RemoveFiller();
  for (Creation& creation : pending_) EXPECT_OK(creation.reply.Wait().status());
  EXPECT_OK(pool_->Create("after").status());
  EXPECT_EQ((*pool_)->stats().alarms[Alarm::kPoolReserveReached], 0u);
}

// What the reserve is for: the same, while the host only pretends to allocate.
TEST_P(FullMetadataTest, WithoutTheReserveACommitFailsHalfWayAndThePoolStops) {
  HostFault pretend;
  pretend.path_part = "/meta/";
  pretend.calls = {HostCall::kAllocate};
  pretend.at = 1;
  pretend.for_ever = true;
  pretend.way = HostFault::Way::kPretend;
  SetHostFault(pretend);
  OpenPool(/*punch_holes=*/false);
  ASSERT_OK(pool_->Create("first").status());  // the first txg has the metadata allocated ahead
  disk_->Fill();
  CreateUntilItStops();
  const absl::Status health = (*pool_)->health();
  EXPECT_EQ(ReasonOf(health), "POOL_SUSPENDED");
  EXPECT_THAT(std::string(health.message()), ::testing::HasSubstr("commit"));
  std::cout << health << '\n';
  EXPECT_EQ((*pool_)->stats().alarms[Alarm::kPoolSuspended], 1u);
  // Even so nothing acknowledged is lost.
  ExpectAllAcknowledged();
  HealHost();
  disk_->RemoveFiller();
  pool_->Reopen();
  EXPECT_OK((*pool_)->health());
  ExpectAllAcknowledged();
}

std::string KindName(const ::testing::TestParamInfo<SmallDisk::Kind>& info) {
  return info.param == SmallDisk::Kind::kTmpfs ? "Tmpfs" : "Ext4";
}

INSTANTIATE_TEST_SUITE_P(Disks, FullDiskTest,
                         ::testing::Values(SmallDisk::Kind::kTmpfs, SmallDisk::Kind::kExt4),
                         KindName);
INSTANTIATE_TEST_SUITE_P(Disks, FullMetadataTest,
                         ::testing::Values(SmallDisk::Kind::kTmpfs, SmallDisk::Kind::kExt4),
                         KindName);

}  // namespace
}  // namespace cowshed::engine

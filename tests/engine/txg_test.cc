// SPDX-License-Identifier: Apache-2.0
//
// What a txg promises to those who share it: one commit for all, all or nothing for each, and an
// order in which accepted data comes before the lifecycle calls of its txg.
#include "engine/txg.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/failpoints.h"
#include "tests/engine/held_sync.h"
#include "tests/support/temp_pool.h"
#include "tests/support/testing.h"

namespace cowshed::engine {
namespace {

using Reply = Await<absl::StatusOr<Outcome>>;
using Flushed = Await<absl::StatusOr<Txg>>;

std::string ReasonOf(const absl::Status& status) {
  const auto details = GetErrorDetails(status);
  return details.has_value() ? details->reason : std::string(status.ToString());
}

class TxgTest : public ::testing::Test {
 protected:
  // The background would have txgs of its own.
  TxgTest() : pool_([](PoolOptions* options) { options->background_work = false; }) {}
  void TearDown() override { Failpoints::DisarmAll(); }

  static std::string Fill(char byte, uint64_t blocks = 4) {
    return std::string(blocks * 4096, byte);
  }
  void StartCreate(const std::string& name, Reply& reply) {
    CreateDatasetArgs args;
    args.name = name;
    args.size_bytes = 1 << 20;
    args.block_bytes = 4096;
    pool_->CreateDataset(std::move(args), std::nullopt, reply.Callback());
  }
  void StartSnapshot(const std::string& name, Reply& reply) {
    CreateSnapshotsArgs args;
    args.names = {name};
    pool_->CreateSnapshots(std::move(args), std::nullopt, reply.Callback());
  }
  void WriteAndFlush(const std::string& name, uint64_t offset, const std::string& data) {
    ASSERT_OK(pool_.Write(name, offset, data));
    ASSERT_OK(pool_.Flush(name).status());
  }
  std::shared_ptr<Volume> OpenVolume(const std::string& name) {
    return ValueOf(pool_->OpenVolume(name, ""));
  }
  static absl::Status WriteTo(Volume& volume, uint64_t offset, const std::string& data) {
    return volume.Write(offset, std::as_bytes(std::span(data)));
  }
  static absl::StatusOr<std::string> ReadFrom(Volume& volume, uint64_t offset, uint64_t length) {
    std::string data(length, '?');
    const absl::Status status = volume.Read(offset, std::as_writable_bytes(std::span(data)));
    if (!status.ok()) return status;
    return data;
  }

  TempPool pool_;
};

TEST_F(TxgTest, WaitingCallsShareOneCommit) {
  std::vector<Reply> replies(200);
  Txg held_txg = 0;
  {
    HeldSync held(pool_);
    for (size_t i = 0; i < replies.size(); ++i) StartCreate("d" + std::to_string(i), replies[i]);
    held_txg = held.Release();
  }
  for (Reply& reply : replies) EXPECT_EQ(ValueOf(reply.Wait()).txg, held_txg + 1);
}

TEST_F(TxgTest, FlushesShareOneCommitWithCalls) {
  ASSERT_OK(pool_.Create("a").status());
  ASSERT_OK(pool_.Create("b").status());
  HeldSync held(pool_);
  ASSERT_OK(pool_.Write("a", 0, Fill('a')));
  ASSERT_OK(pool_.Write("b", 0, Fill('b')));
  Flushed a;
  Flushed b;
  Reply created;
  OpenVolume("a")->Flush(a.Callback());
  OpenVolume("b")->Flush(b.Callback());
  StartCreate("c", created);
  const Txg next = held.Release() + 1;
  EXPECT_EQ(ValueOf(a.Wait()), next);
  EXPECT_EQ(ValueOf(b.Wait()), next);
  EXPECT_EQ(ValueOf(created.Wait()).txg, next);
}

// A task that failed half-way was taken for a refused one, and half of it committed, if every table
// it had changed was dirty already from the task before it in the txg.
TEST_F(TxgTest, TaskThatFailsHalfWayLeavesNoTrace) {
  int redone = 0;
  for (int put = 1; put < 40; ++put) {  // 0 is the pilot's last, and fails its commit
    const std::string tag = std::to_string(put);
    Reply first;
    Reply second;
    Txg held_txg = 0;
    {
      HeldSync held(pool_, "pilot" + tag);
      StartCreate("first" + tag, first);
      StartCreate("second" + tag, second);
      // The pilot's own last puts come before those of the next txg.
      ASSERT_OK(Failpoints::Arm("meta.put=error:count=1:skip=" + tag));
      held_txg = held.Release();
    }
    const absl::StatusOr<Outcome> results[] = {first.Wait(), second.Wait()};
    Failpoints::Disarm("meta.put");
    if (!pool_->health().ok()) {
      // It was the last put of the txg, after the fsync: no way back.
      pool_.Reopen();
      for (const auto& result : results) EXPECT_CODE(result, kUnavailable);
    }
    const std::string names[] = {"first" + tag, "second" + tag};
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(pool_->GetDataset(names[i]).ok(), results[i].ok()) << names[i];
    }
    // The other one is done over, under another number.
    if (results[0].ok() != results[1].ok()) {
      ++redone;
      EXPECT_EQ(results[results[0].ok() ? 0 : 1]->txg, held_txg + 2);
    }
    pool_.ExpectClean();
  }
  EXPECT_GE(redone, 4);
}

// The same for a task that had placed blocks and changed no metadata yet: the sectors were leaked.
TEST_F(TxgTest, TaskThatFailsAfterPlacingBlocksLeaksNoSector) {
  ASSERT_OK(pool_.Create("d", 64 * 4096, 16384).status());
  WriteAndFlush("d", 0, Fill('x', 64));
  int failed = 0;
  for (int read = 0; read < 8; ++read) {
    pool_.Reopen([](PoolOptions* options) { options->node_cache_bytes = 0; });
    ASSERT_OK(Failpoints::Arm("file.read=eio:count=1:skip=" + std::to_string(read)));
    // The new end lies within a block: its tail is written anew.
    const absl::StatusOr<Outcome> resized = pool_.Resize("d", 40 * 4096 + 100);
    Failpoints::Disarm("file.read");
    failed += resized.ok() ? 0 : 1;
    pool_.ExpectClean();
    ASSERT_OK(pool_.Resize("d", 64 * 4096).status());
    WriteAndFlush("d", 0, Fill('x', 64));
  }
  EXPECT_GE(failed, 1);
}

// Failures of later attempts were taken for that of a task, and the txg was done over for ever.
TEST_F(TxgTest, TxgThatKeepsFailingSuspendsThePool) {
  ASSERT_OK(pool_.Create("d").status());
  int suspended = 0;
  for (int put = 1; put < 25; ++put) {
    const std::string tag = std::to_string(put);
    Flushed flushed;
    Reply created;
    {
      HeldSync held(pool_, "pilot" + tag);
      ASSERT_OK(pool_.Write("d", 0, Fill('x')));
      OpenVolume("d")->Flush(flushed.Callback());
      StartCreate("new" + tag, created);
      ASSERT_OK(Failpoints::Arm("meta.put=error:skip=" + tag));
      held.Release();
    }
    const bool durable = flushed.Wait().ok();
    const bool exists = created.Wait().ok();
    Failpoints::DisarmAll();
    suspended += pool_->health().ok() ? 0 : 1;
    EXPECT_TRUE(durable || !pool_->health().ok());
    pool_.Reopen();
    EXPECT_EQ(pool_->GetDataset("new" + tag).ok(), exists);
  }
  EXPECT_GE(suspended, 10);
}

TEST_F(TxgTest, SecondSnapshotOfADatasetIsInTheNextTxg) {
  ASSERT_OK(pool_.Create("d").status());
  HeldSync held(pool_);
  Reply one;
  Reply two;
  StartSnapshot("d@one", one);
  StartSnapshot("d@two", two);
  const Txg next = held.Release() + 1;
  EXPECT_EQ(ValueOf(one.Wait()).txg, next);
  EXPECT_EQ(ValueOf(two.Wait()).txg, next + 1);
}

TEST_F(TxgTest, ShrinkAfterSnapshotIsInTheNextTxg) {
  ASSERT_OK(pool_.Create("d").status());
  WriteAndFlush("d", 0, Fill('x', 16));
  HeldSync held(pool_);
  Reply snapshot;
  Reply resize;
  StartSnapshot("d@s", snapshot);
  UpdateDatasetArgs args;
  args.name = "d";
  args.size_bytes = 5000;
  pool_->UpdateDataset(std::move(args), std::nullopt, resize.Callback());
  const Txg next = held.Release() + 1;
  EXPECT_EQ(ValueOf(snapshot.Wait()).txg, next);
  EXPECT_EQ(ValueOf(resize.Wait()).txg, next + 1);
  EXPECT_EQ(ValueOf(pool_.Read("d@s", 0, 16 * 4096)), Fill('x', 16));
}

TEST_F(TxgTest, ClonesOfOneHeadInOneTxgShareItsHiddenSnapshot) {
  ASSERT_OK(pool_.Create("d").status());
  WriteAndFlush("d", 0, Fill('x'));
  std::vector<Reply> clones(3);
  Txg next = 0;
  {
    HeldSync held(pool_);
    for (size_t i = 0; i < clones.size(); ++i) {
      CloneDatasetArgs args;
      args.source = "d";
      args.name = "clone" + std::to_string(i);
      pool_->CloneDataset(std::move(args), std::nullopt, clones[i].Callback());
    }
    next = held.Release() + 1;
  }
  for (Reply& clone : clones) EXPECT_EQ(ValueOf(clone.Wait()).txg, next);
  EXPECT_EQ(ValueOf(pool_.Read("clone2", 0, 4 * 4096)), Fill('x'));
}

TEST_F(TxgTest, WriteBeforeASnapshotCallIsInTheSnapshot) {
  ASSERT_OK(pool_.Create("d").status());
  HeldSync held(pool_);
  ASSERT_OK(pool_.Write("d", 0, Fill('a')));
  Reply snapshot;
  StartSnapshot("d@s", snapshot);
  held.Release();
  ASSERT_OK(snapshot.Wait().status());
  EXPECT_EQ(ValueOf(pool_.Read("d@s", 0, 4 * 4096)), Fill('a'));
}

TEST_F(TxgTest, SnapshotReadsTheSameWhateverTheHeadDoes) {
  pool_.Reopen([](PoolOptions* options) { options->background_work = true; });
  ASSERT_OK(pool_.Create("d").status());
  WriteAndFlush("d", 0, Fill('s', 64));
  ASSERT_OK(pool_.Snapshot("d@s").status());
  const std::shared_ptr<Volume> snapshot = OpenVolume("d@s");
  std::atomic<bool> stop{false};
  std::atomic<int> reads{0};
  std::thread reader([&] {
    while (!stop) {
      EXPECT_EQ(ValueOf(ReadFrom(*snapshot, 0, 64 * 4096)), Fill('s', 64));
      ++reads;
    }
  });
  for (int round = 0; round < 30 || reads < 30; ++round) {
    WriteAndFlush("d", (round % 60) * 4096, Fill(static_cast<char>('a' + round % 26)));
    if (round % 10 == 3) ASSERT_OK(pool_.Discard("d", 0, 32 * 4096));
    if (round % 10 == 6) ASSERT_OK(pool_.Resize("d", 3 * 4096 + 5).status());
    if (round % 10 == 6) ASSERT_OK(pool_.Resize("d", 1 << 20).status());
    if (round % 10 == 9) ASSERT_OK(pool_.Rollback("d").status());
  }
  stop = true;
  reader.join();
}

TEST_F(TxgTest, FlushAfterARollbackSaysThatWritesWentWithIt) {
  ASSERT_OK(pool_.Create("d").status());
  WriteAndFlush("d", 0, Fill('s'));
  ASSERT_OK(pool_.Snapshot("d@s").status());
  const std::shared_ptr<Volume> volume = OpenVolume("d");
  ASSERT_OK(WriteTo(*volume, 0, Fill('x')));
  ASSERT_OK(pool_.Rollback("d").status());
  Flushed flushed;
  volume->Flush(flushed.Callback());
  const absl::Status status = flushed.Wait().status();
  EXPECT_CODE(status, kAborted);
  EXPECT_EQ(ReasonOf(status), "DATASET_CHANGED");
  EXPECT_EQ(ValueOf(ReadFrom(*volume, 0, 4 * 4096)), Fill('s'));
  // It says so once: the volume goes on.
  ASSERT_OK(WriteTo(*volume, 0, Fill('y')));
  Flushed again;
  volume->Flush(again.Callback());
  EXPECT_OK(again.Wait().status());
}

TEST_F(TxgTest, DestructionEndsOpenVolumes) {
  ASSERT_OK(pool_.Create("d").status());
  WriteAndFlush("d", 0, Fill('s'));
  ASSERT_OK(pool_.Snapshot("d@s").status());
  const std::shared_ptr<Volume> head = OpenVolume("d");
  const std::shared_ptr<Volume> snapshot = OpenVolume("d@s");
  ASSERT_OK(WriteTo(*head, 0, Fill('x')));
  ASSERT_OK(pool_.Destroy("d", /*recursive=*/true).status());
  Flushed flushed;
  head->Flush(flushed.Callback());
  for (const absl::Status& status :
       {ReadFrom(*head, 0, 4096).status(), WriteTo(*head, 0, Fill('y')), flushed.Wait().status(),
        ReadFrom(*snapshot, 0, 4096).status()}) {
    EXPECT_CODE(status, kAborted);
    EXPECT_EQ(ReasonOf(status), "DATASET_DESTROYED");
  }
  // A successor of the same name is another dataset.
  ASSERT_OK(pool_.Create("d").status());
  EXPECT_EQ(ReasonOf(WriteTo(*head, 0, Fill('y'))), "DATASET_DESTROYED");
  EXPECT_EQ(ValueOf(pool_.Read("d", 0, 4 * 4096)), Fill('\0'));
}

TEST_F(TxgTest, DestructionOfASnapshotAloneEndsItsVolume) {
  ASSERT_OK(pool_.Create("d").status());
  WriteAndFlush("d", 0, Fill('s'));
  ASSERT_OK(pool_.Snapshot("d@s").status());
  const std::shared_ptr<Volume> snapshot = OpenVolume("d@s");
  ASSERT_OK(pool_.DestroySnapshot("d@s").status());
  EXPECT_EQ(ReasonOf(ReadFrom(*snapshot, 0, 4096).status()), "DATASET_DESTROYED");
}

}  // namespace
}  // namespace cowshed::engine

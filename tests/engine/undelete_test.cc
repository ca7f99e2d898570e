// SPDX-License-Identifier: Apache-2.0
//
// The undelete window: what comes back and what does not, whatever happens around it meanwhile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <span>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/failpoints.h"
#include "engine/base/strings.h"
#include "tests/support/temp_pool.h"
#include "tests/support/testing.h"

namespace cowshed::engine {
namespace {

constexpr int64_t kHourMs = 3600000;

class UndeleteTest : public ::testing::Test {
 protected:
  UndeleteTest()
      : pool_([](PoolOptions* options) {
          options->capacity_bytes = uint64_t{256} << 20;
          options->background_work = false;
          options->bulk_names_per_txg = 7;
        }) {}
  void SetUp() override { empty_bytes_ = pool_->space().allocated_bytes; }
  void TearDown() override { Failpoints::DisarmAll(); }

  static std::string Fill(char byte, uint64_t blocks = 4) {
    return std::string(blocks * 4096, byte);
  }
  void Make(const std::string& name, char byte, uint64_t blocks = 4) {
    ASSERT_OK(pool_.Create(name).status());
    WriteAndFlush(name, byte, blocks);
  }
  void WriteAndFlush(const std::string& name, char byte, uint64_t blocks = 4) {
    ASSERT_OK(pool_.Write(name, 0, Fill(byte, blocks)));
    ASSERT_OK(pool_.Flush(name).status());
  }
  absl::StatusOr<Outcome> DestroyKeeping(DestroyDatasetsArgs args, int64_t keep_ms = kHourMs) {
    args.recursive = true;
    args.reclaim_after_ms = keep_ms;
    return pool_.Call(&Pool::DestroyDatasets, std::move(args));
  }
  std::string Keep(const std::vector<std::string>& names, int64_t keep_ms = kHourMs) {
    DestroyDatasetsArgs args;
    args.names = names;
    return ValueOf(DestroyKeeping(std::move(args), keep_ms)).operation->name;
  }
  std::string KeepPrefix(const std::string& prefix, int64_t keep_ms = kHourMs) {
    DestroyDatasetsArgs args;
    args.prefix = prefix;
    return ValueOf(DestroyKeeping(std::move(args), keep_ms)).operation->name;
  }
  absl::StatusOr<Outcome> Undestroy(const std::string& operation) {
    return pool_.Call(&Pool::Undestroy, operation);
  }
  OperationInfo Operation(const std::string& name) { return ValueOf(pool_->GetOperation(name)); }
  std::string Content(const std::string& name, uint64_t blocks = 4) {
    return ValueOf(pool_.Read(name, 0, blocks * 4096));
  }
  std::vector<std::string> Names(const std::string& origin = "") {
    std::vector<std::string> names;
    ListArgs args;
    args.page_size = 1000;
    args.origin = origin;
    for (const DatasetInfo& info : ValueOf(pool_->ListDatasets(args)).items) {
      names.push_back(info.name);
    }
    return names;
  }
  void ExpectReason(const absl::Status& status, absl::StatusCode code, const std::string& reason) {
    EXPECT_EQ(status.code(), code) << status;
    const auto details = GetErrorDetails(status);
    EXPECT_EQ(details.has_value() ? details->reason : "none", reason) << status;
  }
  void ExpectEmpty() {
    pool_.ExpectClean();
    EXPECT_EQ(pool_->space().allocated_bytes, empty_bytes_);
    EXPECT_EQ(pool_->space().freeing_bytes, 0u);
    EXPECT_EQ(pool_->space().waiting_bytes, 0u);
    EXPECT_EQ(pool_->reclaim().waiting_items, 0u);
    EXPECT_EQ(pool_->reclaim().next_window_end_ms, 0);
  }

  TempPool pool_;
  uint64_t empty_bytes_ = 0;
};

TEST_F(UndeleteTest, ComesBackWithUidLabelsSnapshotsAndBytes) {
  CreateDatasetArgs create;
  create.name = "a/d";
  create.size_bytes = 1 << 20;
  create.block_bytes = 4096;
  create.labels = {{"team", "db"}};
  create.expire_time_ms = pool_.now_ms() + 100 * kHourMs;
  ASSERT_OK(pool_.Call(&Pool::CreateDataset, create).status());
  WriteAndFlush("a/d", 'a');
  ASSERT_OK(pool_.Snapshot("a/d@s").status());
  WriteAndFlush("a/d", 'b');
  const DatasetInfo before = ValueOf(pool_->GetDataset("a/d"));
  const std::string operation = Keep({"a/d"});
  EXPECT_EQ(Names(), std::vector<std::string>());
  EXPECT_CODE(pool_->GetSnapshot("a/d@s"), kNotFound);
  ASSERT_OK(pool_->DrainBackground());
  EXPECT_EQ(Operation(operation).state, OperationState::kWaiting);
  EXPECT_EQ(Operation(operation).wait_until_ms, pool_.now_ms() + kHourMs);
  EXPECT_FALSE(Operation(operation).done());
  EXPECT_EQ(pool_->space().waiting_bytes, before.used_bytes);
  EXPECT_EQ(pool_->space().freeing_bytes, 0u);
  EXPECT_EQ(pool_->stats().datasets, 0u);
  pool_.ExpectClean();
  pool_.Reopen();

  const Outcome outcome = ValueOf(Undestroy(operation));
  EXPECT_EQ(outcome.count, 1u);
  EXPECT_EQ(outcome.datasets[0].name, "a/d");
  EXPECT_EQ(Operation(operation).state, OperationState::kUndone);
  EXPECT_TRUE(Operation(operation).done());
  const DatasetInfo after = ValueOf(pool_->GetDataset("a/d"));
  EXPECT_EQ(after.uid, before.uid);
  EXPECT_EQ(after.labels, before.labels);
  EXPECT_EQ(after.used_bytes, before.used_bytes);
  EXPECT_EQ(after.snapshot_count, 1u);
  EXPECT_EQ(after.expire_time_ms, before.expire_time_ms);
  EXPECT_NE(after.etag, before.etag);
  EXPECT_EQ(Content("a/d"), Fill('b'));
  EXPECT_EQ(Content("a/d@s"), Fill('a'));
  EXPECT_EQ(pool_->space().waiting_bytes, 0u);
  pool_.Advance(2 * kHourMs);
  pool_.ExpectClean();
  WriteAndFlush("a/d", 'c');
  ASSERT_OK(pool_.Destroy("a/d", /*recursive=*/true).status());
  ExpectEmpty();
}

TEST_F(UndeleteTest, WindowEndsByThePoolsClockOverARestart) {
  Make("d", 'a');
  const std::string operation = Keep({"d"});
  pool_.Advance(kHourMs - 1);
  ASSERT_OK(pool_->DrainBackground());
  EXPECT_EQ(Operation(operation).state, OperationState::kWaiting);
  pool_.Crash();
  pool_.Advance(1);
  ASSERT_OK(pool_->DrainBackground());
  EXPECT_EQ(Operation(operation).state, OperationState::kSucceeded);
  EXPECT_EQ(Operation(operation).done_bytes, Operation(operation).total_bytes);
  EXPECT_EQ(pool_->stats().window_ends[WindowEnd::kExpired], 1u);
  ExpectReason(Undestroy(operation).status(), absl::StatusCode::kFailedPrecondition,
               "RECLAIM_BEGUN");
  ExpectEmpty();
}

TEST_F(UndeleteTest, TakenNameRefusesAllOfIt) {
  Make("d", 'a');
  Make("e", 'e');
  const std::string operation = Keep({"d", "e"});
  Make("e", 'n');
  ExpectReason(Undestroy(operation).status(), absl::StatusCode::kAlreadyExists, "DATASET_EXISTS");
  EXPECT_EQ(Names(), std::vector<std::string>{"e"});
  EXPECT_EQ(Operation(operation).state, OperationState::kWaiting);
  ASSERT_OK(pool_.Rename("e", "f").status());
  ASSERT_OK(Undestroy(operation).status());
  EXPECT_EQ(Content("d"), Fill('a'));
  EXPECT_EQ(Content("e"), Fill('e'));
  EXPECT_EQ(Content("f"), Fill('n'));
  ExpectReason(Undestroy(operation).status(), absl::StatusCode::kFailedPrecondition,
               "RECLAIM_BEGUN");
  pool_.ExpectClean();
}

TEST_F(UndeleteTest, WhatNeverWaitedOrDoesNotExistIsRefused) {
  Make("d", 'a');
  const Outcome plain = ValueOf(pool_.Destroy("d"));
  ExpectReason(Undestroy(plain.operation->name).status(), absl::StatusCode::kFailedPrecondition,
               "RECLAIM_BEGUN");
  ExpectReason(Undestroy("operations/1").status(), absl::StatusCode::kNotFound,
               "OPERATION_NOT_FOUND");
  ExpectReason(Undestroy("").status(), absl::StatusCode::kNotFound, "OPERATION_NOT_FOUND");
  DestroyDatasetsArgs args;
  args.names = {"d"};
  ExpectReason(DestroyKeeping(args, kMaxReclaimAfterMs + 1).status(),
               absl::StatusCode::kInvalidArgument, "INVALID_FIELD");
  ExpectReason(DestroyKeeping(args, -1).status(), absl::StatusCode::kInvalidArgument,
               "INVALID_FIELD");
}

TEST_F(UndeleteTest, CloneNeedsItsOriginBackFirst) {
  Make("base", 'a');
  ASSERT_OK(pool_.Snapshot("base@s").status());
  ASSERT_OK(pool_.Clone("base@s", "clone").status());
  WriteAndFlush("clone", 'c', 2);
  const std::string clone = Keep({"clone"});
  EXPECT_EQ(ValueOf(pool_->GetSnapshot("base@s")).clone_count, 0u);
  const std::string base = Keep({"base"});
  const absl::Status refused = Undestroy(clone).status();
  ExpectReason(refused, absl::StatusCode::kFailedPrecondition, "ORIGIN_DESTROYED");
  EXPECT_EQ(GetErrorDetails(refused)->metadata["operation"], base);
  ASSERT_OK(Undestroy(base).status());
  ASSERT_OK(Undestroy(clone).status());
  EXPECT_EQ(Content("clone"), Fill('c', 2) + Fill('a', 2));
  EXPECT_EQ(Names("base@s"), std::vector<std::string>{"clone"});
  EXPECT_EQ(ValueOf(pool_->GetSnapshot("base@s")).clone_count, 1u);
  EXPECT_CODE(pool_.Destroy("base", /*recursive=*/true), kFailedPrecondition);
  pool_.ExpectClean();
}

TEST_F(UndeleteTest, OriginDestroyedForGoodGoesOnlyAfterTheCloneThatWaits) {
  Make("base", 'a', 100);
  ASSERT_OK(pool_.Snapshot("base@s").status());
  ASSERT_OK(pool_.Clone("base@s", "clone").status());
  WriteAndFlush("clone", 'c', 10);
  const std::string clone = Keep({"clone"});
  const Outcome base = ValueOf(pool_.Destroy("base", /*recursive=*/true));
  pool_.ExpectClean();
  EXPECT_EQ(Operation(base.operation->name).state, OperationState::kPending);
  EXPECT_GT(pool_->space().waiting_bytes, 100u * 4096);
  ExpectReason(Undestroy(clone).status(), absl::StatusCode::kFailedPrecondition,
               "ORIGIN_DESTROYED");
  pool_.Advance(kHourMs);
  ExpectEmpty();
  EXPECT_EQ(Operation(base.operation->name).state, OperationState::kSucceeded);
}

TEST_F(UndeleteTest, CascadeComesBackTogether) {
  Make("base", 'a');
  ASSERT_OK(pool_.Snapshot("base@s").status());
  ASSERT_OK(pool_.Clone("base@s", "c1").status());
  ASSERT_OK(pool_.Snapshot("c1@t").status());
  ASSERT_OK(pool_.Clone("c1@t", "c2").status());
  WriteAndFlush("c2", 'z', 1);
  DestroyDatasetsArgs args;
  args.names = {"base"};
  args.cascade = true;
  const std::string operation = ValueOf(DestroyKeeping(args)).operation->name;
  pool_.ExpectClean();
  EXPECT_EQ(Names(), std::vector<std::string>());
  EXPECT_EQ(ValueOf(Undestroy(operation)).count, 3u);
  EXPECT_EQ(Names(), (std::vector<std::string>{"base", "c1", "c2"}));
  EXPECT_EQ(Names("c1@t"), std::vector<std::string>{"c2"});
  EXPECT_EQ(Content("c2"), Fill('z', 1) + Fill('a', 3));
  pool_.ExpectClean();
  const std::string again = ValueOf(DestroyKeeping(args)).operation->name;
  pool_.Advance(kHourMs);
  ExpectEmpty();
  EXPECT_EQ(Operation(again).state, OperationState::kSucceeded);
}

TEST_F(UndeleteTest, HiddenOriginStaysForTheCloneThatWaits) {
  Make("base", 'a', 50);
  ASSERT_OK(pool_.Clone("base", "clone").status());
  WriteAndFlush("base", 'b', 50);
  const std::string operation = Keep({"clone"});
  pool_.ExpectClean();
  ASSERT_OK(Undestroy(operation).status());
  EXPECT_EQ(Content("clone", 50), Fill('a', 50));
  ASSERT_OK(pool_.Destroy("clone").status());
  ASSERT_OK(pool_.Destroy("base").status());
  ExpectEmpty();
}

TEST_F(UndeleteTest, DeferredSnapshotThatLostItsLastCloneMeanwhileGoesWhenItsDatasetIsBack) {
  // Nobody reaped it: its dataset was not visible when the clone went.
  Make("base", 'a', 20);
  ASSERT_OK(pool_.Snapshot("base@s").status());
  ASSERT_OK(pool_.Clone("base@s", "clone").status());
  ASSERT_OK(pool_.DestroySnapshot("base@s", /*defer=*/true).status());
  WriteAndFlush("base", 'b', 20);
  const std::string clone = Keep({"clone"}, kHourMs);
  const std::string base = Keep({"base"}, 2 * kHourMs);
  pool_.Advance(kHourMs);  // the clone goes for good
  pool_.ExpectClean();
  EXPECT_EQ(Operation(clone).state, OperationState::kSucceeded);
  ASSERT_OK(Undestroy(base).status());
  EXPECT_CODE(pool_->GetSnapshot("base@s"), kNotFound);
  EXPECT_EQ(Content("base", 20), Fill('b', 20));
  pool_.ExpectClean();
  ASSERT_OK(pool_.Destroy("base").status());
  ExpectEmpty();
}

TEST_F(UndeleteTest, BigPrefixWaitsAsOneDirectoryAndComesBackWhole) {
  Make("golden", 'g', 20);
  ASSERT_OK(pool_.Snapshot("golden@v").status());
  for (int i = 0; i < 30; ++i) {
    const std::string name = StrCat("ci/", i / 10, "/", i);
    if (i % 2 == 0) {
      ASSERT_OK(pool_.Clone("golden@v", name).status());
    } else {
      ASSERT_OK(pool_.Create(name).status());
    }
    ASSERT_OK(pool_.Write(name, 0, Fill(static_cast<char>('A' + i), 2)));
    if (i % 3 == 0) ASSERT_OK(pool_.Snapshot(name + "@s").status());
  }
  ASSERT_OK(pool_.Sync().status());
  Make("ci", 'x');
  const uint64_t datasets = pool_->stats().datasets;
  const uint64_t snapshots = pool_->stats().snapshots;
  const std::string operation = KeepPrefix("ci");
  EXPECT_EQ(Names(), std::vector<std::string>{"golden"});
  EXPECT_EQ(Names("golden@v"), std::vector<std::string>());
  EXPECT_EQ(ValueOf(pool_->GetSnapshot("golden@v")).clone_count, 0u);
  EXPECT_EQ(pool_->stats().datasets, 1u);
  EXPECT_EQ(pool_->stats().snapshots, 1u);
  EXPECT_EQ(pool_->reclaim().waiting_items, 31u);
  pool_.ExpectClean();
  pool_.Crash();
  // Something below the prefix is in the way, whatever its name.
  Make("ci/new", 'n');
  ExpectReason(Undestroy(operation).status(), absl::StatusCode::kAlreadyExists, "DATASET_EXISTS");
  ASSERT_OK(pool_.Rename("ci/new", "new").status());
  const Outcome outcome = ValueOf(Undestroy(operation));
  EXPECT_EQ(outcome.count, 31u);
  EXPECT_EQ(Names().size(), 33u);
  EXPECT_EQ(Names("golden@v").size(), 15u);
  EXPECT_EQ(pool_->stats().datasets, datasets + 1);
  EXPECT_EQ(pool_->stats().snapshots, snapshots);
  EXPECT_EQ(Content("ci"), Fill('x'));
  EXPECT_EQ(Content("ci/2/24", 2), Fill('A' + 24, 2));
  pool_.ExpectClean();
  const std::string again = KeepPrefix("ci");
  pool_.Advance(kHourMs);
  pool_.ExpectClean();
  EXPECT_EQ(Operation(again).state, OperationState::kSucceeded);
  EXPECT_EQ(pool_->space().waiting_bytes, 0u);
  EXPECT_EQ(Names(), (std::vector<std::string>{"golden", "new"}));
  ASSERT_OK(pool_.Destroy("new").status());
  ASSERT_OK(pool_.Destroy("golden", /*recursive=*/true).status());
  ExpectEmpty();
}

// A cascade took clones that waited below a big prefix along once more, and counted them out twice.
TEST_F(UndeleteTest, CascadeLeavesClonesOfAPrefixThatWaitsAlone) {
  Make("golden", 'g', 20);
  ASSERT_OK(pool_.Snapshot("golden@v").status());
  for (int i = 0; i < 10; ++i) ASSERT_OK(pool_.Clone("golden@v", StrCat("ci/", i)).status());
  ASSERT_OK(pool_.Clone("golden@v", "other").status());
  KeepPrefix("ci");
  const Outcome outcome = ValueOf(pool_.Destroy("golden", /*recursive=*/true, /*cascade=*/true));
  EXPECT_EQ(outcome.count, 2u);
  EXPECT_EQ(pool_->stats().datasets, 0u);
  EXPECT_EQ(pool_->reclaim().waiting_items, 11u);  // golden, too, until they have gone
  pool_.ExpectClean();
}

TEST_F(UndeleteTest, WritersOfAPrefixThatWaitsAreCutOff) {
  // A stream that had a dataset of the prefix open went on writing into it.
  for (int i = 0; i < 10; ++i) Make(StrCat("ci/", i), 'a');
  const auto volume = ValueOf(pool_->OpenVolume("ci/3", ""));
  const std::string operation = KeepPrefix("ci");
  const std::string data = Fill('b');
  EXPECT_CODE(volume->Write(0, std::as_bytes(std::span(data))), kAborted);
  ASSERT_OK(pool_.Sync().status());
  ASSERT_OK(Undestroy(operation).status());
  EXPECT_CODE(volume->Write(0, std::as_bytes(std::span(data))), kAborted);
  EXPECT_EQ(Content("ci/3"), Fill('a'));
  WriteAndFlush("ci/3", 'c');
  EXPECT_EQ(Content("ci/3"), Fill('c'));
  pool_.ExpectClean();
}

TEST_F(UndeleteTest, ExpiryThatPassesWhileWaitingIsVoid) {
  for (int i = 0; i < 10; ++i) Make(StrCat("ci/", i), 'a');
  Make("d", 'd');
  UpdateDatasetArgs update;
  for (const char* name : {"ci/4", "d"}) {
    update.name = name;
    update.expire_time_ms = pool_.now_ms() + 1000;
    ASSERT_OK(pool_.Call(&Pool::UpdateDataset, update).status());
  }
  const std::string prefix = KeepPrefix("ci");
  const std::string single = Keep({"d"});
  pool_.Advance(2000);
  pool_.ExpectClean();
  ASSERT_OK(Undestroy(prefix).status());
  ASSERT_OK(Undestroy(single).status());
  pool_.ExpectClean();
  EXPECT_EQ(ValueOf(pool_->GetDataset("ci/4")).expire_time_ms, 0);
  EXPECT_EQ(ValueOf(pool_->GetDataset("d")).expire_time_ms, 0);
}

TEST_F(UndeleteTest, TrimUnderWayGoesOnAfterwards) {
  pool_.Reopen([](PoolOptions* options) {
    options->discard_direct_blocks = 4;
    options->trim_pointers_per_txg = 8;
  });
  Make("d", 'a', 200);
  ASSERT_OK(Failpoints::Arm("reclaim.step=error"));  // nothing moves while the trim is started
  UpdateDatasetArgs shrink;
  shrink.name = "d";
  shrink.size_bytes = 10 * 4096;
  ASSERT_OK(pool_.Call(&Pool::UpdateDataset, shrink).status());
  EXPECT_EQ(ValueOf(pool_->GetDataset("d")).state, DatasetState::kTrimming);
  const std::string operation = Keep({"d"});
  Failpoints::DisarmAll();
  pool_.ExpectClean();
  ASSERT_OK(Undestroy(operation).status());
  pool_.ExpectClean();
  EXPECT_EQ(ValueOf(pool_->GetDataset("d")).state, DatasetState::kActive);
  EXPECT_EQ(ValueOf(pool_->GetDataset("d")).logical_bytes, 10u * 4096);
  ASSERT_OK(pool_.Destroy("d").status());
  ExpectEmpty();
}

// Whichever task comes first, the other finds nothing to do and changes nothing.
TEST_F(UndeleteTest, EndOfTheWindowThatComesSecondDoesNothing) {
  pool_.Reopen([](PoolOptions* options) { options->background_work = true; });
  Make("d", 'a');
  const std::string operation = Keep({"d"});
  ASSERT_OK(Failpoints::Arm("undelete.end=pause"));
  pool_.Advance(kHourMs);
  while (Failpoints::Hits("undelete.end") == 0) std::this_thread::yield();
  ASSERT_OK(Undestroy(operation).status());
  Failpoints::DisarmAll();
  pool_.ExpectClean();
  EXPECT_EQ(Operation(operation).state, OperationState::kUndone);
  EXPECT_EQ(Content("d"), Fill('a'));
  EXPECT_EQ(pool_->stats().window_ends[WindowEnd::kExpired], 0u);
}

TEST_F(UndeleteTest, UndestroyThatFailsHalfWayLeavesTheWindowOpen) {
  Make("d", 'a');
  const std::string operation = Keep({"d"});
  ASSERT_OK(Failpoints::Arm("undelete.undone=error:count=1"));
  EXPECT_CODE(Undestroy(operation), kInternal);
  pool_.ExpectClean();
  EXPECT_EQ(Operation(operation).state, OperationState::kWaiting);
  ASSERT_OK(Undestroy(operation).status());
  pool_.ExpectClean();
}

TEST_F(UndeleteTest, EndOfAWindowGoesOnAfterACrashInItsMiddle) {
  std::vector<std::string> names;
  for (int i = 0; i < 40; ++i) {
    names.push_back(StrCat("d", i));
    Make(names.back(), 'a');
  }
  const std::string operation = Keep(names);
  pool_.Advance(kHourMs);
  int rounds = 0;
  while (pool_->reclaim().waiting_items > 0) {
    ASSERT_LT(++rounds, 100);
    ASSERT_OK(Failpoints::Arm("undelete.ended=error:skip=1"));
    const absl::Status drained = pool_->DrainBackground();
    Failpoints::DisarmAll();
    pool_.Crash();
    const CheckReport report = ValueOf(pool_->Check());
    EXPECT_TRUE(report.ok()) << report.findings[0].message;
    if (drained.ok()) break;
    // Not even before the last of them has been let go.
    ExpectReason(Undestroy(operation).status(), absl::StatusCode::kFailedPrecondition,
                 "RECLAIM_BEGUN");
  }
  EXPECT_GE(rounds, 3);
  ExpectEmpty();
  EXPECT_EQ(Operation(operation).state, OperationState::kSucceeded);
}

TEST_F(UndeleteTest, OldestWindowsGiveWayWhenSpaceIsShort) {
  // Three windows of 60 MiB in a pool of 256 MiB.
  std::vector<std::string> operations;
  for (int i = 0; i < 3; ++i) {
    const std::string name = StrCat("d", i);
    ASSERT_OK(pool_.Create(name, 64 << 20).status());
    const std::string data(1 << 20, 'a');
    for (int at = 0; at < 60; ++at) ASSERT_OK(pool_.Write(name, at << 20, data));
    ASSERT_OK(pool_.Flush(name).status());
    operations.push_back(Keep({name}, (10 - i) * kHourMs));  // the oldest ends last
    ASSERT_OK(pool_->DrainBackground());
  }
  EXPECT_EQ(Operation(operations[0]).state, OperationState::kWaiting);
  ASSERT_OK(pool_.Create("e", 64 << 20).status());
  const std::string data(1 << 20, 'e');
  for (int at = 0; at < 58; ++at) {
    ASSERT_OK(pool_.Write("e", at << 20, data));
    if (at % 8 == 7) ASSERT_OK(pool_.Flush("e").status());
    ASSERT_OK(pool_->DrainBackground());
  }
  EXPECT_EQ(Operation(operations[0]).state, OperationState::kSucceeded);
  EXPECT_EQ(Operation(operations[1]).state, OperationState::kWaiting);
  EXPECT_EQ(Operation(operations[2]).state, OperationState::kWaiting);
  EXPECT_EQ(pool_->stats().window_ends[WindowEnd::kSpace], 1u);
  ASSERT_OK(Undestroy(operations[2]).status());
  pool_.ExpectClean();
}

TEST_F(UndeleteTest, WriterThatWaitsForSpaceEndsWindows) {
  pool_.Reopen([](PoolOptions* options) { options->background_work = true; });
  ASSERT_OK(pool_.Create("d", 256 << 20).status());
  const std::string data(1 << 20, 'a');
  absl::Status status;
  uint64_t written = 0;
  while (status.ok()) {
    status = pool_.Write("d", written << 20, data);
    if (status.ok()) ++written;
  }
  EXPECT_CODE(status, kResourceExhausted);
  ASSERT_OK(pool_.Flush("d").status());
  const std::string operation = Keep({"d"});
  ASSERT_OK(pool_.Create("e", 256 << 20).status());
  for (uint64_t i = 0; i < written; ++i) ASSERT_OK(pool_.Write("e", i << 20, data));
  EXPECT_TRUE(Operation(operation).state != OperationState::kWaiting);
  ASSERT_OK(pool_.Flush("e").status());
  pool_.ExpectClean();
}

}  // namespace
}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// Each race of a rebuild with each change of the lineage: the rebuilder is held between what it has
// prepared and the task that applies it.
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <tuple>

#include "engine/base/failpoints.h"
#include "engine/base/status_macros.h"
#include "tests/engine/rebuilder_fixture.h"
#include "tests/support/temp_pool.h"
#include "tests/support/testing.h"

namespace cowshed::engine {
namespace {

enum class Change { kDestroy, kDestroyPrefix, kReplace, kRollback, kReset, kPromote, kSnapshot };

class RebuildRaceTest : public RebuilderTest,
                        public ::testing::WithParamInterface<std::tuple<std::string, Change>> {
 protected:
  // The dataset whose list is rebuilt is r: a clone with snapshots and a clone of its own.
  void MakeRebuilt() {
    MakeLineage();
    ASSERT_OK(pool_.Clone("d@3", "p/r").status());
    WriteAndFlush("p/r", 0, Fill('r', 50));
    ASSERT_OK(pool_.Snapshot("p/r@1").status());
    WriteAndFlush("p/r", 20, Fill('s', 50));
    ASSERT_OK(pool_.Snapshot("p/r@2").status());
    WriteAndFlush("p/r", 30, Fill('t', 10));
    if (std::get<1>(GetParam()) != Change::kPromote) return;
    ASSERT_OK(pool_.Clone("p/r@1", "q").status());
    WriteAndFlush("q", 0, Fill('q', 20));
  }
  absl::Status Make(Change change) {
    switch (change) {
      case Change::kDestroy:
        return pool_.Destroy("p/r", /*recursive=*/true).status();
      case Change::kDestroyPrefix: {
        DestroyDatasetsArgs args;
        args.prefix = "p";
        args.recursive = true;
        return pool_.Call(&Pool::DestroyDatasets, args).status();
      }
      case Change::kReplace: {
        RETURN_IF_ERROR(pool_.DestroySnapshot("p/r@1").status());
        RETURN_IF_ERROR(pool_.DestroySnapshot("p/r@2").status());
        CloneDatasetArgs args;
        args.source = "d@1";
        args.name = "p/r";
        args.replace = true;
        return pool_.Call(&Pool::CloneDataset, args).status();
      }
      case Change::kRollback:
        return pool_.Rollback("p/r").status();
      case Change::kReset: {
        RollbackDatasetArgs args;
        args.name = "p/r";
        args.to_origin = true;
        args.destroy_newer = true;
        return pool_.Call(&Pool::RollbackDataset, args).status();
      }
      case Change::kPromote:
        return pool_.Promote("q").status();
      case Change::kSnapshot:
        return pool_.DestroySnapshot("p/r@1").status();
    }
    return absl::InternalError("no such change");
  }
};

TEST_P(RebuildRaceTest, IsSoundInEveryOrder) {
  const auto& [place, change] = GetParam();
  MakeRebuilt();
  Drop("p/r");
  // The rebuilder stands between what it has prepared and the task that applies it.
  ASSERT_OK(Failpoints::Arm(place + "=pause"));
  std::thread drain([&] { EXPECT_OK(pool_->DrainBackground()); });
  while (Failpoints::Hits(place) == 0) std::this_thread::yield();
  EXPECT_OK(Make(change));
  ExpectSound();
  Failpoints::DisarmAll();
  drain.join();
  pool_.ExpectClean();
  const bool running = place != "rebuild.begin";
  const bool cancels = running && change != Change::kSnapshot;
  EXPECT_EQ(Rebuilds(RebuildResult::kCancelled), cancels ? 1u : 0u);
  EXPECT_EQ(Rebuilds(RebuildResult::kFailed), 0u);
  EXPECT_EQ(stats().alarms[Alarm::kLivelistDamaged], 0u);
  for (const char* name : {"d", "c", "p/r", "q"}) {
    if (pool_->GetDataset(name).ok()) ExpectWhole(name);
  }
  const bool destroyed = change == Change::kDestroy || change == Change::kDestroyPrefix;
  EXPECT_EQ(pool_->GetDataset("p/r").ok(), !destroyed);
  ExpectContent("d");
  ASSERT_OK(pool_.Destroy("d", /*recursive=*/true, /*cascade=*/true).status());
  ExpectEmpty();
}

std::string RaceName(const ::testing::TestParamInfo<RebuildRaceTest::ParamType>& info) {
  static constexpr const char* kNames[] = {"Destroy", "DestroyPrefix", "Replace", "Rollback",
                                           "Reset",   "Promote",       "Snapshot"};
  std::string place = std::get<0>(info.param).substr(8);
  place[0] = static_cast<char>(place[0] - 'a' + 'A');
  return place + kNames[static_cast<size_t>(std::get<1>(info.param))];
}

INSTANTIATE_TEST_SUITE_P(
    All, RebuildRaceTest,
    ::testing::Combine(
        ::testing::Values("rebuild.begin", "rebuild.walk", "rebuild.shadow", "rebuild.swap"),
        ::testing::Values(Change::kDestroy, Change::kDestroyPrefix, Change::kReplace,
                          Change::kRollback, Change::kReset, Change::kPromote, Change::kSnapshot)),
    RaceName);

}  // namespace
}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// Everything that can fail fails, at its k-th time for every k, once and for ever, while a script
// does everything a pool can do. Whatever was acknowledged is there afterwards; what was not is
// wholly there or not at all; the checker finds nothing; the pool goes on by itself, or is
// suspended and goes on after it was opened again; and in the end not a sector is missing.
//
// The default run tries some k of each kind, COWSHED_TEST_FULL=1 all of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/failpoints.h"
#include "tests/crash/pool_script.h"
#include "tests/support/fault_file.h"
#include "tests/support/temp_pool.h"
#include "tests/support/testing.h"

namespace cowshed::engine {
namespace {

constexpr uint64_t kNever = 1000000000;
constexpr uint64_t kTriesByDefault = 10;

// A kind of failure: of an operation on `blocks`, or of a named point in the engine.
struct Fault {
  std::string name;
  std::string point;  // empty: the file
  std::string action = "error";
  FileOp op = FileOp::kWrite;
  absl::Status status = absl::UnavailableError("injected: input/output error");
  uint64_t torn_bytes = 0;
  bool once_only = false;  // failing for ever only means waiting for ever
};

std::ostream& operator<<(std::ostream& out, const Fault& fault) { return out << fault.name; }

class FaultTest : public ::testing::TestWithParam<Fault> {
 protected:
  void TearDown() override { Failpoints::DisarmAll(); }

  TempPool::Tweak Options() {
    return [this](PoolOptions* options) {
      ScriptOptions()(options);
      options->wrap_blocks_file = [plan = plan_](std::unique_ptr<File> file) {
        return std::make_unique<FaultFile>(std::move(file), plan);
      };
    };
  }
  // From now on the k-th hit fails (k counts from 1).
  void Arm(uint64_t k, bool for_ever) {
    const Fault& fault = GetParam();
    if (!fault.point.empty()) {
      ASSERT_OK(Failpoints::Arm(fault.point + "=" + fault.action +
                                ":skip=" + std::to_string(k - 1) + (for_ever ? "" : ":count=1")));
      return;
    }
    plan_->CountOnly(fault.op);
    FaultPlan::Failure failure;
    failure.at = k;
    failure.for_ever = for_ever;
    failure.status = fault.status;
    failure.torn_bytes = fault.torn_bytes;
    plan_->Fail(failure);
  }
  uint64_t Hits() const {
    return GetParam().point.empty() ? plan_->counted() : Failpoints::Hits(GetParam().point);
  }
  void Heal() {
    plan_->Heal();
    Failpoints::DisarmAll();
  }

  // One run of the script. Returns how often the point was hit, up to the first failure.
  uint64_t Run(uint64_t k, bool for_ever) {
    TempPool pool(Options());
    const uint64_t empty_bytes = pool->space().allocated_bytes;
    PoolImage expected;
    Arm(k, for_ever);
    uint64_t hits = 0;
    for (const ScriptStep& step : MakeScript()) {
      SCOPED_TRACE(step.name);
      PoolImage after = expected;
      step.expect(&after);
      const absl::Status status = step.act(pool);
      if (!status.ok()) {
        hits = std::max(hits, Hits());
        Heal();
        Recover(pool, step, status, expected, after);
      }
      expected = std::move(after);
      if (HasFatalFailure()) break;
    }
    hits = std::max(hits, Hits());
    Heal();
    if (!HasFatalFailure()) {
      EXPECT_EQ(Difference(expected, ValueOf(ReadImage(*pool))), "");
      pool.ExpectClean();
      EXPECT_EQ(pool->space().allocated_bytes, empty_bytes);
      EXPECT_EQ(pool->space().freeing_bytes, 0u);
    }
    if (HasFailure()) pool.Abandon();
    return hits;
  }

  // After a step that failed: nothing half is there, and the pool goes on.
  void Recover(TempPool& pool, const ScriptStep& step, const absl::Status& status,
               const PoolImage& before, const PoolImage& after) {
    bool done = false;
    if (!pool->health().ok()) {
      EXPECT_CODE(status, kUnavailable);
      EXPECT_CODE(pool.Create("refused"), kUnavailable);
      const PoolImage shown = ValueOf(ReadImage(*pool));
      EXPECT_TRUE(shown == before || shown == after) << Difference(before, shown);
      pool.Reopen();
      ASSERT_OK(pool->health());
      const PoolImage found = ValueOf(ReadImage(*pool));
      done = found == after && !(before == after);
      EXPECT_TRUE(done || found == before) << Difference(before, found);
    } else {
      const PoolImage shown = ValueOf(ReadImage(*pool));
      EXPECT_TRUE(shown == before || (step.more_after && shown == after))
          << Difference(before, shown);
    }
    const CheckReport report = ValueOf(pool->Check());
    EXPECT_TRUE(report.ok()) << report.findings[0].name << ": " << report.findings[0].message;
    if (!done) ASSERT_OK(step.act(pool));
  }

  std::shared_ptr<FaultPlan> plan_ = std::make_shared<FaultPlan>();
};

TEST_P(FaultTest, LosesNothing) {
  const uint64_t total = Run(kNever, /*for_ever=*/false);
  ASSERT_GT(total, 0u) << "the script does not get there";
  const bool full = std::getenv("COWSHED_TEST_FULL") != nullptr;
  const uint64_t tries = full ? total : std::min(total, kTriesByDefault);
  std::cout << GetParam() << ": " << tries << " of " << total << " places\n";
  for (uint64_t i = 0; i < tries && !HasFailure(); ++i) {
    const uint64_t k = 1 + i * total / tries + (full ? 0 : total / tries / 2);
    for (const bool for_ever : {false, true}) {
      if (for_ever && GetParam().once_only) continue;
      SCOPED_TRACE(GetParam().name + " fails at " + std::to_string(k) +
                   (for_ever ? " and for ever" : ""));
      EXPECT_GE(Run(k, for_ever), k);
    }
  }
}

std::vector<Fault> Faults() {
  std::vector<Fault> faults;
  const auto file = [&](const std::string& name, FileOp op) -> Fault& {
    Fault& fault = faults.emplace_back();
    fault.name = name;
    fault.op = op;
    return fault;
  };
  file("Read", FileOp::kRead);
  file("Write", FileOp::kWrite);
  file("TornWrite", FileOp::kWrite).torn_bytes = 6000;
  Fault& full = file("WriteOnFullHost", FileOp::kWrite);
  full.status = absl::ResourceExhaustedError("injected: no space");
  full.once_only = true;
  file("Sync", FileOp::kSync);
  file("Punch", FileOp::kPunch);
  for (const auto& [name, point] :
       std::vector<std::pair<std::string, std::string>>{{"MetaPut", "meta.put"},
                                                        {"BeforeMetaCommit", "meta.before_commit"},
                                                        {"AfterMetaCommit", "meta.after_commit"},
                                                        {"SyncOfHead", "sync.head"},
                                                        {"DataWritten", "sync.data_written"},
                                                        {"TasksRun", "sync.tasks_run"},
                                                        {"BeforeFsync", "sync.before_fsync"},
                                                        {"BeforeCommit", "sync.before_commit"},
                                                        {"AfterCommit", "sync.after_commit"},
                                                        {"ReclaimStep", "reclaim.step"},
                                                        {"ReclaimApplied", "reclaim.applied"}}) {
    Fault& fault = faults.emplace_back();
    fault.name = name;
    fault.point = point;
  }
  return faults;
}

INSTANTIATE_TEST_SUITE_P(Kinds, FaultTest, ::testing::ValuesIn(Faults()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace cowshed::engine

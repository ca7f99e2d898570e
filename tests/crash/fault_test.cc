// SPDX-License-Identifier: Apache-2.0
//
// Everything in the engine that can fail fails, at its k-th time for every k, once and for ever,
// while a script does everything a pool can do; faulted_script.h says what must hold. For the calls
// that reach the host see host_fault_test.cc.
//
// The default run tries some k of each kind, COWSHED_TEST_FULL=1 all of them.
#include <gtest/gtest.h>

#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/failpoints.h"
#include "tests/support/fault_file.h"
#include "tests/support/faulted_script.h"
#include "tests/support/pool_script.h"
#include "tests/support/temp_pool.h"
#include "tests/support/testing.h"

namespace cowshed::engine {
namespace {

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
  FaultDoor Door() {
    return {[this](uint64_t k, bool for_ever) { Arm(k, for_ever); },
            [this] {
              plan_->Heal();
              Failpoints::DisarmAll();
            },
            [this] {
              return GetParam().point.empty() ? plan_->counted()
                                              : Failpoints::Hits(GetParam().point);
            }};
  }

  std::shared_ptr<FaultPlan> plan_ = std::make_shared<FaultPlan>();
};

TEST_P(FaultTest, LosesNothing) {
  SweepFaults(GetParam().name, Options(), Door(), kTriesByDefault, GetParam().once_only);
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
  file("WriteDurable", FileOp::kWriteDurable);
  file("TornWriteDurable", FileOp::kWriteDurable).torn_bytes = 4096;
  file("Punch", FileOp::kPunch);
  for (const auto& [name, point] :
       std::vector<std::pair<std::string, std::string>>{{"MetaPut", "meta.put"},
                                                        {"BeforeMetaCommit", "meta.before_commit"},
                                                        {"AfterMetaCommit", "meta.after_commit"},
                                                        {"SyncOfHead", "sync.head"},
                                                        {"DataWritten", "sync.data_written"},
                                                        {"TasksRun", "sync.tasks_run"},
                                                        {"BeforeFsync", "sync.before_fsync"},
                                                        {"RingWritten", "log.ring_written"},
                                                        {"BeforeLogWrite", "log.before_write"},
                                                        {"AfterLogWrite", "log.after_write"},
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

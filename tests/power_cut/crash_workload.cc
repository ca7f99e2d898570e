// SPDX-License-Identifier: Apache-2.0
#include "tests/power_cut/crash_workload.h"

#include <stdlib.h>

#include <filesystem>
#include <span>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/failpoints.h"
#include "engine/base/hash.h"
#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "tests/support/pool_script.h"

namespace cowshed::engine {
namespace {

constexpr uint64_t kBlock = 4096;

uint64_t Digest(std::string_view text) { return Hash64(text); }

std::string LabelsText(const Labels& labels) {
  std::string text;
  for (const auto& [key, value] : labels) text += StrCat(key, "=", value, ";");
  return text;
}

absl::StatusOr<uint64_t> ContentDigest(Pool& pool, const std::string& name) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Volume> volume, pool.OpenVolume(name, ""));
  std::string bytes(volume->size_bytes(), '?');
  RETURN_IF_ERROR(volume->Read(0, std::as_writable_bytes(std::span(bytes))));
  return Digest(bytes);
}

absl::Status AddDatasets(Pool& pool, VisibleState* state) {
  ListArgs all;
  all.page_size = 1000;
  ASSIGN_OR_RETURN(const Page<DatasetInfo> datasets, pool.ListDatasets(all));
  for (const DatasetInfo& dataset : datasets.items) {
    ASSIGN_OR_RETURN(const uint64_t content, ContentDigest(pool, dataset.name));
    (*state)[dataset.name] =
        Digest(StrCat(content, " ", dataset.uid, " ", dataset.size_bytes, " ", dataset.block_bytes,
                      " ", dataset.origin_uid, " ", dataset.origin, " ", dataset.expire_time_ms,
                      " ", LabelsText(dataset.labels)));
    ListArgs own = all;
    own.parent = dataset.name;
    ASSIGN_OR_RETURN(const Page<SnapshotInfo> snapshots, pool.ListSnapshots(own));
    for (const SnapshotInfo& snapshot : snapshots.items) {
      ASSIGN_OR_RETURN(const uint64_t bytes, ContentDigest(pool, snapshot.name));
      (*state)[snapshot.name] =
          Digest(StrCat(bytes, " ", snapshot.uid, " ", snapshot.size_bytes, " ",
                        snapshot.deferred ? "deferred" : "", " ", LabelsText(snapshot.labels)));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<VisibleState> ReadState(Pool& pool) {
  VisibleState state;
  RETURN_IF_ERROR(AddDatasets(pool, &state));
  ListArgs all;
  all.page_size = 1000;
  ASSIGN_OR_RETURN(const Page<HoldInfo> holds, pool.ListHolds(all));
  for (const HoldInfo& hold : holds.items) {
    state[StrCat("hold ", hold.tag, " of ", hold.snapshot)] = hold.expire_time_ms;
  }
  all.state = static_cast<uint8_t>(OperationState::kWaiting);
  ASSIGN_OR_RETURN(const Page<OperationInfo> windows, pool.ListOperations(all));
  for (const OperationInfo& window : windows.items) {
    state[StrCat("window of ", window.name)] = Digest(window.target);
  }
  return state;
}

std::string StateDifference(const VisibleState& expected, const VisibleState& found) {
  std::string text;
  for (const auto& [name, digest] : expected) {
    const auto it = found.find(name);
    if (it == found.end()) {
      text += name + " is missing; ";
    } else if (it->second != digest) {
      text += name + " differs; ";
    }
  }
  for (const auto& entry : found) {
    if (!expected.contains(entry.first)) text += entry.first + " should not be there; ";
  }
  return text;
}

void SetCrashOptions(PoolOptions* options) {
  ScriptOptions()(options);
  options->capacity_bytes = 16 << 20;  // the least that an intent log is made for
  options->meta_map_bytes = 64 << 20;
  options->meta_reserve_bytes = 64 << 10;
  options->blocks_reserve_bytes = 1 << 20;
  options->condense_min_entries = 8;
  options->rebuild_bite_pointers = 20;
  // A copy is moved as a whole directory, which the model of a disk does not know. No pool opens
  // from one by itself.
  options->meta_copy_interval = std::chrono::milliseconds(0);
  options->txg_interval = std::chrono::hours(1);        // or a step could be cut in two by a clock
  options->reclaim_txg_budget = std::chrono::hours(1);  // or bites would follow what was measured
}

// ---- Recording ----------------------------------------------------------------------------------

WorkloadRecorder::WorkloadRecorder(std::string name) {
  recording_.name = std::move(name);
  root_ = std::filesystem::canonical(FastTempRoot()).string() + "/cowshed_record_XXXXXX";
  COWSHED_CHECK(mkdtemp(root_.data()) != nullptr, "a recording has a directory");
  recorder_ = std::make_unique<DiskRecorder>(root_);
  pool_ = std::make_unique<TempPool>([this](PoolOptions* options) {
    SetCrashOptions(options);
    options->directory = root_ + "/" + kPoolFolder;
  });
  Remember("open");
  AcknowledgeNewest();
}

WorkloadRecorder::~WorkloadRecorder() {
  pool_.reset();
  std::error_code ignored;
  std::filesystem::remove_all(root_, ignored);
}

void WorkloadRecorder::Remember(const std::string& name, bool gradual) {
  absl::StatusOr<VisibleState> state = ReadState(**pool_);
  COWSHED_CHECK(state.ok(), "a pool shows what it holds");
  recording_.states.push_back(*std::move(state));
  recording_.steps.push_back(name);
  recording_.gradual.push_back(gradual);
}

void WorkloadRecorder::AcknowledgeNewest() {
  acknowledged_ = recording_.states.size() - 1;
  recorder_->Acknowledge(acknowledged_);
}

absl::Status WorkloadRecorder::Step(const std::string& name,
                                    const std::function<absl::Status()>& act, Durable durable,
                                    bool gradual) {
  const Txg committed_before = (*pool_)->committed_txg();
  recorder_->Begin(recording_.states.size());
  const absl::Status status = act();
  Remember(status.ok() ? name : StrCat(name, " (refused)"), gradual);
  const bool committed = (*pool_)->committed_txg() > committed_before;
  // Between a step and its acknowledgement nothing moves: the background only runs within a step.
  if (status.ok() && durable != Durable::kNo && (committed || durable == Durable::kYes)) {
    AcknowledgeNewest();
  }
  return status;
}

void WorkloadRecorder::Restart(const std::string& name, const std::function<void()>& act) {
  recorder_->Begin(recording_.states.size());
  act();
  Remember(name);
  AcknowledgeNewest();
}

Recording WorkloadRecorder::Take() {
  // What the background has left changes nothing that is shown, unless a time has come.
  Step(
      "the last drain", [this] { return (*pool_)->DrainBackground(); }, Durable::kNo,
      /*gradual=*/true)
      .IgnoreError();
  pool_.reset();  // which commits what is still open
  AcknowledgeNewest();
  recording_.log = recorder_->Take();
  recorder_.reset();
  return std::move(recording_);
}

// ---- The script ---------------------------------------------------------------------------------

namespace {

class ScriptRecorder {
 public:
  ScriptRecorder() : recorder_("script"), pool_(recorder_.pool()) {}

  Recording Record() {
    RecordPoolScript();
    AddWindows();
    AddLivelists();
    AddDeaths();
    AddDurableWrites();
    return recorder_.Take();
  }

 private:
  void Do(const std::string& name, const std::function<absl::Status()>& act,
          Durable durable = Durable::kYes) {
    const absl::Status status = recorder_.Step(name, act, durable);
    COWSHED_CHECK(status.ok(), name.c_str());
  }
  absl::Status WriteFlushed(const std::string& name, uint64_t block, char byte, uint64_t blocks) {
    RETURN_IF_ERROR(pool_.Write(name, block * kBlock, std::string(blocks * kBlock, byte)));
    return pool_.Flush(name).status();
  }

  // Each step shows what it should: then the recorded states are right, not only what there was.
  void RecordPoolScript() {
    PoolImage expected;
    for (const ScriptStep& step : MakeScript()) {
      Do(step.name, [&] { return step.act(pool_); });
      step.expect(&expected);
      const absl::StatusOr<PoolImage> found = ReadImage(*pool_);
      COWSHED_CHECK(found.ok() && *found == expected, step.name.c_str());
    }
  }
  void AddWindows() {
    Do("create w", [&] { return pool_.Create("w/1", 16 * kBlock).status(); });
    Do("write w", [&] { return WriteFlushed("w/1", 0, 'w', 10); });
    Do("snapshot w", [&] { return pool_.Snapshot("w/1@s").status(); });
    Do("write w again", [&] { return WriteFlushed("w/1", 4, 'W', 3); });
    std::string operation;
    const auto destroy = [&]() -> absl::Status {
      DestroyDatasetsArgs args;
      args.prefix = "w";
      args.recursive = true;
      args.reclaim_after_ms = 60000;
      ASSIGN_OR_RETURN(const Outcome outcome, pool_.Call(&Pool::DestroyDatasets, args));
      operation = outcome.operation->name;
      return absl::OkStatus();
    };
    Do("destroy w with a window", destroy);
    Do("drain", [&] { return pool_->DrainBackground(); });
    Do("undestroy w", [&] {
      Await<absl::StatusOr<Outcome>> done;
      pool_->Undestroy(operation, std::nullopt, done.Callback());
      return done.Wait().status();
    });
    Do("write w once more", [&] { return WriteFlushed("w/1", 6, 'v', 3); });
    Do("destroy w for good", destroy);
    Do("the window ends", [&] {
      pool_.Advance(70000);
      return pool_->DrainBackground();
    });
  }
  // Condense, and a list that is lost and rebuilt.
  void AddLivelists() {
    Do("create l", [&] { return pool_.Create("l", 64 * kBlock).status(); });
    for (int i = 0; i < 6; ++i) {
      Do("overwrite l", [&] {
        for (uint64_t block = 0; block < 40; block += 3) {
          RETURN_IF_ERROR(pool_.Write("l", block * kBlock, std::string(kBlock, 'a' + i)));
        }
        return pool_.Flush("l").status();
      });
    }
    Do("condense l", [&] { return pool_->DrainBackground(); });
    COWSHED_CHECK(pool_->stats().condenses[CondenseResult::kCompleted] > 0, "the script condenses");
    Do("clone l", [&] { return pool_.Clone("l", "m").status(); });
    Do("write m", [&] { return WriteFlushed("m", 10, 'm', 20); });
    Do("lose the list of m", [&] {
      RETURN_IF_ERROR(Failpoints::Arm("livelist.damaged=true:count=1"));
      const absl::Status status = WriteFlushed("m", 50, 'x', 1);
      Failpoints::DisarmAll();
      return status;
    });
    Do("rebuild m", [&] { return pool_->DrainBackground(); });
    COWSHED_CHECK(pool_->stats().livelist_rebuilds[RebuildResult::kCompleted] > 0,
                  "the script rebuilds");
    Do("destroy l and m", [&] { return pool_.Destroy("m").status(); });
    Do("drain", [&] { return pool_->DrainBackground(); });
  }
  // Durable writes without a txg, and what takes them away or brings them back.
  void AddDurableWrites() {
    const auto durable = [&](uint64_t block, char byte, uint64_t blocks) {
      return [this, block, byte, blocks]() -> absl::Status {
        RETURN_IF_ERROR(pool_.Write("y", block * kBlock, std::string(blocks * kBlock, byte)));
        return pool_.MakeDurable("y");
      };
    };
    Do("create y", [&] { return pool_.Create("y", 32 * kBlock).status(); });
    Do("the ring is made", durable(0, 'a', 2));
    Do("durable write", durable(1, 'b', 3));
    Do("snapshot y", [&] { return pool_.Snapshot("y@s").status(); });
    Do("durable write", durable(2, 'c', 1));
    Do("durable discard", [&]() -> absl::Status {
      RETURN_IF_ERROR(pool_.Discard("y", kBlock, 2 * kBlock));
      return pool_.MakeDurable("y");
    });
    Do("roll y back", [&] { return pool_.Rollback("y").status(); });
    Do("durable write", durable(5, 'd', 2));
    Do("shrink y", [&] { return pool_.Resize("y", 6 * kBlock).status(); });
    Do("the trim", [&] { return pool_->DrainBackground(); });
    Do("grow y", [&] { return pool_.Resize("y", 32 * kBlock).status(); });
    for (uint64_t i = 0; i < 40; ++i) {
      Do("durable write", durable(i % 30, static_cast<char>('a' + i % 26), 1 + i % 2));
    }
    std::string operation;
    Do("destroy y with a window", [&]() -> absl::Status {
      DestroyDatasetsArgs args;
      args.names = {"y"};
      args.recursive = true;
      args.reclaim_after_ms = 60000;
      ASSIGN_OR_RETURN(const Outcome outcome, pool_.Call(&Pool::DestroyDatasets, args));
      operation = outcome.operation->name;
      return absl::OkStatus();
    });
    Do("undestroy y", [&] {
      Await<absl::StatusOr<Outcome>> done;
      pool_->Undestroy(operation, std::nullopt, done.Callback());
      return done.Wait().status();
    });
    Do("durable write", durable(7, 'e', 2));
    recorder_
        .Step("a durable write that fails",
              [&] {
                RETURN_IF_ERROR(Failpoints::Arm("file.write_durable=eio:count=1"));
                const absl::Status status = durable(9, 'f', 2)();
                Failpoints::DisarmAll();
                return status;
              })
        .IgnoreError();
    recorder_.Restart("the next process", [&] { pool_.Reopen(); });
    Do("durable write", durable(20, 'g', 2));
  }
  // The process dies with writes that no sync covered, and a new one goes on.
  void AddDeaths() {
    Do(
        "volatile write", [&] { return pool_.Write("l", 0, std::string(8192, 'u')); },
        Durable::kNo);
    recorder_
        .Step("a sync that fails",
              [&] {
                RETURN_IF_ERROR(Failpoints::Arm("file.sync=eio:count=1"));
                const absl::Status status = WriteFlushed("l", 20, 'z', 10);
                Failpoints::DisarmAll();
                return status;
              })
        .IgnoreError();
    recorder_.Restart("the next process", [&] { pool_.Reopen(); });
    Do("metadata only", [&] { return pool_.Create("n", kBlock).status(); });
    Do("write l", [&] { return WriteFlushed("l", 21, 'y', 10); });
    Do(
        "volatile write", [&] { return pool_.Write("l", 0, std::string(8192, 'U')); },
        Durable::kNo);
    Do("a snapshot commits it", [&] { return pool_.Snapshot("l@s").status(); });
    recorder_.Restart("closed and opened", [&] { pool_.Reopen(); });
  }

  WorkloadRecorder recorder_;
  TempPool& pool_;
};

}  // namespace

Recording RecordScript() { return ScriptRecorder().Record(); }

}  // namespace cowshed::engine

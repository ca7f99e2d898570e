// SPDX-License-Identifier: Apache-2.0
//
// The condenser rewrites sublists without their cancelled pairs and merges neighbours, so that a
// livelist costs what is alive and not what was ever written. It serves all datasets, whether they
// are written to or not, one run at a time.
//
// Finding     Whatever makes a sublist worth it (an append, a snapshot that goes) leaves a mark in
//             kStates: (dataset, start) -> txg. The condenser looks only where there are marks, at
//             the stretch of sublists between two own snapshots around one, and takes a mark away
//             when nothing there is worth it and it has not been renewed since.
// A run       read     the survivors of each sublist, outside any txg, within reclaim_memory_bytes
//             shadow   written to a shadow log, a bounded number of pages a txg; the log is listed
//                      in kStates, so that the next open finds and drops it after a crash (I8)
//             swap     one small task: what came meanwhile is carried over, the shadow takes the
//                      place of the sublists (tree/live_list_condense.h)
// Cancelled   by whatever takes its sublists away or changes their set: destroy, rollback, promote.
//             Every bite looks first whether they are still there, so no hook is needed in those.
// Damage      The run fails, with an alarm, and `damaged` is told: the list is dropped. A sublist
//             that is still met is left alone for as long as the process lives.
//
// Foreground  A bite is bounded, and between two runs lies an interval of the background task: txgs
//             are forced by a few runs a second at most, however many lists wait.
// Threads     Step: one thread at a time. Its tasks, and the functions below, on the txg thread.
// Cost        condense_policy.h. A step without marks is one look into kStates.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/tree/condense_policy.h"
#include "engine/tree/live_list_condense.h"
#include "engine/txg.h"

namespace cowshed::engine {

// What others do about a list in the txg at hand; an empty one does nothing.
struct CondenseHooks {
  // A sublist of the dataset cannot be read.
  std::function<absl::Status(TxgContext&, DatasetId)> damaged;
  // The list has been condensed and costs more than the tree it stands for (IsCostly).
  std::function<absl::Status(TxgContext&, DatasetId)> costly;
};

LiveListOptions LivelistOptions(const PoolOptions& options);

// The sublists around `start` may be worth condensing.
absl::Status MarkForCondense(TxgContext& context, DatasetId dataset, Txg start);
// Sublists that start below `before` have moved to another dataset, and their marks follow.
absl::Status MoveCondenseMarks(TxgContext& context, DatasetId from, DatasetId to, Txg before);

class Condenser {
 public:
  Condenser(PoolParts& parts, TxgManager& txgs, CondenseHooks hooks)
      : parts_(parts), txgs_(txgs), hooks_(std::move(hooks)) {}

  // One bite. True if there may be more to do at once; after a completed run the foreground comes
  // first, until the next call.
  absl::StatusOr<bool> Step();

 private:
  struct Mark {
    DatasetId dataset{};
    Txg start = 0;
    std::string key;
    std::string value;
    bool is_costly = false;   // nothing to condense, and still too long
    bool is_damaged = false;  // a record of the list cannot be read
  };
  // Sublists that become one.
  struct Job {
    DatasetId dataset{};
    LivelistId list{};
    std::vector<SublistView> views;  // in rising order
    bool is_drop = false;            // all are empty, and go
    uint64_t entries_in = 0;
    std::chrono::steady_clock::time_point begin;
    size_t next_view = 0;  // to be read, from next_address on
    uint64_t next_address = 0;
    std::vector<Run> survivors;  // read and not in the shadow yet, but for the first `written`
    size_t written = 0;
    bool has_shadow = false;
    ShadowLog shadow;

    bool has_read_all() const { return next_view == views.size(); }
    std::span<const Run> waiting() const { return std::span(survivors).subspan(written); }
  };
  using Stretch = std::vector<SublistLoad>;

  absl::StatusOr<bool> FindWork();
  absl::StatusOr<std::optional<Job>> Examine(const MetaTxn& txn, Mark* mark) const;
  absl::StatusOr<std::optional<Job>> Choose(const MetaTxn& txn, const DatasetRecord& record,
                                            std::span<const SublistLoad> stretch,
                                            bool has_newest) const;
  absl::Status Settle(const std::vector<Mark>& marks);
  absl::StatusOr<bool> OwnsList(const MetaTxn& txn) const;
  absl::StatusOr<bool> IsValid(const MetaTxn& txn) const;
  absl::Status RunBite();
  absl::Status Read();
  absl::Status WriteShadow();
  absl::Status FinishRun();
  absl::Status DropEmpty();
  absl::StatusOr<bool> Complete(TxgContext& context, std::vector<SublistView>* views,
                                ShadowLog* shadow) const;
  absl::Status DropShadows();
  absl::Status GiveUp(const absl::Status& why);
  absl::Status ReportDamage();
  void EndJob(CondenseResult result);
  uint64_t bite_entries() const;

  PoolParts& parts_;
  TxgManager& txgs_;
  const CondenseHooks hooks_;
  std::optional<Job> job_;
  bool may_have_orphans_ = true;  // shadow logs of an earlier process, or of a run given up
  std::string next_mark_;         // where the next look begins: datasets take turns
  std::set<LogId> damaged_;       // own logs of sublists to leave alone
};

}  // namespace cowshed::engine

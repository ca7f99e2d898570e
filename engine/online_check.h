// SPDX-License-Identifier: Apache-2.0
//
// The check of a pool that is being written to: bites, each with a view (a reader epoch and a
// metadata transaction) of its own, in memory for one bite. Within a view every invariant holds, so
// each bite compares only what one view shows:
//
//   trees      what was born after the previous tree of the lineage, pointer by pointer: readable
//              nodes, I4, sectors that are neither free nor in the free log (I1); together they are
//              `written`. A head that changes between two bites of its tree, and a tree whose
//              lineage does, is compared pointer by pointer only, and counted as skipped
//   sums       referenced = that of the previous tree + written - what the deadlist holds;
//              used = all `written` of a dataset; live sectors of its sublists = used
//   livelists  each sublist: a FREE has its ALLOC and none comes twice, logs hold what the record
//              says, survivors have births of the sublist and sectors that are not free (I1, I6)
//   names      each dataset is found under its name
//   pool       counts and sums over all records; allocated = all `used` + jobs + free log
//
// What it leaves to the offline check (checker.h), which compares sets where this one compares
// sums: that lists and trees hold the same sectors, indexes, holds and the holders of logs.
//
// Threads     Any, any number at a time.
// Cost        Time: all records, livelists and nodes, once. Memory: a bite, and one sublist's
//             survivors within reclaim_memory_bytes. A view lasts 100 ms, and at most one
//             step longer: check_bite_pointers of a tree, one sublist, or, once, a pass over
//             the records of datasets and snapshots.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/txg.h"
#include "engine/types.h"

namespace cowshed::engine {

class OnlineCheck {
 public:
  explicit OnlineCheck(PoolParts& parts);
  ~OnlineCheck();

  // An error only where nothing could be checked at all; damage is a finding.
  absl::StatusOr<CheckReport> Report();

 private:
  // What is seen at one moment.
  class View;
  // A tree on its way through as many bites as it takes.
  struct TreeWalk;

  // The view at hand, or a new one if that is too old. Views handed out before end with it.
  absl::StatusOr<View*> Fresh();

  absl::Status CheckSnapshots();
  // One bite of the snapshot at or after `*next`; moves it past the snapshot at its end.
  absl::StatusOr<bool> CheckSnapshot(uint64_t* next, TreeWalk* walk);
  absl::Status CheckDatasets();
  absl::Status CheckRecords(View& view, DatasetId id, const DatasetRecord& dataset);
  // The sublist at or after `*next_start`; false: there is none.
  absl::StatusOr<bool> CheckSublist(DatasetId id, Txg* next_start);
  absl::Status CheckSurvivors(View& view, const std::string& name, LivelistId list, Txg start,
                              Txg end);
  absl::Status CheckHead(DatasetId id);
  absl::Status CheckPool();

  // One bite of a tree. True at its end; damage ends it, too.
  absl::StatusOr<bool> WalkBite(View& view, const std::string& name, const TreeState& state,
                                TreeWalk* walk);
  // referenced = that of `previous` (0: nothing) + written - deadlist.
  struct Sums {
    SnapshotId previous{};
    DeadlistId deadlist{};
    uint64_t written_sectors = 0;
    uint64_t referenced_sectors = 0;
  };
  absl::Status CheckReferenced(View& view, const std::string& name, const Sums& sums);
  void Add(std::string invariant, std::string name, std::string message);
  void ExpectSum(std::string what, const std::string& name, uint64_t stored, uint64_t counted);
  // Adds a DATA_LOSS as damage and returns OK; returns any other error.
  absl::Status Absorb(const absl::Status& status, const std::string& name);

  PoolParts& parts_;
  CheckReport report_;
  std::unique_ptr<View> view_;
};

}  // namespace cowshed::engine

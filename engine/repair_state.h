// SPDX-License-Identifier: Apache-2.0
//
// What the parts of the repair share: the records that were saved, and what is to be said of them.
//
//   repair.cc           the order of things, the new store, the swap
//   repair_salvage.cc   records out of a metadata file
//   repair_records.cc   names, lineages, operations: made to fit, counted, written
//   repair_trees.cc     mark and sweep: lists, sums, bitmaps
//
// Threads     Externally synchronised.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/store/block_store.h"
#include "engine/store/records.h"
#include "engine/types.h"

namespace cowshed::engine {

struct RepairState {
  // Records.
  std::optional<PoolRecord> pool;
  std::map<DirectoryId, DirectoryRecord> directories;
  std::map<DatasetId, DatasetRecord> datasets;
  std::map<SnapshotId, SnapshotRecord> snapshots;
  std::map<JobId, JobRecord> jobs;
  std::map<OperationId, OperationRecord> operations;
  std::map<std::pair<SnapshotId, std::string>, HoldRecord> holds;
  std::map<std::pair<Table, std::string>, std::string> replies;  // kRequests, kRequestTimes
  std::map<std::string, std::string> log_cuts;                   // of kStates

  // What the indexes say about records that may be lost.
  struct Name {
    DirectoryId directory{};
    std::string segment;
  };
  std::map<DatasetId, Name> named;
  std::map<DatasetId, SnapshotId> clone_of;
  std::set<SnapshotId> indexed;
  std::set<std::pair<Table, std::string>> damaged;  // keys whose values are

  bool log_is_known = true;         // what the pool's record says of the intent log is true
  std::set<DatasetId> older_heads;  // older than what the intent log holds for them was written to

  bool verify_data = false;  // read every block
  Txg txg = 0;               // of the commit that the repair makes
  IdSource ids;

  std::vector<std::string> plan;
  std::vector<CheckFinding> lost;
  std::vector<uint64_t> unreadable_nodes;  // sectors

  // Own snapshots, rising; of one dataset (a look at all snapshots), and of each.
  std::map<Txg, SnapshotId> SnapshotsOf(DatasetId id) const;
  std::map<DatasetId, std::map<Txg, SnapshotId>> SnapshotsByDataset() const;
  std::string NameOf(DatasetId id) const;
  std::string NameOf(SnapshotId id) const;
  // Something lies in this directory, and its record is not there.
  bool MissesDirectory(DirectoryId id) const;
  // Destroyed, though its record is still there.
  bool IsDestroyed(DatasetId id) const;
  void Lose(std::string name, std::string message) {
    lost.push_back({"lost", std::move(name), std::move(message)});
  }
};

// Reads the records of a metadata file. Returns whether the whole of it could be reached.
absl::StatusOr<bool> SalvageRecords(const std::string& path, RepairState* state);
// Adds from a copy what is lost and still true there: directories, snapshots, holds, operations.
absl::Status SalvageFromCopy(const std::string& path, Txg copy_txg, RepairState* state);

// Whether this key of kStates is that of a cut of the intent log.
bool IsLogCut(std::string_view key);

// Makes the records fit each other; afterwards nothing is left to reclaim but detached prefixes.
void SettleRecords(RepairState* state);
// Counts what can be counted without trees, and writes records and indexes.
absl::Status WriteRecords(RepairState* state, WriteTxn& txn);

// Marks all trees, writes lists and bitmaps, and fills the sums of the records.
absl::Status MarkAndSweep(RepairState* state, const BlockStore& blocks,
                          uint64_t deadlist_tail_max_entries, WriteTxn& txn);

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// Names, lineages and operations.
#include <algorithm>

#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/names.h"
#include "engine/repair_state.h"
#include "engine/trim.h"

namespace cowshed::engine {
namespace {

std::string LostSegment(uint64_t id) { return StrCat("lost-", id); }

// Datasets that can not be saved, those that can without a record of their own, and directories.
class Settler {
 public:
  explicit Settler(RepairState* state) : state_(*state) {}

  void Run() {
    AdoptOrphans();
    DropJobs();
    SettleDirectories();
    SettleWindows();
    while (TakeAwayOnce()) {
    }
    for (auto it = state_.holds.begin(); it != state_.holds.end();) {
      it = state_.snapshots.contains(it->first.first) ? std::next(it) : state_.holds.erase(it);
    }
    SettleOrigins();
    SettleNames();
  }

 private:
  // Snapshots whose dataset's record is lost; those of a destroyed one go with it.
  void AdoptOrphans() {
    std::set<DatasetId> condemned;
    for (const auto& [id, job] : state_.jobs) {
      if (job.kind == JobKind::kDataset) condemned.insert(job.dataset);
    }
    for (auto it = state_.snapshots.begin(); it != state_.snapshots.end();) {
      const DatasetId id = it->second.dataset;
      const bool gone = condemned.contains(id) && !state_.datasets.contains(id);
      if (!gone && !state_.datasets.contains(id)) AdoptFrom(id);
      it = gone ? state_.snapshots.erase(it) : std::next(it);
    }
    for (const auto& [id, name] : state_.named) {
      if (!state_.datasets.contains(id)) {
        state_.Lose(StrCat(name.segment, " (dataset #", static_cast<uint64_t>(id), ")"),
                    "its record is lost, and it has no snapshot");
      }
    }
  }

  // The head of a lost dataset becomes its newest snapshot.
  void AdoptFrom(DatasetId id) {
    const std::map<Txg, SnapshotId> own = state_.SnapshotsOf(id);
    const SnapshotRecord& newest = state_.snapshots.at(own.rbegin()->second);
    DatasetRecord record;
    record.tree = newest.tree;
    record.create_txg = own.begin()->first;
    record.create_time_ms = state_.snapshots.at(own.begin()->second).create_time_ms;
    if (const auto name = state_.named.find(id); name != state_.named.end()) {
      record.directory = name->second.directory;
      record.segment = name->second.segment;
    } else {
      record.directory = kRootDirectory;
      record.segment = LostSegment(static_cast<uint64_t>(id));
    }
    if (const auto origin = state_.clone_of.find(id); origin != state_.clone_of.end()) {
      record.origin = origin->second;
    }
    state_.datasets.emplace(id, std::move(record));
    state_.Lose(state_.NameOf(id), "its record is lost: its contents are those of " +
                                       state_.NameOf(own.rbegin()->second));
  }

  // What a job of a destruction had still to free, nothing references: the sweep frees it.
  void DropJobs() {
    uint64_t finished = 0;
    for (auto it = state_.jobs.begin(); it != state_.jobs.end();) {
      const auto directory = state_.directories.find(it->second.directory);
      const bool stays = it->second.kind == JobKind::kPrefix &&
                         directory != state_.directories.end() && directory->second.detached;
      finished += stays ? 0 : 1;
      it = stays ? std::next(it) : state_.jobs.erase(it);
    }
    if (finished > 0) {
      state_.plan.push_back(StrCat("what ", finished, " jobs had still to reclaim becomes free"));
    }
  }

  void SettleDirectories() {
    state_.directories.try_emplace(kRootDirectory);
    for (const auto& [id, dataset] : state_.datasets) {
      if (!dataset.doomed && state_.MissesDirectory(dataset.directory)) Hang(dataset.directory);
    }
    std::vector<DirectoryId> orphans;
    for (const auto& [id, directory] : state_.directories) {
      if (id == kRootDirectory || directory.detached) continue;
      if (!state_.directories.contains(directory.parent)) orphans.push_back(id);
    }
    for (const DirectoryId id : orphans) Hang(id);
  }

  // A directory that has lost its place, or its record, comes under the root.
  void Hang(DirectoryId id) {
    DirectoryRecord& record = state_.directories[id];
    record.parent = kRootDirectory;
    record.segment = LostSegment(static_cast<uint64_t>(id));
    record.detached = false;
    state_.Lose(record.segment, "the name of this directory is lost");
  }

  // What is destroyed and kept, or detached, and has lost the operation that knew of it comes back.
  void SettleWindows() {
    for (auto& [id, dataset] : state_.datasets) {
      if (!dataset.kept || state_.operations.contains(dataset.operation)) continue;
      dataset.kept = dataset.doomed = false;
      dataset.operation = OperationId{};
      dataset.directory = kRootDirectory;
      state_.Lose(dataset.segment, "the operation that destroyed it is lost: it is back");
      dataset.segment = LostSegment(static_cast<uint64_t>(id));
    }
    for (auto& [id, directory] : state_.directories) {
      if (!directory.detached || IsWanted(id)) continue;
      Hang(id);
    }
  }

  bool IsWanted(DirectoryId id) const {
    const auto of_job = [id](const auto& entry) { return entry.second.directory == id; };
    return std::any_of(state_.jobs.begin(), state_.jobs.end(), of_job) ||
           std::any_of(state_.operations.begin(), state_.operations.end(), [&](const auto& entry) {
             return of_job(entry) &&
                    entry.second.state == static_cast<uint8_t>(OperationState::kWaiting);
           });
  }

  std::map<SnapshotId, uint64_t> CountDependents() const {
    std::map<SnapshotId, uint64_t> dependents;
    for (const auto& [id, dataset] : state_.datasets) ++dependents[dataset.origin];
    for (const auto& [key, hold] : state_.holds) ++dependents[key.first];
    return dependents;
  }

  // Takes away what is destroyed and needed by nothing. True if that may have freed more.
  bool TakeAwayOnce() {
    const std::map<SnapshotId, uint64_t> dependents = CountDependents();
    std::map<DatasetId, uint64_t> of_dataset;
    bool changed = false;
    for (auto it = state_.snapshots.begin(); it != state_.snapshots.end();) {
      const SnapshotRecord& snapshot = it->second;
      const auto counted = dependents.find(it->first);
      const uint64_t count = counted == dependents.end() ? 0 : counted->second;
      of_dataset[snapshot.dataset] += count;
      const bool going = snapshot.dying || ((snapshot.hidden || snapshot.deferred) &&
                                            !state_.IsDestroyed(snapshot.dataset));
      const bool gone = count == 0 && going;
      changed |= gone;
      it = gone ? state_.snapshots.erase(it) : std::next(it);
    }
    for (auto it = state_.datasets.begin(); it != state_.datasets.end();) {
      const bool gone = it->second.doomed && !it->second.kept && of_dataset[it->first] == 0;
      if (gone) {
        std::erase_if(state_.snapshots,
                      [&](const auto& entry) { return entry.second.dataset == it->first; });
      }
      changed |= gone;
      it = gone ? state_.datasets.erase(it) : std::next(it);
    }
    return changed;
  }

  void SettleOrigins() {
    for (auto& [id, dataset] : state_.datasets) {
      if (dataset.origin == SnapshotId{}) {
        dataset.origin_txg = 0;
        continue;
      }
      const auto origin = state_.snapshots.find(dataset.origin);
      if (origin != state_.snapshots.end()) {
        dataset.origin_txg = origin->second.txg;
      } else {
        state_.Lose(state_.NameOf(id),
                    "the record of its origin is lost: it reads and writes as ever; copy it into "
                    "a new dataset before you destroy it");
      }
    }
  }

  // No two children of a directory, and no two snapshots of a dataset, have the same name.
  void SettleNames() {
    std::set<std::pair<DirectoryId, std::string>> taken;
    for (auto& [id, dataset] : state_.datasets) {
      if (dataset.doomed) continue;
      if (!taken.emplace(dataset.directory, dataset.segment).second) {
        state_.Lose(state_.NameOf(id), "another dataset has this name: it gets a new one");
        dataset.segment = LostSegment(static_cast<uint64_t>(id));
        taken.emplace(dataset.directory, dataset.segment);
      }
    }
    std::set<std::pair<DatasetId, std::string>> snapshots;
    for (auto& [id, snapshot] : state_.snapshots) {
      if (!snapshot.visible() || snapshots.emplace(snapshot.dataset, snapshot.name).second)
        continue;
      state_.Lose(state_.NameOf(id), "another snapshot has this name: it gets a new one");
      snapshot.name = LostSegment(static_cast<uint64_t>(id));
      snapshots.emplace(snapshot.dataset, snapshot.name);
    }
    // Directories that nothing lies in any more, from below.
    for (bool changed = true; changed;) {
      std::set<DirectoryId> used = {kRootDirectory};
      for (const auto& [id, dataset] : state_.datasets) used.insert(dataset.directory);
      for (const auto& [id, directory] : state_.directories) used.insert(directory.parent);
      changed = std::erase_if(state_.directories, [&](const auto& entry) {
                  return !used.contains(entry.first) && !entry.second.detached;
                }) > 0;
    }
  }

  RepairState& state_;
};

// Counts, indexes and records.
class Writer {
 public:
  Writer(RepairState* state, WriteTxn& txn) : state_(*state), pool_(*state->pool), txn_(txn) {}

  absl::Status Run() {
    CountClonesAndHolds();
    CountDatasets();
    SettleOperations();
    RETURN_IF_ERROR(WriteNames());
    RETURN_IF_ERROR(WriteSnapshots());
    RETURN_IF_ERROR(WriteDatasets());
    for (const auto& [id, job] : state_.jobs) RETURN_IF_ERROR(StoreRecord(txn_, Key(id), job));
    RETURN_IF_ERROR(WriteOperations());
    for (const auto& [key, cut] : state_.log_cuts) {
      RETURN_IF_ERROR(txn_.Put(Table::kStates, key, cut));
    }
    pool_.requests = 0;
    for (const auto& [key, value] : state_.replies) {
      pool_.requests += key.first == Table::kRequestTimes ? 1 : 0;
      RETURN_IF_ERROR(txn_.Put(key.first, key.second, value));
    }
    return absl::OkStatus();
  }

 private:
  void CountClonesAndHolds() {
    for (auto& [id, snapshot] : state_.snapshots) {
      snapshot.clones = snapshot.all_clones = snapshot.holds = 0;
    }
    for (const auto& [id, dataset] : state_.datasets) {
      const auto origin = state_.snapshots.find(dataset.origin);
      if (origin == state_.snapshots.end()) continue;
      ++origin->second.all_clones;
      origin->second.clones += state_.IsDestroyed(id) ? 0 : 1;
    }
    for (const auto& [key, hold] : state_.holds) ++state_.snapshots.at(key.first).holds;
  }

  void CountDatasets() {
    const auto by_dataset = state_.SnapshotsByDataset();
    pool_.datasets = pool_.clones = pool_.snapshots = pool_.deferred_snapshots = pool_.holds = 0;
    for (auto& [id, dataset] : state_.datasets) {
      dataset.snapshots = dataset.deferred_snapshots = dataset.all_snapshots = 0;
      dataset.clones = dataset.dependents = 0;
      dataset.newest_snapshot_txg = 0;
      const bool shown = !state_.IsDestroyed(id);
      const auto own = by_dataset.find(id);
      for (const auto& [txg, snapshot_id] :
           own == by_dataset.end() ? std::map<Txg, SnapshotId>() : own->second) {
        const SnapshotRecord& snapshot = state_.snapshots.at(snapshot_id);
        const bool visible = snapshot.visible();
        ++dataset.all_snapshots;
        dataset.snapshots += visible;
        dataset.deferred_snapshots += visible && snapshot.deferred;
        dataset.clones += snapshot.clones;
        dataset.dependents += snapshot.all_clones + snapshot.holds;
        dataset.newest_snapshot_txg = txg;
        pool_.holds += shown ? snapshot.holds : 0;
      }
      if (!shown) continue;
      ++pool_.datasets;
      pool_.clones += dataset.origin != SnapshotId{};
      pool_.snapshots += dataset.snapshots;
      pool_.deferred_snapshots += dataset.deferred_snapshots;
    }
  }

  // An operation waits for jobs, for what is doomed or deferred, and for trims.
  void SettleOperations() {
    std::map<OperationId, uint64_t> waits;
    for (auto& [id, job] : state_.jobs) {
      if (!state_.operations.contains(job.operation)) job.operation = OperationId{};
      ++waits[job.operation];
    }
    for (auto& [id, dataset] : state_.datasets) {
      if (!state_.operations.contains(dataset.operation)) dataset.operation = OperationId{};
      if (dataset.doomed || dataset.tree.trim_txg != 0) ++waits[dataset.operation];
    }
    for (auto& [id, snapshot] : state_.snapshots) {
      if (!state_.operations.contains(snapshot.operation)) snapshot.operation = OperationId{};
      if (snapshot.deferred) ++waits[snapshot.operation];
    }
    for (auto& [id, operation] : state_.operations) {
      const auto state = static_cast<OperationState>(operation.state);
      if (state == OperationState::kSucceeded || state == OperationState::kUndone) continue;
      const bool waiting = state == OperationState::kWaiting;
      operation.jobs_left = waits[id] + (waiting && operation.directory != DirectoryId{} ? 1 : 0);
      if (waiting) continue;
      operation.state = static_cast<uint8_t>(operation.jobs_left > 0 ? OperationState::kPending
                                                                     : OperationState::kSucceeded);
      operation.error.clear();
      operation.done_sectors = operation.total_sectors;
      operation.done_entries = operation.total_entries;
      if (operation.jobs_left == 0) operation.finish_time_ms = operation.update_time_ms;
    }
  }

  absl::Status WriteNames() {
    std::map<std::pair<DirectoryId, std::string>, NameRecord> names;
    for (auto& [id, directory] : state_.directories) {
      directory.entries = 0;
      if (id == kRootDirectory || directory.detached) continue;
      names[{directory.parent, directory.segment}].directory = id;
    }
    for (const auto& [id, dataset] : state_.datasets) {
      if (!dataset.doomed) names[{dataset.directory, dataset.segment}].dataset = id;
    }
    for (const auto& [key, name] : names) {
      ++state_.directories[key.first].entries;
      RETURN_IF_ERROR(StoreRecord(txn_, Key(key.first, std::string_view(key.second)), name));
    }
    for (const auto& [id, directory] : state_.directories) {
      RETURN_IF_ERROR(StoreRecord(txn_, Key(id), directory));
    }
    return absl::OkStatus();
  }

  absl::Status WriteSnapshots() {
    for (const auto& [id, snapshot] : state_.snapshots) {
      RETURN_IF_ERROR(StoreRecord(txn_, Key(id), snapshot));
      RETURN_IF_ERROR(txn_.Put(Table::kSnapshotsByTxg, Key(snapshot.dataset, snapshot.txg),
                               std::string_view(Key(id))));
      if (!snapshot.visible()) continue;
      RETURN_IF_ERROR(txn_.Put(Table::kSnapshotsByName,
                               Key(snapshot.dataset, std::string_view(snapshot.name)),
                               std::string_view(Key(id))));
    }
    for (const auto& [key, hold] : state_.holds) {
      const std::string_view tag = key.second;
      RETURN_IF_ERROR(StoreRecord(txn_, Key(key.first, tag), hold));
      if (hold.expire_time_ms == 0) continue;
      RETURN_IF_ERROR(txn_.Put(
          Table::kExpiry, Key(static_cast<uint64_t>(hold.expire_time_ms), key.first, tag), ""));
    }
    return absl::OkStatus();
  }

  absl::Status WriteDatasets() {
    for (const auto& [id, dataset] : state_.datasets) {
      RETURN_IF_ERROR(StoreRecord(txn_, Key(id), dataset));
      if (dataset.origin != SnapshotId{}) {
        RETURN_IF_ERROR(txn_.Put(Table::kClones, Key(dataset.origin, id), ""));
      }
      if (dataset.expire_time_ms != 0 && !dataset.doomed) {
        RETURN_IF_ERROR(
            txn_.Put(Table::kExpiry, Key(static_cast<uint64_t>(dataset.expire_time_ms), id), ""));
      }
      if (dataset.tree.trim_txg != 0 && !dataset.doomed) {
        RETURN_IF_ERROR(txn_.Put(Table::kStates, Key(StateKey::kTrimming, id), ""));
      }
      if (!dataset.kept) continue;
      RETURN_IF_ERROR(txn_.Put(Table::kStates, Key(StateKey::kKept, dataset.operation, id), ""));
      // Under time 0: its end has begun.
      const OperationRecord& operation = state_.operations.at(dataset.operation);
      if (operation.state != static_cast<uint8_t>(OperationState::kWaiting)) {
        RETURN_IF_ERROR(
            txn_.Put(Table::kStates, Key(StateKey::kWindow, uint64_t{0}, dataset.operation), ""));
      }
    }
    return absl::OkStatus();
  }

  absl::Status WriteOperations() {
    for (const auto& [id, operation] : state_.operations) {
      RETURN_IF_ERROR(StoreRecord(txn_, Key(id), operation));
      if (operation.state != static_cast<uint8_t>(OperationState::kWaiting)) continue;
      const auto until = static_cast<uint64_t>(operation.wait_until_ms);
      RETURN_IF_ERROR(txn_.Put(Table::kStates, Key(StateKey::kWindow, until, id), ""));
    }
    return absl::OkStatus();
  }

  RepairState& state_;
  PoolRecord& pool_;
  WriteTxn& txn_;
};

}  // namespace

std::map<Txg, SnapshotId> RepairState::SnapshotsOf(DatasetId id) const {
  std::map<Txg, SnapshotId> own;
  for (const auto& [snapshot_id, snapshot] : snapshots) {
    if (snapshot.dataset == id) own.emplace(snapshot.txg, snapshot_id);
  }
  return own;
}

std::map<DatasetId, std::map<Txg, SnapshotId>> RepairState::SnapshotsByDataset() const {
  std::map<DatasetId, std::map<Txg, SnapshotId>> all;
  for (const auto& [id, snapshot] : snapshots) all[snapshot.dataset].emplace(snapshot.txg, id);
  return all;
}

std::string RepairState::NameOf(DatasetId id) const {
  const auto dataset = datasets.find(id);
  if (dataset == datasets.end()) return StrCat("dataset #", static_cast<uint64_t>(id));
  std::string name = dataset->second.segment;
  DirectoryId at = dataset->second.directory;
  for (size_t depth = 0; at != kRootDirectory && depth < 256; ++depth) {
    const auto directory = directories.find(at);
    if (directory == directories.end()) break;
    name.insert(0, directory->second.segment + "/");
    at = directory->second.parent;
  }
  return name;
}

std::string RepairState::NameOf(SnapshotId id) const {
  const auto snapshot = snapshots.find(id);
  if (snapshot == snapshots.end()) return StrCat("snapshot #", static_cast<uint64_t>(id));
  const std::string& name = snapshot->second.name;
  return StrCat(NameOf(snapshot->second.dataset), "@",
                name.empty() ? StrCat("#", static_cast<uint64_t>(id)) : name);
}

bool RepairState::MissesDirectory(DirectoryId id) const {
  if (id == DirectoryId{} || directories.contains(id)) return false;
  const auto lies_in = [id](const auto& entry) { return entry.second.directory == id; };
  const auto is_below = [id](const auto& entry) { return entry.second.parent == id; };
  return std::any_of(datasets.begin(), datasets.end(), lies_in) ||
         std::any_of(directories.begin(), directories.end(), is_below);
}

bool RepairState::IsDestroyed(DatasetId id) const {
  const auto dataset = datasets.find(id);
  if (dataset == datasets.end() || dataset->second.doomed) return true;
  DirectoryId at = dataset->second.directory;
  for (size_t depth = 0; depth < 256; ++depth) {
    const auto directory = directories.find(at);
    if (directory == directories.end()) return false;
    if (directory->second.detached) return true;
    if (at == kRootDirectory) return false;
    at = directory->second.parent;
  }
  return false;
}

void SettleRecords(RepairState* state) { Settler(state).Run(); }

absl::Status WriteRecords(RepairState* state, WriteTxn& txn) { return Writer(state, txn).Run(); }

}  // namespace cowshed::engine

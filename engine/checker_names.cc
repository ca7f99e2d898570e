// SPDX-License-Identifier: Apache-2.0
//
// Names, directories and indexes against the records they point at.
#include <functional>

#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/checker_state.h"
#include "engine/trim.h"

namespace cowshed::engine {
namespace {

// Visits a whole table; damaged entries become findings and are passed over.
absl::Status ForEach(CheckState& state, Table table, std::string_view what,
                     const std::function<absl::Status(std::string_view, std::string_view)>& visit) {
  MetaCursor cursor(state.txn, table);
  cursor.Seek("");
  while (true) {
    for (; cursor.valid(); cursor.Next()) {
      RETURN_IF_ERROR(state.Absorb(visit(cursor.key(), cursor.value()), what));
    }
    if (cursor.status().ok()) return absl::OkStatus();
    RETURN_IF_ERROR(state.Absorb(cursor.status(), what));
    cursor.Next();
  }
}

bool IsWaiting(const OperationRecord& operation) {
  return operation.state == static_cast<uint8_t>(OperationState::kWaiting);
}

std::string DirectoryName(DirectoryId id) {
  return StrCat("directory #", static_cast<uint64_t>(id));
}

class NameChecker {
 public:
  explicit NameChecker(CheckState& state) : state_(state) {}

  absl::Status Run() {
    RETURN_IF_ERROR(ForEach(
        state_, Table::kDirectories, "directory",
        [this](std::string_view key, std::string_view value) { return AddDirectory(key, value); }));
    RETURN_IF_ERROR(ForEach(
        state_, Table::kNames, "name",
        [this](std::string_view key, std::string_view value) { return CheckName(key, value); }));
    for (const auto& [id, record] : directories_) CheckDirectory(id, record);
    for (const auto& [id, dataset] : state_.datasets) {
      if (!dataset.doomed && !named_.contains(id)) {
        state_.Add("names", state_.NameOf(id), "no name leads to this dataset");
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Status AddDirectory(std::string_view key, std::string_view value) {
    ASSIGN_OR_RETURN(DirectoryRecord record, DirectoryRecord::Decode(value));
    directories_.emplace(KeyNumber<DirectoryId>(key, 0), std::move(record));
    return absl::OkStatus();
  }

  absl::Status CheckName(std::string_view key, std::string_view value) {
    const auto directory = KeyNumber<DirectoryId>(key, 0);
    const std::string segment(key.substr(8));
    const std::string where = StrCat(DirectoryName(directory), ", name ", segment);
    ASSIGN_OR_RETURN(const NameRecord entry, NameRecord::Decode(value));
    ++entries_[directory];
    if (!directories_.contains(directory)) {
      state_.Add("names", where, "the directory of this name does not exist");
    }
    if (entry.dataset == DatasetId{} && entry.directory == DirectoryId{}) {
      state_.Add("names", where, "the name leads to nothing");
    }
    if (entry.directory != DirectoryId{}) {
      const auto child = directories_.find(entry.directory);
      if (child == directories_.end() || child->second.parent != directory ||
          child->second.segment != segment || child->second.detached) {
        state_.Add("names", where, "the directory below this name does not exist or is another's");
      }
      linked_.insert(entry.directory);
    }
    if (entry.dataset != DatasetId{}) CheckNamed(entry.dataset, directory, segment, where);
    return absl::OkStatus();
  }

  void CheckNamed(DatasetId id, DirectoryId directory, const std::string& segment,
                  const std::string& where) {
    const auto dataset = state_.datasets.find(id);
    if (dataset == state_.datasets.end()) {
      state_.Add("names", where, "the name leads to a dataset that does not exist");
    } else if (dataset->second.doomed) {
      state_.Add("names", where, "the name leads to a destroyed dataset");
    } else if (dataset->second.directory != directory || dataset->second.segment != segment) {
      state_.Add(
          "names", where,
          StrCat("the name leads to dataset ", state_.NameOf(id), ", which has another name"));
    }
    if (!named_.insert(id).second) {
      state_.Add("names", where, StrCat("a second name leads to dataset ", state_.NameOf(id)));
    }
  }

  void CheckDirectory(DirectoryId id, const DirectoryRecord& record) {
    const std::string name = DirectoryName(id);
    state_.ExpectSum("entries", name, record.entries, entries_[id]);
    if (id == kRootDirectory) return;
    if (record.detached) {
      for (const auto& [job_id, job] : state_.jobs) {
        if (job.kind == JobKind::kPrefix && job.directory == id) return;
      }
      for (const auto& [operation_id, operation] : state_.operations) {
        if (operation.directory == id && IsWaiting(operation)) return;
      }
      state_.Add("names", name, "is detached, no job takes it apart and no window keeps it");
      return;
    }
    if (!linked_.contains(id)) state_.Add("names", name, "no name leads to this directory");
    if (entries_[id] == 0) state_.Add("names", name, "is empty and was not taken away");
  }

  CheckState& state_;
  std::map<DirectoryId, DirectoryRecord> directories_;
  std::map<DirectoryId, uint64_t> entries_;
  std::set<DirectoryId> linked_;
  std::set<DatasetId> named_;
};

// Counts of one dataset or snapshot, recomputed.
struct Counts {
  uint64_t snapshots = 0, deferred_snapshots = 0, all_snapshots = 0, clones = 0, dependents = 0;
  Txg newest_snapshot_txg = 0;
};
struct SnapshotCounts {
  uint64_t clones = 0, all_clones = 0, holds = 0;
};

class IndexChecker {
 public:
  explicit IndexChecker(CheckState& state) : state_(state) {}

  absl::Status Run() {
    RETURN_IF_ERROR(CheckSnapshotIndexes());
    RETURN_IF_ERROR(CheckClones());
    RETURN_IF_ERROR(CheckHolds());
    CheckSnapshots();
    CheckDatasets();
    RETURN_IF_ERROR(CheckExpiry());
    return CheckWindows();
  }

 private:
  const SnapshotRecord* FindSnapshot(SnapshotId id) const {
    const auto it = state_.snapshots.find(id);
    return it == state_.snapshots.end() ? nullptr : &it->second;
  }

  absl::Status CheckSnapshotIndexes() {
    RETURN_IF_ERROR(ForEach(
        state_, Table::kSnapshotsByTxg, "snapshots by txg",
        [this](std::string_view key, std::string_view value) {
          const auto id = KeyNumber<SnapshotId>(value, 0);
          const SnapshotRecord* snapshot = FindSnapshot(id);
          if (snapshot == nullptr || snapshot->dataset != KeyNumber<DatasetId>(key, 0) ||
              snapshot->txg != KeyNumber<Txg>(key, 8)) {
            state_.Add("names", state_.NameOf(id), "the index by txg does not fit the snapshot");
          }
          by_txg_.insert(id);
          return absl::OkStatus();
        }));
    return ForEach(state_, Table::kSnapshotsByName, "snapshots by name",
                   [this](std::string_view key, std::string_view value) {
                     const auto id = KeyNumber<SnapshotId>(value, 0);
                     const SnapshotRecord* snapshot = FindSnapshot(id);
                     if (snapshot == nullptr || snapshot->dataset != KeyNumber<DatasetId>(key, 0) ||
                         snapshot->name != key.substr(8)) {
                       state_.Add("names", state_.NameOf(id),
                                  "the index by name does not fit the snapshot");
                     }
                     by_name_.insert(id);
                     return absl::OkStatus();
                   });
  }

  absl::Status CheckClones() {
    RETURN_IF_ERROR(
        ForEach(state_, Table::kClones, "clones", [this](std::string_view key, std::string_view) {
          const auto origin = KeyNumber<SnapshotId>(key, 0);
          const auto id = KeyNumber<DatasetId>(key, 8);
          const auto clone = state_.datasets.find(id);
          if (clone == state_.datasets.end() || clone->second.origin != origin) {
            state_.Add("names", state_.NameOf(origin),
                       StrCat("is indexed as the origin of ", state_.NameOf(id),
                              ", which is no clone of it"));
            return absl::OkStatus();
          }
          indexed_clones_.insert(id);
          SnapshotCounts& counts = of_snapshot_[origin];
          ++counts.all_clones;
          counts.clones += !state_.IsDestroyed(id);
          return absl::OkStatus();
        }));
    for (const auto& [id, dataset] : state_.datasets) {
      if (dataset.origin == SnapshotId{}) {
        if (dataset.origin_txg != 0) {
          state_.Add("names", state_.NameOf(id), "has an origin txg and no origin");
        }
        continue;
      }
      const SnapshotRecord* origin = FindSnapshot(dataset.origin);
      if (origin == nullptr || origin->txg != dataset.origin_txg) {
        state_.Add("names", state_.NameOf(id), "its origin does not exist or has another txg");
      }
      if (!indexed_clones_.contains(id)) {
        state_.Add("names", state_.NameOf(id), "is a clone that its origin's index lacks");
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckHolds() {
    return ForEach(
        state_, Table::kHolds, "holds", [this](std::string_view key, std::string_view value) {
          const auto id = KeyNumber<SnapshotId>(key, 0);
          ASSIGN_OR_RETURN(const HoldRecord hold, HoldRecord::Decode(value));
          if (FindSnapshot(id) == nullptr) {
            state_.Add("names", state_.NameOf(id), "is held and does not exist");
          }
          ++of_snapshot_[id].holds;
          if (hold.expire_time_ms != 0) {
            expiring_.insert(
                std::string(Key(static_cast<uint64_t>(hold.expire_time_ms), id, key.substr(8))));
          }
          return absl::OkStatus();
        });
  }

  void CheckSnapshots() {
    for (const auto& [id, snapshot] : state_.snapshots) {
      if (state_.condemned.contains(snapshot.dataset)) continue;
      const std::string name = state_.NameOf(id);
      const SnapshotCounts& counts = of_snapshot_[id];
      state_.ExpectSum("clones", name, snapshot.clones, counts.clones);
      state_.ExpectSum("all_clones", name, snapshot.all_clones, counts.all_clones);
      state_.ExpectSum("holds", name, snapshot.holds, counts.holds);
      if (!by_txg_.contains(id)) state_.Add("names", name, "the index by txg lacks the snapshot");
      if (snapshot.visible() != by_name_.contains(id) ||
          snapshot.visible() == snapshot.name.empty()) {
        state_.Add("names", name, "the snapshot's name, state and index by name disagree");
      }
      if (snapshot.dying && counts.all_clones + counts.holds != 0) {
        state_.Add("names", name, "is being taken out and has clones or holds");
      }
      // Of a destroyed dataset they go, or come back, with it.
      if ((snapshot.hidden || snapshot.deferred) && !snapshot.dying &&
          !state_.IsDestroyed(snapshot.dataset) && !state_.rebuild_snapshots.contains(id) &&
          counts.all_clones + counts.holds == 0) {
        state_.Add("names", name, "waits for clones and holds and has none");
      }
      Counts& dataset = of_dataset_[snapshot.dataset];
      ++dataset.all_snapshots;
      dataset.snapshots += snapshot.visible();
      dataset.deferred_snapshots += snapshot.visible() && snapshot.deferred;
      dataset.clones += counts.clones;
      dataset.dependents += counts.all_clones + counts.holds;
      dataset.newest_snapshot_txg = std::max(dataset.newest_snapshot_txg, snapshot.txg);
    }
  }

  void CheckDatasets() {
    for (const auto& [id, dataset] : state_.datasets) {
      const std::string name = state_.NameOf(id);
      const Counts& counts = of_dataset_[id];
      state_.ExpectSum("snapshots", name, dataset.snapshots, counts.snapshots);
      state_.ExpectSum("deferred_snapshots", name, dataset.deferred_snapshots,
                       counts.deferred_snapshots);
      state_.ExpectSum("all_snapshots", name, dataset.all_snapshots, counts.all_snapshots);
      state_.ExpectSum("clones", name, dataset.clones, counts.clones);
      state_.ExpectSum("dependents", name, dataset.dependents, counts.dependents);
      state_.ExpectSum("newest_snapshot_txg", name, dataset.newest_snapshot_txg,
                       counts.newest_snapshot_txg);
      if (dataset.doomed && !dataset.kept && counts.dependents == 0) {
        state_.Add("names", name, "is destroyed, waits for dependents and has none");
      }
      if (dataset.expire_time_ms != 0 && !dataset.doomed) {
        expiring_.insert(std::string(Key(static_cast<uint64_t>(dataset.expire_time_ms), id)));
      }
    }
  }

  absl::Status CheckExpiry() {
    RETURN_IF_ERROR(
        ForEach(state_, Table::kExpiry, "expiry", [this](std::string_view key, std::string_view) {
          if (expiring_.erase(std::string(key)) == 0) {
            state_.Add("names", "expiry",
                       StrCat("an entry of object #", KeyNumber<uint64_t>(key, 8),
                              " fits no dataset and no hold"));
          }
          return absl::OkStatus();
        }));
    for (const std::string& key : expiring_) {
      state_.Add("names", "expiry",
                 StrCat("object #", KeyNumber<uint64_t>(key, 8), " expires and is not indexed"));
    }
    return absl::OkStatus();
  }

  // What a window keeps, its datasets know of, and the other way round.
  absl::Status CheckWindows() {
    std::set<DatasetId> kept;
    std::set<OperationId> open;
    RETURN_IF_ERROR(
        ForEach(state_, Table::kStates, "states", [&](std::string_view key, std::string_view) {
          const auto kind = KeyNumber<StateKey>(key, 0);
          if (kind == StateKey::kWindow) open.insert(KeyNumber<OperationId>(key, 9));
          if (kind != StateKey::kKept) return absl::OkStatus();
          const auto id = KeyNumber<DatasetId>(key, 9);
          const auto dataset = state_.datasets.find(id);
          if (dataset == state_.datasets.end() || !dataset->second.doomed ||
              !dataset->second.kept ||
              dataset->second.operation != KeyNumber<OperationId>(key, 1)) {
            state_.Add("names", state_.NameOf(id), "a window keeps it and it does not know of it");
          }
          kept.insert(id);
          return absl::OkStatus();
        }));
    for (const auto& [id, dataset] : state_.datasets) {
      if (dataset.kept && (!kept.contains(id) || !open.contains(dataset.operation))) {
        state_.Add("names", state_.NameOf(id), "waits for a window that is not open");
      }
    }
    for (const auto& [id, operation] : state_.operations) {
      if (IsWaiting(operation) && !open.contains(id)) {
        state_.Add("names", StrCat("operations/", static_cast<uint64_t>(id)),
                   "waits for a window that is not open");
      }
    }
    return absl::OkStatus();
  }

  CheckState& state_;
  std::set<SnapshotId> by_txg_;
  std::set<SnapshotId> by_name_;
  std::set<DatasetId> indexed_clones_;
  std::set<std::string> expiring_;  // keys that the expiry index must have
  std::map<SnapshotId, SnapshotCounts> of_snapshot_;
  std::map<DatasetId, Counts> of_dataset_;
};

}  // namespace

absl::Status CheckNames(CheckState& state) { return NameChecker(state).Run(); }
absl::Status CheckIndexes(CheckState& state) { return IndexChecker(state).Run(); }

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
#include <functional>

#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/repair_state.h"
#include "engine/store/lmdb_pages.h"
#include "engine/store/meta_tables.h"
#include "engine/trim.h"

namespace cowshed::engine {
namespace {

constexpr size_t kIdBytes = 8;

// Puts a record into its map, unless there is one. False if it does not decode.
template <typename Id, typename Record>
bool Keep(std::string_view key, std::string_view value, std::map<Id, Record>* records) {
  absl::StatusOr<Record> record = Record::Decode(value);
  if (!record.ok() || key.size() != kIdBytes) return false;
  records->emplace(KeyNumber<Id>(key, 0), *std::move(record));
  return true;
}

bool KeepHold(std::string_view key, std::string_view value, RepairState* state) {
  absl::StatusOr<HoldRecord> record = HoldRecord::Decode(value);
  if (!record.ok() || key.size() < kIdBytes) return false;
  state->holds.emplace(std::pair(KeyNumber<SnapshotId>(key, 0), std::string(key.substr(kIdBytes))),
                       *std::move(record));
  return true;
}

// Remembers what an index says. Its records are made anew, so one that makes no sense is no loss.
void KeepIndex(Table table, std::string_view key, std::string_view value, RepairState* state) {
  if (table == Table::kNames && key.size() > kIdBytes) {
    const absl::StatusOr<NameRecord> name = NameRecord::Decode(value);
    if (name.ok() && name->dataset != DatasetId{}) {
      state->named[name->dataset] = {KeyNumber<DirectoryId>(key, 0),
                                     std::string(key.substr(kIdBytes))};
    }
  } else if (table == Table::kSnapshotsByTxg && value.size() == kIdBytes) {
    state->indexed.insert(KeyNumber<SnapshotId>(value, 0));
  } else if (table == Table::kClones && key.size() == 2 * kIdBytes) {
    state->clone_of[KeyNumber<DatasetId>(key, kIdBytes)] = KeyNumber<SnapshotId>(key, 0);
  }
}

bool KeepRecord(Table table, std::string_view key, std::string_view value, RepairState* state) {
  switch (table) {
    case Table::kPool: {
      absl::StatusOr<PoolRecord> record = PoolRecord::Decode(value);
      if (!record.ok()) return false;
      if (!state->pool.has_value()) state->pool = *std::move(record);
      return true;
    }
    case Table::kDirectories:
      return Keep(key, value, &state->directories);
    case Table::kDatasets:
      return Keep(key, value, &state->datasets);
    case Table::kSnapshots:
      return Keep(key, value, &state->snapshots);
    case Table::kJobs:
      return Keep(key, value, &state->jobs);
    case Table::kOperations:
      return Keep(key, value, &state->operations);
    case Table::kHolds:
      return KeepHold(key, value, state);
    case Table::kRequests:
    case Table::kRequestTimes:
      state->replies.emplace(std::pair(table, std::string(key)), std::string(value));
      return true;
    case Table::kStates:
      if (IsLogCut(key)) state->log_cuts.emplace(key, value);
      return true;
    default:
      KeepIndex(table, key, value, state);
      return true;
  }
}

}  // namespace

bool IsLogCut(std::string_view key) {
  const Key prefix(StateKey::kLogCut);
  return key.starts_with(std::string_view(prefix));
}

absl::StatusOr<bool> SalvageRecords(const std::string& path, RepairState* state) {
  ASSIGN_OR_RETURN(const LmdbReport report, WalkLmdb(path, [state](const LmdbEntry& entry) {
                     const std::optional<Table> table = FindTable(entry.table);
                     if (!table.has_value()) return;
                     const auto value = ProveValue(*table, entry.key, entry.value);
                     if (!value.ok() || !KeepRecord(*table, entry.key, *value, state)) {
                       state->damaged.emplace(*table, std::string(entry.key));
                     }
                   }));
  if (!report.ok()) {
    state->plan.push_back(
        StrCat("the metadata's page structure is damaged, what can be reached of it is read: ",
               report.Summary()));
  }
  if (!state->damaged.empty()) {
    state->plan.push_back(StrCat(state->damaged.size(), " values of the metadata are damaged"));
  }
  return report.readable;
}

absl::Status SalvageFromCopy(const std::string& path, Txg copy_txg, RepairState* state) {
  RepairState copy;
  ASSIGN_OR_RETURN(const bool readable, SalvageRecords(path, &copy));
  if (!readable) return absl::OkStatus();
  const auto take = [&](std::string what) {
    state->plan.push_back(StrCat(what, " is taken from the copy of txg ", copy_txg));
  };
  if (!state->pool.has_value() && copy.pool.has_value()) {
    state->pool = copy.pool;
    state->log_is_known = false;
    take("the pool's record");
  }
  // A snapshot never changes but for what is counted anew: where it still is one, the copy is
  // right.
  for (const auto& [id, snapshot] : copy.snapshots) {
    const bool wanted = state->indexed.contains(id) ||
                        state->damaged.contains({Table::kSnapshots, std::string(Key(id))});
    if (!wanted || !state->snapshots.emplace(id, snapshot).second) continue;
    take(StrCat("snapshot #", static_cast<uint64_t>(id)));
  }
  // More of them than needed do no harm: one that stays empty is not written.
  bool took_directories = false;
  for (const auto& [id, directory] : copy.directories) {
    took_directories |= state->MissesDirectory(id);
  }
  if (took_directories) {
    state->directories.insert(copy.directories.begin(), copy.directories.end());
    take("what was lost of the directories");
  }
  for (const auto& [id, operation] : copy.operations) {
    if (!state->damaged.contains({Table::kOperations, std::string(Key(id))})) continue;
    if (state->operations.emplace(id, operation).second) {
      take(StrCat("operation #", static_cast<uint64_t>(id)));
    }
  }
  for (const auto& [key, hold] : copy.holds) {
    const std::string bytes(Key(key.first, std::string_view(key.second)));
    if (!state->damaged.contains({Table::kHolds, bytes})) continue;
    if (state->holds.emplace(key, hold).second) take(StrCat("hold ", key.second));
  }
  // What a head was at the time of the copy may have been written over. Its name, its size and its
  // origin are still good where a snapshot gives it contents.
  for (const auto& [id, dataset] : copy.datasets) {
    const bool wanted = state->named.contains(id) ||
                        state->damaged.contains({Table::kDatasets, std::string(Key(id))});
    if (!wanted || dataset.doomed || state->datasets.contains(id)) continue;
    const std::map<Txg, SnapshotId> own = state->SnapshotsOf(id);
    if (own.empty()) continue;
    DatasetRecord record = dataset;
    record.tree = state->snapshots.at(own.rbegin()->second).tree;
    record.operation = OperationId{};
    state->datasets.emplace(id, std::move(record));
    state->older_heads.insert(id);
    take(StrCat("the record of dataset #", static_cast<uint64_t>(id)));
    state->Lose(state->NameOf(id), "its contents are those of its newest snapshot");
  }
  return absl::OkStatus();
}

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
#include "engine/checker.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/catalog.h"
#include "engine/checker_state.h"
#include "engine/trim.h"

namespace cowshed::engine {
namespace {

constexpr size_t kMaxFindings = 1000;

uint64_t MaskOf(uint64_t begin, uint64_t end, uint64_t word) {
  const uint64_t from = begin > word * 64 ? begin - word * 64 : 0;
  const uint64_t to = std::min<uint64_t>(end - word * 64, 64);
  return (to == 64 ? ~uint64_t{0} : (uint64_t{1} << to) - 1) & ~((uint64_t{1} << from) - 1);
}

// Loads all records of one table, keyed by a number; damaged ones become findings.
template <typename Record, typename Id>
absl::Status LoadAll(CheckState& state, std::string_view what, std::map<Id, Record>* records) {
  MetaCursor cursor(state.txn, Record::kTable);
  cursor.Seek(Key(uint64_t{0}));
  while (true) {
    for (; cursor.valid(); cursor.Next()) {
      const auto id = KeyNumber<Id>(cursor.key(), 0);
      auto record = Record::Decode(cursor.value());
      if (record.ok()) {
        records->emplace(id, *std::move(record));
      } else {
        RETURN_IF_ERROR(
            state.Absorb(record.status(), StrCat(what, " ", static_cast<uint64_t>(id))));
      }
    }
    if (cursor.status().ok()) return absl::OkStatus();
    RETURN_IF_ERROR(state.Absorb(cursor.status(), what));
    cursor.Next();
  }
}

// Rebuilds, and dropped lists; each must fit the dataset it is of.
absl::Status LoadListStates(CheckState& state) {
  const Key prefix(StateKey::kRebuild);
  MetaCursor cursor(state.txn, Table::kStates);
  for (cursor.Seek(prefix); cursor.valid(); cursor.Next()) {
    const auto kind = KeyNumber<StateKey>(cursor.key(), 0);
    if (kind == StateKey::kDroppedList) {
      state.dropped_lists.insert(KeyNumber<LivelistId>(cursor.key(), 1));
    }
    if (kind != StateKey::kRebuild) continue;
    const auto id = KeyNumber<DatasetId>(cursor.key(), 1);
    ASSIGN_OR_RETURN(const RebuildRecord record, RebuildRecord::Decode(cursor.value()));
    state.rebuilds[id] = record;
    if (record.running()) state.rebuild_snapshots.insert(record.snapshot);
  }
  return cursor.status();
}

void CheckRebuilds(CheckState& state) {
  for (const auto& [id, rebuild] : state.rebuilds) {
    const auto dataset = state.datasets.find(id);
    const ListState expected = rebuild.running() ? ListState::kRebuilding : ListState::kDropped;
    if (dataset == state.datasets.end() || dataset->second.doomed ||
        dataset->second.list_state != expected) {
      state.Add("lists", state.NameOf(id), "a rebuild does not fit the state of the livelist");
    }
    if (!rebuild.running()) continue;
    const auto snapshot = state.snapshots.find(rebuild.snapshot);
    if (snapshot == state.snapshots.end() || snapshot->second.dataset != id ||
        snapshot->second.txg != rebuild.txg) {
      state.Add("lists", state.NameOf(id), "the snapshot that its rebuild walks is not there");
    }
  }
  for (const auto& [id, dataset] : state.datasets) {
    if (dataset.list_state == ListState::kRebuilding && !state.rebuilds.contains(id)) {
      state.Add("lists", state.NameOf(id), "nothing rebuilds the livelist that is being rebuilt");
    }
  }
}

absl::Status LoadRecords(CheckState& state) {
  RETURN_IF_ERROR(LoadAll(state, "dataset", &state.datasets));
  RETURN_IF_ERROR(LoadAll(state, "snapshot", &state.snapshots));
  RETURN_IF_ERROR(LoadAll(state, "job", &state.jobs));
  RETURN_IF_ERROR(LoadAll(state, "operation", &state.operations));
  RETURN_IF_ERROR(state.Absorb(LoadListStates(state), "states"));
  CheckRebuilds(state);
  for (const auto& [id, dataset] : state.datasets) {
    if (dataset.doomed) continue;
    const auto detached = Names::IsDetached(state.txn, dataset);
    RETURN_IF_ERROR(state.Absorb(detached.status(), StrCat("dataset ", static_cast<uint64_t>(id))));
    if (detached.ok() && *detached) state.detached.insert(id);
  }
  for (const auto& [id, job] : state.jobs) {
    if (job.kind == JobKind::kDataset && job.dataset != DatasetId{} &&
        !state.datasets.contains(job.dataset)) {
      state.condemned.insert(job.dataset);
    }
  }
  for (const auto& [id, snapshot] : state.snapshots) {
    if (state.condemned.contains(snapshot.dataset)) continue;
    if (!state.datasets.contains(snapshot.dataset)) {
      state.Add("names", state.NameOf(id), "the snapshot's dataset does not exist");
      continue;
    }
    if (!state.snapshots_of[snapshot.dataset].emplace(snapshot.txg, id).second) {
      state.Add("names", state.NameOf(id), "two snapshots of one dataset have the same txg");
    }
  }
  return absl::OkStatus();
}

void CheckJobs(CheckState& state) {
  uint64_t freeing_sectors = 0;
  uint64_t stalled_sectors = 0;
  uint64_t livelist_sectors = 0;
  for (const auto& [id, dataset] : state.datasets) livelist_sectors += dataset.used_sectors;
  std::map<OperationId, uint64_t> waiting;
  for (const auto& [id, job] : state.jobs) {
    freeing_sectors += job.left_sectors;
    if (job.stalled) stalled_sectors += job.left_sectors;
    if (job.kind == JobKind::kDataset) livelist_sectors += job.left_sectors;
    if (job.operation == OperationId{}) continue;
    ++waiting[job.operation];
    if (!state.operations.contains(job.operation)) {
      state.Add("names", CheckState::NameOf(id), "the job's operation does not exist");
    }
  }
  for (const auto& [id, operation] : state.operations) {
    const auto jobs = waiting.find(id);
    const uint64_t at_least = jobs == waiting.end() ? 0 : jobs->second;
    const std::string name = StrCat("operations/", static_cast<uint64_t>(id));
    if (operation.jobs_left < at_least) {
      state.Add("sums", name,
                StrCat("waits for ", operation.jobs_left, " things, but ", at_least,
                       " jobs are queued for it"));
    }
    const auto done = static_cast<OperationState>(operation.state) == OperationState::kSucceeded;
    if (done && operation.jobs_left != 0) {
      state.Add("sums", name, "is done and waits for jobs");
    }
  }
  state.ExpectSum("jobs", "pool", state.pool.jobs, state.jobs.size());
  state.ExpectSum("freeing_sectors", "pool", state.pool.freeing_sectors, freeing_sectors);
  state.ExpectSum("stalled_sectors", "pool", state.pool.stalled_sectors, stalled_sectors);
  state.ExpectSum("livelist_sectors", "pool", state.pool.livelist_sectors, livelist_sectors);
}

void CheckPoolCounts(CheckState& state) {
  uint64_t datasets = 0, clones = 0, snapshots = 0, deferred = 0, holds = 0;
  uint64_t waiting = 0, waiting_sectors = 0;
  for (const auto& [id, dataset] : state.datasets) {
    if (state.IsDestroyed(id)) {
      ++waiting;
      waiting_sectors += dataset.used_sectors;
      continue;
    }
    ++datasets;
    clones += dataset.origin != SnapshotId{};
  }
  for (const auto& [id, snapshot] : state.snapshots) {
    if (state.IsDestroyed(snapshot.dataset)) continue;
    snapshots += snapshot.visible();
    deferred += snapshot.visible() && snapshot.deferred;
    holds += snapshot.holds;
  }
  state.ExpectSum("datasets", "pool", state.pool.datasets, datasets);
  state.ExpectSum("clones", "pool", state.pool.clones, clones);
  state.ExpectSum("snapshots", "pool", state.pool.snapshots, snapshots);
  state.ExpectSum("deferred_snapshots", "pool", state.pool.deferred_snapshots, deferred);
  state.ExpectSum("holds", "pool", state.pool.holds, holds);
  state.ExpectSum("waiting_items", "pool", state.pool.waiting_items, waiting);
  state.ExpectSum("waiting_sectors", "pool", state.pool.waiting_sectors, waiting_sectors);
  // Doomed datasets and jobs own their livelists until they are done.
  uint64_t livelists = state.datasets.size();
  uint64_t livelist_sectors = 0;
  for (const auto& [id, dataset] : state.datasets) livelist_sectors += dataset.used_sectors;
  for (const auto& [id, job] : state.jobs) {
    if (job.kind != JobKind::kDataset) continue;
    ++livelists;
    livelist_sectors += job.left_sectors;
  }
  state.ExpectSum("livelists", "pool", state.pool.livelists, livelists);
  state.ExpectSum("livelist_sectors", "pool", state.pool.livelist_sectors, livelist_sectors);
  state.report.dataset_count = datasets;
  state.report.snapshot_count = snapshots;
}

}  // namespace

std::string Describe(const Run& run) {
  return StrCat("sectors [", run.address, ", ", run.end(), ") born in txg ", run.birth);
}

Txg GreatestBelow(const std::vector<Txg>& rising, Txg birth) {
  const auto it = std::lower_bound(rising.begin(), rising.end(), birth);
  return it == rising.begin() ? 0 : *std::prev(it);
}

uint64_t SectorSet::Add(uint64_t begin, uint64_t end) {
  end = std::min(end, words_.size() * 64);
  uint64_t added = 0;
  for (uint64_t word = begin / 64; begin < end && word * 64 < end; ++word) {
    const uint64_t fresh = MaskOf(begin, end, word) & ~words_[word];
    words_[word] |= fresh;
    added += static_cast<uint64_t>(std::popcount(fresh));
  }
  return added;
}

uint64_t SectorSet::CountIn(uint64_t begin, uint64_t end) const {
  end = std::min(end, words_.size() * 64);
  uint64_t count = 0;
  for (uint64_t word = begin / 64; begin < end && word * 64 < end; ++word) {
    count += static_cast<uint64_t>(std::popcount(words_[word] & MaskOf(begin, end, word)));
  }
  return count;
}

void CheckState::Add(std::string_view invariant, std::string_view name, std::string message) {
  ++report.total_findings;
  if (report.findings.size() >= kMaxFindings) return;
  report.findings.push_back({std::string(invariant), std::string(name), std::move(message)});
}

absl::Status CheckState::Absorb(const absl::Status& status, std::string_view name) {
  if (!absl::IsDataLoss(status)) return status;
  Add("damage", name, std::string(StdView(status.message())));
  return absl::OkStatus();
}

void CheckState::ExpectSum(std::string_view what, std::string_view name, uint64_t stored,
                           uint64_t counted) {
  if (stored == counted) return;
  Add("sums", name, StrCat(what, " is recorded as ", stored, " but is ", counted));
}

std::string CheckState::NameOf(DatasetId id) const {
  const auto it = datasets.find(id);
  if (it != datasets.end()) {
    const auto name = Names::FullName(txn, it->second);
    if (name.ok()) return *name;
  }
  return StrCat("dataset #", static_cast<uint64_t>(id));
}

std::string CheckState::NameOf(SnapshotId id) const {
  const auto it = snapshots.find(id);
  if (it == snapshots.end()) return StrCat("snapshot #", static_cast<uint64_t>(id));
  const SnapshotRecord& record = it->second;
  return SnapshotFullName(NameOf(record.dataset), record.name.empty()
                                                      ? StrCat("#", static_cast<uint64_t>(id))
                                                      : record.name);
}

std::string CheckState::NameOf(JobId id) { return StrCat("job #", static_cast<uint64_t>(id)); }

CheckState::Previous CheckState::PreviousOf(DatasetId dataset, Txg below) const {
  if (const auto own = snapshots_of.find(dataset); own != snapshots_of.end()) {
    const auto next = own->second.lower_bound(below);
    if (next != own->second.begin()) return {std::prev(next)->second, std::prev(next)->first};
  }
  const auto it = datasets.find(dataset);
  if (it == datasets.end()) return {};
  return {it->second.origin, it->second.origin_txg};
}

size_t CheckState::FirstOwnedBehind(uint64_t sector) const {
  const auto it = std::upper_bound(
      owned.begin(), owned.end(), sector,
      [](uint64_t at, const OwnedRun& owned_run) { return at < owned_run.run.end(); });
  return static_cast<size_t>(it - owned.begin());
}

absl::StatusOr<CheckReport> CheckPool(const MetaTxn& txn, const BlockStore& blocks,
                                      const PoolUid& uid) {
  ASSIGN_OR_RETURN(PoolRecord pool, LoadRecord<PoolRecord>(txn, PoolRecord::kKey));
  CheckState state(txn, blocks, std::move(pool));
  state.report.txg = state.pool.txg;
  if (state.pool.uid != uid) {
    state.Add("damage", "pool", "the metadata belongs to another pool");
  }
  RETURN_IF_ERROR(LoadRecords(state));
  RETURN_IF_ERROR(CheckNames(state));
  RETURN_IF_ERROR(CheckIndexes(state));
  RETURN_IF_ERROR(CollectOwned(state));
  RETURN_IF_ERROR(CheckTrees(state));
  RETURN_IF_ERROR(CheckDeadlists(state));
  RETURN_IF_ERROR(CheckLogHolders(state));
  RETURN_IF_ERROR(CheckSpace(state));
  CheckJobs(state);
  CheckPoolCounts(state);
  return std::move(state.report);
}

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// What the parts of the checker share: the records of the pool, loaded once, who owns which sectors
// according to the livelists and jobs, and the report.
//
//   checker.cc         loads, runs the parts in order, sums of the pool
//   checker_names.cc   names, directories, snapshot indexes, clones, holds, expiry
//   checker_owned.cc   livelists and jobs: who has which sectors
//   checker_lists.cc   deadlists; holders of logs
//   checker_trees.cc   trees: references, births, sums of heads and snapshots
//   checker_space.cc   the allocator's bitmaps and free log
//
// Threads     Externally synchronised.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "engine/store/block_store.h"
#include "engine/store/records.h"
#include "engine/types.h"

namespace cowshed::engine {

// A set of sectors of the pool.
class SectorSet {
 public:
  explicit SectorSet(uint64_t capacity_sectors) : words_((capacity_sectors + 63) / 64) {}

  // Adds [begin, end), as far as it lies within the pool; returns how many were new.
  uint64_t Add(uint64_t begin, uint64_t end);
  bool Contains(uint64_t sector) const {
    return sector / 64 < words_.size() && (words_[sector / 64] >> (sector % 64) & 1) != 0;
  }
  uint64_t CountIn(uint64_t begin, uint64_t end) const;
  // Calls `visit(begin, end)` for each maximal run that is here and not in `other`.
  template <typename Visit>
  void VisitDifference(const SectorSet& other, const Visit& visit) const {
    std::optional<uint64_t> begin;
    for (uint64_t word = 0; word <= words_.size(); ++word) {
      const uint64_t bits = word < words_.size() ? words_[word] & ~other.words_[word] : 0;
      if (bits == 0 && !begin.has_value()) continue;
      for (uint64_t bit = 0; bit < 64; ++bit) {
        const bool set = (bits >> bit & 1) != 0;
        if (set == begin.has_value()) continue;
        if (!set) visit(*begin, word * 64 + bit);
        begin = set ? std::optional(word * 64 + bit) : std::nullopt;
      }
    }
  }

 private:
  std::vector<uint64_t> words_;
};

// Who has a run: a dataset by its livelist, or a job.
struct Owner {
  std::string name;
  bool is_job = false;
};
inline constexpr uint32_t kNobody = UINT32_MAX;
struct OwnedRun {
  Run run;
  uint32_t owner = kNobody;  // in CheckState::owners
};

// What a tree holds, recomputed.
struct TreeSums {
  uint64_t sectors = 0;
  uint64_t data_blocks = 0;
  uint64_t written_sectors = 0;
  bool damaged = false;  // part of it could not be read: the sums mean nothing
};

std::string Describe(const Run& run);
// The greatest of `rising` below `birth`; 0 if there is none.
Txg GreatestBelow(const std::vector<Txg>& rising, Txg birth);

struct CheckState {
  CheckState(const MetaTxn& meta, const BlockStore& store, PoolRecord record)
      : txn(meta),
        blocks(store),
        pool(std::move(record)),
        referenced(pool.capacity_sectors),
        in_jobs(pool.capacity_sectors) {}

  const MetaTxn& txn;
  const BlockStore& blocks;
  const PoolRecord pool;
  CheckReport report;

  std::map<DatasetId, DatasetRecord> datasets;  // doomed ones too
  std::map<SnapshotId, SnapshotRecord> snapshots;
  std::map<DatasetId, std::map<Txg, SnapshotId>> snapshots_of;  // hidden and dying ones too
  std::map<JobId, JobRecord> jobs;
  std::map<OperationId, OperationRecord> operations;
  std::map<DatasetId, RebuildRecord> rebuilds;  // queued ones too
  std::set<SnapshotId> rebuild_snapshots;
  std::set<LivelistId> dropped_lists;  // to be forgotten
  // Datasets that are gone but for snapshot records which a job takes away bit by bit.
  std::set<DatasetId> condemned;
  // Destroyed with their prefix, and not taken apart yet.
  std::set<DatasetId> detached;

  std::vector<Owner> owners;
  std::map<DatasetId, uint32_t> owner_of;
  std::vector<OwnedRun> owned;  // by address
  SectorSet referenced;         // by a tree
  SectorSet in_jobs;
  std::map<DatasetId, TreeSums> head_sums;
  std::map<SnapshotId, TreeSums> snapshot_sums;

  void Add(std::string_view invariant, std::string_view name, std::string message);
  // Adds a DATA_LOSS as damage, and returns OK; returns any other error.
  absl::Status Absorb(const absl::Status& status, std::string_view name);
  // Adds a finding unless `stored` is `counted`.
  void ExpectSum(std::string_view what, std::string_view name, uint64_t stored, uint64_t counted);

  std::string NameOf(DatasetId id) const;
  std::string NameOf(SnapshotId id) const;
  static std::string NameOf(JobId id);

  // Not visible any more, though its record is still there.
  bool IsDestroyed(DatasetId id) const {
    const auto it = datasets.find(id);
    return it == datasets.end() || it->second.doomed || detached.contains(id);
  }
  // The snapshot whose blocks a head (`below` = UINT64_MAX) or own snapshot of that txg stands on:
  // the own one next below, else the origin; 0 and txg 0 if it stands on nothing.
  struct Previous {
    SnapshotId id{};
    Txg txg = 0;
  };
  Previous PreviousOf(DatasetId dataset, Txg below) const;
  // Calls `visit` for each owned run that shares sectors with `run`; returns whether they cover it.
  template <typename Visit>
  bool VisitOwners(const Run& run, const Visit& visit) const {
    uint64_t covered = run.address;
    for (size_t i = FirstOwnedBehind(run.address); i < owned.size(); ++i) {
      if (owned[i].run.address > covered || covered >= run.end()) break;
      visit(owned[i]);
      covered = owned[i].run.end();
    }
    return covered >= run.end();
  }
  // Index in `owned` of the first run that ends behind `sector`.
  size_t FirstOwnedBehind(uint64_t sector) const;
};

// The parts, in the order in which they run. Each adds findings and returns an error only if it
// cannot go on.
absl::Status CheckNames(CheckState& state);
absl::Status CheckIndexes(CheckState& state);
absl::Status CollectOwned(CheckState& state);
absl::Status CheckTrees(CheckState& state);
absl::Status CheckDeadlists(CheckState& state);
absl::Status CheckLogHolders(CheckState& state);
absl::Status CheckSpace(CheckState& state);

}  // namespace cowshed::engine

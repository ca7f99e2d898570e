// SPDX-License-Identifier: Apache-2.0
#include "engine/destroy_plan.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/hash.h"
#include "engine/base/status_macros.h"
#include "engine/tree/dead_list.h"
#include "engine/tree/live_list.h"

namespace cowshed::engine {
namespace {

constexpr size_t kNamesInPlan = 100;

std::string EtagOfPlan(uint64_t hash) { return absl::StrCat(absl::Hex(hash, absl::kZeroPad16)); }

struct Held {
  uint64_t sectors = 0;
  uint64_t entries = 0;
};

// What `list` has that was born above `floor`. Of a tail all entries count as read.
absl::StatusOr<Held> HeldAbove(const MetaTxn& txn, DeadlistId list, Txg floor) {
  Held held;
  ASSIGN_OR_RETURN(const SectorSums sums, DeadList::SumAbove(txn, list, floor));
  held.sectors = sums.total();
  ASSIGN_OR_RETURN(const std::vector<DeadBucket> buckets, DeadList::Buckets(txn, list));
  for (const DeadBucket& bucket : buckets) {
    if (bucket.start >= floor) held.entries += bucket.record.entries;
  }
  ASSIGN_OR_RETURN(const uint64_t tail, DeadList::TailEntries(txn, list));
  held.entries += tail;
  return held;
}

// What goes when all of `going`, own snapshots of `owner`, do: stretch by stretch.
absl::StatusOr<Held> HeldBySet(const MetaTxn& txn, DatasetId owner,
                               const std::set<SnapshotId>& going) {
  Held total;
  if (going.empty()) return total;
  ASSIGN_OR_RETURN(const DatasetRecord dataset, LoadRecord<DatasetRecord>(txn, Key(owner)));
  ASSIGN_OR_RETURN(const std::vector<Neighbour> snapshots, SnapshotsAbove(txn, owner, 0));
  std::optional<Txg> floor;  // of the stretch under way: the txg of the snapshot before it
  Txg before = dataset.origin_txg;
  const auto add = [&](DeadlistId following) -> absl::Status {
    ASSIGN_OR_RETURN(const Held held, HeldAbove(txn, following, *floor));
    total.sectors += held.sectors;
    total.entries += held.entries;
    return absl::OkStatus();
  };
  for (const Neighbour& snapshot : snapshots) {
    if (floor.has_value()) {
      ASSIGN_OR_RETURN(const SnapshotRecord record,
                       LoadRecord<SnapshotRecord>(txn, Key(snapshot.id)));
      RETURN_IF_ERROR(add(record.deadlist));
    }
    if (!going.contains(snapshot.id)) {
      floor.reset();
    } else if (!floor.has_value()) {
      floor = before;
    }
    before = snapshot.txg;
  }
  if (floor.has_value()) RETURN_IF_ERROR(add(dataset.deadlist));
  return total;
}

// As above, beyond what snapshots that are dying already take along.
absl::StatusOr<Held> HeldBesidesDying(const MetaTxn& txn, DatasetId owner,
                                      std::set<SnapshotId> going) {
  std::set<SnapshotId> dying;
  ASSIGN_OR_RETURN(const std::vector<Neighbour> snapshots, SnapshotsAbove(txn, owner, 0));
  for (const Neighbour& snapshot : snapshots) {
    ASSIGN_OR_RETURN(const SnapshotRecord record,
                     LoadRecord<SnapshotRecord>(txn, Key(snapshot.id)));
    if (record.dying) dying.insert(snapshot.id);
  }
  ASSIGN_OR_RETURN(const Held by_dying, HeldBySet(txn, owner, dying));
  going.insert(dying.begin(), dying.end());
  ASSIGN_OR_RETURN(Held held, HeldBySet(txn, owner, going));
  held.sectors -= std::min(held.sectors, by_dying.sectors);
  held.entries -= std::min(held.entries, by_dying.entries);
  return held;
}

// Follows what goes along when datasets go: destroyed datasets that only waited for a clone, and
// hidden or deferred snapshots.
class GoingAlong {
 public:
  GoingAlong(const MetaTxn& txn, const std::vector<FoundDataset>& targets) : txn_(txn) {
    for (const FoundDataset& target : targets) targets_.insert(target.id);
  }

  // `dataset` goes: its origin has one clone less.
  absl::Status Follow(DatasetRecord dataset) {
    while (true) {
      RETURN_IF_ERROR(ForecastLivelist(txn_, dataset.livelist, &forecast_));
      ++forecast_.jobs;
      sectors_ += dataset.used_sectors;
      if (dataset.origin == SnapshotId{}) return absl::OkStatus();
      ASSIGN_OR_RETURN(const SnapshotRecord origin,
                       LoadRecord<SnapshotRecord>(txn_, Key(dataset.origin)));
      if (targets_.contains(origin.dataset)) return absl::OkStatus();
      ASSIGN_OR_RETURN(DatasetRecord owner, LoadRecord<DatasetRecord>(txn_, Key(origin.dataset)));
      const uint64_t clones_gone = ++clones_gone_[dataset.origin];
      const uint64_t dependents_gone = ++dependents_gone_[origin.dataset];
      if (!owner.doomed) {
        const bool waited = (origin.hidden || origin.deferred) && !origin.dying;
        const bool needed = origin.all_clones > clones_gone || origin.holds > 0;
        if (waited && !needed) snapshots_[origin.dataset].insert(dataset.origin);
        return absl::OkStatus();
      }
      if (owner.kept || owner.dependents > dependents_gone) return absl::OkStatus();
      dataset = std::move(owner);
    }
  }

  absl::Status Finish(const ReclaimPacer& pacer, DestroyPlan* plan) {
    for (const auto& [owner, snapshots] : snapshots_) {
      ASSIGN_OR_RETURN(const Held held, HeldBesidesDying(txn_, owner, snapshots));
      sectors_ += held.sectors;
      forecast_.entries += held.entries;
      forecast_.runs += held.entries;
      forecast_.jobs += snapshots.size();
    }
    plan->freed_bytes = sectors_ * kSectorBytes;
    plan->entries = forecast_.entries;
    plan->predicted_seconds = pacer.PredictSeconds(forecast_);
    return absl::OkStatus();
  }

  void AddSnapshot(DatasetId owner, SnapshotId snapshot) { snapshots_[owner].insert(snapshot); }

 private:
  const MetaTxn& txn_;
  std::set<DatasetId> targets_;
  std::map<SnapshotId, uint64_t> clones_gone_;
  std::map<DatasetId, uint64_t> dependents_gone_;
  std::map<DatasetId, std::set<SnapshotId>> snapshots_;
  uint64_t sectors_ = 0;
  ReclaimForecast forecast_;
};

}  // namespace

DestroyPlan PlanDatasets(const std::vector<FoundDataset>& targets) {
  DestroyPlan plan;
  uint64_t hash = 0;
  for (const FoundDataset& dataset : targets) {
    const DatasetRecord& record = dataset.record;
    ++plan.dataset_count;
    plan.snapshot_count += record.snapshots;
    plan.freed_bytes += record.used_sectors * kSectorBytes;
    if (plan.names.size() < kNamesInPlan) plan.names.push_back(dataset.name);
    const Key facts(dataset.id, record.revision, record.newest_snapshot_txg, record.snapshots,
                    record.dependents);
    hash += Hash64(std::string_view(facts));  // a set: the order does not matter
  }
  plan.plan_etag = EtagOfPlan(hash);
  return plan;
}

DestroyPlan PlanSnapshots(const std::vector<FoundSnapshot>& targets) {
  DestroyPlan plan;
  uint64_t hash = 0;
  for (const FoundSnapshot& snapshot : targets) {
    const SnapshotRecord& record = snapshot.record;
    ++plan.snapshot_count;
    if (record.all_clones + record.holds > 0) ++plan.deferred_count;
    if (plan.names.size() < kNamesInPlan) plan.names.push_back(snapshot.name);
    const Key facts(snapshot.id, record.all_clones, record.holds);
    hash += Hash64(std::string_view(facts));
  }
  plan.plan_etag = EtagOfPlan(hash);
  return plan;
}

absl::Status ForecastLivelist(const MetaTxn& txn, LivelistId livelist, ReclaimForecast* forecast) {
  ASSIGN_OR_RETURN(const std::vector<Sublist> sublists, LiveList::List(txn, livelist));
  for (const Sublist& sublist : sublists) {
    const SublistRecord& record = sublist.record;
    forecast->entries += record.entries;
    if (record.allocated.total() == 0) continue;
    // As many runs as entries where all is alive, in proportion fewer where most is freed.
    const double live =
        static_cast<double>(record.live_sectors()) / static_cast<double>(record.allocated.total());
    forecast->runs += static_cast<uint64_t>(static_cast<double>(record.entries) * live);
  }
  return absl::OkStatus();
}

absl::Status ForecastDatasets(const MetaTxn& txn, const ReclaimPacer& pacer,
                              const std::vector<FoundDataset>& targets, DestroyPlan* plan) {
  GoingAlong along(txn, targets);
  for (const FoundDataset& target : targets) RETURN_IF_ERROR(along.Follow(target.record));
  return along.Finish(pacer, plan);
}

absl::Status ForecastSnapshots(const MetaTxn& txn, const ReclaimPacer& pacer,
                               const std::vector<FoundSnapshot>& targets, DestroyPlan* plan) {
  GoingAlong along(txn, {});
  for (const FoundSnapshot& target : targets) {
    if (target.record.all_clones + target.record.holds > 0) continue;  // only marked
    along.AddSnapshot(target.record.dataset, target.id);
  }
  return along.Finish(pacer, plan);
}

}  // namespace cowshed::engine

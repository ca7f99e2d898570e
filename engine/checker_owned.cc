// SPDX-License-Identifier: Apache-2.0
//
// Livelists and jobs: who has which sectors. A dataset whose livelist is missing has what a walk of
// its trees finds.
#include <algorithm>

#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/checker_state.h"
#include "engine/stats.h"
#include "engine/tree/dead_list.h"
#include "engine/tree/live_list.h"
#include "engine/tree/tree_geometry.h"

namespace cowshed::engine {
namespace {

class OwnedCollector {
 public:
  explicit OwnedCollector(CheckState& state) : state_(state) {}

  absl::Status Collect() {
    for (const auto& [id, dataset] : state_.datasets) {
      RETURN_IF_ERROR(CollectDataset(id, dataset));
    }
    for (const auto& [id, job] : state_.jobs) RETURN_IF_ERROR(CollectJob(id, job));
    std::sort(state_.owned.begin(), state_.owned.end(),
              [](const OwnedRun& a, const OwnedRun& b) { return a.run.address < b.run.address; });
    for (size_t i = 1; i < state_.owned.size(); ++i) {
      const OwnedRun& before = state_.owned[i - 1];
      const OwnedRun& owned = state_.owned[i];
      if (before.run.end() <= owned.run.address) continue;
      state_.Add("I1", state_.owners[owned.owner].name,
                 StrCat("has ", Describe(owned.run), ", and ", state_.owners[before.owner].name,
                        " has ", Describe(before.run)));
    }
    return absl::OkStatus();
  }

 private:
  uint32_t AddOwner(std::string name, bool is_job) {
    state_.owners.push_back({std::move(name), is_job});
    return static_cast<uint32_t>(state_.owners.size() - 1);
  }

  uint64_t Own(uint32_t owner, const Run& run) {
    state_.owned.push_back({run, owner});
    if (state_.owners[owner].is_job) state_.in_jobs.Add(run.address, run.end());
    return run.sectors;
  }

  absl::Status CollectDataset(DatasetId id, const DatasetRecord& dataset) {
    const std::string name = state_.NameOf(id);
    const uint32_t owner = AddOwner(name, /*is_job=*/false);
    state_.owner_of[id] = owner;
    std::vector<Txg> fences;
    if (const auto own = state_.snapshots_of.find(id); own != state_.snapshots_of.end()) {
      for (const auto& [txg, snapshot] : own->second) fences.push_back(txg);
    }
    if (dataset.list_state != ListState::kWhole) {
      return CollectMissing(id, dataset, fences, name, owner);
    }
    std::vector<Run> runs;
    const absl::Status read =
        ReadList({name, dataset.livelist, dataset.origin_txg, UINT64_MAX}, fences, &runs);
    uint64_t sectors = 0;
    for (const Run& run : runs) sectors += Own(owner, run);
    if (read.ok()) state_.ExpectSum("used_sectors", name, dataset.used_sectors, sectors);
    if (absl::IsDataLoss(read)) {
      state_.report.damaged_livelists.push_back(static_cast<uint64_t>(id));
    }
    return state_.Absorb(read, name);
  }

  // A list, and the births that it may hold: those in (after, up_to].
  struct ListToRead {
    const std::string& name;
    LivelistId list;
    Txg after;
    Txg up_to;
  };
  // Appends the survivors of a list and checks that each lies in its sublist. Reads on past damage
  // and returns the first.
  absl::Status ReadList(const ListToRead& what, const std::vector<Txg>& fences,
                        std::vector<Run>* runs) {
    ASSIGN_OR_RETURN(const auto sublists, LiveList::List(state_.txn, what.list));
    absl::Status damage;
    for (size_t i = 0; i < sublists.size(); ++i) {
      const Txg start = sublists[i].start;
      const Txg end = i + 1 < sublists.size() ? sublists[i + 1].start : what.up_to;
      const auto survivors = LiveList::Survivors(state_.txn, what.list, start);
      if (!survivors.ok()) {
        damage.Update(survivors.status());
        continue;
      }
      for (const Run& run : *survivors) {
        runs->push_back(run);
        if (run.birth <= what.after || run.birth <= start || run.birth > end ||
            GreatestBelow(fences, run.birth) > start) {
          state_.Add("I6", what.name,
                     StrCat(Describe(run), " do not belong into the sublist from txg ", start));
        }
      }
    }
    return damage;
  }

  // A dataset without a whole list has what its destruction would find in its trees. What was
  // logged and found during a rebuild must be a part of that.
  absl::Status CollectMissing(DatasetId id, const DatasetRecord& dataset,
                              const std::vector<Txg>& fences, const std::string& name,
                              uint32_t owner) {
    JobRecord walk;
    walk.dataset = id;
    walk.tree = dataset.tree;
    walk.min_birth = state_.PreviousOf(id, UINT64_MAX).txg;
    walk.origin_txg = dataset.origin_txg;
    uint64_t sectors = 0;
    const size_t first = state_.owned.size();
    if (const absl::Status walked = CollectTrees(walk, owner, &sectors); !walked.ok()) {
      return state_.Absorb(walked, name);
    }
    state_.ExpectSum("used_sectors", name, dataset.used_sectors, sectors);
    const auto rebuild = state_.rebuilds.find(id);
    const bool running = rebuild != state_.rebuilds.end() && rebuild->second.running();
    const Txg pinned = running ? rebuild->second.txg : UINT64_MAX;
    uint64_t later_sectors = 0;
    for (size_t i = first; i < state_.owned.size(); ++i) {
      const Run& run = state_.owned[i].run;
      if (run.birth > pinned) later_sectors += run.sectors;
    }
    absl::Status read = ComparePart({name, dataset.livelist, pinned, UINT64_MAX}, fences,
                                    "sectors logged during the rebuild", later_sectors);
    if (running) {
      read.Update(ComparePart({name, rebuild->second.shadow, dataset.origin_txg, pinned}, fences,
                              "sectors of the rebuild", rebuild->second.sectors));
    }
    if (absl::IsDataLoss(read)) {
      state_.report.damaged_livelists.push_back(static_cast<uint64_t>(id));
    }
    return state_.Absorb(read, name);
  }

  // Whether a list survives by as much as it should.
  absl::Status ComparePart(const ListToRead& what, const std::vector<Txg>& fences,
                           std::string_view sum, uint64_t expected_sectors) {
    std::vector<Run> runs;
    RETURN_IF_ERROR(ReadList(what, fences, &runs));
    uint64_t sectors = 0;
    for (const Run& run : runs) sectors += run.sectors;
    state_.ExpectSum(sum, what.name, sectors, expected_sectors);
    return absl::OkStatus();
  }

  absl::Status CollectJob(JobId id, const JobRecord& job) {
    const std::string name = CheckState::NameOf(id);
    const uint32_t owner = AddOwner(name, /*is_job=*/true);
    uint64_t sectors = 0;
    absl::Status status;
    if (job.kind == JobKind::kDataset && job.phase <= JobPhase::kFree) {
      status = job.method == static_cast<uint8_t>(DestroyMethod::kTreeWalk)
                   ? CollectTrees(job, owner, &sectors)
                   : CollectSublists(job, owner, &sectors);
    } else if (job.kind == JobKind::kSnapshot && job.phase <= JobPhase::kFree) {
      status = CollectBuckets(job, owner, &sectors);
    }
    if (!status.ok()) return state_.Absorb(status, name);
    state_.ExpectSum("left_sectors", name, job.left_sectors, sectors);
    return absl::OkStatus();
  }

  // What a list job has still to free: sublists behind the cursor, addresses from the cursor on.
  absl::Status CollectSublists(const JobRecord& job, uint32_t owner, uint64_t* sectors) {
    const bool freeing = job.phase == JobPhase::kFree;
    const Txg from_start = freeing ? job.cursor_start : 0;
    ASSIGN_OR_RETURN(const auto sublists, LiveList::List(state_.txn, job.livelist, from_start));
    for (const Sublist& sublist : sublists) {
      ASSIGN_OR_RETURN(const std::vector<Run> survivors,
                       LiveList::Survivors(state_.txn, job.livelist, sublist.start));
      const uint64_t cursor = freeing && sublist.start == job.cursor_start ? job.cursor : 0;
      for (Run run : survivors) {
        if (run.end() <= cursor) continue;
        if (run.address < cursor) {
          run.sectors = static_cast<uint32_t>(run.end() - cursor);
          run.address = cursor;
        }
        *sectors += Own(owner, run);
      }
    }
    return absl::OkStatus();
  }

  // What a tree walk has still to free: the head's tree, then those of the own snapshots, each born
  // after the one before. The cursor names the snapshot (0: the head) and the block.
  absl::Status CollectTrees(const JobRecord& job, uint32_t owner, uint64_t* sectors) {
    if (job.cursor_start == 0) {
      const uint64_t cursor = job.phase == JobPhase::kFree ? job.cursor : 0;
      RETURN_IF_ERROR(WalkRest({job.min_birth, cursor, owner}, job.tree.root, 0, sectors));
    }
    if (job.dataset == DatasetId{}) return absl::OkStatus();
    std::map<Txg, const SnapshotRecord*> own;
    for (const auto& [id, snapshot] : state_.snapshots) {
      if (snapshot.dataset == job.dataset) own[snapshot.txg] = &snapshot;
    }
    Txg before = job.origin_txg;
    for (const auto& [txg, snapshot] : own) {
      const uint64_t cursor = txg == job.cursor_start ? job.cursor : 0;
      if (txg >= job.cursor_start) {
        RETURN_IF_ERROR(WalkRest({before, cursor, owner}, snapshot->tree.root, 0, sectors));
      }
      before = txg;
    }
    return absl::OkStatus();
  }

  struct Walk {
    Txg min_birth;
    uint64_t cursor;  // block
    uint32_t owner;
  };
  // A node goes after its last child.
  absl::Status WalkRest(const Walk& walk, const BlockPtr& pointer, uint64_t base,
                        uint64_t* sectors) {
    if (pointer.is_hole() || pointer.birth <= walk.min_birth ||
        EndBlock(pointer, base) <= walk.cursor) {
      return absl::OkStatus();
    }
    std::vector<Run> extents;
    RETURN_IF_ERROR(state_.blocks.Extents(pointer, &extents));
    for (const Run& run : extents) *sectors += Own(walk.owner, run);
    if (pointer.level == 0) return absl::OkStatus();
    auto node = std::make_unique<Node>();
    RETURN_IF_ERROR(state_.blocks.Read(pointer, std::as_writable_bytes(std::span(node.get(), 1))));
    const uint64_t span = SpanBlocks(pointer.level - 1);
    for (uint64_t i = 0; i < kNodeFanout; ++i) {
      RETURN_IF_ERROR(WalkRest(walk, node->children[i], base + i * span, sectors));
    }
    return absl::OkStatus();
  }

  // What a snapshot job has still to free: buckets behind the cursor, entries from it on. The
  // cursor names a bucket by start and log, and the place in its log.
  absl::Status CollectBuckets(const JobRecord& job, uint32_t owner, uint64_t* sectors) {
    ASSIGN_OR_RETURN(const auto buckets, DeadList::Buckets(state_.txn, job.deadlist));
    const std::pair cursor(job.cursor_start, job.cursor);
    for (const DeadBucket& bucket : buckets) {
      const std::pair at(bucket.start, static_cast<uint64_t>(bucket.log));
      if (at < cursor) continue;
      LogPosition position;
      if (at == cursor) position = {job.cursor_chunk, job.cursor_entry};
      std::vector<LogEntry> entries;
      RETURN_IF_ERROR(
          PointerLog::Read(state_.txn, bucket.log, &position, UINT64_MAX, &entries).status());
      for (const LogEntry& entry : entries) *sectors += Own(owner, entry.run);
    }
    return absl::OkStatus();
  }

  CheckState& state_;
};

}  // namespace

absl::Status CollectOwned(CheckState& state) { return OwnedCollector(state).Collect(); }

}  // namespace cowshed::engine

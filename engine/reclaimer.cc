// SPDX-License-Identifier: Apache-2.0
#include "engine/reclaimer.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <span>
#include <utility>

#include "engine/base/failpoints.h"
#include "engine/base/status_macros.h"
#include "engine/catalog.h"
#include "engine/livelist_drop.h"
#include "engine/reclaim_apply.h"
#include "engine/tree/dead_list.h"
#include "engine/tree/live_list.h"

namespace cowshed::engine {

absl::Status RunTask(TxgManager& txgs, std::function<absl::StatusOr<Verdict>(TxgContext&)> run) {
  std::promise<absl::Status> promise;
  Task task;
  task.run = std::move(run);
  task.done = [&promise](absl::StatusOr<Txg> result) {
    promise.set_value(std::move(result).status());  // leaves no share of it on the txg thread
  };
  task.frees_space = true;
  txgs.Submit(std::move(task));
  return promise.get_future().get();
}

namespace {

absl::Status RunTogether(TxgManager& txgs, std::span<const ReclaimBite> bites) {
  return RunTask(txgs, [bites](TxgContext& context) -> absl::StatusOr<Verdict> {
    for (const ReclaimBite& bite : bites) RETURN_IF_ERROR(ApplyBite(context, bite));
    RETURN_IF_ERROR(Failpoints::Hit("reclaim.applied"));
    return Verdict::kApplied;
  });
}

// Applies the bites in one txg. One that meets damage half-way would take the others along: then
// each gets a txg of its own, and the job of that one stalls.
absl::Status RunBites(TxgManager& txgs, std::span<const ReclaimBite> bites) {
  const absl::Status together = RunTogether(txgs, bites);
  if (!absl::IsDataLoss(together)) return together;
  for (const ReclaimBite& bite : bites) {
    const absl::Status alone = RunTogether(txgs, std::span(&bite, 1));
    if (!absl::IsDataLoss(alone)) {
      RETURN_IF_ERROR(alone);
      continue;
    }
    RETURN_IF_ERROR(RunTask(txgs, [&](TxgContext& context) -> absl::StatusOr<Verdict> {
      RETURN_IF_ERROR(StallBite(context, bite, alone));
      return Verdict::kApplied;
    }));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<bool> Reclaimer::Step() {
  RETURN_IF_ERROR(Failpoints::Hit("reclaim.step"));
  const auto begin = std::chrono::steady_clock::now();
  ASSIGN_OR_RETURN(const std::vector<ReclaimBite> bites, Prepare());
  if (bites.empty()) return false;
  RETURN_IF_ERROR(RunBites(txgs_, bites));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  parts_.stats.reclaim_batch_seconds.Observe(seconds.count());
  return true;
}

absl::StatusOr<std::vector<ReclaimBite>> Reclaimer::Prepare() {
  ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn, parts_.meta.BeginRead());
  std::vector<ReclaimBite> bites;
  uint64_t budget = parts_.options.reclaim_bite_runs;
  uint64_t stalled = 0;
  bool wrapped = next_job_ == 0;
  const uint64_t began = next_job_;
  MetaCursor cursor(*txn, Table::kJobs);
  for (cursor.Seek(Key(next_job_)); bites.size() < parts_.options.reclaim_jobs_per_txg;
       cursor.Next()) {
    if (!cursor.valid()) {
      RETURN_IF_ERROR(cursor.status());
      if (wrapped) break;
      wrapped = true;
      cursor.Seek(Key(uint64_t{0}));
      if (!cursor.valid()) break;
    }
    const auto number = KeyNumber<uint64_t>(cursor.key(), 0);
    if (wrapped && began != 0 && number >= began) break;
    ASSIGN_OR_RETURN(JobRecord job, JobRecord::Decode(cursor.value()));
    if (job.stalled) {
      ++stalled;
      continue;
    }
    if (job.kind == JobKind::kSnapshot && job.phase == JobPhase::kVerify) {
      ASSIGN_OR_RETURN(const bool waits, WaitsForRebuild(*txn, job.snapshot));
      if (waits) continue;
    }
    ASSIGN_OR_RETURN(ReclaimBite bite,
                     PrepareJob(*txn, static_cast<JobId>(number), std::move(job), budget));
    budget -= std::min<uint64_t>(budget, bite.runs.size() + 1);
    bites.push_back(std::move(bite));
    next_job_ = number + 1;
    if (budget == 0) break;
  }
  if (bites.empty()) next_job_ = 0;
  // A round without bites has seen the whole queue.
  if (bites.empty() || stalled > 0) {
    parts_.stats.alarms[Alarm::kReclaimStalled] = stalled > 0 ? 1 : 0;
  }
  return bites;
}

absl::StatusOr<ReclaimBite> Reclaimer::PrepareJob(const MetaTxn& txn, JobId id, JobRecord job,
                                                  uint64_t budget) {
  ReclaimBite bite;
  bite.id = id;
  bite.job = std::move(job);
  const JobRecord& record = bite.job;
  if (record.phase == JobPhase::kForget || record.phase == JobPhase::kSnapshots) return bite;
  if (record.kind == JobKind::kPrefix) return bite;
  absl::Status status;
  if (record.kind == JobKind::kSnapshot) {
    if (record.phase == JobPhase::kFree) status = PrepareBuckets(txn, budget, &bite);
  } else if (record.method == static_cast<uint8_t>(DestroyMethod::kTreeWalk)) {
    status = PrepareTreeWalk(txn, budget, &bite);
  } else {
    status = PrepareSublists(txn, budget, &bite);
    // The trees still say what the list no longer does, as long as nothing of it has been freed.
    bite.to_tree_walk = absl::IsDataLoss(status) && record.phase == JobPhase::kVerify;
    if (bite.to_tree_walk) status = absl::OkStatus();
  }
  if (absl::IsDataLoss(status)) {
    bite.damage = status;
    status = absl::OkStatus();
  }
  if (bite.to_tree_walk || !bite.damage.ok()) {
    bite.runs.clear();
    bite.done_sublists.clear();
    bite.all_freed = false;
  }
  RETURN_IF_ERROR(status);
  return bite;
}

absl::StatusOr<const std::vector<Run>*> Reclaimer::SurvivorsOf(const MetaTxn& txn,
                                                               LivelistId livelist, Txg start) {
  if (survivors_.livelist != livelist || survivors_.start != start) {
    survivors_ = {};
    ASSIGN_OR_RETURN(survivors_.runs, LiveList::Survivors(txn, livelist, start));
    survivors_.livelist = livelist;
    survivors_.start = start;
  }
  return &survivors_.runs;
}

absl::Status Reclaimer::PrepareSublists(const MetaTxn& txn, uint64_t budget, ReclaimBite* bite) {
  const JobRecord& job = bite->job;
  ASSIGN_OR_RETURN(const std::vector<Sublist> sublists,
                   LiveList::List(txn, job.livelist, job.cursor_start));
  if (job.phase == JobPhase::kVerify) {
    RETURN_IF_ERROR(Failpoints::Hit("reclaim.verify").ok()
                        ? absl::OkStatus()
                        : absl::DataLossError("failpoint reclaim.verify"));
    // A list that fits one bite is verified by finding its survivors; a longer one is read whole
    // before its first free, and the verdict is kept with the job.
    uint64_t entries = 0;
    for (const Sublist& sublist : sublists) entries += sublist.record.entries;
    if (entries > budget) {
      for (const Sublist& sublist : sublists) {
        RETURN_IF_ERROR(LiveList::Verify(txn, job.livelist, sublist.start));
      }
      bite->verified_only = true;
      return absl::OkStatus();
    }
  }
  bite->cursor_start = job.cursor_start;
  bite->cursor = job.cursor;
  for (const Sublist& sublist : sublists) {
    parts_.stats.livelist_length_entries.Observe(static_cast<double>(sublist.record.entries));
    ASSIGN_OR_RETURN(const std::vector<Run>* survivors,
                     SurvivorsOf(txn, job.livelist, sublist.start));
    if (sublist.start != bite->cursor_start) bite->cursor = 0;
    bite->cursor_start = sublist.start;
    auto next =
        std::lower_bound(survivors->begin(), survivors->end(), bite->cursor,
                         [](const Run& run, uint64_t address) { return run.address < address; });
    const uint64_t room = budget - std::min<uint64_t>(budget, bite->runs.size());
    const auto count = std::min<uint64_t>(room, static_cast<uint64_t>(survivors->end() - next));
    bite->runs.insert(bite->runs.end(), next, next + static_cast<ptrdiff_t>(count));
    next += static_cast<ptrdiff_t>(count);
    if (next != survivors->end()) {
      bite->cursor = next->address;
      return absl::OkStatus();
    }
    bite->done_sublists.push_back(sublist.start);
  }
  bite->all_freed = true;
  return absl::OkStatus();
}

// Walks the head's tree, then those of its own snapshots: what was born between two neighbours and
// is alive is in the tree of the later one, so the parts are disjoint and make up the whole.
absl::Status Reclaimer::PrepareTreeWalk(const MetaTxn& txn, uint64_t budget, ReclaimBite* bite) {
  const JobRecord& job = bite->job;
  bite->cursor_start = job.cursor_start;  // 0: the head, else the txg of a snapshot
  bite->cursor = job.cursor;
  TreeState tree = job.tree;
  Txg min_birth = job.min_birth;
  if (job.cursor_start != 0) {
    ASSIGN_OR_RETURN(const std::vector<Neighbour> here,
                     SnapshotsAbove(txn, job.dataset, job.cursor_start - 1, 1));
    if (here.empty()) return absl::DataLossError("a snapshot of the dataset has gone missing");
    ASSIGN_OR_RETURN(const SnapshotRecord snapshot,
                     LoadRecord<SnapshotRecord>(txn, Key(here[0].id)));
    ASSIGN_OR_RETURN(const std::optional<Neighbour> before,
                     SnapshotBefore(txn, job.dataset, job.cursor_start));
    tree = snapshot.tree;
    min_birth = before.has_value() ? before->txg : job.origin_txg;
  }
  ASSIGN_OR_RETURN(
      const bool walked,
      parts_.tree.Walk(tree, min_birth, &bite->cursor, budget, [&](const BlockPtr& pointer) {
        return parts_.blocks.Extents(pointer, &bite->runs);
      }));
  if (!walked) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<Neighbour> next,
                   SnapshotsAbove(txn, job.dataset, job.cursor_start, 1));
  bite->all_freed = job.dataset == DatasetId{} || next.empty();
  bite->cursor_start = next.empty() ? 0 : next[0].txg;
  bite->cursor = 0;
  return absl::OkStatus();
}

absl::Status Reclaimer::PrepareBuckets(const MetaTxn& txn, uint64_t budget, ReclaimBite* bite) {
  const JobRecord& job = bite->job;
  ASSIGN_OR_RETURN(const std::vector<DeadBucket> buckets, DeadList::Buckets(txn, job.deadlist));
  bite->cursor_start = job.cursor_start;
  bite->cursor = job.cursor;
  LogPosition position{job.cursor_chunk, job.cursor_entry};
  for (const DeadBucket& bucket : buckets) {
    const auto log = static_cast<uint64_t>(bucket.log);
    // Buckets come in the order of (start, log); those before the cursor are done.
    if (std::pair(bucket.start, log) < std::pair(bite->cursor_start, bite->cursor)) continue;
    if (std::pair(bucket.start, log) != std::pair(bite->cursor_start, bite->cursor)) position = {};
    bite->cursor_start = bucket.start;
    bite->cursor = log;
    std::vector<LogEntry> entries;
    const uint64_t room = budget - std::min<uint64_t>(budget, bite->runs.size());
    bool end = false;
    if (room > 0) {
      ASSIGN_OR_RETURN(end, PointerLog::Read(txn, bucket.log, &position, room, &entries));
    }
    for (const LogEntry& entry : entries) bite->runs.push_back(entry.run);
    if (!end) {
      bite->position = position;
      return absl::OkStatus();
    }
  }
  bite->all_freed = true;
  return absl::OkStatus();
}

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
#include "engine/reclaimer.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "engine/base/failpoints.h"
#include "engine/base/offer_cpu.h"
#include "engine/base/status_macros.h"
#include "engine/catalog.h"
#include "engine/livelist_drop.h"
#include "engine/reclaim_apply.h"
#include "engine/tree/dead_list.h"
#include "engine/tree/live_list.h"

namespace cowshed::engine {

namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kSnapshotsPerBite = 500;
constexpr uint64_t kEntriesToMeasure = 256;   // fewer say more about the look-up than about reading
constexpr uint32_t kExaminedPerRound = 1024;  // jobs looked at; the next round goes on behind them
constexpr auto kRestPart = std::chrono::milliseconds(2);
constexpr auto kLongestSleep = std::chrono::milliseconds(50);

double Seconds(Clock::time_point since) {
  return std::chrono::duration<double>(Clock::now() - since).count();
}

// How many entries the rest of a job has in its lists, or as many as can be where it needs turns.
absl::StatusOr<uint64_t> SizeOf(const MetaTxn& txn, const JobRecord& job) {
  if (job.kind == JobKind::kPrefix) return UINT64_MAX;
  const bool lists = job.phase == JobPhase::kFree ||
                     (job.phase == JobPhase::kVerify && job.kind == JobKind::kDataset);
  if (!lists) return 0;
  if (job.kind == JobKind::kDataset &&
      job.method == static_cast<uint8_t>(DestroyMethod::kTreeWalk)) {
    return UINT64_MAX;
  }
  uint64_t entries = 0;
  if (job.kind == JobKind::kSnapshot) {
    ASSIGN_OR_RETURN(const std::vector<DeadBucket> buckets, DeadList::Buckets(txn, job.deadlist));
    for (const DeadBucket& bucket : buckets) entries += bucket.record.entries;
  } else {
    ASSIGN_OR_RETURN(const std::vector<Sublist> sublists,
                     LiveList::List(txn, job.livelist, job.cursor_start));
    for (const Sublist& sublist : sublists) entries += sublist.record.entries;
  }
  return entries;
}

// What is left of the entries of `sublists`, the first of which still has to give `left_sectors`
// less what the others hold.
uint64_t LeftEntries(std::span<const Sublist> sublists, uint64_t left_sectors) {
  if (sublists.empty()) return 0;
  uint64_t entries = 0;
  uint64_t sectors = 0;
  for (const Sublist& sublist : sublists.subspan(1)) {
    entries += sublist.record.entries;
    sectors += sublist.record.live_sectors();
  }
  const double live = static_cast<double>(std::max<uint64_t>(sublists[0].record.live_sectors(), 1));
  const double left = static_cast<double>(left_sectors - std::min(left_sectors, sectors));
  const double share = std::min(left / live, 1.0);
  return entries + static_cast<uint64_t>(static_cast<double>(sublists[0].record.entries) * share);
}

}  // namespace

absl::Status RunTask(TxgManager& txgs, std::function<absl::StatusOr<Verdict>(TxgContext&)> run) {
  std::promise<absl::Status> promise;
  Task task;
  task.run = std::move(run);
  task.done = [&promise](absl::StatusOr<Txg> result) {
    promise.set_value(std::move(result).status());  // leaves no share of it on the txg thread
  };
  task.frees_space = true;
  task.background = true;
  txgs.Submit(std::move(task));
  return promise.get_future().get();
}

absl::Status Reclaimer::RunTogether(std::span<const ReclaimBite> bites, RoundCost* cost) {
  return RunTask(txgs_, [&, bites](TxgContext& context) -> absl::StatusOr<Verdict> {
    *cost = RoundCost();  // of an attempt that failed nothing remains
    RETURN_IF_ERROR(Apply(context, bites, cost));
    RETURN_IF_ERROR(Failpoints::Hit("reclaim.applied"));
    return Verdict::kApplied;
  });
}

absl::Status Reclaimer::RunBites(std::span<const ReclaimBite> bites, RoundCost* cost) {
  const absl::Status together = RunTogether(bites, cost);
  if (!absl::IsDataLoss(together)) return together;
  for (const ReclaimBite& bite : bites) {
    const absl::Status alone = RunTogether(std::span(&bite, 1), cost);
    if (!absl::IsDataLoss(alone)) {
      RETURN_IF_ERROR(alone);
      continue;
    }
    RETURN_IF_ERROR(RunTask(txgs_, [&](TxgContext& context) -> absl::StatusOr<Verdict> {
      RETURN_IF_ERROR(StallBite(context, bite, alone));
      return Verdict::kApplied;
    }));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Reclaimer::Step() {
  RETURN_IF_ERROR(Failpoints::Hit("reclaim.step"));
  const PoolRecord pool = txgs_.record();
  if (pool.reclaim_paused) return false;
  const uint64_t rate = pool.reclaim_rate_bytes_per_second;
  if (const auto wait = parts_.pacer.WaitFor(rate, Clock::now()); wait > Clock::duration::zero()) {
    std::this_thread::sleep_for(std::min<Clock::duration>(wait, kLongestSleep));
    return true;  // the rate may be another one by now
  }
  const auto begin = Clock::now();
  if (begin < rests_until_) {
    // Only as long as there is a reason to: in small parts.
    if (ReclaimPacer::RestSeconds(1, txgs_.reclaim_load()) > 0) {
      std::this_thread::sleep_for(std::min<Clock::duration>(rests_until_ - begin, kRestPart));
      return true;
    }
    rests_until_ = {};
  }
  Round round = BeginRound(pool);
  parts_.stats.reclaim_round_budget_us = static_cast<uint64_t>(round.seconds * 1e6);
  RETURN_IF_ERROR(Prepare(&round));
  if (round.bites.empty()) return !round.saw_all;
  RoundCost cost;
  const auto submitted = Clock::now();
  RETURN_IF_ERROR(RunBites(round.bites, &cost));
  Observe(cost, Seconds(submitted));
  uint64_t sectors = 0;
  for (const ReclaimBite& bite : round.bites) {
    for (const Run& run : bite.runs) sectors += run.sectors;
  }
  parts_.pacer.Freed(sectors * kSectorBytes, rate, Clock::now());
  parts_.stats.reclaim_batch_seconds.Observe(Seconds(begin));
  const std::chrono::duration<double> rest(
      ReclaimPacer::RestSeconds(Seconds(begin), txgs_.reclaim_load()));
  rests_until_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(rest);
  // What was freed becomes free with the last round, not at the housekeeper's next poll. Before
  // that the free log gathers, so that a region's bitmap is written once.
  const PoolRecord after = txgs_.record();
  if (after.freeing_sectors == after.stalled_sectors) txgs_.RequestFreeLogDrain();
  return true;
}

Reclaimer::Round Reclaimer::BeginRound(const PoolRecord& pool) const {
  const PoolOptions& options = parts_.options;
  Round round;
  round.seconds = parts_.pacer.RoundSeconds(pool.reclaim_txg_budget_us, txgs_.reclaim_load());
  round.runs = std::min(std::max<uint64_t>(options.reclaim_bite_runs, 1),
                        parts_.pacer.Fits(ReclaimUnit::kRun, round.seconds));
  const uint64_t rate = pool.reclaim_rate_bytes_per_second;
  if (rate != 0) round.runs = std::min(round.runs, ReclaimPacer::RoundSectors(rate));
  return round;
}

absl::Status Reclaimer::Apply(TxgContext& context, std::span<const ReclaimBite> bites,
                              RoundCost* cost) const {
  const auto begin = Clock::now();
  uint64_t runs = 0;
  for (const ReclaimBite& bite : bites) {
    OfferCpu();
    const auto bite_begin = Clock::now();
    ASSIGN_OR_RETURN(const ReclaimWork work, ApplyBite(context, bite));
    runs += bite.runs.size();
    if (work.unit == ReclaimUnit::kCount) continue;
    RoundCost::Sum& sum = cost->units[static_cast<size_t>(work.unit)];
    sum.count += work.count;
    sum.seconds += Seconds(bite_begin);
  }
  const auto log_begin = Clock::now();
  if (runs > 0) RETURN_IF_ERROR(context.parts.allocator.WriteFrees(context.meta, context.txg));
  RoundCost::Sum& freed = cost->units[static_cast<size_t>(ReclaimUnit::kRun)];
  if (freed.count > 0) freed.seconds += Seconds(log_begin);
  cost->seconds = Seconds(begin);
  return absl::OkStatus();
}

void Reclaimer::Observe(const RoundCost& cost, double round_seconds) {
  for (size_t unit = 0; unit < cost.units.size(); ++unit) {
    const RoundCost::Sum& sum = cost.units[unit];
    parts_.pacer.Observe(static_cast<ReclaimUnit>(unit), sum.count, sum.seconds);
  }
  parts_.pacer.ObserveRound(std::max(round_seconds - cost.seconds, 0.0));
  parts_.stats.reclaim_txg_seconds.Observe(cost.seconds);
}

absl::Status Reclaimer::Prepare(Round* round) {
  ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn, parts_.meta.BeginRead());
  const Round whole = *round;
  const bool shared = turn_.id != JobId{};
  if (shared) {
    round->seconds /= 2;
    round->runs = (round->runs + 1) / 2;
  }
  RETURN_IF_ERROR(PrepareSmallJobs(*txn, round));
  if (shared) {
    round->seconds += whole.seconds / 2;
    round->runs += whole.runs / 2;
  }
  return PrepareLargeJob(*txn, round);
}

absl::Status Reclaimer::PrepareSmallJobs(const MetaTxn& txn, Round* round) {
  const uint32_t most = parts_.options.reclaim_jobs_per_txg;
  const uint64_t small = std::max<uint64_t>(round->runs / 2, 1);
  uint64_t stalled = 0;
  uint32_t examined = 0;
  bool wrapped = next_job_ == 0;
  const uint64_t began = next_job_;
  MetaCursor cursor(txn, Table::kJobs);
  for (cursor.Seek(Key(next_job_)); round->bites.size() < most; cursor.Next()) {
    if (!cursor.valid()) {
      RETURN_IF_ERROR(cursor.status());
      round->saw_all = wrapped;
      if (wrapped) break;
      // A queue too long for one round has been seen when a whole lap brought nothing.
      round->saw_all = std::exchange(idle_lap_, true);
      if (round->saw_all) break;
      wrapped = true;
      cursor.Seek(Key(uint64_t{0}));
      round->saw_all = !cursor.valid();
      if (!cursor.valid()) break;
    }
    const auto number = KeyNumber<uint64_t>(cursor.key(), 0);
    round->saw_all = wrapped && began != 0 && number >= began;
    if (round->saw_all || ++examined > kExaminedPerRound) break;
    next_job_ = number + 1;
    const auto id = static_cast<JobId>(number);
    if (id == turn_.id) continue;
    OfferCpu();
    ASSIGN_OR_RETURN(JobRecord job, JobRecord::Decode(cursor.value()));
    stalled += job.stalled ? 1 : 0;
    if (job.stalled) continue;
    const absl::StatusOr<uint64_t> found = SizeOf(txn, job);
    if (!absl::IsDataLoss(found.status())) RETURN_IF_ERROR(found.status());
    const uint64_t size = found.value_or(0);  // preparing it will find the damage, too
    if (size > small) {
      round->large.push_back(id);
      continue;
    }
    if (job.kind == JobKind::kSnapshot && job.phase == JobPhase::kVerify) {
      ASSIGN_OR_RETURN(const bool waits, WaitsForRebuild(txn, job.snapshot));
      if (waits) continue;
    }
    const bool fits = size <= round->runs && round->seconds > 0;
    if (!fits && !round->bites.empty()) {
      next_job_ = number;
      break;
    }
    ASSIGN_OR_RETURN(ReclaimBite bite, PrepareJob(txn, id, std::move(job), *round));
    Charge(bite, round);
    round->bites.push_back(std::move(bite));
  }
  if (round->saw_all) next_job_ = 0;
  if (!round->bites.empty()) idle_lap_ = false;
  const bool any_stalled = stalled > 0 || txgs_.record().stalled_sectors > 0;
  if (round->saw_all || any_stalled) {
    parts_.stats.alarms[Alarm::kReclaimStalled] = any_stalled ? 1 : 0;
  }
  return absl::OkStatus();
}

absl::Status Reclaimer::PrepareLargeJob(const MetaTxn& txn, Round* round) {
  std::optional<JobRecord> job;
  if (turn_.id != JobId{}) {
    ASSIGN_OR_RETURN(job, FindRecord<JobRecord>(txn, Key(turn_.id)));
    if (job.has_value() && job->stalled) job.reset();
  }
  const bool over = !job.has_value() || turn_.left_runs == 0;
  if (over && !round->large.empty()) {
    // The next one behind, else the first.
    std::sort(round->large.begin(), round->large.end());
    auto next = std::upper_bound(round->large.begin(), round->large.end(), turn_.id);
    if (next == round->large.end()) next = round->large.begin();
    turn_ = {*next, parts_.options.reclaim_bite_runs};
    ASSIGN_OR_RETURN(job, FindRecord<JobRecord>(txn, Key(turn_.id)));
  }
  if (!job.has_value()) {
    turn_ = {};
    return absl::OkStatus();
  }
  if (turn_.left_runs == 0) turn_.left_runs = parts_.options.reclaim_bite_runs;
  const bool list = job->kind != JobKind::kPrefix;
  ASSIGN_OR_RETURN(ReclaimBite bite, PrepareJob(txn, turn_.id, *std::move(job), *round));
  const uint64_t used = list ? std::max<uint64_t>(bite.runs.size(), 1) : turn_.left_runs;
  turn_.left_runs -= std::min(turn_.left_runs, used);
  round->bites.push_back(std::move(bite));
  return absl::OkStatus();
}

void Reclaimer::Charge(const ReclaimBite& bite, Round* round) const {
  const uint64_t runs = bite.runs.size();
  round->runs -= std::min(round->runs, runs);
  ReclaimUnit unit = ReclaimUnit::kJob;
  uint64_t count = 1;
  if (bite.job.phase == JobPhase::kSnapshots) {
    unit = ReclaimUnit::kSnapshot;
    count = bite.limit;
  } else if (bite.job.kind == JobKind::kSnapshot && bite.job.phase == JobPhase::kVerify) {
    unit = ReclaimUnit::kTakeOut;
  }
  round->seconds -= parts_.pacer.Cost(unit, count) + parts_.pacer.Cost(ReclaimUnit::kRun, runs);
}

absl::StatusOr<ReclaimBite> Reclaimer::PrepareJob(const MetaTxn& txn, JobId id, JobRecord job,
                                                  const Round& round) {
  const PoolOptions& options = parts_.options;
  ReclaimBite bite;
  bite.id = id;
  bite.job = std::move(job);
  bite.begin_ms = options.clock_ms();
  bite.left_entries = bite.job.left_entries;
  const JobRecord& record = bite.job;
  const uint64_t budget = std::max<uint64_t>(round.runs, 1);
  const auto limit = [&](ReclaimUnit unit, uint64_t most) {
    return std::min(std::max<uint64_t>(most, 1), parts_.pacer.Fits(unit, round.seconds));
  };
  if (record.kind == JobKind::kPrefix) {
    bite.limit = limit(ReclaimUnit::kName, options.bulk_names_per_txg);
    return bite;
  }
  if (record.phase == JobPhase::kSnapshots) {
    bite.limit = limit(ReclaimUnit::kSnapshot, kSnapshotsPerBite);
    return bite;
  }
  if (record.phase == JobPhase::kForget) return bite;
  absl::Status status;
  bite.limit = budget;
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
    bite.left_entries = record.left_entries;
    bite.all_freed = false;
  }
  RETURN_IF_ERROR(status);
  return bite;
}

absl::StatusOr<const SurvivorBite*> Reclaimer::SurvivorsOf(const MetaTxn& txn, LivelistId livelist,
                                                           const Sublist& sublist,
                                                           uint64_t address) {
  const bool loaded = survivors_.livelist == livelist && survivors_.start == sublist.start &&
                      survivors_.from_address <= address && address < survivors_.bite.next_address;
  if (loaded) return &survivors_.bite;
  survivors_ = {};
  const auto begin = Clock::now();
  ASSIGN_OR_RETURN(survivors_.bite, LiveList::SurvivorsFrom(txn, livelist, sublist.start, address,
                                                            parts_.options.reclaim_memory_bytes));
  survivors_.livelist = livelist;
  survivors_.start = sublist.start;
  survivors_.from_address = address;
  if (sublist.record.entries >= kEntriesToMeasure) {
    parts_.pacer.ObserveRead(sublist.record.entries, Seconds(begin));
  }
  return &survivors_.bite;
}

absl::Status Reclaimer::PrepareSublists(const MetaTxn& txn, uint64_t budget, ReclaimBite* bite) {
  const JobRecord& job = bite->job;
  ASSIGN_OR_RETURN(const std::vector<Sublist> sublists,
                   LiveList::List(txn, job.livelist, job.cursor_start));
  for (const Sublist& sublist : sublists) bite->total_entries += sublist.record.entries;
  if (job.phase == JobPhase::kVerify) {
    RETURN_IF_ERROR(Failpoints::Hit("reclaim.verify").ok()
                        ? absl::OkStatus()
                        : absl::DataLossError("failpoint reclaim.verify"));
    // A list that fits one bite is verified by finding its survivors; a longer one is read whole
    // before its first free, and the verdict is kept with the job.
    bite->left_entries = bite->total_entries;
    if (bite->total_entries > budget) {
      for (const Sublist& sublist : sublists) {
        RETURN_IF_ERROR(LiveList::Verify(txn, job.livelist, sublist.start));
      }
      bite->verified_only = true;
      return absl::OkStatus();
    }
  }
  bite->cursor_start = job.cursor_start;
  bite->cursor = job.cursor;
  uint64_t left_sectors = job.left_sectors;
  for (size_t i = 0; i < sublists.size(); ++i) {
    const Sublist& sublist = sublists[i];
    if (sublist.start != bite->cursor_start) bite->cursor = 0;
    bite->cursor_start = sublist.start;
    while (bite->cursor != kEndOfAddresses) {
      if (bite->runs.size() == budget) {
        bite->left_entries = LeftEntries(std::span(sublists).subspan(i), left_sectors);
        return absl::OkStatus();
      }
      ASSIGN_OR_RETURN(const SurvivorBite* found,
                       SurvivorsOf(txn, job.livelist, sublist, bite->cursor));
      const auto end = found->runs.end();
      auto next =
          std::lower_bound(found->runs.begin(), end, bite->cursor,
                           [](const Run& run, uint64_t address) { return run.address < address; });
      for (; next != end && bite->runs.size() < budget; ++next) {
        bite->runs.push_back(*next);
        left_sectors -= std::min<uint64_t>(left_sectors, next->sectors);
      }
      bite->cursor = next != end ? next->address : found->next_address;
    }
    bite->done_sublists.push_back(sublist.start);
    parts_.stats.livelist_length_entries.Observe(static_cast<double>(sublist.record.entries));
  }
  bite->left_entries = 0;
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

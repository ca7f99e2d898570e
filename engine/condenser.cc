// SPDX-License-Identifier: Apache-2.0
#include "engine/condenser.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "engine/base/failpoints.h"
#include "engine/base/status_macros.h"
#include "engine/catalog.h"
#include "engine/reclaimer.h"
#include "engine/trim.h"

namespace cowshed::engine {
namespace {

constexpr size_t kMarksPerStep = 256;
constexpr size_t kShadowsPerStep = 256;
// Sublists looked at around one mark. Without snapshots between them a list has far fewer.
constexpr uint64_t kMaxStretch = 1024;

absl::Status Cancelled() {
  return absl::CancelledError("the sublists have changed hands or are gone");
}

Key MarkKey(DatasetId dataset, Txg start) { return Key(StateKey::kCondense, dataset, start); }

uint64_t PageBytes(uint64_t entries) {
  return (entries + PointerLog::kEntriesPerChunk - 1) / PointerLog::kEntriesPerChunk * kSectorBytes;
}

// The sublists in [from, to), and whether the list ends with them.
absl::StatusOr<std::vector<SublistLoad>> LoadStretch(const MetaTxn& txn, LivelistId list, Txg from,
                                                     Txg to, bool* has_newest) {
  ASSIGN_OR_RETURN(const std::vector<Sublist> sublists,
                   LiveList::List(txn, list, from, kMaxStretch + 1));
  std::vector<SublistLoad> stretch;
  for (const Sublist& sublist : sublists) {
    if (sublist.start >= to || stretch.size() == kMaxStretch) break;
    SublistLoad load = {sublist};
    if (sublist.record.attached_logs > 0) {
      ASSIGN_OR_RETURN(const SublistView view, LiveList::View(txn, list, sublist.start));
      for (const LogId log : view.attached) {
        ASSIGN_OR_RETURN(const uint64_t length, PointerLog::Length(txn, log));
        load.attached_entries += length;
      }
    }
    stretch.push_back(load);
  }
  *has_newest = stretch.size() == sublists.size();
  return stretch;
}

}  // namespace

LiveListOptions LivelistOptions(const PoolOptions& options) {
  return {.max_entries = options.livelist_max_entries,
          .condense_min_entries = options.condense_min_entries,
          .condense_growth_percent = options.condense_growth_percent};
}

absl::Status MarkForCondense(TxgContext& context, DatasetId dataset, Txg start) {
  return context.meta.Put(Table::kStates, MarkKey(dataset, start), Key(context.txg));
}

absl::Status MoveCondenseMarks(TxgContext& context, DatasetId from, DatasetId to, Txg before) {
  std::vector<Txg> starts;
  {
    const Key prefix(StateKey::kCondense, from);
    MetaCursor cursor(context.meta, Table::kStates);
    for (cursor.Seek(prefix); cursor.ValidFor(prefix); cursor.Next()) {
      const auto start = KeyNumber<Txg>(cursor.key(), 9);
      if (start >= before) break;
      starts.push_back(start);
    }
    RETURN_IF_ERROR(cursor.status());
  }
  for (const Txg start : starts) {
    RETURN_IF_ERROR(context.meta.Delete(Table::kStates, MarkKey(from, start)));
    RETURN_IF_ERROR(MarkForCondense(context, to, start));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Condenser::Step() {
  if (!txgs_.health().ok()) return false;
  if (may_have_orphans_) {
    RETURN_IF_ERROR(DropShadows());
    may_have_orphans_ = false;
  }
  if (!job_.has_value()) return FindWork();
  const uint64_t completed = parts_.stats.condenses[CondenseResult::kCompleted];
  if (const absl::Status status = RunBite(); !status.ok()) RETURN_IF_ERROR(GiveUp(status));
  return parts_.stats.condenses[CondenseResult::kCompleted] == completed;
}

// Drops every shadow log: at this moment no run has one.
absl::Status Condenser::DropShadows() {
  for (bool more = true; more;) {
    std::vector<LogId> logs;
    {
      ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn, parts_.meta.BeginRead());
      const Key prefix(StateKey::kShadowLog);
      MetaCursor cursor(*txn, Table::kStates);
      for (cursor.Seek(prefix); cursor.ValidFor(prefix) && logs.size() < kShadowsPerStep;
           cursor.Next()) {
        logs.push_back(KeyNumber<LogId>(cursor.key(), 1));
      }
      RETURN_IF_ERROR(cursor.status());
    }
    more = logs.size() == kShadowsPerStep;
    if (logs.empty()) break;
    RETURN_IF_ERROR(RunTask(txgs_, [&logs](TxgContext& context) -> absl::StatusOr<Verdict> {
      for (const LogId log : logs) {
        RETURN_IF_ERROR(context.meta.Delete(Table::kStates, Key(StateKey::kShadowLog, log)));
        RETURN_IF_ERROR(PointerLog::Release(context.meta, log));
      }
      return Verdict::kApplied;
    }));
  }
  return absl::OkStatus();
}

// Looks at marks until one leads to a run. A host that is full is not asked for more.
absl::StatusOr<bool> Condenser::FindWork() {
  if (parts_.stats.alarms[Alarm::kHostFull] != 0 ||
      parts_.stats.alarms[Alarm::kPoolReserveReached] != 0) {
    return false;
  }
  std::vector<Mark> settled;
  bool is_first_round = next_mark_.empty();
  {
    ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn, parts_.meta.BeginRead());
    const Key prefix(StateKey::kCondense);
    MetaCursor cursor(*txn, Table::kStates);
    cursor.Seek(is_first_round ? std::string_view(prefix) : std::string_view(next_mark_));
    while (cursor.ValidFor(prefix) && settled.size() < kMarksPerStep && !job_.has_value()) {
      Mark mark;
      mark.key = std::string(cursor.key());
      mark.value = std::string(cursor.value());
      mark.dataset = KeyNumber<DatasetId>(mark.key, 1);
      mark.start = KeyNumber<Txg>(mark.key, 9);
      absl::StatusOr<std::optional<Job>> found = Examine(*txn, &mark);
      mark.is_damaged = absl::IsDataLoss(found.status());
      if (mark.is_damaged) found = std::nullopt;
      ASSIGN_OR_RETURN(job_, std::move(found));
      if (job_.has_value()) {
        next_mark_ = std::string(
            std::string_view(Key(StateKey::kCondense, static_cast<uint64_t>(mark.dataset) + 1)));
      } else {
        settled.push_back(std::move(mark));
        cursor.Next();
      }
    }
    RETURN_IF_ERROR(cursor.status());
    if (!job_.has_value()) next_mark_ = cursor.ValidFor(prefix) ? cursor.key() : "";
  }
  RETURN_IF_ERROR(Settle(settled));
  // Behind the last mark the next step begins with the first again.
  return job_.has_value() || !settled.empty() || !is_first_round;
}

// Takes marks away that have led to nothing, unless they have been set anew meanwhile.
absl::Status Condenser::Settle(const std::vector<Mark>& marks) {
  if (marks.empty()) return absl::OkStatus();
  return RunTask(txgs_, [this, &marks](TxgContext& context) -> absl::StatusOr<Verdict> {
    for (const Mark& mark : marks) {
      ASSIGN_OR_RETURN(const auto value, context.meta.Get(Table::kStates, mark.key));
      if (!value.has_value() || *value != mark.value) continue;
      RETURN_IF_ERROR(context.meta.Delete(Table::kStates, mark.key));
      if (mark.is_costly && hooks_.costly) RETURN_IF_ERROR(hooks_.costly(context, mark.dataset));
      if (mark.is_damaged && hooks_.damaged) RETURN_IF_ERROR(hooks_.damaged(context, mark.dataset));
    }
    return Verdict::kApplied;
  });
}

absl::StatusOr<std::optional<Condenser::Job>> Condenser::Examine(const MetaTxn& txn,
                                                                 Mark* mark) const {
  ASSIGN_OR_RETURN(const std::optional<DatasetRecord> record,
                   FindRecord<DatasetRecord>(txn, Key(mark->dataset)));
  if (!record.has_value() || record->doomed) return std::optional<Job>();
  ASSIGN_OR_RETURN(const std::optional<Neighbour> before,
                   SnapshotBefore(txn, mark->dataset, mark->start + 1));
  ASSIGN_OR_RETURN(const std::optional<Neighbour> after,
                   SnapshotAfter(txn, mark->dataset, mark->start));
  bool has_newest = false;
  ASSIGN_OR_RETURN(const Stretch stretch,
                   LoadStretch(txn, record->livelist, before.has_value() ? before->txg : 0,
                               after.has_value() ? after->txg : UINT64_MAX, &has_newest));
  // Damaged sublists are left alone: they part the stretch.
  for (size_t begin = 0; begin < stretch.size(); ++begin) {
    size_t end = begin;
    while (end < stretch.size() && !damaged_.contains(stretch[end].sublist.record.log)) ++end;
    ASSIGN_OR_RETURN(std::optional<Job> job,
                     Choose(txn, *record, std::span(stretch).subspan(begin, end - begin),
                            has_newest && end == stretch.size()));
    if (job.has_value()) {
      job->dataset = mark->dataset;
      return job;
    }
    begin = end;
  }
  if (hooks_.costly) {
    ASSIGN_OR_RETURN(const std::vector<Sublist> all, LiveList::List(txn, record->livelist));
    mark->is_costly = IsCostly(all);
  }
  return std::optional<Job>();
}

// The sublist with the most garbage, else empty ones to drop, else neighbours to merge.
absl::StatusOr<std::optional<Condenser::Job>> Condenser::Choose(
    const MetaTxn& txn, const DatasetRecord& record, std::span<const SublistLoad> stretch,
    bool has_newest) const {
  const LiveListOptions options = LivelistOptions(parts_.options);
  const uint32_t block_sectors = record.tree.block_sectors();
  std::span<const SublistLoad> chosen;
  double worst = 0;
  for (size_t i = 0; i < stretch.size(); ++i) {
    if (!IsWorthCondensing(stretch[i], block_sectors, options)) continue;
    const uint64_t live = LiveBlocks(stretch[i].sublist.record, block_sectors);
    const double ratio = static_cast<double>(stretch[i].entries()) / static_cast<double>(live + 1);
    if (chosen.empty() || ratio > worst) {
      chosen = stretch.subspan(i, 1);
      worst = ratio;
    }
  }
  Job job;
  job.list = record.livelist;
  if (chosen.empty()) {
    for (const size_t i : FindEmpty(stretch, has_newest, block_sectors, options)) {
      job.views.push_back({.start = stretch[i].sublist.start});
    }
    job.is_drop = !job.views.empty();
    if (job.is_drop) return std::optional<Job>(std::move(job));
    if (const auto merge = FindMerge(stretch, block_sectors, options)) {
      chosen = stretch.subspan(merge->first, merge->count);
    }
  }
  if (chosen.empty()) return std::optional<Job>();
  job.begin = std::chrono::steady_clock::now();
  for (const SublistLoad& load : chosen) {
    ASSIGN_OR_RETURN(SublistView view, LiveList::View(txn, job.list, load.sublist.start));
    job.views.push_back(std::move(view));
    job.entries_in += load.entries();
  }
  return std::optional<Job>(std::move(job));
}

absl::Status Condenser::DropEmpty() {
  bool is_owner = false;
  RETURN_IF_ERROR(RunTask(txgs_, [&](TxgContext& context) -> absl::StatusOr<Verdict> {
    ASSIGN_OR_RETURN(is_owner, OwnsList(context.meta));
    if (!is_owner) return Verdict::kApplied;
    for (const SublistView& view : job_->views) {
      ASSIGN_OR_RETURN(const bool dropped,
                       LiveList::DropEmpty(context.meta, job_->list, view.start));
      context.pool.livelist_sublists -= dropped ? 1 : 0;
    }
    return Verdict::kApplied;
  }));
  if (!is_owner) return Cancelled();
  EndJob(CondenseResult::kCompleted);
  return absl::OkStatus();
}

absl::StatusOr<bool> Condenser::OwnsList(const MetaTxn& txn) const {
  ASSIGN_OR_RETURN(const std::optional<DatasetRecord> record,
                   FindRecord<DatasetRecord>(txn, Key(job_->dataset)));
  return record.has_value() && !record->doomed && record->livelist == job_->list;
}

// Whether the run still stands on what it has read, and no own snapshot lies between its sublists.
absl::StatusOr<bool> Condenser::IsValid(const MetaTxn& txn) const {
  ASSIGN_OR_RETURN(const bool is_owner, OwnsList(txn));
  if (!is_owner) return false;
  ASSIGN_OR_RETURN(const std::optional<Neighbour> next,
                   SnapshotAfter(txn, job_->dataset, job_->views.front().start));
  if (next.has_value() && next->txg <= job_->views.back().start) return false;
  return IsUnchanged(txn, job_->list, job_->views);
}

uint64_t Condenser::bite_entries() const {
  return uint64_t{std::max<uint32_t>(parts_.options.condense_chunks_per_txg, 1)} *
         PointerLog::kEntriesPerChunk;
}

absl::Status Condenser::RunBite() {
  if (job_->is_drop) return DropEmpty();
  const bool has_bite = job_->waiting().size() >= bite_entries();
  if (!job_->has_read_all() && !has_bite) return Read();
  // The last bite is written in the txg that swaps.
  const bool is_last = job_->has_read_all() && job_->waiting().size() <= bite_entries();
  return is_last ? FinishRun() : WriteShadow();
}

// Reads the survivors of one sublist, or as many as fit into memory.
absl::Status Condenser::Read() {
  RETURN_IF_ERROR(Failpoints::Hit("condense.read"));
  ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn, parts_.meta.BeginRead());
  ASSIGN_OR_RETURN(const bool is_valid, IsValid(*txn));
  if (!is_valid) return Cancelled();
  absl::StatusOr<SurvivorBite> bite =
      LiveList::SurvivorsFrom(*txn, job_->list, job_->views[job_->next_view], job_->next_address,
                              parts_.options.reclaim_memory_bytes);
  RETURN_IF_ERROR(bite.status());
  // In the order in which the next reader sorts them.
  std::sort(bite->runs.begin(), bite->runs.end(), [](const Run& a, const Run& b) {
    return std::pair(a.birth, a.address) < std::pair(b.birth, b.address);
  });
  std::vector<Run>& survivors = job_->survivors;
  survivors.erase(survivors.begin(), survivors.begin() + static_cast<ptrdiff_t>(job_->written));
  job_->written = 0;
  survivors.insert(survivors.end(), bite->runs.begin(), bite->runs.end());
  job_->next_address = bite->at_end() ? 0 : bite->next_address;
  job_->next_view += bite->at_end() ? 1 : 0;
  return absl::OkStatus();
}

absl::Status Condenser::WriteShadow() {
  RETURN_IF_ERROR(Failpoints::Hit("condense.shadow"));
  const std::span<const Run> bite = job_->waiting().first(bite_entries());
  ShadowLog shadow;
  bool is_valid = false;
  RETURN_IF_ERROR(RunTask(txgs_, [&](TxgContext& context) -> absl::StatusOr<Verdict> {
    ASSIGN_OR_RETURN(is_valid, IsValid(context.meta));
    if (!is_valid) return Verdict::kApplied;
    shadow = job_->shadow;
    if (!job_->has_shadow) {
      shadow.log = parts_.ids.Take<LogId>();
      RETURN_IF_ERROR(context.meta.Put(Table::kStates, Key(StateKey::kShadowLog, shadow.log), ""));
    }
    RETURN_IF_ERROR(WriteSurvivors(context.meta, bite, &shadow));
    return Verdict::kApplied;
  }));
  if (!is_valid) return Cancelled();
  parts_.stats.condense_written_bytes += PageBytes(bite.size());
  job_->has_shadow = true;
  job_->shadow = shadow;
  job_->written += bite.size();
  return absl::OkStatus();
}

// Writes the last survivors, carries over what has come, and swaps; if too much has come for one
// txg, the run goes on with the rest.
absl::Status Condenser::FinishRun() {
  RETURN_IF_ERROR(Failpoints::Hit("condense.swap"));
  std::vector<SublistView> views;
  ShadowLog shadow;
  bool is_valid = false;
  bool is_complete = false;
  RETURN_IF_ERROR(RunTask(txgs_, [&](TxgContext& context) -> absl::StatusOr<Verdict> {
    ASSIGN_OR_RETURN(is_valid, IsValid(context.meta));
    if (!is_valid) return Verdict::kApplied;
    views = job_->views;
    shadow = job_->shadow;
    ASSIGN_OR_RETURN(is_complete, Complete(context, &views, &shadow));
    RETURN_IF_ERROR(Failpoints::Hit("condense.swapped"));
    return Verdict::kApplied;
  }));
  if (!is_valid) return Cancelled();
  parts_.stats.condense_written_bytes += PageBytes(shadow.entries - job_->shadow.entries);
  job_->survivors.clear();
  job_->written = 0;
  job_->has_shadow = true;
  job_->views = std::move(views);
  job_->shadow = shadow;
  if (is_complete) EndJob(CondenseResult::kCompleted);
  return absl::OkStatus();
}

absl::StatusOr<bool> Condenser::Complete(TxgContext& context, std::vector<SublistView>* views,
                                         ShadowLog* shadow) const {
  WriteTxn& txn = context.meta;
  if (!job_->has_shadow) shadow->log = parts_.ids.Take<LogId>();
  const Key listed(StateKey::kShadowLog, shadow->log);
  RETURN_IF_ERROR(WriteSurvivors(txn, job_->waiting(), shadow));
  ASSIGN_OR_RETURN(const bool is_complete,
                   CarryOver(txn, job_->list, bite_entries(), views, shadow));
  if (!is_complete) {
    RETURN_IF_ERROR(txn.Put(Table::kStates, listed, ""));
    return false;
  }
  RETURN_IF_ERROR(txn.Delete(Table::kStates, listed));
  ASSIGN_OR_RETURN(const SublistRecord record, Swap(txn, job_->list, *views, *shadow));
  for (const SublistView& view : *views) context.pool.livelist_entries -= view.record.entries;
  context.pool.livelist_entries += record.entries;
  context.pool.livelist_sublists -= views->size() - 1;
  return true;
}

// What a run has written is dropped by the next step.
absl::Status Condenser::GiveUp(const absl::Status& why) {
  may_have_orphans_ = job_->has_shadow;
  if (absl::IsCancelled(why) || absl::IsUnavailable(why)) {
    EndJob(CondenseResult::kCancelled);
    return absl::OkStatus();
  }
  const absl::Status reported = absl::IsDataLoss(why) ? ReportDamage() : why;
  EndJob(CondenseResult::kFailed);
  return reported;
}

absl::Status Condenser::ReportDamage() {
  parts_.stats.alarms[Alarm::kLivelistDamaged] = 1;
  // While reading it is known which sublist it is.
  for (size_t i = 0; i < job_->views.size(); ++i) {
    if (job_->has_read_all() || i == job_->next_view) damaged_.insert(job_->views[i].record.log);
  }
  if (!hooks_.damaged) return absl::OkStatus();
  return RunTask(txgs_,
                 [this, dataset = job_->dataset](TxgContext& context) -> absl::StatusOr<Verdict> {
                   RETURN_IF_ERROR(hooks_.damaged(context, dataset));
                   return Verdict::kApplied;
                 });
}

void Condenser::EndJob(CondenseResult result) {
  PoolStats& stats = parts_.stats;
  ++stats.condenses[result];
  if (result == CondenseResult::kCompleted) {
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - job_->begin;
    stats.condense_seconds.Observe(seconds.count());
    if (!job_->is_drop) {
      stats.condense_entries_in += job_->entries_in;
      stats.condense_entries_out += job_->shadow.entries;
      stats.livelist_length_entries.Observe(static_cast<double>(job_->shadow.entries));
    }
  }
  job_.reset();
}

}  // namespace cowshed::engine

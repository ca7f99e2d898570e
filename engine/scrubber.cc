// SPDX-License-Identifier: Apache-2.0
#include "engine/scrubber.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "engine/base/failpoints.h"
#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/catalog.h"
#include "engine/operations.h"
#include "engine/reclaimer.h"
#include "engine/trim.h"

namespace cowshed::engine {
namespace {

constexpr uint64_t kTreesPerBite = 256;  // most of a pool of clones are all but empty
constexpr auto kLongestPause = std::chrono::milliseconds(200);  // in one step: closing waits for it

Key ScrubKey(OperationId id) { return Key(StateKey::kScrub, id); }

struct FoundScrub {
  OperationId id{};
  ScrubRecord record;
};

// The newest scrub: only that one can be unfinished.
absl::StatusOr<std::optional<FoundScrub>> NewestScrub(const MetaTxn& txn) {
  MetaCursor cursor(txn, Table::kStates);
  cursor.SeekBefore(Key(StateKey::kBackup));
  RETURN_IF_ERROR(cursor.status());
  if (!cursor.ValidFor(Key(StateKey::kScrub))) return std::nullopt;
  FoundScrub found;
  found.id = KeyNumber<OperationId>(cursor.key(), 1);
  ASSIGN_OR_RETURN(found.record, ScrubRecord::Decode(cursor.value()));
  return found;
}

absl::StatusOr<std::optional<FoundScrub>> UnfinishedScrub(const MetaTxn& txn) {
  ASSIGN_OR_RETURN(std::optional<FoundScrub> found, NewestScrub(txn));
  if (found.has_value() && found->record.phase == ScrubPhase::kDone) found.reset();
  return found;
}

void SetRunning(TxgContext& context, bool running) {
  PoolStats& stats = context.parts.stats;
  context.after_commit.emplace_back([&stats, running] { stats.scrub_running = running ? 1 : 0; });
  context.jobs_changed = true;
}

absl::StatusOr<OperationInfo> DescribeScrub(const MetaTxn& txn, OperationId id) {
  ASSIGN_OR_RETURN(const OperationRecord record, LoadRecord<OperationRecord>(txn, Key(id)));
  OperationInfo info = Describe(id, record);
  RETURN_IF_ERROR(AddScrubResult(txn, id, &info));
  return info;
}

// As it is called now; empty if it is not there any more.
absl::StatusOr<std::string> NameOf(const MetaTxn& txn, const DamageRecord& damage) {
  DatasetId owner = damage.dataset;
  std::optional<SnapshotRecord> snapshot;
  if (damage.snapshot != SnapshotId{}) {
    ASSIGN_OR_RETURN(snapshot, FindRecord<SnapshotRecord>(txn, Key(damage.snapshot)));
    if (!snapshot.has_value()) return std::string();
    owner = snapshot->dataset;
  }
  ASSIGN_OR_RETURN(const std::optional<DatasetRecord> dataset,
                   FindRecord<DatasetRecord>(txn, Key(owner)));
  if (!dataset.has_value()) return std::string();
  ASSIGN_OR_RETURN(std::string name, Names::FullName(txn, *dataset));
  if (!snapshot.has_value()) return name;
  return SnapshotFullName(name, snapshot->name.empty()
                                    ? StrCat("#", static_cast<uint64_t>(damage.snapshot))
                                    : snapshot->name);
}

// The next tree from the record's place on, which is moved to it; nullopt: that was the last.
class TreeFinder {
 public:
  TreeFinder(const MetaTxn& txn, ScrubRecord* place) : txn_(txn), place_(place) {}

  struct Tree {
    DatasetId dataset{};
    SnapshotId snapshot{};
    TreeState state;
    Txg floor = 0;
  };

  absl::StatusOr<std::optional<Tree>> Next() {
    if (place_->phase == ScrubPhase::kSnapshots) {
      ASSIGN_OR_RETURN(const std::optional<Tree> tree, NextSnapshot());
      if (tree.has_value()) return tree;
      place_->phase = ScrubPhase::kHeads;
      place_->cursor_id = 0;
      place_->cursor_block = 0;
    }
    return NextHead();
  }

 private:
  void MoveTo(uint64_t id) {
    if (id != place_->cursor_id) place_->cursor_block = 0;
    place_->cursor_id = id;
  }

  absl::StatusOr<Txg> FloorOf(DatasetId dataset, const DatasetRecord& record, Txg below) {
    ASSIGN_OR_RETURN(const std::optional<Neighbour> before, SnapshotBefore(txn_, dataset, below));
    return before.has_value() ? before->txg : record.origin_txg;
  }

  absl::StatusOr<std::optional<Tree>> NextSnapshot() {
    if (Failpoints::IsTrue("mutate.scrub_skips_snapshots")) return std::nullopt;
    MetaCursor cursor(txn_, Table::kSnapshots);
    for (cursor.Seek(Key(place_->cursor_id)); cursor.valid(); cursor.Next()) {
      const auto id = KeyNumber<SnapshotId>(cursor.key(), 0);
      ASSIGN_OR_RETURN(const SnapshotRecord snapshot, SnapshotRecord::Decode(cursor.value()));
      if (snapshot.txg > place_->start_txg) continue;
      ASSIGN_OR_RETURN(const std::optional<DatasetRecord> owner,
                       FindRecord<DatasetRecord>(txn_, Key(snapshot.dataset)));
      if (!owner.has_value()) continue;  // its dataset is gone, a job takes it away
      MoveTo(static_cast<uint64_t>(id));
      ASSIGN_OR_RETURN(const Txg floor, FloorOf(snapshot.dataset, *owner, snapshot.txg));
      return Tree{snapshot.dataset, id, snapshot.tree, floor};
    }
    RETURN_IF_ERROR(cursor.status());
    return std::nullopt;
  }

  absl::StatusOr<std::optional<Tree>> NextHead() {
    MetaCursor cursor(txn_, Table::kDatasets);
    cursor.Seek(Key(place_->cursor_id));
    RETURN_IF_ERROR(cursor.status());
    if (!cursor.valid()) return std::nullopt;
    const auto id = KeyNumber<DatasetId>(cursor.key(), 0);
    ASSIGN_OR_RETURN(const DatasetRecord dataset, DatasetRecord::Decode(cursor.value()));
    MoveTo(static_cast<uint64_t>(id));
    Tree tree{id, SnapshotId{}, dataset.tree, dataset.previous_txg()};
    ASSIGN_OR_RETURN(const std::vector<Neighbour> since,
                     SnapshotsAbove(txn_, id, place_->start_txg, 1));
    if (since.empty()) return tree;
    ASSIGN_OR_RETURN(const SnapshotRecord snapshot,
                     LoadRecord<SnapshotRecord>(txn_, Key(since[0].id)));
    tree.snapshot = since[0].id;
    tree.state = snapshot.tree;
    ASSIGN_OR_RETURN(tree.floor, FloorOf(id, dataset, snapshot.txg));
    return tree;
  }

  const MetaTxn& txn_;
  ScrubRecord* const place_;
};

}  // namespace

absl::StatusOr<Verdict> StartScrub(TxgContext& context, const StartScrubArgs& args,
                                   Outcome* outcome) {
  ASSIGN_OR_RETURN(std::optional<FoundScrub> scrub, UnfinishedScrub(context.meta));
  if (!scrub.has_value()) {
    scrub.emplace();
    ASSIGN_OR_RETURN(scrub->id, BeginOperation(context, OperationKind::kScrub,
                                               DestroyKind::kDataset, "", /*target_count=*/1));
    RETURN_IF_ERROR(AddPending(context, scrub->id));
    const PoolRecord& pool = context.pool;
    const uint64_t allocated = context.parts.allocator.allocated_sectors();
    const uint64_t freed = pool.freeing_sectors + context.parts.allocator.free_logged_sectors();
    RETURN_IF_ERROR(PlanOperation(context, scrub->id,
                                  allocated - std::min(allocated, freed + kFirstDataSector), 0));
    scrub->record.start_txg = context.txg;
  }
  scrub->record.paused = false;
  scrub->record.rate_bytes_per_second =
      args.rate_bytes_per_second.value_or(scrub->record.rate_bytes_per_second);
  RETURN_IF_ERROR(StoreRecord(context.meta, ScrubKey(scrub->id), scrub->record));
  ASSIGN_OR_RETURN(outcome->operation, DescribeScrub(context.meta, scrub->id));
  SetRunning(context, true);
  return Verdict::kApplied;
}

absl::StatusOr<Verdict> CancelScrub(TxgContext& context, const CancelScrubArgs& args,
                                    Outcome* outcome) {
  ASSIGN_OR_RETURN(std::optional<FoundScrub> scrub, UnfinishedScrub(context.meta));
  if (!scrub.has_value()) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "NO_SCRUB",
                     "no scrub is under way or paused");
  }
  if (args.pause) {
    scrub->record.paused = true;
    RETURN_IF_ERROR(PauseOperation(context, scrub->id));
  } else {
    scrub->record.phase = ScrubPhase::kDone;
    RETURN_IF_ERROR(FailOperation(context, scrub->id, "the scrub was cancelled"));
  }
  RETURN_IF_ERROR(StoreRecord(context.meta, ScrubKey(scrub->id), scrub->record));
  ASSIGN_OR_RETURN(outcome->operation, DescribeScrub(context.meta, scrub->id));
  SetRunning(context, false);
  return Verdict::kApplied;
}

absl::Status AddScrubResult(const MetaTxn& txn, OperationId id, OperationInfo* info) {
  if (info->kind != OperationKind::kScrub) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::optional<ScrubRecord> record,
                   FindRecord<ScrubRecord>(txn, ScrubKey(id)));
  if (!record.has_value()) return absl::OkStatus();
  info->errors = record->errors;
  for (const DamageRecord& damage : record->damaged) {
    DamagedPlace place;
    ASSIGN_OR_RETURN(place.name, NameOf(txn, damage));
    place.first_block = damage.first_block;
    place.block_count = damage.block_count;
    place.node = damage.node != 0;
    info->damaged.push_back(std::move(place));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Scrubber::Step() {
  if (looked_ && parts_.stats.scrub_running == 0) return false;
  if (!txgs_.health().ok()) return false;
  const auto now = Clock::now();
  if (now < not_before_) {
    std::this_thread::sleep_for(std::min<Clock::duration>(not_before_ - now, kLongestPause));
    return true;
  }
  ASSIGN_OR_RETURN(const std::optional<Entry> entry, Find());
  if (!entry.has_value()) return false;
  RETURN_IF_ERROR(Failpoints::Hit("scrub.bite"));
  const bool busy = txgs_.reclaim_load().foreground;
  absl::StatusOr<ScrubRecord> read = Read(entry->record, BiteBytes(entry->record, busy));
  if (absl::IsDataLoss(read.status())) {
    RETURN_IF_ERROR(GiveUp(*entry, read.status()));
    return true;
  }
  ASSIGN_OR_RETURN(ScrubRecord after, std::move(read));
  const uint64_t bytes = after.read_bytes - entry->record.read_bytes;
  const auto took = Clock::now() - now;
  RETURN_IF_ERROR(Failpoints::Hit("scrub.book"));
  RETURN_IF_ERROR(Book(*entry, std::move(after)));
  not_before_ = busy ? Clock::now() + took : now;
  if (const uint64_t rate = entry->record.rate_bytes_per_second; rate > 0) {
    const double seconds = static_cast<double>(bytes) / static_cast<double>(rate);
    not_before_ = std::max(not_before_, now + std::chrono::duration_cast<Clock::duration>(
                                                  std::chrono::duration<double>(seconds)));
  }
  return true;
}

absl::StatusOr<std::optional<Scrubber::Entry>> Scrubber::Find() {
  ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn, parts_.meta.BeginRead());
  ASSIGN_OR_RETURN(const std::optional<FoundScrub> newest, NewestScrub(*txn));
  const bool running = newest.has_value() && newest->record.running();
  if (!looked_ && newest.has_value()) {
    if (running) parts_.stats.scrub_running = 1;
    parts_.stats.scrub_finish_ms = static_cast<uint64_t>(newest->record.finish_time_ms);
  }
  looked_ = true;
  if (!running) return std::nullopt;
  return Entry{newest->id, newest->record};
}

uint64_t Scrubber::BiteBytes(const ScrubRecord& record, bool busy) const {
  uint64_t bytes = parts_.options.scrub_bite_bytes;
  if (busy) bytes /= 4;
  if (record.rate_bytes_per_second > 0) bytes = std::min(bytes, record.rate_bytes_per_second / 4);
  return std::max<uint64_t>(bytes, kMinBlockBytes);
}

absl::StatusOr<ScrubRecord> Scrubber::Read(const ScrubRecord& from, uint64_t max_bytes) const {
  // The epoch comes first: what the transaction sees must not be reused while it is read.
  const ReaderEpochs::Guard epoch(parts_.epochs);
  ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn, parts_.meta.BeginRead());
  ScrubRecord after = from;
  TreeFinder finder(*txn, &after);
  uint64_t left_bytes = max_bytes;
  for (uint64_t trees = 0; left_bytes > 0 && trees < kTreesPerBite; ++trees) {
    ASSIGN_OR_RETURN(const auto tree, finder.Next());
    if (!tree.has_value()) {
      after.phase = ScrubPhase::kDone;
      break;
    }
    TreeScrub scrub{.at_end = true};
    if (tree->floor < after.start_txg) {
      scrub = ScrubTree(parts_.blocks, tree->state, {tree->floor, after.start_txg},
                        &after.cursor_block, left_bytes);
    }
    after.read_bytes += scrub.read_bytes;
    left_bytes -= std::min(left_bytes, scrub.read_bytes);
    after.errors += scrub.damaged.size();
    for (DamageRecord& damage : scrub.damaged) {
      if (after.damaged.size() == kMaxDamagedPlaces) break;
      damage.dataset = tree->dataset;
      damage.snapshot = tree->snapshot;
      after.damaged.push_back(damage);
    }
    if (!scrub.at_end) break;
    ++after.cursor_id;
    after.cursor_block = 0;
  }
  return after;
}

absl::Status Scrubber::GiveUp(const Entry& entry, const absl::Status& why) {
  return RunTask(txgs_, [&](TxgContext& context) -> absl::StatusOr<Verdict> {
    ASSIGN_OR_RETURN(std::optional<ScrubRecord> record,
                     FindRecord<ScrubRecord>(context.meta, ScrubKey(entry.id)));
    if (!record.has_value() || !record->running()) return Verdict::kApplied;
    record->phase = ScrubPhase::kDone;
    ++record->errors;
    RETURN_IF_ERROR(StoreRecord(context.meta, ScrubKey(entry.id), *record));
    RETURN_IF_ERROR(FailOperation(
        context, entry.id,
        StrCat("the metadata is damaged, check the pool offline: ", StdView(why.message()))));
    SetRunning(context, false);
    PoolStats& stats = parts_.stats;
    context.after_commit.emplace_back([&stats] { ++stats.scrub_errors; });
    return Verdict::kApplied;
  });
}

absl::Status Scrubber::Book(const Entry& before, ScrubRecord after) {
  const uint64_t bytes = after.read_bytes - before.record.read_bytes;
  const uint64_t errors = after.errors - before.record.errors;
  return RunTask(txgs_, [&, this](TxgContext& context) -> absl::StatusOr<Verdict> {
    ASSIGN_OR_RETURN(const std::optional<ScrubRecord> now,
                     FindRecord<ScrubRecord>(context.meta, ScrubKey(before.id)));
    if (!now.has_value() || !now->running() || !now->SamePlace(before.record)) {
      return Verdict::kApplied;  // cancelled or paused meanwhile
    }
    after.rate_bytes_per_second = now->rate_bytes_per_second;
    RETURN_IF_ERROR(BookProgress(context, before.id, after.read_bytes / kSectorBytes));
    PoolStats& stats = parts_.stats;
    if (after.phase == ScrubPhase::kDone) {
      after.finish_time_ms = context.now_ms;
      RETURN_IF_ERROR(EndPending(context, before.id));
      SetRunning(context, false);
      context.after_commit.emplace_back([&stats, time_ms = context.now_ms] {
        stats.scrub_finish_ms = static_cast<uint64_t>(time_ms);
      });
    }
    RETURN_IF_ERROR(StoreRecord(context.meta, ScrubKey(before.id), after));
    context.after_commit.emplace_back([&stats, bytes, errors] {
      stats.scrub_read_bytes += bytes;
      stats.scrub_errors += errors;
    });
    return Verdict::kApplied;
  });
}

}  // namespace cowshed::engine

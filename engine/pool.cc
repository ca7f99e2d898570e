// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <utility>

#include "absl/strings/str_format.h"
#include "engine/attached.h"
#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/blockers.h"
#include "engine/checker.h"
#include "engine/lifecycle.h"
#include "engine/online_check.h"
#include "engine/pool_impl.h"
#include "engine/queries.h"
#include "engine/requests.h"
#include "engine/undelete.h"
#include "engine/volume.h"

namespace cowshed::engine {
namespace {

// A verb of lifecycle.h with its arguments: the call that a task makes, once for each attempt.
template <typename Verb, typename... Args>
auto Bind(Verb verb, Args... args) {
  return [verb, ... args = std::move(args)](TxgContext& context, Outcome* outcome) {
    return verb(context, args..., outcome);
  };
}

}  // namespace

absl::StatusOr<std::unique_ptr<Pool>> Pool::Open(const PoolOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<PoolImpl> pool, PoolImpl::Open(options));
  return std::unique_ptr<Pool>(std::move(pool));
}

// --- lifecycle ---

void PoolImpl::Submit(Call call, Idempotency key, OutcomeCallback done, Space space) {
  if (key.has_value()) return SubmitOnce(std::move(call), *std::move(key), std::move(done), space);
  auto outcome = std::make_shared<Outcome>();
  Task task;
  task.run = [call = std::move(call), outcome](TxgContext& context) {
    *outcome = Outcome();  // of an attempt that failed nothing remains
    return call(context, outcome.get());
  };
  task.done = [outcome, done = std::move(done)](absl::StatusOr<Txg> result) mutable {
    if (!result.ok()) return done(std::move(result).status());
    outcome->txg = *result;
    done(std::move(*outcome));
  };
  task.frees_space = space == Space::kFreesSpace;
  txgs_->Submit(std::move(task));
}

void PoolImpl::SubmitOnce(Call call, RequestKey key, OutcomeCallback done, Space space) {
  const std::string hash = RequestHash(key.key);
  const auto reused = [] {
    return MakeError(absl::StatusCode::kInvalidArgument, "REQUEST_ID_REUSED",
                     "this request_id was used before with other contents");
  };
  bool conflict = false;
  {
    const MutexLock lock(mutex_);
    const auto [it, first] = in_flight_.try_emplace(hash);
    conflict = !first && it->second.fingerprint != key.fingerprint;
    if (!conflict) {
      it->second.fingerprint = key.fingerprint;
      it->second.waiters.push_back(std::move(done));
      if (!first) return;  // joins the one under way
    }
  }
  if (conflict) return done(reused());
  const uint64_t fingerprint = key.fingerprint;
  auto once = [call = std::move(call), key = std::move(key), hash, fingerprint, reused](
                  TxgContext& context, Outcome* outcome) -> absl::StatusOr<Verdict> {
    ASSIGN_OR_RETURN(std::optional<StoredReply> stored, FindReply(context.meta, hash));
    if (stored.has_value()) {
      if (stored->fingerprint != fingerprint) return reused();
      outcome->replayed = std::move(stored->bytes);
      ++context.parts.stats.request_replays;
      return Verdict::kApplied;
    }
    ASSIGN_OR_RETURN(const Verdict verdict, call(context, outcome));
    if (verdict == Verdict::kNextTxg) return verdict;
    outcome->txg = context.txg;
    RETURN_IF_ERROR(StoreReply(context, hash, {fingerprint, key.encode(*outcome)}));
    return verdict;
  };
  Submit(
      std::move(once), std::nullopt,
      [this, hash](absl::StatusOr<Outcome> outcome) { FinishOnce(hash, std::move(outcome)); },
      space);
}

void PoolImpl::FinishOnce(const std::string& hash, absl::StatusOr<Outcome> outcome) {
  std::vector<OutcomeCallback> waiters;
  {
    const MutexLock lock(mutex_);
    const auto it = in_flight_.find(hash);
    waiters = std::move(it->second.waiters);
    in_flight_.erase(it);
  }
  for (size_t i = 0; i + 1 < waiters.size(); ++i) waiters[i](outcome);
  waiters.back()(std::move(outcome));  // leaves no share of it on the txg thread
}

void PoolImpl::CreateDataset(CreateDatasetArgs args, Idempotency key, OutcomeCallback done) {
  Submit(Bind(engine::CreateDataset, std::move(args)), std::move(key), std::move(done));
}

void PoolImpl::UpdateDataset(UpdateDatasetArgs args, Idempotency key, OutcomeCallback done) {
  Submit(Bind(engine::UpdateDataset, std::move(args)), std::move(key), std::move(done));
}

void PoolImpl::CreateSnapshots(CreateSnapshotsArgs args, Idempotency key, OutcomeCallback done) {
  Submit(Bind(engine::CreateSnapshots, std::move(args)), std::move(key), std::move(done));
}

void PoolImpl::CloneDataset(CloneDatasetArgs args, Idempotency key, OutcomeCallback done) {
  Submit(Bind(engine::CloneDataset, std::move(args)), std::move(key), std::move(done));
}

void PoolImpl::DestroyDatasets(DestroyDatasetsArgs args, Idempotency key, OutcomeCallback done) {
  // Not bound: its last argument, the kind of operation, stays at its default.
  Submit(
      [args = std::move(args)](TxgContext& context, Outcome* outcome) {
        return engine::DestroyDatasets(context, args, outcome);
      },
      std::move(key), std::move(done), Space::kFreesSpace);
}

void PoolImpl::DestroySnapshots(DestroySnapshotsArgs args, Idempotency key, OutcomeCallback done) {
  Submit(Bind(engine::DestroySnapshots, std::move(args)), std::move(key), std::move(done),
         Space::kFreesSpace);
}

void PoolImpl::Undestroy(std::string operation, Idempotency key, OutcomeCallback done) {
  Submit(Bind(engine::Undestroy, std::move(operation)), std::move(key), std::move(done));
}

void PoolImpl::HoldSnapshot(HoldSnapshotArgs args, Idempotency key, OutcomeCallback done) {
  Submit(Bind(engine::HoldSnapshot, std::move(args)), std::move(key), std::move(done));
}

void PoolImpl::ReleaseHold(std::string snapshot, std::string tag, Idempotency key,
                           OutcomeCallback done) {
  Submit(Bind(engine::ReleaseHold, std::move(snapshot), std::move(tag)), std::move(key),
         std::move(done), Space::kFreesSpace);
}

void PoolImpl::RollbackDataset(RollbackDatasetArgs args, Idempotency key, OutcomeCallback done) {
  Submit(Bind(engine::RollbackDataset, std::move(args)), std::move(key), std::move(done),
         Space::kFreesSpace);
}

void PoolImpl::PromoteDataset(std::string name, std::string etag, Idempotency key,
                              OutcomeCallback done) {
  Submit(Bind(engine::PromoteDataset, std::move(name), std::move(etag)), std::move(key),
         std::move(done));
}

void PoolImpl::RenameDataset(std::string name, std::string new_name, std::string etag,
                             Idempotency key, OutcomeCallback done) {
  Submit(Bind(engine::RenameDataset, std::move(name), std::move(new_name), std::move(etag)),
         std::move(key), std::move(done));
}

void PoolImpl::RenameSnapshot(std::string name, std::string new_name, Idempotency key,
                              OutcomeCallback done) {
  Submit(Bind(engine::RenameSnapshot, std::move(name), std::move(new_name)), std::move(key),
         std::move(done));
}

void PoolImpl::Sync(absl::AnyInvocable<void(absl::StatusOr<Txg>)> done) {
  txgs_->Flush(nullptr, std::move(done));
}

// --- queries ---

absl::StatusOr<DatasetInfo> PoolImpl::GetDataset(const std::string& name) {
  ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn, meta_->BeginRead());
  ASSIGN_OR_RETURN(const FoundDataset dataset, ResolveDataset(*txn, name));
  return Describe(*txn, parts_->uid, dataset);
}

absl::StatusOr<SnapshotInfo> PoolImpl::GetSnapshot(const std::string& name) {
  ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn, meta_->BeginRead());
  ASSIGN_OR_RETURN(const FoundSnapshot snapshot, ResolveSnapshot(*txn, name));
  return Describe(*txn, parts_->uid, snapshot);
}

absl::StatusOr<Page<DatasetInfo>> PoolImpl::ListDatasets(const ListArgs& args) {
  ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn, meta_->BeginRead());
  return engine::ListDatasets(*txn, parts_->uid, args);
}

absl::StatusOr<Page<SnapshotInfo>> PoolImpl::ListSnapshots(const ListArgs& args) {
  ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn, meta_->BeginRead());
  return engine::ListSnapshots(*txn, parts_->uid, args);
}

absl::StatusOr<Page<HoldInfo>> PoolImpl::ListHolds(const ListArgs& args) {
  ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn, meta_->BeginRead());
  return engine::ListHolds(*txn, parts_->uid, args);
}

absl::StatusOr<Page<OperationInfo>> PoolImpl::ListOperations(const ListArgs& args) {
  ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn, meta_->BeginRead());
  return engine::ListOperations(*txn, args);
}

absl::StatusOr<OperationInfo> PoolImpl::GetOperation(const std::string& name) {
  ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn, meta_->BeginRead());
  ASSIGN_OR_RETURN(const OperationId id, ResolveOperation(*txn, name));
  ASSIGN_OR_RETURN(const OperationRecord record, LoadRecord<OperationRecord>(*txn, Key(id)));
  OperationInfo info = Describe(id, record);
  RETURN_IF_ERROR(AddScrubResult(*txn, id, &info));
  return info;
}

absl::StatusOr<Page<Blocker>> PoolImpl::ListBlockers(const BlockerQuery& query,
                                                     const ListArgs& args) {
  ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn, meta_->BeginRead());
  return engine::ListBlockers(*txn, attachments_, query, args.page_size, args.position);
}

absl::StatusOr<Page<AttachmentInfo>> PoolImpl::ListAttachments(const ListArgs& args) {
  ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn, meta_->BeginRead());
  return engine::ListAttachments(*txn, attachments_, args);
}

absl::StatusOr<LivelistInfo> PoolImpl::GetLivelist(const std::string& dataset, Txg from_start,
                                                   uint32_t limit) {
  ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn, meta_->BeginRead());
  absl::StatusOr<LivelistInfo> info =
      engine::GetLivelist(*txn, parts_->uid, *pacer_, dataset, from_start, limit);
  if (absl::IsDataLoss(info.status())) {
    if (const auto found = ResolveDataset(*txn, dataset); found.ok()) ReportDamage(found->id);
  }
  return info;
}

void PoolImpl::ReportDamage(DatasetId id) {
  if (!options_.read_only) SubmitDrop(*txgs_, id);
}

void PoolImpl::OnOperationsChanged(absl::AnyInvocable<void()> changed) {
  txgs_->OnOperationsChanged(std::move(changed));
}

// --- bytes ---

absl::StatusOr<std::shared_ptr<Volume>> PoolImpl::OpenVolume(const std::string& name,
                                                             const std::string& expected_uid) {
  return OpenVolume(name, expected_uid, Holding::kFollows);
}

absl::StatusOr<std::shared_ptr<Volume>> PoolImpl::OpenVolume(const std::string& name,
                                                             const std::string& expected_uid,
                                                             Holding holding) {
  const auto check_uid = [&](const std::string& uid) {
    if (expected_uid.empty() || expected_uid == uid) return absl::OkStatus();
    return MakeError(absl::StatusCode::kAborted, "ETAG_MISMATCH",
                     StrCat(name, " is not the object it was"), {{"name", name}, {"uid", uid}});
  };
  ASSIGN_OR_RETURN(const ParsedName parsed, ParseName(name));
  while (true) {
    ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn, meta_->BeginRead());
    ASSIGN_OR_RETURN(const PoolRecord pool, LoadRecord<PoolRecord>(*txn, PoolRecord::kKey));
    if (parsed.snapshot.empty()) {
      ASSIGN_OR_RETURN(const FoundDataset dataset, ResolveDataset(*txn, name));
      const std::string uid = FormatUid(parts_->uid, static_cast<uint64_t>(dataset.id));
      RETURN_IF_ERROR(check_uid(uid));
      if (auto head = heads_.Open(dataset.id, uid, dataset.record, pool.txg)) {
        return MakeHeadVolume(*parts_, *txgs_, std::move(head), dataset.name, holding);
      }
    } else {
      ASSIGN_OR_RETURN(const FoundSnapshot snapshot, ResolveSnapshot(*txn, name));
      const std::string uid = FormatUid(parts_->uid, static_cast<uint64_t>(snapshot.id));
      RETURN_IF_ERROR(check_uid(uid));
      if (auto view = heads_.OpenSnapshot(snapshot.id, uid, snapshot.record, pool.txg)) {
        return MakeSnapshotVolume(*parts_, std::move(view), snapshot.name);
      }
    }
    // Something was published since this transaction began: read again.
  }
}

// --- pool ---

void PoolImpl::UpdateReclaim(UpdateReclaimArgs args, Idempotency key, OutcomeCallback done) {
  Submit(Bind(engine::UpdateReclaim, std::move(args)), std::move(key), std::move(done),
         Space::kFreesSpace);
}

void PoolImpl::StartScrub(StartScrubArgs args, Idempotency key, OutcomeCallback done) {
  Submit(Bind(engine::StartScrub, std::move(args)), std::move(key), std::move(done));
}

void PoolImpl::CancelScrub(CancelScrubArgs args, Idempotency key, OutcomeCallback done) {
  Submit(Bind(engine::CancelScrub, std::move(args)), std::move(key), std::move(done),
         Space::kFreesSpace);
}

void PoolImpl::Backup(BackupArgs args, Idempotency key, OutcomeCallback done) {
  // Looked at here, where it may take its time; used, or not, once a repeat has been told apart.
  Submit(Bind(engine::StartBackup, BackupTarget(args.directory)), std::move(key), std::move(done));
}

ReclaimInfo PoolImpl::reclaim() const {
  const PoolRecord record = txgs_->record();
  ReclaimInfo info;
  info.paused = record.reclaim_paused;
  info.rate_bytes_per_second = record.reclaim_rate_bytes_per_second;
  info.txg_budget_us = record.reclaim_txg_budget_us != 0
                           ? record.reclaim_txg_budget_us
                           : static_cast<uint64_t>(options_.reclaim_txg_budget.count());
  info.pending_items = record.jobs;
  info.pending_bytes = record.freeing_sectors * kSectorBytes;
  info.waiting_items = record.waiting_items;
  info.waiting_bytes = record.waiting_sectors * kSectorBytes;
  info.stalled_bytes = record.stalled_sectors * kSectorBytes;
  info.oldest_pending_ms = static_cast<int64_t>(stats_.reclaim_oldest_pending_ms.load());
  if (const auto txn = meta_->BeginRead(); txn.ok()) {
    info.next_window_end_ms = NextWindowEndMs(**txn).value_or(0);
  }
  return info;
}

SpaceInfo PoolImpl::space() const {
  const PoolRecord record = txgs_->record();
  SpaceInfo info;
  info.capacity_bytes = allocator_->capacity_sectors() * kSectorBytes;
  // The ring of the intent log is nobody's: it is reserve.
  info.allocated_bytes =
      (allocator_->allocated_sectors() - record.intent_log.sectors) * kSectorBytes;
  info.available_bytes = txgs_->available_sectors() * kSectorBytes;
  info.freeing_bytes = (record.freeing_sectors + allocator_->free_logged_sectors()) * kSectorBytes;
  info.waiting_bytes = record.waiting_sectors * kSectorBytes;
  info.reserve_bytes = (txgs_->reserve_sectors() + record.intent_log.sectors) * kSectorBytes;
  return info;
}

std::string PoolImpl::uid() const {
  return absl::StrFormat("%016x%016x", parts_->uid.high, parts_->uid.low);
}

Txg PoolImpl::committed_txg() const { return txgs_->committed_txg(); }

absl::Status PoolImpl::health() const { return txgs_->health(); }

absl::StatusOr<CheckReport> PoolImpl::Check() {
  // The epoch comes first: what the transaction sees must not be reused while it is walked.
  const ReaderEpochs::Guard epoch(epochs_);
  ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn, meta_->BeginRead());
  ASSIGN_OR_RETURN(CheckReport report, CheckPool(*txn, *blocks_, parts_->uid));
  if (options_.read_only) RETURN_IF_ERROR(CheckIntentLog(opened_, blocks_->file(), &report));
  for (const uint64_t id : report.damaged_livelists) ReportDamage(static_cast<DatasetId>(id));
  return report;
}

absl::StatusOr<CheckReport> PoolImpl::CheckOnline() {
  ASSIGN_OR_RETURN(CheckReport report, OnlineCheck(*parts_).Report());
  for (const uint64_t id : report.damaged_livelists) ReportDamage(static_cast<DatasetId>(id));
  return report;
}

absl::Status PoolImpl::DrainBackground() {
  while (true) {
    const Txg before = txgs_->committed_txg();
    for (const std::unique_ptr<BackgroundTask>& task : tasks_) RETURN_IF_ERROR(task->Drain());
    if (txgs_->committed_txg() == before) return absl::OkStatus();
  }
}

}  // namespace cowshed::engine

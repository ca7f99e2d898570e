// SPDX-License-Identifier: Apache-2.0
#include "engine/txg.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/attachments.h"
#include "engine/base/check.h"
#include "engine/base/failpoints.h"
#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/errors.h"
#include "engine/gauges.h"
#include "engine/head_sync.h"
#include "engine/refusals.h"

namespace cowshed::engine {
namespace {

using Clock = std::chrono::steady_clock;

// Past this many dirty LMDB pages the remaining tasks move to the next txg: 32 MiB commit in some
// tens of milliseconds, and the metadata reserve covers it twice.
constexpr uint64_t kMaxMetaPages = 8192;
// Of a host's free space, left to the metadata of what is written into the rest.
constexpr uint64_t kHostSlackBytes = 8 << 20;
constexpr uint64_t kPagesOfCommit = 8;  // the pool record, after the pages were counted
constexpr int kMaxFailures = 3;         // of a txg for another reason than space or a task
constexpr uint64_t kMinDirtyLimitBytes = 8 << 20;
constexpr auto kFullHostPoll = std::chrono::milliseconds(200);
constexpr auto kDeferredPoll = std::chrono::milliseconds(2);

// Changes by a txg's tasks so far: a task that failed and left it as it was has only looked.
uint64_t ChangesOf(const TxgContext& context) {
  return context.meta.changes() + context.writer.blocks_added();
}

// What writers may take of the host's free space; `before` where the host does not say.
uint64_t HostFreeBytes(const PoolParts& parts, uint64_t before) {
  const absl::StatusOr<uint64_t> host = parts.blocks.file().HostFreeBytes();
  return host.ok() ? *host - std::min(*host, kHostSlackBytes) : before;
}

double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

TxgManager::TxgManager(PoolParts& parts, PoolRecord record)
    : parts_(parts),
      committed_txg_(record.txg),
      dirty_limit_bytes_(parts.options.dirty_max_bytes),
      next_txg_(std::max(record.txg, parts.blocks.superblock().stamp_txg) + 1),
      last_sync_(Clock::now()),
      suspended_(parts.options.read_only ? ReadOnly() : absl::OkStatus()),
      record_(std::move(record)) {
  PublishGauges(parts_, record_);
  RefreshGauges();
  RefreshMetaGauges(parts_);
}

TxgManager::~TxgManager() { Stop(); }

void TxgManager::Start() {
  const MutexLock lock(mutex_);
  started_ = true;
  thread_ = std::thread([this] { Loop(); });
}

void TxgManager::Stop() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    work_.NotifyAll();
    synced_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void TxgManager::Submit(Task task) {
  if (!task.background) foreground_.Called();
  absl::Status refused;
  {
    const MutexLock lock(mutex_);
    refused = !suspended_.ok() ? suspended_ : stopping_ ? Stopping() : absl::OkStatus();
    if (refused.ok()) {
      tasks_.push_back(std::move(task));
      work_.NotifyOne();
    }
  }
  if (!refused.ok()) task.done(refused);
}

void TxgManager::Flush(const Head* head, TxgCallback done) {
  bool open = true;
  bool syncing = true;
  if (head != nullptr) {
    const MutexLock lock(head->mutex);
    open = !head->open.empty();
    syncing = !head->syncing.empty();
  }
  absl::StatusOr<Txg> now = committed_txg_.load();
  {
    const MutexLock lock(mutex_);
    if (!suspended_.ok()) {
      now = suspended_;
    } else if (open && !stopping_) {
      open_waiters_.push_back(std::move(done));
      work_.NotifyOne();
      return;
    } else if (syncing && syncing_active_) {
      syncing_waiters_.push_back(std::move(done));
      return;
    } else {
      now = open ? absl::StatusOr<Txg>(Stopping()) : committed_txg_.load();
    }
  }
  done(now);
}

void TxgManager::RequestSync() {
  const MutexLock lock(mutex_);
  sync_requested_ = true;
  work_.NotifyOne();
}

void TxgManager::RequestFreeLogDrain() {
  const MutexLock lock(mutex_);
  drain_requested_ = true;
  if (dirty_bytes_.load() > 0) return;
  sync_requested_ = true;
  work_.NotifyOne();
}

ReclaimLoad TxgManager::reclaim_load() const {
  const PoolRecord record = this->record();
  return {foreground_.busy(), foreground_.waits_for_space(),
          record.freeing_sectors - record.stalled_sectors, available_sectors()};
}

bool TxgManager::HasRoom(uint64_t bytes, uint64_t sectors) const {
  const uint64_t dirty = dirty_bytes_.load();
  return (dirty == 0 || dirty + bytes <= dirty_limit_bytes_.load()) &&
         admitted_sectors_.load() + sectors <= available_sectors();
}

absl::Status TxgManager::Admit(uint64_t bytes, uint64_t sectors) {
  const auto deadline = Clock::now() + parts_.options.write_wait_max;
  if (!parts_.meta.FitsMap(kMaxMetaPages)) return MetadataFull();
  const MutexLock lock(mutex_);
  while (true) {
    if (!suspended_.ok()) return suspended_;
    if (stopping_) return Stopping();
    if (HasRoom(bytes, sectors)) break;
    const bool lacks_space = admitted_sectors_.load() + sectors > available_sectors();
    const bool sync_helps = dirty_bytes_.load() > 0 || admitted_sectors_.load() > 0 ||
                            parts_.allocator.free_logged_sectors() > 0;
    // Not from jobs that are stalled, nor while reclaim is paused.
    const bool reclaim_helps =
        !record_.reclaim_paused &&
        record_.freeing_sectors + record_.waiting_sectors > record_.stalled_sectors;
    const bool space_may_come =
        sync_helps || syncing_active_ || reclaim_helps || parts_.allocator.withheld_sectors() > 0;
    if (lacks_space && !space_may_come) {
      return MakeError(absl::StatusCode::kResourceExhausted, "POOL_FULL",
                       "the pool has no space left for this write");
    }
    if (sync_helps) {
      drain_requested_ = drain_requested_ || lacks_space;
      sync_requested_ = true;
      work_.NotifyOne();
    }
    std::optional<Foreground::SpaceWaiter> waiter;
    if (lacks_space) waiter.emplace(foreground_);
    if (!synced_.WaitUntil(mutex_, deadline) && Clock::now() >= deadline) {
      return MakeError(absl::StatusCode::kResourceExhausted,
                       lacks_space ? "POOL_FULL" : "SERVER_BUSY",
                       lacks_space ? "the pool has no space left for this write, and reclaim did "
                                     "not give back enough in time"
                                   : "the write waited too long for memory: the disk is behind");
    }
  }
  foreground_.Wrote();
  const uint64_t dirty = dirty_bytes_.fetch_add(bytes) + bytes;
  admitted_sectors_.fetch_add(sectors);
  if (dirty >= std::min(parts_.options.txg_dirty_bytes, dirty_limit_bytes_.load() / 2)) {
    work_.NotifyOne();
  }
  return absl::OkStatus();
}

void TxgManager::Unadmit(uint64_t bytes, uint64_t sectors) {
  if (bytes == 0 && sectors == 0) return;
  dirty_bytes_.fetch_sub(bytes);
  admitted_sectors_.fetch_sub(sectors);
  const MutexLock lock(mutex_);
  synced_.NotifyAll();
}

uint64_t TxgManager::reserve_sectors() const {
  const uint64_t capacity = parts_.allocator.capacity_sectors();
  const uint64_t wanted =
      std::max(parts_.options.blocks_reserve_bytes / kSectorBytes, capacity / 32);
  return std::min(wanted, capacity / 4);
}

uint64_t TxgManager::available_sectors() const {
  const uint64_t free = parts_.allocator.available_sectors();
  const uint64_t reserve = reserve_sectors();
  const uint64_t in_pool = free > reserve ? free - reserve : 0;
  return std::min(in_pool, host_free_bytes_.load() / kSectorBytes);
}

absl::Status TxgManager::health() const {
  const MutexLock lock(mutex_);
  return suspended_;
}

PoolRecord TxgManager::record() const {
  const MutexLock lock(mutex_);
  return record_;
}

void TxgManager::OnOperationsChanged(absl::AnyInvocable<void()> changed) {
  const MutexLock lock(mutex_);
  operation_listeners_.push_back(std::move(changed));
}

void TxgManager::SetListeners(std::function<void()> jobs_changed,
                              std::function<void(std::vector<Run>)> punch) {
  jobs_changed_ = std::move(jobs_changed);
  punch_ = std::move(punch);
}

bool TxgManager::WantsSync() const {
  if (!suspended_.ok()) return false;  // I7: nothing is written any more
  const uint64_t dirty = dirty_bytes_.load();
  return sync_requested_ || !tasks_.empty() || !open_waiters_.empty() ||
         dirty >= std::min(parts_.options.txg_dirty_bytes, dirty_limit_bytes_.load() / 2) ||
         ((dirty > 0 || admitted_sectors_.load() > 0) &&
          Clock::now() - last_sync_ >= parts_.options.txg_interval);
}

void TxgManager::Loop() {
  while (true) {
    {
      const MutexLock lock(mutex_);
      while (!stopping_ && !WantsSync()) {
        work_.WaitUntil(mutex_, Clock::now() + parts_.options.txg_interval);
      }
      const bool idle = tasks_.empty() && open_waiters_.empty() && dirty_bytes_.load() == 0 &&
                        admitted_sectors_.load() == 0;
      if (stopping_ && (idle || !suspended_.ok())) break;
    }
    SyncBatch(Close());
  }
}

TxgManager::Batch TxgManager::Close() {
  Batch batch;
  {
    // Tasks first, layers second: what a caller wrote before it submitted is in this txg.
    const MutexLock lock(mutex_);
    for (std::deque<Task> taken = std::exchange(tasks_, {}); Task & task : taken) {
      batch.tasks.push_back({std::move(task), PendingTask::State::kWaiting, absl::OkStatus()});
    }
    syncing_waiters_ = std::exchange(open_waiters_, {});
    batch.drain_free_log = std::exchange(drain_requested_, false);
    sync_requested_ = false;
    syncing_active_ = true;
    last_sync_ = Clock::now();
  }
  batch.heads = parts_.heads.CloseLayers();
  return batch;
}

void TxgManager::SyncBatch(Batch batch) {
  while (true) {
    Stage stage = Stage::kPrepare;
    const Txg committed_before = committed_txg_.load();
    const absl::Status status = Attempt(batch, &stage);
    if (status.ok() && !batch.only_frees_space) break;
    bool again = false;
    if (status.ok()) {
      // What was freed may do. If nothing was, the host has to give.
      again = committed_txg_.load() != committed_before || AwaitSpace();
      batch.only_frees_space = false;
      batch.drain_free_log = true;
    } else if (stage == Stage::kPrepare) {
      again = PrepareRetry(batch, status);
    }
    if (again) continue;
    Suspend(batch, status.ok() ? absl::ResourceExhaustedError("the host is full")
                               : WithDamage(status, parts_.allocator.damaged_regions()));
    break;
  }
  {
    const MutexLock lock(mutex_);
    syncing_active_ = false;
    synced_.NotifyAll();
  }
  FinishWaiters(committed_txg_.load());
}

// Readies another attempt after `why`; false if there is no point.
bool TxgManager::PrepareRetry(Batch& batch, const absl::Status& why) {
  const bool full = absl::IsResourceExhausted(why);
  size_t failed_tasks = 0;
  for (PendingTask& pending : batch.tasks) {
    if (pending.state == PendingTask::State::kFailed) {
      ++failed_tasks;
    } else {
      pending.state = PendingTask::State::kWaiting;
    }
  }
  const bool head_failed = batch.damaged.size() > batch.failed_heads;
  batch.failed_heads = batch.damaged.size();
  const bool task_failed = failed_tasks > batch.failed_tasks || head_failed;
  batch.failed_tasks = failed_tasks;
  if (!full && !task_failed && ++batch.failures >= kMaxFailures) return false;
  // Space that only a repair can bring back is not waited for.
  if (full && !task_failed && parts_.allocator.damaged_regions() > 0) return false;
  // Not a reader: others may have taken all their slots.
  auto txn = parts_.meta.BeginWrite();
  if (!txn.ok() || !parts_.allocator.Reload(**txn, parts_.allocator.capacity_sectors()).ok()) {
    return false;
  }
  if (!full || task_failed) return true;
  if (parts_.meta.FitsMap(kMaxMetaPages)) parts_.stats.alarms[Alarm::kHostFull] = 1;
  batch.drain_free_log = true;
  if (std::exchange(batch.only_frees_space, !batch.only_frees_space)) return AwaitSpace();
  return true;
}

// Waits until the host may have got space back, or a task has come that frees some. False if the
// pool is being closed.
bool TxgManager::AwaitSpace() {
  const MutexLock lock(mutex_);
  if (stopping_) return false;
  const bool may_free =
      std::any_of(tasks_.begin(), tasks_.end(), [](const Task& task) { return task.frees_space; });
  if (!may_free) work_.WaitUntil(mutex_, Clock::now() + kFullHostPoll);
  return true;
}

void TxgManager::TakeSpaceFreeingTasks(Batch& batch) {
  const MutexLock lock(mutex_);
  for (auto it = tasks_.begin(); it != tasks_.end();) {
    if (!it->frees_space) {
      ++it;
      continue;
    }
    batch.tasks.push_back({std::move(*it), PendingTask::State::kWaiting, absl::OkStatus()});
    it = tasks_.erase(it);
  }
}

absl::Status TxgManager::Attempt(Batch& batch, Stage* stage) {
  const auto begin = Clock::now();
  if (batch.only_frees_space) TakeSpaceFreeingTasks(batch);
  const absl::Status reserved = parts_.meta.Reserve(kMaxMetaPages);
  parts_.stats.alarms[Alarm::kPoolReserveReached] =
      reserved.ok() && parts_.meta.FitsMap(kMaxMetaPages) ? 0 : 1;
  if (!reserved.ok() && !batch.only_frees_space) return reserved;
  ASSIGN_OR_RETURN(const std::unique_ptr<WriteTxn> meta, parts_.meta.BeginWrite());
  const Txg txg = next_txg_++;
  BlockWriter writer(parts_.blocks, parts_.allocator, *meta, txg);
  TxgContext context{parts_, txg,    parts_.options.clock_ms(),
                     *meta,  writer, record(),
                     {},     {},     false,
                     false,  false,  {},
                     {},     {}};
  uint64_t synced_bytes = 0;
  if (!batch.only_frees_space) {
    RETURN_IF_ERROR(WriteData(context, batch));
    for (const auto& head : batch.heads) {
      const MutexLock lock(head->mutex);
      synced_bytes += head->syncing.bytes;
    }
  }
  const auto data_done = Clock::now();
  RETURN_IF_ERROR(RunTasks(context, batch));
  RETURN_IF_ERROR(writer.Flush());
  const bool flush_regions =
      batch.drain_free_log || context.drain_free_log ||
      parts_.allocator.free_log_runs() > parts_.options.free_log_max_runs / 2;
  if (flush_regions) {
    RETURN_IF_ERROR(
        parts_.allocator
            .FlushRegions(*meta, parts_.epochs.ReusableUpTo(),
                          parts_.options.regions_flushed_per_txg,
                          parts_.options.punch_holes && punch_ ? &context.to_punch : nullptr)
            .status());
  }
  RETURN_IF_ERROR(parts_.allocator.WriteBack(*meta, txg));
  if (meta->changes() == 0) {
    // Nothing changed: no commit, and the number is free for the next txg.
    --next_txg_;
    for (const auto& hook : context.after_commit) hook();
    FinishTasks(batch, committed_txg_.load());
    const MutexLock lock(mutex_);
    if (!tasks_.empty()) {
      // Tasks that wait for the background (a trim): it wakes us with its own task.
      work_.WaitUntil(mutex_, Clock::now() + kDeferredPoll);
    }
    return absl::OkStatus();
  }
  // A host that is full must say so here: in the middle of a commit it is too late (I7).
  if (!parts_.meta.FitsAllocated(meta->dirty_pages() + kPagesOfCommit)) {
    return absl::ResourceExhaustedError("the metadata's reserve does not hold this txg");
  }
  const auto tasks_done = Clock::now();
  RETURN_IF_ERROR(Commit(context, stage));
  auto& seconds = parts_.stats.sync_seconds;
  seconds[static_cast<size_t>(SyncPhase::kData)].Observe(Seconds(data_done - begin));
  seconds[static_cast<size_t>(SyncPhase::kTasks)].Observe(Seconds(tasks_done - data_done));
  seconds[static_cast<size_t>(SyncPhase::kTotal)].Observe(Seconds(Clock::now() - begin));
  AdaptDirtyLimit(Seconds(Clock::now() - begin), synced_bytes);
  Publish(context, batch);
  FinishTasks(batch, txg);
  return absl::OkStatus();
}

// A head whose tree cannot be rewritten, for a node of it is damaged, loses what was not flushed:
// the txg is done over without it, and its next flush says so. The others never notice.
absl::Status TxgManager::WriteData(TxgContext& context, Batch& batch) {
  for (const std::shared_ptr<Head>& head : batch.heads) {
    if (const auto damaged = batch.damaged.find(head.get()); damaged != batch.damaged.end()) {
      RETURN_IF_ERROR(GiveUpLayers(context, *head, damaged->second));
      continue;
    }
    const absl::Status status = SyncHead(context, *head);
    if (absl::IsDataLoss(status)) batch.damaged.emplace(head.get(), status);
    RETURN_IF_ERROR(status);
  }
  return Failpoints::Hit("sync.data_written");
}

absl::Status TxgManager::RunTasks(TxgContext& context, Batch& batch) {
  const bool map_full = !parts_.meta.FitsMap(kMaxMetaPages);
  for (PendingTask& pending : batch.tasks) {
    if (pending.state != PendingTask::State::kWaiting) continue;
    if (map_full && !pending.task.frees_space) {
      // Unlike a host's, this space comes back only by what is destroyed: waiting does not help.
      pending.state = PendingTask::State::kRefused;
      pending.status = MetadataFull();
      continue;
    }
    if (batch.only_frees_space && !pending.task.frees_space) continue;
    if (context.meta.dirty_pages() > kMaxMetaPages) {
      pending.state = PendingTask::State::kNextTxg;
      continue;
    }
    const uint64_t changes_before = ChangesOf(context);
    const absl::StatusOr<Verdict> verdict = pending.task.run(context);
    if (verdict.ok()) {
      pending.state = *verdict == Verdict::kApplied ? PendingTask::State::kApplied
                                                    : PendingTask::State::kNextTxg;
      continue;
    }
    pending.status = verdict.status();
    if (ChangesOf(context) == changes_before) {
      pending.state = PendingTask::State::kRefused;
      continue;
    }
    // It failed half-way: the txg is done over without it.
    pending.state = PendingTask::State::kFailed;
    return pending.status;
  }
  return Failpoints::Hit("sync.tasks_run");
}

absl::Status TxgManager::Commit(TxgContext& context, Stage* stage) {
  *stage = Stage::kFinal;
  const auto begin = Clock::now();
  RETURN_IF_ERROR(Failpoints::Hit("sync.before_fsync"));
  ASSIGN_OR_RETURN(context.pool.blocks_stamp_txg,
                   parts_.blocks.SyncStamped(context.txg, context.pool.blocks_stamp_txg,
                                             context.pool.capacity_sectors));
  RETURN_IF_ERROR(Failpoints::Hit("sync.before_commit"));
  const auto synced = Clock::now();
  context.pool.txg = context.txg;
  context.pool.next_id = parts_.ids.next();
  RETURN_IF_ERROR(StoreRecord(context.meta, PoolRecord::kKey, context.pool));
  const absl::Status committed = context.meta.Commit();
  if (absl::IsResourceExhausted(committed)) *stage = Stage::kPrepare;  // nothing was written
  RETURN_IF_ERROR(committed);
  RETURN_IF_ERROR(Failpoints::Hit("sync.after_commit"));
  auto& seconds = parts_.stats.sync_seconds;
  seconds[static_cast<size_t>(SyncPhase::kFsync)].Observe(Seconds(synced - begin));
  seconds[static_cast<size_t>(SyncPhase::kCommit)].Observe(Seconds(Clock::now() - synced));
  return absl::OkStatus();
}

void TxgManager::Publish(TxgContext& context, const Batch& batch) {
  static const std::vector<std::shared_ptr<Head>> kNoHeads;
  const HeadTable::Released released = parts_.heads.Publish(
      context.txg, context.publication, batch.only_frees_space ? kNoHeads : batch.heads);
  parts_.epochs.Publish(context.txg);
  // Before what was admitted into it is given back: or else it counts for neither.
  host_free_bytes_.store(HostFreeBytes(parts_, host_free_bytes_.load()));
  dirty_bytes_.fetch_sub(released.bytes);
  admitted_sectors_.fetch_sub(released.admitted_sectors);
  std::vector<absl::AnyInvocable<void()>> listeners;
  {
    const MutexLock lock(mutex_);
    record_ = context.pool;
    committed_txg_.store(context.txg);
    if (context.operations_changed) listeners = std::exchange(operation_listeners_, {});
    synced_.NotifyAll();
  }
  if (!batch.only_frees_space) parts_.stats.alarms[Alarm::kHostFull] = 0;
  PublishGauges(parts_, context.pool);
  RefreshGauges();
  parts_.attachments.CutOff(context.publication);
  for (const auto& hook : context.after_commit) hook();
  if (context.jobs_changed && jobs_changed_) jobs_changed_();
  if (!context.to_punch.empty()) punch_(std::move(context.to_punch));
  for (auto& listener : listeners) listener();
}

// Calls back the tasks that are over and returns the others to the queue.
void TxgManager::FinishTasks(Batch& batch, Txg txg) {
  std::vector<PendingTask> rest;
  std::vector<Task> next;
  for (PendingTask& pending : batch.tasks) {
    switch (pending.state) {
      case PendingTask::State::kApplied:
        pending.task.run = nullptr;  // what it kept goes before its caller hears
        pending.task.done(txg);
        break;
      case PendingTask::State::kRefused:
      case PendingTask::State::kFailed:
        pending.task.run = nullptr;
        pending.task.done(std::move(pending.status));
        break;
      case PendingTask::State::kNextTxg:
        next.push_back(std::move(pending.task));
        break;
      case PendingTask::State::kWaiting:
        rest.push_back(std::move(pending));
        break;
    }
  }
  batch.tasks = std::move(rest);
  batch.failed_tasks = 0;
  const MutexLock lock(mutex_);
  tasks_.insert(tasks_.begin(), std::make_move_iterator(next.begin()),
                std::make_move_iterator(next.end()));
}

void TxgManager::FinishWaiters(const absl::StatusOr<Txg>& result) {
  std::vector<TxgCallback> waiters;
  absl::StatusOr<Txg> answer = result;
  {
    const MutexLock lock(mutex_);
    waiters = std::exchange(syncing_waiters_, {});
    if (!suspended_.ok()) answer = suspended_;
  }
  for (TxgCallback& waiter : waiters) waiter(answer);
}

void TxgManager::Suspend(Batch& batch, const absl::Status& why) {
  std::vector<TxgCallback> waiters;
  absl::Status suspended;
  {
    const MutexLock lock(mutex_);
    suspended_ = Suspended(StdView(why.message()));
    suspended = suspended_;
    for (std::deque<Task> taken = std::exchange(tasks_, {}); Task & task : taken) {
      batch.tasks.push_back({std::move(task), PendingTask::State::kWaiting, absl::OkStatus()});
    }
    waiters = std::exchange(open_waiters_, {});
    synced_.NotifyAll();
  }
  parts_.stats.alarms[Alarm::kPoolSuspended] = 1;
  for (PendingTask& pending : batch.tasks) pending.task.done(suspended);
  batch.tasks.clear();
  for (TxgCallback& waiter : waiters) waiter(suspended);
}

void TxgManager::AdaptDirtyLimit(double sync_seconds, uint64_t synced_bytes) {
  if (synced_bytes < kMinDirtyLimitBytes / 2) return;  // too little to measure by
  const double target = Seconds(parts_.options.sync_target);
  const auto fitting = static_cast<uint64_t>(static_cast<double>(synced_bytes) /
                                             std::max(sync_seconds, 1e-3) * target);
  // Open and syncing layers share the limit, so twice what one sync manages; smoothed.
  const uint64_t wanted = std::clamp(2 * fitting, kMinDirtyLimitBytes,
                                     std::max(parts_.options.dirty_max_bytes, kMinDirtyLimitBytes));
  dirty_limit_bytes_.store((dirty_limit_bytes_.load() * 3 + wanted) / 4);
}

void TxgManager::RefreshGauges() {
  host_free_bytes_.store(HostFreeBytes(parts_, host_free_bytes_.load()));
  engine::RefreshGauges(parts_,
                        {dirty_bytes_.load(), dirty_limit_bytes_.load(), available_sectors()});
}

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// Transaction groups: every change of a pool happens in a numbered batch that commits whole or not
// at all (I7). One thread syncs one txg at a time while the next stays open, so nobody stands
// still.
//
// A sync: 1-3 dirty data of each head, its nodes, its lists (head_sync); 4 tasks in arrival order,
// each check then apply; 5 the superblock stamp and fdatasync of `blocks`; 6 one LMDB commit, the
// single durability point; 7 new roots are published, waiters called back.
//
// Failure     Before 5: the txg is done over from its dirty layers under a new number; numbers that
//             failed are burnt, so (address, birth) stays unique. A task that fails after its first
//             change is left out of the second attempt and gets its error. A full host is waited
//             for, with an alarm; tasks that free space go on meanwhile. In 5 or 6: the pool is
//             suspended, nothing is written any more before a restart.
// Threads     Submit, Flush, Admit, RequestSync: any thread. Tasks and callbacks: txg thread.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/mutex.h"
#include "engine/foreground.h"
#include "engine/head.h"
#include "engine/options.h"
#include "engine/reclaim_pacer.h"
#include "engine/stats.h"
#include "engine/store/allocator.h"
#include "engine/store/block_store.h"
#include "engine/store/reader_epochs.h"
#include "engine/tree/block_tree.h"

namespace cowshed::engine {

// The parts of an open pool that a txg works on. All outlive the TxgManager.
struct PoolParts {
  const PoolOptions& options;
  MetaStore& meta;
  BlockStore& blocks;
  Allocator& allocator;
  BlockTree& tree;
  ReaderEpochs& epochs;
  IdSource& ids;
  HeadTable& heads;
  class Attachments& attachments;
  PoolStats& stats;
  ReclaimPacer& pacer;
  PoolUid uid;
};

// One attempt at one txg, as its tasks see it. Txg thread only.
struct TxgContext {
  PoolParts& parts;
  Txg txg;
  int64_t now_ms;
  WriteTxn& meta;
  BlockWriter& writer;
  PoolRecord pool;             // stored at the end of the txg
  std::set<DatasetId> fenced;  // snapshotted in this txg: bear and kill nothing more
  Publication publication;
  bool operations_changed = false;
  bool jobs_changed = false;
  bool drain_free_log = false;  // flush reusable frees into the bitmaps at the end
  std::vector<Run> to_punch;
  std::vector<std::unique_ptr<std::byte[]>> buffers;  // bytes that tasks gave to the writer
  std::vector<std::function<void()>> after_commit;  // counters that must not count failed attempts
};

// kNextTxg: the task has to wait for the next txg (its dataset is fenced, or a trim is under way).
enum class Verdict : uint8_t { kApplied, kNextTxg };

struct Task {
  // May be called again for another attempt: it must leave no trace outside the context but its
  // own result.
  std::function<absl::StatusOr<Verdict>(TxgContext&)> run;
  // Called once: with the txg the change is durable in, or with why it did not happen.
  absl::AnyInvocable<void(absl::StatusOr<Txg>)> done;
  bool frees_space = false;  // runs also while the host is full, before data accepted earlier
  bool background = false;   // nobody waits for it
};

class TxgManager {
 public:
  TxgManager(PoolParts& parts, PoolRecord record);
  ~TxgManager();  // Stop()

  void Start();
  // Commits what is open, then ends the thread. Later tasks get UNAVAILABLE.
  void Stop();

  void Submit(Task task);
  // Calls back once everything accepted into `head` so far is durable (null: the whole pool).
  void Flush(const Head* head, absl::AnyInvocable<void(absl::StatusOr<Txg>)> done);
  void RequestSync();
  // Frees that have become reusable become free sectors: in the txg that writers fill just now, or
  // else at once.
  void RequestFreeLogDrain();
  ReclaimLoad reclaim_load() const;

  // Lets a writer put `bytes` of buffers into the open layers whose sync may allocate `sectors`.
  // Waits for memory and, while space is being given back, for space; at most write_wait_max.
  absl::Status Admit(uint64_t bytes, uint64_t sectors);
  // Gives back what was admitted and then not needed.
  void Unadmit(uint64_t bytes, uint64_t sectors);

  // What a write could take now, in sectors.
  uint64_t available_sectors() const;
  uint64_t reserve_sectors() const;
  Txg committed_txg() const { return committed_txg_.load(); }
  // OK, or why changes are refused (UNAVAILABLE POOL_SUSPENDED).
  absl::Status health() const;
  // The pool record as of the last commit.
  PoolRecord record() const;

  // Copies into the stats what changes between commits, too: space given back, readers, cache hits.
  void RefreshGauges();

  // Calls `changed` once, after the next commit that changed an operation.
  void OnOperationsChanged(absl::AnyInvocable<void()> changed);
  // Calls after every commit that queued jobs or runs to punch. Set before Start.
  void SetListeners(std::function<void()> jobs_changed,
                    std::function<void(std::vector<Run>)> punch);

 private:
  using TxgCallback = absl::AnyInvocable<void(absl::StatusOr<Txg>)>;
  // A task and what has become of it, over all attempts at its txg.
  struct PendingTask {
    Task task;
    enum class State : uint8_t { kWaiting, kApplied, kNextTxg, kRefused, kFailed } state;
    absl::Status status;
  };
  struct Batch {
    std::vector<PendingTask> tasks;
    std::vector<std::shared_ptr<Head>> heads;
    bool only_frees_space = false;  // the host is full: no data, no other tasks
    bool drain_free_log = false;
    size_t failed_tasks = 0, failed_heads = 0;  // among `tasks`, in `damaged`
    int failures = 0;  // of attempts, for another reason than space, a task or a head
    std::map<const Head*, absl::Status> damaged;  // heads whose layers have to be given up
  };
  enum class Stage : uint8_t { kPrepare, kFinal };  // kFinal: fsync and commit, no way back

  void Loop();
  bool WantsSync() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Batch Close();
  void SyncBatch(Batch batch);
  absl::Status Attempt(Batch& batch, Stage* stage);
  absl::Status WriteData(TxgContext& context, Batch& batch);
  absl::Status RunTasks(TxgContext& context, Batch& batch);
  absl::Status Commit(TxgContext& context, Stage* stage);
  void Publish(TxgContext& context, const Batch& batch);
  bool PrepareRetry(Batch& batch, const absl::Status& why);
  bool AwaitSpace();
  void FinishTasks(Batch& batch, Txg txg);
  void FinishWaiters(const absl::StatusOr<Txg>& result);
  void TakeSpaceFreeingTasks(Batch& batch);
  void Suspend(Batch& batch, const absl::Status& why);
  void AdaptDirtyLimit(double sync_seconds, uint64_t synced_bytes);
  bool HasRoom(uint64_t bytes, uint64_t sectors) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  PoolParts& parts_;
  std::thread thread_;
  std::atomic<Txg> committed_txg_;
  std::atomic<uint64_t> dirty_bytes_{0};
  std::atomic<uint64_t> admitted_sectors_{0};
  std::atomic<uint64_t> dirty_limit_bytes_;
  std::atomic<uint64_t> host_free_bytes_{UINT64_MAX};
  std::function<void()> jobs_changed_;
  std::function<void(std::vector<Run>)> punch_;
  Foreground foreground_;

  // Txg thread only.
  Txg next_txg_;
  std::chrono::steady_clock::time_point last_sync_;

  mutable Mutex mutex_{LockRank::kTxg};
  CondVar work_;    // for the txg thread
  CondVar synced_;  // for writers that wait for memory or space
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  bool sync_requested_ ABSL_GUARDED_BY(mutex_) = false;
  bool drain_requested_ ABSL_GUARDED_BY(mutex_) = false;  // flush regions of the free log
  bool syncing_active_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  std::vector<TxgCallback> open_waiters_ ABSL_GUARDED_BY(mutex_);
  std::vector<TxgCallback> syncing_waiters_ ABSL_GUARDED_BY(mutex_);
  std::vector<absl::AnyInvocable<void()>> operation_listeners_ ABSL_GUARDED_BY(mutex_);
  absl::Status suspended_ ABSL_GUARDED_BY(mutex_);
  PoolRecord record_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cowshed::engine

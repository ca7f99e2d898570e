// SPDX-License-Identifier: Apache-2.0
//
// The intent log: little writes made durable by one synchronous write, long before their txg
// commits. What is dirty in memory and not logged yet is copied into a batch, the batch is written
// to a ring in `blocks` (store/intent_log_format.h), and whoever waited is called back. After a
// crash the next opening writes what the log holds and no commit does into the heads again.
//
// Group commit  One batch is in flight at a time; all who come meanwhile, of whatever head, share
//             the next. Who comes to an idle log writes the batch on its own thread; what comes
//             while it does is taken over by the log's thread. The lead is passed on before a
//             batch's waiters are answered, so that the disk is not idle meanwhile.
// Layers      Each close of the heads' open layers has a number, each commit books the number that
//             it contains; entries of layers up to it are in the trees, and batches of nothing else
//             leave the ring.
// Cuts        What was accepted before a rollback, shrink or destruction must not come back after
//             it. Entries say which txg of a cut their head knew of. A txg that cuts while batches
//             are alive leaves a record of it (IntentLogCut) until none of them can be; while none
//             is, durable writes wait for that txg instead.
// Fallback    A txg does it, by TxgManager::Flush: for much data, which then is written once; while
//             the ring is full, or there is none: the first who wants it has it made.
// Failure     An error of a batch's write suspends the pool (I7). What is acknowledged by then is
//             in the log, whatever becomes of the pool.
// Threads     MakeDurable: any. Book: txg thread. Replay: before anybody else knows the pool.
// Ownership   Borrows the parts and the TxgManager.
// Cost        MakeDurable: a copy of the bytes and one synchronous write of them and 96 bytes, in
//             whole sectors. Book: O(batches and cuts that are over). Replay: the ring at most.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "engine/base/mutex.h"
#include "engine/check_report.h"
#include "engine/head.h"
#include "engine/store/intent_log_batch.h"
#include "engine/txg.h"
#include "engine/volume.h"

namespace cowshed::engine {

// Adds to a check of a pool that nobody serves what waits in its log, or how it is damaged.
absl::Status CheckIntentLog(const PoolRecord& pool, const File& blocks, CheckReport* report);

class IntentLog {
 public:
  using Done = absl::AnyInvocable<void(absl::Status)>;

  IntentLog(PoolParts& parts, TxgManager& txgs) : parts_(parts), txgs_(txgs) {}
  ~IntentLog();  // Stop()

  // Takes up the log of a pool that was just opened with `record`, and numbers layers after all
  // that are in it. Nothing is changed. DATA_LOSS if it is damaged.
  absl::Status Load(const PoolRecord& record);
  // Writes what waits in the log into the heads, and commits it. REQUIRES: Load; the txg thread
  // runs, and nobody else uses the pool.
  absl::Status Replay();
  void Start();
  // Answers who waits, then ends the thread. Who comes later waits for a txg.
  void Stop();

  // Calls back once everything accepted into `head` before survives a crash.
  void MakeDurable(std::shared_ptr<Head> head, Done done);
  // OK, or the error that a write of it has met: then nothing of the pool is written any more (I7).
  absl::Status health();
  // Puts into the pool's record what this txg, which contains the syncing layers of `synced`, means
  // for the log.
  absl::Status Book(TxgContext& context, std::span<const std::shared_ptr<Head>> synced);

 private:
  struct Waiter {
    std::shared_ptr<Head> head;
    Done done;
  };
  // A batch that a crash would still have to find.
  struct Batch {
    uint64_t sequence = 0;
    uint64_t offset_sectors = 0;
    uint64_t sectors = 0;
    uint64_t layer = 0;  // the latest of its entries
  };
  struct Cut {
    DatasetId dataset{};
    Txg txg = 0;
    uint64_t size_bytes = 0;
    uint64_t layer = 0;
  };
  // Waiters by what becomes of them.
  struct Gathered {
    std::vector<Waiter> logged, large, full, later;
    uint64_t layer = 0;
  };
  // What there is to answer after a batch.
  struct Written {
    Gathered gathered;
    absl::Status status;
    bool failed = false;  // this batch, or one before
  };

  void Loop();
  Written WriteBatch();
  void Answer(Written written);
  Gathered Gather(std::vector<Waiter> waiters, uint64_t room_bytes);
  absl::Status Write(uint64_t layer);
  void Fail(const absl::Status& why);
  uint64_t FreeRun() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t UsedSectors() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FallBack(Waiter waiter, LogFallback reason);
  void Flush(Waiter waiter);
  bool WantsRing();
  void MakeRing(Waiter waiter);
  absl::StatusOr<Verdict> AllocateRing(TxgContext& context);
  absl::Status BookCuts(TxgContext& context, bool alive, std::vector<Cut>* added, size_t* over)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Committed(const IntentLogRecord& record, std::vector<Cut> added, size_t over);
  IntentLogRecord Advance(const IntentLogRecord& record, uint64_t layer) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Show() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Status LoadCuts() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  using Replayed = absl::flat_hash_map<uint64_t, std::shared_ptr<Volume>>;  // by dataset id
  absl::Status ReplayBatch(const IntentLogReader::Batch& batch, Replayed* replayed);
  absl::Status ReplayEntry(const IntentLogReader::Entry& entry, Replayed* replayed);
  absl::Status FinishReplay(const Replayed& replayed);

  PoolParts& parts_;
  TxgManager& txgs_;
  std::thread thread_;
  IntentBatchBuilder builder_;  // of whoever leads

  Mutex mutex_{LockRank::kIntentLog};
  CondVar work_;
  std::vector<Waiter> waiters_ ABSL_GUARDED_BY(mutex_);
  IntentLogRecord ring_ ABSL_GUARDED_BY(mutex_);       // as committed; no sectors: there is none
  std::deque<Batch> batches_ ABSL_GUARDED_BY(mutex_);  // from the oldest that ring_ counts
  std::deque<Cut> cuts_ ABSL_GUARDED_BY(mutex_);       // recorded ones, the oldest first
  uint64_t next_sequence_ ABSL_GUARDED_BY(mutex_) = 1;
  uint64_t next_offset_sectors_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  bool leading_ ABSL_GUARDED_BY(mutex_) = false;      // somebody makes or writes a batch
  bool handed_over_ ABSL_GUARDED_BY(mutex_) = false;  // ... the log's thread, from now on
  bool held_off_ ABSL_GUARDED_BY(mutex_) = false;     // a txg that cuts has left no record of it
  bool replaying_ ABSL_GUARDED_BY(mutex_) = false;    // the record stays as it was found
  bool making_ring_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::chrono::steady_clock::time_point next_try_ ABSL_GUARDED_BY(mutex_);  // to make a ring
};

}  // namespace cowshed::engine

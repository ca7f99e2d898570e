// SPDX-License-Identifier: Apache-2.0
//
// START HERE. A Pool is one directory of copy-on-write datasets: `meta/` (what exists) and `blocks`
// (bytes). Everything the engine can do is a method of Pool; everything behind it is private.
//
// Lifecycle calls are asynchronous: they join the open txg as a task (check, then apply) and call
// back once that txg is durable; many callers share one commit. Bytes go through a Volume: writes
// are volatile until a flush, reads see the caller's own writes. Queries see the last commit.
//
// Invariants  I1..I9 of docs/architecture.md.
// Threads     Thread-safe. Callbacks run on the txg thread: hand over, never block.
// Ownership   The pool outlives its volumes' use; destroy the Pool only after every callback came.
// Errors      absl::Status with ErrorDetails; UNAVAILABLE POOL_SUSPENDED for changes after a failed
//             sync (reads go on).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/options.h"
#include "engine/stats.h"
#include "engine/types.h"

namespace cowshed::engine {

class Attachments;
struct AttachmentInfo;

// What a lifecycle call did. Which members are set depends on the verb.
struct Outcome {
  Txg txg = 0;                          // durable in; 0: nothing had to change
  std::vector<DatasetInfo> datasets;    // the affected dataset first; promote: then the parent
  std::vector<SnapshotInfo> snapshots;  // the first 100
  uint64_t count = 0;                   // objects created, destroyed or moved
  int64_t time_ms = 0;                  // of creation
  std::optional<OperationInfo> operation;
  std::optional<DestroyPlan> plan;  // of validate_only
  std::optional<HoldInfo> hold;
  std::string target;               // what a rollback went to
  bool snapshot_destroyed = false;  // a release reaped a deferred snapshot
  std::string replayed;             // this is a replay: the bytes stored with the first reply
};
using OutcomeCallback = absl::AnyInvocable<void(absl::StatusOr<Outcome>)>;

// Makes a call idempotent: a success is stored with `encode(outcome)` in its own txg, and a repeat
// under the same key gets these bytes. INVALID_ARGUMENT REQUEST_ID_REUSED if the fingerprint of the
// contents differs. A repeat in flight joins the first.
struct RequestKey {
  std::string key;           // caller, method and request_id; any length
  uint64_t fingerprint = 0;  // of the request's contents
  std::function<std::string(const Outcome&)> encode;
};
using Idempotency = std::optional<RequestKey>;

// One page of a list. `next` is opaque bytes to go on with; empty at the end. A page examines at
// most 5,000 records, so it may be short or empty and still have a `next`.
template <typename Info>
struct Page {
  std::vector<Info> items;
  std::string next;
};

// Access to the bytes of one dataset's head or of one snapshot, pinned by uid: renames do not
// disturb it, destruction makes its calls ABORTED DATASET_DESTROYED. Thread-safe.
class Volume {
 public:
  virtual ~Volume() = default;
  virtual const std::string& uid() const = 0;
  virtual std::string name() const = 0;
  virtual bool read_only() const = 0;  // a snapshot
  virtual uint64_t size_bytes() const = 0;
  virtual uint32_t block_bytes() const = 0;

  // Fills `out` from `offset`. OUT_OF_RANGE beyond size; DATA_LOSS naming the block. Consistent as
  // one view per call.
  virtual absl::Status Read(uint64_t offset, std::span<std::byte> out) = 0;
  // As Read, but false where it would have to wait for the disk.
  virtual absl::StatusOr<bool> ReadCached(uint64_t offset, std::span<std::byte> out) = 0;
  // Where the next data at or after `offset` begins; size_bytes() if all the rest is zeros. May
  // name a place that reads as zeros, never skips data.
  virtual absl::StatusOr<uint64_t> NextData(uint64_t offset) = 0;
  // Where the first hole at or after `offset` begins; `end` if there is none before it. May pass
  // over a hole, never calls data one. REQUIRES: offset <= end <= size_bytes().
  virtual absl::StatusOr<uint64_t> NextHole(uint64_t offset, uint64_t end) = 0;
  // Accepts bytes into the open txg. May wait for memory or space; RESOURCE_EXHAUSTED POOL_FULL or
  // QUOTA_EXCEEDED comes before anything of the block concerned is accepted.
  virtual absl::Status Write(uint64_t offset, std::span<const std::byte> data) = 0;
  // As Write, of whole blocks; takes their memory (new std::byte[block_bytes()]), copies nothing.
  virtual absl::Status WriteBlocks(uint64_t first_block, std::span<BlockBytes> blocks) = 0;
  // Makes a range read as zeros, giving back whole blocks. Large ranges are durable on return
  // through `done`; small ones are volatile like writes.
  virtual void Discard(uint64_t offset, uint64_t length,
                       absl::AnyInvocable<void(absl::Status)> done) = 0;
  // Everything accepted before is durable once `done` is called with the txg it is in.
  virtual void Flush(absl::AnyInvocable<void(absl::StatusOr<Txg>)> done) = 0;
  // Everything accepted before survives a crash once `done` is called with OK. The cheap way for
  // little data: no query need show it yet. May take one synchronous write on the caller's thread;
  // `done` comes from it, or from another that must not be blocked.
  virtual void MakeDurable(absl::AnyInvocable<void(absl::Status)> done) = 0;
};

class Pool {
 public:
  // Opens or makes the pool. FAILED_PRECONDITION when another process has it, the pair of files
  // does not belong together, or the format is unknown.
  static absl::StatusOr<std::unique_ptr<Pool>> Open(const PoolOptions& options);
  virtual ~Pool() = default;  // syncs, then closes

  // --- lifecycle (see calls.h; each row of docs/api.md "Lifecycle") ---
  virtual void CreateDataset(CreateDatasetArgs args, Idempotency key, OutcomeCallback done) = 0;
  virtual void UpdateDataset(UpdateDatasetArgs args, Idempotency key, OutcomeCallback done) = 0;
  virtual void CreateSnapshots(CreateSnapshotsArgs args, Idempotency key, OutcomeCallback done) = 0;
  virtual void CloneDataset(CloneDatasetArgs args, Idempotency key, OutcomeCallback done) = 0;
  virtual void DestroyDatasets(DestroyDatasetsArgs args, Idempotency key, OutcomeCallback done) = 0;
  virtual void DestroySnapshots(DestroySnapshotsArgs args, Idempotency key,
                                OutcomeCallback done) = 0;
  // Brings back what a destroy with a window took away, all or nothing.
  virtual void Undestroy(std::string operation, Idempotency key, OutcomeCallback done) = 0;
  virtual void HoldSnapshot(HoldSnapshotArgs args, Idempotency key, OutcomeCallback done) = 0;
  virtual void ReleaseHold(std::string snapshot, std::string tag, Idempotency key,
                           OutcomeCallback done) = 0;
  virtual void RollbackDataset(RollbackDatasetArgs args, Idempotency key, OutcomeCallback done) = 0;
  virtual void PromoteDataset(std::string name, std::string etag, Idempotency key,
                              OutcomeCallback done) = 0;
  virtual void RenameDataset(std::string name, std::string new_name, std::string etag,
                             Idempotency key, OutcomeCallback done) = 0;
  virtual void RenameSnapshot(std::string name, std::string new_name, Idempotency key,
                              OutcomeCallback done) = 0;
  // Commits the open txg and everything before it.
  virtual void Sync(absl::AnyInvocable<void(absl::StatusOr<Txg>)> done) = 0;

  // --- queries, from the last commit ---
  virtual absl::StatusOr<DatasetInfo> GetDataset(const std::string& name) = 0;
  virtual absl::StatusOr<SnapshotInfo> GetSnapshot(const std::string& name) = 0;
  virtual absl::StatusOr<Page<DatasetInfo>> ListDatasets(const ListArgs& args) = 0;
  virtual absl::StatusOr<Page<SnapshotInfo>> ListSnapshots(const ListArgs& args) = 0;
  virtual absl::StatusOr<Page<HoldInfo>> ListHolds(const ListArgs& args) = 0;
  virtual absl::StatusOr<Page<OperationInfo>> ListOperations(const ListArgs& args) = 0;
  virtual absl::StatusOr<OperationInfo> GetOperation(const std::string& name) = 0;
  virtual absl::StatusOr<Page<Blocker>> ListBlockers(const BlockerQuery& query,
                                                     const ListArgs& args) = 0;
  virtual absl::StatusOr<LivelistInfo> GetLivelist(const std::string& dataset, Txg from_start,
                                                   uint32_t limit) = 0;
  // Calls `changed` once at the next change of any operation (a step of progress or the end).
  virtual void OnOperationsChanged(absl::AnyInvocable<void()> changed) = 0;

  // --- bytes ---
  // `name`: a dataset or "dataset@snap" ("@latest" too). `expected_uid` empty: any.
  virtual absl::StatusOr<std::shared_ptr<Volume>> OpenVolume(const std::string& name,
                                                             const std::string& expected_uid) = 0;
  // Changed extents from `from` (empty: from nothing) to `to`, both snapshots or heads of one
  // lineage, from `start_offset` on. Calls `visit` in rising order until it returns false.
  virtual absl::Status Diff(const std::string& from, const std::string& to, uint64_t start_offset,
                            const std::function<bool(const DiffExtent&)>& visit) = 0;

  // Who uses which volume as a device (attachments.h); listed oldest first, under present names: of
  // `parent` (a dataset with its snapshots, or a snapshot), or in the subtree `prefix`.
  virtual Attachments& attachments() = 0;
  virtual absl::StatusOr<Page<AttachmentInfo>> ListAttachments(const ListArgs& args) = 0;

  // --- pool ---
  virtual void UpdateReclaim(UpdateReclaimArgs args, Idempotency key, OutcomeCallback done) = 0;
  // Reads every referenced block and node once and checks it, in the background; or goes on with
  // the scrub under way or paused.
  virtual void StartScrub(StartScrubArgs args, Idempotency key, OutcomeCallback done) = 0;
  // FAILED_PRECONDITION NO_SCRUB if none is under way or paused.
  virtual void CancelScrub(CancelScrubArgs args, Idempotency key, OutcomeCallback done) = 0;
  // Copies the pool as of one txg into a directory, in the background: a pool of its own.
  virtual void Backup(BackupArgs args, Idempotency key, OutcomeCallback done) = 0;
  virtual ReclaimInfo reclaim() const = 0;
  virtual SpaceInfo space() const = 0;
  virtual const PoolStats& stats() const = 0;
  virtual std::string uid() const = 0;
  virtual Txg committed_txg() const = 0;
  virtual absl::Status health() const = 0;  // why changes are refused, or OK
  // Recomputes I1, I4..I6 and all sums from scratch, from one consistent view of a running pool.
  virtual absl::StatusOr<CheckReport> Check() = 0;
  // As far as it can be done in short views, in bounded memory, while others write (online_check.h
  // says what that leaves out).
  virtual absl::StatusOr<CheckReport> CheckOnline() = 0;
  // Runs queued background work until there is none. For tests and for closing a run.
  virtual absl::Status DrainBackground() = 0;
};

}  // namespace cowshed::engine

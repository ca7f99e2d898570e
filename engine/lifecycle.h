// SPDX-License-Identifier: Apache-2.0
//
// The lifecycle of datasets and snapshots as tasks of a txg: each checks everything, then applies.
// An error that comes before the first change refuses the call and leaves no trace.
//
// What every step keeps true (docs/architecture.md "the life of a block"): snapshot, clone,
// destroy, rollback and promote touch records and move sublists, never blocks, trees or entries, so
// their cost does not depend on how large a dataset is or how many there are (I9).
//
// Threads     Txg thread only.
// Errors      absl::Status with ErrorDetails; reasons as docs/api.md lists them for each verb.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "engine/catalog.h"
#include "engine/pool.h"
#include "engine/txg.h"

namespace cowshed::engine {

// --- one task per verb; `outcome` is filled on success ---
absl::StatusOr<Verdict> CreateDataset(TxgContext& context, const CreateDatasetArgs& args,
                                      Outcome* outcome);
absl::StatusOr<Verdict> UpdateDataset(TxgContext& context, const UpdateDatasetArgs& args,
                                      Outcome* outcome);
absl::StatusOr<Verdict> CreateSnapshots(TxgContext& context, const CreateSnapshotsArgs& args,
                                        Outcome* outcome);
absl::StatusOr<Verdict> CloneDataset(TxgContext& context, const CloneDatasetArgs& args,
                                     Outcome* outcome);
absl::StatusOr<Verdict> DestroyDatasets(TxgContext& context, const DestroyDatasetsArgs& args,
                                        Outcome* outcome,
                                        OperationKind kind = OperationKind::kDestroyDatasets);
absl::StatusOr<Verdict> DestroySnapshots(TxgContext& context, const DestroySnapshotsArgs& args,
                                         Outcome* outcome);
absl::StatusOr<Verdict> HoldSnapshot(TxgContext& context, const HoldSnapshotArgs& args,
                                     Outcome* outcome);
absl::StatusOr<Verdict> ReleaseHold(TxgContext& context, const std::string& snapshot,
                                    const std::string& tag, Outcome* outcome);
absl::StatusOr<Verdict> RollbackDataset(TxgContext& context, const RollbackDatasetArgs& args,
                                        Outcome* outcome);
absl::StatusOr<Verdict> PromoteDataset(TxgContext& context, const std::string& name,
                                       const std::string& etag, Outcome* outcome);
absl::StatusOr<Verdict> RenameDataset(TxgContext& context, const std::string& name,
                                      const std::string& new_name, const std::string& etag,
                                      Outcome* outcome);
absl::StatusOr<Verdict> RenameSnapshot(TxgContext& context, const std::string& name,
                                       const std::string& new_name, Outcome* outcome);

// How reclaim runs from now on. INVALID_FIELD: a budget of more than a second.
absl::StatusOr<Verdict> UpdateReclaim(TxgContext& context, const UpdateReclaimArgs& args,
                                      Outcome* outcome);
// Brings back what the operation took away while its window lasts (undelete.cc).
absl::StatusOr<Verdict> Undestroy(TxgContext& context, const std::string& operation,
                                  Outcome* outcome);

// --- steps that several verbs and the background share ---

// A name must be free: ALREADY_EXISTS DATASET_EXISTS.
absl::Status CheckNameFree(const MetaTxn& txn, const std::string& name);
// Takes a snapshot of the head as it is after this txg's data; an empty name makes a hidden one.
// Fences the dataset. REQUIRES: it is not fenced yet. Changes and stores `dataset`.
absl::StatusOr<SnapshotId> MakeSnapshot(TxgContext& context, FoundDataset* dataset,
                                        const std::string& name, const Labels& labels);
// Takes a dataset's name away and queues it for reclaim: at once, when its last dependent goes, or
// when the window of its operation has ended. REQUIRES: what blocks has been checked.
struct Dooming {
  OperationId operation{};
  bool window = false;  // the operation has one: keep it whole
};
absl::Status Doom(TxgContext& context, DatasetId id, DatasetRecord record, const Dooming& dooming);
// As above, for one that has been destroyed and counted out with its prefix, by the prefix's job.
absl::Status DoomDetached(TxgContext& context, DatasetId id, DatasetRecord record,
                          const JobRecord& job);
// The window of a kept dataset has ended.
absl::Status EndKeeping(TxgContext& context, DatasetId id);
// Queues the job that takes a detached directory apart.
absl::Status AddPrefixJob(TxgContext& context, DirectoryId directory, OperationId operation);
// Takes datasets, with their snapshots and as clones, out of the pool's visible counts, or puts
// them back; what is not visible waits.
absl::Status CountVisible(TxgContext& context, const std::vector<FoundDataset>& datasets,
                          bool shown);
// Destroys by name a snapshot that nothing depends on: queues the job that takes it out.
absl::Status KillSnapshot(TxgContext& context, SnapshotId id, SnapshotRecord snapshot,
                          OperationId operation);
// After a clone or hold of `id` went: destroys it if it only waited for that, and then whatever
// waited for it in turn.
absl::Status ReapIfUnneeded(TxgContext& context, SnapshotId id, OperationId operation);
// Sets, moves or removes an entry of the expiry index; 0: none. `tag` empty: the dataset itself.
absl::Status MoveExpiry(TxgContext& context, uint64_t id, const std::string& tag, int64_t from_ms,
                        int64_t to_ms);

}  // namespace cowshed::engine

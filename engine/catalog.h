// SPDX-License-Identifier: Apache-2.0
//
// Finding datasets and snapshots by name, their neighbours in a lineage, and describing them to
// callers: the common ground of lifecycle tasks and queries.
//
// Threads     Any thread, through any transaction.
// Errors      NOT_FOUND with reason DATASET_NOT_FOUND or SNAPSHOT_NOT_FOUND; INVALID_NAME.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/names.h"
#include "engine/store/records.h"
#include "engine/types.h"

namespace cowshed::engine {

struct FoundDataset {
  DatasetId id{};
  DatasetRecord record;
  std::string name;
};
struct FoundSnapshot {
  SnapshotId id{};
  SnapshotRecord record;
  std::string name;  // full; of "@latest" what it was
};

absl::StatusOr<FoundDataset> ResolveDataset(const MetaTxn& txn, std::string_view name);
// As above with an etag to hold; empty: any. ABORTED ETAG_MISMATCH.
absl::StatusOr<FoundDataset> ResolveDataset(const MetaTxn& txn, std::string_view name,
                                            std::string_view etag);
// "d@s", or "d@latest" for the newest visible one unless one is called that.
absl::StatusOr<FoundSnapshot> ResolveSnapshot(const MetaTxn& txn, std::string_view name);

// Destroyed, though its record is still there: by itself, or with its prefix.
absl::StatusOr<bool> IsDestroyed(const MetaTxn& txn, const DatasetRecord& record);

struct Neighbour {
  SnapshotId id{};
  Txg txg = 0;
};
// The own snapshot of `dataset` next below / above `txg`, hidden and dying ones included.
absl::StatusOr<std::optional<Neighbour>> SnapshotBefore(const MetaTxn& txn, DatasetId dataset,
                                                        Txg txg);
absl::StatusOr<std::optional<Neighbour>> SnapshotAfter(const MetaTxn& txn, DatasetId dataset,
                                                       Txg txg);
// All own snapshots with txg > floor, rising; at most `limit`.
absl::StatusOr<std::vector<Neighbour>> SnapshotsAbove(const MetaTxn& txn, DatasetId dataset,
                                                      Txg floor, uint64_t limit = UINT64_MAX);
// What separates deadlist buckets in the whole lineage of a head: its own sublist starts, then its
// origin's up to it, and so on. Where a list is missing, its dataset's snapshots and origin: the
// rebuilt list will have its sublists there.
absl::StatusOr<std::vector<Txg>> LineageBounds(const MetaTxn& txn, DatasetId id,
                                               const DatasetRecord& record);

std::string FormatUid(const PoolUid& pool, uint64_t id);
// The id that FormatUid was given.
uint64_t ObjectOfUid(std::string_view uid);
std::string EtagOf(DatasetId id, const DatasetRecord& record);
std::string SnapshotFullName(std::string_view dataset, std::string_view snapshot);

absl::StatusOr<DatasetInfo> Describe(const MetaTxn& txn, const PoolUid& pool,
                                     const FoundDataset& dataset);
absl::StatusOr<SnapshotInfo> Describe(const MetaTxn& txn, const PoolUid& pool,
                                      const FoundSnapshot& snapshot);
HoldInfo Describe(const PoolUid& pool, const FoundSnapshot& snapshot, std::string_view tag,
                  const HoldRecord& hold);
OperationInfo Describe(OperationId id, const OperationRecord& record);
// "operations/<number>". NOT_FOUND OPERATION_NOT_FOUND.
absl::StatusOr<OperationId> ResolveOperation(const MetaTxn& txn, std::string_view name);

// What destroying only this snapshot would free.
absl::StatusOr<uint64_t> UniqueSectors(const MetaTxn& txn, const SnapshotRecord& snapshot);

// INVALID_ARGUMENT INVALID_LABEL unless count, keys and sizes are within bounds.
absl::Status CheckLabels(const Labels& labels);
bool MatchesLabels(const Labels& labels, const Labels& wanted);

}  // namespace cowshed::engine

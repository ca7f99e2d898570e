// SPDX-License-Identifier: Apache-2.0
//
// The lists of a pool, page by page, over one metadata transaction.
//
// Every list follows an index and goes on behind the last key it saw, so a page costs what it
// returns however much there is, and an object that keeps its place in the index (its name, for
// lists by prefix) appears exactly once however many others come, go or are renamed meanwhile.
//
//   datasets    by name, depth first; clones of a snapshot or dataset by (snapshot txg, id)
//   snapshots   by (dataset name, txg)
//   holds       by (snapshot id, tag); below a prefix by (dataset name, txg, tag)
//   operations  by number, newest first
//
// Positions   Opaque bytes, good only for the arguments that gave them: INVALID_ARGUMENT if they do
//             not parse.
// Threads     Any thread, through any transaction.
// Cost        A page examines at most 5,000 records; filters may leave it short, or empty, with a
//             `next`.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "engine/pool.h"
#include "engine/reclaim_pacer.h"
#include "engine/store/meta_store.h"

namespace cowshed::engine {

absl::StatusOr<Page<DatasetInfo>> ListDatasets(const MetaTxn& txn, const PoolUid& pool,
                                               const ListArgs& args);
absl::StatusOr<Page<SnapshotInfo>> ListSnapshots(const MetaTxn& txn, const PoolUid& pool,
                                                 const ListArgs& args);
absl::StatusOr<Page<HoldInfo>> ListHolds(const MetaTxn& txn, const PoolUid& pool,
                                         const ListArgs& args);
absl::StatusOr<Page<OperationInfo>> ListOperations(const MetaTxn& txn, const ListArgs& args);
// Sublists of a dataset's livelist from `from_start` on, and the sum over all of them.
absl::StatusOr<LivelistInfo> GetLivelist(const MetaTxn& txn, const PoolUid& pool,
                                         const ReclaimPacer& pacer, std::string_view dataset,
                                         Txg from_start, uint32_t limit);

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// What stands in the way of a call, listed from the indexes it is recorded in: an error carries the
// total and the first 20, a client pages through all of them, from the state as it then is.
//
// A query is a list of targets; each target is one contiguous stretch of one index (own snapshots
// by txg, clones or holds of a snapshot, snapshot names), so a page costs what it returns.
//
// Threads     Any thread, through any transaction.
// Cost        A page examines at most 5,000 index entries. Targets that are gone are passed over.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/attachments.h"
#include "engine/errors.h"
#include "engine/pool.h"
#include "engine/store/meta_store.h"

namespace cowshed::engine {

// One page from `position` (a page's `next`; empty: from the start) on, in the order of the
// query's targets. INVALID_ARGUMENT for a position that no page gave.
absl::StatusOr<Page<Blocker>> ListBlockers(const MetaTxn& txn, const Attachments& attachments,
                                           const BlockerQuery& query, uint32_t page_size,
                                           std::string_view position);

// The blockers as an error carries them: `total` as counted by the caller and the first of them.
absl::StatusOr<Blockers> MakeBlockers(const MetaTxn& txn, const Attachments& attachments,
                                      BlockerQuery query, uint64_t total);

}  // namespace cowshed::engine

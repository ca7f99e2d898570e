// SPDX-License-Identifier: Apache-2.0
//
// What a destroy would do, without doing it: counts, names, an etag that holds the call to them,
// and on request (validate_only) exactly what it gives back and how long that will take.
//
// A dataset gives back the net sum of its livelist; hidden and deferred snapshots that only waited
// for it go along. What a set of snapshots gives back is more than the sum of what each would:
// blocks that several of them share go with the last. For a stretch of neighbours these are the
// blocks born after the snapshot before it, and killed within it or right behind it: a range sum
// over the deadlists of all but the first, and of what follows the stretch.
//
// Threads     Any thread, through any transaction.
// Cost        Plan: O(targets). Forecast: the headers of their lists, and the neighbours.
#pragma once

#include <set>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/catalog.h"
#include "engine/reclaim_pacer.h"

namespace cowshed::engine {

DestroyPlan PlanDatasets(const std::vector<FoundDataset>& targets);
DestroyPlan PlanSnapshots(const std::vector<FoundSnapshot>& targets);

// Fills in freed_bytes, entries and predicted_seconds.
absl::Status ForecastDatasets(const MetaTxn& txn, const ReclaimPacer& pacer,
                              const std::vector<FoundDataset>& targets, DestroyPlan* plan);
absl::Status ForecastSnapshots(const MetaTxn& txn, const ReclaimPacer& pacer,
                               const std::vector<FoundSnapshot>& targets, DestroyPlan* plan);
// How much reclaim has to read and to free for the list.
absl::Status ForecastLivelist(const MetaTxn& txn, LivelistId livelist, ReclaimForecast* forecast);

}  // namespace cowshed::engine

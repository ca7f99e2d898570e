// SPDX-License-Identifier: Apache-2.0
//
// What can be done with a livelist that nobody believes any more: read its bounds, count it, and
// forget it in bites. Nothing here needs a value that decodes: keys say which sublists there are
// and which logs are attached to them, so a damaged list goes as well as a sound one.
//
// Threads     Changes: txg thread. Reads: any thread, through any transaction.
// Cost        Forget: bounded by `max_keys`. Count: all sublists of the pool; for damage only.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/tree/live_list.h"

namespace cowshed::engine {

// Starts of all sublists of a list, rising, damaged ones included.
absl::StatusOr<std::vector<Txg>> SublistStarts(const MetaTxn& txn, LivelistId list);

struct ForgottenSublists {
  LiveListGrowth shrunk;  // by how much the lists of the pool have
  bool damaged = false;   // a record did not decode: `shrunk` lacks it, and its own log is orphaned
  bool done = false;      // nothing is left of the list
};
// Forgets a list, `max_keys` keys of it (at least one) at a time, and releases its logs.
absl::StatusOr<ForgottenSublists> ForgetSublists(WriteTxn& txn, LivelistId list, uint64_t max_keys);

// What all readable sublists of the pool sum up to.
absl::StatusOr<LiveListGrowth> CountSublists(const MetaTxn& txn);

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// Replies kept under a request key, so that a repeated call gets its first answer even after a
// restart. Only successes are kept, in the txg of their change; old ones are forgotten in bites.
//
// Threads     Changes: txg thread. Look-ups: any thread.
// On disk     kRequests: (128-bit key hash, chunk number) -> in chunk 0 RequestHeader, then the
//             reply's bytes, cut to fit; kRequestTimes: (unix ms, key hash) -> empty.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/txg.h"

namespace cowshed::engine {

struct StoredReply {
  uint64_t fingerprint = 0;
  std::string bytes;
};

// 16 bytes that stand for a request key.
std::string RequestHash(std::string_view key);

absl::StatusOr<std::optional<StoredReply>> FindReply(const MetaTxn& txn, std::string_view hash);
absl::Status StoreReply(TxgContext& context, std::string_view hash, const StoredReply& reply);
// Forgets replies from before `before_ms`, and the oldest past `keep_max`; at most `limit`.
// True when nothing more is to be forgotten.
absl::StatusOr<bool> ForgetReplies(TxgContext& context, int64_t before_ms, uint64_t keep_max,
                                   uint64_t limit);

}  // namespace cowshed::engine

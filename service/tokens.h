// SPDX-License-Identifier: Apache-2.0
//
// Opaque tokens that the server hands out and gets back: page tokens and lists of blockers. A token
// carries its contents and a keyed digest over purpose, context and contents, so the server keeps
// nothing in memory for it, and one that was changed, cut, or taken to another list is refused.
//
// Model       token = base64url(version | digest[16] | contents). The context of a page token is
// the
//             request without its page fields: a page token goes on with the same filters or not at
//             all. Lists of more than 64 targets are too large for a token: they stay in memory,
//             the latest 256 of them, and the token carries their number.
// Invariants  The key comes from a secret of the pool's (secret.h): page tokens outlive a restart,
//             and nobody can make one. They carry no rights: what a token leads to is checked, and
//             redacted, for whoever brings it.
// Threads     Thread-safe.
// Cost        A digest per token; memory for at most 256 long lists of targets.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/base/mutex.h"
#include "engine/pool.h"
#include "google/protobuf/message.h"

namespace cowshed::service {

class Tokens {
 public:
  static constexpr size_t kTargetsInToken = 64;
  static constexpr size_t kListsKept = 256;

  explicit Tokens(std::string_view secret);

  // A page token for going on at `position` with the list that `request` asks for; empty for an
  // empty position. `request` has the fields page_size and page_token, which do not count.
  std::string SealPosition(const google::protobuf::Message& request, std::string_view position);
  // The position in the page token of `request`; empty if it has none.
  // INVALID_ARGUMENT INVALID_PAGE_TOKEN unless SealPosition made it for the same filters.
  absl::StatusOr<std::string> OpenPosition(const google::protobuf::Message& request);

  // A list_token for `query`.
  std::string SealBlockers(const engine::BlockerQuery& query) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<engine::BlockerQuery> OpenBlockers(std::string_view token)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  std::string Seal(std::string_view context, std::string_view contents) const;
  absl::StatusOr<std::string> Open(std::string_view context, std::string_view token) const;

  const std::string key_;
  engine::Mutex mutex_{engine::LockRank::kTokens};
  // Long lists by their number, and the numbers from the oldest to the newest.
  std::map<uint64_t, engine::BlockerQuery> lists_ ABSL_GUARDED_BY(mutex_);
  std::list<uint64_t> list_order_ ABSL_GUARDED_BY(mutex_);
};

// `message` as bytes that are the same for equal messages (maps sorted).
std::string DeterministicBytes(const google::protobuf::Message& message);

}  // namespace cowshed::service

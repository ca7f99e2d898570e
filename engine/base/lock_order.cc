// SPDX-License-Identifier: Apache-2.0
#include "engine/base/lock_order.h"

#include <array>
#include <cstddef>
#include <cstdio>
#include <cstdlib>

#include "engine/base/check.h"

namespace cowshed::engine {
namespace {

constexpr size_t kRanks = static_cast<size_t>(LockRank::kFailpoints) + 1;

constexpr std::array<std::string_view, kRanks> kNames = {"server",
                                                         "stream registry",
                                                         "call",
                                                         "NBD server",
                                                         "NBD connection",
                                                         "operation waits",
                                                         "callbacks",
                                                         "access",
                                                         "tokens",
                                                         "executor",
                                                         "task step",
                                                         "task state",
                                                         "attachments",
                                                         "head table",
                                                         "head",
                                                         "txg",
                                                         "intent log",
                                                         "calls in flight",
                                                         "punch queue",
                                                         "reclaim pacer",
                                                         "metadata growth",
                                                         "metadata readers",
                                                         "reader epochs",
                                                         "node cache",
                                                         "leaf",
                                                         "failpoints"};
static_assert(!kNames.back().empty(), "every rank has a name");

}  // namespace

std::string_view LockName(LockRank rank) { return kNames.at(static_cast<size_t>(rank)); }

#ifdef COWSHED_CHECK_LOCK_ORDER
namespace {

// In the order taken, which is the order of ranks. No thread holds more than one of each.
struct Held {
  std::array<LockRank, kRanks> ranks;
  size_t count = 0;
};
thread_local Held held;

}  // namespace

void LockOrder::Taking() const {
  if (held.count > 0 && held.ranks[held.count - 1] >= rank_) {
    const std::string_view later = LockName(held.ranks[held.count - 1]);
    const std::string_view earlier = LockName(rank_);
    std::fprintf(stderr, "lock order: \"%.*s\" is taken while \"%.*s\" is held\n",
                 static_cast<int>(earlier.size()), earlier.data(), static_cast<int>(later.size()),
                 later.data());
    std::abort();
  }
  held.ranks[held.count++] = rank_;
}

// Not always the last one: a lock may be released before those taken after it.
void LockOrder::Released() const {
  size_t at = held.count;
  while (at > 0 && held.ranks[at - 1] != rank_) --at;
  COWSHED_CHECK(at > 0, "a lock is released by the thread that took it");
  for (; at < held.count; ++at) held.ranks[at - 1] = held.ranks[at];
  --held.count;
}
#endif

}  // namespace cowshed::engine

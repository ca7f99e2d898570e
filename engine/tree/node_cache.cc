// SPDX-License-Identifier: Apache-2.0
#include "engine/tree/node_cache.h"

#include <algorithm>
#include <bit>
#include <list>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/hash/hash.h"
#include "engine/base/mutex.h"

namespace cowshed::engine {

namespace {

// A node, its list and map entries and what malloc adds.
constexpr uint64_t kBytesPerNode = sizeof(Node) + 192;
// Enough that workers seldom meet, few enough that each shard keeps a fair share of the recent.
constexpr uint64_t kMaxShards = 16;
constexpr uint64_t kMinNodesPerShard = 64;

using CacheKey = std::pair<uint64_t, Txg>;  // address, birth

CacheKey KeyOf(const BlockPtr& pointer) { return {pointer.address, pointer.birth}; }

}  // namespace

struct NodeCache::Shard {
  struct Entry {
    CacheKey key;
    std::shared_ptr<const Node> node;
  };

  Mutex mutex{LockRank::kNodeCache};
  std::list<Entry> recent ABSL_GUARDED_BY(mutex);  // most recently used first
  absl::flat_hash_map<CacheKey, std::list<Entry>::iterator> by_key ABSL_GUARDED_BY(mutex);
  size_t capacity_nodes = 0;
};

NodeCache::NodeCache(uint64_t capacity_bytes) {
  const uint64_t nodes = capacity_bytes / kBytesPerNode;
  const uint64_t shard_count =
      std::bit_floor(std::clamp<uint64_t>(nodes / kMinNodesPerShard, 1, kMaxShards));
  for (uint64_t i = 0; i < shard_count; ++i) {
    shards_.push_back(std::make_unique<Shard>());
    shards_.back()->capacity_nodes = nodes / shard_count;
  }
}

NodeCache::~NodeCache() = default;

NodeCache::Shard& NodeCache::ShardOf(const BlockPtr& pointer) {
  return *shards_[absl::HashOf(pointer.address, pointer.birth) & (shards_.size() - 1)];
}

std::shared_ptr<const Node> NodeCache::Find(const BlockPtr& pointer) {
  Shard& shard = ShardOf(pointer);
  {
    MutexLock lock(shard.mutex);
    const auto found = shard.by_key.find(KeyOf(pointer));
    if (found != shard.by_key.end()) {
      shard.recent.splice(shard.recent.begin(), shard.recent, found->second);
      hits_.fetch_add(1, std::memory_order_relaxed);
      return found->second->node;
    }
  }
  misses_.fetch_add(1, std::memory_order_relaxed);
  return nullptr;
}

void NodeCache::Insert(const BlockPtr& pointer, std::shared_ptr<const Node> node) {
  Shard& shard = ShardOf(pointer);
  if (shard.capacity_nodes == 0) {
    return;
  }
  std::list<Shard::Entry> evicted;  // freed after the lock
  std::list<Shard::Entry> added;
  added.push_back({.key = KeyOf(pointer), .node = std::move(node)});
  MutexLock lock(shard.mutex);
  const auto [found, is_new] = shard.by_key.try_emplace(KeyOf(pointer), added.begin());
  if (!is_new) {
    return;
  }
  shard.recent.splice(shard.recent.begin(), added);
  while (shard.recent.size() > shard.capacity_nodes) {
    shard.by_key.erase(shard.recent.back().key);
    evicted.splice(evicted.begin(), shard.recent, std::prev(shard.recent.end()));
  }
}

}  // namespace cowshed::engine

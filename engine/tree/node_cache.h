// SPDX-License-Identifier: Apache-2.0
//
// A bounded cache of indirect nodes, keyed by (address, birth). A node at (address, birth) never
// changes and burnt txg numbers are never used again, so nothing in it ever needs invalidation.
//
// Threads     Thread-safe; sharded, one short lock per look-up. Least recently used goes first.
// Ownership   Nodes are shared; a caller may keep one after it left the cache.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/store/format.h"

namespace cowshed::engine {

class NodeCache {
 public:
  // Less than the size of one node keeps nothing.
  explicit NodeCache(uint64_t capacity_bytes);
  ~NodeCache();

  // The node, or null.
  std::shared_ptr<const Node> Find(const BlockPtr& pointer);
  void Insert(const BlockPtr& pointer, std::shared_ptr<const Node> node);

  uint64_t hits() const { return hits_.load(std::memory_order_relaxed); }
  uint64_t misses() const { return misses_.load(std::memory_order_relaxed); }

 private:
  struct Shard;
  Shard& ShardOf(const BlockPtr& pointer);

  std::vector<std::unique_ptr<Shard>> shards_;
  std::atomic<uint64_t> hits_{0};
  std::atomic<uint64_t> misses_{0};
};

}  // namespace cowshed::engine

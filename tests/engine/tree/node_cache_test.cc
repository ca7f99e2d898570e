// SPDX-License-Identifier: Apache-2.0
#include "engine/tree/node_cache.h"

#include <gtest/gtest.h>

#include <thread>

namespace cowshed::engine {
namespace {

BlockPtr Pointer(uint64_t address, Txg birth) {
  BlockPtr pointer;
  pointer.address = address;
  pointer.birth = birth;
  pointer.sectors = 1;
  pointer.kind = BlockKind::kNode;
  pointer.level = 1;
  return pointer;
}

std::shared_ptr<const Node> NodeWith(uint64_t mark) {
  auto node = std::make_shared<Node>();
  node->children[0].address = mark;
  return node;
}

TEST(NodeCacheTest, FindsByAddressAndBirth) {
  NodeCache cache(1 << 20);
  EXPECT_EQ(cache.Find(Pointer(5, 1)), nullptr);
  cache.Insert(Pointer(5, 1), NodeWith(51));
  cache.Insert(Pointer(5, 2), NodeWith(52));
  EXPECT_EQ(cache.Find(Pointer(5, 1))->children[0].address, 51u);
  EXPECT_EQ(cache.Find(Pointer(5, 2))->children[0].address, 52u);
  EXPECT_EQ(cache.Find(Pointer(6, 1)), nullptr);
  EXPECT_EQ(cache.hits(), 2u);
  EXPECT_EQ(cache.misses(), 2u);
}

TEST(NodeCacheTest, TheLeastRecentlyUsedGoesFirst) {
  NodeCache cache(4 * 4400);  // four nodes in one shard
  for (uint64_t i = 0; i < 4; ++i) {
    cache.Insert(Pointer(i, 1), NodeWith(i));
  }
  EXPECT_NE(cache.Find(Pointer(0, 1)), nullptr);
  const std::shared_ptr<const Node> kept = cache.Find(Pointer(1, 1));
  cache.Insert(Pointer(2, 1), NodeWith(2));  // is there already
  cache.Insert(Pointer(4, 1), NodeWith(4));
  cache.Insert(Pointer(5, 1), NodeWith(5));
  cache.Insert(Pointer(6, 1), NodeWith(6));
  EXPECT_EQ(cache.Find(Pointer(2, 1)), nullptr);
  EXPECT_EQ(cache.Find(Pointer(3, 1)), nullptr);
  EXPECT_EQ(cache.Find(Pointer(0, 1)), nullptr);
  EXPECT_NE(cache.Find(Pointer(1, 1)), nullptr);
  cache.Insert(Pointer(7, 1), NodeWith(7));
  cache.Insert(Pointer(8, 1), NodeWith(8));
  cache.Insert(Pointer(9, 1), NodeWith(9));
  cache.Insert(Pointer(10, 1), NodeWith(10));
  EXPECT_EQ(cache.Find(Pointer(1, 1)), nullptr);
  EXPECT_EQ(kept->children[0].address, 1u);  // whoever holds a node keeps it
}

TEST(NodeCacheTest, StaysWithinItsCapacity) {
  constexpr uint64_t kCapacityBytes = 8 << 20;
  NodeCache cache(kCapacityBytes);
  constexpr uint64_t kNodes = 10000;
  for (uint64_t i = 0; i < kNodes; ++i) {
    cache.Insert(Pointer(i * 17, i), NodeWith(i));
  }
  uint64_t found = 0;
  for (uint64_t i = 0; i < kNodes; ++i) {
    found += cache.Find(Pointer(i * 17, i)) != nullptr;
  }
  EXPECT_LE(found * sizeof(Node), kCapacityBytes);
  EXPECT_GE(found * sizeof(Node), kCapacityBytes * 3 / 4);
}

TEST(NodeCacheTest, NoCapacityKeepsNothing) {
  NodeCache cache(0);
  cache.Insert(Pointer(5, 1), NodeWith(5));
  EXPECT_EQ(cache.Find(Pointer(5, 1)), nullptr);
}

TEST(NodeCacheTest, ThreadsFindOnlyWhatBelongsToThePointer) {
  NodeCache cache(200 * 4400);
  std::atomic<uint64_t> wrong{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&cache, &wrong, t] {
      for (uint64_t i = 0; i < 20000; ++i) {
        const uint64_t address = (i * 31 + t * 7) % 400;
        if (const auto node = cache.Find(Pointer(address, 1))) {
          wrong += node->children[0].address != address;
        } else {
          cache.Insert(Pointer(address, 1), NodeWith(address));
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(cache.hits() + cache.misses(), 80000u);
  EXPECT_GT(cache.hits(), 0u);
}

}  // namespace
}  // namespace cowshed::engine

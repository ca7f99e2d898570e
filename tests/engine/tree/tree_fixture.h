// SPDX-License-Identifier: Apache-2.0
//
// A block tree over a data file in memory, and the plainest model of a tree: a map from block to
// pointer. Data is not stored, only its pointers are made up: a tree never reads data.
//
// Threads     Externally synchronised.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "engine/store/allocator.h"
#include "engine/store/block_store.h"
#include "engine/tree/block_tree.h"
#include "tests/engine/tree/memory_file.h"
#include "tests/engine/tree/meta_fixture.h"

namespace cowshed::engine {

using BlockMap = std::map<uint64_t, BlockPtr>;
using PlaceSet = std::set<std::pair<uint64_t, Txg>>;  // (address, birth)

inline std::pair<uint64_t, Txg> PlaceOf(const BlockPtr& pointer) {
  return {pointer.address, pointer.birth};
}

// A tree and the map that it should equal. Blocks a trim covers are gone from the map at once.
struct ModelTree {
  TreeState state;
  BlockMap blocks;
};

class TreeFixture : public MetaFixture {
 protected:
  static constexpr uint64_t kCapacitySectors = uint64_t{1} << 22;
  static constexpr uint32_t kBlockBytes = 16384;

  void SetUp() override {
    MetaFixture::SetUp();
    NewPool(0);
  }
  void TearDown() override {
    pool_.reset();
    MetaFixture::TearDown();
  }

  struct Pool {
    explicit Pool(uint64_t cache_bytes) : allocator({}), cache(cache_bytes) {}
    Allocator allocator;
    MemoryFile* file = nullptr;  // of `store`
    std::unique_ptr<BlockStore> store;
    NodeCache cache;
    std::unique_ptr<BlockTree> tree;
  };

  // Without a cache every node is read back from the file, checksum and all.
  void NewPool(uint64_t cache_bytes);
  BlockTree& tree() { return *pool_->tree; }

  static ModelTree NewTree(uint64_t block_count);
  // Data that was "written" in the current txg.
  BlockTree::Update NewData(uint64_t block);
  std::vector<BlockTree::Update> NewDataAt(const std::vector<uint64_t>& blocks);
  static BlockTree::Update Hole(uint64_t block);

  // One txg that rewrites: checks the tree's bookkeeping of what it bore and killed.
  void Rewrite(ModelTree* model, const std::vector<BlockTree::Update>& updates);
  // One txg that trims. Returns whether the trim is done.
  bool TrimStep(ModelTree* model, uint64_t max_pointers);
  void StartTrim(ModelTree* model, uint64_t begin, uint64_t end);

  // All pointers of a tree by one walk, trimmed ones included.
  PlaceSet Referenced(const TreeState& state, Txg min_birth = 0);
  // Look-ups of whole stretches equal the map.
  void CheckLookup(const ModelTree& model, uint64_t first, size_t count);
  // The same by NextData alone: every block of the map is found and none else.
  void CheckNextData(const ModelTree& model);

  std::unique_ptr<Pool> pool_;
  Txg now_ = 0;
  uint64_t next_data_address_ = uint64_t{1} << 40;
};

}  // namespace cowshed::engine

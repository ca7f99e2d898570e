// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/tree/tree_fixture.h"

namespace cowshed::engine {

namespace {

PlaceSet Places(const Runs& runs, uint32_t block_sectors) {
  PlaceSet places;
  for (const Run& run : runs) {
    const uint32_t step = run.kind == BlockKind::kData ? block_sectors : 1;
    for (uint64_t address = run.address; address < run.end(); address += step) {
      places.insert({address, run.birth});
    }
  }
  return places;
}

// What was referenced, and what was born, less what was killed, is what is referenced.
void CheckChanges(const PlaceSet& before, const PlaceSet& after, uint32_t block_sectors,
                  PointerChanges& changes) {
  changes.Settle();
  Runs born;
  for (const LogEntry& entry : changes.livelist_entries()) {
    if (entry.op == LogOp::kAlloc) {
      born.push_back(entry.run);
    }
  }
  PlaceSet expected = before;
  expected.merge(Places(born, block_sectors));
  for (const auto& place : Places(changes.freed(), block_sectors)) {
    EXPECT_EQ(expected.erase(place), 1u) << "killed what was not there: " << place.first;
  }
  EXPECT_EQ(expected, after);
  EXPECT_TRUE(changes.dead().empty());
}

}  // namespace

void TreeFixture::NewPool(uint64_t cache_bytes) {
  pool_.reset();
  Rewind();
  now_ = 0;
  pool_ = std::make_unique<Pool>(cache_bytes);
  auto file = std::make_unique<MemoryFile>();
  pool_->file = file.get();
  Superblock superblock;
  superblock.capacity_sectors = kCapacitySectors;
  pool_->store = ValueOf(BlockStore::Create(std::move(file), superblock));
  pool_->tree = std::make_unique<BlockTree>(*pool_->store, pool_->cache);
  ASSERT_OK(pool_->allocator.Create(*txn_, kCapacitySectors));
  ASSERT_OK(pool_->allocator.Reload(*txn_, kCapacitySectors));
}

ModelTree TreeFixture::NewTree(uint64_t block_count) {
  ModelTree model;
  model.state.block_bytes = kBlockBytes;
  model.state.size_bytes = block_count * kBlockBytes;
  model.state.height = BlockTree::HeightFor(block_count);
  return model;
}

BlockTree::Update TreeFixture::NewData(uint64_t block) {
  BlockTree::Update update;
  update.block = block;
  update.pointer.address = next_data_address_;
  update.pointer.birth = now_;
  update.pointer.sectors = kBlockBytes / kSectorBytes;
  update.pointer.kind = BlockKind::kData;
  next_data_address_ += update.pointer.sectors;
  update.extents = {{.address = update.pointer.address,
                     .birth = now_,
                     .sectors = update.pointer.sectors,
                     .kind = BlockKind::kData}};
  return update;
}

std::vector<BlockTree::Update> TreeFixture::NewDataAt(const std::vector<uint64_t>& blocks) {
  std::vector<BlockTree::Update> updates;
  updates.reserve(blocks.size());
  for (const uint64_t block : blocks) {
    updates.push_back(NewData(block));
  }
  return updates;
}

BlockTree::Update TreeFixture::Hole(uint64_t block) {
  BlockTree::Update update;
  update.block = block;
  return update;
}

void TreeFixture::Rewrite(ModelTree* model, const std::vector<BlockTree::Update>& updates) {
  const PlaceSet before = Referenced(model->state);
  PointerChanges changes(now_, 0);
  BlockWriter writer(*pool_->store, pool_->allocator, *txn_, now_);
  ASSERT_OK(tree().Rewrite(&model->state, updates, writer, changes));
  ASSERT_OK(writer.Flush());
  for (const BlockTree::Update& update : updates) {
    if (update.pointer.is_hole()) {
      model->blocks.erase(update.block);
    } else {
      model->blocks[update.block] = update.pointer;
    }
  }
  CheckChanges(before, Referenced(model->state), model->state.block_sectors(), changes);
}

bool TreeFixture::TrimStep(ModelTree* model, uint64_t max_pointers) {
  const PlaceSet before = Referenced(model->state);
  PointerChanges changes(now_, 0);
  BlockWriter writer(*pool_->store, pool_->allocator, *txn_, now_);
  const bool done = ValueOf(tree().TrimStep(&model->state, max_pointers, writer, changes));
  EXPECT_OK(writer.Flush());
  CheckChanges(before, Referenced(model->state), model->state.block_sectors(), changes);
  // A bite, the nodes that end in it, and the two paths at its ends.
  EXPECT_LE(changes.freed().size(), max_pointers + 3 * model->state.height);
  return done;
}

void TreeFixture::StartTrim(ModelTree* model, uint64_t begin, uint64_t end) {
  model->state.trim_begin_block = begin;
  model->state.trim_end_block = end;
  model->state.trim_txg = now_;
  model->blocks.erase(model->blocks.lower_bound(begin), model->blocks.lower_bound(end));
}

PlaceSet TreeFixture::Referenced(const TreeState& state, Txg min_birth) {
  PlaceSet places;
  uint64_t next = 0;
  const auto visit = [&places](const BlockPtr& pointer) {
    EXPECT_TRUE(places.insert(PlaceOf(pointer)).second) << "visited twice";
    return absl::OkStatus();
  };
  EXPECT_TRUE(ValueOf(tree().Walk(state, min_birth, &next, UINT64_MAX, visit)));
  return places;
}

void TreeFixture::CheckLookup(const ModelTree& model, uint64_t first, size_t count) {
  std::vector<BlockPtr> found(count);
  ASSERT_OK(tree().Lookup(model.state, first, found));
  for (size_t i = 0; i < count; ++i) {
    const auto expected = model.blocks.find(first + i);
    if (expected == model.blocks.end()) {
      EXPECT_TRUE(found[i].is_hole()) << "block " << first + i;
    } else {
      EXPECT_EQ(PlaceOf(found[i]), PlaceOf(expected->second)) << "block " << first + i;
    }
  }
}

void TreeFixture::CheckNextData(const ModelTree& model) {
  uint64_t from = 0;
  for (const auto& [block, pointer] : model.blocks) {
    EXPECT_EQ(ValueOf(tree().NextData(model.state, from)), block);
    from = block + 1;
  }
  EXPECT_EQ(ValueOf(tree().NextData(model.state, from)), model.state.block_count());
}

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
#include "engine/head.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace cowshed::engine {

uint64_t Head::FirstDirty(uint64_t from, uint64_t end, bool data) const {
  const auto& opened = open.blocks;
  const auto& closed = syncing.blocks;
  auto upper = opened.lower_bound(from);
  auto lower = closed.lower_bound(from);
  while (true) {
    const uint64_t in_open = upper == opened.end() ? end : upper->first;
    const uint64_t in_syncing = lower == closed.end() ? end : lower->first;
    const uint64_t block = std::min(in_open, in_syncing);
    if (block >= end) return end;
    const DirtyBlock& dirty = in_open == block ? upper->second : lower->second;
    if ((dirty.bytes != nullptr) == data) return block;
    if (in_open == block) ++upper;
    if (in_syncing == block) ++lower;
  }
}

const DirtyBlock* Head::FindDirty(uint64_t block) const {
  for (const Layer* layer : {&open, &syncing}) {
    const auto it = layer->blocks.find(block);
    if (it != layer->blocks.end()) return &it->second;
  }
  return nullptr;
}

void HeadTable::Begin(Txg txg, uint64_t closes) {
  const MutexLock lock(mutex_);
  published_ = txg;
  closes_ = closes;
}

uint64_t HeadTable::open_number() {
  const MutexLock lock(mutex_);
  return closes_ + 1;
}

std::shared_ptr<Head> HeadTable::Open(DatasetId id, const std::string& uid,
                                      const DatasetRecord& record, Txg record_txg) {
  const MutexLock lock(mutex_);
  if (record_txg < published_) return nullptr;
  std::shared_ptr<Head>& head = heads_[id];
  if (head == nullptr) {
    head = std::make_shared<Head>(id, uid);
    {
      const MutexLock head_lock(head->mutex);
      head->tree = record.tree;
      head->referenced_sectors = record.referenced_sectors;
      head->quota_bytes = record.quota_bytes;
      // Not record_txg: a cut that is committed and not yet published still takes what comes now.
      head->cut_txg = published_;
    }
    const std::shared_ptr<Head> opened = head;
    EvictIdle();
    return opened;
  }
  return head;
}

std::shared_ptr<SnapshotView> HeadTable::OpenSnapshot(SnapshotId id, const std::string& uid,
                                                      const SnapshotRecord& record,
                                                      Txg record_txg) {
  const MutexLock lock(mutex_);
  if (record_txg < published_) return nullptr;
  std::weak_ptr<SnapshotView>& slot = snapshots_[id];
  std::shared_ptr<SnapshotView> view = slot.lock();
  if (view == nullptr) {
    view = std::make_shared<SnapshotView>();
    view->id = id;
    view->uid = uid;
    view->tree = record.tree;
    slot = view;
    if (snapshots_.size() > open_max_) {
      absl::erase_if(snapshots_, [](const auto& entry) { return entry.second.expired(); });
    }
  }
  return view;
}

void HeadTable::EvictIdle() {
  if (heads_.size() <= open_max_) return;
  absl::erase_if(heads_, [](const auto& entry) {
    // Nobody else holds it, so nobody can make it dirty meanwhile: use_count is stable here.
    if (entry.second.use_count() > 1) return false;
    const MutexLock lock(entry.second->mutex);
    return entry.second->open.empty() && entry.second->syncing.empty();
  });
}

void HeadTable::MarkDirty(const std::shared_ptr<Head>& head) {
  const MutexLock lock(mutex_);
  const MutexLock head_lock(head->mutex);
  if (head->listed_dirty || head->open.empty()) return;
  head->listed_dirty = true;
  head->open.number = closes_ + 1;
  dirty_.push_back(head);
}

std::vector<std::shared_ptr<Head>> HeadTable::CloseLayers() {
  const MutexLock lock(mutex_);
  ++closes_;
  std::vector<std::shared_ptr<Head>> closed = std::exchange(dirty_, {});
  for (const std::shared_ptr<Head>& head : closed) {
    const MutexLock head_lock(head->mutex);
    head->syncing = std::exchange(head->open, Layer());
    head->listed_dirty = false;
  }
  return closed;
}

void HeadTable::CutOpenLayer(Head& head, const HeadChange& change, Released* released) {
  const TreeState& tree = change.record.tree;
  const uint64_t kept_blocks = change.cut == LayerCut::kShrink ? tree.block_count() : 0;
  const auto first_gone = head.open.blocks.lower_bound(kept_blocks);
  for (auto it = first_gone; it != head.open.blocks.end(); ++it) {
    const uint64_t cost = it->second.Cost(tree.block_bytes);
    released->bytes += cost;
    head.open.bytes -= cost;
    head.open.unlogged_bytes -= it->second.LogCost();
  }
  head.open.blocks.erase(first_gone, head.open.blocks.end());
  const uint64_t tail_bytes = tree.size_bytes % tree.block_bytes;
  if (kept_blocks > 0 && tail_bytes != 0) {
    const auto last = head.open.blocks.find(kept_blocks - 1);
    if (last != head.open.blocks.end() && last->second.bytes != nullptr) {
      std::memset(last->second.bytes.get() + tail_bytes, 0, tree.block_bytes - tail_bytes);
    }
  }
  if (head.open.empty()) {
    released->admitted_sectors += head.open.admitted_sectors;
    head.open.admitted_sectors = 0;
    head.open.growth_sectors = 0;
    head.open.unlogged.clear();
  }
}

HeadTable::Released HeadTable::Publish(Txg txg, const Publication& publication,
                                       const std::vector<std::shared_ptr<Head>>& synced) {
  Released released;
  std::vector<Layer> done;  // freed after the locks
  const MutexLock lock(mutex_);
  for (const auto& [id, change] : publication.heads) {
    auto it = heads_.find(id);
    if (it == heads_.end()) continue;
    const std::shared_ptr<Head> kept = it->second;  // beyond its lock, though the table drop it
    Head& head = *kept;
    const MutexLock head_lock(head.mutex);
    if (change.cut != LayerCut::kNone) {
      ++head.generation;
      head.cut_txg = txg;
      CutOpenLayer(head, change, &released);
    }
    if (change.cut == LayerCut::kAll) {
      ++head.rollbacks;
      head.damage = change.damage;
      // Also where it was not written in this txg, for lack of space: it came before the cut.
      done.push_back(std::exchange(head.syncing, Layer()));
    }
    head.tree = change.record.tree;
    head.referenced_sectors = change.record.referenced_sectors;
    head.quota_bytes = change.record.quota_bytes;
    head.destroyed = head.destroyed || change.destroyed;
    if (change.destroyed) heads_.erase(it);
  }
  for (const std::shared_ptr<Head>& head : synced) {
    const MutexLock head_lock(head->mutex);
    if (!head->syncing.empty()) done.push_back(std::exchange(head->syncing, Layer()));
  }
  for (const Layer& layer : done) {
    released.bytes += layer.bytes;
    released.admitted_sectors += layer.admitted_sectors;
  }
  for (const SnapshotId id : publication.destroyed_snapshots) {
    auto it = snapshots_.find(id);
    if (it == snapshots_.end()) continue;
    if (const std::shared_ptr<SnapshotView> view = it->second.lock()) view->destroyed = true;
    snapshots_.erase(it);
  }
  published_ = txg;
  return released;
}

}  // namespace cowshed::engine

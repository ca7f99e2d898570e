// SPDX-License-Identifier: Apache-2.0
//
// The writable state of a dataset in memory: its committed tree and, above it, two layers of dirty
// blocks. Writers fill the open layer; when a txg closes it becomes the syncing layer, which nobody
// changes until its txg has committed; then the new tree takes its place. A reader sees {tree,
// syncing, open} as one view under the head's mutex.
//
// Log         A layer knows which of its bytes are not in the intent log yet (intent_log.h), and
// has
//             the number of the close that takes it, from when its head is listed as dirty.
// Generation  Rollback, shrink and destruction end a generation when their txg is published: what
//             was accepted before counts as ordered before them, so the open layer is cut to fit,
//             and a writer that read its base in an older generation starts over.
// Threads     Thread-safe by `mutex`; the syncing layer may also be read by the txg thread without.
// Ownership   Shared by the table, volumes and the txg thread.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "engine/base/mutex.h"
#include "engine/store/intent_log_format.h"
#include "engine/store/records.h"

namespace cowshed::engine {

// One block of a layer; no bytes: a hole.
struct DirtyBlock {
  std::unique_ptr<std::byte[]> bytes;
  // What of it is not in the intent log: one range, perhaps with logged bytes in its middle.
  uint32_t unlogged_begin = 0, unlogged_end = 0;

  // Memory it stands for; a hole counts its map entry, so that discards are bounded too.
  uint64_t Cost(uint64_t block_bytes) const { return bytes != nullptr ? block_bytes : 64; }
  // At most what logging it takes of a batch.
  uint64_t LogCost() const {
    if (unlogged_begin == unlogged_end) return 0;
    return sizeof(IntentEntry) + (bytes != nullptr ? unlogged_end - unlogged_begin : 0);
  }
};

struct Layer {
  absl::btree_map<uint64_t, DirtyBlock> blocks;
  uint64_t bytes = 0;              // sum of the blocks' costs
  uint64_t admitted_sectors = 0;   // worst case that its sync allocates
  uint64_t growth_sectors = 0;     // blocks that were holes before: counts against the quota
  uint64_t number = 0;             // of the close that takes it; 0: not listed yet
  uint64_t unlogged_bytes = 0;     // sum of the blocks' log costs
  std::vector<uint64_t> unlogged;  // blocks with unlogged bytes; some twice, or gone since

  bool empty() const { return blocks.empty(); }
};

struct Head {
  Head(DatasetId dataset_id, std::string dataset_uid)
      : id(dataset_id), uid(std::move(dataset_uid)) {}

  const DatasetId id;
  const std::string uid;

  mutable Mutex mutex{LockRank::kHead};
  TreeState tree ABSL_GUARDED_BY(mutex);
  uint64_t referenced_sectors ABSL_GUARDED_BY(mutex) = 0;
  std::optional<uint64_t> quota_bytes ABSL_GUARDED_BY(mutex);
  uint64_t generation ABSL_GUARDED_BY(mutex) = 0;
  uint64_t rollbacks ABSL_GUARDED_BY(mutex) = 0;  // each took unflushed writes with it
  absl::Status damage ABSL_GUARDED_BY(mutex);     // why the last did, if it was for damage
  // No cut has been published after this txg, and none up to it will be: what is logged says so.
  Txg cut_txg ABSL_GUARDED_BY(mutex) = 0;
  bool destroyed ABSL_GUARDED_BY(mutex) = false;
  bool listed_dirty ABSL_GUARDED_BY(mutex) = false;  // in HeadTable's list of dirty heads
  Layer open ABSL_GUARDED_BY(mutex);
  Layer syncing ABSL_GUARDED_BY(mutex);  // changed by the txg thread only, but for what is logged

  // What the layers say of a block, the open one first; null if they say nothing.
  const DirtyBlock* FindDirty(uint64_t block) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // First block of [from, end) that the layers hold as data, or as a hole; `end` if there is none.
  uint64_t FirstDirty(uint64_t from, uint64_t end, bool data) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
};

// A snapshot that somebody reads: told when it is destroyed.
struct SnapshotView {
  SnapshotId id{};
  std::string uid;
  TreeState tree;
  std::atomic<bool> destroyed{false};
};

// What a txg did to heads and snapshots, to be published after its commit.
// kShrink drops open blocks past the new size, kAll (rollback, destruction) all dirty blocks.
enum class LayerCut : uint8_t { kNone, kShrink, kAll };
struct HeadChange {
  DatasetRecord record;  // as committed
  LayerCut cut = LayerCut::kNone;
  bool destroyed = false;
  absl::Status damage{};  // why it is cut, of a head that could not be synced
};
struct Publication {
  std::map<DatasetId, HeadChange> heads;
  std::vector<SnapshotId> destroyed_snapshots;
};

// All heads and snapshots in use.
// Threads     Thread-safe.
class HeadTable {
 public:
  explicit HeadTable(uint32_t open_max) : open_max_(open_max) {}

  // Of a pool opened at `txg` whose layers have had numbers up to `closes`. Before anything else.
  void Begin(Txg txg, uint64_t closes);
  // The number that the layers which are open now have.
  uint64_t open_number();
  // The head of dataset `id`, opened if need be from `record` as read at `record_txg`; null if that
  // reading is older than what has been published since: read again.
  std::shared_ptr<Head> Open(DatasetId id, const std::string& uid, const DatasetRecord& record,
                             Txg record_txg);
  std::shared_ptr<SnapshotView> OpenSnapshot(SnapshotId id, const std::string& uid,
                                             const SnapshotRecord& record, Txg record_txg);
  // A writer has put something into the head's open layer: the next close must see it.
  void MarkDirty(const std::shared_ptr<Head>& head);
  // Turns open layers into syncing ones. Returns the heads concerned.
  std::vector<std::shared_ptr<Head>> CloseLayers();
  // After a commit: shows it to readers. `synced`: what CloseLayers returned for this txg. Gives
  // the bytes and sectors that left memory and admission.
  struct Released {
    uint64_t bytes = 0;
    uint64_t admitted_sectors = 0;
  };
  Released Publish(Txg txg, const Publication& publication,
                   const std::vector<std::shared_ptr<Head>>& synced);

 private:
  void EvictIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void CutOpenLayer(Head& head, const HeadChange& change, Released* released)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(head.mutex);

  const uint32_t open_max_;
  Mutex mutex_{LockRank::kHeadTable};  // taken before a head's
  Txg published_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t closes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<DatasetId, std::shared_ptr<Head>> heads_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<SnapshotId, std::weak_ptr<SnapshotView>> snapshots_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Head>> dirty_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cowshed::engine

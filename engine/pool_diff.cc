// SPDX-License-Identifier: Apache-2.0
//
// Diff: what changed between two states of one lineage, found by walking both trees side by side.
#include <algorithm>
#include <set>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/catalog.h"
#include "engine/pool_impl.h"
#include "engine/volume.h"

namespace cowshed::engine {
namespace {

// Pointers compared under one reader epoch: some milliseconds of cold reads.
constexpr uint64_t kPointersPerBite = 16384;

// The datasets a state descends from, itself included.
absl::StatusOr<std::set<DatasetId>> Lineage(const MetaTxn& txn, DatasetId dataset) {
  std::set<DatasetId> lineage;
  while (true) {
    lineage.insert(dataset);
    ASSIGN_OR_RETURN(const DatasetRecord record, LoadRecord<DatasetRecord>(txn, Key(dataset)));
    if (record.origin == SnapshotId{}) return lineage;
    ASSIGN_OR_RETURN(const SnapshotRecord origin,
                     LoadRecord<SnapshotRecord>(txn, Key(record.origin)));
    dataset = origin.dataset;
  }
}

}  // namespace

struct PoolImpl::DiffSide {
  std::shared_ptr<Head> head;
  std::shared_ptr<SnapshotView> view;
  std::string name;
  std::set<DatasetId> lineage;

  // The tree as it is now; the caller holds a reader epoch.
  absl::StatusOr<TreeState> Tree() const {
    if (view != nullptr) {
      if (view->destroyed) return DestroyedError(name);
      return view->tree;
    }
    const MutexLock lock(head->mutex);
    if (head->destroyed) return DestroyedError(name);
    return head->tree;
  }
};

absl::StatusOr<PoolImpl::DiffSide> PoolImpl::ResolveDiffSide(const MetaTxn& txn,
                                                             const std::string& name) {
  ASSIGN_OR_RETURN(const PoolRecord pool, LoadRecord<PoolRecord>(txn, PoolRecord::kKey));
  ASSIGN_OR_RETURN(const ParsedName parsed, ParseName(name));
  DiffSide side;
  DatasetId dataset{};
  if (parsed.snapshot.empty()) {
    ASSIGN_OR_RETURN(const FoundDataset found, ResolveDataset(txn, name));
    dataset = found.id;
    side.name = found.name;
    side.head = heads_.Open(found.id, FormatUid(parts_->uid, static_cast<uint64_t>(found.id)),
                            found.record, pool.txg);
  } else {
    ASSIGN_OR_RETURN(const FoundSnapshot found, ResolveSnapshot(txn, name));
    dataset = found.record.dataset;
    side.name = found.name;
    side.view = heads_.OpenSnapshot(
        found.id, FormatUid(parts_->uid, static_cast<uint64_t>(found.id)), found.record, pool.txg);
  }
  ASSIGN_OR_RETURN(side.lineage, Lineage(txn, dataset));
  return side;
}

absl::Status PoolImpl::Diff(const std::string& from, const std::string& to, uint64_t start_offset,
                            const std::function<bool(const DiffExtent&)>& visit) {
  std::optional<DiffSide> older;
  DiffSide newer;
  do {
    ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn, meta_->BeginRead());
    ASSIGN_OR_RETURN(newer, ResolveDiffSide(*txn, to));
    if (!from.empty()) {
      ASSIGN_OR_RETURN(older, ResolveDiffSide(*txn, from));
    }
    // A side is null when something was published since the transaction began: read again.
  } while ((newer.head == nullptr && newer.view == nullptr) ||
           (older.has_value() && older->head == nullptr && older->view == nullptr));
  if (older.has_value() && std::none_of(older->lineage.begin(), older->lineage.end(),
                                        [&](DatasetId id) { return newer.lineage.contains(id); })) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "SNAPSHOTS_UNRELATED",
                     StrCat(from, " and ", to, " have no common ancestor"),
                     {{"from", from}, {"to", to}});
  }
  bool stopped = false;
  uint64_t block = 0;
  bool first = true;
  while (!stopped) {
    const ReaderEpochs::Guard epoch(epochs_);
    ASSIGN_OR_RETURN(const TreeState tree, newer.Tree());
    TreeState base;
    base.block_bytes = tree.block_bytes;
    base.height = tree.height;
    if (older.has_value()) {
      ASSIGN_OR_RETURN(base, older->Tree());
    }
    if (first) block = start_offset / tree.block_bytes;
    first = false;
    if (block >= tree.block_count()) return absl::OkStatus();
    const auto report = [&](const BlockTree::Extent& extent) {
      const uint64_t begin = std::max(extent.first_block * tree.block_bytes, start_offset);
      const uint64_t end =
          std::min((extent.first_block + extent.block_count) * tree.block_bytes, tree.size_bytes);
      if (begin < end) stopped = !visit({begin, end - begin, extent.data});
      return !stopped;
    };
    ASSIGN_OR_RETURN(const bool done, tree_->Diff(base, tree, &block, kPointersPerBite, report));
    if (done) return absl::OkStatus();
  }
  return absl::OkStatus();
}

}  // namespace cowshed::engine

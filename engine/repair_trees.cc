// SPDX-License-Identifier: Apache-2.0
//
// Mark and sweep. Datasets come in the order of their origin txgs, their snapshots before their
// heads, so that whoever bore a block meets it first and owns it.
#include <algorithm>
#include <array>
#include <memory>
#include <span>

#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/checker_state.h"
#include "engine/repair_state.h"
#include "engine/store/allocator.h"
#include "engine/tree/dead_list.h"
#include "engine/tree/live_list.h"
#include "engine/tree/tree_geometry.h"
#include "engine/trim.h"

namespace cowshed::engine {
namespace {

constexpr int kReadAttempts = 3;  // what one bad transfer spoils, another may bring
constexpr uint32_t kLongestRun = uint32_t{1} << 31;

class Marker {
 public:
  Marker(RepairState* state, const BlockStore& blocks, uint64_t tail_max, WriteTxn& txn)
      : state_(*state),
        pool_(*state->pool),
        blocks_(blocks),
        tail_max_(tail_max),
        txn_(txn),
        marked_(pool_.capacity_sectors) {}

  absl::Status Run() {
    std::vector<std::pair<Txg, DatasetId>> order;
    for (const auto& [id, dataset] : state_.datasets) order.emplace_back(dataset.origin_txg, id);
    std::sort(order.begin(), order.end());
    snapshots_ = state_.SnapshotsByDataset();
    ClearSums();
    for (const auto& [origin_txg, id] : order) RETURN_IF_ERROR(MarkDataset(id));
    MarkIntentLog();
    return Sweep();
  }

 private:
  struct Sums {
    uint64_t sectors = 0;
    uint64_t data_blocks = 0;
    bool lost = false;  // something below cannot be read
  };
  // What a head or snapshot stands on.
  struct Previous {
    TreeState tree;
    Txg txg = 0;
  };

  void ClearSums() {
    pool_.livelists = state_.datasets.size();
    pool_.jobs = state_.jobs.size();
    pool_.livelist_entries = pool_.livelist_sublists = pool_.livelist_sectors = 0;
    pool_.freeing_sectors = pool_.stalled_sectors = 0;
    pool_.waiting_items = pool_.waiting_sectors = 0;
  }

  absl::Status MarkDataset(DatasetId id) {
    DatasetRecord& dataset = state_.datasets.at(id);
    dataset.livelist = state_.ids.Take<LivelistId>();
    dataset.list_state = ListState::kWhole;
    owned_.clear();
    Previous previous;
    if (const auto origin = state_.snapshots.find(dataset.origin);
        origin != state_.snapshots.end()) {
      previous = {origin->second.tree, dataset.origin_txg};
    }
    origin_txg_ = previous.txg = dataset.origin_txg;
    std::vector<Txg> fences = {dataset.origin_txg};
    for (const auto& [txg, snapshot_id] : snapshots_[id]) {
      SnapshotRecord& snapshot = state_.snapshots.at(snapshot_id);
      name_ = state_.NameOf(snapshot_id);
      ASSIGN_OR_RETURN(const Sums sums, MarkTree(snapshot.tree));
      snapshot.referenced_sectors = sums.sectors;
      snapshot.data_blocks = sums.data_blocks;
      ASSIGN_OR_RETURN(snapshot.written_sectors, Written(snapshot.tree.root, previous.txg));
      ASSIGN_OR_RETURN(snapshot.deadlist, WriteDead(id, previous, snapshot.tree));
      previous = {snapshot.tree, txg};
      fences.push_back(txg);
    }
    name_ = state_.NameOf(id);
    ASSIGN_OR_RETURN(const Sums sums, MarkTree(dataset.tree));
    dataset.referenced_sectors = sums.sectors;
    dataset.data_blocks = sums.data_blocks;
    ASSIGN_OR_RETURN(dataset.written_sectors, Written(dataset.tree.root, previous.txg));
    ASSIGN_OR_RETURN(dataset.deadlist, WriteDead(id, previous, dataset.tree));
    RETURN_IF_ERROR(WriteLivelist(dataset, fences));
    pool_.livelist_sectors += dataset.used_sectors;
    if (state_.IsDestroyed(id)) {
      ++pool_.waiting_items;
      pool_.waiting_sectors += dataset.used_sectors;
    }
    return absl::OkStatus();
  }

  // ---- Mark ----

  absl::StatusOr<Sums> MarkTree(const TreeState& tree) {
    if (tree.root.is_hole()) return Sums();
    ASSIGN_OR_RETURN(const Sums sums, Mark(tree.root));
    if (sums.lost) RETURN_IF_ERROR(ReportLost(tree.root, 0));
    return sums;
  }

  void MarkIntentLog() {
    if (!pool_.has_intent_log()) return;
    const uint64_t begin = pool_.intent_log.address;
    const uint64_t end = begin + pool_.intent_log.sectors;
    if (marked_.CountIn(begin, end) == 0) {
      marked_.Add(begin, end);
      return;
    }
    state_.Lose("intent log",
                "blocks lie in its ring: durable writes since the last commit are lost");
    pool_.DropIntentLog();
    state_.log_cuts.clear();
  }

  absl::StatusOr<Sums> Mark(const BlockPtr& pointer) {
    if (const auto met = met_.find(pointer.address); met != met_.end()) return met->second;
    Sums sums;
    std::vector<engine::Run> extents;
    const absl::Status placed = blocks_.Extents(pointer, &extents);
    if (!placed.ok() && !absl::IsDataLoss(placed)) return placed;
    bool fresh = false;
    for (const engine::Run& run : extents) {
      sums.sectors += run.sectors;
      const bool added = marked_.Add(run.address, run.end()) > 0;
      if (added && pointer.birth > origin_txg_) owned_.push_back(run);
      fresh |= added;
    }
    sums.lost = !placed.ok();
    if (pointer.level == 0) {
      sums.data_blocks = 1;
      if (fresh && state_.verify_data && !sums.lost) {
        ASSIGN_OR_RETURN(const bool good, IsReadable(pointer));
        sums.lost = !good;
      }
      // Blocks that can be read need no memory: they are met again by their node only.
      if (sums.lost) met_.emplace(pointer.address, sums);
      return sums;
    }
    if (!sums.lost) RETURN_IF_ERROR(MarkChildren(pointer, &sums));
    met_.emplace(pointer.address, sums);
    return sums;
  }

  absl::Status MarkChildren(const BlockPtr& pointer, Sums* sums) {
    ASSIGN_OR_RETURN(const std::unique_ptr<Node> node, ReadNode(pointer));
    if (node == nullptr) {
      sums->lost = true;
      state_.unreadable_nodes.push_back(pointer.address);
      return absl::OkStatus();
    }
    for (const BlockPtr& child : node->children) {
      if (child.is_hole()) continue;
      ASSIGN_OR_RETURN(const Sums below, Mark(child));
      sums->sectors += below.sectors;
      sums->data_blocks += below.data_blocks;
      sums->lost |= below.lost;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<bool> IsReadable(const BlockPtr& pointer) const {
    std::vector<std::byte> bytes(size_t{pointer.sectors} * kSectorBytes);
    absl::Status status;
    for (int attempt = 0; attempt < kReadAttempts; ++attempt) {
      status = blocks_.Read(pointer, bytes);
      if (status.ok()) return true;
    }
    if (!absl::IsDataLoss(status)) return status;
    return false;
  }

  // Null if it cannot be read, now and before.
  absl::StatusOr<std::unique_ptr<Node>> ReadNode(const BlockPtr& pointer) const {
    auto node = std::make_unique<Node>();
    absl::Status status;
    for (int attempt = 0; attempt < kReadAttempts; ++attempt) {
      status = blocks_.Read(pointer, std::as_writable_bytes(std::span(node.get(), 1)));
      if (status.ok()) return std::move(node);
    }
    if (!absl::IsDataLoss(status)) return status;
    return nullptr;
  }

  // Names the blocks of the tree at hand that are below what cannot be read.
  absl::Status ReportLost(const BlockPtr& pointer, uint64_t base) {
    const auto met = met_.find(pointer.address);
    if (pointer.is_hole() || met == met_.end() || !met->second.lost) return absl::OkStatus();
    std::unique_ptr<Node> node;
    if (pointer.level > 0) {
      ASSIGN_OR_RETURN(node, ReadNode(pointer));
    }
    if (node == nullptr) {
      state_.Lose(name_, StrCat("blocks [", base, ", ", EndBlock(pointer, base),
                                ") born up to txg ", pointer.birth, ": what sector ",
                                pointer.address, " held is not there any more"));
      return absl::OkStatus();
    }
    const uint64_t span = SpanBlocks(pointer.level - 1);
    for (uint64_t i = 0; i < kNodeFanout; ++i) {
      RETURN_IF_ERROR(ReportLost(node->children[i], base + i * span));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<uint64_t> Written(const BlockPtr& pointer, Txg floor) const {
    if (pointer.is_hole() || pointer.birth <= floor) return 0;
    std::vector<engine::Run> extents;
    const absl::Status placed = blocks_.Extents(pointer, &extents);
    if (absl::IsDataLoss(placed)) return 0;
    RETURN_IF_ERROR(placed);
    uint64_t sectors = 0;
    for (const engine::Run& run : extents) sectors += run.sectors;
    if (pointer.level == 0) return sectors;
    ASSIGN_OR_RETURN(const std::unique_ptr<Node> node, ReadNode(pointer));
    if (node == nullptr) return sectors;
    for (const BlockPtr& child : node->children) {
      ASSIGN_OR_RETURN(const uint64_t below, Written(child, floor));
      sectors += below;
    }
    return sectors;
  }

  // ---- Deadlists: what `older` has and `newer` does not ----

  absl::StatusOr<DeadlistId> WriteDead(DatasetId id, const Previous& previous,
                                       const TreeState& newer) {
    const auto list = state_.ids.Take<DeadlistId>();
    std::vector<engine::Run> dead;
    RETURN_IF_ERROR(CollectDead(previous.tree.root, newer.root, &dead));
    if (dead.empty()) return list;
    SortAndJoin(&dead);
    RETURN_IF_ERROR(DeadList::Append(txn_, list, dead, state_.ids));
    ASSIGN_OR_RETURN(const uint64_t tail, DeadList::TailEntries(txn_, list));
    if (tail > tail_max_) {
      RETURN_IF_ERROR(txn_.Put(Table::kStates, Key(StateKey::kLongTail, id, list), ""));
    }
    return list;
  }

  // Both lead to the same first block. Below a node of `newer` that cannot be read nothing counts
  // as killed: it may still be there.
  absl::Status CollectDead(const BlockPtr& older, const BlockPtr& newer,
                           std::vector<engine::Run>* dead) {
    if (older.is_hole() || (!newer.is_hole() && older == newer)) return absl::OkStatus();
    if (!newer.is_hole() && newer.level > older.level) {
      ASSIGN_OR_RETURN(const std::unique_ptr<Node> node, ReadNode(newer));
      return node == nullptr ? absl::OkStatus() : CollectDead(older, node->children[0], dead);
    }
    const absl::Status placed = blocks_.Extents(older, dead);
    if (!placed.ok() && !absl::IsDataLoss(placed)) return placed;
    if (older.level == 0) return absl::OkStatus();
    ASSIGN_OR_RETURN(const std::unique_ptr<Node> old_node, ReadNode(older));
    if (old_node == nullptr) return absl::OkStatus();
    std::unique_ptr<Node> new_node;
    if (!newer.is_hole() && newer.level == older.level) {
      ASSIGN_OR_RETURN(new_node, ReadNode(newer));
      if (new_node == nullptr) return absl::OkStatus();
    }
    for (uint32_t i = 0; i < kNodeFanout; ++i) {
      BlockPtr beside;
      if (new_node != nullptr) beside = new_node->children[i];
      if (new_node == nullptr && i == 0) beside = newer;  // of a lower tree, or a hole
      RETURN_IF_ERROR(CollectDead(old_node->children[i], beside, dead));
    }
    return absl::OkStatus();
  }

  // ---- Lists and space ----

  static void SortAndJoin(std::vector<engine::Run>* runs) {
    std::sort(runs->begin(), runs->end(), [](const engine::Run& a, const engine::Run& b) {
      return std::pair(a.birth, a.address) < std::pair(b.birth, b.address);
    });
    JoinNeighbours(runs);
  }

  // One sublist from each of `fences` on. `fences`: the origin's txg, then the snapshots'.
  absl::Status WriteLivelist(DatasetRecord& dataset, const std::vector<Txg>& fences) {
    SortAndJoin(&owned_);
    LiveListOptions options;
    options.max_entries = UINT64_MAX;  // so that no deadlist bucket can straddle two
    dataset.used_sectors = 0;
    auto run = owned_.begin();
    for (size_t i = 0; i < fences.size(); ++i) {
      const Txg end = i + 1 < fences.size() ? fences[i + 1] : UINT64_MAX;
      std::vector<LogEntry> entries;
      for (; run != owned_.end() && run->birth <= end; ++run) {
        dataset.used_sectors += run->sectors;
        entries.push_back({.op = LogOp::kAlloc, .run = *run});
      }
      ASSIGN_OR_RETURN(
          const LiveListGrowth growth,
          LiveList::Append(txn_, dataset.livelist, fences[i], state_.txg,
                           dataset.tree.block_sectors(), entries, options, state_.ids));
      pool_.livelist_entries += growth.entries;
      pool_.livelist_sublists += growth.sublists;
    }
    return absl::OkStatus();
  }

  absl::Status Sweep() {
    std::vector<engine::Run> referenced;
    marked_.VisitDifference(SectorSet(pool_.capacity_sectors), [&](uint64_t begin, uint64_t end) {
      for (; begin < end; begin += kLongestRun) {
        const auto sectors = static_cast<uint32_t>(std::min<uint64_t>(end - begin, kLongestRun));
        referenced.push_back({.address = begin, .sectors = sectors});
      }
    });
    return Allocator::Rebuild(txn_, pool_.capacity_sectors, referenced);
  }

  RepairState& state_;
  PoolRecord& pool_;
  const BlockStore& blocks_;
  const uint64_t tail_max_;
  WriteTxn& txn_;
  SectorSet marked_;
  std::map<DatasetId, std::map<Txg, SnapshotId>> snapshots_;
  absl::flat_hash_map<uint64_t, Sums> met_;  // nodes, and blocks that are lost, by address
  // Of the dataset at hand.
  std::string name_;
  Txg origin_txg_ = 0;
  std::vector<engine::Run> owned_;
};

}  // namespace

absl::Status MarkAndSweep(RepairState* state, const BlockStore& blocks,
                          uint64_t deadlist_tail_max_entries, WriteTxn& txn) {
  return Marker(state, blocks, deadlist_tail_max_entries, txn).Run();
}

}  // namespace cowshed::engine

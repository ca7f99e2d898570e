// SPDX-License-Identifier: Apache-2.0
//
// Trees: every node once, by address. Datasets come in the order of their origin txgs, so parents
// before clones: what a clone references from before its origin must have been met by then.
#include <algorithm>

#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/checker_state.h"
#include "engine/tree/tree_geometry.h"

namespace cowshed::engine {
namespace {

std::string Describe(const BlockPtr& pointer) {
  return StrCat(pointer.kind == BlockKind::kData ? "the block" : "the node", " at sector ",
                pointer.address, " born in txg ", pointer.birth);
}

class TreeChecker {
 public:
  explicit TreeChecker(CheckState& state) : state_(state) {}

  absl::Status Run() {
    std::vector<std::pair<Txg, DatasetId>> order;
    for (const auto& [id, dataset] : state_.datasets) order.emplace_back(dataset.origin_txg, id);
    std::sort(order.begin(), order.end());
    for (const auto& [origin_txg, id] : order) RETURN_IF_ERROR(CheckDataset(id));
    CheckUnreferenced();
    return absl::OkStatus();
  }

 private:
  struct Sums {
    uint64_t sectors = 0;
    uint64_t data_blocks = 0;
    bool damaged = false;
  };

  absl::Status CheckDataset(DatasetId id) {
    const DatasetRecord& dataset = state_.datasets.at(id);
    origin_txg_ = dataset.origin_txg;
    owner_ = state_.owner_of.at(id);
    if (const auto own = state_.snapshots_of.find(id); own != state_.snapshots_of.end()) {
      for (const auto& [txg, snapshot_id] : own->second) {
        const SnapshotRecord& snapshot = state_.snapshots.at(snapshot_id);
        name_ = state_.NameOf(snapshot_id);
        ASSIGN_OR_RETURN(const TreeSums sums,
                         CheckTree(snapshot.tree, txg, state_.PreviousOf(id, txg).txg));
        state_.snapshot_sums[snapshot_id] = sums;
        CompareSums(sums, snapshot.referenced_sectors, snapshot.written_sectors,
                    snapshot.data_blocks);
      }
    }
    name_ = state_.NameOf(id);
    ASSIGN_OR_RETURN(const TreeSums sums, CheckTree(dataset.tree, state_.pool.txg,
                                                    state_.PreviousOf(id, UINT64_MAX).txg));
    state_.head_sums[id] = sums;
    CompareSums(sums, dataset.referenced_sectors, dataset.written_sectors, dataset.data_blocks);
    return absl::OkStatus();
  }

  void CompareSums(const TreeSums& sums, uint64_t referenced, uint64_t written,
                   uint64_t data_blocks) {
    if (sums.damaged) return;
    state_.ExpectSum("referenced_sectors", name_, referenced, sums.sectors);
    state_.ExpectSum("written_sectors", name_, written, sums.written_sectors);
    state_.ExpectSum("data_blocks", name_, data_blocks, sums.data_blocks);
  }

  absl::StatusOr<TreeSums> CheckTree(const TreeState& tree, Txg newest, Txg previous_txg) {
    block_sectors_ = tree.block_sectors();
    if (tree.root.is_hole()) return TreeSums{};
    ASSIGN_OR_RETURN(const Sums sums, Visit(tree.root, tree.height, newest));
    TreeSums result = {sums.sectors, sums.data_blocks, 0, sums.damaged};
    if (!sums.damaged) {
      ASSIGN_OR_RETURN(result.written_sectors, Written(tree.root, previous_txg));
    }
    return result;
  }

  // Checks a pointer and, unless it was met before, all below it.
  absl::StatusOr<Sums> Visit(const BlockPtr& pointer, uint8_t level, Txg newest) {
    const auto expected = level == 0 ? BlockKind::kData : BlockKind::kNode;
    const uint32_t most_sectors = level == 0 ? block_sectors_ : 1;
    if (pointer.level != level || pointer.kind != expected || pointer.sectors == 0 ||
        pointer.sectors > most_sectors || level > kMaxTreeHeight) {
      state_.Add(
          "damage", name_,
          StrCat("a pointer to sector ", pointer.address, " has a wrong level, kind or length"));
      return Sums{.damaged = true};
    }
    if (pointer.birth > newest || pointer.birth == 0) {
      state_.Add("I4", name_,
                 StrCat(Describe(pointer), " is younger than what leads to it (txg ", newest, ")"));
    }
    std::vector<cowshed::engine::Run> extents;
    if (const absl::Status status = state_.blocks.Extents(pointer, &extents); !status.ok()) {
      RETURN_IF_ERROR(state_.Absorb(status, name_));
      return Sums{.damaged = true};
    }
    return level == 0 ? VisitData(pointer, extents) : VisitNode(pointer, extents);
  }

  Sums VisitData(const BlockPtr& pointer, const std::vector<cowshed::engine::Run>& extents) {
    Sums sums = {.data_blocks = 1};
    uint64_t fresh = 0;
    for (const auto& run : extents) {
      sums.sectors += run.sectors;
      fresh += state_.referenced.Add(run.address, run.end());
    }
    if (fresh > 0) ++state_.report.block_count;
    CheckOwners(pointer, extents, fresh > 0);
    return sums;
  }

  absl::StatusOr<Sums> VisitNode(const BlockPtr& pointer,
                                 const std::vector<cowshed::engine::Run>& extents) {
    const auto met = nodes_.find(pointer.address);
    CheckOwners(pointer, extents, met == nodes_.end());
    if (met != nodes_.end()) return met->second;
    Sums sums;
    for (const auto& run : extents) {
      sums.sectors += run.sectors;
      state_.referenced.Add(run.address, run.end());
    }
    auto node = std::make_unique<Node>();
    const absl::Status read =
        state_.blocks.Read(pointer, std::as_writable_bytes(std::span(node.get(), 1)));
    if (read.ok()) {
      for (const BlockPtr& child : node->children) {
        if (child.is_hole()) continue;
        ASSIGN_OR_RETURN(const Sums below, Visit(child, pointer.level - 1, pointer.birth));
        sums.sectors += below.sectors;
        sums.data_blocks += below.data_blocks;
        sums.damaged |= below.damaged;
      }
    } else {
      RETURN_IF_ERROR(state_.Absorb(read, name_));
      sums.damaged = true;
    }
    nodes_.emplace(pointer.address, sums);
    return sums;
  }

  // The livelists say who bore these sectors, and when.
  void CheckOwners(const BlockPtr& pointer, const std::vector<cowshed::engine::Run>& extents,
                   bool first_met) {
    const bool own = pointer.birth > origin_txg_;
    if (first_met && !own) {
      state_.Add("I1", name_,
                 StrCat(Describe(pointer), " is older than the origin, which lacks it"));
    }
    for (const auto& run : extents) {
      const bool covered = state_.VisitOwners(run, [&](const OwnedRun& owned) {
        const std::string& owner = state_.owners[owned.owner].name;
        if (owned.run.birth != pointer.birth) {
          state_.Add("I1", name_,
                     StrCat(Describe(pointer), " is one that ", owner, " has as born in txg ",
                            owned.run.birth));
        } else if (owned.run.kind != run.kind) {
          state_.Add("I6", name_, StrCat(Describe(pointer), " has another kind for ", owner));
        } else if (state_.owners[owned.owner].is_job) {
          state_.Add("I1", name_, StrCat(Describe(pointer), " is left to ", owner, " to be freed"));
        } else if (own != (owned.owner == owner_)) {
          state_.Add("I6", name_, StrCat(Describe(pointer), " is in the livelist of ", owner));
        }
      });
      if (!covered) {
        state_.Add("I6", name_, StrCat(Describe(pointer), " survives in no livelist"));
      }
    }
  }

  // Sectors born after `floor`, again by reading: children prune by I4.
  absl::StatusOr<uint64_t> Written(const BlockPtr& pointer, Txg floor) {
    if (pointer.is_hole() || pointer.birth <= floor) return 0;
    std::vector<cowshed::engine::Run> extents;
    RETURN_IF_ERROR(state_.blocks.Extents(pointer, &extents));
    uint64_t sectors = 0;
    for (const auto& run : extents) sectors += run.sectors;
    if (pointer.level == 0) return sectors;
    auto node = std::make_unique<Node>();
    RETURN_IF_ERROR(state_.blocks.Read(pointer, std::as_writable_bytes(std::span(node.get(), 1))));
    for (const BlockPtr& child : node->children) {
      ASSIGN_OR_RETURN(const uint64_t below, Written(child, floor));
      sectors += below;
    }
    return sectors;
  }

  // I6, the other way round: what survives in a dataset's livelist is referenced.
  void CheckUnreferenced() {
    uint64_t referenced_sectors = 0;
    for (const OwnedRun& owned : state_.owned) {
      const Owner& owner = state_.owners[owned.owner];
      const uint64_t met = state_.referenced.CountIn(owned.run.address, owned.run.end());
      referenced_sectors += met;
      if (owner.is_job || met == owned.run.sectors) continue;
      state_.Add("I6", owner.name,
                 StrCat(owned.run.sectors - met, " of the sectors [", owned.run.address, ", ",
                        owned.run.end(), ") born in txg ", owned.run.birth,
                        " survive in the livelist and nothing references them"));
    }
    state_.report.referenced_bytes = referenced_sectors * kSectorBytes;
  }

  CheckState& state_;
  absl::flat_hash_map<uint64_t, Sums> nodes_;  // by address
  // Of the tree at hand.
  std::string name_;
  Txg origin_txg_ = 0;
  uint32_t owner_ = kNobody;
  uint32_t block_sectors_ = 0;
};

}  // namespace

absl::Status CheckTrees(CheckState& state) { return TreeChecker(state).Run(); }

}  // namespace cowshed::engine

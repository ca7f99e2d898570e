// SPDX-License-Identifier: Apache-2.0
#include "engine/tree/pointer_changes.h"

#include <algorithm>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/failpoints.h"

namespace cowshed::engine {

namespace {

void SortAndJoin(std::vector<Run>* runs) {
  std::sort(runs->begin(), runs->end(), [](const Run& a, const Run& b) {
    return std::pair(a.birth, a.address) < std::pair(b.birth, b.address);
  });
  JoinNeighbours(runs);
}

// Cuts what both sequences of disjoint runs cover out of both. Runs are of one birth and sorted.
void CutCommon(std::vector<Run>* a, std::vector<Run>* b) {
  std::vector<Run> left_a;
  std::vector<Run> left_b;
  const auto cut = [](Run* run, uint64_t end) {
    run->sectors = static_cast<uint32_t>(run->end() - end);
    run->address = end;
  };
  const auto keep = [](std::vector<Run>* left, const Run& run, uint64_t end) {
    if (end > run.address) {
      left->push_back(run);
      left->back().sectors = static_cast<uint32_t>(end - run.address);
    }
  };
  size_t i = 0;
  size_t j = 0;
  while (i < a->size() && j < b->size()) {
    Run& in_a = (*a)[i];
    Run& in_b = (*b)[j];
    // What lies before the other's begin is not common; then both begin together.
    const uint64_t begin = std::max(in_a.address, in_b.address);
    const uint64_t end_a = std::min(in_a.end(), begin);
    const uint64_t end_b = std::min(in_b.end(), begin);
    keep(&left_a, in_a, end_a);
    keep(&left_b, in_b, end_b);
    cut(&in_a, end_a);
    cut(&in_b, end_b);
    if (in_a.sectors > 0 && in_b.sectors > 0) {
      const uint64_t end = std::min(in_a.end(), in_b.end());
      cut(&in_a, end);
      cut(&in_b, end);
    }
    i += in_a.sectors == 0;
    j += in_b.sectors == 0;
  }
  left_a.insert(left_a.end(), a->begin() + static_cast<ptrdiff_t>(i), a->end());
  left_b.insert(left_b.end(), b->begin() + static_cast<ptrdiff_t>(j), b->end());
  *a = std::move(left_a);
  *b = std::move(left_b);
}

}  // namespace

void PointerChanges::Born(const BlockPtr& pointer, std::span<const Run> extents) {
  COWSHED_CHECK(!settled_, "changes come before Settle");
  COWSHED_CHECK(pointer.birth == now_, "a pointer is born in the txg that bears it");
  for (const Run& run : extents) {
    born_sums_.Add(run);
    if (born_.empty() || !Join(&born_.back(), run)) {
      born_.push_back(run);
    }
  }
  data_blocks_delta_ += pointer.kind == BlockKind::kData;
}

void PointerChanges::Killed(const BlockPtr& pointer, std::span<const Run> extents) {
  COWSHED_CHECK(!settled_, "changes come before Settle");
  const bool only_head_saw_it = pointer.birth > previous_snapshot_txg_ ||
                                Failpoints::IsTrue("mutate.killed_frees_snapshotted");
  std::vector<Run>& runs = only_head_saw_it ? freed_ : dead_;
  for (const Run& run : extents) {
    killed_sums_.Add(run);
    if (only_head_saw_it) {
      freed_sums_.Add(run);
    }
    if (runs.empty() || !Join(&runs.back(), run)) {
      runs.push_back(run);
    }
  }
  data_blocks_delta_ -= pointer.kind == BlockKind::kData;
}

void PointerChanges::Settle() {
  COWSHED_CHECK(!settled_, "changes settle once");
  settled_ = true;
  SortAndJoin(&born_);
  SortAndJoin(&freed_);
  SortAndJoin(&dead_);
  // Births of this txg are the greatest: they end `freed_`.
  const auto killed_at_once = std::lower_bound(
      freed_.begin(), freed_.end(), now_, [](const Run& run, Txg now) { return run.birth < now; });
  std::vector<Run> freed_now(killed_at_once, freed_.end());
  std::vector<Run> logged(freed_.begin(), killed_at_once);
  CutCommon(&born_, &freed_now);
  logged.insert(logged.end(), freed_now.begin(), freed_now.end());

  livelist_entries_.reserve(born_.size() + logged.size());
  for (const Run& run : born_) {
    livelist_entries_.push_back({.op = LogOp::kAlloc, .run = run});
  }
  if (!Failpoints::IsTrue("mutate.free_not_logged")) {
    for (const Run& run : logged) {
      livelist_entries_.push_back({.op = LogOp::kFree, .run = run});
    }
  }
  born_.clear();
}

}  // namespace cowshed::engine

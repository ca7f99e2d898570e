// SPDX-License-Identifier: Apache-2.0
//
// Undelete windows in the model: what a destroy kept, when that ends, and what brings it back.
#include <algorithm>

#include "engine/base/strings.h"
#include "tests/model/pool_model.h"

namespace cowshed::engine {

using absl::StatusCode;

namespace {

constexpr size_t kMaxWindows = 3;
constexpr int64_t kLongestWindowMs = 40;

}  // namespace

// How long the next destroy keeps; mostly not at all. A crowded pool would end windows on its own.
int64_t PoolModel::AnyWindowMs() {
  const bool may = !shared() && !crowded_ && windows_.size() < kMaxWindows;
  return may && Chance(45) ? static_cast<int64_t>(1 + Below(kLongestWindowMs)) : 0;
}

// What a destroy does to its targets: gone, or kept.
void PoolModel::Take(const std::vector<Dataset>& targets, int64_t keep_ms, bool as_prefix,
                     const std::string& prefix, const Outcome& outcome) {
  if (keep_ms == 0 || targets.empty()) return RemoveDatasets(targets);
  ModelWindow window;
  window.operation = outcome.operation->name;
  window.end_ms = pool_->now_ms() + keep_ms;
  window.datasets = targets;
  if (as_prefix && targets.size() > pool_->options().bulk_names_per_txg) window.prefix = prefix;
  for (const Dataset& target : targets) {
    target->volume.reset();
    target->history.clear();
    std::erase(datasets_, target);
  }
  windows_.push_back(std::move(window));
}

// A clone of it waits: in its window, or because a clone of its own does.
bool PoolModel::IsKeptFor(const Snapshot& snapshot) const {
  const auto is_clone = [&](const Dataset& dataset) { return dataset->origin == snapshot; };
  for (const ModelWindow& window : windows_) {
    if (std::any_of(window.datasets.begin(), window.datasets.end(), is_clone)) return true;
  }
  return std::any_of(graveyard_.begin(), graveyard_.end(), is_clone);
}

// Lets go what is destroyed and nothing needs any more, and what only waited for that.
void PoolModel::Bury() {
  for (bool changed = true; changed;) {
    changed = false;
    for (const Dataset& dataset : std::vector<Dataset>(graveyard_)) {
      const auto kept = [&](const Snapshot& snapshot) { return IsKeptFor(snapshot); };
      if (std::any_of(dataset->snapshots.begin(), dataset->snapshots.end(), kept)) continue;
      std::erase(graveyard_, dataset);
      if (dataset->origin != nullptr) Reap(dataset->origin);
      changed = true;
    }
  }
}

// Those whose time has come are gone for good.
void PoolModel::EndWindows() {
  std::erase_if(windows_, [&](const ModelWindow& window) {
    if (window.end_ms > pool_->now_ms()) return false;
    graveyard_.insert(graveyard_.end(), window.datasets.begin(), window.datasets.end());
    return true;
  });
  Bury();
}

StatusCode PoolModel::ExpectUndestroy(const ModelWindow& window) const {
  for (const Dataset& dataset : window.datasets) {
    const bool below = !window.prefix.empty() && dataset->name != window.prefix;
    if (!below && Find(dataset->name)) return StatusCode::kAlreadyExists;
  }
  if (!window.prefix.empty()) {
    for (const Dataset& dataset : Subtree(window.prefix)) {
      if (dataset->name != window.prefix) return StatusCode::kAlreadyExists;
    }
  }
  for (const Dataset& dataset : window.datasets) {
    if (dataset->origin == nullptr) continue;
    const auto owns = [&](const Dataset& other) { return other.get() == dataset->origin->owner; };
    const auto& inside = window.datasets;
    if (std::none_of(datasets_.begin(), datasets_.end(), owns) &&
        std::none_of(inside.begin(), inside.end(), owns)) {
      return StatusCode::kFailedPrecondition;
    }
  }
  return StatusCode::kOk;
}

PoolModel::Call PoolModel::Undestroy() {
  const ModelWindow window = windows_[Below(windows_.size())];
  Call call;
  call.text = StrCat("undestroy ", window.operation, " (", window.datasets[0]->name, " and ",
                     window.datasets.size() - 1, " more)");
  call.expect = [this, window] { return ExpectUndestroy(window); };
  call.submit = [this, window](OutcomeCallback done) {
    (*pool_)->Undestroy(window.operation, std::nullopt, std::move(done));
  };
  call.apply = [this, window](const Outcome& outcome) {
    if (outcome.count != window.datasets.size()) Fail("another number of datasets is back");
    std::erase_if(windows_,
                  [&](const ModelWindow& other) { return other.operation == window.operation; });
    datasets_.insert(datasets_.end(), window.datasets.begin(), window.datasets.end());
    for (const Dataset& dataset : window.datasets) {
      if (dataset->expire_ms <= pool_->now_ms()) dataset->expire_ms = 0;
      for (const Snapshot& snapshot : std::vector<Snapshot>(dataset->snapshots)) Reap(snapshot);
    }
  };
  call.alone = true;
  call.drains = true;
  return call;
}

}  // namespace cowshed::engine

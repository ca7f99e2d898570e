// SPDX-License-Identifier: Apache-2.0
//
// The rules of the contract, as the model knows them.
#include <algorithm>

#include "tests/model/pool_model.h"

namespace cowshed::engine {

PoolModel::Dataset PoolModel::Find(const std::string& name) const {
  for (const Dataset& dataset : datasets_) {
    if (dataset->name == name) return dataset;
  }
  return nullptr;
}

PoolModel::Snapshot PoolModel::FindSnapshot(const std::string& name) const {
  const size_t at = name.find('@');
  const Dataset dataset = Find(name.substr(0, at));
  if (dataset == nullptr) return nullptr;
  const std::string segment = name.substr(at + 1);
  Snapshot latest;
  for (const Snapshot& snapshot : dataset->snapshots) {
    if (snapshot->name == segment) return snapshot;
    if (snapshot->visible() && !snapshot->deferred) latest = snapshot;
  }
  return segment == "latest" ? latest : nullptr;
}

std::vector<PoolModel::Dataset> PoolModel::ClonesOf(const Snapshot& snapshot) const {
  std::vector<Dataset> clones;
  for (const Dataset& dataset : datasets_) {
    if (dataset->origin == snapshot) clones.push_back(dataset);
  }
  return clones;
}

std::vector<PoolModel::Dataset> PoolModel::Subtree(const std::string& prefix) const {
  std::vector<Dataset> below;
  for (const Dataset& dataset : datasets_) {
    if (dataset->name == prefix || dataset->name.starts_with(prefix + "/")) {
      below.push_back(dataset);
    }
  }
  return below;
}

std::vector<PoolModel::Dataset> PoolModel::Cascade(std::vector<Dataset> targets) const {
  for (size_t i = 0; i < targets.size(); ++i) {
    for (const Snapshot& snapshot : targets[i]->snapshots) {
      for (const Dataset& clone : ClonesOf(snapshot)) {
        if (std::find(targets.begin(), targets.end(), clone) == targets.end()) {
          targets.push_back(clone);
        }
      }
    }
  }
  return targets;
}

bool PoolModel::CanDestroy(const std::vector<Dataset>& targets, bool recursive) const {
  for (const Dataset& target : targets) {
    for (const Snapshot& snapshot : target->snapshots) {
      if (snapshot->visible() && !recursive) return false;
      if (!snapshot->holds.empty()) return false;
      for (const Dataset& clone : ClonesOf(snapshot)) {
        if (std::find(targets.begin(), targets.end(), clone) == targets.end()) return false;
      }
    }
  }
  return true;
}

void PoolModel::RemoveDatasets(const std::vector<Dataset>& targets) {
  for (const Dataset& target : targets) {
    target->volume.reset();
    std::erase(datasets_, target);
    graveyard_.push_back(target);
  }
  Bury();
}

void PoolModel::RemoveSnapshot(const Snapshot& snapshot) {
  std::erase(snapshot->owner->snapshots, snapshot);
}

// A snapshot that only waited for its last clone or hold goes with it.
void PoolModel::Reap(const Snapshot& snapshot) {
  if (snapshot->visible() && !snapshot->deferred) return;
  if (!snapshot->holds.empty() || !ClonesOf(snapshot).empty() || IsKeptFor(snapshot)) return;
  RemoveSnapshot(snapshot);
}

std::vector<PoolModel::Snapshot> PoolModel::NewerThan(const Dataset& dataset, Txg txg) const {
  std::vector<Snapshot> newer;
  for (const Snapshot& snapshot : dataset->snapshots) {
    if (snapshot->txg > txg) newer.push_back(snapshot);
  }
  return newer;
}

PoolModel::Snapshot PoolModel::AddSnapshot(const Dataset& dataset, const std::string& name,
                                           Txg txg) {
  auto snapshot = std::make_shared<ModelSnapshot>();
  snapshot->name = name;
  snapshot->txg = txg;
  snapshot->cells = dataset->cells;
  snapshot->owner = dataset.get();
  dataset->snapshots.push_back(snapshot);
  return snapshot;
}

void PoolModel::AddClone(const std::string& name, const Snapshot& origin, int64_t expire_ms) {
  auto clone = std::make_shared<ModelDataset>();
  clone->name = name;
  clone->base_bytes = origin->owner->base_bytes;
  clone->block_bytes = origin->owner->block_bytes;
  clone->cells = origin->cells;
  clone->origin = origin;
  clone->expire_ms = expire_ms;
  datasets_.push_back(std::move(clone));
}

}  // namespace cowshed::engine

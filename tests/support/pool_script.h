// SPDX-License-Identifier: Apache-2.0
//
// A script that exercises everything a pool can do, and what the pool must show after each of its
// steps. The tests of this folder run it while things fail at a chosen moment, and compare.
//
// Threads     Externally synchronised.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/pool.h"
#include "tests/support/temp_pool.h"

namespace cowshed::engine {

// Everything a pool shows: the names of its heads and snapshots with their bytes, and its holds.
struct PoolImage {
  std::map<std::string, std::string> contents;  // by "dataset" or "dataset@snap"
  std::set<std::string> holds;                  // "dataset@snap tag"

  bool operator==(const PoolImage&) const = default;
};

absl::StatusOr<PoolImage> ReadImage(Pool& pool);
// Where two images differ, for people; empty if they do not.
std::string Difference(const PoolImage& expected, const PoolImage& found);

struct ScriptStep {
  std::string name;
  std::function<absl::Status(TempPool&)> act;  // OK: what it did is durable
  std::function<void(PoolImage*)> expect;      // what it changes, in one txg
  bool more_after = false;                     // the txg that changes it need not be its last
};

// Begins and ends with an empty pool. The background moves only where a step drains it, so a run is
// the same every time.
std::vector<ScriptStep> MakeScript();
// A tiny pool whose bounds are so low that every one is met.
TempPool::Tweak ScriptOptions();

}  // namespace cowshed::engine

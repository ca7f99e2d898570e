// SPDX-License-Identifier: Apache-2.0
#include "engine/base/failpoints.h"

#include <csignal>
#include <cstdlib>
#include <limits>
#include <map>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "engine/base/mutex.h"
#include "engine/base/strings.h"

namespace cowshed::engine {
namespace {

enum class Action { kError, kEnospc, kEio, kKill, kPause, kTrue };

struct Point {
  Action action = Action::kError;
  uint64_t skip = 0;
  uint64_t count = std::numeric_limits<uint64_t>::max();
  uint64_t hits = 0;
};

struct Registry {
  Mutex mutex{LockRank::kFailpoints};
  CondVar changed;
  std::map<std::string, Point, std::less<>> points ABSL_GUARDED_BY(mutex);
};

Registry& TheRegistry() {
  static auto* registry = new Registry;  // Never destroyed: threads may outlive static destructors.
  return *registry;
}

bool ParseAction(std::string_view text, Action* action) {
  static constexpr std::pair<std::string_view, Action> kActions[] = {
      {"error", Action::kError}, {"enospc", Action::kEnospc}, {"eio", Action::kEio},
      {"kill", Action::kKill},   {"pause", Action::kPause},   {"true", Action::kTrue}};
  for (const auto& [name, value] : kActions) {
    if (name == text) {
      *action = value;
      return true;
    }
  }
  return false;
}

absl::Status ParsePoint(std::string_view text, std::string* name, Point* point) {
  const std::pair<std::string, std::string> halves =
      absl::StrSplit(View(text), absl::MaxSplits('=', 1));
  const std::vector<std::string> parts = absl::StrSplit(halves.second, ':');
  *name = halves.first;
  if (name->empty() || !ParseAction(parts[0], &point->action)) {
    return absl::InvalidArgumentError(StrCat("failpoint '", text, "' is malformed"));
  }
  for (size_t i = 1; i < parts.size(); ++i) {
    const std::pair<std::string, std::string> option =
        absl::StrSplit(parts[i], absl::MaxSplits('=', 1));
    uint64_t* target = option.first == "skip"    ? &point->skip
                       : option.first == "count" ? &point->count
                                                 : nullptr;
    if (target == nullptr || !absl::SimpleAtoi(option.second, target)) {
      return absl::InvalidArgumentError(StrCat("failpoint option '", parts[i], "' is unknown"));
    }
  }
  return absl::OkStatus();
}

// Whether the action of `point` applies to the hit just counted.
bool Applies(const Point& point) {
  return point.hits > point.skip && point.hits - point.skip <= point.count;
}

}  // namespace

std::atomic<bool> Failpoints::any_armed_{false};

absl::Status Failpoints::Arm(std::string_view specification) {
  Registry& registry = TheRegistry();
  for (const absl::string_view text :
       absl::StrSplit(View(specification), ';', absl::SkipWhitespace())) {
    std::string name;
    Point point;
    if (absl::Status status = ParsePoint(StdView(text), &name, &point); !status.ok()) {
      return status;
    }
    const MutexLock lock(registry.mutex);
    registry.points[name] = point;
    any_armed_.store(true, std::memory_order_relaxed);
  }
  return absl::OkStatus();
}

void Failpoints::Disarm(std::string_view name) {
  Registry& registry = TheRegistry();
  const MutexLock lock(registry.mutex);
  if (auto it = registry.points.find(name); it != registry.points.end()) {
    registry.points.erase(it);
  }
  any_armed_.store(!registry.points.empty(), std::memory_order_relaxed);
  registry.changed.NotifyAll();
}

void Failpoints::DisarmAll() {
  Registry& registry = TheRegistry();
  const MutexLock lock(registry.mutex);
  registry.points.clear();
  any_armed_.store(false, std::memory_order_relaxed);
  registry.changed.NotifyAll();
}

uint64_t Failpoints::Hits(std::string_view name) {
  Registry& registry = TheRegistry();
  const MutexLock lock(registry.mutex);
  auto it = registry.points.find(name);
  return it == registry.points.end() ? 0 : it->second.hits;
}

absl::Status Failpoints::HitArmed(std::string_view name) {
  Registry& registry = TheRegistry();
  const MutexLock lock(registry.mutex);
  auto it = registry.points.find(name);
  if (it == registry.points.end()) {
    return absl::OkStatus();
  }
  ++it->second.hits;
  if (!Applies(it->second)) {
    return absl::OkStatus();
  }
  switch (it->second.action) {
    case Action::kError:
      return absl::InternalError(StrCat("failpoint ", name));
    case Action::kEnospc:
      return absl::ResourceExhaustedError(StrCat("failpoint ", name, ": no space"));
    case Action::kEio:
      return absl::UnavailableError(StrCat("failpoint ", name, ": input/output error"));
    case Action::kKill:
      std::raise(SIGKILL);
      std::abort();
    case Action::kPause:
      while (registry.points.find(name) != registry.points.end()) {
        registry.changed.Wait(registry.mutex);
      }
      return absl::OkStatus();
    case Action::kTrue:
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

bool Failpoints::IsTrueArmed(std::string_view name) {
  Registry& registry = TheRegistry();
  const MutexLock lock(registry.mutex);
  auto it = registry.points.find(name);
  if (it == registry.points.end() || it->second.action != Action::kTrue) {
    return false;
  }
  ++it->second.hits;
  return Applies(it->second);
}

}  // namespace cowshed::engine

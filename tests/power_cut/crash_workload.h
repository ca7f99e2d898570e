// SPDX-License-Identifier: Apache-2.0
//
// What a pool does while the power is cut: workloads that are recorded once, with what the pool
// showed after each of their steps and when that was acknowledged as durable.
//
// Model       States are numbered; 0 is the empty pool. A step leads from one to the next and
//             happens in one txg, so what a power cut leaves shows a state from the newest that was
//             acknowledged to the newest on its way. A step that is not durable (a write without a
//             flush) is acknowledged by the next that is.
// Threads     Externally synchronised; nothing runs once a recording is made, so that its user may
//             fork.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/pool.h"
#include "tests/power_cut/disk_recorder.h"
#include "tests/support/temp_pool.h"

namespace cowshed::engine {

// Everything a pool shows: by name a digest of each head, snapshot, hold and undelete window, with
// what they hold and are.
using VisibleState = std::map<std::string, uint64_t>;

absl::StatusOr<VisibleState> ReadState(Pool& pool);
// How they differ, for people; empty if they do not.
std::string StateDifference(const VisibleState& expected, const VisibleState& found);

struct Recording {
  std::string name;
  DiskLog log;
  std::vector<VisibleState> states;
  std::vector<std::string> steps;  // that led to each state
  std::vector<bool> gradual;       // the step took several txgs, a name or more in each
};

// The options of the recorded pool, and of its images.
void SetCrashOptions(PoolOptions* options);
inline constexpr char kPoolFolder[] = "pool";  // below the recorded directory

// What the success of a step acknowledges: that everything up to it is durable, nothing, or the
// former if it committed a txg (what did not commit need not speak for the writes to others).
enum class Durable : uint8_t { kYes, kNo, kIfCommitted };

// Runs steps on a new pool and records them.
class WorkloadRecorder {
 public:
  explicit WorkloadRecorder(std::string name);
  ~WorkloadRecorder();

  TempPool& pool() { return *pool_; }
  // Runs `act`, in one txg unless it is gradual. A refused step changes nothing and is one, too.
  absl::Status Step(const std::string& name, const std::function<absl::Status()>& act,
                    Durable durable = Durable::kYes, bool gradual = false);
  // The newest state is acknowledged.
  bool all_acknowledged() const { return acknowledged_ + 1 == recording_.states.size(); }
  // Runs `act`, after which the pool shows what was durable, for example because it was reopened.
  void Restart(const std::string& name, const std::function<void()>& act);
  const VisibleState& state() const { return recording_.states.back(); }
  // Closes the pool.
  Recording Take();

 private:
  void Remember(const std::string& name, bool gradual = false);
  void AcknowledgeNewest();

  std::string root_;
  Recording recording_;
  uint64_t acknowledged_ = 0;
  std::unique_ptr<DiskRecorder> recorder_;
  std::unique_ptr<TempPool> pool_;
};

// Every verb there is, in order.
Recording RecordScript();
// Some hundred steps by chance.
Recording RecordRandom(uint64_t seed);

}  // namespace cowshed::engine

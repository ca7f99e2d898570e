// SPDX-License-Identifier: Apache-2.0
//
// A pool as plain values in memory, and random operations that are done to it and to a real pool
// alike. Every answer of the pool is compared with the model's, the bytes of every head and
// snapshot with its cells, and the checker runs every few steps and at the end.
//
//   alone      one call at a time: its result, or the code of its refusal, must be the model's
//   in a burst many calls submitted without waiting: those that succeeded are applied to the model
//              in the order of their txgs, and each must be allowed there
//   a crash    what was flushed must be there; of what was not, any state in between
//   held       a few steps while a condense stands still in its middle
//
// Threads     Externally synchronised.
// Ownership   Owns its TempPool, unless it shares one.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/model/content.h"
#include "tests/support/temp_pool.h"

namespace cowshed::engine {

struct ModelDataset;

struct ModelSnapshot {
  std::string name;  // empty: hidden
  Txg txg = 0;
  Cells cells;
  ModelDataset* owner = nullptr;
  std::map<std::string, int64_t> holds;  // tag -> expiry, 0 for none
  bool deferred = false;

  bool visible() const { return !name.empty(); }
};

struct ModelDataset {
  std::string name;
  uint64_t base_bytes = 0;  // before it lie zeros: a tall tree with few blocks
  uint32_t block_bytes = 0;
  Cells cells;
  std::shared_ptr<ModelSnapshot> origin;
  std::vector<std::shared_ptr<ModelSnapshot>> snapshots;  // oldest first
  int64_t expire_ms = 0;
  bool quota = false;
  std::vector<Cells> history;  // states accepted since the last one known to be durable
  std::shared_ptr<Volume> volume;

  uint64_t size_bytes() const { return base_bytes + cells.size() * kCellBytes; }
};

// What a destroy has taken and an undestroy may bring back.
struct ModelWindow {
  std::string operation, prefix;  // the prefix of a big one that waits as a directory
  int64_t end_ms = 0;
  std::vector<std::shared_ptr<ModelDataset>> datasets;
};

class PoolModel {
 public:
  explicit PoolModel(uint64_t seed);
  ~PoolModel();
  // One of several models that share a pool, each below a prefix of its own: no reopening, no
  // crash, no time, and the background is never waited for. `pool` outlives the model.
  PoolModel(uint64_t seed, TempPool& pool, const std::string& prefix);

  // Runs `steps` random steps, destroys everything and checks that nothing is left. Empty, or what
  // went wrong and the steps before it.
  std::string Run(uint64_t steps);
  uint64_t operations() const { return operations_; }
  uint64_t condenses() const { return condenses_; }  // that were completed

 private:
  using Dataset = std::shared_ptr<ModelDataset>;
  using Snapshot = std::shared_ptr<ModelSnapshot>;

  // A lifecycle call: what the model says of it now, how to submit it, what it does.
  struct Call {
    std::string text;
    std::function<absl::StatusCode()> expect;
    std::function<void(OutcomeCallback)> submit;
    std::function<void(const Outcome&)> apply;
    bool alone = false;   // not for bursts
    bool drains = false;  // what it does comes about later, in the background
  };

  // --- steps (pool_model.cc) ---
  void Fill(uint64_t free_bytes);
  void Step();
  void DoAlone(const Call& call);
  void DoBurst();
  void WriteSome();
  void WriteOnce(const Dataset& dataset);
  void DiscardSome();
  void FlushOne();
  void LoseLivelist();
  void LetRebuildsGoOn();
  void Reopen();
  void Crash();
  void LetTimePass();
  void HoldCondense();
  void LetGo();
  void Drain();
  void CountCondenses();
  void DestroyEverything();

  // --- verification (pool_model_verify.cc) ---
  void VerifyDataset(const Dataset& dataset);
  void VerifySnapshot(const Snapshot& snapshot);
  void VerifyAll();
  void VerifyLists();
  void VerifyInfo(const Dataset& dataset);
  void VerifyLivelists();               // of a drained pool
  void Settle(const Dataset& dataset);  // takes on which of the possible states it is
  void Durable();                       // everything accepted so far has been committed
  void Check();
  void CheckAsItIs();

  // --- calls (pool_model_calls.cc) ---
  Call RandomCall();
  Call Create();
  Call TakeSnapshot();
  Call TakeSnapshots();
  Call Clone();
  Call Promote();
  Call Rollback();
  Call Rename();
  Call RenameSnapshot();
  Call Update();
  Call Hold();
  Call Release();
  Call Destroy();
  Call DestroyPrefix();
  Call DestroySnapshots();
  Call DestroyRange();

  // --- undelete windows (pool_model_windows.cc) ---
  int64_t AnyWindowMs();
  void Take(const std::vector<Dataset>& targets, int64_t keep_ms, bool as_prefix,
            const std::string& prefix, const Outcome& outcome);
  bool IsKeptFor(const Snapshot& snapshot) const;  // a clone of it waits
  void Bury();
  void EndWindows();
  absl::StatusCode ExpectUndestroy(const ModelWindow& window) const;
  Call Undestroy();

  // --- the model's rules (pool_model_rules.cc) ---
  Dataset Find(const std::string& name) const;
  Snapshot FindSnapshot(const std::string& name) const;  // "d@s", "d@latest"
  std::vector<Dataset> ClonesOf(const Snapshot& snapshot) const;
  std::vector<Dataset> Subtree(const std::string& prefix) const;
  bool CanDestroy(const std::vector<Dataset>& targets, bool recursive) const;
  void RemoveDatasets(const std::vector<Dataset>& targets);
  void RemoveSnapshot(const Snapshot& snapshot);
  void Reap(const Snapshot& snapshot);
  std::vector<Snapshot> NewerThan(const Dataset& dataset, Txg txg) const;
  Snapshot AddSnapshot(const Dataset& dataset, const std::string& name, Txg txg);
  void AddClone(const std::string& name, const Snapshot& origin, int64_t expire_ms);
  std::vector<Dataset> Cascade(std::vector<Dataset> targets) const;

  uint64_t Below(uint64_t bound) { return random_() % bound; }
  bool Chance(uint32_t percent) { return Below(100) < percent; }
  Dataset AnyDataset();
  Snapshot AnySnapshot();
  std::string AnyName();          // of a dataset, existing or not
  std::string KnownName();        // of an existing dataset, mostly
  std::string KnownSnapshot();    // "d@s", existing mostly
  std::string AnySnapshotName();  // short
  void Fail(const std::string& what);
  void Log(const std::string& what);
  bool failed() const { return !failure_.empty(); }
  bool shared() const { return own_pool_ == nullptr; }
  std::mt19937_64 random_;
  std::unique_ptr<TempPool> own_pool_;
  TempPool* pool_ = nullptr;
  std::string prefix_;  // of all names: empty, or the part of a shared pool, ending in '/'
  std::vector<Dataset> datasets_;
  std::vector<ModelWindow> windows_;
  std::vector<Dataset> graveyard_;  // destroyed, and clones of them wait
  uint64_t empty_allocated_bytes_ = 0;
  uint32_t max_cells_ = 0;
  bool crowded_ = false;    // a pool so small that writes find it full
  bool costly_ = false;     // some livelist was dropped that nobody rebuilds
  std::string stopped_at_;  // failpoint at which rebuilds stand still; empty: they do not
  uint32_t next_tag_ = 1;
  uint64_t operations_ = 0, condenses_ = 0;
  std::thread held_;  // drains, and stands in a condense
  std::string held_failure_, failure_;
  std::deque<std::string> log_;
};

}  // namespace cowshed::engine

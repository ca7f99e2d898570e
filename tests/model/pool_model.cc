// SPDX-License-Identifier: Apache-2.0
//
// The steps of a random run.
#include "tests/model/pool_model.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <numeric>
#include <sstream>

#include "engine/base/failpoints.h"
#include "engine/base/strings.h"

namespace cowshed::engine {
namespace {

using absl::StatusCode;

constexpr size_t kLogLines = 60;
constexpr uint32_t kMaxWriteCells = 48;
constexpr uint64_t kCrowdedBytes = 16 << 20;  // the least a pool can have
constexpr char kFiller[] = "filler";          // takes most of it

constexpr const char* kCondensePoints[] = {"condense.read", "condense.shadow", "condense.swap"};

// Leaves a mutation armed.
void DisarmCondense() {
  for (const char* point : kCondensePoints) Failpoints::Disarm(point);
}

// A pool whose every limit is so small that a few steps meet it.
void Configure(std::mt19937_64& random, bool crowded, PoolOptions* options) {
  const auto pick = [&](std::initializer_list<uint64_t> values) {
    return *(values.begin() + static_cast<ptrdiff_t>(random() % values.size()));
  };
  options->capacity_bytes = crowded ? kCrowdedBytes : 64 << 20;
  options->blocks_reserve_bytes = 1 << 20;
  options->write_wait_max = std::chrono::milliseconds(20);
  options->livelist_max_entries = pick({1, 3, 10, 60, 500000});
  options->deadlist_tail_max_entries = pick({1, 10, 200, 4096});
  options->discard_direct_blocks = pick({1, 8, 4096});
  options->trim_pointers_per_txg = pick({1, 7, 100, 65536});
  options->rebuild_bite_pointers = pick({1, 3, 20, 50000});
  options->reclaim_bite_runs = pick({1, 5, 50, 50000});
  options->reclaim_jobs_per_txg = static_cast<uint32_t>(pick({1, 3, 256}));
  options->bulk_names_per_txg = pick({1, 2, 1000});
  options->drop_pages_per_bite = pick({1, 500});
  options->free_log_max_runs = static_cast<uint32_t>(pick({8, 100, 65536}));
  options->regions_flushed_per_txg = static_cast<uint32_t>(pick({1, 64}));
  options->condense_min_entries = pick({1, 4, 30, 512});
  options->condense_growth_percent = static_cast<uint32_t>(pick({10, 85, 300}));
  options->condense_chunks_per_txg = static_cast<uint32_t>(pick({1, 2, 256}));
  options->reclaim_memory_bytes = pick({1, 4 << 10, 64 << 20});
  options->open_heads_max = static_cast<uint32_t>(pick({1, 4, 4096}));
  options->node_cache_bytes = pick({0, 64 << 10, 8 << 20});
  options->txg_interval = std::chrono::milliseconds(pick({2, 50, 5000}));
  options->txg_dirty_bytes = pick({16 << 10, 64 << 20});
  options->expire_poll = std::chrono::milliseconds(50);
}

}  // namespace

PoolModel::PoolModel(uint64_t seed) : random_(seed) {
  crowded_ = Chance(35);
  max_cells_ = crowded_ ? 400 : 1500;
  own_pool_ = std::make_unique<TempPool>(
      [this](PoolOptions* options) { Configure(random_, crowded_, options); });
  pool_ = own_pool_.get();
  Check();
  empty_allocated_bytes_ = (*pool_)->space().allocated_bytes;
  if (crowded_) Fill((2 + Below(4)) << 20);
}

PoolModel::PoolModel(uint64_t seed, TempPool& pool, const std::string& prefix)
    : random_(seed), pool_(&pool), prefix_(prefix + "/"), max_cells_(400) {}

// Leaves only so much of the pool free.
void PoolModel::Fill(uint64_t free_bytes) {
  if (!pool_->Create(kFiller, kCrowdedBytes, 1 << 17).ok()) return Fail("cannot create the filler");
  std::string block(1 << 17, '\0');
  for (uint64_t offset = 0; offset + free_bytes < kCrowdedBytes; offset += block.size()) {
    for (char& c : block) c = static_cast<char>(random_());
    absl::Status status = pool_->Write(kFiller, offset, block);
    // What was admitted for earlier blocks in the worst case comes back with their sync.
    if (absl::IsResourceExhausted(status) && pool_->Sync().ok()) {
      status = pool_->Write(kFiller, offset, block);
    }
    if (!status.ok()) return Fail("cannot write the filler: " + status.ToString());
  }
  if (!pool_->Sync().ok()) Fail("cannot sync the filler");
}

PoolModel::~PoolModel() { LetGo(); }

std::string PoolModel::Run(uint64_t steps) {
  for (uint64_t i = 0; i < steps && !failed(); ++i) Step();
  LetGo();
  if (!failed()) VerifyAll();
  if (!failed()) DestroyEverything();
  LetRebuildsGoOn();
  if (!failed()) CountCondenses();
  if (failed() && !shared()) pool_->Abandon();
  return failure_;
}

void PoolModel::Step() {
  const uint64_t dice = Below(shared() ? 960 : 1000);
  if (datasets_.empty()) {
    DoAlone(Create());
  } else if (dice < 450) {
    WriteSome();
  } else if (dice < 490) {
    DiscardSome();
  } else if (dice < 520) {
    FlushOne();
  } else if (dice < 820) {
    DoAlone(RandomCall());
  } else if (dice < 900) {
    DoBurst();
  } else if (dice < 912 && !shared()) {
    HoldCondense();
  } else if (dice < 930 && !shared()) {
    LoseLivelist();
  } else if (dice < 960) {
    VerifyDataset(AnyDataset());
    if (const Snapshot snapshot = AnySnapshot()) VerifySnapshot(snapshot);
  } else if (dice < 970) {
    LetTimePass();
  } else if (dice < 990) {
    VerifyAll();
  } else if (dice < 995) {
    Reopen();
  } else {
    Crash();
  }
}

void PoolModel::DoAlone(const Call& call) {
  ++operations_;
  const StatusCode expected = call.expect();
  Log(StrCat(call.text, " -> ", absl::StatusCodeToString(expected)));
  Await<absl::StatusOr<Outcome>> done;
  call.submit(done.Callback());
  const absl::StatusOr<Outcome> outcome = done.Wait();
  if (outcome.status().code() != expected) {
    // A crowded pool may have no room for the one block that a resize rewrites.
    if (absl::IsResourceExhausted(outcome.status()) && crowded_) return;
    return Fail(StrCat(call.text, " should be ", absl::StatusCodeToString(expected), " and is ",
                       outcome.status().ToString()));
  }
  if (!outcome.ok()) return;
  call.apply(*outcome);
  if (outcome->txg != 0) Durable();
  if (call.drains) Drain();
}

void PoolModel::DoBurst() {
  struct Submitted {
    Call call;
    Await<absl::StatusOr<Outcome>> done;
    absl::StatusOr<Outcome> outcome = absl::UnknownError("");
  };
  std::vector<Submitted> burst(2 + Below(14));
  for (Submitted& submitted : burst) {
    do {
      submitted.call = RandomCall();
    } while (submitted.call.alone);
  }
  for (Submitted& submitted : burst) submitted.call.submit(submitted.done.Callback());
  for (Submitted& submitted : burst) submitted.outcome = submitted.done.Wait();
  // Calls that had to wait for the next txg ran later than some submitted after them.
  std::vector<size_t> order(burst.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const auto txg = [&](size_t i) { return burst[i].outcome.ok() ? burst[i].outcome->txg : 0; };
    return txg(a) < txg(b);
  });
  for (const size_t i : order) {
    ++operations_;
    const Submitted& submitted = burst[i];
    if (!submitted.outcome.ok()) {
      Log(StrCat("burst, refused: ", submitted.call.text));
      const StatusCode code = submitted.outcome.status().code();
      if (code == StatusCode::kInternal || code == StatusCode::kDataLoss ||
          code == StatusCode::kUnavailable || code == StatusCode::kUnknown) {
        return Fail(StrCat(submitted.call.text, ": ", submitted.outcome.status().ToString()));
      }
      continue;
    }
    Log(StrCat("burst, txg ", submitted.outcome->txg, ": ", submitted.call.text));
    if (const StatusCode code = submitted.call.expect(); code != StatusCode::kOk) {
      return Fail(
          StrCat(submitted.call.text, " was done and should be ", absl::StatusCodeToString(code)));
    }
    submitted.call.apply(*submitted.outcome);
  }
  Durable();
}

void PoolModel::WriteSome() {
  for (uint64_t count = 1 + Below(5); count > 0 && !failed() && !datasets_.empty(); --count) {
    WriteOnce(AnyDataset());
  }
}

void PoolModel::WriteOnce(const Dataset& dataset) {
  ++operations_;
  const uint64_t first = Below(dataset->cells.size());
  uint64_t count = 1 + Below(Chance(20) ? kMaxWriteCells : 8);
  count = std::min(count, dataset->cells.size() - first);
  if (dataset->history.empty()) dataset->history.push_back(dataset->cells);
  Cells after = dataset->cells;
  for (uint64_t i = first; i < first + count; ++i) after[i] = Chance(10) ? 0 : next_tag_++;
  Log(StrCat("write ", dataset->name, " [", first, ", ", first + count, ")"));
  if (dataset->volume == nullptr || Chance(5)) {
    absl::StatusOr<std::shared_ptr<Volume>> volume = (*pool_)->OpenVolume(dataset->name, "");
    if (!volume.ok()) return Fail(StrCat("open ", dataset->name, ": ", volume.status().ToString()));
    dataset->volume = *std::move(volume);
  }
  const std::vector<std::byte> bytes = BytesOf(std::span(after).subspan(first, count));
  const absl::Status status =
      dataset->volume->Write(dataset->base_bytes + first * kCellBytes, bytes);
  dataset->history.push_back(after);
  if (status.ok()) {
    dataset->cells = std::move(after);
    return;
  }
  if (!absl::IsResourceExhausted(status) || !(crowded_ || dataset->quota)) {
    return Fail(StrCat("write ", dataset->name, ": ", status.ToString()));
  }
  // Whole blocks before the one that found no room have been accepted.
  Log("  no room");
  Settle(dataset);
  if (crowded_ && !failed()) {
    DoAlone(Chance(60) ? Destroy() : DestroySnapshots());
  }
}

void PoolModel::DiscardSome() {
  ++operations_;
  const Dataset dataset = AnyDataset();
  const uint64_t first = Below(dataset->cells.size());
  const uint64_t count = 1 + Below(dataset->cells.size() - first);
  // Now and then everything before the cells, too: a long way of holes.
  const bool from_zero = dataset->base_bytes > 0 && Chance(30);
  Log(StrCat("discard ", dataset->name, " [", from_zero ? 0 : first, ", ", first + count, ")"));
  Await<absl::Status> done;
  absl::StatusOr<std::shared_ptr<Volume>> volume = (*pool_)->OpenVolume(dataset->name, "");
  if (!volume.ok()) return Fail(StrCat("open ", dataset->name, ": ", volume.status().ToString()));
  const uint64_t offset = from_zero ? 0 : dataset->base_bytes + first * kCellBytes;
  const uint64_t end = dataset->base_bytes + (first + count) * kCellBytes;
  if (dataset->history.empty()) dataset->history.push_back(dataset->cells);
  (*volume)->Discard(offset, end - offset, done.Callback());
  const absl::Status status = done.Wait();
  const auto begin = dataset->cells.begin() + static_cast<ptrdiff_t>(from_zero ? 0 : first);
  std::fill(begin, dataset->cells.begin() + static_cast<ptrdiff_t>(first + count), 0);
  dataset->history.push_back(dataset->cells);
  if (status.ok()) return;
  if (!absl::IsResourceExhausted(status) || !(crowded_ || dataset->quota)) {
    return Fail(StrCat("discard ", dataset->name, ": ", status.ToString()));
  }
  Settle(dataset);
}

void PoolModel::FlushOne() {
  ++operations_;
  const Dataset dataset = AnyDataset();
  const std::string verb = Chance(50) ? "flush" : "make durable";
  Log(StrCat(verb, " ", dataset->name));
  const absl::Status status =
      verb == "flush" ? pool_->Flush(dataset->name).status() : pool_->MakeDurable(dataset->name);
  if (!status.ok()) return Fail(StrCat(verb, " ", dataset->name, ": ", status.ToString()));
  dataset->history.clear();
}

// Gives up the livelist of a dataset; half of the time its rebuild then stands still somewhere, so
// that whatever comes next meets it there.
void PoolModel::LoseLivelist() {
  LetRebuildsGoOn();
  LetGo();
  const bool damaged = Chance(80);
  const std::string reason = damaged ? "livelist.damaged" : "livelist.costly";
  if (!Failpoints::Arm(reason + "=true:count=1").ok()) return Fail("cannot arm " + reason);
  if (Chance(50)) {
    static constexpr const char* kPlaces[] = {"begin", "walk", "walk", "shadow", "swap"};
    stopped_at_ = StrCat("rebuild.", kPlaces[Below(std::size(kPlaces))]);
    const std::string action = StrCat(stopped_at_, "=error:skip=", Below(4));
    if (!Failpoints::Arm(action).ok()) return Fail("cannot arm " + action);
  }
  Log(StrCat("the next livelist written to is ", damaged ? "damaged" : "costly",
             stopped_at_.empty() ? "" : ", rebuild stops at ", stopped_at_));
  costly_ = costly_ || !damaged;
  WriteOnce(AnyDataset());
  const absl::Status synced = pool_->Sync().status();
  Failpoints::Disarm(reason);
  if (!synced.ok()) return Fail("sync: " + synced.ToString());
  Durable();
}

void PoolModel::LetRebuildsGoOn() {
  if (!stopped_at_.empty()) Failpoints::Disarm(stopped_at_);
  stopped_at_.clear();
}

void PoolModel::Reopen() {
  ++operations_;
  Log("reopen");
  LetGo();
  CountCondenses();
  for (const Dataset& dataset : datasets_) dataset->volume.reset();
  pool_->Reopen();
  Durable();
  VerifyAll();
}

void PoolModel::Crash() {
  ++operations_;
  WriteSome();
  if (failed()) return;
  LetGo();
  CountCondenses();
  if (Chance(50)) {
    // In the middle of a condense, if there is one to do: what it has written is on disk.
    const bool in_shadow = Chance(50);
    Log(in_shadow ? "crash after some of a shadow log" : "crash before a swap");
    const std::string point = in_shadow ? "condense.shadow=error:skip=1" : "condense.swap=error";
    if (!Failpoints::Arm(point).ok()) return Fail("cannot arm " + point);
    const absl::Status drained = (*pool_)->DrainBackground();
    DisarmCondense();
    if (!drained.ok() && !absl::IsInternal(drained)) return Fail(drained.ToString());
  }
  Log("crash");
  for (const Dataset& dataset : datasets_) dataset->volume.reset();
  pool_->Crash();
  for (const Dataset& dataset : datasets_) Settle(dataset);
  Durable();
  if (!failed()) VerifyAll();
}

// Stops a condense before it reads, between shadow chunks, or before its swap, if one comes by, and
// does a few steps. Whatever needs the background lets it go on first.
void PoolModel::HoldCondense() {
  LetRebuildsGoOn();  // the drain that is held must not meet a failpoint
  LetGo();
  const std::string point = kCondensePoints[Below(std::size(kCondensePoints))];
  const uint64_t skip = Below(3);
  if (!Failpoints::Arm(StrCat(point, "=pause:skip=", skip)).ok()) return Fail("cannot arm");
  std::atomic<bool> ended = false;
  held_ = std::thread([this, &ended] {
    const absl::Status drained = (*pool_)->DrainBackground();
    if (!drained.ok()) held_failure_ = drained.ToString();
    ended = true;
    ended.notify_all();
  });
  while (!ended && Failpoints::Hits(point) <= skip) std::this_thread::yield();
  Log(StrCat(Failpoints::Hits(point) > skip ? "held at " : "not held at ", point));
  for (uint64_t count = 1 + Below(5); count > 0 && !failed() && !datasets_.empty(); --count) {
    if (Chance(50)) {
      DoAlone(RandomCall());
    } else {
      WriteSome();
      if (!datasets_.empty()) FlushOne();  // the last one may have expired meanwhile
    }
  }
  LetGo();
}

void PoolModel::LetGo() {
  if (!held_.joinable()) return;
  DisarmCondense();
  held_.join();
  if (!held_failure_.empty()) Fail("drain: " + held_failure_);
}

void PoolModel::Drain() {
  LetRebuildsGoOn();
  LetGo();
  if (failed()) return;
  if (const absl::Status drained = (*pool_)->DrainBackground(); !drained.ok()) {
    Fail("drain: " + drained.ToString());
  }
}

// Before the counters go with their pool. None may fail: no list is damaged but by name.
void PoolModel::CountCondenses() {
  if (shared()) return;
  const auto& condenses = (*pool_)->stats().condenses;
  condenses_ += condenses[CondenseResult::kCompleted];
  if (condenses[CondenseResult::kFailed] != 0) Fail("a condense has failed");
}

// Moves the clock and lets everything happen that is due.
void PoolModel::LetTimePass() {
  ++operations_;
  Log("time passes");
  pool_->Advance(static_cast<int64_t>(1 + Below(12)));
  Drain();
  if (failed()) return;
  EndWindows();
  // What expires first may be what keeps something else from expiring: until nothing changes.
  for (bool changed = true; changed;) {
    changed = false;
    for (const Dataset& dataset : std::vector<Dataset>(datasets_)) {
      for (const Snapshot& snapshot : std::vector<Snapshot>(dataset->snapshots)) {
        changed |= std::erase_if(snapshot->holds,
                                 [&](const auto& hold) {
                                   return hold.second != 0 && hold.second <= pool_->now_ms();
                                 }) > 0 &&
                   (Reap(snapshot), true);
      }
      if (dataset->expire_ms == 0 || dataset->expire_ms > pool_->now_ms()) continue;
      if (!CanDestroy({dataset}, /*recursive=*/false)) continue;
      RemoveDatasets({dataset});
      changed = true;
    }
  }
  // What is blocked would go the moment it no longer is: renewed, so that only this step expires.
  for (const Dataset& dataset : datasets_) {
    if (dataset->expire_ms == 0 || dataset->expire_ms > pool_->now_ms()) continue;
    UpdateDatasetArgs args;
    args.name = dataset->name;
    args.expire_time_ms = dataset->expire_ms = 0;
    const absl::StatusOr<Outcome> renewed = pool_->Call(&Pool::UpdateDataset, args);
    if (!renewed.ok()) return Fail("renew: " + renewed.status().ToString());
  }
  VerifyLists();
}

void PoolModel::DestroyEverything() {
  Log("destroy everything");
  for (const Dataset& dataset : datasets_) {
    for (const Snapshot& snapshot : dataset->snapshots) {
      for (const auto& [tag, expire_ms] : snapshot->holds) {
        const std::string name = StrCat(dataset->name, "@", snapshot->name);
        const absl::StatusOr<Outcome> released = pool_->Release(name, tag);
        if (!released.ok()) return Fail(StrCat("release ", name, released.status().ToString()));
      }
    }
  }
  DestroyDatasetsArgs args;
  for (const Dataset& dataset : datasets_) {
    args.names.push_back(dataset->name);
    dataset->volume.reset();
  }
  if (crowded_) args.names.push_back(kFiller);
  args.cascade = true;
  const absl::StatusOr<Outcome> destroyed = pool_->Call(&Pool::DestroyDatasets, args);
  if (!destroyed.ok()) return Fail("destroy everything: " + destroyed.status().ToString());
  datasets_.clear();
  crowded_ = false;
  if (!windows_.empty()) {
    Check();
    pool_->Advance(1000);
    windows_.clear();
    graveyard_.clear();
  }
  Check();
  VerifyLists();
  if (shared()) return;
  const SpaceInfo space = (*pool_)->space();
  const uint64_t allocated_bytes = space.allocated_bytes;
  if (allocated_bytes != empty_allocated_bytes_ || space.freeing_bytes != 0) {
    Fail(StrCat("the empty pool has ", allocated_bytes, " bytes allocated instead of ",
                empty_allocated_bytes_, ", and ", space.freeing_bytes, " to be freed"));
  }
}

PoolModel::Dataset PoolModel::AnyDataset() { return datasets_[Below(datasets_.size())]; }

PoolModel::Snapshot PoolModel::AnySnapshot() {
  std::vector<Snapshot> all;
  for (const Dataset& dataset : datasets_) {
    all.insert(all.end(), dataset->snapshots.begin(), dataset->snapshots.end());
  }
  return all.empty() ? nullptr : all[Below(all.size())];
}

void PoolModel::Log(const std::string& what) {
  log_.push_back(what);
  if (log_.size() > kLogLines) log_.pop_front();
}

void PoolModel::Fail(const std::string& what) {
  if (failed()) return;
  std::ostringstream text;
  text << what << "\nthe last steps, after " << operations_ << " operations:\n";
  for (const std::string& line : log_) text << "  " << line << '\n';
  failure_ = text.str();
}

}  // namespace cowshed::engine

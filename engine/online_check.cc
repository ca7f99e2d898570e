// SPDX-License-Identifier: Apache-2.0
#include "engine/online_check.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/catalog.h"
#include "engine/store/free_log.h"
#include "engine/store/region_table.h"
#include "engine/tree/dead_list.h"
#include "engine/tree/live_list.h"

namespace cowshed::engine {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxFindings = 1000;
constexpr auto kViewAge = std::chrono::milliseconds(100);

std::string Sectors(const Run& run) {
  return StrCat("sectors [", run.address, ", ", run.end(), ") born in txg ", run.birth);
}

absl::StatusOr<std::string> NameOf(const MetaTxn& txn, DatasetId id, const DatasetRecord& dataset) {
  auto name = Names::FullName(txn, dataset);
  if (absl::IsDataLoss(name.status())) return StrCat("dataset #", static_cast<uint64_t>(id));
  return name;
}

// The tree that a head (`below` = UINT64_MAX) or an own snapshot of that txg stands on.
struct Previous {
  SnapshotId id{};
  Txg txg = 0;
};
absl::StatusOr<Previous> PreviousOf(const MetaTxn& txn, DatasetId id, const DatasetRecord& dataset,
                                    Txg below) {
  ASSIGN_OR_RETURN(const std::optional<Neighbour> before, SnapshotBefore(txn, id, below));
  if (before.has_value()) return Previous{before->id, before->txg};
  return Previous{dataset.origin, dataset.origin_txg};
}

}  // namespace

class OnlineCheck::View {
 public:
  explicit View(PoolParts& parts) : epoch_(parts.epochs), begin_(Clock::now()) {}

  // The epoch has come first: what the transaction sees must not be reused while it is read.
  absl::Status Begin(const MetaStore& meta) {
    ASSIGN_OR_RETURN(txn_, meta.BeginRead());
    ASSIGN_OR_RETURN(pool_, LoadRecord<PoolRecord>(*txn_, PoolRecord::kKey));
    return absl::OkStatus();
  }

  const MetaTxn& txn() const { return *txn_; }
  const PoolRecord& pool() const { return pool_; }
  bool IsOld() const { return Clock::now() - begin_ > kViewAge; }

  absl::Status LoadSpace() {
    if (space_loaded_) return absl::OkStatus();
    RETURN_IF_ERROR(regions_.Load(*txn_, pool_.capacity_sectors));
    RETURN_IF_ERROR(free_log_.Load(*txn_, pool_.capacity_sectors, regions_.sums()));
    space_loaded_ = true;
    return absl::OkStatus();
  }
  const RegionTable& regions() const { return regions_; }
  const FreeLog& free_log() const { return free_log_; }

  // I1: what is referenced is not free. Says what is wrong, or nothing.
  absl::StatusOr<std::string> FindFree(Run run) {
    RETURN_IF_ERROR(LoadSpace());
    if (run.address < kFirstDataSector || run.end() > pool_.capacity_sectors) {
      return StrCat(Sectors(run), " lie outside the pool");
    }
    for (uint64_t begin = run.address; begin < run.end();) {
      const uint32_t region = RegionOf(begin);
      const uint64_t base = RegionBegin(region);
      const uint64_t end = std::min<uint64_t>(run.end(), base + kRegionSectors);
      ASSIGN_OR_RETURN(const RegionBitmap* const bitmap, regions_.Bitmap(*txn_, region));
      if (!bitmap->AllSet(static_cast<uint32_t>(begin - base), static_cast<uint32_t>(end - base))) {
        return StrCat(Sectors(run), " are referenced and free");
      }
      begin = end;
    }
    if (free_log_.FindOverlap(run).has_value()) {
      return StrCat(Sectors(run), " are referenced and in the free log");
    }
    return std::string();
  }

 private:
  static constexpr uint32_t kBitmapsKept = 64;

  const ReaderEpochs::Guard epoch_;
  const Clock::time_point begin_;
  std::unique_ptr<ReadTxn> txn_;
  PoolRecord pool_;
  bool space_loaded_ = false;
  RegionTable regions_{kBitmapsKept};
  FreeLog free_log_;
};

struct OnlineCheck::TreeWalk {
  uint64_t id = 0;  // of the snapshot that is walked
  Txg floor = 0;
  BlockPtr root;
  uint64_t next_block = 0;
  uint64_t written_sectors = 0;
  bool whole = true;  // neither changed nor damaged: the sum means something
};

OnlineCheck::OnlineCheck(PoolParts& parts) : parts_(parts) {}
OnlineCheck::~OnlineCheck() = default;

absl::StatusOr<CheckReport> OnlineCheck::Report() {
  RETURN_IF_ERROR(CheckSnapshots());
  RETURN_IF_ERROR(CheckDatasets());
  RETURN_IF_ERROR(CheckPool());
  view_.reset();
  return std::move(report_);
}

absl::StatusOr<OnlineCheck::View*> OnlineCheck::Fresh() {
  if (view_ == nullptr || view_->IsOld()) {
    view_.reset();  // its epoch and transaction end before others begin
    view_ = std::make_unique<View>(parts_);
    RETURN_IF_ERROR(view_->Begin(parts_.meta));
    report_.txg = view_->pool().txg;
  }
  return view_.get();
}

absl::Status OnlineCheck::CheckSnapshots() {
  uint64_t next = 0;
  TreeWalk walk;
  while (true) {
    ASSIGN_OR_RETURN(const bool more, CheckSnapshot(&next, &walk));
    if (!more) return absl::OkStatus();
  }
}

absl::StatusOr<bool> OnlineCheck::CheckSnapshot(uint64_t* next, TreeWalk* walk) {
  ASSIGN_OR_RETURN(View* const view, Fresh());
  const MetaTxn& txn = view->txn();
  MetaCursor cursor(txn, Table::kSnapshots);
  cursor.Seek(Key(*next));
  if (!cursor.status().ok()) {  // one damaged record: on to the next
    RETURN_IF_ERROR(Absorb(cursor.status(), "snapshots"));
    *next = KeyNumber<uint64_t>(cursor.key(), 0) + 1;
    return true;
  }
  if (!cursor.valid()) return false;
  const uint64_t id = KeyNumber<uint64_t>(cursor.key(), 0);
  *next = id + 1;
  const auto snapshot = SnapshotRecord::Decode(cursor.value());
  RETURN_IF_ERROR(Absorb(snapshot.status(), StrCat("snapshot #", id)));
  if (!snapshot.ok()) return true;
  const auto owner = FindRecord<DatasetRecord>(txn, Key(snapshot->dataset));
  RETURN_IF_ERROR(Absorb(owner.status(), StrCat("snapshot #", id)));
  // Without its dataset it waits for a job to take it away.
  if (!owner.ok() || !owner->has_value()) return true;
  ASSIGN_OR_RETURN(const std::string dataset, NameOf(txn, snapshot->dataset, **owner));
  const std::string name =
      SnapshotFullName(dataset, snapshot->name.empty() ? StrCat("#", id) : snapshot->name);
  const auto previous = PreviousOf(txn, snapshot->dataset, **owner, snapshot->txg);
  RETURN_IF_ERROR(Absorb(previous.status(), name));
  if (!previous.ok()) return true;
  if (walk->id != id) {
    *walk = {.id = id, .floor = previous->txg, .root = snapshot->tree.root};
    ++report_.snapshot_count;
    RETURN_IF_ERROR(CheckReferenced(*view, name,
                                    {previous->id, snapshot->deadlist, snapshot->written_sectors,
                                     snapshot->referenced_sectors}));
  }
  // Where the one before it has been destroyed meanwhile, more belongs to it than was walked.
  walk->whole = walk->whole && walk->floor == previous->txg;
  ASSIGN_OR_RETURN(const bool at_end, WalkBite(*view, name, snapshot->tree, walk));
  if (!at_end) {
    *next = id;
  } else if (walk->whole) {
    ExpectSum("written_sectors", name, snapshot->written_sectors, walk->written_sectors);
  } else {
    ++report_.skipped;
  }
  return true;
}

absl::Status OnlineCheck::CheckDatasets() {
  for (uint64_t next = 0;;) {
    ASSIGN_OR_RETURN(View* const view, Fresh());
    DatasetId id{};
    {
      MetaCursor cursor(view->txn(), Table::kDatasets);
      cursor.Seek(Key(next));
      if (cursor.status().ok() && !cursor.valid()) return absl::OkStatus();
      RETURN_IF_ERROR(Absorb(cursor.status(), "datasets"));
      id = KeyNumber<DatasetId>(cursor.key(), 0);
      next = static_cast<uint64_t>(id) + 1;
      const std::string what = StrCat("dataset #", static_cast<uint64_t>(id));
      if (!cursor.valid()) continue;
      const auto dataset = DatasetRecord::Decode(cursor.value());
      RETURN_IF_ERROR(Absorb(dataset.status(), what));
      if (!dataset.ok()) continue;
      RETURN_IF_ERROR(Absorb(CheckRecords(*view, id, *dataset), what));
    }
    for (Txg next_start = 0;;) {
      ASSIGN_OR_RETURN(const bool more, CheckSublist(id, &next_start));
      if (!more) break;
    }
    RETURN_IF_ERROR(CheckHead(id));
  }
}

// What needs nothing but records.
absl::Status OnlineCheck::CheckRecords(View& view, DatasetId id, const DatasetRecord& dataset) {
  const MetaTxn& txn = view.txn();
  ASSIGN_OR_RETURN(const std::string name, NameOf(txn, id, dataset));
  ASSIGN_OR_RETURN(const bool destroyed, IsDestroyed(txn, dataset));
  if (!destroyed) {
    ++report_.dataset_count;
    const auto found = ResolveDataset(txn, name);
    if (!found.ok() || found->id != id) {
      Add("names", name, "the dataset is not what is found under its name");
    }
  }
  uint64_t used_sectors = dataset.written_sectors;
  ASSIGN_OR_RETURN(const std::vector<Neighbour> own, SnapshotsAbove(txn, id, 0));
  for (const Neighbour& neighbour : own) {
    ASSIGN_OR_RETURN(const auto snapshot, LoadRecord<SnapshotRecord>(txn, Key(neighbour.id)));
    used_sectors += snapshot.written_sectors;
  }
  ExpectSum("used_sectors", name, dataset.used_sectors, used_sectors);
  report_.referenced_bytes += used_sectors * kSectorBytes;
  if (dataset.list_state == ListState::kWhole) {
    ASSIGN_OR_RETURN(const std::vector<Sublist> sublists, LiveList::List(txn, dataset.livelist));
    uint64_t live_sectors = 0;
    for (const Sublist& sublist : sublists) live_sectors += sublist.record.live_sectors();
    ExpectSum("the sum of its sublists", name, live_sectors, dataset.used_sectors);
  }
  ASSIGN_OR_RETURN(const Previous previous, PreviousOf(txn, id, dataset, UINT64_MAX));
  return CheckReferenced(
      view, name,
      {previous.id, dataset.deadlist, dataset.written_sectors, dataset.referenced_sectors});
}

absl::Status OnlineCheck::CheckReferenced(View& view, const std::string& name, const Sums& sums) {
  uint64_t expected = sums.written_sectors;
  if (sums.previous != SnapshotId{}) {
    const auto previous = LoadRecord<SnapshotRecord>(view.txn(), Key(sums.previous));
    if (!previous.ok()) return Absorb(previous.status(), name);
    expected += previous->referenced_sectors;
  }
  const auto dead = DeadList::SumAbove(view.txn(), sums.deadlist, 0);
  if (!dead.ok()) return Absorb(dead.status(), name);
  ExpectSum("referenced_sectors", name, sums.referenced_sectors + dead->total(), expected);
  return absl::OkStatus();
}

absl::StatusOr<bool> OnlineCheck::CheckSublist(DatasetId id, Txg* next_start) {
  ASSIGN_OR_RETURN(View* const view, Fresh());
  const MetaTxn& txn = view->txn();
  const auto dataset = FindRecord<DatasetRecord>(txn, Key(id));
  if (!dataset.ok() || !dataset->has_value()) return false;  // destroyed, or found damaged before
  ASSIGN_OR_RETURN(const std::string name, NameOf(txn, id, **dataset));
  const LivelistId list = (*dataset)->livelist;
  const auto sublists = LiveList::List(txn, list, *next_start, 2);
  RETURN_IF_ERROR(Absorb(sublists.status(), name));
  if (!sublists.ok() || sublists->empty()) return false;
  const Txg start = sublists->front().start;
  *next_start = start + 1;
  const Txg end = sublists->size() > 1 ? (*sublists)[1].start : UINT64_MAX;
  const absl::Status read = CheckSurvivors(*view, name, list, start, end);
  if (absl::IsDataLoss(read)) {
    std::vector<uint64_t>& damaged = report_.damaged_livelists;
    if (damaged.empty() || damaged.back() != static_cast<uint64_t>(id)) {
      damaged.push_back(static_cast<uint64_t>(id));
    }
  }
  RETURN_IF_ERROR(Absorb(read, name));
  return true;
}

absl::Status OnlineCheck::CheckSurvivors(View& view, const std::string& name, LivelistId list,
                                         Txg start, Txg end) {
  for (uint64_t from = 0;;) {
    ASSIGN_OR_RETURN(const SurvivorBite bite,
                     LiveList::SurvivorsFrom(view.txn(), list, start, from,
                                             parts_.options.reclaim_memory_bytes));
    for (const Run& run : bite.runs) {
      if (run.birth <= start || run.birth > end) {
        Add("I6", name, StrCat(Sectors(run), " do not belong into the sublist from txg ", start));
      }
      const auto free = view.FindFree(run);
      RETURN_IF_ERROR(Absorb(free.status(), "allocator"));
      if (free.ok() && !free->empty()) Add("I1", name, *free);
    }
    if (bite.at_end()) return absl::OkStatus();
    from = bite.next_address;
  }
}

absl::Status OnlineCheck::CheckHead(DatasetId id) {
  TreeWalk walk;
  for (bool first = true;; first = false) {
    ASSIGN_OR_RETURN(View* const view, Fresh());
    const auto found = FindRecord<DatasetRecord>(view->txn(), Key(id));
    if (!found.ok() || !found->has_value()) return absl::OkStatus();
    const DatasetRecord& dataset = **found;
    if (first) walk = {.floor = dataset.previous_txg(), .root = dataset.tree.root};
    walk.whole =
        walk.whole && walk.root == dataset.tree.root && walk.floor == dataset.previous_txg();
    ASSIGN_OR_RETURN(const std::string name, NameOf(view->txn(), id, dataset));
    ASSIGN_OR_RETURN(const bool at_end, WalkBite(*view, name, dataset.tree, &walk));
    if (!at_end) continue;
    if (walk.whole) {
      ExpectSum("written_sectors", name, dataset.written_sectors, walk.written_sectors);
    } else {
      ++report_.skipped;
    }
    return absl::OkStatus();
  }
}

absl::StatusOr<bool> OnlineCheck::WalkBite(View& view, const std::string& name,
                                           const TreeState& state, TreeWalk* walk) {
  const auto visit = [&](const BlockPtr& pointer) -> absl::Status {
    if (pointer.level == 0) ++report_.block_count;
    std::vector<Run> extents;
    RETURN_IF_ERROR(parts_.blocks.Extents(pointer, &extents));
    for (const Run& run : extents) {
      walk->written_sectors += run.sectors;
      const auto free = view.FindFree(run);
      RETURN_IF_ERROR(Absorb(free.status(), "allocator"));
      if (free.ok() && !free->empty()) Add("I1", name, *free);
    }
    return absl::OkStatus();
  };
  const auto walked = parts_.tree.Walk(state, walk->floor, &walk->next_block,
                                       parts_.options.check_bite_pointers, visit);
  if (walked.ok()) return *walked;
  walk->whole = false;
  RETURN_IF_ERROR(Absorb(walked.status(), name));
  return true;
}

// Counts and sums over all records, and the space of the pool.
absl::Status OnlineCheck::CheckPool() {
  view_.reset();  // as young as can be: this one takes longest
  ASSIGN_OR_RETURN(View* const view, Fresh());
  const MetaTxn& txn = view->txn();
  const PoolRecord& pool = view->pool();
  uint64_t used_sectors = 0, list_jobs_sectors = 0, freeing_sectors = 0, jobs = 0;
  MetaCursor datasets(txn, Table::kDatasets);
  for (datasets.Seek(""); datasets.valid(); datasets.Next()) {
    const auto dataset = DatasetRecord::Decode(datasets.value());
    if (!dataset.ok()) return absl::OkStatus();  // has been found before
    used_sectors += dataset->used_sectors;
  }
  MetaCursor cursor(txn, Table::kJobs);
  for (cursor.Seek(""); cursor.valid(); cursor.Next(), ++jobs) {
    const auto job = JobRecord::Decode(cursor.value());
    if (!job.ok()) return Absorb(job.status(), "jobs");
    freeing_sectors += job->left_sectors;
    if (job->kind == JobKind::kDataset) list_jobs_sectors += job->left_sectors;
  }
  if (!datasets.status().ok()) return Absorb(datasets.status(), "datasets");
  if (!cursor.status().ok()) return Absorb(cursor.status(), "jobs");
  ExpectSum("jobs", "pool", pool.jobs, jobs);
  ExpectSum("freeing_sectors", "pool", pool.freeing_sectors, freeing_sectors);
  ExpectSum("livelist_sectors", "pool", pool.livelist_sectors, used_sectors + list_jobs_sectors);
  const absl::Status loaded = view->LoadSpace();
  if (!loaded.ok()) return Absorb(loaded, "allocator");
  const uint64_t allocated = pool.capacity_sectors - view->regions().free_sectors();
  const uint64_t expected = kFirstDataSector + used_sectors + freeing_sectors +
                            view->free_log().sectors() +
                            (pool.has_intent_log() ? pool.intent_log.sectors : 0);
  if (allocated != expected) {
    Add("I1", "pool",
        StrCat(allocated, " sectors are not free, but ", expected, " are referenced or freed"));
  }
  return absl::OkStatus();
}

void OnlineCheck::Add(std::string invariant, std::string name, std::string message) {
  ++report_.total_findings;
  if (report_.findings.size() >= kMaxFindings) return;
  report_.findings.push_back({std::move(invariant), std::move(name), std::move(message)});
}

void OnlineCheck::ExpectSum(std::string what, const std::string& name, uint64_t stored,
                            uint64_t counted) {
  if (stored == counted) return;
  Add("sums", name, StrCat(what, " is recorded as ", stored, " but is ", counted));
}

absl::Status OnlineCheck::Absorb(const absl::Status& status, const std::string& name) {
  if (!absl::IsDataLoss(status)) return status;
  Add("damage", name, std::string(StdView(status.message())));
  return absl::OkStatus();
}

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// Livelists, jobs and deadlists: who has which sectors, and whether the logs behind them are held.
#include <algorithm>

#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/checker_state.h"
#include "engine/stats.h"
#include "engine/tree/dead_list.h"
#include "engine/tree/live_list.h"
#include "engine/tree/tree_geometry.h"

namespace cowshed::engine {
namespace {

std::string Describe(const Run& run) {
  return StrCat("sectors [", run.address, ", ", run.end(), ") born in txg ", run.birth);
}

// The greatest of `rising` below `birth`; 0 if there is none.
Txg GreatestBelow(const std::vector<Txg>& rising, Txg birth) {
  const auto it = std::lower_bound(rising.begin(), rising.end(), birth);
  return it == rising.begin() ? 0 : *std::prev(it);
}

class OwnedCollector {
 public:
  explicit OwnedCollector(CheckState& state) : state_(state) {}

  absl::Status Collect() {
    for (const auto& [id, dataset] : state_.datasets) {
      RETURN_IF_ERROR(CollectDataset(id, dataset));
    }
    for (const auto& [id, job] : state_.jobs) RETURN_IF_ERROR(CollectJob(id, job));
    std::sort(state_.owned.begin(), state_.owned.end(),
              [](const OwnedRun& a, const OwnedRun& b) { return a.run.address < b.run.address; });
    for (size_t i = 1; i < state_.owned.size(); ++i) {
      const OwnedRun& before = state_.owned[i - 1];
      const OwnedRun& owned = state_.owned[i];
      if (before.run.end() <= owned.run.address) continue;
      state_.Add("I1", state_.owners[owned.owner].name,
                 StrCat("has ", Describe(owned.run), ", and ", state_.owners[before.owner].name,
                        " has ", Describe(before.run)));
    }
    return absl::OkStatus();
  }

 private:
  uint32_t AddOwner(std::string name, bool is_job) {
    state_.owners.push_back({std::move(name), is_job});
    return static_cast<uint32_t>(state_.owners.size() - 1);
  }

  uint64_t Own(uint32_t owner, const Run& run) {
    state_.owned.push_back({run, owner});
    if (state_.owners[owner].is_job) state_.in_jobs.Add(run.address, run.end());
    return run.sectors;
  }

  absl::Status CollectDataset(DatasetId id, const DatasetRecord& dataset) {
    const std::string name = state_.NameOf(id);
    const uint32_t owner = AddOwner(name, /*is_job=*/false);
    state_.owner_of[id] = owner;
    std::vector<Txg> fences;
    if (const auto own = state_.snapshots_of.find(id); own != state_.snapshots_of.end()) {
      for (const auto& [txg, snapshot] : own->second) fences.push_back(txg);
    }
    auto sublists = LiveList::List(state_.txn, dataset.livelist);
    if (!sublists.ok()) return state_.Absorb(sublists.status(), name);
    uint64_t sectors = 0;
    bool damaged = false;
    for (size_t i = 0; i < sublists->size(); ++i) {
      const Txg start = (*sublists)[i].start;
      const Txg end = i + 1 < sublists->size() ? (*sublists)[i + 1].start : UINT64_MAX;
      auto survivors = LiveList::Survivors(state_.txn, dataset.livelist, start);
      if (!survivors.ok()) {
        RETURN_IF_ERROR(state_.Absorb(survivors.status(), name));
        damaged = true;
        continue;
      }
      for (const Run& run : *survivors) {
        sectors += Own(owner, run);
        if (run.birth <= dataset.origin_txg || run.birth <= start || run.birth > end ||
            GreatestBelow(fences, run.birth) > start) {
          state_.Add("I6", name,
                     StrCat(Describe(run), " do not belong into the sublist from txg ", start));
        }
      }
    }
    if (!damaged) state_.ExpectSum("used_sectors", name, dataset.used_sectors, sectors);
    return absl::OkStatus();
  }

  absl::Status CollectJob(JobId id, const JobRecord& job) {
    const std::string name = CheckState::NameOf(id);
    const uint32_t owner = AddOwner(name, /*is_job=*/true);
    uint64_t sectors = 0;
    absl::Status status;
    if (job.kind == JobKind::kDataset && job.phase <= JobPhase::kFree) {
      status = job.method == static_cast<uint8_t>(DestroyMethod::kTreeWalk)
                   ? CollectTrees(job, owner, &sectors)
                   : CollectSublists(job, owner, &sectors);
    } else if (job.kind == JobKind::kSnapshot && job.phase <= JobPhase::kFree) {
      status = CollectBuckets(job, owner, &sectors);
    }
    if (!status.ok()) return state_.Absorb(status, name);
    state_.ExpectSum("left_sectors", name, job.left_sectors, sectors);
    return absl::OkStatus();
  }

  // What a list job has still to free: sublists behind the cursor, addresses from the cursor on.
  absl::Status CollectSublists(const JobRecord& job, uint32_t owner, uint64_t* sectors) {
    const bool freeing = job.phase == JobPhase::kFree;
    const Txg from_start = freeing ? job.cursor_start : 0;
    ASSIGN_OR_RETURN(const auto sublists, LiveList::List(state_.txn, job.livelist, from_start));
    for (const Sublist& sublist : sublists) {
      ASSIGN_OR_RETURN(const std::vector<Run> survivors,
                       LiveList::Survivors(state_.txn, job.livelist, sublist.start));
      const uint64_t cursor = freeing && sublist.start == job.cursor_start ? job.cursor : 0;
      for (Run run : survivors) {
        if (run.end() <= cursor) continue;
        if (run.address < cursor) {
          run.sectors = static_cast<uint32_t>(run.end() - cursor);
          run.address = cursor;
        }
        *sectors += Own(owner, run);
      }
    }
    return absl::OkStatus();
  }

  // What a tree walk has still to free: the head's tree, then those of the own snapshots, each born
  // after the one before. The cursor names the snapshot (0: the head) and the block.
  absl::Status CollectTrees(const JobRecord& job, uint32_t owner, uint64_t* sectors) {
    if (job.cursor_start == 0) {
      const uint64_t cursor = job.phase == JobPhase::kFree ? job.cursor : 0;
      RETURN_IF_ERROR(WalkRest({job.min_birth, cursor, owner}, job.tree.root, 0, sectors));
    }
    if (job.dataset == DatasetId{}) return absl::OkStatus();
    std::map<Txg, const SnapshotRecord*> own;
    for (const auto& [id, snapshot] : state_.snapshots) {
      if (snapshot.dataset == job.dataset) own[snapshot.txg] = &snapshot;
    }
    Txg before = job.origin_txg;
    for (const auto& [txg, snapshot] : own) {
      const uint64_t cursor = txg == job.cursor_start ? job.cursor : 0;
      if (txg >= job.cursor_start) {
        RETURN_IF_ERROR(WalkRest({before, cursor, owner}, snapshot->tree.root, 0, sectors));
      }
      before = txg;
    }
    return absl::OkStatus();
  }

  struct Walk {
    Txg min_birth;
    uint64_t cursor;  // block
    uint32_t owner;
  };
  // A node goes after its last child.
  absl::Status WalkRest(const Walk& walk, const BlockPtr& pointer, uint64_t base,
                        uint64_t* sectors) {
    if (pointer.is_hole() || pointer.birth <= walk.min_birth ||
        EndBlock(pointer, base) <= walk.cursor) {
      return absl::OkStatus();
    }
    std::vector<Run> extents;
    RETURN_IF_ERROR(state_.blocks.Extents(pointer, &extents));
    for (const Run& run : extents) *sectors += Own(walk.owner, run);
    if (pointer.level == 0) return absl::OkStatus();
    auto node = std::make_unique<Node>();
    RETURN_IF_ERROR(state_.blocks.Read(pointer, std::as_writable_bytes(std::span(node.get(), 1))));
    const uint64_t span = SpanBlocks(pointer.level - 1);
    for (uint64_t i = 0; i < kNodeFanout; ++i) {
      RETURN_IF_ERROR(WalkRest(walk, node->children[i], base + i * span, sectors));
    }
    return absl::OkStatus();
  }

  // What a snapshot job has still to free: buckets behind the cursor, entries from it on. The
  // cursor names a bucket by start and log, and the place in its log.
  absl::Status CollectBuckets(const JobRecord& job, uint32_t owner, uint64_t* sectors) {
    ASSIGN_OR_RETURN(const auto buckets, DeadList::Buckets(state_.txn, job.deadlist));
    const std::pair cursor(job.cursor_start, job.cursor);
    for (const DeadBucket& bucket : buckets) {
      const std::pair at(bucket.start, static_cast<uint64_t>(bucket.log));
      if (at < cursor) continue;
      LogPosition position;
      if (at == cursor) position = {job.cursor_chunk, job.cursor_entry};
      std::vector<LogEntry> entries;
      RETURN_IF_ERROR(
          PointerLog::Read(state_.txn, bucket.log, &position, UINT64_MAX, &entries).status());
      for (const LogEntry& entry : entries) *sectors += Own(owner, entry.run);
    }
    return absl::OkStatus();
  }

  CheckState& state_;
};

class DeadlistChecker {
 public:
  explicit DeadlistChecker(CheckState& state) : state_(state) {}

  absl::Status Check() {
    for (const auto& [id, dataset] : state_.datasets) {
      fences_ = FencesOf(dataset);
      if (const auto own = state_.snapshots_of.find(id); own != state_.snapshots_of.end()) {
        for (const auto& [txg, snapshot] : own->second) {
          RETURN_IF_ERROR(CheckList(state_.NameOf(snapshot), state_.snapshots.at(snapshot).deadlist,
                                    state_.snapshot_sums[snapshot], state_.PreviousOf(id, txg)));
          fences_.push_back(txg);
        }
      }
      RETURN_IF_ERROR(CheckList(state_.NameOf(id), dataset.deadlist, state_.head_sums[id],
                                state_.PreviousOf(id, UINT64_MAX)));
    }
    return absl::OkStatus();
  }

 private:
  // Txgs of the snapshots that a dataset stands on, its own ones not included, rising.
  std::vector<Txg> FencesOf(const DatasetRecord& dataset) const {
    std::vector<Txg> fences;
    const DatasetRecord* at = &dataset;
    while (at->origin != SnapshotId{}) {
      const auto origin = state_.snapshots.find(at->origin);
      if (origin == state_.snapshots.end()) break;
      const auto own = state_.snapshots_of.find(origin->second.dataset);
      const auto owner = state_.datasets.find(origin->second.dataset);
      if (own == state_.snapshots_of.end() || owner == state_.datasets.end()) break;
      for (const auto& [txg, snapshot] : own->second) {
        if (txg <= origin->second.txg) fences.push_back(txg);
      }
      if (owner->second.origin_txg >= at->origin_txg) break;  // a loop: reported elsewhere
      at = &owner->second;
    }
    std::sort(fences.begin(), fences.end());
    return fences;
  }

  absl::Status CheckList(const std::string& name, DeadlistId list, const TreeSums& own,
                         const CheckState::Previous& previous) {
    std::vector<Run> dead;
    if (const absl::Status status = DeadList::ReadAll(state_.txn, list, &dead); !status.ok()) {
      return state_.Absorb(status, name);
    }
    uint64_t sectors = 0;
    for (const Run& run : dead) {
      sectors += run.sectors;
      CheckRun(name, run, previous.txg);
    }
    // The previous snapshot has what the owner shares with it, and what the owner has killed.
    TreeSums before;
    if (previous.id != SnapshotId{}) before = state_.snapshot_sums[previous.id];
    const uint64_t shared = own.sectors - own.written_sectors;
    if (!own.damaged && !before.damaged && before.sectors != shared + sectors) {
      state_.Add("I5", name,
                 StrCat("the deadlist holds ", sectors, " sectors, but the previous snapshot has ",
                        before.sectors, ", of which ", shared, " are shared"));
    }
    return CheckBuckets(name, list);
  }

  void CheckRun(const std::string& name, const Run& run, Txg previous_txg) {
    if (run.birth > previous_txg) {
      state_.Add(
          "I5", name,
          StrCat("the deadlist holds ", Describe(run), ", younger than the previous snapshot"));
    }
    bool fits = true;
    const bool covered = state_.VisitOwners(run, [&](const OwnedRun& owned) {
      fits = fits && owned.run.birth == run.birth && !state_.owners[owned.owner].is_job;
    });
    if (!covered || !fits || state_.referenced.CountIn(run.address, run.end()) != run.sectors) {
      state_.Add("I5", name,
                 StrCat("the deadlist holds ", Describe(run), ", which no snapshot references"));
    }
  }

  absl::Status CheckBuckets(const std::string& name, DeadlistId list) {
    const auto buckets = DeadList::Buckets(state_.txn, list);
    if (!buckets.ok()) return state_.Absorb(buckets.status(), name);
    for (const DeadBucket& bucket : *buckets) {
      std::vector<LogEntry> entries;
      const absl::Status status = PointerLog::ReadAll(state_.txn, bucket.log, &entries);
      if (!status.ok()) {
        RETURN_IF_ERROR(state_.Absorb(status, name));
        continue;
      }
      for (const LogEntry& entry : entries) {
        if (entry.run.birth > bucket.start &&
            GreatestBelow(fences_, entry.run.birth) <= bucket.start) {
          continue;
        }
        state_.Add(
            "I5", name,
            StrCat(Describe(entry.run), " do not belong into the bucket from txg ", bucket.start));
      }
    }
    return absl::OkStatus();
  }

  CheckState& state_;
  std::vector<Txg> fences_;  // of the owner at hand: snapshots below it
};

// Counts who holds each log, and whose list each holder is.
class LogChecker {
 public:
  explicit LogChecker(CheckState& state) : state_(state) {}

  absl::Status Check() {
    std::set<uint64_t> livelists;
    std::set<uint64_t> deadlists;
    for (const auto& [id, dataset] : state_.datasets) {
      livelists.insert(static_cast<uint64_t>(dataset.livelist));
      deadlists.insert(static_cast<uint64_t>(dataset.deadlist));
    }
    for (const auto& [id, snapshot] : state_.snapshots) {
      deadlists.insert(static_cast<uint64_t>(snapshot.deadlist));
    }
    for (const auto& [id, job] : state_.jobs) {
      livelists.insert(static_cast<uint64_t>(job.livelist));
      deadlists.insert(static_cast<uint64_t>(job.deadlist));
    }
    RETURN_IF_ERROR(CountHolders(Table::kSublists, "livelist", livelists));
    RETURN_IF_ERROR(CountHolders(Table::kDeadBuckets, "deadlist", deadlists));
    state_.ExpectSum("livelist_sublists", "pool", state_.pool.livelist_sublists, sublists_);
    state_.ExpectSum("livelist_entries", "pool", state_.pool.livelist_entries, entries_);
    RETURN_IF_ERROR(CompareHolders());
    return FindOrphans();
  }

 private:
  absl::Status CountHolders(Table table, std::string_view what, const std::set<uint64_t>& known) {
    MetaCursor cursor(state_.txn, table);
    for (cursor.Seek(""); cursor.valid(); cursor.Next()) {
      const std::string_view key = cursor.key();
      const auto list = KeyNumber<uint64_t>(key, 0);
      const std::string name = StrCat(what, " #", list);
      if (!known.contains(list)) state_.Add("logs", name, "the list belongs to nobody");
      if (key.size() == 24) {
        ++holders_[KeyNumber<LogId>(key, 16)];
        continue;
      }
      SublistRecord record;
      Decoder decoder(cursor.value());
      decoder.Get(&record);
      RETURN_IF_ERROR(state_.Absorb(decoder.Finish(name), name));
      ++holders_[record.log];
      ++sublists_;
      entries_ += record.entries;
    }
    return state_.Absorb(cursor.status(), what);
  }

  absl::Status CompareHolders() {
    absl::flat_hash_map<LogId, uint32_t> recorded;
    MetaCursor cursor(state_.txn, Table::kLogHolders);
    for (cursor.Seek(""); cursor.valid(); cursor.Next()) {
      uint32_t count = 0;
      Decoder decoder(cursor.value());
      decoder.Get(&count);
      recorded[KeyNumber<LogId>(cursor.key(), 0)] = count;
    }
    RETURN_IF_ERROR(state_.Absorb(cursor.status(), "log holders"));
    for (const auto& [log, holders] : holders_) {
      const auto it = recorded.find(log);
      const uint32_t expected = it == recorded.end() ? 1 : it->second;
      if (expected != holders) {
        state_.Add("logs", LogName(log),
                   StrCat("has ", holders, " holders, recorded are ", expected));
      }
    }
    for (const auto& [log, count] : recorded) {
      if (!holders_.contains(log)) {
        state_.Add("logs", LogName(log), StrCat("has no holder, recorded are ", count));
      }
    }
    return absl::OkStatus();
  }

  // Logs that nobody holds and nobody is going to drop.
  absl::Status FindOrphans() {
    MetaCursor cursor(state_.txn, Table::kLogs);
    cursor.Seek("");
    while (cursor.valid()) {
      const auto log = KeyNumber<LogId>(cursor.key(), 0);
      ASSIGN_OR_RETURN(const auto dropped, state_.txn.Get(Table::kDroppedLogs, Key(log)));
      if (!holders_.contains(log) && !dropped.has_value()) {
        state_.Add("logs", LogName(log), "nobody holds this log, and it is not to be dropped");
      }
      if (holders_.contains(log) && dropped.has_value()) {
        state_.Add("logs", LogName(log), "is to be dropped and has a holder");
      }
      cursor.Seek(Key(static_cast<uint64_t>(log) + 1));
    }
    return state_.Absorb(cursor.status(), "logs");
  }

  static std::string LogName(LogId log) { return StrCat("log #", static_cast<uint64_t>(log)); }

  CheckState& state_;
  absl::flat_hash_map<LogId, uint32_t> holders_;
  uint64_t sublists_ = 0;
  uint64_t entries_ = 0;  // in the sublists' own logs
};

}  // namespace

absl::Status CollectOwned(CheckState& state) { return OwnedCollector(state).Collect(); }
absl::Status CheckDeadlists(CheckState& state) { return DeadlistChecker(state).Check(); }
absl::Status CheckLogHolders(CheckState& state) { return LogChecker(state).Check(); }

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// Deadlists, and whether the logs behind all lists are held.
#include <algorithm>

#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/checker_state.h"
#include "engine/tree/dead_list.h"
#include "engine/tree/live_list.h"
#include "engine/trim.h"

namespace cowshed::engine {
namespace {

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
    for (const auto& [id, rebuild] : state_.rebuilds) {
      livelists.insert(static_cast<uint64_t>(rebuild.shadow));
    }
    for (const LivelistId list : state_.dropped_lists) {
      livelists.insert(static_cast<uint64_t>(list));
    }
    RETURN_IF_ERROR(CountHolders(Table::kSublists, "livelist", livelists));
    RETURN_IF_ERROR(CountHolders(Table::kDeadBuckets, "deadlist", deadlists));
    RETURN_IF_ERROR(CountShadowLogs());
    state_.ExpectSum("livelist_sublists", "pool", state_.pool.livelist_sublists, sublists_);
    state_.ExpectSum("livelist_entries", "pool", state_.pool.livelist_entries, entries_);
    RETURN_IF_ERROR(CompareHolders());
    return FindOrphans();
  }

 private:
  absl::Status CountHolders(Table table, std::string_view what, const std::set<uint64_t>& known) {
    MetaCursor cursor(state_.txn, table);
    for (cursor.Seek(""); cursor.valid() || absl::IsDataLoss(cursor.status()); cursor.Next()) {
      const std::string_view key = cursor.key();
      const auto list = KeyNumber<uint64_t>(key, 0);
      const std::string name = StrCat(what, " #", list);
      if (!known.contains(list)) state_.Add("logs", name, "the list belongs to nobody");
      if (key.size() == 24) {
        ++holders_[KeyNumber<LogId>(key, 16)];
        continue;
      }
      if (!cursor.valid()) {
        RETURN_IF_ERROR(state_.Absorb(cursor.status(), name));
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

  // A condense holds the log it writes, and so does one that a crash has interrupted.
  absl::Status CountShadowLogs() {
    const Key prefix(StateKey::kShadowLog);
    MetaCursor cursor(state_.txn, Table::kStates);
    for (cursor.Seek(prefix); cursor.ValidFor(prefix); cursor.Next()) {
      ++holders_[KeyNumber<LogId>(cursor.key(), 1)];
    }
    return state_.Absorb(cursor.status(), "states");
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

absl::Status CheckDeadlists(CheckState& state) { return DeadlistChecker(state).Check(); }
absl::Status CheckLogHolders(CheckState& state) { return LogChecker(state).Check(); }

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
#include "engine/tree/live_list.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "engine/store/codec.h"
#include "engine/tree/live_list_condense.h"
#include "engine/tree/live_list_forget.h"
#include "tests/engine/tree/log_entries.h"
#include "tests/engine/tree/meta_fixture.h"

namespace cowshed::engine {
namespace {

constexpr LivelistId kList{7};
constexpr uint32_t kBlockSectors = 4;

class LiveListTest : public MetaFixture {
 protected:
  absl::Status Append(Txg fence, Txg now, const std::vector<LogEntry>& entries,
                      uint64_t max_entries = 1000, LivelistId list = kList) {
    return LiveList::Append(*txn_, list, fence, now, kBlockSectors, entries,
                            {.max_entries = max_entries}, ids_)
        .status();
  }
  std::vector<Txg> Starts(LivelistId list = kList) { return ValueOf(SublistStarts(*txn_, list)); }
  Runs SurvivorsOf(Txg start, LivelistId list = kList) {
    return ValueOf(LiveList::Survivors(*txn_, list, start));
  }
  // As SurvivorsOf, in bites of little memory.
  Runs SurvivorsInBites(Txg start) {
    Runs runs;
    for (uint64_t from = 0; from != kEndOfAddresses;) {
      const SurvivorBite bite = ValueOf(LiveList::SurvivorsFrom(
          *txn_, kList, start, from, /*memory_bytes=*/20 * SurvivorWindow::kBytesPerEntry));
      runs.insert(runs.end(), bite.runs.begin(), bite.runs.end());
      from = bite.next_address;
    }
    JoinNeighbours(&runs);
    return runs;
  }
  Sublist Find(Txg start) {
    const auto found = ValueOf(LiveList::List(*txn_, kList, start, 1));
    return found.empty() ? Sublist() : found.front();
  }
  // A log of killed runs, as a deadlist bucket has one.
  LogId DeadLog(const Runs& runs, SectorSums* sums) {
    std::vector<LogEntry> entries;
    for (const engine::Run& run : runs) {
      entries.push_back({.op = LogOp::kDead, .run = run});
      sums->Add(run);
    }
    const auto log = ids_.Take<LogId>();
    EXPECT_OK(PointerLog::Append(*txn_, log, entries).status());
    return log;
  }
  bool IsDropped(LogId log) {
    return ValueOf(txn_->Get(Table::kDroppedLogs, Key(log))).has_value();
  }
};

TEST_F(LiveListTest, TheFirstSublistStartsAtTheFence) {
  ASSERT_OK(Append(0, 5, {Alloc(100, 8, 5)}));
  ASSERT_OK(Append(0, 6, {Alloc(200, 8, 6), Free(100, 4, 5)}));
  EXPECT_EQ(Starts(), (std::vector<Txg>{0}));
  const SublistRecord record = Find(0).record;
  EXPECT_EQ(record.entries, 3u);
  EXPECT_EQ(record.allocated.data_sectors, 16u);
  EXPECT_EQ(record.freed.data_sectors, 4u);
  EXPECT_EQ(record.live_sectors(), 12u);
  EXPECT_EQ(SurvivorsOf(0), (Runs{Alloc(104, 4, 5).run, Alloc(200, 8, 6).run}));
}

TEST_F(LiveListTest, ASublistNeverStraddlesASnapshot) {
  ASSERT_OK(Append(3, 5, {Alloc(100, 8, 5)}));
  ASSERT_OK(Append(5, 7, {Alloc(200, 8, 7)}));  // a snapshot was taken in txg 5
  EXPECT_EQ(Starts(), (std::vector<Txg>{3, 5}));
  // FREEs alone start nothing, and go to the sublist of their block's birth.
  ASSERT_OK(Append(7, 8, {Free(200, 4, 7)}));
  EXPECT_EQ(Starts(), (std::vector<Txg>{3, 5}));
  EXPECT_EQ(Find(5).record.freed.data_sectors, 4u);
}

TEST_F(LiveListTest, AFullSublistIsFollowedByANewOne) {
  // One run of 3 blocks counts as 3 of max_entries; a node as 1.
  ASSERT_OK(Append(0, 5, {Alloc(100, 3 * kBlockSectors, 5)}, 3));
  EXPECT_EQ(Starts(), (std::vector<Txg>{0}));
  ASSERT_OK(Append(0, 6, {Alloc(200, 1, 6, BlockKind::kNode)}, 3));
  EXPECT_EQ(Starts(), (std::vector<Txg>{0, 6}));
  ASSERT_OK(Append(0, 7, {Alloc(300, 4, 7), Free(100, 4, 5)}, 3));
  EXPECT_EQ(Starts(), (std::vector<Txg>{0, 6}));
  EXPECT_EQ(SurvivorsOf(6), (Runs{Alloc(300, 4, 7).run}));
}

TEST_F(LiveListTest, ATxgThatAppendsTwiceIsNotSplit) {
  ASSERT_OK(Append(0, 5, {Alloc(100, 4 * kBlockSectors, 5)}, 3));
  ASSERT_OK(Append(0, 5, {Alloc(200, 4 * kBlockSectors, 5), Free(100, 4, 5)}, 3));
  EXPECT_EQ(Find(0).record.entries, 3u);
  EXPECT_EQ(SurvivorsOf(0).size(), 2u);
  EXPECT_TRUE(SurvivorsOf(5).empty());
}

TEST_F(LiveListTest, AFreeThatNoSublistCoversIsDataLoss) {
  EXPECT_TRUE(absl::IsDataLoss(Append(3, 5, {Free(100, 4, 4)})));
  ASSERT_OK(Append(3, 5, {Alloc(100, 4, 5)}));
  EXPECT_TRUE(absl::IsDataLoss(Append(3, 6, {Free(100, 4, 3)})));
}

TEST_F(LiveListTest, FreeingMoreThanWasAllocatedIsDataLoss) {
  ASSERT_OK(Append(3, 5, {Alloc(100, 4, 5)}));
  EXPECT_TRUE(absl::IsDataLoss(Append(3, 6, {Free(100, 8, 5)})));
}

TEST_F(LiveListTest, AttachedLogsCountAsFrees) {
  ASSERT_OK(Append(0, 5, {Alloc(100, 8, 5), Alloc(200, 8, 5)}));
  ASSERT_OK(Append(5, 7, {Alloc(300, 8, 7)}));
  SectorSums sums;
  const LogId log = DeadLog({Alloc(104, 4, 5).run, Alloc(200, 2, 5).run}, &sums);
  ASSERT_OK(LiveList::Attach(*txn_, kList, 5, log, sums));
  EXPECT_EQ(Starts(), (std::vector<Txg>{0, 5}));
  EXPECT_EQ(Find(0).record.attached_logs, 1u);
  EXPECT_EQ(Find(0).record.live_sectors(), 10u);
  EXPECT_EQ(SurvivorsOf(0), (Runs{Alloc(100, 4, 5).run, Alloc(202, 6, 5).run}));
  EXPECT_OK(LiveList::Verify(*txn_, kList, 0));
  // Entries go past the attached log to the right sublist.
  ASSERT_OK(Append(5, 8, {Free(300, 4, 7)}));
  EXPECT_EQ(SurvivorsOf(5), (Runs{Alloc(304, 4, 7).run}));

  EXPECT_TRUE(absl::IsDataLoss(LiveList::Attach(*txn_, kList, 5, log, sums)));
  EXPECT_TRUE(absl::IsNotFound(LiveList::Attach(*txn_, LivelistId{8}, 5, log, sums)));
}

TEST_F(LiveListTest, RemoveReleasesAllLogsOfASublist) {
  ASSERT_OK(Append(0, 5, {Alloc(100, 8, 5)}));
  ASSERT_OK(Append(5, 6, {Alloc(200, 8, 6)}));
  SectorSums sums;
  const LogId shared = DeadLog({Alloc(100, 1, 5).run}, &sums);
  EXPECT_OK(PointerLog::Share(*txn_, shared));
  ASSERT_OK(LiveList::Attach(*txn_, kList, 5, shared, sums));
  const LogId own = Find(0).record.log;
  EXPECT_OK(LiveList::Remove(*txn_, kList, 0).status());
  EXPECT_EQ(Starts(), (std::vector<Txg>{5}));
  EXPECT_TRUE(IsDropped(own));
  EXPECT_FALSE(IsDropped(shared));
  EXPECT_OK(PointerLog::Release(*txn_, shared));
  EXPECT_TRUE(IsDropped(shared));
  EXPECT_TRUE(absl::IsNotFound(LiveList::Remove(*txn_, kList, 0).status()));
}

TEST_F(LiveListTest, MoveTakesSublistsWithTheirAttachedLogs) {
  ASSERT_OK(Append(0, 5, {Alloc(100, 8, 5)}));
  ASSERT_OK(Append(5, 6, {Alloc(200, 8, 6)}));
  ASSERT_OK(Append(6, 9, {Alloc(300, 8, 9)}));
  SectorSums sums;
  const LogId log = DeadLog({Alloc(200, 1, 6).run}, &sums);
  ASSERT_OK(LiveList::Attach(*txn_, kList, 6, log, sums));
  const LivelistId other{8};
  ASSERT_OK(LiveList::Move(*txn_, kList, other, 5, 6));
  EXPECT_EQ(Starts(), (std::vector<Txg>{0, 6}));
  EXPECT_EQ(Starts(other), (std::vector<Txg>{5}));
  EXPECT_EQ(SurvivorsOf(5, other), (Runs{Alloc(201, 7, 6).run}));
  // Back again, as a promote and its undoing.
  ASSERT_OK(LiveList::Move(*txn_, other, kList, 0, 100));
  EXPECT_EQ(Starts(), (std::vector<Txg>{0, 5, 6}));
  // Two sublists of one start cannot be in one list.
  ASSERT_OK(Append(0, 5, {Alloc(900, 8, 5)}, 1000, other));
  EXPECT_TRUE(absl::IsDataLoss(LiveList::Move(*txn_, other, kList, 0, 100)));
}

TEST_F(LiveListTest, AViewIsReadAsItWasWhateverIsAppended) {
  ASSERT_OK(Append(0, 5, {Alloc(100, 8, 5)}));
  ASSERT_OK(Append(0, 6, {Free(100, 2, 5)}));
  const SublistView view = ValueOf(LiveList::View(*txn_, kList, 0));
  ASSERT_OK(Append(0, 7, {Alloc(200, 8, 7), Free(102, 2, 5)}));
  SectorSums sums;
  ASSERT_OK(LiveList::Attach(*txn_, kList, 5, DeadLog({Alloc(104, 1, 5).run}, &sums), sums));
  const SurvivorBite bite = ValueOf(LiveList::SurvivorsFrom(*txn_, kList, view, 0, 1 << 20));
  EXPECT_EQ(bite.runs, (Runs{Alloc(102, 6, 5).run}));
  EXPECT_TRUE(bite.at_end());
  EXPECT_EQ(SurvivorsOf(0), (Runs{Alloc(105, 3, 5).run, Alloc(200, 8, 7).run}));
}

TEST_F(LiveListTest, OnlyAnEmptySublistIsDropped) {
  ASSERT_OK(Append(0, 5, {Alloc(100, 8, 5)}));
  EXPECT_FALSE(ValueOf(LiveList::DropEmpty(*txn_, kList, 0)));
  EXPECT_FALSE(ValueOf(LiveList::DropEmpty(*txn_, kList, 1)));
  ASSERT_OK(Append(0, 6, {Free(100, 8, 5)}));
  EXPECT_FALSE(ValueOf(LiveList::DropEmpty(*txn_, kList, 0)));  // it has two entries
  std::vector<SublistView> views = {ValueOf(LiveList::View(*txn_, kList, 0))};
  ShadowLog shadow;
  shadow.log = ids_.Take<LogId>();
  EXPECT_TRUE(ValueOf(CarryOver(*txn_, kList, 10, &views, &shadow)));
  ASSERT_OK(Swap(*txn_, kList, views, shadow).status());
  EXPECT_EQ(Find(0).record.entries, 0u);
  EXPECT_TRUE(ValueOf(LiveList::DropEmpty(*txn_, kList, 0)));
  EXPECT_TRUE(IsDropped(shadow.log));
  EXPECT_TRUE(Starts().empty());
}

// The last line of defence: what was read and what is there now must add up.
TEST_F(LiveListTest, AShadowThatDoesNotAddUpIsNotSwappedIn) {
  ASSERT_OK(Append(0, 5, {Alloc(100, 8, 5), Alloc(200, 8, 5)}));
  std::vector<SublistView> views = {ValueOf(LiveList::View(*txn_, kList, 0))};
  ShadowLog shadow;
  shadow.log = ids_.Take<LogId>();
  ASSERT_OK(WriteSurvivors(*txn_, Runs{Alloc(100, 8, 5).run}, &shadow));
  EXPECT_TRUE(ValueOf(CarryOver(*txn_, kList, 10, &views, &shadow)));
  EXPECT_TRUE(absl::IsDataLoss(Swap(*txn_, kList, views, shadow).status()));
}

TEST_F(LiveListTest, AppendTellsWhatHasBecomeWorthCondensing) {
  LiveListOptions options;
  options.condense_min_entries = 3;
  const auto append = [&](Txg now, const std::vector<LogEntry>& entries) {
    return ValueOf(LiveList::Append(*txn_, kList, 0, now, kBlockSectors, entries, options, ids_))
        .to_condense;
  };
  EXPECT_EQ(append(5, {Alloc(100, 8, 5), Alloc(200, 8, 5)}), std::vector<Txg>{});
  EXPECT_EQ(append(6, {Free(100, 8, 5)}), std::vector<Txg>{0});
}

TEST_F(LiveListTest, ListIsBoundedAndResumable) {
  for (Txg txg = 1; txg <= 9; ++txg) {
    ASSERT_OK(Append(txg - 1, txg, {Alloc(100 * txg, 8, txg)}));
  }
  EXPECT_EQ(ValueOf(LiveList::List(*txn_, kList, 0, 4)).size(), 4u);
  const auto rest = ValueOf(LiveList::List(*txn_, kList, 4));
  ASSERT_EQ(rest.size(), 5u);
  EXPECT_EQ(rest.front().start, 4u);
  EXPECT_TRUE(ValueOf(LiveList::List(*txn_, LivelistId{6})).empty());
}

TEST_F(LiveListTest, ALogThatDiffersFromItsRecordIsDataLoss) {
  std::vector<LogEntry> entries;
  for (uint64_t i = 0; i < 400; ++i) {
    entries.push_back(Alloc(100 + 10 * i, 4, 5));
  }
  ASSERT_OK(Append(0, 5, entries));
  ASSERT_OK(LiveList::Verify(*txn_, kList, 0));
  const LogId log = Find(0).record.log;
  const Key last(log, uint32_t{2});
  const std::string good(*ValueOf(txn_->Get(Table::kLogs, last)));
  const auto is_damaged = [this] {
    return absl::IsDataLoss(LiveList::Verify(*txn_, kList, 0)) &&
           absl::IsDataLoss(LiveList::Survivors(*txn_, kList, 0).status());
  };
  ASSERT_OK(txn_->Delete(Table::kLogs, last));  // its end is gone
  EXPECT_TRUE(is_damaged());
  std::string longer = good;
  longer[16] = 5;  // other sectors
  ASSERT_OK(txn_->Put(Table::kLogs, last, longer));
  EXPECT_TRUE(is_damaged());
  std::string dead = good;
  dead[6] = static_cast<char>(LogOp::kDead);
  ASSERT_OK(txn_->Put(Table::kLogs, last, dead));
  EXPECT_TRUE(is_damaged());
  ASSERT_OK(txn_->Put(Table::kLogs, last, good));
  EXPECT_FALSE(is_damaged());
}

// Random txgs with snapshots, frees, attached logs, and sublists that move away, against the set of
// what lives.
class LiveListModel : public LiveListTest {
 protected:
  void Reset(uint64_t max_entries) {
    now_ = fence_ = 0;
    max_entries_ = max_entries;
    fences_.clear();
    live_.clear();
    condensing_ = {};
  }

  void RunTxg(Random& random) {
    const Txg now = ++now_;
    std::vector<LogEntry> entries;
    for (uint64_t i = random.Below(6); i > 0; --i) {
      const LogEntry entry = Alloc(address_, static_cast<uint32_t>(random.Between(1, 12)), now,
                                   random.OneIn(4) ? BlockKind::kNode : BlockKind::kData);
      address_ += entry.run.sectors + random.Below(2);
      AddSectors(entry.run, &live_);
      entries.push_back(entry);
    }
    for (uint64_t i = random.Below(6); i > 0; --i) {
      if (const auto run = TakeLive(random, fence_, now - 1)) {
        entries.push_back({.op = LogOp::kFree, .run = *run});
      }
    }
    std::shuffle(entries.begin(), entries.end(), random.generator());
    // A txg may append more than once.
    const auto middle = entries.begin() + static_cast<ptrdiff_t>(random.Below(entries.size() + 1));
    ASSERT_OK(Append(fence_, now, {entries.begin(), middle}, max_entries_));
    ASSERT_OK(Append(fence_, now, {middle, entries.end()}, max_entries_));
    if (random.OneIn(6)) {
      fence_ = now;
      fences_.insert(now);
    }
  }

  // A snapshot goes: what it held alone becomes FREEs of older sublists.
  void AttachSome(Random& random) {
    const auto sublists = ValueOf(LiveList::List(*txn_, kList));
    if (sublists.empty()) {
      return;
    }
    const size_t chosen = random.Below(sublists.size());
    const Txg first = sublists[chosen].start + 1;
    const Txg last = chosen + 1 < sublists.size() ? sublists[chosen + 1].start : now_;
    Runs dead;
    for (uint64_t i = random.Below(4); i > 0; --i) {
      if (const auto run = TakeLive(random, first - 1, last)) {
        dead.push_back(*run);
      }
    }
    if (!dead.empty()) {
      SectorSums sums;
      const LogId log = DeadLog(dead, &sums);
      ASSERT_OK(LiveList::Attach(*txn_, kList, dead.front().birth, log, sums));
    }
  }

  // Takes a stretch born in (after, upto] out of what lives.
  std::optional<engine::Run> TakeLive(Random& random, Txg after, Txg upto) {
    std::vector<Sector> candidates;
    for (const Sector& sector : live_) {
      if (std::get<1>(sector) > after && std::get<1>(sector) <= upto) {
        candidates.push_back(sector);
      }
    }
    if (candidates.empty()) {
      return std::nullopt;
    }
    const auto [address, birth, kind] = candidates[random.Below(candidates.size())];
    engine::Run run = {.address = address, .birth = birth, .sectors = 0, .kind = kind};
    const uint64_t most = random.Between(1, 10);
    while (run.sectors < most && live_.erase({run.end(), birth, kind}) == 1) {
      ++run.sectors;
    }
    return run;
  }

  // Rollback to the newest fence: the sublists from there on go to another list.
  void RollBack() {
    const LivelistId job{100};
    ASSERT_OK(LiveList::Move(*txn_, kList, job, fence_, now_ + 1));
    std::set<Sector> moved;
    for (const Txg start : Starts(job)) {
      for (const engine::Run& run : SurvivorsOf(start, job)) {
        AddSectors(run, &moved);
      }
      ASSERT_OK(LiveList::Remove(*txn_, job, start).status());
    }
    for (auto sector = live_.begin(); sector != live_.end();) {
      const bool is_younger = std::get<1>(*sector) > fence_;
      EXPECT_EQ(moved.contains(*sector), is_younger);
      sector = is_younger ? live_.erase(sector) : std::next(sector);
    }
  }

  // Reads some neighbours that no snapshot holds apart, to be swapped some time later.
  void BeginCondense(Random& random) {
    const auto sublists = ValueOf(LiveList::List(*txn_, kList));
    condensing_ = {};
    if (sublists.empty()) {
      return;
    }
    const size_t first = random.Below(sublists.size());
    for (size_t i = first; i < sublists.size() && i <= first + random.Below(4); ++i) {
      const auto fence = fences_.upper_bound(sublists[first].start);
      if (fence != fences_.end() && *fence <= sublists[i].start) {
        break;
      }
      condensing_.views.push_back(ValueOf(LiveList::View(*txn_, kList, sublists[i].start)));
      const Runs runs = SurvivorsOf(sublists[i].start);
      condensing_.survivors.insert(condensing_.survivors.end(), runs.begin(), runs.end());
    }
  }

  void EndCondense(Random& random) {
    Condensing& done = condensing_;
    if (done.views.empty() || !ValueOf(IsUnchanged(*txn_, kList, done.views))) {
      ++cancelled_;
      return;
    }
    ShadowLog shadow;
    shadow.log = ids_.Take<LogId>();
    const size_t half = done.survivors.size() / 2;
    ASSERT_OK(WriteSurvivors(*txn_, std::span(done.survivors).first(half), &shadow));
    ASSERT_OK(WriteSurvivors(*txn_, std::span(done.survivors).subspan(half), &shadow));
    for (bool more = true; more;) {
      more = !ValueOf(CarryOver(*txn_, kList, 1 + random.Below(5), &done.views, &shadow));
    }
    const SublistRecord record = ValueOf(Swap(*txn_, kList, done.views, shadow));
    EXPECT_EQ(Find(done.views.front().start).record.log, shadow.log);
    EXPECT_EQ(record.entries, ValueOf(PointerLog::Length(*txn_, shadow.log)));
    for (const SublistView& view : done.views) {
      EXPECT_TRUE(IsDropped(view.record.log));
      for (const LogId log : view.attached) {
        EXPECT_TRUE(IsDropped(log));
      }
    }
    ++swapped_;
    condensing_ = {};
  }

  void Check() {
    const auto sublists = ValueOf(LiveList::List(*txn_, kList));
    std::set<Sector> found;
    for (size_t i = 0; i < sublists.size(); ++i) {
      const Txg start = sublists[i].start;
      const Txg next = i + 1 < sublists.size() ? sublists[i + 1].start : now_;
      ASSERT_OK(LiveList::Verify(*txn_, kList, start));
      const auto fence = fences_.upper_bound(start);
      const Txg last = fence == fences_.end() ? next : std::min(next, *fence);
      SectorSums sums;
      for (const engine::Run& run : SurvivorsOf(start)) {
        EXPECT_GT(run.birth, start) << "I6";
        EXPECT_LE(run.birth, last) << "I6, or straddles a snapshot";
        sums.Add(run);
        AddSectors(run, &found);
      }
      EXPECT_EQ(sums.total(), sublists[i].record.live_sectors());
      EXPECT_EQ(SurvivorsInBites(start), SurvivorsOf(start));
    }
    EXPECT_EQ(found, live_);
  }

  Txg now_ = 0;
  Txg fence_ = 0;
  uint64_t address_ = 100;
  uint64_t max_entries_ = 10;
  std::set<Txg> fences_;
  std::set<Sector> live_;
  struct Condensing {
    std::vector<SublistView> views;
    Runs survivors;
  };
  Condensing condensing_;
  uint64_t swapped_ = 0;
  uint64_t cancelled_ = 0;
};

TEST_F(LiveListModel, RandomTxgsMatchASetOfSectors) {
  for (const uint64_t seed : TestSeeds(100)) {
    SCOPED_TRACE(seed);
    Rewind();
    Random random(seed);
    Reset(random.Between(1, 40));
    for (int step = 0; step < 80 && !HasFatalFailure(); ++step) {
      RunTxg(random);
      if (random.OneIn(5)) {
        AttachSome(random);
      }
      if (random.OneIn(15) && fence_ < now_) {
        RollBack();
      }
      if (random.OneIn(4)) {
        EndCondense(random);
        BeginCondense(random);
      }
      if (random.OneIn(4)) {
        Check();
      }
    }
    Check();
  }
  EXPECT_GT(swapped_, 500u);
  EXPECT_GT(cancelled_, 50u);
}

}  // namespace
}  // namespace cowshed::engine

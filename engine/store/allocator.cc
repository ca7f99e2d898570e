// SPDX-License-Identifier: Apache-2.0
#include "engine/store/allocator.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "engine/base/check.h"
#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/store/free_log.h"
#include "engine/store/region_bitmap.h"
#include "engine/store/region_ranking.h"
#include "engine/store/region_records.h"
#include "engine/store/region_table.h"

namespace cowshed::engine {
namespace {

std::string Name(const Run& run) { return StrCat("sectors [", run.address, ", ", run.end(), ")"); }

// Offset of an address in its region.
uint32_t OffsetOf(uint64_t address) { return static_cast<uint32_t>(address % kRegionSectors); }

// Calls `visit` for the parts of `run` in each region it touches.
template <typename Visit>
void ForEachRegion(Run run, Visit visit) {
  while (run.sectors > 0) {
    Run part = run;
    part.sectors = std::min(run.sectors, kRegionSectors - OffsetOf(run.address));
    visit(part);
    run.address += part.sectors;
    run.sectors -= part.sectors;
  }
}

absl::Status CheckCapacity(uint64_t capacity_sectors) {
  if (capacity_sectors <= kFirstDataSector || capacity_sectors > kMaxCapacitySectors) {
    return absl::InvalidArgumentError(StrCat("a pool of ", capacity_sectors, " sectors"));
  }
  return absl::OkStatus();
}

}  // namespace

struct Allocator::State {
  explicit State(const AllocatorOptions& options) : table(options.regions_cached) {}

  RegionTable table;
  FreeLog log;
  RegionRanking ranking;

  // Next-fit: the region allocated from, and how far it is used up. `longest_passed` is the longest
  // free run that lies before `cursor`.
  std::optional<uint32_t> current;
  uint32_t cursor = 0;
  uint32_t longest_passed = 0;

  // Free on disk, yet not allocatable: a punch is at work on it.
  struct Withheld {
    RegionBitmap bitmap;
    uint32_t sectors = 0;
  };
  std::map<uint64_t, uint32_t> withheld_runs;  // address -> sectors
  absl::flat_hash_map<uint32_t, Withheld> withheld;
  uint64_t withheld_sectors = 0;

  absl::flat_hash_set<uint32_t> damaged;
  uint64_t damaged_sectors = 0;  // allocatable, were they not damaged

  uint32_t Allocatable(uint32_t region) const {
    const auto it = withheld.find(region);
    return table.sum(region).free_sectors - (it == withheld.end() ? 0 : it->second.sectors);
  }
  void Withhold(uint64_t address, uint32_t sectors);
  void MarkDamaged(uint32_t region);
  // After sectors of `region` became allocatable: its longest run is unknown again.
  void RaiseBound(uint32_t region);
  void ResetRanking();
};

void Allocator::State::Withhold(uint64_t address, uint32_t sectors) {
  withheld_runs.emplace(address, sectors);
  Withheld& entry = withheld[RegionOf(address)];
  entry.bitmap.Set(OffsetOf(address), OffsetOf(address) + sectors);
  entry.sectors += sectors;
  withheld_sectors += sectors;
}

void Allocator::State::MarkDamaged(uint32_t region) {
  if (damaged.insert(region).second) {
    damaged_sectors += Allocatable(region);
    ranking.Set(region, 0);
  }
}

void Allocator::State::RaiseBound(uint32_t region) {
  if (damaged.contains(region)) {
    return;
  }
  ranking.Set(region, Allocatable(region));
  if (current == region) {
    longest_passed = Allocatable(region);
  }
}

void Allocator::State::ResetRanking() {
  current.reset();
  ranking.Reset(table.count());
  for (uint32_t region = 0; region < table.count(); ++region) {
    RaiseBound(region);
  }
}

Allocator::Allocator(const AllocatorOptions& options)
    : options_(options), state_(std::make_unique<State>(options)) {}

Allocator::~Allocator() = default;

void Allocator::PublishCounters() {
  const State& state = *state_;
  const auto publish = [](std::atomic<uint64_t>& counter, uint64_t value) {
    counter.store(value, std::memory_order_relaxed);
  };
  publish(capacity_sectors_, state.table.capacity_sectors());
  publish(allocated_sectors_, state.table.capacity_sectors() - state.table.free_sectors());
  publish(free_logged_sectors_, state.log.sectors());
  publish(free_log_runs_, state.log.runs());
  publish(available_sectors_,
          state.table.free_sectors() - state.withheld_sectors - state.damaged_sectors);
  publish(withheld_sectors_, state.withheld_sectors);
  publish(damaged_regions_, state.damaged.size());
}

absl::Status Allocator::Create(WriteTxn& txn, uint64_t capacity_sectors) {
  RETURN_IF_ERROR(Rebuild(txn, capacity_sectors, {}));
  return Reload(txn, capacity_sectors);
}

absl::Status Allocator::Reload(const MetaTxn& txn, uint64_t capacity_sectors) {
  RETURN_IF_ERROR(CheckCapacity(capacity_sectors));
  State& state = *state_;
  RETURN_IF_ERROR(state.table.Load(txn, capacity_sectors));
  RETURN_IF_ERROR(state.log.Load(txn, capacity_sectors, state.table.sums()));
  state.damaged.clear();
  state.damaged_sectors = 0;
  const std::map<uint64_t, uint32_t> before = std::exchange(state.withheld_runs, {});
  state.withheld.clear();
  state.withheld_sectors = 0;
  for (const auto& [address, sectors] : before) {
    // Nothing else can have taken what was withheld: clear bits tell that its flush was committed.
    const uint32_t region = RegionOf(address);
    const uint32_t offset = OffsetOf(address);
    if (region >= state.table.count()) {
      continue;
    }
    RegionBitmap copy;
    const absl::StatusOr<const RegionBitmap*> bitmap = state.table.Peek(txn, region, &copy);
    if (!bitmap.ok() && !absl::IsDataLoss(bitmap.status())) {
      return bitmap.status();
    }
    // From a damaged region nothing is allocated, withheld or not.
    if (bitmap.ok() && (*bitmap)->AllClear(offset, offset + sectors)) {
      state.Withhold(address, sectors);
    }
  }
  state.ResetRanking();
  PublishCounters();
  return absl::OkStatus();
}

absl::Status Allocator::Resize(WriteTxn& txn, uint64_t capacity_sectors) {
  RETURN_IF_ERROR(CheckCapacity(capacity_sectors));
  State& state = *state_;
  const auto in_use = [](uint32_t region) {
    return absl::FailedPreconditionError(
        StrCat("sectors in use at the end of the pool, in region ", region));
  };
  const uint64_t old_capacity_sectors = state.table.capacity_sectors();
  if (capacity_sectors < old_capacity_sectors) {
    const auto last_withheld = state.withheld_runs.rbegin();
    if (last_withheld != state.withheld_runs.rend() &&
        last_withheld->first + last_withheld->second > capacity_sectors) {
      return in_use(RegionOf(last_withheld->first));
    }
    const uint32_t first = RegionOf(capacity_sectors);
    for (uint32_t region = first + 1; region < state.table.count(); ++region) {
      if (state.table.sum(region).free_sectors != state.table.size(region) ||
          state.damaged.contains(region)) {
        return in_use(region);
      }
    }
    ASSIGN_OR_RETURN(const RegionBitmap* const bitmap, state.table.Bitmap(txn, first));
    if (!bitmap->AllClear(OffsetOf(capacity_sectors), state.table.size(first))) {
      return in_use(first);
    }
  }
  RETURN_IF_ERROR(state.table.Resize(txn, capacity_sectors, state.log.newest_txg()));
  state.damaged_sectors = 0;
  for (const uint32_t region : state.damaged) {
    state.damaged_sectors += state.Allocatable(region);
  }
  state.ResetRanking();
  PublishCounters();
  return absl::OkStatus();
}

absl::StatusOr<Run> Allocator::Allocate(WriteTxn& txn, uint32_t sectors, BlockKind kind,
                                        Txg birth) {
  COWSHED_CHECK(sectors > 0, "a run has sectors");
  State& state = *state_;
  while (true) {
    if (sectors > available_sectors_.load()) {
      return absl::ResourceExhaustedError(
          StrCat(sectors, " sectors wanted, ", available_sectors_.load(), " free"));
    }
    if (!state.current.has_value() || state.ranking.bound(*state.current) < sectors) {
      if (state.ranking.greatest_bound() < sectors) {
        return absl::NotFoundError(StrCat("no free run of ", sectors, " sectors"));
      }
      state.current = state.ranking.Best();
      state.cursor = 0;
      state.longest_passed = 0;
    }
    const uint32_t region = *state.current;
    const absl::StatusOr<const RegionBitmap*> bitmap = state.table.Bitmap(txn, region);
    if (absl::IsDataLoss(bitmap.status())) {
      state.MarkDamaged(region);
      PublishCounters();
      continue;
    }
    RETURN_IF_ERROR(bitmap.status());
    const auto withheld = state.withheld.find(region);
    const uint32_t end = state.table.size(region);
    const uint32_t begin = FindClearRun(
        **bitmap, withheld == state.withheld.end() ? nullptr : &withheld->second.bitmap,
        state.cursor, end, sectors, &state.longest_passed);
    if (begin == end) {
      state.ranking.Set(region, std::min(state.longest_passed, state.Allocatable(region)));
      state.current.reset();
      continue;
    }
    state.table.Allocate(region, begin, begin + sectors);
    state.cursor = begin + sectors;
    state.ranking.Set(region, std::min(state.ranking.bound(region), state.Allocatable(region)));
    PublishCounters();
    return Run{
        .address = RegionBegin(region) + begin, .birth = birth, .sectors = sectors, .kind = kind};
  }
}

absl::StatusOr<std::vector<Run>> Allocator::AllocatePieces(WriteTxn& txn, uint32_t sectors,
                                                           BlockKind kind, Txg birth) {
  std::vector<Run> pieces;
  while (sectors > 0) {
    if (sectors > available_sectors_.load()) {
      return absl::ResourceExhaustedError(
          StrCat(sectors, " sectors wanted, ", available_sectors_.load(), " free"));
    }
    // A failed attempt lowers the bound it was made with, so this ends.
    const uint32_t length = std::min(sectors, state_->ranking.greatest_bound());
    COWSHED_CHECK(length > 0, "available sectors lie in a ranked region");
    absl::StatusOr<Run> piece = Allocate(txn, length, kind, birth);
    if (absl::IsNotFound(piece.status())) {
      continue;
    }
    RETURN_IF_ERROR(piece.status());
    pieces.push_back(*piece);
    sectors -= length;
  }
  return pieces;
}

// The runs cut at region borders, by address, each proved to be taken and not freed before.
absl::StatusOr<std::vector<Run>> Allocator::CheckedPieces(const MetaTxn& txn,
                                                          std::span<const Run> runs) {
  State& state = *state_;
  std::vector<Run> pieces;
  for (const Run& run : runs) {
    if (run.sectors == 0 || run.address < kFirstDataSector ||
        run.address >= state.table.capacity_sectors() ||
        run.sectors > state.table.capacity_sectors() - run.address) {
      return absl::DataLossError(StrCat("free of ", Name(run), ", which the pool does not have"));
    }
    ForEachRegion(run, [&pieces](const Run& part) { pieces.push_back(part); });
  }
  std::sort(pieces.begin(), pieces.end(),
            [](const Run& a, const Run& b) { return a.address < b.address; });
  std::optional<uint32_t> loaded;
  const RegionBitmap* bitmap = nullptr;  // of `loaded`
  RegionBitmap copy;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Run& piece = pieces[i];
    const uint32_t region = RegionOf(piece.address);
    if (i > 0 && pieces[i - 1].end() > piece.address) {
      return absl::DataLossError(StrCat("double free of ", Name(piece), " in one txg"));
    }
    if (state.log.FindOverlap(piece).has_value()) {
      return absl::DataLossError(StrCat("double free of ", Name(piece)));
    }
    if (loaded != region && !state.damaged.contains(region)) {
      const absl::StatusOr<const RegionBitmap*> read = state.table.Peek(txn, region, &copy);
      if (absl::IsDataLoss(read.status())) {
        state.MarkDamaged(region);
        PublishCounters();
      } else {
        RETURN_IF_ERROR(read.status());
        bitmap = *read;
        loaded = region;
      }
    }
    // What is freed in a damaged region stays in the log, so it need not be proved now.
    const uint32_t offset = OffsetOf(piece.address);
    if (loaded == region && !bitmap->AllSet(offset, offset + piece.sectors)) {
      return absl::DataLossError(StrCat("free of free ", Name(piece)));
    }
  }
  return pieces;
}

absl::Status Allocator::Free(WriteTxn& txn, Txg now, std::span<const Run> runs) {
  ASSIGN_OR_RETURN(const std::vector<Run> pieces, CheckedPieces(txn, runs));
  for (const Run& piece : pieces) {
    COWSHED_CHECK(state_->table.sum(RegionOf(piece.address)).flushed_txg < now,
                  "I3: a region is flushed for past txgs only");
    state_->log.Add(piece);
  }
  PublishCounters();
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> Allocator::FlushRegions(WriteTxn& txn, Txg reusable_up_to,
                                                 uint32_t max_regions, std::vector<Run>* to_punch) {
  State& state = *state_;
  const uint64_t free_before = state.table.free_sectors();
  const FreeLog::FlushLimits limits{.max_regions = max_regions,
                                    .max_runs = options_.free_log_max_runs};
  for (const uint32_t region : state.log.RegionsToFlush(reusable_up_to, limits, state.damaged)) {
    RETURN_IF_ERROR(FlushRegion(txn, region, reusable_up_to, to_punch));
  }
  PublishCounters();
  return state.table.free_sectors() - free_before;
}

absl::Status Allocator::FlushRegion(WriteTxn& txn, uint32_t region, Txg reusable_up_to,
                                    std::vector<Run>* to_punch) {
  State& state = *state_;
  const absl::StatusOr<const RegionBitmap*> bitmap = state.table.Bitmap(txn, region);
  if (!bitmap.ok() && !absl::IsDataLoss(bitmap.status())) {
    return bitmap.status();
  }
  const std::vector<Run> runs = state.log.RunsOf(region, reusable_up_to);
  const bool sound =
      bitmap.ok() && std::all_of(runs.begin(), runs.end(), [&](const Run& run) {
        return (*bitmap)->AllSet(OffsetOf(run.address), OffsetOf(run.address) + run.sectors);
      });
  if (!sound) {
    state.MarkDamaged(region);
    return absl::OkStatus();
  }
  for (const Run& run : runs) {
    state.table.Free(region, OffsetOf(run.address), OffsetOf(run.address) + run.sectors);
    if (to_punch != nullptr && run.sectors >= options_.punch_min_sectors) {
      state.Withhold(run.address, run.sectors);
      to_punch->push_back(run);
    }
  }
  state.table.SetFlushed(region, reusable_up_to);
  state.RaiseBound(region);
  return state.log.Forget(txn, region, reusable_up_to);
}

void Allocator::EndPunch(std::span<const Run> runs) {
  State& state = *state_;
  for (const Run& run : runs) {
    // A run of a flush that was not committed is unknown since Reload.
    const auto it = state.withheld_runs.find(run.address);
    if (it == state.withheld_runs.end() || it->second != run.sectors) {
      continue;
    }
    state.withheld_runs.erase(it);
    const uint32_t region = RegionOf(run.address);
    State::Withheld& withheld = state.withheld[region];
    withheld.bitmap.Clear(OffsetOf(run.address), OffsetOf(run.address) + run.sectors);
    withheld.sectors -= run.sectors;
    state.withheld_sectors -= run.sectors;
    if (state.damaged.contains(region)) {
      state.damaged_sectors += run.sectors;
    }
    if (withheld.sectors == 0) {
      state.withheld.erase(region);
    }
    state.RaiseBound(region);
  }
  PublishCounters();
}

absl::Status Allocator::WriteFrees(WriteTxn& txn, Txg now) { return state_->log.Write(txn, now); }

absl::Status Allocator::WriteBack(WriteTxn& txn, Txg now) {
  RETURN_IF_ERROR(state_->log.Write(txn, now));
  RETURN_IF_ERROR(state_->table.WriteBack(txn));
  PublishCounters();
  return absl::OkStatus();
}

}  // namespace cowshed::engine

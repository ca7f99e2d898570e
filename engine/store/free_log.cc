// SPDX-License-Identifier: Apache-2.0
#include "engine/store/free_log.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <string>
#include <tuple>

#include "engine/base/check.h"
#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/store/codec.h"

namespace cowshed::engine {
namespace {

// An old chunk lives as long as one region it names is cold. With chunks an eighth full on average
// a replay reads eight times the records that are alive; beyond that old chunks are flushed away.
constexpr uint64_t kLeastRunsPerChunk = kFreesPerChunk / 8;
constexpr size_t kFreeLogKeyBytes = sizeof(Txg) + sizeof(uint32_t);

template <typename Map, typename SectorsOf>
std::optional<Run> FindOverlapIn(const Map& map, const Run& run, SectorsOf sectors_of) {
  auto next = map.lower_bound(run.address);
  if (next != map.end() && next->first < run.end()) {
    return Run{.address = next->first, .sectors = sectors_of(next->second)};
  }
  if (next != map.begin()) {
    --next;
    if (next->first + sectors_of(next->second) > run.address) {
      return Run{.address = next->first, .sectors = sectors_of(next->second)};
    }
  }
  return std::nullopt;
}

}  // namespace

absl::Status FreeLog::Load(const MetaTxn& txn, uint64_t capacity_sectors,
                           std::span<const RegionSumRecord> regions) {
  *this = FreeLog();
  MetaCursor cursor(txn, Table::kFreeLog);
  for (cursor.Seek(""); cursor.valid(); cursor.Next()) {
    if (cursor.key().size() != kFreeLogKeyBytes) {
      return absl::DataLossError("free log: a key has a wrong length");
    }
    const ChunkId id(KeyNumber<Txg>(cursor.key(), 0),
                     KeyNumber<uint32_t>(cursor.key(), sizeof(Txg)));
    RETURN_IF_ERROR(LoadChunk(id, cursor.value(), capacity_sectors, regions));
  }
  return cursor.status();
}

absl::Status FreeLog::LoadChunk(ChunkId id, std::string_view value, uint64_t capacity_sectors,
                                std::span<const RegionSumRecord> regions) {
  const auto damaged = [id](std::string_view what) {
    return absl::DataLossError(
        StrCat("free log: chunk ", id.second, " of txg ", id.first, " ", what));
  };
  if (value.empty() || value.size() % sizeof(FreeRecord) != 0) {
    return damaged("has a wrong length");
  }
  for (; !value.empty(); value.remove_prefix(sizeof(FreeRecord))) {
    FreeRecord record;
    std::memcpy(&record, value.data(), sizeof(record));
    const Run run{.address = record.address(), .sectors = record.sectors()};
    const uint64_t region = run.address / kRegionSectors;
    // A region that is gone by a shrink was flushed before.
    if (region >= regions.size() || id.first <= regions[region].flushed_txg) {
      continue;
    }
    if (run.sectors == 0 || run.end() > capacity_sectors || RegionOf(run.end() - 1) != region) {
      return damaged("names sectors outside its region");
    }
    if (FindOverlap(run).has_value()) {
      return damaged(StrCat("frees sector ", run.address, " a second time"));
    }
    Insert(id, run.address, run.sectors);
    sectors_ += run.sectors;
  }
  return absl::OkStatus();
}

void FreeLog::Insert(ChunkId id, uint64_t address, uint32_t sectors) {
  logged_.emplace(address, Logged{.txg = id.first, .sectors = sectors});
  std::vector<Share>& shares = shares_[RegionOf(address)];
  if (shares.empty() || ChunkId(shares.back().txg, shares.back().chunk) != id) {
    shares.push_back({.txg = id.first, .chunk = id.second});
    ++chunks_[id];
  }
  ++shares.back().runs;
  shares.back().sectors += sectors;
}

std::optional<Run> FreeLog::FindOverlap(const Run& run) const {
  std::optional<Run> found =
      FindOverlapIn(logged_, run, [](const Logged& logged) { return logged.sectors; });
  return found.has_value() ? found
                           : FindOverlapIn(fresh_, run, [](uint32_t sectors) { return sectors; });
}

void FreeLog::Add(const Run& run) {
  uint64_t address = run.address;
  uint32_t sectors = run.sectors;
  sectors_ += sectors;
  // Join with neighbours of the same txg, but never over a region's border.
  auto next = fresh_.lower_bound(address);
  if (next != fresh_.end() && next->first == run.end() &&
      RegionOf(next->first) == RegionOf(address)) {
    sectors += next->second;
    next = fresh_.erase(next);
  }
  if (next != fresh_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == address &&
        RegionOf(previous->first) == RegionOf(address)) {
      previous->second += sectors;
      return;
    }
  }
  fresh_.emplace(address, sectors);
}

absl::Status FreeLog::Write(WriteTxn& txn, Txg now) {
  if (fresh_.empty()) {
    return absl::OkStatus();
  }
  const auto later = chunks_.upper_bound({now, std::numeric_limits<uint32_t>::max()});
  COWSHED_CHECK(later == chunks_.end(), "frees are logged in rising txgs");
  ChunkId id(now, 0);
  if (!chunks_.empty() && chunks_.rbegin()->first.first == now) {
    id.second = chunks_.rbegin()->first.second + 1;
  }
  for (auto it = fresh_.begin(); it != fresh_.end(); ++id.second) {
    Encoder encoder;
    for (uint32_t i = 0; i < kFreesPerChunk && it != fresh_.end(); ++i, ++it) {
      encoder.Put(FreeRecord::Of(it->first, it->second));
      Insert(id, it->first, it->second);
    }
    RETURN_IF_ERROR(txn.Put(Table::kFreeLog, FreeLogKey(id.first, id.second), encoder.Take()));
  }
  fresh_.clear();
  return absl::OkStatus();
}

std::vector<uint32_t> FreeLog::RegionsToFlush(Txg reusable_up_to, const FlushLimits& limits,
                                              const absl::flat_hash_set<uint32_t>& skip) const {
  // Chunks up to this one are too many.
  ChunkId too_old(0, 0);
  const uint64_t max_chunks = std::max<uint64_t>(limits.max_runs / kLeastRunsPerChunk, 1);
  if (chunks_.size() > max_chunks) {
    too_old =
        std::next(chunks_.begin(), static_cast<ptrdiff_t>(chunks_.size() - max_chunks - 1))->first;
  }
  struct Candidate {
    bool old = false;
    uint64_t sectors = 0;
    uint64_t runs = 0;
    uint32_t region = 0;
  };
  std::vector<Candidate> candidates;
  for (const auto& [region, shares] : shares_) {
    Candidate candidate{.region = region};
    for (const Share& share : shares) {
      if (share.txg > reusable_up_to) {
        break;
      }
      candidate.old |= ChunkId(share.txg, share.chunk) <= too_old;
      candidate.sectors += share.sectors;
      candidate.runs += share.runs;
    }
    if (candidate.runs > 0 && !skip.contains(region)) {
      candidates.push_back(candidate);
    }
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return std::tuple(!a.old, ~a.sectors, a.region) < std::tuple(!b.old, ~b.sectors, b.region);
  });
  uint64_t runs_left = runs();
  std::vector<uint32_t> regions;
  for (const Candidate& candidate : candidates) {
    if (regions.size() >= limits.max_regions && runs_left <= limits.max_runs && !candidate.old) {
      break;
    }
    regions.push_back(candidate.region);
    runs_left -= candidate.runs;
  }
  return regions;
}

std::vector<Run> FreeLog::RunsOf(uint32_t region, Txg up_to) const {
  std::vector<Run> runs;
  const uint64_t end = RegionBegin(region + 1);
  for (auto it = logged_.lower_bound(RegionBegin(region)); it != logged_.end() && it->first < end;
       ++it) {
    if (it->second.txg > up_to) {
      continue;
    }
    if (!runs.empty() && runs.back().end() == it->first) {
      runs.back().sectors += it->second.sectors;
    } else {
      runs.push_back({.address = it->first, .sectors = it->second.sectors});
    }
  }
  return runs;
}

absl::Status FreeLog::Forget(WriteTxn& txn, uint32_t region, Txg up_to) {
  const uint64_t end = RegionBegin(region + 1);
  for (auto it = logged_.lower_bound(RegionBegin(region));
       it != logged_.end() && it->first < end;) {
    if (it->second.txg > up_to) {
      ++it;
      continue;
    }
    sectors_ -= it->second.sectors;
    it = logged_.erase(it);
  }
  const auto entry = shares_.find(region);
  if (entry == shares_.end()) {
    return absl::OkStatus();
  }
  std::vector<Share>& shares = entry->second;
  size_t done = 0;
  for (; done < shares.size() && shares[done].txg <= up_to; ++done) {
    const auto chunk = chunks_.find({shares[done].txg, shares[done].chunk});
    COWSHED_CHECK(chunk != chunks_.end() && chunk->second > 0, "a share belongs to a live chunk");
    if (--chunk->second == 0) {
      RETURN_IF_ERROR(
          txn.Delete(Table::kFreeLog, FreeLogKey(chunk->first.first, chunk->first.second)));
      chunks_.erase(chunk);
    }
  }
  shares.erase(shares.begin(), shares.begin() + static_cast<ptrdiff_t>(done));
  if (shares.empty()) {
    shares_.erase(entry);
  }
  return absl::OkStatus();
}

void FreeLog::ForEach(const std::function<void(const Run&)>& visit) const {
  for (const auto& [address, logged] : logged_) {
    visit({.address = address, .birth = logged.txg, .sectors = logged.sectors});
  }
}

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
#include "engine/tree/survivors.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/base/strings.h"

namespace cowshed::engine {

namespace {

// An expectation comes from a record that may be damaged: more than this grows as it is needed.
constexpr uint64_t kMaxReservedEntries = 1 << 20;

bool ByBirthAndAddress(const LogEntry& a, const LogEntry& b) {
  return std::pair(a.run.birth, a.run.address) < std::pair(b.run.birth, b.run.address);
}

// An append writes entries in order, so a log is often sorted already.
void SortByBirthAndAddress(std::span<LogEntry> entries) {
  if (!std::is_sorted(entries.begin(), entries.end(), ByBirthAndAddress)) {
    std::sort(entries.begin(), entries.end(), ByBirthAndAddress);
  }
}

void SortByAddress(std::vector<Run>* runs) {
  std::sort(runs->begin(), runs->end(),
            [](const Run& a, const Run& b) { return a.address < b.address; });
}

absl::Status BadEntry(std::string_view problem, const Run& run) {
  return absl::DataLossError(
      StrCat("I6: ", problem, " at sector ", run.address, " born in txg ", run.birth));
}

// Cuts what lies outside of [begin, end) off the run; false if nothing is left.
bool Clip(uint64_t begin, uint64_t end, Run* run) {
  const uint64_t first = std::max(run->address, begin);
  const uint64_t last = std::min(run->end(), end);
  if (first >= last) {
    return false;
  }
  run->address = first;
  run->sectors = static_cast<uint32_t>(last - first);
  return true;
}

// Takes FREEs out of ALLOCs, both sorted by birth and address. A FREE may span several ALLOCs that
// touch, as an ALLOC may have many FREEs: each was joined on its own.
absl::StatusOr<std::vector<Run>> Subtract(std::span<const LogEntry> allocs,
                                          std::span<LogEntry> frees) {
  std::vector<Run> left;
  left.reserve(allocs.size() + frees.size());  // each FREE splits at most one ALLOC
  Txg birth = 0;
  uint64_t allocated_end = 0;
  size_t next = 0;
  for (const LogEntry& alloc : allocs) {
    Run rest = alloc.run;
    if (rest.birth == birth && rest.address < allocated_end) {
      return BadEntry("allocated twice", rest);
    }
    birth = rest.birth;
    allocated_end = rest.end();
    while (next < frees.size() && frees[next].run.birth == birth &&
           frees[next].run.address < allocated_end) {
      Run& free = frees[next].run;
      if (free.address < rest.address || free.kind != rest.kind) {
        return BadEntry("freed twice or never allocated", free);
      }
      if (free.address > rest.address) {
        left.push_back({.address = rest.address,
                        .birth = birth,
                        .sectors = static_cast<uint32_t>(free.address - rest.address),
                        .kind = rest.kind});
      }
      const uint64_t freed_end = std::min(free.end(), allocated_end);
      rest.address = freed_end;
      rest.sectors = static_cast<uint32_t>(allocated_end - freed_end);
      if (free.end() > allocated_end) {  // the rest is of the next ALLOC
        free.sectors = static_cast<uint32_t>(free.end() - allocated_end);
        free.address = allocated_end;
        break;
      }
      ++next;
    }
    if (rest.sectors > 0) {
      left.push_back(rest);
    }
    if (next < frees.size() && frees[next].run.birth < birth) {
      return BadEntry("freed twice or never allocated", frees[next].run);
    }
  }
  if (next < frees.size()) {
    return BadEntry("freed twice or never allocated", frees[next].run);
  }
  return left;
}

}  // namespace

SurvivorWindow::SurvivorWindow(uint64_t from_address, uint64_t memory_bytes,
                               uint64_t expected_entries)
    : from_address_(from_address),
      max_entries_(std::max(memory_bytes / kBytesPerEntry, kMinEntries)),
      shrink_at_(max_entries_) {
  entries_.reserve(std::min({expected_entries, max_entries_, kMaxReservedEntries}));
}

absl::Status SurvivorWindow::Add(const LogEntry& entry) {
  LogEntry clipped = entry;
  if (!Clip(from_address_, end_address_, &clipped.run)) {
    return absl::OkStatus();
  }
  entries_.push_back(clipped);
  return entries_.size() < shrink_at_ ? absl::OkStatus() : Shrink();
}

absl::StatusOr<std::vector<Run>> SurvivorWindow::Finish() {
  ASSIGN_OR_RETURN(std::vector<Run> left, Cancel());
  for (size_t i = 1; i < left.size(); ++i) {
    if (left[i].address < left[i - 1].end()) {
      return BadEntry("two survivors in one place", left[i]);
    }
  }
  JoinNeighbours(&left);
  return left;
}

// What is left of the entries, by address.
absl::StatusOr<std::vector<Run>> SurvivorWindow::Cancel() {
  const auto middle = std::partition(entries_.begin(), entries_.end(), [](const LogEntry& entry) {
    return entry.op == LogOp::kAlloc;
  });
  const auto alloc_count = static_cast<size_t>(middle - entries_.begin());
  const std::span<LogEntry> allocs = std::span(entries_).first(alloc_count);
  const std::span<LogEntry> frees = std::span(entries_).subspan(alloc_count);
  SortByBirthAndAddress(allocs);
  SortByBirthAndAddress(frees);
  ASSIGN_OR_RETURN(std::vector<Run> left, Subtract(allocs, frees));
  SortByAddress(&left);
  return left;
}

absl::Status SurvivorWindow::Shrink() {
  ASSIGN_OR_RETURN(std::vector<Run> left, Cancel());
  const uint64_t kept = max_entries_ / 2;
  if (left.size() > kept) {
    // Where the window begins there may be many, one above the other, until attached FREEs come.
    const auto cut = std::find_if(left.begin() + static_cast<ptrdiff_t>(kept), left.end(),
                                  [this](const Run& run) { return run.address > from_address_; });
    if (cut != left.end()) {
      end_address_ = cut->address;
    }
  }
  entries_.clear();
  for (Run& run : left) {
    if (Clip(from_address_, end_address_, &run)) {
      entries_.push_back({.op = LogOp::kAlloc, .run = run});
    }
  }
  shrink_at_ = std::max<uint64_t>(max_entries_, 2 * entries_.size());
  return absl::OkStatus();
}

}  // namespace cowshed::engine

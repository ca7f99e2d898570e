// SPDX-License-Identifier: Apache-2.0
//
// I1: the allocator's bitmaps against what trees, jobs, the free log and the intent log reference.
#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/checker_state.h"
#include "engine/store/allocator.h"

namespace cowshed::engine {
namespace {

std::string Sectors(uint64_t begin, uint64_t end) {
  return StrCat("sectors [", begin, ", ", end, ")");
}

}  // namespace

absl::Status CheckSpace(CheckState& state) {
  const uint64_t capacity = state.pool.capacity_sectors;
  SectorSet not_free(capacity);
  SectorSet free_log(capacity);
  const absl::Status enumerated =
      Allocator::Enumerate(state.txn, capacity, [&](const Run& run, bool in_free_log) {
        if (!in_free_log) {
          not_free.Add(run.address, run.end());
          return;
        }
        if (free_log.Add(run.address, run.end()) != run.sectors) {
          state.Add("I1", "free log", Sectors(run.address, run.end()) + " are logged free twice");
        }
        if (state.referenced.CountIn(run.address, run.end()) != 0) {
          state.Add("I1", "free log",
                    Sectors(run.address, run.end()) + " are logged free and referenced by a tree");
        }
        if (state.in_jobs.CountIn(run.address, run.end()) != 0) {
          state.Add("I1", "free log",
                    Sectors(run.address, run.end()) + " are logged free and left to a job");
        }
      });
  if (!enumerated.ok()) return state.Absorb(enumerated, "allocator");

  SectorSet expected(capacity);
  expected.Add(0, kFirstDataSector);
  if (state.pool.has_intent_log()) {
    const IntentLogRecord& log = state.pool.intent_log;
    if (state.referenced.CountIn(log.address, log.address + log.sectors) != 0 ||
        expected.Add(log.address, log.address + log.sectors) != log.sectors) {
      state.Add("I1", "intent log",
                Sectors(log.address, log.address + log.sectors) + " are referenced by a tree, too");
    }
  }
  const SectorSet nothing(capacity);
  const auto add = [&](uint64_t begin, uint64_t end) { expected.Add(begin, end); };
  state.referenced.VisitDifference(nothing, add);
  state.in_jobs.VisitDifference(nothing, add);
  free_log.VisitDifference(nothing, add);
  expected.VisitDifference(not_free, [&](uint64_t begin, uint64_t end) {
    state.Add("I1", "allocator", Sectors(begin, end) + " are free and referenced");
  });
  not_free.VisitDifference(expected, [&](uint64_t begin, uint64_t end) {
    state.Add("I1", "allocator", Sectors(begin, end) + " are not free and referenced by nothing");
  });
  return absl::OkStatus();
}

}  // namespace cowshed::engine

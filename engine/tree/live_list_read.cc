// SPDX-License-Identifier: Apache-2.0
//
// Reading sublists: whole, bite by bite, in bounded memory.
#include <limits>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/tree/live_list.h"
#include "engine/tree/sublist_table.h"
#include "engine/tree/survivors.h"

namespace cowshed::engine {

namespace {

constexpr uint64_t kReadBiteEntries = 4096;

// What may lie behind the entries that a view names.
enum class Tail : uint8_t { kNothing, kLaterEntries };

// Reads all of a sublist bite by bite and compares it with its record. Entries of attached logs
// become FREEs.
class SublistReader {
 public:
  SublistReader(const MetaTxn& txn, LivelistId list, const SublistView& view)
      : txn_(txn), list_(list), view_(view) {}

  // Calls `visit(entry)` for each entry, those of its own log first; it returns a status.
  template <typename Visit>
  absl::Status Read(Tail tail, const Visit& visit) {
    const SublistRecord& record = view_.record;
    if (view_.attached.size() != record.attached_logs) {
      return Damaged("has a wrong number of attached logs");
    }
    ASSIGN_OR_RETURN(const uint64_t own, ReadLog(record.log, LogOp::kAlloc, record.entries, visit));
    if (own != record.entries || (tail == Tail::kNothing && !at_end_)) {
      return Damaged("has a log of a wrong length");
    }
    for (const LogId log : view_.attached) {
      RETURN_IF_ERROR(
          ReadLog(log, LogOp::kDead, std::numeric_limits<uint64_t>::max(), visit).status());
    }
    if (allocated_ != record.allocated || freed_ != record.freed) {
      return Damaged("does not sum up to its record");
    }
    return absl::OkStatus();
  }

  absl::Status Damaged(std::string_view problem) const {
    return DamagedSublist(list_, view_.start, problem);
  }

 private:
  // Reads at most `limit` entries, which all are dead ones or none is. Returns how many there were.
  template <typename Visit>
  absl::StatusOr<uint64_t> ReadLog(LogId log, LogOp op, uint64_t limit, const Visit& visit) {
    LogPosition position;
    uint64_t count = 0;
    at_end_ = false;
    // One look past the limit tells whether anything follows.
    for (bool last = false; !at_end_ && !last;) {
      bite_.clear();
      last = limit - count <= kReadBiteEntries;
      const uint64_t size = last ? limit - count : kReadBiteEntries;
      ASSIGN_OR_RETURN(at_end_, PointerLog::Read(txn_, log, &position, size, &bite_));
      count += bite_.size();
      for (LogEntry& entry : bite_) {
        if ((entry.op == LogOp::kDead) != (op == LogOp::kDead)) {
          return Damaged(StrCat("has an entry in log ", static_cast<uint64_t>(log),
                                " that does not belong there"));
        }
        if (op == LogOp::kDead) {
          entry.op = LogOp::kFree;
        }
        (entry.op == LogOp::kAlloc ? allocated_ : freed_).Add(entry.run);
        RETURN_IF_ERROR(visit(entry));
      }
    }
    return count;
  }

  const MetaTxn& txn_;
  const LivelistId list_;
  const SublistView& view_;
  std::vector<LogEntry> bite_;
  bool at_end_ = false;  // of the log read last
  SectorSums allocated_;
  SectorSums freed_;
};

absl::StatusOr<SurvivorBite> ReadSurvivors(const MetaTxn& txn, LivelistId list,
                                           const SublistView& view, Tail tail,
                                           uint64_t from_address, uint64_t memory_bytes) {
  SublistReader reader(txn, list, view);
  SurvivorWindow window(from_address, memory_bytes, view.record.entries);
  const auto wrap = [&](const absl::Status& status) {
    return absl::IsDataLoss(status)
               ? reader.Damaged(StrCat("is damaged: ", StdView(status.message())))
               : status;
  };
  RETURN_IF_ERROR(
      reader.Read(tail, [&](const LogEntry& entry) { return wrap(window.Add(entry)); }));
  absl::StatusOr<std::vector<Run>> runs = window.Finish();
  if (!runs.ok()) {
    return wrap(runs.status());
  }
  return SurvivorBite{.runs = *std::move(runs), .next_address = window.end_address()};
}

}  // namespace

absl::StatusOr<SublistView> LiveList::View(const MetaTxn& txn, LivelistId list, Txg start) {
  SublistView view;
  view.start = start;
  ASSIGN_OR_RETURN(view.record, GetSublist(txn, list, start));
  ASSIGN_OR_RETURN(view.attached, AttachedLogs(txn, list, start));
  return view;
}

absl::StatusOr<SurvivorBite> LiveList::SurvivorsFrom(const MetaTxn& txn, LivelistId list,
                                                     const SublistView& view, uint64_t from_address,
                                                     uint64_t memory_bytes) {
  return ReadSurvivors(txn, list, view, Tail::kLaterEntries, from_address, memory_bytes);
}

absl::StatusOr<SurvivorBite> LiveList::SurvivorsFrom(const MetaTxn& txn, LivelistId list, Txg start,
                                                     uint64_t from_address, uint64_t memory_bytes) {
  ASSIGN_OR_RETURN(const SublistView view, View(txn, list, start));
  return ReadSurvivors(txn, list, view, Tail::kNothing, from_address, memory_bytes);
}

absl::StatusOr<std::vector<Run>> LiveList::Survivors(const MetaTxn& txn, LivelistId list,
                                                     Txg start) {
  ASSIGN_OR_RETURN(SurvivorBite all, SurvivorsFrom(txn, list, start, /*from_address=*/0,
                                                   std::numeric_limits<uint64_t>::max()));
  return std::move(all.runs);
}

absl::StatusOr<std::vector<Run>> LiveList::Survivors(const std::vector<LogEntry>& entries) {
  SurvivorWindow window(/*from_address=*/0, std::numeric_limits<uint64_t>::max(), entries.size());
  for (const LogEntry& entry : entries) {
    RETURN_IF_ERROR(window.Add(entry));
  }
  return window.Finish();
}

absl::Status LiveList::Verify(const MetaTxn& txn, LivelistId list, Txg start) {
  ASSIGN_OR_RETURN(const SublistView view, View(txn, list, start));
  return SublistReader(txn, list, view).Read(Tail::kNothing, [](const LogEntry&) {
    return absl::OkStatus();
  });
}

}  // namespace cowshed::engine

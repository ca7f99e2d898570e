// SPDX-License-Identifier: Apache-2.0
#include "engine/tree/live_list_condense.h"

#include <algorithm>
#include <limits>

#include "engine/base/failpoints.h"
#include "engine/base/status_macros.h"
#include "engine/store/codec.h"
#include "engine/tree/sublist_table.h"

namespace cowshed::engine {

namespace {

// Chunks of a log are full but for its last, so a number of entries names a place.
LogPosition PositionOf(uint64_t entries) {
  return {.chunk = static_cast<uint32_t>(entries / PointerLog::kEntriesPerChunk),
          .entry = static_cast<uint32_t>(entries % PointerLog::kEntriesPerChunk)};
}

bool Contains(const std::vector<LogId>& logs, LogId log) {
  return std::find(logs.begin(), logs.end(), log) != logs.end();
}

// Takes a sublist's record away. Its own log and the attached ones that were read are released;
// those that came later are attached to `target`, and count in `*result`.
absl::Status Dissolve(WriteTxn& txn, LivelistId list, const SublistView& view, Txg target,
                      SublistRecord* result) {
  ASSIGN_OR_RETURN(const std::vector<LogId> attached, AttachedLogs(txn, list, view.start));
  for (const LogId log : attached) {
    const Key key(list, view.start, log);
    ASSIGN_OR_RETURN(const auto value, txn.Get(Table::kSublists, key));
    SectorSums sums;
    Decoder decoder(value.value_or(""));
    decoder.Get(&sums);
    RETURN_IF_ERROR(decoder.Finish("an attached log"));
    RETURN_IF_ERROR(txn.Delete(Table::kSublists, key));
    if (Contains(view.attached, log)) {
      RETURN_IF_ERROR(PointerLog::Release(txn, log));
      continue;
    }
    result->freed += sums;
    ++result->attached_logs;
    RETURN_IF_ERROR(txn.Put(Table::kSublists, Key(list, target, log), Encoder().Put(sums).Take()));
  }
  RETURN_IF_ERROR(txn.Delete(Table::kSublists, SublistKey(list, view.start)));
  return PointerLog::Release(txn, view.record.log);
}

}  // namespace

absl::StatusOr<bool> IsUnchanged(const MetaTxn& txn, LivelistId list,
                                 std::span<const SublistView> views) {
  ASSIGN_OR_RETURN(const std::vector<Sublist> now,
                   LiveList::List(txn, list, views.front().start, views.size()));
  if (now.size() != views.size()) {
    return false;
  }
  for (size_t i = 0; i < views.size(); ++i) {
    if (now[i].start != views[i].start || now[i].record.log != views[i].record.log ||
        now[i].record.entries < views[i].record.entries) {
      return false;
    }
    ASSIGN_OR_RETURN(const std::vector<LogId> attached, AttachedLogs(txn, list, views[i].start));
    for (const LogId log : views[i].attached) {
      if (!Contains(attached, log)) {
        return false;
      }
    }
  }
  return true;
}

absl::Status WriteSurvivors(WriteTxn& txn, std::span<const Run> survivors, ShadowLog* shadow) {
  std::vector<LogEntry> entries;
  entries.reserve(survivors.size());
  for (const Run& run : survivors) {
    entries.push_back({.op = LogOp::kAlloc, .run = run});
    shadow->allocated.Add(run);
  }
  ASSIGN_OR_RETURN(const uint64_t grown, PointerLog::Append(txn, shadow->log, entries));
  shadow->entries += grown;
  shadow->survivors += grown;
  return absl::OkStatus();
}

absl::StatusOr<bool> CarryOver(WriteTxn& txn, LivelistId list, uint64_t max_entries,
                               std::vector<SublistView>* views, ShadowLog* shadow) {
  for (SublistView& view : *views) {
    SublistRecord& seen = view.record;
    ASSIGN_OR_RETURN(const SublistRecord now, GetSublist(txn, list, view.start));
    const uint64_t count = std::min(now.entries - seen.entries, max_entries);
    std::vector<LogEntry> entries;
    LogPosition position = PositionOf(seen.entries);
    RETURN_IF_ERROR(PointerLog::Read(txn, now.log, &position, count, &entries).status());
    if (entries.size() != count) {
      return DamagedSublist(list, view.start, "has a log of a wrong length");
    }
    for (const LogEntry& entry : entries) {
      (entry.op == LogOp::kAlloc ? shadow->allocated : shadow->freed).Add(entry.run);
      (entry.op == LogOp::kAlloc ? seen.allocated : seen.freed).Add(entry.run);
    }
    if (!Failpoints::IsTrue("mutate.condense_loses_entries")) {
      ASSIGN_OR_RETURN(const uint64_t grown, PointerLog::Append(txn, shadow->log, entries));
      shadow->entries += grown;
    }
    seen.entries += count;
    max_entries -= count;
    if (seen.entries < now.entries) {
      return false;
    }
  }
  return true;
}

absl::StatusOr<SublistRecord> Swap(WriteTxn& txn, LivelistId list,
                                   std::span<const SublistView> views, const ShadowLog& shadow) {
  const Txg start = views.front().start;
  SublistRecord result;
  result.log = shadow.log;
  result.entries = shadow.entries;
  result.allocated = shadow.allocated;
  result.freed = shadow.freed;
  result.condensed_entries = static_cast<uint32_t>(
      std::min<uint64_t>(shadow.survivors, std::numeric_limits<uint32_t>::max()));
  SectorSums allocated;
  SectorSums freed;
  for (const SublistView& view : views) {
    ASSIGN_OR_RETURN(const SublistRecord now, GetSublist(txn, list, view.start));
    allocated += now.allocated;
    freed += now.freed;
    RETURN_IF_ERROR(Dissolve(txn, list, view, start, &result));
  }
  // What lives must not have changed: ALLOCs of either side and FREEs of the other.
  freed += result.allocated;
  allocated += result.freed;
  if (allocated != freed) {
    return DamagedSublist(list, start, "would not be the same when condensed");
  }
  RETURN_IF_ERROR(PutSublist(txn, list, {.start = start, .record = result}));
  return result;
}

}  // namespace cowshed::engine

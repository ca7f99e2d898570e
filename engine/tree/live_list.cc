// SPDX-License-Identifier: Apache-2.0
#include "engine/tree/live_list.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/store/codec.h"
#include "engine/tree/condense_policy.h"
#include "engine/tree/sublist_table.h"

namespace cowshed::engine {

namespace {

// Start of the greatest sublist whose start is below `birth`.
absl::StatusOr<std::optional<Txg>> StartBelow(MetaCursor& cursor, LivelistId list, Txg birth) {
  // The entry found may be an attached log; its key begins with its sublist's key.
  cursor.SeekBefore(SublistKey(list, birth));
  if (!cursor.ValidFor(Key(list))) {
    RETURN_IF_ERROR(cursor.status());
    return std::optional<Txg>();
  }
  return std::optional<Txg>(StartOf(cursor.key()));
}

absl::StatusOr<std::optional<Txg>> NewestStart(const MetaTxn& txn, LivelistId list) {
  MetaCursor cursor(txn, Table::kSublists);
  return StartBelow(cursor, list, std::numeric_limits<Txg>::max());
}

absl::Status PutEmpty(WriteTxn& txn, LivelistId list, Txg start, IdSource& ids) {
  return PutSublist(txn, list, {.start = start, .record = {.log = ids.Take<LogId>()}});
}

// A stretch of entries that go to one sublist.
struct Group {
  Txg start = 0;
  std::span<const LogEntry> entries;
};

// Cuts entries that are sorted by birth into groups, one per sublist.
absl::StatusOr<std::vector<Group>> GroupBySublist(const MetaTxn& txn, LivelistId list,
                                                  std::span<const LogEntry> entries) {
  std::vector<Group> groups;
  MetaCursor cursor(txn, Table::kSublists);
  size_t begin = 0;
  while (begin < entries.size()) {
    const Txg birth = entries[begin].run.birth;
    ASSIGN_OR_RETURN(const auto start, StartBelow(cursor, list, birth));
    if (!start.has_value()) {
      return absl::DataLossError(StrCat("livelist ", static_cast<uint64_t>(list),
                                        " has no sublist for births of txg ", birth));
    }
    size_t end = begin + 1;
    while (end < entries.size() && entries[end].run.birth == birth) {
      ++end;
    }
    if (!groups.empty() && groups.back().start == *start) {
      // Contiguous with the group before: entries are sorted by birth.
      const size_t first = groups.back().entries.data() - entries.data();
      groups.back().entries = entries.subspan(first, end - first);
    } else {
      groups.push_back({.start = *start, .entries = entries.subspan(begin, end - begin)});
    }
    begin = end;
  }
  return groups;
}

absl::StatusOr<SublistRecord> AppendGroup(WriteTxn& txn, LivelistId list, const Group& group,
                                          LiveListGrowth* growth) {
  ASSIGN_OR_RETURN(SublistRecord record, GetSublist(txn, list, group.start));
  ASSIGN_OR_RETURN(const uint64_t grown, PointerLog::Append(txn, record.log, group.entries));
  record.entries += grown;
  growth->entries += grown;
  for (const LogEntry& entry : group.entries) {
    (entry.op == LogOp::kAlloc ? record.allocated : record.freed).Add(entry.run);
  }
  if (!record.allocated.Covers(record.freed)) {
    return DamagedSublist(list, group.start, "would free more than it allocated");
  }
  RETURN_IF_ERROR(PutSublist(txn, list, {.start = group.start, .record = record}));
  return record;
}

}  // namespace

absl::StatusOr<LiveListGrowth> LiveList::Append(WriteTxn& txn, LivelistId list, Txg fence, Txg now,
                                                uint32_t block_sectors,
                                                std::span<const LogEntry> entries,
                                                const LiveListOptions& options, IdSource& ids) {
  COWSHED_CHECK(fence < now, "nothing is born after the snapshot of its txg");
  LiveListGrowth growth;
  if (entries.empty()) {
    return growth;
  }
  ASSIGN_OR_RETURN(std::optional<Txg> newest, NewestStart(txn, list));
  const bool allocates = std::any_of(entries.begin(), entries.end(), [](const LogEntry& entry) {
    return entry.op == LogOp::kAlloc;
  });
  if (allocates && (!newest.has_value() || *newest < fence)) {
    RETURN_IF_ERROR(PutEmpty(txn, list, fence, ids));
    ++growth.sublists;
    newest = fence;
  }
  const auto by_birth = [](const LogEntry& a, const LogEntry& b) {
    return a.run.birth < b.run.birth;
  };
  std::vector<LogEntry> sorted(entries.begin(), entries.end());
  std::stable_sort(sorted.begin(), sorted.end(), by_birth);
  ASSIGN_OR_RETURN(const std::vector<Group> groups, GroupBySublist(txn, list, sorted));
  for (const Group& group : groups) {
    ASSIGN_OR_RETURN(const SublistRecord record, AppendGroup(txn, list, group, &growth));
    const uint64_t blocks =
        record.allocated.data_sectors / block_sectors + record.allocated.node_sectors;
    // Of attached logs only the number is at hand: each has an entry at least.
    const SublistLoad load = {{.start = group.start, .record = record}, record.attached_logs};
    if (IsWorthCondensing(load, block_sectors, options)) {
      growth.to_condense.push_back(group.start);
    }
    if (group.start == *newest && *newest < now && blocks > options.max_entries) {
      RETURN_IF_ERROR(PutEmpty(txn, list, now, ids));
      ++growth.sublists;
    }
  }
  return growth;
}

absl::Status LiveList::Attach(WriteTxn& txn, LivelistId list, Txg birth, LogId log,
                              const SectorSums& sums) {
  std::optional<Txg> start;
  {
    MetaCursor cursor(txn, Table::kSublists);
    ASSIGN_OR_RETURN(start, StartBelow(cursor, list, birth));
  }
  if (!start.has_value()) {
    return absl::NotFoundError(StrCat("livelist ", static_cast<uint64_t>(list),
                                      " has no sublist for births of txg ", birth));
  }
  ASSIGN_OR_RETURN(SublistRecord record, GetSublist(txn, list, *start));
  const Key key(list, *start, log);
  ASSIGN_OR_RETURN(const auto attached, txn.Get(Table::kSublists, key));
  if (attached.has_value()) {
    return DamagedSublist(list, *start, StrCat("has log ", static_cast<uint64_t>(log), " already"));
  }
  record.freed += sums;
  ++record.attached_logs;
  if (!record.allocated.Covers(record.freed)) {
    return DamagedSublist(list, *start, "would free more than it allocated");
  }
  RETURN_IF_ERROR(txn.Put(Table::kSublists, key, Encoder().Put(sums).Take()));
  return PutSublist(txn, list, {.start = *start, .record = record});
}

absl::Status LiveList::Move(WriteTxn& txn, LivelistId from, LivelistId to, Txg from_start,
                            Txg to_start) {
  std::vector<std::pair<std::string, std::string>> moved;
  {
    MetaCursor cursor(txn, Table::kSublists);
    const Key prefix(from);
    for (cursor.Seek(SublistKey(from, from_start));
         cursor.ValidFor(prefix) && StartOf(cursor.key()) < to_start; cursor.Next()) {
      moved.emplace_back(cursor.key(), cursor.value());
    }
    RETURN_IF_ERROR(cursor.status());
  }
  for (const auto& [key, value] : moved) {
    Key target(to);
    target.Append(std::string_view(key).substr(sizeof(LivelistId)));
    ASSIGN_OR_RETURN(const auto taken, txn.Get(Table::kSublists, target));
    if (taken.has_value()) {
      return DamagedSublist(to, StartOf(key), "is in the way of one that moves");
    }
    RETURN_IF_ERROR(txn.Delete(Table::kSublists, key));
    RETURN_IF_ERROR(txn.Put(Table::kSublists, target, value));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Sublist>> LiveList::List(const MetaTxn& txn, LivelistId list,
                                                    Txg from_start, uint64_t limit) {
  std::vector<Sublist> sublists;
  MetaCursor cursor(txn, Table::kSublists);
  const Key prefix(list);
  cursor.Seek(SublistKey(list, from_start));
  while (cursor.ValidFor(prefix) && sublists.size() < limit) {
    if (cursor.key().size() != kSublistKeyBytes) {  // an attached log
      cursor.Next();
      continue;
    }
    const Txg start = StartOf(cursor.key());
    ASSIGN_OR_RETURN(const SublistRecord record, DecodeSublist(cursor.key(), cursor.value()));
    sublists.push_back({.start = start, .record = record});
    if (record.attached_logs > 0) {
      cursor.Seek(SublistKey(list, start + 1));
    } else {
      cursor.Next();
    }
  }
  RETURN_IF_ERROR(cursor.status());
  return sublists;
}

absl::StatusOr<bool> LiveList::DropEmpty(WriteTxn& txn, LivelistId list, Txg start) {
  absl::StatusOr<SublistRecord> record = GetSublist(txn, list, start);
  if (absl::IsNotFound(record.status())) {
    return false;
  }
  RETURN_IF_ERROR(record.status());
  if (record->entries > 0 || record->attached_logs > 0 || record->allocated.total() > 0) {
    return false;
  }
  RETURN_IF_ERROR(Remove(txn, list, start).status());
  return true;
}

absl::StatusOr<SublistRecord> LiveList::Remove(WriteTxn& txn, LivelistId list, Txg start) {
  ASSIGN_OR_RETURN(const SublistRecord record, GetSublist(txn, list, start));
  ASSIGN_OR_RETURN(const std::vector<LogId> attached, AttachedLogs(txn, list, start));
  for (const LogId log : attached) {
    RETURN_IF_ERROR(txn.Delete(Table::kSublists, Key(list, start, log)));
    RETURN_IF_ERROR(PointerLog::Release(txn, log));
  }
  RETURN_IF_ERROR(txn.Delete(Table::kSublists, SublistKey(list, start)));
  RETURN_IF_ERROR(PointerLog::Release(txn, record.log));
  return record;
}

}  // namespace cowshed::engine

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

namespace cowshed::engine {

namespace {

constexpr size_t kSublistKeyBytes = 16;   // livelist, start
constexpr size_t kAttachedKeyBytes = 24;  // livelist, start, log
constexpr uint64_t kVerifyBiteEntries = 4096;

Key SublistKey(LivelistId list, Txg start) { return Key(list, start); }

Txg StartOf(std::string_view key) { return KeyNumber<Txg>(key, sizeof(LivelistId)); }

std::string Name(LivelistId list, Txg start) {
  return StrCat("livelist ", static_cast<uint64_t>(list), " sublist ", start);
}

absl::Status Damaged(LivelistId list, Txg start, std::string_view problem) {
  return absl::DataLossError(StrCat(Name(list, start), " ", problem));
}

absl::StatusOr<SublistRecord> DecodeSublist(std::string_view key, std::string_view value) {
  SublistRecord record;
  Decoder decoder(value);
  decoder.Get(&record);
  RETURN_IF_ERROR(decoder.Finish(Name(KeyNumber<LivelistId>(key, 0), StartOf(key))));
  return record;
}

absl::StatusOr<SublistRecord> GetSublist(const MetaTxn& txn, LivelistId list, Txg start) {
  const Key key = SublistKey(list, start);
  ASSIGN_OR_RETURN(const auto value, txn.Get(Table::kSublists, key));
  if (!value.has_value()) {
    return absl::NotFoundError(StrCat(Name(list, start), " not found"));
  }
  return DecodeSublist(key, *value);
}

absl::Status PutSublist(WriteTxn& txn, LivelistId list, const Sublist& sublist) {
  return txn.Put(Table::kSublists, SublistKey(list, sublist.start),
                 Encoder().Put(sublist.record).Take());
}

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
    return Damaged(list, group.start, "would free more than it allocated");
  }
  RETURN_IF_ERROR(PutSublist(txn, list, {.start = group.start, .record = record}));
  return record;
}

absl::StatusOr<std::vector<LogId>> AttachedLogs(const MetaTxn& txn, LivelistId list, Txg start) {
  std::vector<LogId> logs;
  const Key prefix = SublistKey(list, start);
  MetaCursor cursor(txn, Table::kSublists);
  for (cursor.Seek(prefix); cursor.ValidFor(prefix); cursor.Next()) {
    if (cursor.key().size() == kAttachedKeyBytes) {
      logs.push_back(KeyNumber<LogId>(cursor.key(), kSublistKeyBytes));
    }
  }
  RETURN_IF_ERROR(cursor.status());
  return logs;
}

// Reads all of a sublist bite by bite and compares it with its record. Entries of attached logs
// become FREEs. With `out` null nothing is kept.
class SublistReader {
 public:
  SublistReader(const MetaTxn& txn, LivelistId list, Txg start)
      : txn_(txn), list_(list), start_(start) {}

  absl::Status ReadAll(std::vector<LogEntry>* out) {
    ASSIGN_OR_RETURN(const SublistRecord record, GetSublist(txn_, list_, start_));
    RETURN_IF_ERROR(ReadLog(record.log, /*attached=*/false, out));
    if (own_entries_ != record.entries) {
      return Damaged(list_, start_, "has a log of a wrong length");
    }
    ASSIGN_OR_RETURN(const std::vector<LogId> attached, AttachedLogs(txn_, list_, start_));
    if (attached.size() != record.attached_logs) {
      return Damaged(list_, start_, "has a wrong number of attached logs");
    }
    for (const LogId log : attached) {
      RETURN_IF_ERROR(ReadLog(log, /*attached=*/true, out));
    }
    if (allocated_ != record.allocated || freed_ != record.freed) {
      return Damaged(list_, start_, "does not sum up to its record");
    }
    return absl::OkStatus();
  }

 private:
  absl::Status ReadLog(LogId log, bool attached, std::vector<LogEntry>* out) {
    LogPosition position;
    for (bool at_end = false; !at_end;) {
      bite_.clear();
      ASSIGN_OR_RETURN(at_end, PointerLog::Read(txn_, log, &position, kVerifyBiteEntries, &bite_));
      for (LogEntry& entry : bite_) {
        if ((entry.op == LogOp::kDead) != attached) {
          return Damaged(list_, start_,
                         StrCat("has an entry in log ", static_cast<uint64_t>(log),
                                " that does not belong there"));
        }
        if (attached) {
          entry.op = LogOp::kFree;
        }
        (entry.op == LogOp::kAlloc ? allocated_ : freed_).Add(entry.run);
      }
      own_entries_ += attached ? 0 : bite_.size();
      if (out != nullptr) {
        out->insert(out->end(), bite_.begin(), bite_.end());
      }
    }
    return absl::OkStatus();
  }

  const MetaTxn& txn_;
  const LivelistId list_;
  const Txg start_;
  std::vector<LogEntry> bite_;
  uint64_t own_entries_ = 0;
  SectorSums allocated_;
  SectorSums freed_;
};

bool ByBirthAndAddress(const LogEntry& a, const LogEntry& b) {
  return std::pair(a.run.birth, a.run.address) < std::pair(b.run.birth, b.run.address);
}

// An append writes entries in order, so a log is often sorted already.
void SortByBirthAndAddress(std::span<LogEntry> entries) {
  if (!std::is_sorted(entries.begin(), entries.end(), ByBirthAndAddress)) {
    std::sort(entries.begin(), entries.end(), ByBirthAndAddress);
  }
}

absl::Status BadEntry(std::string_view problem, const Run& run) {
  return absl::DataLossError(
      StrCat("I6: ", problem, " at sector ", run.address, " born in txg ", run.birth));
}

// Takes FREEs out of ALLOCs, both sorted by birth and address. A FREE may span several ALLOCs that
// touch, as an ALLOC may have many FREEs: each was joined on its own.
absl::StatusOr<std::vector<Run>> Subtract(std::span<const LogEntry> allocs,
                                          std::span<LogEntry> frees) {
  std::vector<Run> left;
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
    return Damaged(list, *start, StrCat("has log ", static_cast<uint64_t>(log), " already"));
  }
  record.freed += sums;
  ++record.attached_logs;
  if (!record.allocated.Covers(record.freed)) {
    return Damaged(list, *start, "would free more than it allocated");
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
      return Damaged(to, StartOf(key), "is in the way of one that moves");
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

absl::Status LiveList::AppendStarts(const MetaTxn& txn, LivelistId list, std::vector<Txg>* starts) {
  ASSIGN_OR_RETURN(const std::vector<Sublist> sublists, List(txn, list));
  for (const Sublist& sublist : sublists) {
    starts->push_back(sublist.start);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Run>> LiveList::Survivors(const MetaTxn& txn, LivelistId list,
                                                     Txg start) {
  std::vector<LogEntry> entries;
  RETURN_IF_ERROR(SublistReader(txn, list, start).ReadAll(&entries));
  absl::StatusOr<std::vector<Run>> survivors = Survivors(std::move(entries));
  if (!survivors.ok()) {
    return Damaged(list, start, StrCat("is damaged: ", StdView(survivors.status().message())));
  }
  return survivors;
}

absl::StatusOr<std::vector<Run>> LiveList::Survivors(std::vector<LogEntry> entries) {
  const auto middle =
      std::stable_partition(entries.begin(), entries.end(),
                            [](const LogEntry& entry) { return entry.op == LogOp::kAlloc; });
  const auto alloc_count = static_cast<size_t>(middle - entries.begin());
  const std::span<LogEntry> allocs = std::span(entries).first(alloc_count);
  const std::span<LogEntry> frees = std::span(entries).subspan(alloc_count);
  SortByBirthAndAddress(allocs);
  SortByBirthAndAddress(frees);
  ASSIGN_OR_RETURN(std::vector<Run> left, Subtract(allocs, frees));
  std::sort(left.begin(), left.end(),
            [](const Run& a, const Run& b) { return a.address < b.address; });
  for (size_t i = 1; i < left.size(); ++i) {
    if (left[i].address < left[i - 1].end()) {
      return BadEntry("two survivors in one place", left[i]);
    }
  }
  JoinNeighbours(&left);
  return left;
}

absl::Status LiveList::Verify(const MetaTxn& txn, LivelistId list, Txg start) {
  return SublistReader(txn, list, start).ReadAll(nullptr);
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

// SPDX-License-Identifier: Apache-2.0
#include "engine/tree/dead_list.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/failpoints.h"
#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/store/codec.h"

namespace cowshed::engine {

namespace {

constexpr Txg kTail = std::numeric_limits<Txg>::max();
constexpr uint64_t kReadBiteEntries = 4096;

Key BucketKey(DeadlistId list, const DeadBucket& bucket) {
  return Key(list, bucket.start, bucket.log);
}

absl::Status Damaged(DeadlistId list, const DeadBucket& bucket, std::string_view problem) {
  return absl::DataLossError(StrCat("deadlist ", static_cast<uint64_t>(list), " log ",
                                    static_cast<uint64_t>(bucket.log), " ", problem));
}

absl::StatusOr<DeadBucket> DecodeBucket(std::string_view key, std::string_view value) {
  DeadBucket bucket;
  bucket.start = KeyNumber<Txg>(key, 8);
  bucket.log = KeyNumber<LogId>(key, 16);
  Decoder decoder(value);
  decoder.Get(&bucket.record);
  RETURN_IF_ERROR(
      decoder.Finish(StrCat("deadlist ", KeyNumber<uint64_t>(key, 0), " bucket ", bucket.start)));
  return bucket;
}

absl::Status PutBucket(WriteTxn& txn, DeadlistId list, const DeadBucket& bucket) {
  return txn.Put(Table::kDeadBuckets, BucketKey(list, bucket), Encoder().Put(bucket.record).Take());
}

// Records with from_start <= start < to_start; those of the tail with from_start = kTail.
absl::StatusOr<std::vector<DeadBucket>> Records(const MetaTxn& txn, DeadlistId list, Txg from_start,
                                                Txg to_start, uint64_t limit = UINT64_MAX) {
  std::vector<DeadBucket> buckets;
  MetaCursor cursor(txn, Table::kDeadBuckets);
  const Key prefix(list);
  for (cursor.Seek(Key(list, from_start)); cursor.ValidFor(prefix) && buckets.size() < limit;
       cursor.Next()) {
    ASSIGN_OR_RETURN(const DeadBucket bucket, DecodeBucket(cursor.key(), cursor.value()));
    if (bucket.start >= to_start && from_start != kTail) {
      break;
    }
    buckets.push_back(bucket);
  }
  RETURN_IF_ERROR(cursor.status());
  return buckets;
}

absl::StatusOr<std::vector<DeadBucket>> Tails(const MetaTxn& txn, DeadlistId list,
                                              uint64_t limit = UINT64_MAX) {
  return Records(txn, list, kTail, kTail, limit);
}

// Adds runs to a log of the bucket at `start`: to the first it has, else to a new one.
absl::Status AppendTo(WriteTxn& txn, DeadlistId list, Txg start, std::span<const LogEntry> entries,
                      IdSource& ids) {
  // A tail is appended to at its newest log, since the oldest is being distributed.
  DeadBucket bucket = {.start = start};
  {
    MetaCursor cursor(txn, Table::kDeadBuckets);
    const Key prefix(list, start);
    if (start == kTail) {
      cursor.SeekBefore(Key(static_cast<uint64_t>(list) + 1));
    } else {
      cursor.Seek(prefix);
    }
    if (cursor.ValidFor(prefix)) {
      ASSIGN_OR_RETURN(bucket, DecodeBucket(cursor.key(), cursor.value()));
    } else {
      RETURN_IF_ERROR(cursor.status());
      bucket.log = ids.Take<LogId>();
    }
  }
  ASSIGN_OR_RETURN(const uint64_t grown, PointerLog::Append(txn, bucket.log, entries));
  bucket.record.entries += grown;
  for (const LogEntry& entry : entries) {
    bucket.record.sums.Add(entry.run);
  }
  return PutBucket(txn, list, bucket);
}

// The greatest bound below `birth`, 0 if there is none.
Txg BoundBelow(std::span<const Txg> bounds, Txg birth) {
  const auto above = std::lower_bound(bounds.begin(), bounds.end(), birth);
  return above == bounds.begin() ? 0 : *std::prev(above);
}

// Puts `entries` into their buckets, one append per bucket.
absl::Status Scatter(WriteTxn& txn, DeadlistId list, std::span<const Txg> bounds,
                     std::vector<LogEntry> entries, IdSource& ids) {
  std::sort(entries.begin(), entries.end(), [](const LogEntry& a, const LogEntry& b) {
    return std::pair(a.run.birth, a.run.address) < std::pair(b.run.birth, b.run.address);
  });
  for (size_t begin = 0; begin < entries.size();) {
    const Txg start = BoundBelow(bounds, entries[begin].run.birth);
    size_t end = begin + 1;
    while (end < entries.size() && BoundBelow(bounds, entries[end].run.birth) == start) {
      ++end;
    }
    RETURN_IF_ERROR(
        AppendTo(txn, list, start, std::span(entries).subspan(begin, end - begin), ids));
    begin = end;
  }
  return absl::OkStatus();
}

// Moves a bite of one log of the tail into buckets; returns how many entries it took.
absl::StatusOr<uint64_t> DistributeBite(WriteTxn& txn, DeadlistId list, DeadBucket tail,
                                        std::span<const Txg> bounds, uint64_t max_entries,
                                        IdSource& ids) {
  std::vector<LogEntry> entries;
  LogPosition position;
  ASSIGN_OR_RETURN(const bool at_end,
                   PointerLog::Read(txn, tail.log, &position, max_entries, &entries));
  SectorSums sums;
  for (const LogEntry& entry : entries) {
    if (entry.op != LogOp::kDead) {
      return Damaged(list, tail, "has an entry that does not belong there");
    }
    sums.Add(entry.run);
  }
  const uint64_t taken = entries.size();
  if (!tail.record.sums.Covers(sums) || tail.record.entries < taken ||
      (at_end && (tail.record.sums != sums || tail.record.entries != taken))) {
    return Damaged(list, tail, "does not sum up to its record");
  }
  if (at_end) {
    RETURN_IF_ERROR(txn.Delete(Table::kDeadBuckets, BucketKey(list, tail)));
    RETURN_IF_ERROR(PointerLog::Release(txn, tail.log));
  } else {
    RETURN_IF_ERROR(PointerLog::TrimFront(txn, tail.log, position));
    tail.record.sums -= sums;
    tail.record.entries -= taken;
    RETURN_IF_ERROR(PutBucket(txn, list, tail));
  }
  RETURN_IF_ERROR(Scatter(txn, list, bounds, std::move(entries), ids));
  return taken;
}

// Calls `visit` for each run of a bucket's log and compares the whole with its record.
template <typename Visit>
absl::Status ReadBucket(const MetaTxn& txn, DeadlistId list, const DeadBucket& bucket,
                        const Visit& visit) {
  BucketRecord found;
  LogPosition position;
  std::vector<LogEntry> bite;
  for (bool at_end = false; !at_end;) {
    bite.clear();
    ASSIGN_OR_RETURN(at_end, PointerLog::Read(txn, bucket.log, &position, kReadBiteEntries, &bite));
    for (const LogEntry& entry : bite) {
      if (entry.op != LogOp::kDead) {
        return Damaged(list, bucket, "has an entry that does not belong there");
      }
      found.sums.Add(entry.run);
      visit(entry.run);
    }
    found.entries += bite.size();
  }
  if (found.sums != bucket.record.sums || found.entries != bucket.record.entries) {
    return Damaged(list, bucket, "does not sum up to its record");
  }
  return absl::OkStatus();
}

// Which list has fewer records, found by walking both until one ends.
absl::StatusOr<bool> HasFewerRecords(const MetaTxn& txn, DeadlistId a, DeadlistId b) {
  MetaCursor in_a(txn, Table::kDeadBuckets);
  MetaCursor in_b(txn, Table::kDeadBuckets);
  const Key prefix_a(a);
  const Key prefix_b(b);
  in_a.Seek(prefix_a);
  in_b.Seek(prefix_b);
  while (in_a.ValidFor(prefix_a) && in_b.ValidFor(prefix_b)) {
    in_a.Next();
    in_b.Next();
  }
  RETURN_IF_ERROR(in_a.status());
  RETURN_IF_ERROR(in_b.status());
  return !in_a.ValidFor(prefix_a);
}

}  // namespace

absl::Status DeadList::Append(WriteTxn& txn, DeadlistId list, std::span<const Run> killed,
                              IdSource& ids) {
  if (killed.empty()) {
    return absl::OkStatus();
  }
  std::vector<LogEntry> entries;
  entries.reserve(killed.size());
  for (const Run& run : killed) {
    entries.push_back({.op = LogOp::kDead, .run = run});
  }
  return AppendTo(txn, list, kTail, entries, ids);
}

absl::StatusOr<bool> DeadList::Distribute(WriteTxn& txn, DeadlistId list,
                                          std::span<const Txg> bounds, uint64_t max_entries,
                                          IdSource& ids) {
  COWSHED_CHECK(std::is_sorted(bounds.begin(), bounds.end()), "bounds rise");
  constexpr uint64_t kChunk = PointerLog::kEntriesPerChunk;
  uint64_t chunks = std::max<uint64_t>(max_entries / kChunk + (max_entries % kChunk != 0), 1);
  while (true) {
    ASSIGN_OR_RETURN(const std::vector<DeadBucket> tails, Tails(txn, list, 1));
    if (tails.empty()) {
      return true;
    }
    if (chunks == 0) {
      return false;
    }
    const uint64_t bite = std::min(chunks, UINT64_MAX / kChunk) * kChunk;
    ASSIGN_OR_RETURN(const uint64_t taken,
                     DistributeBite(txn, list, tails.front(), bounds, bite, ids));
    chunks -= std::clamp<uint64_t>((taken + kChunk - 1) / kChunk, 1, chunks);
  }
}

absl::StatusOr<uint64_t> DeadList::TailEntries(const MetaTxn& txn, DeadlistId list) {
  ASSIGN_OR_RETURN(const std::vector<DeadBucket> tails, Tails(txn, list));
  uint64_t entries = 0;
  for (const DeadBucket& tail : tails) {
    entries += tail.record.entries;
  }
  return entries;
}

absl::StatusOr<SectorSums> DeadList::SumAbove(const MetaTxn& txn, DeadlistId list, Txg floor) {
  SectorSums sums;
  ASSIGN_OR_RETURN(const std::vector<DeadBucket> buckets, Records(txn, list, floor, kTail));
  for (const DeadBucket& bucket : buckets) {
    sums += bucket.record.sums;
  }
  ASSIGN_OR_RETURN(const std::vector<DeadBucket> tails, Tails(txn, list));
  for (const DeadBucket& tail : tails) {
    if (floor == 0) {
      sums += tail.record.sums;
      continue;
    }
    RETURN_IF_ERROR(ReadBucket(txn, list, tail, [&](const Run& run) {
      if (run.birth > floor) {
        sums.Add(run);
      }
    }));
  }
  return sums;
}

absl::StatusOr<std::vector<DeadBucket>> DeadList::TakeAbove(WriteTxn& txn, DeadlistId list,
                                                            Txg floor) {
  ASSIGN_OR_RETURN(const std::vector<DeadBucket> tails, Tails(txn, list, 1));
  COWSHED_CHECK(tails.empty(), "a deadlist is distributed before buckets are taken from it");
  const Txg from_start = Failpoints::IsTrue("mutate.deadlist_off_by_one") ? floor + 1 : floor;
  ASSIGN_OR_RETURN(std::vector<DeadBucket> taken, Records(txn, list, from_start, kTail));
  for (const DeadBucket& bucket : taken) {
    RETURN_IF_ERROR(txn.Delete(Table::kDeadBuckets, BucketKey(list, bucket)));
  }
  return taken;
}

absl::Status DeadList::Adopt(WriteTxn& txn, DeadlistId list, const DeadBucket& bucket) {
  return PutBucket(txn, list, bucket);
}

absl::StatusOr<DeadlistId> DeadList::Merge(WriteTxn& txn, DeadlistId a, DeadlistId b) {
  COWSHED_CHECK(a != b, "a deadlist is not merged with itself");
  ASSIGN_OR_RETURN(const bool move_a, HasFewerRecords(txn, a, b));
  const DeadlistId from = move_a ? a : b;
  const DeadlistId to = move_a ? b : a;
  ASSIGN_OR_RETURN(std::vector<DeadBucket> moved, Records(txn, from, 0, kTail));
  ASSIGN_OR_RETURN(const std::vector<DeadBucket> tails, Tails(txn, from));
  moved.insert(moved.end(), tails.begin(), tails.end());
  for (const DeadBucket& bucket : moved) {
    RETURN_IF_ERROR(txn.Delete(Table::kDeadBuckets, BucketKey(from, bucket)));
    RETURN_IF_ERROR(PutBucket(txn, to, bucket));
  }
  return to;
}

absl::StatusOr<bool> DeadList::Forget(WriteTxn& txn, DeadlistId list, uint64_t max_logs) {
  std::vector<std::pair<std::string, LogId>> forgotten;
  bool empty = true;
  {
    MetaCursor cursor(txn, Table::kDeadBuckets);
    const Key prefix(list);
    for (cursor.Seek(prefix); cursor.ValidFor(prefix); cursor.Next()) {
      if (forgotten.size() == max_logs) {
        empty = false;
        break;
      }
      forgotten.emplace_back(cursor.key(), KeyNumber<LogId>(cursor.key(), 16));
    }
    RETURN_IF_ERROR(cursor.status());
  }
  for (const auto& [key, log] : forgotten) {
    RETURN_IF_ERROR(txn.Delete(Table::kDeadBuckets, key));
    RETURN_IF_ERROR(PointerLog::Release(txn, log));
  }
  return empty;
}

absl::Status DeadList::ReadAll(const MetaTxn& txn, DeadlistId list, std::vector<Run>* out) {
  ASSIGN_OR_RETURN(std::vector<DeadBucket> all, Records(txn, list, 0, kTail));
  ASSIGN_OR_RETURN(const std::vector<DeadBucket> tails, Tails(txn, list));
  all.insert(all.end(), tails.begin(), tails.end());
  for (const DeadBucket& bucket : all) {
    RETURN_IF_ERROR(ReadBucket(txn, list, bucket, [out](const Run& run) { out->push_back(run); }));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<DeadBucket>> DeadList::Buckets(const MetaTxn& txn, DeadlistId list) {
  return Records(txn, list, 0, kTail);
}

}  // namespace cowshed::engine

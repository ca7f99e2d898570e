// SPDX-License-Identifier: Apache-2.0
#include "engine/catalog.h"

#include <algorithm>
#include <charconv>
#include <iterator>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "engine/base/check.h"
#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/tree/dead_list.h"
#include "engine/tree/live_list_forget.h"

namespace cowshed::engine {
namespace {

absl::Status NoSuchDataset(std::string_view name) {
  return MakeError(absl::StatusCode::kNotFound, "DATASET_NOT_FOUND",
                   StrCat("dataset ", name, " not found"), {{"name", std::string(name)}});
}

absl::Status NoSuchSnapshot(std::string_view name) {
  return MakeError(absl::StatusCode::kNotFound, "SNAPSHOT_NOT_FOUND",
                   StrCat("snapshot ", name, " not found"), {{"name", std::string(name)}});
}

Neighbour NeighbourAt(const MetaCursor& cursor) {
  return {KeyNumber<SnapshotId>(cursor.value(), 0), KeyNumber<Txg>(cursor.key(), 8)};
}

constexpr size_t kMaxLabelKeyBytes = 63;
constexpr size_t kMaxLabelValueBytes = 255;

bool IsLabelKey(std::string_view key) {
  const auto alnum = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  return !key.empty() && key.size() <= kMaxLabelKeyBytes && alnum(key[0]) &&
         std::all_of(key.begin(), key.end(), [&](char c) {
           return alnum(c) || c == '.' || c == '_' || c == '/' || c == '-';
         });
}

// The newest visible snapshot's name; empty if there is none.
absl::StatusOr<std::optional<SnapshotId>> LatestVisible(const MetaTxn& txn, DatasetId dataset) {
  const Key prefix(dataset);
  MetaCursor cursor(txn, Table::kSnapshotsByTxg);
  for (cursor.SeekBefore(Key(dataset, UINT64_MAX)); cursor.ValidFor(prefix); cursor.Prev()) {
    const SnapshotId id = NeighbourAt(cursor).id;
    ASSIGN_OR_RETURN(const SnapshotRecord record, LoadRecord<SnapshotRecord>(txn, Key(id)));
    if (record.visible() && !record.deferred) return id;
  }
  RETURN_IF_ERROR(cursor.status());
  return std::nullopt;
}

// Adds the bounds below `end` of one dataset of a lineage.
absl::Status AppendBounds(const MetaTxn& txn, DatasetId id, const DatasetRecord& record, Txg end,
                          std::vector<Txg>* bounds) {
  ASSIGN_OR_RETURN(std::vector<Txg> own, SublistStarts(txn, record.livelist));
  if (record.list_state != ListState::kWhole) {
    own.push_back(record.origin_txg);
    ASSIGN_OR_RETURN(const std::vector<Neighbour> snapshots, SnapshotsAbove(txn, id, 0));
    for (const Neighbour& snapshot : snapshots) own.push_back(snapshot.txg);
  }
  std::copy_if(own.begin(), own.end(), std::back_inserter(*bounds),
               [end](Txg bound) { return bound < end; });
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<FoundDataset> ResolveDataset(const MetaTxn& txn, std::string_view name) {
  ASSIGN_OR_RETURN(std::string parsed, ParseDatasetName(name));
  ASSIGN_OR_RETURN(const std::optional<DatasetId> id, Names::Find(txn, parsed));
  if (!id.has_value()) return NoSuchDataset(name);
  FoundDataset found;
  found.id = *id;
  ASSIGN_OR_RETURN(found.record, LoadRecord<DatasetRecord>(txn, Key(*id)));
  found.name = std::move(parsed);
  return found;
}

absl::StatusOr<FoundDataset> ResolveDataset(const MetaTxn& txn, std::string_view name,
                                            std::string_view etag) {
  ASSIGN_OR_RETURN(FoundDataset found, ResolveDataset(txn, name));
  if (!etag.empty() && etag != EtagOf(found.id, found.record)) {
    return MakeError(absl::StatusCode::kAborted, "ETAG_MISMATCH",
                     StrCat("dataset ", name, " has changed or is another one by now"),
                     {{"name", std::string(name)}, {"etag", EtagOf(found.id, found.record)}});
  }
  return found;
}

absl::StatusOr<FoundSnapshot> ResolveSnapshot(const MetaTxn& txn, std::string_view name) {
  ASSIGN_OR_RETURN(const ParsedName parsed, ParseSnapshotName(name));
  ASSIGN_OR_RETURN(const std::optional<DatasetId> dataset, Names::Find(txn, parsed.dataset));
  if (!dataset.has_value()) return NoSuchDataset(parsed.dataset);
  ASSIGN_OR_RETURN(const std::optional<std::string_view> by_name,
                   txn.Get(Table::kSnapshotsByName, Key(*dataset, parsed.snapshot)));
  std::optional<SnapshotId> id;
  if (by_name.has_value()) {
    id = KeyNumber<SnapshotId>(*by_name, 0);
  } else if (parsed.snapshot == "latest") {
    ASSIGN_OR_RETURN(id, LatestVisible(txn, *dataset));
  }
  if (!id.has_value()) return NoSuchSnapshot(name);
  FoundSnapshot found;
  found.id = *id;
  ASSIGN_OR_RETURN(found.record, LoadRecord<SnapshotRecord>(txn, Key(*id)));
  found.name = SnapshotFullName(parsed.dataset, found.record.name);
  return found;
}

absl::StatusOr<bool> IsDestroyed(const MetaTxn& txn, const DatasetRecord& record) {
  if (record.doomed) return true;
  return Names::IsDetached(txn, record);
}

absl::StatusOr<std::optional<Neighbour>> SnapshotBefore(const MetaTxn& txn, DatasetId dataset,
                                                        Txg txg) {
  MetaCursor cursor(txn, Table::kSnapshotsByTxg);
  cursor.SeekBefore(Key(dataset, txg));
  RETURN_IF_ERROR(cursor.status());
  if (!cursor.ValidFor(Key(dataset))) return std::nullopt;
  return NeighbourAt(cursor);
}

absl::StatusOr<std::optional<Neighbour>> SnapshotAfter(const MetaTxn& txn, DatasetId dataset,
                                                       Txg txg) {
  ASSIGN_OR_RETURN(const std::vector<Neighbour> above, SnapshotsAbove(txn, dataset, txg, 1));
  if (above.empty()) return std::nullopt;
  return above[0];
}

absl::StatusOr<std::vector<Neighbour>> SnapshotsAbove(const MetaTxn& txn, DatasetId dataset,
                                                      Txg floor, uint64_t limit) {
  std::vector<Neighbour> found;
  const Key prefix(dataset);
  MetaCursor cursor(txn, Table::kSnapshotsByTxg);
  for (cursor.Seek(Key(dataset, floor + 1)); cursor.ValidFor(prefix) && found.size() < limit;
       cursor.Next()) {
    found.push_back(NeighbourAt(cursor));
  }
  RETURN_IF_ERROR(cursor.status());
  return found;
}

absl::StatusOr<std::vector<Txg>> LineageBounds(const MetaTxn& txn, DatasetId id,
                                               const DatasetRecord& record) {
  std::vector<Txg> bounds;
  RETURN_IF_ERROR(AppendBounds(txn, id, record, UINT64_MAX, &bounds));
  SnapshotId origin = record.origin;
  while (origin != SnapshotId{}) {
    ASSIGN_OR_RETURN(const SnapshotRecord snapshot, LoadRecord<SnapshotRecord>(txn, Key(origin)));
    ASSIGN_OR_RETURN(const DatasetRecord owner,
                     LoadRecord<DatasetRecord>(txn, Key(snapshot.dataset)));
    RETURN_IF_ERROR(AppendBounds(txn, snapshot.dataset, owner, snapshot.txg, &bounds));
    origin = owner.origin;
  }
  std::sort(bounds.begin(), bounds.end());
  return bounds;
}

std::string FormatUid(const PoolUid& pool, uint64_t id) {
  return absl::StrFormat("%016x%016x", pool.high ^ pool.low, id);
}

uint64_t ObjectOfUid(std::string_view uid) {
  constexpr size_t kDigits = 16;
  COWSHED_CHECK(uid.size() == 2 * kDigits, "a uid as FormatUid makes it");
  uint64_t id = 0;
  const auto [end, error] =
      std::from_chars(uid.data() + kDigits, uid.data() + uid.size(), id, /*base=*/16);
  COWSHED_CHECK(error == std::errc() && end == uid.data() + uid.size(), "hexadecimal digits");
  return id;
}

std::string EtagOf(DatasetId id, const DatasetRecord& record) {
  return absl::StrFormat("%x-%x", static_cast<uint64_t>(id), record.revision);
}

std::string SnapshotFullName(std::string_view dataset, std::string_view snapshot) {
  return StrCat(dataset, "@", snapshot);
}

absl::StatusOr<DatasetInfo> Describe(const MetaTxn& txn, const PoolUid& pool,
                                     const FoundDataset& dataset) {
  const DatasetRecord& record = dataset.record;
  DatasetInfo info;
  info.name = dataset.name;
  info.uid = FormatUid(pool, static_cast<uint64_t>(dataset.id));
  info.create_txg = record.create_txg;
  info.create_time_ms = record.create_time_ms;
  info.state = record.expiry_blocked       ? DatasetState::kExpired
               : record.tree.trim_txg != 0 ? DatasetState::kTrimming
                                           : DatasetState::kActive;
  info.size_bytes = record.tree.size_bytes;
  info.block_bytes = record.tree.block_bytes;
  if (record.origin != SnapshotId{}) {
    ASSIGN_OR_RETURN(const SnapshotRecord origin,
                     LoadRecord<SnapshotRecord>(txn, Key(record.origin)));
    info.origin_uid = FormatUid(pool, static_cast<uint64_t>(record.origin));
    ASSIGN_OR_RETURN(const DatasetRecord parent,
                     LoadRecord<DatasetRecord>(txn, Key(origin.dataset)));
    ASSIGN_OR_RETURN(info.parent, Names::FullName(txn, parent));
    if (origin.visible()) info.origin = SnapshotFullName(info.parent, origin.name);
  }
  info.labels = record.labels;
  info.etag = EtagOf(dataset.id, record);
  info.quota_bytes = record.quota_bytes;
  info.expire_time_ms = record.expire_time_ms;
  info.used_bytes = record.used_sectors * kSectorBytes;
  info.referenced_bytes = record.referenced_sectors * kSectorBytes;
  info.written_bytes = record.written_sectors * kSectorBytes;
  info.logical_bytes = record.data_blocks * record.tree.block_bytes;
  info.snapshot_count = record.snapshots;
  info.clone_count = record.clones;
  return info;
}

absl::StatusOr<SnapshotInfo> Describe(const MetaTxn& txn, const PoolUid& pool,
                                      const FoundSnapshot& snapshot) {
  const SnapshotRecord& record = snapshot.record;
  SnapshotInfo info;
  info.name = snapshot.name;
  info.uid = FormatUid(pool, static_cast<uint64_t>(snapshot.id));
  info.dataset_uid = FormatUid(pool, static_cast<uint64_t>(record.dataset));
  info.create_txg = record.txg;
  info.create_time_ms = record.create_time_ms;
  info.size_bytes = record.tree.size_bytes;
  info.block_bytes = record.tree.block_bytes;
  info.referenced_bytes = record.referenced_sectors * kSectorBytes;
  info.written_bytes = record.written_sectors * kSectorBytes;
  ASSIGN_OR_RETURN(const uint64_t unique, UniqueSectors(txn, record));
  info.unique_bytes = unique * kSectorBytes;
  info.logical_bytes = record.data_blocks * record.tree.block_bytes;
  info.clone_count = record.clones;
  info.hold_count = record.holds;
  info.deferred = record.deferred;
  info.labels = record.labels;
  return info;
}

HoldInfo Describe(const PoolUid& pool, const FoundSnapshot& snapshot, std::string_view tag,
                  const HoldRecord& hold) {
  return {snapshot.name,       FormatUid(pool, static_cast<uint64_t>(snapshot.id)),
          std::string(tag),    hold.owner,
          hold.create_time_ms, hold.expire_time_ms};
}

absl::StatusOr<OperationId> ResolveOperation(const MetaTxn& txn, std::string_view name) {
  constexpr std::string_view kPrefix = "operations/";
  uint64_t number = 0;
  const bool numbered = name.compare(0, kPrefix.size(), kPrefix) == 0 &&
                        absl::SimpleAtoi(View(name.substr(kPrefix.size())), &number);
  std::optional<OperationRecord> record;
  if (numbered) {
    ASSIGN_OR_RETURN(record, FindRecord<OperationRecord>(txn, Key(number)));
  }
  if (!record.has_value()) {
    return MakeError(absl::StatusCode::kNotFound, "OPERATION_NOT_FOUND",
                     StrCat("operation ", name, " not found"), {{"name", std::string(name)}});
  }
  return static_cast<OperationId>(number);
}

OperationInfo Describe(OperationId id, const OperationRecord& record) {
  OperationInfo info;
  info.name = StrCat("operations/", static_cast<uint64_t>(id));
  info.kind = static_cast<OperationKind>(record.kind);
  info.state = static_cast<OperationState>(record.state);
  info.target = record.target;
  info.target_count = record.target_count;
  info.done_bytes = record.done_sectors * kSectorBytes;
  info.total_bytes =
      std::max({record.planned_sectors, record.total_sectors, record.done_sectors}) * kSectorBytes;
  info.done_entries = record.done_entries;
  info.total_entries = std::max(record.total_entries, record.done_entries);
  const int64_t elapsed_ms = record.update_time_ms - record.start_time_ms;
  if (record.start_time_ms > 0 && elapsed_ms > 0) {
    info.rate_bytes_per_second = info.done_bytes * 1000 / static_cast<uint64_t>(elapsed_ms);
  }
  if (!info.done() && info.rate_bytes_per_second > 0) {
    info.eta_ms = static_cast<int64_t>((info.total_bytes - info.done_bytes) * 1000 /
                                       info.rate_bytes_per_second);
  }
  info.error = record.error;
  info.create_time_ms = record.create_time_ms;
  info.start_time_ms = record.start_time_ms;
  info.update_time_ms = record.update_time_ms;
  info.finish_time_ms = record.finish_time_ms;
  if (info.state == OperationState::kWaiting) info.wait_until_ms = record.wait_until_ms;
  info.txg = record.txg;
  return info;
}

absl::StatusOr<uint64_t> UniqueSectors(const MetaTxn& txn, const SnapshotRecord& snapshot) {
  ASSIGN_OR_RETURN(const DatasetRecord owner,
                   LoadRecord<DatasetRecord>(txn, Key(snapshot.dataset)));
  ASSIGN_OR_RETURN(const std::optional<Neighbour> before,
                   SnapshotBefore(txn, snapshot.dataset, snapshot.txg));
  ASSIGN_OR_RETURN(const std::optional<Neighbour> after,
                   SnapshotAfter(txn, snapshot.dataset, snapshot.txg));
  DeadlistId following = owner.deadlist;
  if (after.has_value()) {
    ASSIGN_OR_RETURN(const SnapshotRecord next, LoadRecord<SnapshotRecord>(txn, Key(after->id)));
    following = next.deadlist;
  }
  ASSIGN_OR_RETURN(
      const SectorSums sums,
      DeadList::SumAbove(txn, following, before.has_value() ? before->txg : owner.origin_txg));
  return sums.total();
}

absl::Status CheckLabels(const Labels& labels) {
  const auto invalid = [](std::string_view what) {
    return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_LABEL", what);
  };
  if (labels.size() > kMaxLabels) return invalid("more than 64 labels");
  uint64_t bytes = 0;
  for (const auto& [key, value] : labels) {
    if (!IsLabelKey(key)) {
      return invalid(
          "a label key must be 1 to 63 of [a-z0-9._/-], starting with a letter or digit");
    }
    if (value.size() > kMaxLabelValueBytes) {
      return invalid(StrCat("the value of label ", key, " is longer than 255 bytes"));
    }
    bytes += key.size() + value.size();
  }
  if (bytes > kMaxLabelsBytes) return invalid("the labels together exceed 2,048 bytes");
  return absl::OkStatus();
}

bool MatchesLabels(const Labels& labels, const Labels& wanted) {
  return std::all_of(wanted.begin(), wanted.end(), [&](const auto& entry) {
    const auto it = labels.find(entry.first);
    return it != labels.end() && it->second == entry.second;
  });
}

}  // namespace cowshed::engine

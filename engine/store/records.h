// SPDX-License-Identifier: Apache-2.0
//
// The records of the metadata store that describe lifetimes: pool, names, datasets, snapshots and
// holds; jobs and operations are in job_records.h. Keys are in meta_store.h's Table; every record
// is encoded field by field in the order of its declaration (docs/on-disk-format.md).
//
// Threads     Plain values.
// Errors      Decode: DATA_LOSS naming the record.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/store/codec.h"
#include "engine/store/format.h"
#include "engine/store/id_source.h"
#include "engine/store/intent_log_format.h"
#include "engine/store/job_records.h"
#include "engine/store/meta_store.h"

namespace cowshed::engine {

inline constexpr DirectoryId kRootDirectory{1};
inline constexpr uint64_t kFirstId = 16;  // ids below are fixed ones

struct PoolRecord {
  static constexpr Table kTable = Table::kPool;
  static constexpr std::string_view kKey = "pool";
  uint32_t version = kFormatVersion;
  PoolUid uid;
  FeatureMasks features;
  Txg txg = 0;
  Txg blocks_stamp_txg = 0;  // the superblock stamp this commit was synced with
  uint64_t next_id = kFirstId;
  uint64_t capacity_sectors = 0;
  int64_t create_time_ms = 0;
  uint64_t datasets = 0;   // visible heads
  uint64_t clones = 0;     // of them
  uint64_t snapshots = 0;  // visible, deferred ones included
  uint64_t deferred_snapshots = 0;
  uint64_t holds = 0;
  uint64_t livelists = 0;  // of heads, and of jobs until they are done
  uint64_t jobs = 0;
  uint64_t requests = 0;         // stored replies
  uint64_t freeing_sectors = 0;  // queued in jobs, the free log not included
  uint64_t stalled_sectors = 0;  // of these, in stalled jobs
  uint64_t waiting_items = 0;    // destroyed datasets without a job yet: in a window or needed
  uint64_t waiting_sectors = 0;  // what they own
  // How reclaim runs: UpdateReclaimArgs of calls.h.
  bool reclaim_paused = false;
  uint64_t reclaim_rate_bytes_per_second = 0;
  uint64_t reclaim_txg_budget_us = 0;
  uint64_t livelist_entries = 0, livelist_sublists = 0, livelist_sectors = 0;
  // Totals since the pool was made; `cowshed inspect` shows them.
  uint64_t freed_sectors_total = 0;
  uint64_t destroyed_by_kind[4] = {};    // DestroyKind
  uint64_t destroyed_by_method[3] = {};  // DestroyMethod
  IntentLogRecord intent_log;            // stored only with kIntentLogFeature

  bool has_intent_log() const { return (features.incompatible & kIntentLogFeature) != 0; }
  // There is none any more. Its ring is the caller's to free.
  void DropIntentLog() {
    features.incompatible &= ~kIntentLogFeature;
    intent_log = IntentLogRecord();
  }
  std::string Encode() const;
  static absl::StatusOr<PoolRecord> Decode(std::string_view bytes);
};

// One segment of a name within its directory. Prefixes need not exist as datasets.
struct NameRecord {
  static constexpr Table kTable = Table::kNames;
  DirectoryId directory{};  // of its children, 0: none
  DatasetId dataset{};      // of that very name, 0: none
  std::string Encode() const;
  static absl::StatusOr<NameRecord> Decode(std::string_view bytes);
};

struct DirectoryRecord {
  static constexpr Table kTable = Table::kDirectories;
  DirectoryId parent{};  // 0: the root, or detached by the destruction of its prefix
  std::string segment;   // its name in the parent; of a detached one its full former name
  uint64_t entries = 0;
  bool detached = false;
  std::string Encode() const;
  static absl::StatusOr<DirectoryRecord> Decode(std::string_view bytes);
};

// What a dataset's livelist says (engine/livelist_drop.h).
enum class ListState : uint8_t {
  kWhole = 0,       // everything: I6 holds
  kDropped = 1,     // nothing: it has no sublists, and nothing is logged
  kRebuilding = 2,  // what was born after the snapshot of its RebuildRecord
};

struct DatasetRecord {
  static constexpr Table kTable = Table::kDatasets;
  DirectoryId directory{};
  std::string segment;
  Txg create_txg = 0;
  int64_t create_time_ms = 0;
  uint64_t revision = 1;  // counts lifecycle changes: the etag
  bool doomed = false;    // name gone; goes when nothing depends on its snapshots any more
  bool kept = false;      // doomed, and its window has not ended: `segment` is its full former name
  TreeState tree;
  SnapshotId origin{};  // 0: not a clone
  Txg origin_txg = 0;
  Txg newest_snapshot_txg = 0;  // of its own snapshots, hidden ones too; 0: none
  LivelistId livelist{};
  ListState list_state = ListState::kWhole;
  DeadlistId deadlist{};
  uint64_t used_sectors = 0;        // net sum of the livelist, were it whole
  uint64_t referenced_sectors = 0;  // reachable from the head, nodes included
  uint64_t written_sectors = 0;     // of these, born after the previous snapshot
  uint64_t data_blocks = 0;         // reachable from the head
  uint64_t snapshots = 0;           // visible own ones
  uint64_t deferred_snapshots = 0;  // of the visible ones
  uint64_t all_snapshots = 0;       // hidden and dying ones too
  uint64_t clones = 0;              // visible clones of own snapshots
  uint64_t dependents = 0;          // clones of own snapshots, doomed ones too, plus holds
  std::optional<uint64_t> quota_bytes;
  int64_t expire_time_ms = 0;
  bool expiry_blocked = false;
  OperationId operation{};  // of its destruction (doomed) or its trim
  std::map<std::string, std::string> labels;

  // Of the newest own snapshot, else the origin, else 0.
  Txg previous_txg() const { return newest_snapshot_txg != 0 ? newest_snapshot_txg : origin_txg; }
  std::string Encode() const;
  static absl::StatusOr<DatasetRecord> Decode(std::string_view bytes);
};

struct SnapshotRecord {
  static constexpr Table kTable = Table::kSnapshots;
  DatasetId dataset{};
  std::string name;  // empty: hidden (made by a clone of a head, or dying)
  Txg txg = 0;
  int64_t create_time_ms = 0;
  bool deferred = false;  // visible, goes with the last clone or hold
  bool hidden = false;    // goes with its last clone
  bool dying = false;     // destroyed by name; a job takes it out of its lineage
  TreeState tree;
  DeadlistId deadlist{};
  uint64_t referenced_sectors = 0;
  uint64_t written_sectors = 0;
  uint64_t data_blocks = 0;
  uint64_t clones = 0;      // visible
  uint64_t all_clones = 0;  // doomed ones too
  uint64_t holds = 0;
  OperationId operation{};  // of its (deferred) destruction
  std::map<std::string, std::string> labels;

  bool visible() const { return !hidden && !dying; }
  std::string Encode() const;
  static absl::StatusOr<SnapshotRecord> Decode(std::string_view bytes);
};

struct HoldRecord {
  static constexpr Table kTable = Table::kHolds;
  std::string owner;
  int64_t create_time_ms = 0;
  int64_t expire_time_ms = 0;
  std::string Encode() const;
  static absl::StatusOr<HoldRecord> Decode(std::string_view bytes);
};

// Reads record R under `key`; nullopt if absent.
template <typename R>
absl::StatusOr<std::optional<R>> FindRecord(const MetaTxn& txn, std::string_view key) {
  auto bytes = txn.Get(R::kTable, key);
  if (!bytes.ok()) return bytes.status();
  if (!bytes->has_value()) return std::optional<R>();
  auto record = R::Decode(**bytes);
  if (!record.ok()) return record.status();
  return std::optional<R>(*std::move(record));
}
// As FindRecord, for a record that must be there: DATA_LOSS if it is not.
template <typename R>
absl::StatusOr<R> LoadRecord(const MetaTxn& txn, std::string_view key) {
  auto record = FindRecord<R>(txn, key);
  if (!record.ok()) return record.status();
  if (!record->has_value()) return absl::DataLossError("a record that must exist is missing");
  return **std::move(record);
}
template <typename R>
absl::Status StoreRecord(WriteTxn& txn, std::string_view key, const R& record) {
  return txn.Put(R::kTable, key, record.Encode());
}

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
#include "engine/store/records.h"

#include <type_traits>

#include "engine/base/status_macros.h"

namespace cowshed::engine {
namespace {

// Record, const or not.
template <typename T, typename Record>
concept Same = std::is_same_v<std::remove_const_t<T>, Record>;

// One field list per record serves both directions: `Fields(archive, record)` visits the members in
// declaration order, and the archive either writes or reads each.
class Writer {
 public:
  template <typename T>
  void operator()(const T& value) {
    if constexpr (std::is_same_v<T, std::string>) {
      encoder_.PutString(value);
    } else if constexpr (std::is_same_v<T, std::map<std::string, std::string>>) {
      encoder_.Put(static_cast<uint16_t>(value.size()));
      for (const auto& [key, text] : value) {
        encoder_.PutString(key).PutString(text);
      }
    } else if constexpr (std::is_same_v<T, std::optional<uint64_t>>) {
      encoder_.Put(static_cast<uint8_t>(value.has_value())).Put(value.value_or(0));
    } else {
      encoder_.Put(value);
    }
  }
  std::string Take() { return encoder_.Take(); }

 private:
  Encoder encoder_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : decoder_(bytes) {}
  template <typename T>
  void operator()(T& value) {
    if constexpr (std::is_same_v<T, std::string>) {
      decoder_.GetString(&value);
    } else if constexpr (std::is_same_v<T, std::map<std::string, std::string>>) {
      uint16_t count = 0;
      decoder_.Get(&count);
      for (uint16_t i = 0; i < count && decoder_.ok(); ++i) {
        std::string key;
        decoder_.GetString(&key).GetString(&value[key]);
      }
    } else if constexpr (std::is_same_v<T, std::optional<uint64_t>>) {
      uint8_t present = 0;
      uint64_t number = 0;
      decoder_.Get(&present).Get(&number);
      value = present != 0 ? std::optional<uint64_t>(number) : std::nullopt;
    } else if constexpr (std::is_same_v<T, bool>) {
      uint8_t byte = 0;  // a bool must never hold a damaged byte
      decoder_.Get(&byte);
      value = byte != 0;
    } else {
      decoder_.Get(&value);
    }
  }
  absl::Status Finish(std::string_view what) const { return decoder_.Finish(what); }

 private:
  Decoder decoder_;
};

template <typename Archive, Same<PoolRecord> Record>
void Fields(Archive& archive, Record& record) {
  archive(record.version);
  archive(record.uid);
  archive(record.features);
  archive(record.txg);
  archive(record.blocks_stamp_txg);
  archive(record.next_id);
  archive(record.capacity_sectors);
  archive(record.create_time_ms);
  archive(record.datasets);
  archive(record.clones);
  archive(record.snapshots);
  archive(record.deferred_snapshots);
  archive(record.holds);
  archive(record.livelists);
  archive(record.jobs);
  archive(record.requests);
  archive(record.freeing_sectors);
  archive(record.stalled_sectors);
  archive(record.waiting_items);
  archive(record.waiting_sectors);
  archive(record.reclaim_paused);
  archive(record.reclaim_rate_bytes_per_second);
  archive(record.reclaim_txg_budget_us);
  archive(record.livelist_entries);
  archive(record.livelist_sublists);
  archive(record.livelist_sectors);
  archive(record.freed_sectors_total);
  archive(record.destroyed_by_kind);
  archive(record.destroyed_by_method);
  if (record.has_intent_log()) {
    archive(record.intent_log);
  }
}

template <typename Archive, Same<NameRecord> Record>
void Fields(Archive& archive, Record& record) {
  archive(record.directory);
  archive(record.dataset);
}

template <typename Archive, Same<DirectoryRecord> Record>
void Fields(Archive& archive, Record& record) {
  archive(record.parent);
  archive(record.segment);
  archive(record.entries);
  archive(record.detached);
}

template <typename Archive, Same<DatasetRecord> Record>
void Fields(Archive& archive, Record& record) {
  archive(record.directory);
  archive(record.segment);
  archive(record.create_txg);
  archive(record.create_time_ms);
  archive(record.revision);
  archive(record.doomed);
  archive(record.kept);
  archive(record.tree);
  archive(record.origin);
  archive(record.origin_txg);
  archive(record.newest_snapshot_txg);
  archive(record.livelist);
  archive(record.list_state);
  archive(record.deadlist);
  archive(record.used_sectors);
  archive(record.referenced_sectors);
  archive(record.written_sectors);
  archive(record.data_blocks);
  archive(record.snapshots);
  archive(record.deferred_snapshots);
  archive(record.all_snapshots);
  archive(record.clones);
  archive(record.dependents);
  archive(record.quota_bytes);
  archive(record.expire_time_ms);
  archive(record.expiry_blocked);
  archive(record.operation);
  archive(record.labels);
}

template <typename Archive, Same<SnapshotRecord> Record>
void Fields(Archive& archive, Record& record) {
  archive(record.dataset);
  archive(record.name);
  archive(record.txg);
  archive(record.create_time_ms);
  archive(record.deferred);
  archive(record.hidden);
  archive(record.dying);
  archive(record.tree);
  archive(record.deadlist);
  archive(record.referenced_sectors);
  archive(record.written_sectors);
  archive(record.data_blocks);
  archive(record.clones);
  archive(record.all_clones);
  archive(record.holds);
  archive(record.operation);
  archive(record.labels);
}

template <typename Archive, Same<HoldRecord> Record>
void Fields(Archive& archive, Record& record) {
  archive(record.owner);
  archive(record.create_time_ms);
  archive(record.expire_time_ms);
}

template <typename Archive, Same<JobRecord> Record>
void Fields(Archive& archive, Record& record) {
  archive(record.kind);
  archive(record.phase);
  archive(record.destroy_kind);
  archive(record.method);
  archive(record.stalled);
  archive(record.operation);
  archive(record.create_time_ms);
  archive(record.dataset);
  archive(record.snapshot);
  archive(record.directory);
  archive(record.livelist);
  archive(record.deadlist);
  archive(record.tree);
  archive(record.min_birth);
  archive(record.origin_txg);
  archive(record.cursor_start);
  archive(record.cursor);
  archive(record.cursor_chunk);
  archive(record.cursor_entry);
  archive(record.left_sectors);
  archive(record.sized);
  archive(record.left_entries);
  archive(record.error);
}

template <typename Archive, Same<RebuildRecord> Record>
void Fields(Archive& archive, Record& record) {
  archive(record.damaged);
  archive(record.snapshot);
  archive(record.txg);
  archive(record.shadow);
  archive(record.cursor_txg);
  archive(record.cursor_block);
  archive(record.sectors);
}

template <typename Archive, Same<OperationRecord> Record>
void Fields(Archive& archive, Record& record) {
  archive(record.kind);
  archive(record.state);
  archive(record.destroy_kind);
  archive(record.target);
  archive(record.target_count);
  archive(record.jobs_left);
  archive(record.planned_sectors);
  archive(record.done_sectors);
  archive(record.total_sectors);
  archive(record.done_entries);
  archive(record.total_entries);
  archive(record.error);
  archive(record.create_time_ms);
  archive(record.start_time_ms);
  archive(record.update_time_ms);
  archive(record.finish_time_ms);
  archive(record.wait_until_ms);
  archive(record.directory);
  archive(record.txg);
}

template <typename Record>
std::string EncodeFields(const Record& record) {
  Writer writer;
  Fields(writer, record);
  return writer.Take();
}

template <typename Record>
absl::StatusOr<Record> DecodeFields(std::string_view bytes, std::string_view what) {
  Reader reader(bytes);
  Record record;
  Fields(reader, record);
  RETURN_IF_ERROR(reader.Finish(what));
  return record;
}

}  // namespace

std::string PoolRecord::Encode() const { return EncodeFields(*this); }
absl::StatusOr<PoolRecord> PoolRecord::Decode(std::string_view bytes) {
  return DecodeFields<PoolRecord>(bytes, "pool record");
}

std::string NameRecord::Encode() const { return EncodeFields(*this); }
absl::StatusOr<NameRecord> NameRecord::Decode(std::string_view bytes) {
  return DecodeFields<NameRecord>(bytes, "name record");
}

std::string DirectoryRecord::Encode() const { return EncodeFields(*this); }
absl::StatusOr<DirectoryRecord> DirectoryRecord::Decode(std::string_view bytes) {
  return DecodeFields<DirectoryRecord>(bytes, "directory record");
}

std::string DatasetRecord::Encode() const { return EncodeFields(*this); }
absl::StatusOr<DatasetRecord> DatasetRecord::Decode(std::string_view bytes) {
  return DecodeFields<DatasetRecord>(bytes, "dataset record");
}

std::string SnapshotRecord::Encode() const { return EncodeFields(*this); }
absl::StatusOr<SnapshotRecord> SnapshotRecord::Decode(std::string_view bytes) {
  return DecodeFields<SnapshotRecord>(bytes, "snapshot record");
}

std::string HoldRecord::Encode() const { return EncodeFields(*this); }
absl::StatusOr<HoldRecord> HoldRecord::Decode(std::string_view bytes) {
  return DecodeFields<HoldRecord>(bytes, "hold record");
}

std::string JobRecord::Encode() const { return EncodeFields(*this); }
absl::StatusOr<JobRecord> JobRecord::Decode(std::string_view bytes) {
  return DecodeFields<JobRecord>(bytes, "job record");
}

std::string RebuildRecord::Encode() const { return EncodeFields(*this); }
absl::StatusOr<RebuildRecord> RebuildRecord::Decode(std::string_view bytes) {
  return DecodeFields<RebuildRecord>(bytes, "rebuild record");
}

std::string OperationRecord::Encode() const { return EncodeFields(*this); }
absl::StatusOr<OperationRecord> OperationRecord::Decode(std::string_view bytes) {
  return DecodeFields<OperationRecord>(bytes, "operation record");
}

}  // namespace cowshed::engine

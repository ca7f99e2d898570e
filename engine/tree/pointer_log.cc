// SPDX-License-Identifier: Apache-2.0
#include "engine/tree/pointer_log.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "engine/base/check.h"
#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/store/codec.h"

namespace cowshed::engine {

namespace {

struct EntryRecord {
  uint64_t place = 0;  // address : 48, op : 8, kind : 8
  Txg birth = 0;
  uint32_t sectors = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(EntryRecord) == PointerLog::kEntryBytes);

constexpr int kAddressBits = 48;  // 2^48 sectors are 1 EiB
constexpr uint64_t kAddressLimit = uint64_t{1} << kAddressBits;

EntryRecord Encode(const LogEntry& entry) {
  COWSHED_CHECK(entry.run.end() <= kAddressLimit && entry.run.sectors > 0, "run fits into a log");
  return {.place = entry.run.address | static_cast<uint64_t>(entry.op) << kAddressBits |
                   static_cast<uint64_t>(entry.run.kind) << (kAddressBits + 8),
          .birth = entry.run.birth,
          .sectors = entry.run.sectors};
}

std::optional<LogEntry> Decode(const EntryRecord& record) {
  const auto op = static_cast<LogOp>(record.place >> kAddressBits & 0xff);
  const auto kind = static_cast<BlockKind>(record.place >> (kAddressBits + 8));
  const LogEntry entry = {.op = op,
                          .run = {.address = record.place & (kAddressLimit - 1),
                                  .birth = record.birth,
                                  .sectors = record.sectors,
                                  .kind = kind}};
  const bool known_op = op == LogOp::kAlloc || op == LogOp::kFree || op == LogOp::kDead;
  const bool known_kind = kind == BlockKind::kData || kind == BlockKind::kNode;
  if (!known_op || !known_kind || record.birth == 0 || record.sectors == 0 ||
      record.reserved != 0 || entry.run.end() > kAddressLimit) {
    return std::nullopt;
  }
  return entry;
}

Key ChunkKey(LogId log, uint32_t chunk) { return Key(log, chunk); }

uint32_t ChunkOf(std::string_view key) { return KeyNumber<uint32_t>(key, sizeof(LogId)); }

absl::Status Damaged(LogId log, uint32_t chunk, std::string_view problem) {
  return absl::DataLossError(
      StrCat("log ", static_cast<uint64_t>(log), " chunk ", chunk, " ", problem));
}

// Checks a chunk's shape and returns how many entries it has.
absl::StatusOr<uint32_t> EntryCount(LogId log, uint32_t chunk, std::string_view value) {
  if (value.empty() || value.size() % sizeof(EntryRecord) != 0 || value.size() > kMaxPayloadBytes) {
    return Damaged(log, chunk, "has a wrong length");
  }
  return static_cast<uint32_t>(value.size() / sizeof(EntryRecord));
}

// Appends entries [first, first + count) of a chunk to `*out`.
absl::Status DecodeEntries(LogId log, uint32_t chunk, std::string_view value, uint32_t first,
                           uint32_t count, std::vector<LogEntry>* out) {
  Decoder decoder(
      value.substr(size_t{first} * sizeof(EntryRecord), size_t{count} * sizeof(EntryRecord)));
  for (uint32_t i = 0; i < count; ++i) {
    EntryRecord record;
    decoder.Get(&record);
    const std::optional<LogEntry> entry = Decode(record);
    if (!entry.has_value()) {
      return Damaged(log, chunk, StrCat("entry ", first + i, " is not valid"));
    }
    out->push_back(*entry);
  }
  return absl::OkStatus();
}

std::vector<EntryRecord> JoinAndEncode(std::span<const LogEntry> entries) {
  std::vector<EntryRecord> records;
  records.reserve(entries.size());
  LogEntry open = entries.front();
  for (const LogEntry& entry : entries.subspan(1)) {
    if (entry.op == open.op && Join(&open.run, entry.run)) {
      continue;
    }
    records.push_back(Encode(open));
    open = entry;
  }
  records.push_back(Encode(open));
  return records;
}

std::string_view Bytes(std::span<const EntryRecord> records) {
  return {reinterpret_cast<const char*>(records.data()), records.size_bytes()};
}

// The last chunk of a log: its number and a copy of its bytes. Chunk 0 and no bytes for a new log.
absl::Status LastChunk(const MetaTxn& txn, LogId log, uint32_t* chunk, std::string* bytes) {
  MetaCursor cursor(txn, Table::kLogs);
  const Key prefix(log);
  cursor.SeekBefore(Key(static_cast<uint64_t>(log) + 1));
  if (!cursor.ValidFor(prefix)) {
    return cursor.status();
  }
  *chunk = ChunkOf(cursor.key());
  RETURN_IF_ERROR(EntryCount(log, *chunk, cursor.value()).status());
  bytes->assign(cursor.value());
  return absl::OkStatus();
}

// Collects the keys of at most `limit` chunks of `log`, from its first on, that lie before `end`. A
// chunk that is damaged is on its way out as well as any.
absl::StatusOr<std::vector<std::string>> ChunkKeys(const MetaTxn& txn, LogId log, uint64_t end,
                                                   uint64_t limit) {
  std::vector<std::string> keys;
  MetaCursor cursor(txn, Table::kLogs);
  const Key prefix(log);
  for (cursor.Seek(prefix); cursor.ValidFor(prefix) || absl::IsDataLoss(cursor.status());
       cursor.Next()) {
    const bool is_wanted = cursor.key().starts_with(prefix) && ChunkOf(cursor.key()) < end;
    if (!is_wanted || keys.size() == limit) {
      return keys;
    }
    keys.emplace_back(cursor.key());
  }
  RETURN_IF_ERROR(cursor.status());
  return keys;
}

absl::Status DeleteChunks(WriteTxn& txn, const std::vector<std::string>& keys) {
  for (const std::string& key : keys) {
    RETURN_IF_ERROR(txn.Delete(Table::kLogs, key));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> Holders(const MetaTxn& txn, LogId log) {
  ASSIGN_OR_RETURN(const auto value, txn.Get(Table::kLogHolders, Key(log)));
  uint32_t holders = 1;
  if (value.has_value()) {
    Decoder decoder(*value);
    decoder.Get(&holders);
    RETURN_IF_ERROR(decoder.Finish(StrCat("holders of log ", static_cast<uint64_t>(log))));
  }
  return holders;
}

}  // namespace

bool Join(Run* run, const Run& next) {
  if (next.birth != run->birth || next.kind != run->kind || next.address != run->end() ||
      next.sectors > std::numeric_limits<uint32_t>::max() - run->sectors) {
    return false;
  }
  run->sectors += next.sectors;
  return true;
}

void JoinNeighbours(std::vector<Run>* runs) {
  if (runs->empty()) {
    return;
  }
  size_t last = 0;
  for (size_t i = 1; i < runs->size(); ++i) {
    if (!Join(&(*runs)[last], (*runs)[i])) {
      (*runs)[++last] = (*runs)[i];
    }
  }
  runs->resize(last + 1);
}

SectorSums& SectorSums::operator+=(const SectorSums& other) {
  data_sectors += other.data_sectors;
  node_sectors += other.node_sectors;
  return *this;
}

SectorSums& SectorSums::operator-=(const SectorSums& other) {
  COWSHED_CHECK(Covers(other), "a sum of sectors never goes below zero");
  data_sectors -= other.data_sectors;
  node_sectors -= other.node_sectors;
  return *this;
}

absl::StatusOr<uint64_t> PointerLog::Append(WriteTxn& txn, LogId log,
                                            std::span<const LogEntry> entries) {
  if (entries.empty()) {
    return uint64_t{0};
  }
  const std::vector<EntryRecord> records = JoinAndEncode(entries);
  std::span<const EntryRecord> rest = records;
  uint32_t chunk = 0;
  std::string bytes;
  RETURN_IF_ERROR(LastChunk(txn, log, &chunk, &bytes));
  if (bytes.size() == kEntriesPerChunk * sizeof(EntryRecord)) {
    bytes.clear();
    ++chunk;
  }
  while (!rest.empty()) {
    const size_t room = kEntriesPerChunk - bytes.size() / sizeof(EntryRecord);
    const auto part = rest.first(std::min(room, rest.size()));
    bytes.append(Bytes(part));
    RETURN_IF_ERROR(txn.Put(Table::kLogs, ChunkKey(log, chunk), bytes));
    bytes.clear();
    ++chunk;
    rest = rest.subspan(part.size());
  }
  return uint64_t{records.size()};
}

absl::StatusOr<bool> PointerLog::Read(const MetaTxn& txn, LogId log, LogPosition* position,
                                      uint64_t max_entries, std::vector<LogEntry>* out) {
  MetaCursor cursor(txn, Table::kLogs);
  const Key prefix(log);
  // A log whose front was trimmed begins later; anywhere else chunks follow without a gap.
  bool may_skip = position->chunk == 0 && position->entry == 0;
  uint32_t expected = position->chunk;
  for (cursor.Seek(ChunkKey(log, position->chunk)); cursor.ValidFor(prefix); cursor.Next()) {
    const uint32_t chunk = ChunkOf(cursor.key());
    if (chunk != expected && !may_skip) {
      return Damaged(log, expected, "is missing");
    }
    may_skip = false;
    expected = chunk + 1;
    ASSIGN_OR_RETURN(const uint32_t count, EntryCount(log, chunk, cursor.value()));
    const uint32_t first = chunk == position->chunk ? position->entry : 0;
    if (first > count) {
      return Damaged(log, chunk, "is shorter than it was");
    }
    if (first < count && max_entries == 0) {
      *position = {.chunk = chunk, .entry = first};
      return false;
    }
    const auto taken = static_cast<uint32_t>(std::min<uint64_t>(count - first, max_entries));
    RETURN_IF_ERROR(DecodeEntries(log, chunk, cursor.value(), first, taken, out));
    max_entries -= taken;
    *position = {.chunk = chunk, .entry = first + taken};
    if (first + taken < count) {
      return false;
    }
  }
  RETURN_IF_ERROR(cursor.status());
  return true;
}

absl::Status PointerLog::ReadAll(const MetaTxn& txn, LogId log, std::vector<LogEntry>* out) {
  LogPosition position;
  return Read(txn, log, &position, std::numeric_limits<uint64_t>::max(), out).status();
}

absl::StatusOr<uint64_t> PointerLog::Length(const MetaTxn& txn, LogId log) {
  uint32_t chunk = 0;
  std::string bytes;
  RETURN_IF_ERROR(LastChunk(txn, log, &chunk, &bytes));
  return uint64_t{chunk} * kEntriesPerChunk + bytes.size() / sizeof(EntryRecord);
}

absl::Status PointerLog::TrimFront(WriteTxn& txn, LogId log, LogPosition position) {
  uint32_t last = 0;
  std::string bytes;
  RETURN_IF_ERROR(LastChunk(txn, log, &last, &bytes));
  ASSIGN_OR_RETURN(const auto keys, ChunkKeys(txn, log, std::min(position.chunk, last),
                                              std::numeric_limits<uint64_t>::max()));
  return DeleteChunks(txn, keys);
}

absl::Status PointerLog::Share(WriteTxn& txn, LogId log) {
  ASSIGN_OR_RETURN(const uint32_t holders, Holders(txn, log));
  return txn.Put(Table::kLogHolders, Key(log), Encoder().Put(holders + 1).Take());
}

absl::Status PointerLog::Release(WriteTxn& txn, LogId log) {
  ASSIGN_OR_RETURN(const uint32_t holders, Holders(txn, log));
  if (holders > 2) {
    return txn.Put(Table::kLogHolders, Key(log), Encoder().Put(holders - 1).Take());
  }
  if (holders == 2) {
    return txn.Delete(Table::kLogHolders, Key(log));
  }
  ASSIGN_OR_RETURN(const auto dropped, txn.Get(Table::kDroppedLogs, Key(log)));
  if (dropped.has_value()) {
    return absl::DataLossError(
        StrCat("log ", static_cast<uint64_t>(log), " was released by its last holder already"));
  }
  return txn.Put(Table::kDroppedLogs, Key(log), {});
}

absl::StatusOr<bool> PointerLog::DropBite(WriteTxn& txn, uint64_t max_chunks) {
  // A log without chunks counts as one, so that many of those are a bounded bite, too.
  for (uint64_t budget = std::max<uint64_t>(max_chunks, 1);;) {
    MetaCursor cursor(txn, Table::kDroppedLogs);
    cursor.Seek(Key(uint64_t{0}));
    if (!cursor.valid()) {
      RETURN_IF_ERROR(cursor.status());
      return true;
    }
    if (budget == 0) {
      return false;
    }
    const auto log = KeyNumber<LogId>(cursor.key(), 0);
    ASSIGN_OR_RETURN(const auto keys,
                     ChunkKeys(txn, log, std::numeric_limits<uint64_t>::max(), budget));
    RETURN_IF_ERROR(DeleteChunks(txn, keys));
    if (keys.size() < budget) {
      RETURN_IF_ERROR(txn.Delete(Table::kDroppedLogs, Key(log)));
    }
    budget -= std::clamp<uint64_t>(keys.size(), 1, budget);
  }
}

}  // namespace cowshed::engine

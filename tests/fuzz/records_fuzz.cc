// SPDX-License-Identifier: Apache-2.0
//
// Whatever lies on the disk, a decoder answers with a record or with DATA_LOSS. The first byte
// picks the decoder. What decodes comes back the same from its own encoding.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "engine/base/hash.h"
#include "engine/store/block_store.h"
#include "engine/store/codec.h"
#include "engine/store/meta_store.h"
#include "engine/store/records.h"
#include "engine/store/region_bitmap.h"
#include "engine/tree/dead_list.h"
#include "engine/tree/live_list.h"
#include "engine/tree/pointer_log.h"
#include "tests/engine/tree/memory_file.h"
#include "tests/fuzz/byte_source.h"
#include "tests/support/testing.h"

namespace cowshed::fuzz {
namespace {

namespace eng = cowshed::engine;

void Demand(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "LOSS: %s\n", what);
  std::abort();
}

// A refusal is DATA_LOSS, or says what is not understood.
void DemandRefusal(const absl::Status& status) {
  Demand(status.ok() || absl::IsDataLoss(status) || absl::IsFailedPrecondition(status),
         "a decoder fails with DATA_LOSS");
}

template <typename Record>
void TryRecord(std::string_view bytes) {
  const auto record = Record::Decode(bytes);
  DemandRefusal(record.status());
  if (!record.ok()) return;
  const std::string encoded = record->Encode();
  const auto again = Record::Decode(encoded);
  Demand(again.ok() && again->Encode() == encoded, "decode(encode(x)) is x");
}

void TryBitmap(std::string_view bytes) {
  std::string payload(bytes);
  // Nearly all lengths are wrong; the right one is worth a try each time.
  DemandRefusal(eng::RegionBitmap::Decode(payload).status());
  payload.resize(sizeof(eng::RegionBitmap));
  const auto bitmap = eng::RegionBitmap::Decode(payload);
  Demand(bitmap.ok() && bitmap->bytes() == payload, "a bitmap is its bytes");
  uint32_t set = 0;
  for (uint32_t i = bitmap->NextSet(0, eng::kRegionSectors); i < eng::kRegionSectors;
       i = bitmap->NextSet(i + 1, eng::kRegionSectors)) {
    ++set;
  }
  Demand(set == bitmap->CountSet(), "a bitmap counts its bits");
}

// The tables whose decoders read through the metadata store.
class Tables {
 public:
  Tables() {
    const eng::MetaStoreOptions options = {
        .map_bytes = uint64_t{1} << 28, .reserve_bytes = 0, .max_readers = 4};
    meta_ = eng::ValueOf(eng::MetaStore::Open(directory_.Path("meta"), true, false, options));
  }

  // Chunks of a log; the first byte after the length of each says how long it is.
  void TryLog(ByteSource source) {
    const auto txn = eng::ValueOf(meta_->BeginWrite());
    const eng::LogId log{7};
    for (uint32_t chunk = 0; !source.empty() && chunk < 4; ++chunk) {
      const size_t size = size_t{source.Take()} * eng::PointerLog::kEntryBytes + source.Take() % 2;
      const std::string_view bytes = source.Bytes(std::min<size_t>(size, eng::kMaxPayloadBytes));
      if (!txn->Put(eng::Table::kLogs, eng::Key(log, chunk), bytes).ok()) return;
    }
    std::vector<eng::LogEntry> entries;
    const absl::Status read = eng::PointerLog::ReadAll(*txn, log, &entries);
    DemandRefusal(read);
    DemandRefusal(eng::PointerLog::Length(*txn, log).status());
    DemandRefusal(eng::LiveList::Survivors(entries).status());
    if (!read.ok() || entries.empty()) return;
    const eng::LogId copy{8};
    Demand(eng::PointerLog::Append(*txn, copy, entries).ok(), "what was read can be appended");
    std::vector<eng::LogEntry> again;
    Demand(eng::PointerLog::ReadAll(*txn, copy, &again).ok(), "what was appended can be read");
    Demand(SectorsOf(again) == SectorsOf(entries), "a log keeps its sectors");
  }

  void TryLists(ByteSource source) {
    const auto txn = eng::ValueOf(meta_->BeginWrite());
    const uint64_t list = 5;
    const std::string_view sublist = source.Bytes(source.Take());
    const std::string_view bucket = source.Bytes(source.Take());
    if (!txn->Put(eng::Table::kSublists, eng::Key(list, uint64_t{3}), sublist).ok() ||
        !txn->Put(eng::Table::kDeadBuckets, eng::Key(list, uint64_t{3}, uint64_t{9}), bucket)
             .ok()) {
      return;
    }
    DemandRefusal(eng::LiveList::List(*txn, eng::LivelistId{list}).status());
    DemandRefusal(eng::LiveList::View(*txn, eng::LivelistId{list}, 3).status());
    DemandRefusal(eng::DeadList::Buckets(*txn, eng::DeadlistId{list}).status());
    DemandRefusal(eng::DeadList::SumAbove(*txn, eng::DeadlistId{list}, 0).status());
  }

 private:
  static uint64_t SectorsOf(const std::vector<eng::LogEntry>& entries) {
    uint64_t sectors = 0;
    for (const auto& entry : entries) sectors += entry.run.sectors;
    return sectors;
  }

  eng::TempDir directory_;
  std::unique_ptr<eng::MetaStore> meta_;
};

// Superblocks with a right checksum, then pointers and a gang's list as they come.
void TryBlocks(ByteSource source) {
  auto memory = std::make_unique<eng::MemoryFile>();
  eng::File& file = *memory;
  for (uint32_t slot = 0; slot < 2; ++slot) {
    eng::Superblock superblock;
    const size_t kept = source.Take() % 2 == 0 ? 16 : 0;  // magic and version as they should be
    const std::string_view bytes = source.Bytes(88);
    if (bytes.size() > kept) {
      std::memcpy(reinterpret_cast<char*>(&superblock) + kept, bytes.data() + kept,
                  std::min(bytes.size(), sizeof(superblock) - 8) - kept);
    }
    superblock.checksum = eng::Hash64(std::as_bytes(std::span(&superblock, 1)).first(504));
    std::array<std::byte, eng::kSectorBytes> sector{};
    std::memcpy(sector.data(), &superblock, sizeof(superblock));
    if (!file.Write(slot * eng::kSectorBytes, sector).ok()) return;
  }
  eng::GangSector gang;
  gang.birth = source.Take();
  gang.piece_count = source.Take() % 40;
  for (uint32_t i = 0; i < std::min<uint32_t>(gang.piece_count, 4); ++i) {
    gang.pieces[i] = {.address = source.Number<uint16_t>(), .sectors = source.Number<uint16_t>()};
  }
  gang.checksum = eng::Hash64(std::as_bytes(std::span(&gang, 1)).first(sizeof(gang) - 8));
  if (!file.Write(20 * eng::kSectorBytes, std::as_bytes(std::span(&gang, 1))).ok()) return;
  const auto store = eng::BlockStore::Open(std::move(memory));
  DemandRefusal(store.status());
  if (!store.ok()) return;
  eng::BlockPtr pointer{.address = source.Take() % 2 == 0 ? 20 : source.Number<uint64_t>(),
                        .birth = source.Take(),
                        .checksum = source.Number<uint64_t>(),
                        .sectors = static_cast<uint16_t>(source.Take() % 33),
                        .kind = static_cast<eng::BlockKind>(source.Take()),
                        .codec = static_cast<eng::Codec>(source.Take() % 2),
                        .flags = source.Take()};
  std::vector<std::byte> block(size_t{pointer.sectors} * eng::kSectorBytes);
  DemandRefusal((*store)->Read(pointer, block));
  std::vector<eng::Run> extents;
  DemandRefusal((*store)->Extents(pointer, &extents));
}

void Try(ByteSource source) {
  static auto& tables = *new Tables();
  switch (source.Take() % 13) {
    case 0:
      return TryRecord<eng::PoolRecord>(source.Rest());
    case 1:
      return TryRecord<eng::NameRecord>(source.Rest());
    case 2:
      return TryRecord<eng::DirectoryRecord>(source.Rest());
    case 3:
      return TryRecord<eng::DatasetRecord>(source.Rest());
    case 4:
      return TryRecord<eng::SnapshotRecord>(source.Rest());
    case 5:
      return TryRecord<eng::HoldRecord>(source.Rest());
    case 6:
      return TryRecord<eng::JobRecord>(source.Rest());
    case 7:
      return TryRecord<eng::RebuildRecord>(source.Rest());
    case 8:
      return TryRecord<eng::OperationRecord>(source.Rest());
    case 9:
      return TryBitmap(source.Rest());
    case 10:
      return tables.TryLog(source);
    case 11:
      return tables.TryLists(source);
    default:
      return TryBlocks(source);
  }
}

}  // namespace
}  // namespace cowshed::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  cowshed::fuzz::Try(cowshed::fuzz::ByteSource(data, size));
  return 0;
}

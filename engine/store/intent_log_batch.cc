// SPDX-License-Identifier: Apache-2.0
#include "engine/store/intent_log_batch.h"

#include <algorithm>
#include <cstring>

#include "engine/base/check.h"
#include "engine/base/hash.h"
#include "engine/base/status_macros.h"
#include "engine/base/strings.h"

namespace cowshed::engine {
namespace {

constexpr uint64_t kMaxBatchSectors = kMaxIntentBatchBytes / kSectorBytes;

template <typename T>
std::span<const std::byte> BytesOf(const T& object) {
  return std::as_bytes(std::span(&object, 1));
}

template <typename T>
T LoadFrom(std::span<const std::byte> bytes) {
  T object;
  std::memcpy(static_cast<void*>(&object), bytes.data(), sizeof(T));
  return object;
}

// `batch` with its header's checksum as zero.
uint64_t Checksum(IntentBatchHeader header, std::span<std::byte> batch) {
  header.checksum = 0;
  std::memcpy(batch.data(), &header, sizeof(header));
  return Hash64(batch);
}

}  // namespace

void IntentBatchBuilder::Begin(uint64_t log_id, uint64_t sequence) {
  header_ = IntentBatchHeader();
  header_.log_id = log_id;
  header_.sequence = sequence;
  used_bytes_ = sizeof(header_);
  last_entry_ = 0;
}

void IntentBatchBuilder::Append(std::span<const std::byte> bytes) {
  if (buffer_.size() < used_bytes_ + bytes.size()) {
    buffer_.resize(std::max<size_t>(used_bytes_ + bytes.size(), 2 * buffer_.size()));
  }
  if (!bytes.empty()) std::memcpy(buffer_.data() + used_bytes_, bytes.data(), bytes.size());
  used_bytes_ += bytes.size();
}

void IntentBatchBuilder::Add(const IntentEntry& entry, std::span<const std::byte> data) {
  COWSHED_CHECK(data.size() == (entry.is_zeros() ? 0 : entry.length_bytes),
                "an entry comes with its bytes");
  if (last_entry_ != 0) {
    auto last = LoadFrom<IntentEntry>(std::span(buffer_).subspan(last_entry_));
    if (last.dataset == entry.dataset && last.layer == entry.layer && last.flags == entry.flags &&
        last.cut_txg == entry.cut_txg &&
        last.offset_bytes + last.length_bytes == entry.offset_bytes) {
      last.length_bytes += entry.length_bytes;
      std::memcpy(buffer_.data() + last_entry_, &last, sizeof(last));
      return Append(data);
    }
  }
  last_entry_ = used_bytes_;
  ++header_.entries;
  Append(BytesOf(entry));
  Append(data);
}

std::span<const std::byte> IntentBatchBuilder::Finish(uint64_t offset_sectors) {
  header_.offset_sectors = offset_sectors;
  header_.bytes = static_cast<uint32_t>(used_bytes_);
  const uint64_t padded_bytes = sectors() * kSectorBytes;
  if (buffer_.size() < padded_bytes) buffer_.resize(padded_bytes);
  const std::span<std::byte> batch = std::span(buffer_).first(used_bytes_);
  header_.checksum = Checksum(header_, batch);
  std::memcpy(batch.data(), &header_, sizeof(header_));
  std::memset(buffer_.data() + used_bytes_, 0, padded_bytes - used_bytes_);
  return std::span(buffer_).first(padded_bytes);
}

IntentLogReader::IntentLogReader(const File& file, const IntentLogRecord& log)
    : file_(file),
      log_(log),
      offset_sectors_(log.first_offset_sectors),
      sequence_(log.first_sequence) {}

// The batch of that number there, if it is whole.
absl::StatusOr<std::optional<IntentLogReader::Batch>> IntentLogReader::ReadAt(
    uint64_t offset_sectors, uint64_t sequence) {
  const std::optional<Batch> nothing;
  if (offset_sectors >= log_.sectors) return nothing;
  const uint64_t address = log_.address + offset_sectors;
  buffer_.resize(kSectorBytes);
  RETURN_IF_ERROR(file_.Read(address * kSectorBytes, buffer_));
  const auto header = LoadFrom<IntentBatchHeader>(buffer_);
  if (header.magic != IntentBatchHeader::kMagic || header.log_id != log_.id ||
      header.sequence != sequence || header.offset_sectors != offset_sectors ||
      header.bytes < sizeof(header) || header.sectors() > log_.sectors - offset_sectors) {
    return nothing;
  }
  buffer_.resize(header.sectors() * kSectorBytes);
  RETURN_IF_ERROR(file_.Read(address * kSectorBytes, buffer_));
  std::span<std::byte> rest = std::span(buffer_).first(header.bytes);
  if (Checksum(header, rest) != header.checksum) return nothing;
  Batch batch;
  batch.sequence = sequence;
  batch.offset_sectors = offset_sectors;
  batch.sectors = header.sectors();
  rest = rest.subspan(sizeof(header));
  for (uint32_t i = 0; i < header.entries; ++i) {
    Entry entry;
    if (rest.size() < sizeof(IntentEntry))
      return absl::DataLossError("a batch's entries are cut off");
    static_cast<IntentEntry&>(entry) = LoadFrom<IntentEntry>(rest);
    rest = rest.subspan(sizeof(IntentEntry));
    const uint64_t bytes = entry.is_zeros() ? 0 : entry.length_bytes;
    if (bytes > rest.size()) return absl::DataLossError("a batch's bytes are cut off");
    entry.data = rest.first(bytes);
    rest = rest.subspan(bytes);
    batch.layer = std::max(batch.layer, entry.layer);
    batch.entries.push_back(entry);
  }
  return std::optional<Batch>(std::move(batch));
}

// Whether a whole batch with the number after the expected one begins in [begin, end).
absl::StatusOr<bool> IntentLogReader::SuccessorIn(uint64_t begin_sectors, uint64_t end_sectors) {
  end_sectors = std::min(end_sectors, log_.sectors);
  if (begin_sectors >= end_sectors) return false;
  std::vector<std::byte> bytes((end_sectors - begin_sectors) * kSectorBytes);
  RETURN_IF_ERROR(file_.Read((log_.address + begin_sectors) * kSectorBytes, bytes));
  for (uint64_t offset = begin_sectors; offset < end_sectors; ++offset) {
    const auto header = LoadFrom<IntentBatchHeader>(
        std::span(bytes).subspan((offset - begin_sectors) * kSectorBytes));
    if (header.magic != IntentBatchHeader::kMagic || header.sequence != sequence_ + 1) continue;
    ASSIGN_OR_RETURN(const std::optional<Batch> found, ReadAt(offset, sequence_ + 1));
    if (found.has_value()) return true;
  }
  return false;
}

absl::StatusOr<std::optional<IntentLogReader::Batch>> IntentLogReader::Next() {
  ASSIGN_OR_RETURN(std::optional<Batch> batch, ReadAt(offset_sectors_, sequence_));
  if (!batch.has_value() && offset_sectors_ != 0) {
    ASSIGN_OR_RETURN(batch, ReadAt(0, sequence_));
  }
  if (batch.has_value()) {
    offset_sectors_ = batch->offset_sectors + batch->sectors;
    ++sequence_;
    return batch;
  }
  ASSIGN_OR_RETURN(const bool behind,
                   SuccessorIn(offset_sectors_ + 1, offset_sectors_ + 1 + kMaxBatchSectors));
  ASSIGN_OR_RETURN(const bool at_start, SuccessorIn(0, kMaxBatchSectors + 1));
  if (behind || at_start) {
    return absl::DataLossError(StrCat("the intent log is damaged: batch ", sequence_,
                                      " cannot be read, and batch ", sequence_ + 1, " is there"));
  }
  // The ring was written through once: nothing but damage makes the file end in it.
  ASSIGN_OR_RETURN(const uint64_t size_bytes, file_.SizeBytes());
  if (size_bytes < (log_.address + log_.sectors) * kSectorBytes) {
    return absl::DataLossError(StrCat(
        "the intent log is damaged: blocks ends before its ring, with ", size_bytes, " bytes"));
  }
  return std::optional<Batch>();
}

absl::StatusOr<IntentLogBacklog> ReadIntentLogBacklog(const File& file,
                                                      const IntentLogRecord& log) {
  IntentLogReader reader(file, log);
  IntentLogBacklog backlog;
  while (true) {
    ASSIGN_OR_RETURN(const std::optional<IntentLogReader::Batch> batch, reader.Next());
    if (!batch.has_value()) return backlog;
    if (batch->layer <= log.committed_layer) continue;
    ++backlog.batches;
    for (const IntentLogReader::Entry& entry : batch->entries) {
      if (entry.layer <= log.committed_layer) continue;
      ++backlog.entries;
      backlog.bytes += entry.length_bytes;
    }
  }
}

}  // namespace cowshed::engine

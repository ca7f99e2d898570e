// SPDX-License-Identifier: Apache-2.0
#include "engine/tree_reader.h"

#include <algorithm>
#include <array>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/errors.h"

namespace cowshed::engine {
namespace {

// A block, or the way to it, does not match its checksum.
absl::Status DamagedBlock(uint64_t block, const absl::Status& why, std::string_view uid) {
  return MakeError(absl::StatusCode::kDataLoss, "CHECKSUM_MISMATCH",
                   StrCat("block ", block, " is damaged: ", StdView(why.message())),
                   {{"uid", std::string(uid)}, {"block", StrCat(block)}});
}

}  // namespace

absl::Status TreeReader::ReadBlock(const BlockPtr& pointer, uint64_t block, uint64_t skip,
                                   std::span<std::byte> out, std::string_view uid) const {
  const BlockRead read{pointer, skip, out};
  ReadReport report;
  const absl::Status status = parts_.blocks.ReadMany(std::span(&read, 1), ReadMode::kWait, &report);
  return absl::IsDataLoss(status) ? DamagedBlock(block, status, uid) : status;
}

absl::Status TreeReader::Read(const TreeState& tree, std::span<const Piece> pieces, ReadMode mode,
                              std::string_view uid, bool* waited) const {
  if (pieces.empty()) return absl::OkStatus();
  const uint64_t first = pieces.front().block;
  std::vector<BlockPtr> pointers(pieces.back().block - first + 1);
  const absl::Status found = parts_.tree.Lookup(tree, first, pointers, mode);
  if (absl::IsDataLoss(found)) return DamagedBlock(first, found, uid);
  RETURN_IF_ERROR(found);
  std::vector<BlockRead> reads;
  reads.reserve(pieces.size());
  uint64_t copied_bytes = 0;
  for (const Piece& piece : pieces) {
    const BlockPtr& pointer = pointers[piece.block - first];
    reads.push_back({pointer, piece.skip, piece.out});
    if (!pointer.is_hole() && piece.out.size() < tree.block_bytes) copied_bytes += piece.out.size();
  }
  ReadReport report;
  const absl::Status status = parts_.blocks.ReadMany(reads, mode, &report);
  *waited = report.waited;
  if (absl::IsDataLoss(status)) return DamagedBlock(pieces[report.failed].block, status, uid);
  parts_.stats.copied_bytes += copied_bytes;
  return status;
}

absl::StatusOr<uint64_t> TreeReader::NextHole(const TreeState& tree, uint64_t from,
                                              uint64_t end) const {
  std::array<BlockPtr, kNodeFanout> pointers;
  while (from < end) {
    const uint64_t count = std::min(end - from, kNodeFanout - from % kNodeFanout);
    RETURN_IF_ERROR(parts_.tree.Lookup(tree, from, std::span(pointers).first(count)));
    for (uint64_t i = 0; i < count; ++i) {
      if (pointers[i].is_hole()) return from + i;
    }
    from += count;
  }
  return end;
}

void TreeReader::GoAhead(const TreeState& tree, ReadAhead& ahead, uint64_t offset, uint64_t length,
                         ReadMode mode, bool waited) const {
  const ReadAhead::Range range = ahead.Next(offset, length, waited);
  const uint64_t end = std::min(range.offset_bytes + range.length_bytes, tree.size_bytes);
  if (range.offset_bytes >= end) return;
  const uint64_t first = range.offset_bytes / tree.block_bytes;
  std::vector<BlockPtr> pointers((end - 1) / tree.block_bytes - first + 1);
  // Damage is for whoever reads it to meet.
  if (!parts_.tree.Lookup(tree, first, pointers, mode).ok()) return;
  parts_.blocks.WillNeed(pointers);
  ahead.Told(range);
}

}  // namespace cowshed::engine

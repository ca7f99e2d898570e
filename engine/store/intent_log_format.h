// SPDX-License-Identifier: Apache-2.0
//
// The intent log as it lies on the disk: a ring of sectors in `blocks`, allocated for good, that
// batches are written to one after another. A batch is a header, then entries, each followed by its
// bytes, padded to whole sectors. docs/on-disk-format.md draws it; tests/golden pins it.
//
// A batch is believed if its header has the log's id, its own place in the ring and the sequence
// number that comes next, and the checksum covers all of it: what an earlier lap left, what another
// log left and what was torn is none. It does not cross the ring's end: one that does not fit
// behind its predecessor lies at the ring's start.
#pragma once

#include <cstdint>

#include "engine/store/format.h"

namespace cowshed::engine {

struct IntentBatchHeader {
  static constexpr uint64_t kMagic = 0x31474f4c574f43;  // "COWLOG1"

  uint64_t magic = kMagic;
  uint64_t log_id = 0;
  uint64_t sequence = 0;        // from 1, without gaps
  uint64_t offset_sectors = 0;  // of this batch in the ring
  uint32_t bytes = 0;           // header, entries and their bytes; without padding
  uint32_t entries = 0;
  uint64_t checksum = 0;  // XXH3-64 of `bytes` bytes, this field as zero

  uint64_t sectors() const { return (uint64_t{bytes} + kSectorBytes - 1) / kSectorBytes; }
};
static_assert(sizeof(IntentBatchHeader) == 48);

// A range of a dataset and what it holds from now on.
struct IntentEntry {
  static constexpr uint32_t kZeros = 1;  // in `flags`: no bytes follow, the range reads as zeros

  uint64_t dataset = 0;
  uint64_t offset_bytes = 0;
  uint64_t length_bytes = 0;
  uint64_t layer = 0;  // it is in the trees once a commit has booked this layer
  Txg cut_txg = 0;     // the txg of the last cut (or a later one) that its writer knew of
  uint32_t flags = 0;
  uint32_t reserved = 0;  // zero

  bool is_zeros() const { return (flags & kZeros) != 0; }
};
static_assert(sizeof(IntentEntry) == 48);

// What the pool record says about its log, as of its commit. Only with kIntentLogFeature.
struct IntentLogRecord {
  uint64_t id = 0;       // random: of no other log
  uint64_t address = 0;  // first sector of the ring in `blocks`
  uint64_t sectors = 0;
  uint64_t committed_layer = 0;       // entries of layers up to it are in the trees
  uint64_t first_offset_sectors = 0;  // where the oldest batch that counts lies, or the next one
  uint64_t first_sequence = 1;        // ... and its number
};
static_assert(sizeof(IntentLogRecord) == 48);

// A cut (rollback, shrink, destruction) of a dataset while batches were alive: (kLogCut,
// dataset, txg) -> this. Entries with an older cut_txg count up to `size_bytes` only.
struct IntentLogCut {
  uint64_t size_bytes = 0;
  uint64_t layer = 0;  // once it is committed, no entry is left that the cut concerns
};
static_assert(sizeof(IntentLogCut) == 16);

}  // namespace cowshed::engine

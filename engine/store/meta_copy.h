// SPDX-License-Identifier: Apache-2.0
//
// Copies of the metadata inside the pool: what a repair falls back on when the file itself cannot
// be read any more. A copy is one commit, whole, in `meta.copies/TXG/data.mdb`; the newest two are
// kept. What it points at in `blocks` may have been written over since: it promises a state of that
// txg less the blocks that are not there any more, and every pointer's checksum tells which.
//
// A copy is written to `meta.copies/new`, at a bounded rate, walked by the page walk of
// lmdb_pages.h, synced, and only then renamed: a directory with a number is a good copy, or was one
// when it was made.
//
// Threads     CopyMeta: one at a time per pool. ListMetaCopies: any.
// Cost        Reads and writes what the metadata holds. A read transaction as long as that takes:
//             pages freed meanwhile are not reused.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/store/meta_store.h"

namespace cowshed::engine {

inline constexpr size_t kMetaCopiesKept = 2;

struct MetaCopy {
  std::string directory;  // holds data.mdb
  uint64_t txg = 0;
  int64_t time_ms = 0;  // when it was made
  uint64_t bytes = 0;
};

// The copies of a pool, newest first; what is not one is passed over.
std::vector<MetaCopy> ListMetaCopies(const std::string& pool_directory);

// Makes a copy of the last commit, which is `txg` or a later one, and removes all but the newest.
// RESOURCE_EXHAUSTED on a full host; DATA_LOSS if what was copied does not hold together.
absl::StatusOr<MetaCopy> CopyMeta(const MetaStore& meta, const std::string& pool_directory,
                                  uint64_t txg, uint64_t bytes_per_second);

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// Reads the pages of an LMDB 0.9 file without LMDB, which trusts what it finds there: a flipped bit
// in a page number, an offset or a length makes it crash, loop or miscount. This walk trusts
// nothing. From the newer meta page down it visits every page that is in use, once, and every
// record of the free list, and proves
//
//   pages   number, kind and bounds of each; none is used twice, or used and free, or past the last
//   nodes   lie between the upper bound and the end of their page, do not overlap, and in a leaf
//           leave no gap
//   keys    rise, and lie between the separators above them
//   counts  depth, entries, branch, leaf and overflow pages of each database are what it says
//
// so whatever passes is what LMDB takes for granted. Values have checksums of their own
// (meta_tables.h). A subtree that does not pass is left out, and the rest is visited all the same:
// that is what a repair can still read.
//
// Threads     Any; the file must not change meanwhile.
// Cost        WalkLmdb: one read of every page in use; a bit of memory per page of the file.
//             CheckLmdbRoots: the meta pages, the table of tables and one page per table.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace cowshed::engine {

struct LmdbEntry {
  std::string_view table;  // of a named database
  std::string_view key;
  std::string_view value;
  uint64_t value_offset = 0;  // in the file
};

struct LmdbReport {
  std::vector<std::string> findings;  // the first hundred
  uint64_t total_findings = 0;
  // Tables a part of which could not be reached. A table that is missing here and was not visited
  // does not exist.
  std::set<std::string> torn;
  bool readable = false;  // a meta page led to the table of tables
  uint64_t last_txn = 0;
  uint64_t pages = 0;
  uint64_t entries = 0;

  bool ok() const { return readable && total_findings == 0; }
  // For people: the first finding and how many there are. REQUIRES: !ok().
  std::string Summary() const;
};

// Visits all entries of all tables that can be reached, in key order within a table. An error only
// if the file cannot be opened or read.
absl::StatusOr<LmdbReport> WalkLmdb(const std::string& path,
                                    const std::function<void(const LmdbEntry&)>& visit = {});

// What an open can afford: DATA_LOSS if the meta pages, the table of tables or the root of a table
// does not hold together. OK if there is no such file.
absl::Status CheckLmdbRoots(const std::string& path);

}  // namespace cowshed::engine

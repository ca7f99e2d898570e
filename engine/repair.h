// SPDX-License-Identifier: Apache-2.0
//
// The repair of a pool that nobody serves: mark and sweep.
//
// What a pool is made of falls in two. Records say what exists: names, datasets, snapshots, holds,
// operations. Everything else follows from them and the trees: bitmaps, livelists, deadlists, sums,
// counts, indexes. A repair keeps the records it can prove and derives the rest anew, into a new
// metadata store beside the old one. Nothing that is derived can be so damaged that it matters.
//
//   salvage   read the records by the page walk (store/lmdb_pages.h), never through LMDB; a record
//             that is lost comes from the newest copy of the metadata that has it, if it is one
//             that a copy still tells the truth about
//   settle    names, lineages and operations are made to fit each other; what has been destroyed is
//             taken away, so that whatever reclaim had still to do, stalled or not, is done
//   mark      every tree is walked; who bore a block owns it, in the lists as in the sums
//   sweep     what nobody marked is free
//   prove     the checker runs over the result, before anything of the pool is touched
//
// Lost data   A node that cannot be read stays in its tree, so that what was below it is DATA_LOSS
//             for ever and never zeros; its sector is overwritten, so that it cannot come back and
//             name sectors that others have by then. Each is reported with its dataset and blocks.
// Intent log  Stays for the next opening to replay, where the heads that it was written to are
//             there; left out is what it holds for one that is older now. Else it is dropped, and
//             that is reported.
// From a copy The whole state is that of the copy's txg; every block is read, and those that have
//             been written over since are reported.
// Safety      Prepare writes to `meta.repair` only. Apply puts it in place in one rename; the old
//             store is kept as `meta.damaged.N`.
// Threads     One thread; the pool's lock is held from Prepare to the end.
// Cost        Reads all nodes, and of a copy all data. Memory: a bit per sector, the records, the
//             runs of one dataset.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/options.h"
#include "engine/types.h"

namespace cowshed::engine {

struct RepairOptions {
  PoolOptions pool;
  bool from_copy = false;  // the newest copy's state, whatever the metadata is like
  bool drop_log = false;   // the intent log is given up, although it could stay
};

class Repair {
 public:
  // NOT_FOUND if there is no pool; FAILED_PRECONDITION if it is in use, or if neither its metadata
  // nor a copy, or no superblock, can be read: then there is nothing to stand on.
  static absl::StatusOr<std::unique_ptr<Repair>> Prepare(const RepairOptions& options);
  virtual ~Repair() = default;

  // What it has done in `meta.repair`, in sentences.
  virtual const std::vector<std::string>& plan() const = 0;
  // What cannot be brought back; `name` is the dataset or snapshot, `message` says which blocks.
  virtual const std::vector<CheckFinding>& lost() const = 0;
  // What the checker says of the result. Lost blocks show here as damage again.
  virtual const CheckReport& report() const = 0;
  // Puts the result in place. Returns where the old metadata is kept.
  virtual absl::StatusOr<std::string> Apply() = 0;
};

// The page structure of a pool's metadata, read without LMDB: OK, or DATA_LOSS saying what is wrong
// with it. Nobody serves the pool meanwhile.
absl::Status CheckMetaPages(const PoolOptions& options);

// A copy of the metadata in the pool, for people.
struct MetaCopyInfo {
  std::string directory;
  Txg txg = 0;
  int64_t time_ms = 0;
  uint64_t bytes = 0;
  bool good = false;
};
std::vector<MetaCopyInfo> InspectMetaCopies(const PoolOptions& options);

}  // namespace cowshed::engine

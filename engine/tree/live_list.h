// SPDX-License-Identifier: Apache-2.0
//
// A livelist is the log of ALLOC and FREE of the blocks a dataset owns: those born in it after its
// origin. Its survivors, ALLOCs without their FREEs, are what its destruction frees, so destroying
// a dataset costs what was written to it and never what it stands on. The idea: S. Hartse, "Fast
// Clone Deletion", OpenZFS Developer Summit 2017; here a FREE is logged when a block is physically
// freed, which lets promote and rollback keep the list exact by moving sublists.
//
// Sublists    Keyed by start txg: a sublist holds births in (start, next start]. An entry goes to
//             the sublist of its run's birth, so a block's ALLOC and FREE meet in one. A new one
//             starts at the first append after a snapshot (start = the snapshot's txg: no sublist
//             straddles a snapshot), and at the end of the append that takes the newest past
//             max_entries blocks (start = that txg, so a txg is never split, however often it
//             appends). A sublist may be empty.
// Attached    When a snapshot is destroyed, a deadlist bucket becomes FREEs of one sublist by
//             attaching its log (a second holder) instead of copying it.
// Invariants  I6: ALLOC before FREE, both in one sublist, keyed by (address, birth).
// Threads     Changes: txg thread. Reads: any thread, through any transaction.
// On disk     kSublists: (livelist, start) -> SublistRecord; (livelist, start, log) -> SectorSums
//             of an attached log.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/store/id_source.h"
#include "engine/tree/pointer_log.h"
#include "engine/tree/survivors.h"

namespace cowshed::engine {

struct SublistRecord {
  LogId log{};
  uint64_t entries = 0;  // runs in its own log
  SectorSums allocated;  // of its ALLOCs
  SectorSums freed;      // of its FREEs, attached logs included
  uint32_t attached_logs = 0;
  uint32_t condensed_entries = 0;  // survivors that the last condense wrote; 0: never condensed

  // What survives, in sectors.
  uint64_t live_sectors() const { return allocated.total() - freed.total(); }
};
static_assert(sizeof(SublistRecord) == 56);

struct Sublist {
  Txg start = 0;
  SublistRecord record;
};

// A sublist at one moment: its own log up to its `entries`, and the attached logs of then.
struct SublistView {
  Txg start = 0;
  SublistRecord record;
  std::vector<LogId> attached;
};

// A stretch of a sublist's survivors in address order.
struct SurvivorBite {
  std::vector<Run> runs;
  uint64_t next_address = 0;  // kEndOfAddresses: that was the last
  bool at_end() const { return next_address == kEndOfAddresses; }
};

// By how much the lists of a pool have grown.
struct LiveListGrowth {
  uint64_t entries = 0;
  uint64_t sublists = 0;
  std::vector<Txg> to_condense;  // sublists that have become worth it
};

struct LiveListOptions {
  uint64_t max_entries = 500000;  // block pointers (ALLOCs) after which a new sublist starts
  // When a sublist is worth condensing: tree/condense_policy.h.
  uint64_t condense_min_entries = 512;
  uint32_t condense_growth_percent = 85;
};

class LiveList {
 public:
  // Logs one txg's changes of one dataset. `fence`: txg of its newest own snapshot, else its origin
  // txg, so fence < now. `block_sectors` turns sectors into blocks for max_entries. DATA_LOSS if no
  // sublist covers the birth of an entry: the list is damaged.
  static absl::StatusOr<LiveListGrowth> Append(WriteTxn& txn, LivelistId list, Txg fence, Txg now,
                                               uint32_t block_sectors,
                                               std::span<const LogEntry> entries,
                                               const LiveListOptions& options, IdSource& ids);
  // Makes `log`, whose runs were all born in the sublist of `birth`, FREEs of that sublist.
  // The caller has shared or given up its own hold. NOT_FOUND if no sublist covers the birth;
  // DATA_LOSS if more would be freed than was allocated, or the log is attached already.
  static absl::Status Attach(WriteTxn& txn, LivelistId list, Txg birth, LogId log,
                             const SectorSums& sums);
  // Moves the sublists with from_start <= start < to_start to another livelist.
  static absl::Status Move(WriteTxn& txn, LivelistId from, LivelistId to, Txg from_start,
                           Txg to_start);
  // Sublists in rising order, at most `limit` of them, from `from_start` on.
  static absl::StatusOr<std::vector<Sublist>> List(const MetaTxn& txn, LivelistId list,
                                                   Txg from_start = 0, uint64_t limit = UINT64_MAX);

  // What a sublist is as of `txn`: enough to read just that later, whatever is appended meanwhile.
  static absl::StatusOr<SublistView> View(const MetaTxn& txn, LivelistId list, Txg start);
  // The survivors of one sublist from an address on, in address order, neighbours joined, as many
  // as are found in about `memory_bytes`; the next bite begins at `next_address`. Every bite reads
  // the whole sublist. DATA_LOSS if a FREE has no ALLOC or comes twice, or if the logs do not hold
  // what the record says: the list is damaged.
  static absl::StatusOr<SurvivorBite> SurvivorsFrom(const MetaTxn& txn, LivelistId list, Txg start,
                                                    uint64_t from_address, uint64_t memory_bytes);
  // As above of what `view` was. REQUIRES: its logs have not been released.
  static absl::StatusOr<SurvivorBite> SurvivorsFrom(const MetaTxn& txn, LivelistId list,
                                                    const SublistView& view, uint64_t from_address,
                                                    uint64_t memory_bytes);
  // All of them at once: memory for the whole sublist.
  static absl::StatusOr<std::vector<Run>> Survivors(const MetaTxn& txn, LivelistId list, Txg start);
  // Those of entries already read, in whatever order: the pure algorithm (tree/survivors.h).
  static absl::StatusOr<std::vector<Run>> Survivors(const std::vector<LogEntry>& entries);
  // Reads every chunk of one sublist (own and attached logs) and compares what they hold with its
  // record: OK, or DATA_LOSS where it is damaged.
  static absl::Status Verify(const MetaTxn& txn, LivelistId list, Txg start);
  // Forgets a sublist in which nothing is left. False, and nothing is changed, if it is not empty
  // or not there.
  static absl::StatusOr<bool> DropEmpty(WriteTxn& txn, LivelistId list, Txg start);
  // Forgets a sublist and releases its logs. Returns what its record said.
  static absl::StatusOr<SublistRecord> Remove(WriteTxn& txn, LivelistId list, Txg start);
};

}  // namespace cowshed::engine

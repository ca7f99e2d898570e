// SPDX-License-Identifier: Apache-2.0
//
// A deadlist remembers the runs a head has killed that its previous snapshot still needs. Each head
// and each snapshot has one; a snapshot takes its head's as it is made, by id.
//
// Model       A tail (plain logs, appended to at every txg) and buckets. Bucket k holds runs whose
//             births are in (k, the next bound above k]; the bounds are the sublist starts of the
//             whole lineage, a refinement of its snapshots, so a bucket never straddles a snapshot
//             and lies in exactly one sublist. Distribute() moves the tail into buckets in bites.
// Invariants  I5: every run has birth <= the owner's previous snapshot txg.
// Threads     Changes: txg thread. Reads: any thread, through any transaction.
// Cost        Append: one log append. TakeAbove: the buckets taken. Merge: the records of the
//             smaller list; no run is copied.
// On disk     kDeadBuckets: (deadlist, start, log) -> BucketRecord; the tail has start = 2^64 - 1.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/store/id_source.h"
#include "engine/tree/pointer_log.h"

namespace cowshed::engine {

struct BucketRecord {
  SectorSums sums;
  uint64_t entries = 0;
};
static_assert(sizeof(BucketRecord) == 24);

struct DeadBucket {
  Txg start = 0;
  LogId log{};
  BucketRecord record;
};

class DeadList {
 public:
  // Adds killed runs to the tail.
  static absl::Status Append(WriteTxn& txn, DeadlistId list, std::span<const Run> killed,
                             IdSource& ids);
  // Moves up to `max_entries` of the tail, rounded up to whole chunks of its log, into buckets.
  // `bounds`: sublist starts of the lineage, rising; a run goes to the greatest one below its birth
  // (0 if none). True when the tail is empty.
  static absl::StatusOr<bool> Distribute(WriteTxn& txn, DeadlistId list,
                                         std::span<const Txg> bounds, uint64_t max_entries,
                                         IdSource& ids);
  // Entries waiting in the tail.
  static absl::StatusOr<uint64_t> TailEntries(const MetaTxn& txn, DeadlistId list);
  // Sums of runs with birth > floor: a range sum over buckets, plus a look through the tail.
  // REQUIRES: floor is 0 or a bound.
  static absl::StatusOr<SectorSums> SumAbove(const MetaTxn& txn, DeadlistId list, Txg floor);
  // Detaches the buckets with start >= floor. REQUIRES: the tail is empty.
  static absl::StatusOr<std::vector<DeadBucket>> TakeAbove(WriteTxn& txn, DeadlistId list,
                                                           Txg floor);
  // Puts a bucket that was taken from another list into this one, its log with it.
  static absl::Status Adopt(WriteTxn& txn, DeadlistId list, const DeadBucket& bucket);
  // Joins two lists by moving the records of the one that has fewer; returns the id that holds
  // both.
  static absl::StatusOr<DeadlistId> Merge(WriteTxn& txn, DeadlistId a, DeadlistId b);
  // Releases up to `max_logs` logs of a forgotten list. True when nothing is left.
  static absl::StatusOr<bool> Forget(WriteTxn& txn, DeadlistId list, uint64_t max_logs);
  // All runs, tail and buckets. For the checker. DATA_LOSS also where records and logs differ.
  static absl::Status ReadAll(const MetaTxn& txn, DeadlistId list, std::vector<Run>* out);
  // The buckets, without the tail, in rising order of start.
  static absl::StatusOr<std::vector<DeadBucket>> Buckets(const MetaTxn& txn, DeadlistId list);
};

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// Gathers what keeps datasets and snapshots from being destroyed or rolled back, and turns it into
// the refusal: a reason, how many, the first few, and a query that lists them all.
//
// Threads     Externally synchronised.
// Ownership   Borrows the transaction and the table of attachments.
// Cost        Counts come from records; only names of the first 20 are looked up, and what
//             attached snapshots are snapshots of.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/attachments.h"
#include "engine/pool.h"
#include "engine/store/records.h"

namespace cowshed::engine {

class BlockerFinder {
 public:
  BlockerFinder(const MetaTxn& txn, const Attachments& attachments)
      : txn_(txn), attachments_(attachments) {}

  // A dataset that is to go, with its snapshots if `recursive`. `inside[s]`: clones of its snapshot
  // s that are to go with it.
  absl::Status ExamineDataset(DatasetId id, const DatasetRecord& record, bool recursive,
                              const std::map<SnapshotId, uint64_t>& inside);
  // A snapshot that is to go: its clones, but for `going` of them, and its holds.
  void ExamineSnapshot(SnapshotId id, const SnapshotRecord& snapshot, uint64_t going = 0);
  // The attachments of what `goes`: a dataset's head (snapshot 0) or a snapshot.
  absl::Status ExamineAttachments(
      absl::FunctionRef<bool(DatasetId dataset, SnapshotId snapshot)> goes);
  // `count` blockers of one kind that a query lists. The first reason added names the refusal.
  void Add(std::string_view reason, BlockerQuery::Target target, uint64_t count);

  bool any() const { return total_ > 0; }
  absl::StatusOr<Blockers> Get() const;
  // FAILED_PRECONDITION (or `code`) with everything found: "`what` cannot be `verb`: ...".
  absl::Status Refuse(std::string_view what, std::string_view verb,
                      absl::StatusCode code = absl::StatusCode::kFailedPrecondition) const;

 private:
  const MetaTxn& txn_;
  const Attachments& attachments_;
  std::string reason_;
  BlockerQuery query_;
  uint64_t total_ = 0;
};

// ABORTED PLAN_CHANGED unless `expected` is empty or the plan's own etag.
absl::Status CheckPlan(const DestroyPlan& plan, const std::string& expected);

}  // namespace cowshed::engine

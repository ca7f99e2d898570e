// SPDX-License-Identifier: Apache-2.0
#include "engine/blocker_finder.h"

#include <utility>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/blockers.h"
#include "engine/catalog.h"

namespace cowshed::engine {

absl::Status BlockerFinder::ExamineDataset(DatasetId id, const DatasetRecord& record,
                                           bool recursive,
                                           const std::map<SnapshotId, uint64_t>& inside) {
  if (record.snapshots > 0 && !recursive) {
    Add("DATASET_HAS_SNAPSHOTS", {BlockerKind::kSnapshot, static_cast<uint64_t>(id), 0},
        record.snapshots);
  }
  if (record.dependents == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<Neighbour> snapshots, SnapshotsAbove(txn_, id, 0));
  for (const Neighbour& neighbour : snapshots) {
    ASSIGN_OR_RETURN(const SnapshotRecord snapshot,
                     LoadRecord<SnapshotRecord>(txn_, Key(neighbour.id)));
    const auto within = inside.find(neighbour.id);
    ExamineSnapshot(neighbour.id, snapshot, within == inside.end() ? 0 : within->second);
  }
  return absl::OkStatus();
}

void BlockerFinder::ExamineSnapshot(SnapshotId id, const SnapshotRecord& snapshot, uint64_t going) {
  if (snapshot.clones > going) {
    Add("SNAPSHOT_HAS_CLONES", {BlockerKind::kClone, static_cast<uint64_t>(id), 0},
        snapshot.clones);
  }
  if (snapshot.holds > 0) {
    Add("SNAPSHOT_HAS_HOLDS", {BlockerKind::kHold, static_cast<uint64_t>(id), 0}, snapshot.holds);
  }
}

absl::Status BlockerFinder::ExamineAttachments(
    absl::FunctionRef<bool(DatasetId dataset, SnapshotId snapshot)> goes) {
  for (const AttachedObject& object : attachments_.Objects()) {
    DatasetId dataset{object.object};
    SnapshotId snapshot{};
    if (object.snapshot) {
      snapshot = SnapshotId{object.object};
      ASSIGN_OR_RETURN(const auto record, FindRecord<SnapshotRecord>(txn_, Key(snapshot)));
      if (!record.has_value()) continue;  // destroyed, and not over yet
      dataset = record->dataset;
    }
    if (!goes(dataset, snapshot)) continue;
    Add("ATTACHED", {BlockerKind::kAttachment, object.object, 0}, object.count);
  }
  return absl::OkStatus();
}

void BlockerFinder::Add(std::string_view reason, BlockerQuery::Target target, uint64_t count) {
  if (reason_.empty()) reason_ = std::string(reason);
  query_.targets.push_back(target);
  total_ += count;
}

absl::StatusOr<Blockers> BlockerFinder::Get() const {
  return MakeBlockers(txn_, attachments_, query_, total_);
}

absl::Status BlockerFinder::Refuse(std::string_view what, std::string_view verb,
                                   absl::StatusCode code) const {
  ErrorDetails details;
  details.reason = reason_;
  details.metadata["name"] = std::string(what);
  ASSIGN_OR_RETURN(details.blockers, Get());
  std::string first;
  if (!details.blockers.first.empty()) {
    const Blocker& blocker = details.blockers.first[0];
    first = StrCat(", first ", blocker.name);
    if (!blocker.client.empty()) first += StrCat(" as attached by ", blocker.client);
  }
  return MakeError(code, StrCat(what, " cannot be ", verb, ": ", total_, " in the way", first),
                   std::move(details));
}

absl::Status CheckPlan(const DestroyPlan& plan, const std::string& expected) {
  if (expected.empty() || expected == plan.plan_etag) return absl::OkStatus();
  return MakeError(absl::StatusCode::kAborted, "PLAN_CHANGED",
                   "what would be destroyed is no longer what the plan said",
                   {{"plan_etag", plan.plan_etag}});
}

}  // namespace cowshed::engine

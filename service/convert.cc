// SPDX-License-Identifier: Apache-2.0
#include "service/convert.h"

#include "engine/attachments.h"
#include "service/status.h"
#include "service/tokens.h"

namespace cowshed::service {
namespace {

using engine::Outcome;

// The wire's enums have the numbers of the engine's.
static_assert(v1::DATASET_STATE_EXPIRED == static_cast<int>(engine::DatasetState::kExpired));
static_assert(v1::OPERATION_KIND_EXPIRE == static_cast<int>(engine::OperationKind::kExpire));
static_assert(v1::OPERATION_STATE_UNDONE == static_cast<int>(engine::OperationState::kUndone));
static_assert(v1::BLOCKER_KIND_ATTACHMENT == static_cast<int>(engine::BlockerKind::kAttachment));

// Calls `set` with the time, unless there is none.
template <typename Set>
void IfTime(int64_t unix_ms, Set set) {
  if (unix_ms != 0) set(ToTimestamp(unix_ms));
}

template <typename Reply>
void FillDataset(const Outcome& outcome, Reply* out) {
  if (!outcome.datasets.empty()) Fill(outcome.datasets[0], out->mutable_dataset());
  out->set_txg(outcome.txg);
}

template <typename Reply>
void FillOperation(const Outcome& outcome, Reply* out) {
  if (outcome.operation) Fill(*outcome.operation, out->mutable_operation());
}

template <typename Reply>
void FillDestroy(const Outcome& outcome, Tokens& tokens, Reply* out) {
  if (outcome.count > 0) out->set_txg(outcome.txg);
  FillOperation(outcome, out);
  if (!outcome.plan) return;
  const engine::DestroyPlan& plan = *outcome.plan;
  v1::DestroyPlan* to = out->mutable_plan();
  to->set_dataset_count(plan.dataset_count);
  to->set_snapshot_count(plan.snapshot_count);
  to->set_deferred_count(plan.deferred_count);
  to->set_freed_bytes(plan.freed_bytes);
  for (const auto& name : plan.names) to->add_names(name);
  to->set_entries(plan.entries);
  to->set_predicted_seconds(plan.predicted_seconds);
  if (outcome.count == 0) to->set_plan_etag(plan.plan_etag);  // else it is done, not planned
  if (plan.blockers.total > 0) FillBlockers(plan.blockers, tokens, to->mutable_blockers());
}

}  // namespace

google::protobuf::Timestamp ToTimestamp(int64_t unix_ms) {
  google::protobuf::Timestamp time;
  time.set_seconds(unix_ms / 1000);
  time.set_nanos(static_cast<int32_t>(unix_ms % 1000) * 1000000);
  return time;
}

google::protobuf::Duration ToDuration(int64_t milliseconds) {
  google::protobuf::Duration duration;
  duration.set_seconds(milliseconds / 1000);
  duration.set_nanos(static_cast<int32_t>(milliseconds % 1000) * 1000000);
  return duration;
}

void Fill(const engine::DatasetInfo& info, v1::Dataset* out) {
  out->set_name(info.name);
  out->set_uid(info.uid);
  out->set_create_txg(info.create_txg);
  IfTime(info.create_time_ms, [&](auto time) { *out->mutable_create_time() = time; });
  out->set_state(static_cast<v1::DatasetState>(info.state));
  out->set_size_bytes(info.size_bytes);
  out->set_block_size_bytes(info.block_bytes);
  out->set_origin(info.origin);
  out->set_origin_uid(info.origin_uid);
  out->set_parent(info.parent);
  out->mutable_labels()->insert(info.labels.begin(), info.labels.end());
  out->set_etag(info.etag);
  if (info.quota_bytes) out->set_quota_bytes(*info.quota_bytes);
  IfTime(info.expire_time_ms, [&](auto time) { *out->mutable_expire_time() = time; });
  out->set_used_bytes(info.used_bytes);
  out->set_referenced_bytes(info.referenced_bytes);
  out->set_written_bytes(info.written_bytes);
  out->set_logical_bytes(info.logical_bytes);
  out->set_snapshot_count(info.snapshot_count);
  out->set_clone_count(info.clone_count);
}

void Fill(const engine::SnapshotInfo& info, v1::Snapshot* out) {
  out->set_name(info.name);
  out->set_uid(info.uid);
  out->set_dataset_uid(info.dataset_uid);
  out->set_create_txg(info.create_txg);
  IfTime(info.create_time_ms, [&](auto time) { *out->mutable_create_time() = time; });
  out->set_size_bytes(info.size_bytes);
  out->set_block_size_bytes(info.block_bytes);
  out->set_referenced_bytes(info.referenced_bytes);
  out->set_written_bytes(info.written_bytes);
  out->set_unique_bytes(info.unique_bytes);
  out->set_logical_bytes(info.logical_bytes);
  out->set_clone_count(info.clone_count);
  out->set_hold_count(info.hold_count);
  out->set_deferred(info.deferred);
  out->mutable_labels()->insert(info.labels.begin(), info.labels.end());
}

void Fill(const engine::HoldInfo& info, v1::Hold* out) {
  out->set_snapshot(info.snapshot);
  out->set_snapshot_uid(info.snapshot_uid);
  out->set_tag(info.tag);
  out->set_owner(info.owner);
  IfTime(info.create_time_ms, [&](auto time) { *out->mutable_create_time() = time; });
  IfTime(info.expire_time_ms, [&](auto time) { *out->mutable_expire_time() = time; });
}

void Fill(const engine::OperationInfo& info, v1::Operation* out) {
  out->set_name(info.name);
  out->set_kind(static_cast<v1::OperationKind>(info.kind));
  out->set_state(static_cast<v1::OperationState>(info.state));
  out->set_target(info.target);
  out->set_target_count(info.target_count);
  out->set_done_bytes(info.done_bytes);
  out->set_total_bytes(info.total_bytes);
  out->set_done_entries(info.done_entries);
  out->set_total_entries(info.total_entries);
  out->set_rate_bytes_per_second(info.rate_bytes_per_second);
  if (info.eta_ms > 0) *out->mutable_eta() = ToDuration(info.eta_ms);
  if (!info.error.empty()) {
    // A damaged list is lost data; any other failure is the server's own.
    const bool stalled = info.state == engine::OperationState::kStalled;
    out->mutable_error()->set_code(
        static_cast<int>(stalled ? absl::StatusCode::kDataLoss : absl::StatusCode::kInternal));
    out->mutable_error()->set_message(info.error);
  }
  IfTime(info.create_time_ms, [&](auto time) { *out->mutable_create_time() = time; });
  IfTime(info.start_time_ms, [&](auto time) { *out->mutable_start_time() = time; });
  IfTime(info.update_time_ms, [&](auto time) { *out->mutable_update_time() = time; });
  IfTime(info.finish_time_ms, [&](auto time) { *out->mutable_finish_time() = time; });
  IfTime(info.wait_until_ms, [&](auto time) { *out->mutable_wait_until() = time; });
  out->set_txg(info.txg);
  out->set_errors(info.errors);
  for (const engine::DamagedPlace& place : info.damaged) {
    v1::DamagedPlace* to = out->add_damaged();
    to->set_name(place.name);
    to->set_first_block(place.first_block);
    to->set_block_count(place.block_count);
    to->set_node(place.node);
  }
}

void Fill(const engine::Blocker& blocker, v1::Blocker* out) {
  out->set_kind(static_cast<v1::BlockerKind>(blocker.kind));
  out->set_name(blocker.name);
  out->set_blocked_name(blocker.blocked_name);
  out->set_tag(blocker.tag);
  out->set_attachment(blocker.attachment);
  out->set_client(blocker.client);
  IfTime(blocker.since_ms, [&](auto time) { *out->mutable_since_time() = time; });
}

void Fill(const engine::AttachmentInfo& info, v1::Attachment* out) {
  out->set_id(info.id);
  out->set_name(info.name);
  out->set_uid(info.uid);
  out->set_read_only(info.read_only);
  out->set_shared(info.shared);
  out->set_client(info.client);
  out->set_protocol(info.protocol);
  *out->mutable_since_time() = ToTimestamp(info.since_ms);
  out->set_read_bytes(info.read_bytes);
  out->set_written_bytes(info.written_bytes);
  out->set_requests(info.requests);
  out->set_ending(info.ending);
}

void Fill(const engine::SublistInfo& info, v1::Sublist* out) {
  out->set_start_txg(info.start_txg);
  out->set_entries(info.entries);
  out->set_blocks(info.blocks);
  out->set_bytes(info.bytes);
  out->set_logs(info.logs);
  out->set_allocated_blocks(info.allocated_blocks);
}

void Fill(const engine::ReclaimInfo& info, v1::Reclaim* out) {
  out->set_paused(info.paused);
  out->set_rate_bytes_per_second(info.rate_bytes_per_second);
  out->mutable_txg_budget()->set_seconds(static_cast<int64_t>(info.txg_budget_us / 1000000));
  out->mutable_txg_budget()->set_nanos(static_cast<int32_t>(info.txg_budget_us % 1000000) * 1000);
  out->set_pending_count(info.pending_items);
  out->set_pending_bytes(info.pending_bytes);
  out->set_stalled_bytes(info.stalled_bytes);
  out->set_waiting_count(info.waiting_items);
  out->set_waiting_bytes(info.waiting_bytes);
  IfTime(info.oldest_pending_ms, [&](auto time) { *out->mutable_oldest_pending_time() = time; });
  IfTime(info.next_window_end_ms, [&](auto time) { *out->mutable_next_window_end_time() = time; });
}

void Fill(const engine::CheckReport& report, v1::CheckResponse* out) {
  constexpr size_t kFindingsSent = 100;
  out->set_ok(report.ok());
  out->set_total_findings(report.total_findings);
  for (const auto& finding : report.findings) {
    if (out->findings_size() == kFindingsSent) break;
    v1::CheckFinding* to = out->add_findings();
    to->set_invariant(finding.invariant);
    to->set_name(finding.name);
    to->set_message(finding.message);
  }
  out->set_dataset_count(report.dataset_count);
  out->set_snapshot_count(report.snapshot_count);
  out->set_block_count(report.block_count);
  out->set_referenced_bytes(report.referenced_bytes);
  out->set_txg(report.txg);
  out->set_skipped(report.skipped);
}

void Fill(const Outcome& outcome, Tokens&, v1::CreateDatasetResponse* out) {
  FillDataset(outcome, out);
}

void Fill(const Outcome& outcome, Tokens&, v1::UpdateDatasetResponse* out) {
  FillDataset(outcome, out);
  FillOperation(outcome, out);
}

void Fill(const Outcome& outcome, Tokens&, v1::CreateSnapshotsResponse* out) {
  if (outcome.count == 0) return;
  out->set_txg(outcome.txg);
  out->set_count(outcome.count);
  for (const auto& snapshot : outcome.snapshots) Fill(snapshot, out->add_snapshots());
  IfTime(outcome.time_ms, [&](auto time) { *out->mutable_create_time() = time; });
}

void Fill(const Outcome& outcome, Tokens&, v1::CloneDatasetResponse* out) {
  FillDataset(outcome, out);
  FillOperation(outcome, out);
}

void Fill(const Outcome& outcome, Tokens& tokens, v1::DestroyDatasetsResponse* out) {
  FillDestroy(outcome, tokens, out);
}

void Fill(const Outcome& outcome, Tokens& tokens, v1::DestroySnapshotsResponse* out) {
  FillDestroy(outcome, tokens, out);
}

void Fill(const Outcome& outcome, Tokens&, v1::UndestroyResponse* out) {
  out->set_txg(outcome.txg);
  out->set_count(outcome.count);
  for (const auto& dataset : outcome.datasets) Fill(dataset, out->add_datasets());
  FillOperation(outcome, out);
}

void Fill(const Outcome& outcome, Tokens&, v1::HoldSnapshotResponse* out) {
  if (outcome.hold) Fill(*outcome.hold, out->mutable_hold());
  out->set_txg(outcome.txg);
}

void Fill(const Outcome& outcome, Tokens&, v1::ReleaseHoldResponse* out) {
  if (outcome.hold) Fill(*outcome.hold, out->mutable_hold());
  out->set_txg(outcome.txg);
  out->set_snapshot_destroyed(outcome.snapshot_destroyed);
}

void Fill(const Outcome& outcome, Tokens&, v1::RollbackDatasetResponse* out) {
  FillDataset(outcome, out);
  FillOperation(outcome, out);
  out->set_target(outcome.target);
}

void Fill(const Outcome& outcome, Tokens&, v1::PromoteDatasetResponse* out) {
  FillDataset(outcome, out);
  if (outcome.datasets.size() > 1) Fill(outcome.datasets[1], out->mutable_former_parent());
  out->set_moved_snapshot_count(outcome.count);
}

void Fill(const Outcome& outcome, Tokens&, v1::RenameDatasetResponse* out) {
  FillDataset(outcome, out);
}

void Fill(const Outcome& outcome, Tokens&, v1::RenameSnapshotResponse* out) {
  if (!outcome.snapshots.empty()) Fill(outcome.snapshots[0], out->mutable_snapshot());
  out->set_txg(outcome.txg);
}

void Fill(const Outcome& outcome, Tokens&, v1::StartScrubResponse* out) {
  Fill(*outcome.operation, out->mutable_operation());
  out->set_txg(outcome.txg);
}

void Fill(const Outcome& outcome, Tokens&, v1::CancelScrubResponse* out) {
  Fill(*outcome.operation, out->mutable_operation());
  out->set_txg(outcome.txg);
}

void Fill(const Outcome& outcome, Tokens&, v1::BackupResponse* out) {
  Fill(*outcome.operation, out->mutable_operation());
  out->set_txg(outcome.txg);
}

}  // namespace cowshed::service

// SPDX-License-Identifier: Apache-2.0
//
// The engine's nouns as messages: one overload of Fill per noun and per reply, so that a handler
// says only what to do, never how it looks on the wire. Requests become arguments in parse.h.
//
// Invariants  A time or duration of 0 in the engine ("never", "none") is an absent field.
// Threads     Free functions, thread-safe.
#pragma once

#include <chrono>
#include <cstdint>

#include "cowshed/v1/attachment.pb.h"
#include "cowshed/v1/dataset.pb.h"
#include "cowshed/v1/error.pb.h"
#include "cowshed/v1/operation.pb.h"
#include "cowshed/v1/pool.pb.h"
#include "cowshed/v1/snapshot.pb.h"
#include "engine/pool.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/timestamp.pb.h"

namespace cowshed::service {

class Tokens;

google::protobuf::Timestamp ToTimestamp(int64_t unix_ms);
google::protobuf::Duration ToDuration(int64_t milliseconds);

void Fill(const engine::DatasetInfo& info, v1::Dataset* out);
void Fill(const engine::SnapshotInfo& info, v1::Snapshot* out);
void Fill(const engine::HoldInfo& info, v1::Hold* out);
void Fill(const engine::OperationInfo& info, v1::Operation* out);
void Fill(const engine::Blocker& blocker, v1::Blocker* out);
void Fill(const engine::AttachmentInfo& info, v1::Attachment* out);
void Fill(const engine::SublistInfo& info, v1::Sublist* out);
void Fill(const engine::ReclaimInfo& info, v1::Reclaim* out);
void Fill(const engine::CheckReport& report, v1::CheckResponse* out);

// What a lifecycle call answers. Plans need the tokens for their list of blockers.
void Fill(const engine::Outcome& outcome, Tokens& tokens, v1::CreateDatasetResponse* out);
void Fill(const engine::Outcome& outcome, Tokens& tokens, v1::UpdateDatasetResponse* out);
void Fill(const engine::Outcome& outcome, Tokens& tokens, v1::CreateSnapshotsResponse* out);
void Fill(const engine::Outcome& outcome, Tokens& tokens, v1::CloneDatasetResponse* out);
void Fill(const engine::Outcome& outcome, Tokens& tokens, v1::DestroyDatasetsResponse* out);
void Fill(const engine::Outcome& outcome, Tokens& tokens, v1::DestroySnapshotsResponse* out);
void Fill(const engine::Outcome& outcome, Tokens& tokens, v1::UndestroyResponse* out);
void Fill(const engine::Outcome& outcome, Tokens& tokens, v1::HoldSnapshotResponse* out);
void Fill(const engine::Outcome& outcome, Tokens& tokens, v1::ReleaseHoldResponse* out);
void Fill(const engine::Outcome& outcome, Tokens& tokens, v1::RollbackDatasetResponse* out);
void Fill(const engine::Outcome& outcome, Tokens& tokens, v1::PromoteDatasetResponse* out);
void Fill(const engine::Outcome& outcome, Tokens& tokens, v1::RenameDatasetResponse* out);
void Fill(const engine::Outcome& outcome, Tokens& tokens, v1::RenameSnapshotResponse* out);
void Fill(const engine::Outcome& outcome, Tokens& tokens, v1::StartScrubResponse* out);
void Fill(const engine::Outcome& outcome, Tokens& tokens, v1::CancelScrubResponse* out);
void Fill(const engine::Outcome& outcome, Tokens& tokens, v1::BackupResponse* out);

}  // namespace cowshed::service

// SPDX-License-Identifier: Apache-2.0
//
// Requests as arguments of the engine: one overload of Parse per lifecycle request, and the filters
// of the lists. Checks what a request can get wrong by itself (fields that exclude each other,
// ranges, masks); names, labels and what exists are the engine's to judge.
//
// Errors      INVALID_ARGUMENT with the reason and metadata `field`.
// Threads     Free functions, thread-safe. They read the wall clock to turn a ttl into a time.
#pragma once

#include <string>
#include <tuple>

#include "absl/status/statusor.h"
#include "cowshed/v1/attachment.pb.h"
#include "cowshed/v1/dataset.pb.h"
#include "cowshed/v1/operation.pb.h"
#include "cowshed/v1/pool.pb.h"
#include "cowshed/v1/snapshot.pb.h"
#include "engine/pool.h"
#include "service/tokens.h"

namespace cowshed::service {

inline constexpr uint32_t kDefaultPageSize = 100;
inline constexpr uint32_t kMaxPageSize = 1000;
inline constexpr size_t kMaxRequestIdBytes = 64;

// Now, in unix milliseconds, by the wall clock.
int64_t NowMs();

// Positional arguments of the verbs that have no struct of their own.
using UndestroyArgs = std::tuple<std::string>;                                // operation
using ReleaseHoldArgs = std::tuple<std::string, std::string>;                 // snapshot, tag
using PromoteDatasetArgs = std::tuple<std::string, std::string>;              // name, etag
using RenameDatasetArgs = std::tuple<std::string, std::string, std::string>;  // name, new, etag
using RenameSnapshotArgs = std::tuple<std::string, std::string>;              // name, new name

absl::StatusOr<engine::CreateDatasetArgs> Parse(const v1::CreateDatasetRequest& request);
absl::StatusOr<engine::UpdateDatasetArgs> Parse(const v1::UpdateDatasetRequest& request);
absl::StatusOr<engine::CreateSnapshotsArgs> Parse(const v1::CreateSnapshotsRequest& request);
absl::StatusOr<engine::CloneDatasetArgs> Parse(const v1::CloneDatasetRequest& request);
absl::StatusOr<engine::DestroyDatasetsArgs> Parse(const v1::DestroyDatasetsRequest& request);
absl::StatusOr<engine::DestroySnapshotsArgs> Parse(const v1::DestroySnapshotsRequest& request);
absl::StatusOr<UndestroyArgs> Parse(const v1::UndestroyRequest& request);
absl::StatusOr<engine::UpdateReclaimArgs> Parse(const v1::UpdateReclaimRequest& request);
absl::StatusOr<engine::StartScrubArgs> Parse(const v1::StartScrubRequest& request);
absl::StatusOr<engine::CancelScrubArgs> Parse(const v1::CancelScrubRequest& request);
absl::StatusOr<engine::BackupArgs> Parse(const v1::BackupRequest& request);
absl::StatusOr<engine::HoldSnapshotArgs> Parse(const v1::HoldSnapshotRequest& request);
absl::StatusOr<ReleaseHoldArgs> Parse(const v1::ReleaseHoldRequest& request);
absl::StatusOr<engine::RollbackDatasetArgs> Parse(const v1::RollbackDatasetRequest& request);
absl::StatusOr<PromoteDatasetArgs> Parse(const v1::PromoteDatasetRequest& request);
absl::StatusOr<RenameDatasetArgs> Parse(const v1::RenameDatasetRequest& request);
absl::StatusOr<RenameSnapshotArgs> Parse(const v1::RenameSnapshotRequest& request);

// The filters of a list; position and page size come from ParsePage.
absl::StatusOr<engine::ListArgs> Parse(const v1::ListDatasetsRequest& request);
absl::StatusOr<engine::ListArgs> Parse(const v1::ListSnapshotsRequest& request);
absl::StatusOr<engine::ListArgs> Parse(const v1::ListHoldsRequest& request);
absl::StatusOr<engine::ListArgs> Parse(const v1::ListOperationsRequest& request);
absl::StatusOr<engine::ListArgs> Parse(const v1::ListBlockersRequest& request);
absl::StatusOr<engine::ListArgs> Parse(const v1::ListAttachmentsRequest& request);

// page_size as asked for: 100 for none, at most 1,000.
absl::StatusOr<uint32_t> ParsePageSize(int32_t page_size);

// Filters, position and page size of a list request.
template <typename Request>
absl::StatusOr<engine::ListArgs> ParsePage(const Request& request, Tokens& tokens) {
  auto args = Parse(request);
  if (!args.ok()) return args.status();
  const auto page_size = ParsePageSize(request.page_size());
  if (!page_size.ok()) return page_size.status();
  auto position = tokens.OpenPosition(request);
  if (!position.ok()) return position.status();
  args->page_size = *page_size;
  args->position = *std::move(position);
  return args;
}

}  // namespace cowshed::service

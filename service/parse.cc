// SPDX-License-Identifier: Apache-2.0
#include "service/parse.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "service/status.h"

namespace cowshed::service {
namespace {

constexpr size_t kMaxLabelKeyBytes = 63;
constexpr size_t kMaxLabelValueBytes = 255;
// The year 9999: what a Timestamp can hold.
constexpr int64_t kMaxTimeMs = 253402300799999;

bool IsLabelKey(std::string_view key) {
  const auto alnum = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z'); };
  return !key.empty() && key.size() <= kMaxLabelKeyBytes && alnum(key[0]) &&
         std::all_of(key.begin(), key.end(), [&](char c) {
           return alnum(c) || c == '.' || c == '_' || c == '/' || c == '-';
         });
}

// Keys and values by themselves; how many there may be is the engine's to judge.
absl::StatusOr<engine::Labels> ParseLabels(
    const google::protobuf::Map<std::string, std::string>& labels) {
  for (const auto& [key, value] : labels) {
    const bool valid = IsLabelKey(key);
    if (valid && value.size() <= kMaxLabelValueBytes) continue;
    return Error(
        absl::StatusCode::kInvalidArgument, v1::INVALID_LABEL,
        engine::StrCat("label ", key,
                       valid ? ": its value is longer than 255 bytes" : ": is no valid key"),
        {{"label", key}});
  }
  return engine::Labels(labels.begin(), labels.end());
}

// `@latest` names whatever is the newest: nothing can be called so, and a call that takes something
// away says what.
absl::Status CheckNotLatest(std::string_view field, std::string_view name) {
  constexpr std::string_view kLatest = "latest";
  const size_t at = name.rfind('@');
  const std::string_view last = at == std::string_view::npos ? name : name.substr(at + 1);
  if (last != kLatest) return absl::OkStatus();
  return Error(absl::StatusCode::kInvalidArgument, v1::INVALID_NAME,
               engine::StrCat(name, " can not be used here: name the snapshot itself"),
               {{"field", std::string(field)}, {"name", std::string(name)}});
}

template <typename Names>
absl::Status CheckNoneLatest(const Names& names) {
  for (const auto& name : names) RETURN_IF_ERROR(CheckNotLatest("names", name));
  return absl::OkStatus();
}

std::vector<std::string> ToVector(const google::protobuf::RepeatedPtrField<std::string>& strings) {
  return {strings.begin(), strings.end()};
}

template <typename Request>
absl::Status CheckRequestId(const Request& request) {
  if (request.request_id().size() <= kMaxRequestIdBytes) return absl::OkStatus();
  return InvalidField("request_id", "is longer than 64 bytes");
}

absl::StatusOr<int64_t> ParseTime(const google::protobuf::Timestamp& time) {
  if (time.nanos() < 0 || time.nanos() > 999999999 || time.seconds() > kMaxTimeMs / 1000 ||
      time.seconds() < 0) {
    return InvalidField("expire_time", "is no valid time");
  }
  const int64_t time_ms = time.seconds() * 1000 + time.nanos() / 1000000;
  if (time_ms <= NowMs()) return InvalidField("expire_time", "has passed");
  return time_ms;
}

absl::StatusOr<int64_t> ParseTtl(const google::protobuf::Duration& ttl) {
  const int64_t now_ms = NowMs();
  if (ttl.nanos() < 0 || ttl.nanos() > 999999999 || ttl.seconds() < 0 ||
      ttl.seconds() > (kMaxTimeMs - now_ms) / 1000 - 1) {
    return InvalidField("ttl", "is negative or too long");
  }
  const int64_t ttl_ms = ttl.seconds() * 1000 + (ttl.nanos() + 999999) / 1000000;
  if (ttl_ms == 0) return InvalidField("ttl", "is zero");
  return now_ms + ttl_ms;
}

// The expire_time a request sets, by time or by ttl; 0 if it sets none.
template <typename Request>
absl::StatusOr<int64_t> ParseExpiry(const Request& request) {
  if (request.has_expire_time()) return ParseTime(request.expire_time());
  if (request.has_ttl()) return ParseTtl(request.ttl());
  return 0;
}

// A length of time that may be 0.
absl::StatusOr<int64_t> ParseMicroseconds(std::string_view field,
                                          const google::protobuf::Duration& duration) {
  constexpr int64_t kMaxSeconds = int64_t{366} * 86400;
  if (duration.nanos() < 0 || duration.nanos() > 999999999 || duration.seconds() < 0 ||
      duration.seconds() > kMaxSeconds) {
    return InvalidField(field, "is negative or too long");
  }
  return duration.seconds() * 1000000 + (duration.nanos() + 999) / 1000;
}

absl::Status CheckNameCount(int count) {
  if (count <= static_cast<int>(engine::kMaxNamesPerCall)) return absl::OkStatus();
  return Error(absl::StatusCode::kInvalidArgument, v1::TOO_MANY_NAMES,
               engine::StrCat(count, " names in one call, at most ", engine::kMaxNamesPerCall),
               {{"limit", std::to_string(engine::kMaxNamesPerCall)}});
}

absl::Status InvalidMask(std::string_view field, std::string_view problem) {
  return Error(absl::StatusCode::kInvalidArgument, v1::INVALID_UPDATE_MASK,
               engine::StrCat("update_mask: ", field, " ", problem),
               {{"field", std::string(field)}});
}

// Applies one path of an update mask.
absl::Status ApplyMaskPath(std::string_view path, const v1::Dataset& dataset,
                           engine::UpdateDatasetArgs* args) {
  if (path == "size_bytes") {
    args->size_bytes = dataset.size_bytes();
  } else if (path == "quota_bytes") {
    args->quota_bytes.emplace();
    if (dataset.has_quota_bytes()) *args->quota_bytes = dataset.quota_bytes();
  } else if (path == "expire_time") {
    args->expire_time_ms = 0;
    if (dataset.has_expire_time()) {
      ASSIGN_OR_RETURN(args->expire_time_ms, ParseTime(dataset.expire_time()));
    }
  } else if (v1::Dataset::descriptor()->FindFieldByName(std::string(path)) != nullptr) {
    return InvalidMask(path, "can not be set by an update");
  } else {
    return InvalidMask(path, "is no field of a dataset");
  }
  return absl::OkStatus();
}

absl::Status Exclusive(bool both, std::string_view field, std::string_view other) {
  return both ? InvalidField(field, engine::StrCat("can not be combined with ", other))
              : absl::OkStatus();
}

// A filter by enum: one of the values this server knows.
template <typename IsValid>
absl::StatusOr<uint8_t> ParseEnum(int value, IsValid is_valid, std::string_view field) {
  if (!is_valid(value)) return InvalidField(field, "has an unknown value");
  return static_cast<uint8_t>(value);
}

}  // namespace

int64_t NowMs() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

absl::StatusOr<uint32_t> ParsePageSize(int32_t page_size) {
  if (page_size < 0) return InvalidField("page_size", "is negative");
  if (page_size == 0) return kDefaultPageSize;
  return std::min<uint32_t>(page_size, kMaxPageSize);
}

absl::StatusOr<engine::CreateDatasetArgs> Parse(const v1::CreateDatasetRequest& request) {
  RETURN_IF_ERROR(CheckRequestId(request));
  engine::CreateDatasetArgs args;
  args.name = request.name();
  args.size_bytes = request.size_bytes();
  if (request.has_block_size_bytes()) {
    if (request.block_size_bytes() > std::numeric_limits<uint32_t>::max()) {
      const std::string size = std::to_string(request.block_size_bytes());
      return Error(absl::StatusCode::kInvalidArgument, v1::INVALID_BLOCK_SIZE,
                   engine::StrCat("block size ", size, " is no power of two from 4096 to 131072"),
                   {{"block_size_bytes", size}});
    }
    args.block_bytes = static_cast<uint32_t>(request.block_size_bytes());
  }
  ASSIGN_OR_RETURN(args.labels, ParseLabels(request.labels()));
  if (request.has_quota_bytes()) args.quota_bytes = request.quota_bytes();
  ASSIGN_OR_RETURN(args.expire_time_ms, ParseExpiry(request));
  return args;
}

absl::StatusOr<engine::UpdateDatasetArgs> Parse(const v1::UpdateDatasetRequest& request) {
  RETURN_IF_ERROR(CheckRequestId(request));
  engine::UpdateDatasetArgs args;
  args.name = request.dataset().name();
  args.etag = request.etag();
  for (const auto& path : request.update_mask().paths()) {
    RETURN_IF_ERROR(ApplyMaskPath(path, request.dataset(), &args));
  }
  if (request.has_ttl()) {
    RETURN_IF_ERROR(Exclusive(args.expire_time_ms.has_value(), "ttl", "expire_time"));
    ASSIGN_OR_RETURN(args.expire_time_ms, ParseTtl(request.ttl()));
  }
  ASSIGN_OR_RETURN(args.set_labels, ParseLabels(request.set_labels()));
  args.force = request.force();
  args.remove_labels = ToVector(request.remove_labels());
  for (const auto& key : args.remove_labels) {
    if (args.set_labels.contains(key)) {
      return Error(absl::StatusCode::kInvalidArgument, v1::INVALID_LABEL,
                   engine::StrCat("label ", key, " is both set and removed"), {{"label", key}});
    }
  }
  return args;
}

absl::StatusOr<engine::CreateSnapshotsArgs> Parse(const v1::CreateSnapshotsRequest& request) {
  RETURN_IF_ERROR(CheckRequestId(request));
  RETURN_IF_ERROR(CheckNameCount(request.names_size()));
  const bool by_prefix = !request.prefix().empty();
  RETURN_IF_ERROR(Exclusive(by_prefix && request.names_size() > 0, "prefix", "names"));
  if (by_prefix != !request.snapshot().empty()) {
    return InvalidField("snapshot", "goes together with prefix");
  }
  RETURN_IF_ERROR(CheckNoneLatest(request.names()));
  if (by_prefix) RETURN_IF_ERROR(CheckNotLatest("snapshot", request.snapshot()));
  engine::CreateSnapshotsArgs args;
  args.names = ToVector(request.names());
  args.prefix = request.prefix();
  args.snapshot = request.snapshot();
  ASSIGN_OR_RETURN(args.labels, ParseLabels(request.labels()));
  return args;
}

absl::StatusOr<engine::CloneDatasetArgs> Parse(const v1::CloneDatasetRequest& request) {
  RETURN_IF_ERROR(CheckRequestId(request));
  if (!request.replace() && !request.replace_etag().empty()) {
    return InvalidField("replace_etag", "goes together with replace");
  }
  if (!request.replace() && request.force()) {
    return InvalidField("force", "goes together with replace");
  }
  engine::CloneDatasetArgs args;
  args.source = request.source();
  args.name = request.name();
  args.replace = request.replace();
  args.replace_etag = request.replace_etag();
  args.force = request.force();
  ASSIGN_OR_RETURN(args.labels, ParseLabels(request.labels()));
  if (request.has_quota_bytes()) args.quota_bytes = request.quota_bytes();
  ASSIGN_OR_RETURN(args.expire_time_ms, ParseExpiry(request));
  return args;
}

absl::StatusOr<engine::DestroyDatasetsArgs> Parse(const v1::DestroyDatasetsRequest& request) {
  RETURN_IF_ERROR(CheckRequestId(request));
  RETURN_IF_ERROR(CheckNameCount(request.names_size()));
  if (request.names().empty() == request.prefix().empty()) {
    return InvalidField("names", "or prefix must be given, and not both");
  }
  engine::DestroyDatasetsArgs args;
  args.names = ToVector(request.names());
  args.prefix = request.prefix();
  args.recursive = request.recursive();
  args.cascade = request.cascade();
  args.allow_missing = request.allow_missing();
  args.validate_only = request.validate_only();
  args.plan_etag = request.plan_etag();
  args.etags = {request.etags().begin(), request.etags().end()};
  ASSIGN_OR_RETURN(const int64_t window_us,
                   ParseMicroseconds("reclaim_after", request.reclaim_after()));
  args.reclaim_after_ms = (window_us + 999) / 1000;
  args.force = request.force();
  return args;
}

absl::StatusOr<UndestroyArgs> Parse(const v1::UndestroyRequest& request) {
  RETURN_IF_ERROR(CheckRequestId(request));
  return UndestroyArgs(request.operation());
}

absl::StatusOr<engine::UpdateReclaimArgs> Parse(const v1::UpdateReclaimRequest& request) {
  engine::UpdateReclaimArgs args;
  if (request.has_paused()) args.paused = request.paused();
  if (request.has_rate_bytes_per_second()) {
    args.rate_bytes_per_second = request.rate_bytes_per_second();
  }
  if (request.has_txg_budget()) {
    ASSIGN_OR_RETURN(const int64_t budget_us,
                     ParseMicroseconds("txg_budget", request.txg_budget()));
    args.txg_budget_us = static_cast<uint64_t>(budget_us);
  }
  return args;
}

absl::StatusOr<engine::StartScrubArgs> Parse(const v1::StartScrubRequest& request) {
  RETURN_IF_ERROR(CheckRequestId(request));
  engine::StartScrubArgs args;
  if (request.has_rate_bytes_per_second()) {
    args.rate_bytes_per_second = request.rate_bytes_per_second();
  }
  return args;
}

absl::StatusOr<engine::CancelScrubArgs> Parse(const v1::CancelScrubRequest& request) {
  RETURN_IF_ERROR(CheckRequestId(request));
  return engine::CancelScrubArgs{request.pause()};
}

absl::StatusOr<engine::BackupArgs> Parse(const v1::BackupRequest& request) {
  RETURN_IF_ERROR(CheckRequestId(request));
  return engine::BackupArgs{request.directory()};
}

absl::StatusOr<engine::DestroySnapshotsArgs> Parse(const v1::DestroySnapshotsRequest& request) {
  RETURN_IF_ERROR(CheckRequestId(request));
  RETURN_IF_ERROR(CheckNameCount(request.names_size()));
  if (request.names().empty() != request.has_range()) {
    return InvalidField("names", "or range must be given, and not both");
  }
  if (request.has_range() && request.range().dataset().empty()) {
    return InvalidField("range.dataset", "is missing");
  }
  RETURN_IF_ERROR(CheckNoneLatest(request.names()));
  engine::DestroySnapshotsArgs args;
  args.names = ToVector(request.names());
  args.range_dataset = request.range().dataset();
  args.range_first = request.range().first();
  args.range_last = request.range().last();
  args.defer = request.defer();
  args.allow_missing = request.allow_missing();
  args.validate_only = request.validate_only();
  args.plan_etag = request.plan_etag();
  args.force = request.force();
  return args;
}

absl::StatusOr<engine::HoldSnapshotArgs> Parse(const v1::HoldSnapshotRequest& request) {
  RETURN_IF_ERROR(CheckRequestId(request));
  engine::HoldSnapshotArgs args;
  args.snapshot = request.snapshot();
  args.tag = request.tag();
  args.owner = request.owner();
  ASSIGN_OR_RETURN(args.expire_time_ms, ParseExpiry(request));
  return args;
}

absl::StatusOr<ReleaseHoldArgs> Parse(const v1::ReleaseHoldRequest& request) {
  RETURN_IF_ERROR(CheckRequestId(request));
  RETURN_IF_ERROR(CheckNotLatest("snapshot", request.snapshot()));
  return ReleaseHoldArgs(request.snapshot(), request.tag());
}

absl::StatusOr<engine::RollbackDatasetArgs> Parse(const v1::RollbackDatasetRequest& request) {
  RETURN_IF_ERROR(CheckRequestId(request));
  engine::RollbackDatasetArgs args;
  args.name = request.name();
  if (request.target_case() == v1::RollbackDatasetRequest::kOrigin) {
    if (!request.origin()) return InvalidField("origin", "can only be true");
    args.to_origin = true;
  } else if (request.target_case() == v1::RollbackDatasetRequest::kSnapshot) {
    const std::string own = request.name() + "@";
    if (request.snapshot().compare(0, own.size(), own) != 0) {
      return InvalidField("snapshot", engine::StrCat("is no snapshot of ", request.name()));
    }
    args.snapshot = request.snapshot().substr(own.size());
    if (args.snapshot.empty()) return InvalidField("snapshot", "names no snapshot");
    if (args.snapshot == "latest") args.snapshot.clear();
  }
  args.expected_target = request.expected_target();
  args.destroy_newer = request.destroy_newer();
  args.force = request.force();
  args.etag = request.etag();
  return args;
}

absl::StatusOr<PromoteDatasetArgs> Parse(const v1::PromoteDatasetRequest& request) {
  RETURN_IF_ERROR(CheckRequestId(request));
  return PromoteDatasetArgs(request.name(), request.etag());
}

absl::StatusOr<RenameDatasetArgs> Parse(const v1::RenameDatasetRequest& request) {
  RETURN_IF_ERROR(CheckRequestId(request));
  return RenameDatasetArgs(request.name(), request.new_name(), request.etag());
}

absl::StatusOr<RenameSnapshotArgs> Parse(const v1::RenameSnapshotRequest& request) {
  RETURN_IF_ERROR(CheckRequestId(request));
  RETURN_IF_ERROR(CheckNotLatest("name", request.name()));
  RETURN_IF_ERROR(CheckNotLatest("new_name", request.new_name()));
  return RenameSnapshotArgs(request.name(), request.new_name());
}

absl::StatusOr<engine::ListArgs> Parse(const v1::ListDatasetsRequest& request) {
  engine::ListArgs args;
  args.prefix = request.prefix();
  args.origin = request.origin();
  ASSIGN_OR_RETURN(args.labels, ParseLabels(request.labels()));
  ASSIGN_OR_RETURN(args.state, ParseEnum(request.state(), v1::DatasetState_IsValid, "state"));
  return args;
}

absl::StatusOr<engine::ListArgs> Parse(const v1::ListSnapshotsRequest& request) {
  RETURN_IF_ERROR(
      Exclusive(!request.dataset().empty() && !request.prefix().empty(), "prefix", "dataset"));
  engine::ListArgs args;
  args.parent = request.dataset();
  args.prefix = request.prefix();
  ASSIGN_OR_RETURN(args.labels, ParseLabels(request.labels()));
  return args;
}

absl::StatusOr<engine::ListArgs> Parse(const v1::ListHoldsRequest& request) {
  RETURN_IF_ERROR(
      Exclusive(!request.snapshot().empty() && !request.prefix().empty(), "prefix", "snapshot"));
  engine::ListArgs args;
  args.parent = request.snapshot();
  args.prefix = request.prefix();
  return args;
}

absl::StatusOr<engine::ListArgs> Parse(const v1::ListOperationsRequest& request) {
  engine::ListArgs args;
  ASSIGN_OR_RETURN(args.kind, ParseEnum(request.kind(), v1::OperationKind_IsValid, "kind"));
  ASSIGN_OR_RETURN(args.state, ParseEnum(request.state(), v1::OperationState_IsValid, "state"));
  args.unfinished = request.unfinished();
  return args;
}

absl::StatusOr<engine::ListArgs> Parse(const v1::ListBlockersRequest& request) {
  if (request.list_token().empty()) return InvalidField("list_token", "is missing");
  return engine::ListArgs{};
}

absl::StatusOr<engine::ListArgs> Parse(const v1::ListAttachmentsRequest& request) {
  RETURN_IF_ERROR(
      Exclusive(!request.name().empty() && !request.prefix().empty(), "prefix", "name"));
  engine::ListArgs args;
  args.parent = request.name();
  args.prefix = request.prefix();
  return args;
}

}  // namespace cowshed::service

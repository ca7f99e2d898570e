// SPDX-License-Identifier: Apache-2.0
#include "service/status.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "engine/base/strings.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "service/convert.h"
#include "spdlog/spdlog.h"

namespace cowshed::service {
namespace {

using engine::ErrorDetails;

constexpr char kDomain[] = "cowshed";

// How long to wait before it makes sense to try again; 0: waiting does not help by itself.
std::chrono::milliseconds RetryDelay(std::string_view reason) {
  if (reason == v1::ErrorReason_Name(v1::SERVER_BUSY)) return std::chrono::milliseconds(100);
  for (const auto slow : {v1::TOO_MANY_STREAMS, v1::TOO_MANY_WAITS, v1::SERVER_STOPPING}) {
    if (reason == v1::ErrorReason_Name(slow)) return std::chrono::milliseconds(1000);
  }
  return std::chrono::milliseconds(0);
}

// Cuts `text` to `size_bytes` without splitting a character of UTF-8.
std::string Cut(std::string_view text, size_t size_bytes) {
  if (text.size() <= size_bytes) return std::string(text);
  while (size_bytes > 0 && (static_cast<unsigned char>(text[size_bytes]) & 0xC0) == 0x80) {
    --size_bytes;
  }
  return std::string(text.substr(0, size_bytes));
}

// Packs `details` so that the whole stays below the limit; see the header for what is left out.
std::string PackDetails(int code, const std::string& message, const ErrorDetails& details,
                        v1::Blockers blockers) {
  google::rpc::ErrorInfo info;
  info.set_domain(kDomain);
  info.set_reason(details.reason);
  for (const auto& [key, value] : details.metadata) {
    (*info.mutable_metadata())[key] = Cut(value, engine::kMaxNameBytes);
  }
  google::rpc::RetryInfo retry;
  const auto delay = RetryDelay(details.reason);
  *retry.mutable_retry_delay() = ToDuration(delay.count());
  while (true) {
    google::rpc::Status packed;
    packed.set_code(code);
    packed.set_message(message);
    // As PackFrom does, but in one order: equal refusals are equal bytes.
    google::protobuf::Any* const any = packed.add_details();
    any->set_type_url("type.googleapis.com/" + info.GetDescriptor()->full_name());
    any->set_value(DeterministicBytes(info));
    if (delay.count() > 0) packed.add_details()->PackFrom(retry);
    if (blockers.total() > 0) packed.add_details()->PackFrom(blockers);
    const bool bare = blockers.blockers().empty() && info.metadata().empty();
    if (bare || packed.ByteSizeLong() <= kMaxDetailsBytes) return packed.SerializeAsString();
    if (!blockers.blockers().empty()) {
      blockers.mutable_blockers()->RemoveLast();
    } else {
      info.clear_metadata();
    }
  }
}

}  // namespace

absl::Status Error(absl::StatusCode code, v1::ErrorReason reason, std::string_view message,
                   std::map<std::string, std::string> metadata) {
  return engine::MakeError(code, v1::ErrorReason_Name(reason), message, std::move(metadata));
}

absl::Status InvalidField(std::string_view field, std::string_view problem) {
  return Error(absl::StatusCode::kInvalidArgument, v1::INVALID_FIELD,
               engine::StrCat(field, " ", problem), {{"field", std::string(field)}});
}

absl::Status WithMetadata(const absl::Status& status,
                          const std::map<std::string, std::string>& metadata) {
  auto details = engine::GetErrorDetails(status);
  if (!details) return status;
  details->metadata.insert(metadata.begin(), metadata.end());
  return engine::MakeError(status.code(), engine::StdView(status.message()), *std::move(details));
}

std::string ReasonOf(const absl::Status& status) {
  const auto details = engine::GetErrorDetails(status);
  return details ? details->reason : std::string();
}

bool FillBlockers(const engine::Blockers& blockers, Tokens& tokens, v1::Blockers* out) {
  if (blockers.total == 0) return false;
  out->set_total(blockers.total);
  for (const auto& blocker : blockers.first) Fill(blocker, out->add_blockers());
  out->set_list_token(tokens.SealBlockers(blockers.query));
  return true;
}

grpc::Status ToGrpc(const absl::Status& status, Tokens& tokens) {
  if (status.ok()) return grpc::Status::OK;
  // Nobody is there any more to read more than the code.
  if (absl::IsCancelled(status)) return grpc::Status(grpc::StatusCode::CANCELLED, "cancelled");
  auto code = static_cast<grpc::StatusCode>(status.code());
  auto details = engine::GetErrorDetails(status);
  if (!details && absl::IsResourceExhausted(status)) {
    // Of the machine, for now: readers of the metadata, memory, descriptors.
    details.emplace().reason = v1::ErrorReason_Name(v1::SERVER_BUSY);
  } else if (!details) {
    code = grpc::StatusCode::INTERNAL;
    details.emplace().reason = v1::ErrorReason_Name(v1::INTERNAL);
  }
  if (code == grpc::StatusCode::INTERNAL || code == grpc::StatusCode::DATA_LOSS) {
    spdlog::error("{}: {}", details->reason, std::string(status.message()));
  }
  v1::Blockers blockers;
  FillBlockers(details->blockers, tokens, &blockers);
  const std::string message = Cut(engine::StdView(status.message()), kMaxMessageBytes);
  return grpc::Status(code, message, PackDetails(code, message, *details, std::move(blockers)));
}

}  // namespace cowshed::service

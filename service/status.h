// SPDX-License-Identifier: Apache-2.0
//
// The only map from the engine's errors to gRPC's: code, message, and a google.rpc.Status in the
// trailing metadata with one ErrorInfo always, RetryInfo where waiting helps, and the Blockers.
//
// Invariants  The details stay below 4 KiB and the message below 512 bytes: a client that gets more
//             than 8 KiB of metadata sees RESOURCE_EXHAUSTED and loses code and cause. What does
//             not fit is left out from the end: first blockers (list_token has them all), then
//             metadata. An error without a reason is a defect and travels as INTERNAL.
// Threads     Thread-safe.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "cowshed/v1/error.pb.h"
#include "engine/pool.h"
#include "grpcpp/support/status.h"
#include "service/tokens.h"

namespace cowshed::service {

inline constexpr size_t kMaxDetailsBytes = 4096;
inline constexpr size_t kMaxMessageBytes = 512;

// An error of the service's own.
absl::Status Error(absl::StatusCode code, v1::ErrorReason reason, std::string_view message,
                   std::map<std::string, std::string> metadata = {});
// INVALID_ARGUMENT INVALID_FIELD about one field of a request.
absl::Status InvalidField(std::string_view field, std::string_view problem);

// `status` with facts added to its ErrorInfo; facts it has already stay.
absl::Status WithMetadata(const absl::Status& status,
                          const std::map<std::string, std::string>& metadata);

// Its ErrorReason as text; empty if it has none.
std::string ReasonOf(const absl::Status& status);

// `status` for the wire. Blockers get a list_token from `tokens`.
grpc::Status ToGrpc(const absl::Status& status, Tokens& tokens);

// `blockers` for the wire, list_token included; leaves `out` empty if there are none.
bool FillBlockers(const engine::Blockers& blockers, Tokens& tokens, v1::Blockers* out);

}  // namespace cowshed::service

// SPDX-License-Identifier: Apache-2.0
#include "service/nbd/errors.h"

#include <string>

#include "engine/errors.h"

namespace cowshed::service::nbd {

Errno ErrnoOf(const absl::Status& status) {
  const auto details = engine::GetErrorDetails(status);
  const std::string reason = details ? details->reason : "";
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return Errno::kOk;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return Errno::kInvalid;
    case absl::StatusCode::kResourceExhausted:
      return reason == "POOL_FULL" || reason == "QUOTA_EXCEEDED" ? Errno::kNoSpace
                                                                 : Errno::kNoMemory;
    case absl::StatusCode::kPermissionDenied:
      return Errno::kPermission;
    case absl::StatusCode::kFailedPrecondition:
      return reason == "SNAPSHOT_IS_READ_ONLY" ? Errno::kPermission : Errno::kIo;
    case absl::StatusCode::kUnimplemented:
      return Errno::kNotSupported;
    case absl::StatusCode::kAborted:
      return reason == "DATASET_DESTROYED" ? Errno::kShutdown : Errno::kIo;
    case absl::StatusCode::kUnavailable:
      return reason == "SERVER_STOPPING" ? Errno::kShutdown : Errno::kIo;
    default:
      return Errno::kIo;
  }
}

OptionReply OptionReplyOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kNotFound:
      return OptionReply::kUnknown;
    case absl::StatusCode::kInvalidArgument:
      return OptionReply::kInvalid;
    case absl::StatusCode::kUnavailable:
      return OptionReply::kShutdown;
    default:
      return OptionReply::kPolicy;
  }
}

metrics::NbdError CountedAs(Errno error) {
  using metrics::NbdError;
  switch (error) {
    case Errno::kPermission:
      return NbdError::kPermission;
    case Errno::kNoMemory:
      return NbdError::kNoMemory;
    case Errno::kInvalid:
      return NbdError::kInvalid;
    case Errno::kNoSpace:
      return NbdError::kNoSpace;
    case Errno::kOverflow:
      return NbdError::kOverflow;
    case Errno::kNotSupported:
      return NbdError::kNotSupported;
    case Errno::kShutdown:
      return NbdError::kShutdown;
    case Errno::kOk:
    case Errno::kIo:
      break;
  }
  return NbdError::kIo;
}

}  // namespace cowshed::service::nbd

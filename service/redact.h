// SPDX-License-Identifier: Apache-2.0
//
// Takes out of an answer the names that its caller may not read: the origin of a clone, the clone
// that blocks a destroy, what an operation works on. The facts stay, their names go: a Blocker with
// an empty name still counts.
//
// Threads     Free functions, thread-safe.
// Cost        Nothing for a caller who may read everything; else a walk over the answer.
#pragma once

#include "absl/status/status.h"
#include "google/protobuf/message.h"
#include "service/policy.h"

namespace cowshed::service {

// Whether `field` of a message of an answer holds names.
bool HoldsNames(const google::protobuf::FieldDescriptor* field);

// Empties the fields of `message`, and of all messages in it, that hold names he may not read.
void Redact(const Rights& rights, google::protobuf::Message* message);

// `status` without such names: in its facts, its blockers and its message.
absl::Status Redacted(const Rights& rights, const absl::Status& status);

}  // namespace cowshed::service

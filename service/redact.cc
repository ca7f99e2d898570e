// SPDX-License-Identifier: Apache-2.0
#include "service/redact.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cowshed/v1/error.pb.h"
#include "engine/base/strings.h"
#include "engine/pool.h"

namespace cowshed::service {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// The facts of an error that are names.
bool IsName(const std::string& key) {
  static const auto* const kKeys =
      new std::set<std::string>{"from", "name", "origin", "target", "to"};
  return kKeys->contains(key);
}

// A short name of a snapshot belongs to a dataset that the caller has named himself.
bool Hidden(const Rights& rights, const std::string& name) {
  return !name.empty() && rights.On(name) < READER;
}

void RedactField(const Rights& rights, const FieldDescriptor* field, Message* message) {
  const auto* reflection = message->GetReflection();
  if (!field->is_repeated()) {
    if (Hidden(rights, reflection->GetString(*message, field))) {
      reflection->ClearField(message, field);
    }
    return;
  }
  std::vector<std::string> kept;
  for (int i = 0; i < reflection->FieldSize(*message, field); ++i) {
    std::string name = reflection->GetRepeatedString(*message, field, i);
    if (!Hidden(rights, name)) kept.push_back(std::move(name));
  }
  reflection->ClearField(message, field);
  for (auto& name : kept) reflection->AddString(message, field, std::move(name));
}

// Leaves nothing by which one could tell whose it is.
void Anonymize(v1::Blocker* blocker) {
  blocker->clear_tag();
  blocker->clear_attachment();
  blocker->clear_client();
  blocker->clear_since_time();
}

}  // namespace

bool HoldsNames(const FieldDescriptor* field) {
  static const auto* const kFields = new std::set<std::string>{
      "cowshed.v1.Attachment.name",
      "cowshed.v1.Blocker.blocked_name",
      "cowshed.v1.Blocker.name",
      "cowshed.v1.CheckFinding.message",
      "cowshed.v1.CheckFinding.name",
      "cowshed.v1.DamagedPlace.name",
      "cowshed.v1.Dataset.name",
      "cowshed.v1.Dataset.origin",
      "cowshed.v1.Dataset.parent",
      "cowshed.v1.DestroyPlan.names",
      "cowshed.v1.GetExportResponse.name",
      "cowshed.v1.GetLivelistResponse.dataset",
      "cowshed.v1.GetSpaceResponse.name",
      "cowshed.v1.Hold.snapshot",
      "cowshed.v1.Operation.target",
      "cowshed.v1.ReadRangeResponse.name",
      "cowshed.v1.RollbackDatasetResponse.target",
      "cowshed.v1.Snapshot.name",
      "cowshed.v1.SpacePart.name",
  };
  return kFields->contains(field->full_name());
}

void Redact(const Rights& rights, Message* message) {
  if (!rights.limited()) return;
  if (auto* const blocker = google::protobuf::DynamicCastToGenerated<v1::Blocker>(message)) {
    if (Hidden(rights, blocker->name())) Anonymize(blocker);
  }
  const auto* reflection = message->GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection->ListFields(*message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (HoldsNames(field)) {
      RedactField(rights, field, message);
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && !field->is_map()) {
      if (!field->is_repeated()) {
        Redact(rights, reflection->MutableMessage(message, field));
        continue;
      }
      for (int i = 0; i < reflection->FieldSize(*message, field); ++i) {
        Redact(rights, reflection->MutableRepeatedMessage(message, field, i));
      }
    }
  }
}

absl::Status Redacted(const Rights& rights, const absl::Status& status) {
  if (status.ok() || !rights.limited()) return status;
  auto details = engine::GetErrorDetails(status);
  if (!details || absl::IsPermissionDenied(status)) return status;
  bool hidden = false;
  for (auto& [key, value] : details->metadata) {
    if (!IsName(key) || !Hidden(rights, value)) continue;
    value.clear();
    hidden = true;
  }
  for (auto& blocker : details->blockers.first) {
    for (std::string* name : {&blocker.name, &blocker.blocked_name}) {
      if (!Hidden(rights, *name)) continue;
      name->clear();
      blocker.tag.clear();
      blocker.attachment.clear();
      blocker.client.clear();
      blocker.since_ms = 0;
      hidden = true;
    }
  }
  if (!hidden) return status;
  const std::string message =
      engine::StrCat("what stands in the way (", details->reason, ") has names you may not see");
  return engine::MakeError(status.code(), message, *std::move(details));
}

}  // namespace cowshed::service

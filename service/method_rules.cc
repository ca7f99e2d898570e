// SPDX-License-Identifier: Apache-2.0
#include "service/method_rules.h"

#include <map>

#include "engine/base/check.h"
#include "engine/base/strings.h"
#include "service/status.h"

namespace cowshed::service {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr Effect kReads = Effect::kReads;
constexpr Effect kChanges = Effect::kChanges;
constexpr Reach kAnywhere = Reach::kAnywhere;
constexpr Reach kEverywhere = Reach::kEverywhere;

std::vector<MethodRule> MakeRules() {
  return {
      // DatasetService. Lists without a prefix answer what the caller may read.
      {"CreateDataset", kChanges, OPERATOR, {{"name", OPERATOR}}},
      {"GetDataset", kReads, READER, {{"name", READER}}},
      {"ListDatasets", kReads, READER, {{"prefix", READER}, {"origin", READER}}},
      {"UpdateDataset", kChanges, OPERATOR, {{"dataset.name", OPERATOR}}},
      {"CreateSnapshots", kChanges, OPERATOR, {{"names", OPERATOR}, {"prefix", OPERATOR}}},
      {"GetSnapshot", kReads, READER, {{"name", READER}}},
      {"ListSnapshots", kReads, READER, {{"dataset", READER}, {"prefix", READER}}},
      {"CloneDataset", kChanges, OPERATOR, {{"source", READER}, {"name", OPERATOR}}},
      // A cascade takes clones wherever they are named.
      {"DestroyDatasets",
       kChanges,
       OPERATOR,
       {{"names", OPERATOR}, {"prefix", OPERATOR}},
       kAnywhere,
       "cascade"},
      {"Undestroy", kChanges, OPERATOR},
      {"DestroySnapshots", kChanges, OPERATOR, {{"names", OPERATOR}, {"range.dataset", OPERATOR}}},
      {"HoldSnapshot", kChanges, OPERATOR, {{"snapshot", OPERATOR}}},
      {"ReleaseHold", kChanges, OPERATOR, {{"snapshot", OPERATOR}}},
      {"ListHolds", kReads, READER, {{"snapshot", READER}, {"prefix", READER}}},
      {"RollbackDataset", kChanges, OPERATOR, {{"name", OPERATOR}, {"snapshot", OPERATOR}}},
      {"PromoteDataset", kChanges, OPERATOR, {{"name", OPERATOR}}},
      {"RenameDataset", kChanges, OPERATOR, {{"name", OPERATOR}, {"new_name", OPERATOR}}},
      {"RenameSnapshot", kChanges, OPERATOR, {{"name", OPERATOR}, {"new_name", OPERATOR}}},
      {"ListBlockers", kReads, READER},
      // AttachmentService. An attachment by id is seen by whoever may act on what it holds.
      {"ListAttachments", kReads, READER, {{"name", READER}, {"prefix", READER}}},
      {"Detach", kChanges, OPERATOR, {{"name", OPERATOR}}},
      {"GetExport", kReads, READER, {{"name", READER}}},
      // DataService.
      {"ReadRange", kReads, READER, {{"name", READER}}},
      {"WriteRange", kChanges, OPERATOR, {{"dataset", OPERATOR}}},
      {"Read", kReads, READER, {{"name", READER}}},
      {"Write", kChanges, OPERATOR, {{"header.dataset", OPERATOR}}},
      {"Flush", kChanges, OPERATOR, {{"dataset", OPERATOR}}},
      {"Diff", kReads, READER, {{"from_snapshot", READER}, {"to_snapshot", READER}}},
      // OperationService. An operation is seen by whoever may read its target.
      {"GetOperation", kReads, READER},
      {"ListOperations", kReads, READER},
      {"WaitOperations", kReads, READER},
      // PoolService. Sums over the pool name nobody.
      {"GetServerInfo", kReads, READER},
      {"GetPool", kReads, READER},
      {"UpdateReclaim", kChanges, ADMIN, {}, kEverywhere},
      {"GetSpace", kReads, READER, {{"name", READER}}},
      {"GetLivelist", kReads, READER, {{"dataset", READER}}},
      {"SyncPool", kReads, READER},
      {"Check", kReads, ADMIN, {}, kEverywhere},
      {"StartScrub", kChanges, ADMIN, {}, kEverywhere},
      {"CancelScrub", kChanges, ADMIN, {}, kEverywhere},
      {"Backup", kChanges, ADMIN, {}, kEverywhere},
  };
}

// The strings at `path` of `message` that are not empty.
void Collect(const Message& message, std::string_view path, std::vector<std::string>* out) {
  const size_t dot = path.find('.');
  const auto* reflection = message.GetReflection();
  const FieldDescriptor* field =
      message.GetDescriptor()->FindFieldByName(std::string(path.substr(0, dot)));
  COWSHED_CHECK(field != nullptr, "the table of rules names fields that exist");
  if (dot != std::string_view::npos) {
    return Collect(reflection->GetMessage(message, field), path.substr(dot + 1), out);
  }
  if (field->is_repeated()) {
    for (int i = 0; i < reflection->FieldSize(message, field); ++i) {
      out->push_back(reflection->GetRepeatedString(message, field, i));
    }
  } else if (std::string name = reflection->GetString(message, field); !name.empty()) {
    out->push_back(std::move(name));
  }
}

bool Flag(const Message& message, const char* name) {
  const FieldDescriptor* field = message.GetDescriptor()->FindFieldByName(name);
  return field != nullptr && message.GetReflection()->GetBool(message, field);
}

absl::Status Refuse(const Rights& rights, const MethodRule& rule, std::string_view why,
                    std::map<std::string, std::string> metadata) {
  const std::string role = RoleText(rights.anywhere());
  metadata.insert({{"method", rule.method}, {"role", role}});
  return Error(absl::StatusCode::kPermissionDenied, v1::PERMISSION_DENIED,
               engine::StrCat("role ", role, " may not call ", rule.method, why),
               std::move(metadata));
}

}  // namespace

const std::vector<MethodRule>& MethodRules() {
  static const auto* const kRules = new std::vector<MethodRule>(MakeRules());
  return *kRules;
}

const MethodRule& RuleOf(const Descriptor* request) {
  static const auto* const kRules = [] {
    auto* const by_request = new std::map<std::string, const MethodRule*>();
    for (const auto& rule : MethodRules()) {
      by_request->emplace(engine::StrCat("cowshed.v1.", rule.method, "Request"), &rule);
    }
    return by_request;
  }();
  const auto found = kRules->find(request->full_name());
  COWSHED_CHECK(found != kRules->end(), "every method has a rule");
  return *found->second;
}

std::vector<std::string> NamesIn(const MethodRule& rule, const Message& request) {
  std::vector<std::string> names;
  for (const auto& field : rule.names) Collect(request, field.path, &names);
  return names;
}

absl::Status Denied(const Rights& rights, const MethodRule& rule, const std::string& name) {
  return Refuse(rights, rule, engine::StrCat(" on ", name), {{"name", name}});
}

absl::Status MayCall(const Rights& rights, const MethodRule& rule, const Message* request) {
  if (rights.everywhere() >= rule.role) return absl::OkStatus();
  if (rights.anywhere() < rule.role) return Refuse(rights, rule, "", {});
  if (rule.reach == Reach::kEverywhere) return Refuse(rights, rule, " on the whole pool", {});
  if (request == nullptr) return absl::OkStatus();
  if (rule.everywhere_if != nullptr && Flag(*request, rule.everywhere_if)) {
    return Refuse(rights, rule, engine::StrCat(" with ", rule.everywhere_if), {});
  }
  for (const auto& field : rule.names) {
    std::vector<std::string> names;
    Collect(*request, field.path, &names);
    for (const auto& name : names) {
      if (rights.On(name) < field.role) return Denied(rights, rule, name);
    }
  }
  return absl::OkStatus();
}

}  // namespace cowshed::service

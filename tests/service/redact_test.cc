// SPDX-License-Identifier: Apache-2.0
#include "service/redact.h"

#include <gmock/gmock.h>

#include <functional>
#include <set>

#include "google/protobuf/descriptor.h"
#include "tests/service/server_fixture.h"

namespace cowshed::service {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

Rights Limited() {
  Rights rights;
  rights.Add(READER, "mine");
  return rights;
}

// Visits the string fields of `message` and of all messages in it, once each.
void Visit(const Descriptor* message, std::set<const Descriptor*>* seen,
           const std::function<void(const FieldDescriptor*)>& visit) {
  if (!seen->insert(message).second) return;
  for (int i = 0; i < message->field_count(); ++i) {
    const FieldDescriptor* field = message->field(i);
    if (field->type() == FieldDescriptor::TYPE_STRING) visit(field);
    if (field->message_type() != nullptr) Visit(field->message_type(), seen, visit);
  }
}

TEST(RedactTest, EveryNameInAnAnswerIsKnown) {
  const std::set<std::string> words = {"name",          "names",       "origin", "parent",
                                       "dataset",       "snapshot",    "target", "blocked_name",
                                       "from_snapshot", "to_snapshot", "path"};
  // What the caller may read, or he would not get the chunk; numbers of operations.
  const std::set<std::string> exempt = {
      "cowshed.v1.ReadChunk.name", "cowshed.v1.DiffChunk.from_snapshot",
      "cowshed.v1.DiffChunk.to_snapshot", "cowshed.v1.Operation.name"};
  int names = 0;
  std::set<const Descriptor*> seen;
  for (const Descriptor* in_file : {v1::Dataset::descriptor(), v1::ReadChunk::descriptor(),
                                    v1::Operation::descriptor(), v1::Pool::descriptor()}) {
    const auto* service = in_file->file()->service(0);
    for (int i = 0; i < service->method_count(); ++i) {
      Visit(service->method(i)->output_type(), &seen, [&](const FieldDescriptor* field) {
        if (HoldsNames(field)) {
          ++names;
          return;
        }
        EXPECT_FALSE(words.contains(field->name()) && !exempt.contains(field->full_name()))
            << field->full_name();
      });
    }
  }
  EXPECT_GE(names, 14);
}

TEST(RedactTest, NamesOfOthersGoAndFactsStay) {
  auto reply = Text<v1::DestroyDatasetsResponse>(
      "plan { names: 'mine/a' names: 'theirs/b' dataset_count: 2 "
      "blockers { total: 2 blockers { kind: BLOCKER_KIND_CLONE name: 'theirs/c' "
      "blocked_name: 'mine/a@s' } blockers { name: 'mine/d' blocked_name: 'theirs/e' } } } "
      "operation { name: 'operations/1' target: 'minex' target_count: 3 }");
  auto whole = reply;
  Redact(Limited(), &reply);
  EXPECT_EQ(
      reply.DebugString(),
      Text<v1::DestroyDatasetsResponse>(
          "plan { names: 'mine/a' dataset_count: 2 "
          "blockers { total: 2 blockers { kind: BLOCKER_KIND_CLONE blocked_name: 'mine/a@s' } "
          "blockers { name: 'mine/d' } } } "
          "operation { name: 'operations/1' target_count: 3 }")
          .DebugString());
  Rights all;
  all.Add(READER, "");
  auto same = whole;
  Redact(all, &same);
  EXPECT_EQ(same.DebugString(), whole.DebugString());
}

TEST(RedactTest, ErrorsLoseNamesAndTheMessageThatHasThem) {
  const auto error = [](const std::string& origin) {
    return engine::MakeError(
        absl::StatusCode::kFailedPrecondition, "ORIGIN_DESTROYED", "mine/a is a clone of " + origin,
        {{"name", "mine/a"}, {"origin", origin}, {"operation", "operations/1"}});
  };
  const absl::Status redacted = Redacted(Limited(), error("theirs/b"));
  EXPECT_EQ(redacted.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(std::string(redacted.ToString()).find("theirs"), std::string::npos);
  const auto details = engine::GetErrorDetails(redacted);
  ASSERT_TRUE(details.has_value());
  EXPECT_EQ(details->reason, "ORIGIN_DESTROYED");
  EXPECT_EQ(details->metadata.at("name"), "mine/a");
  EXPECT_EQ(details->metadata.at("origin"), "");
  EXPECT_EQ(details->metadata.at("operation"), "operations/1");
  EXPECT_EQ(Redacted(Limited(), error("mine/b")), error("mine/b"));
  EXPECT_EQ(Redacted(Limited(), absl::OkStatus()), absl::OkStatus());
}

}  // namespace
}  // namespace cowshed::service

// SPDX-License-Identifier: Apache-2.0
//
// Every method, called over TLS by every role: on names of his own and on others', as the policy
// file says. What a method needs is written down here once more, by hand: a new method without a
// line fails the test.
#include <gmock/gmock.h>

#include <map>
#include <set>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"
#include "service/method_rules.h"
#include "tests/service/certificates.h"
#include "tests/service/server_fixture.h"

namespace cowshed::service {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::MethodDescriptor;

// The least role, and whether it must be one over the whole pool.
const std::map<std::string, Role>& Needs() {
  static const auto* const kNeeds = new std::map<std::string, Role>{
      {"CreateDataset", OPERATOR},
      {"GetDataset", READER},
      {"ListDatasets", READER},
      {"UpdateDataset", OPERATOR},
      {"CreateSnapshots", OPERATOR},
      {"GetSnapshot", READER},
      {"ListSnapshots", READER},
      {"CloneDataset", OPERATOR},
      {"DestroyDatasets", OPERATOR},
      {"Undestroy", OPERATOR},
      {"DestroySnapshots", OPERATOR},
      {"HoldSnapshot", OPERATOR},
      {"ReleaseHold", OPERATOR},
      {"ListHolds", READER},
      {"RollbackDataset", OPERATOR},
      {"PromoteDataset", OPERATOR},
      {"RenameDataset", OPERATOR},
      {"RenameSnapshot", OPERATOR},
      {"ListBlockers", READER},
      {"ListAttachments", READER},
      {"Detach", OPERATOR},
      {"GetExport", READER},
      {"ReadRange", READER},
      {"WriteRange", OPERATOR},
      {"Read", READER},
      {"Write", OPERATOR},
      {"Flush", OPERATOR},
      {"Diff", READER},
      {"GetOperation", READER},
      {"ListOperations", READER},
      {"WaitOperations", READER},
      {"GetServerInfo", READER},
      {"GetPool", READER},
      {"UpdateReclaim", ADMIN},
      {"GetSpace", READER},
      {"GetLivelist", READER},
      {"SyncPool", READER},
      {"Check", ADMIN},
      {"StartScrub", ADMIN},
      {"CancelScrub", ADMIN},
      {"Backup", ADMIN},
  };
  return *kNeeds;
}

// Fields of requests that look like names and are none, or only narrow what another field names.
const std::set<std::string>& Exempt() {
  static const auto* const kFields = new std::set<std::string>{
      "CreateSnapshotsRequest.snapshot",         // a short name
      "RollbackDatasetRequest.expected_target",  // compared only
      "GetOperationRequest.name",                // looked up
      "WaitOperationsRequest.names",             // looked up
  };
  return *kFields;
}

std::vector<const MethodDescriptor*> AllMethods() {
  std::vector<const MethodDescriptor*> methods;
  const auto* pool = google::protobuf::DescriptorPool::generated_pool();
  for (const char* service :
       {"cowshed.v1.DatasetService", "cowshed.v1.DataService", "cowshed.v1.AttachmentService",
        "cowshed.v1.OperationService", "cowshed.v1.PoolService"}) {
    const auto* descriptor = pool->FindServiceByName(service);
    for (int i = 0; i < descriptor->method_count(); ++i) methods.push_back(descriptor->method(i));
  }
  return methods;
}

std::unique_ptr<Message> NewRequest(const MethodDescriptor* method) {
  return std::unique_ptr<Message>(google::protobuf::MessageFactory::generated_factory()
                                      ->GetPrototype(method->input_type())
                                      ->New());
}

// Sets the field at `path`; true if it is a name that may be a snapshot's only.
void SetName(Message* message, const std::string& path, const std::string& name) {
  const size_t dot = path.find('.');
  const auto* field = message->GetDescriptor()->FindFieldByName(path.substr(0, dot));
  ASSERT_NE(field, nullptr) << path;
  const auto* reflection = message->GetReflection();
  if (dot != std::string::npos) {
    return SetName(reflection->MutableMessage(message, field), path.substr(dot + 1), name);
  }
  if (field->is_repeated()) {
    reflection->AddString(message, field, name);
  } else {
    reflection->SetString(message, field, name);
  }
}

TEST(MethodRulesTest, EveryMethodHasALineThatIsRight) {
  std::set<std::string> known;
  for (const auto& rule : MethodRules()) known.insert(rule.method);
  EXPECT_EQ(known.size(), MethodRules().size()) << "a method twice";
  for (const MethodDescriptor* method : AllMethods()) {
    ASSERT_TRUE(known.contains(method->name())) << method->name() << " has no rule";
    ASSERT_TRUE(Needs().contains(method->name())) << method->name() << " has no line in this test";
    known.erase(method->name());
    const MethodRule& rule = RuleOf(method->input_type());
    EXPECT_EQ(rule.method, method->name()) << "the request is another method's too";
    EXPECT_EQ(rule.role, Needs().at(method->name())) << method->name();
    EXPECT_EQ(rule.reach == Reach::kEverywhere, rule.role == ADMIN) << method->name();
    if (rule.everywhere_if != nullptr) {
      EXPECT_NE(method->input_type()->FindFieldByName(rule.everywhere_if), nullptr);
    }
  }
  EXPECT_TRUE(known.empty()) << *known.begin() << " is no method";
}

TEST(MethodRulesTest, EveryNameInARequestIsJudged) {
  const std::set<std::string> words = {
      "name",     "names", "prefix",        "dataset",     "source", "new_name",       "origin",
      "snapshot", "range", "from_snapshot", "to_snapshot", "header", "expected_target"};
  for (const MethodDescriptor* method : AllMethods()) {
    const auto* request = method->input_type();
    for (int i = 0; i < request->field_count(); ++i) {
      const FieldDescriptor* field = request->field(i);
      if (field->cpp_type() != FieldDescriptor::CPPTYPE_STRING &&
          field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
        continue;
      }
      if (!words.contains(field->name())) continue;
      if (Exempt().contains(request->name() + "." + field->name())) continue;
      bool judged = false;
      for (const auto& name : RuleOf(request).names) {
        judged |= std::string(name.path).substr(0, field->name().size()) == field->name();
      }
      EXPECT_TRUE(judged) << request->name() << "." << field->name();
    }
  }
}

constexpr char kPolicy[] = R"({"grants": [
  {"who": ["unix", "cert:admin.test"], "role": "ADMIN"},
  {"who": ["cert:operator.test"], "role": "OPERATOR"},
  {"who": ["cert:reader.test"], "role": "READER"},
  {"who": ["cert:ci.test"], "role": "OPERATOR", "prefixes": ["ci"]},
  {"who": ["cert:ci.test", "cert:viewer.test"], "role": "READER", "prefixes": ["golden"]},
  {"who": ["cert:pair.test"], "role": "OPERATOR", "prefixes": ["golden", "ci"]}
]})";

class PermissionTest : public ServerTest {
 protected:
  void SetUp() override {
    const Certificate server = authority_.Sign("cowshed.test");
    server_options_.tls = {server.pem, server.key_pem, authority_.pem(), 1};
    server_options_.roles.certificates = true;
    server_options_.policy = engine::ValueOf(Policy::Parse(kPolicy));
    ServerTest::SetUp();
  }

  std::shared_ptr<grpc::Channel> ChannelOf(const std::string& who) {
    auto& channel = channels_[who];
    if (channel == nullptr) {
      channel = ConnectTls(tcp_address(), authority_, authority_.Sign(who + ".test"));
    }
    return channel;
  }
  std::unique_ptr<Datasets> DatasetsOf(const std::string& who) {
    return v1::DatasetService::NewStub(ChannelOf(who));
  }
  // Calls any method, streams too, with one request; how it ended.
  grpc::Status CallAny(const std::string& who, const MethodDescriptor* method,
                       const Message& request) {
    grpc::GenericStub stub(ChannelOf(who));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    grpc::CompletionQueue queue;
    const auto wait = [&queue] {
      void* tag = nullptr;
      bool ok = false;
      EXPECT_TRUE(queue.Next(&tag, &ok));
      return ok;
    };
    const std::string path = "/" + method->service()->full_name() + "/" + method->name();
    const auto call = stub.PrepareCall(&context, path, &queue);
    call->StartCall(nullptr);
    wait();
    const grpc::Slice slice(request.SerializeAsString());
    call->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
    wait();
    bool more = true;
    while (more) {
      grpc::ByteBuffer reply;
      call->Read(&reply, nullptr);
      more = wait();
    }
    grpc::Status status;
    call->Finish(&status, nullptr);
    wait();
    return status;
  }

  const Authority authority_;
  std::map<std::string, std::shared_ptr<grpc::Channel>> channels_;
};

struct Actor {
  const char* who;
  Role own;     // over ci
  Role others;  // over other
};

TEST_F(PermissionTest, EveryMethodForEveryRole) {
  constexpr Actor kActors[] = {{"admin", ADMIN, ADMIN},    {"operator", OPERATOR, OPERATOR},
                               {"reader", READER, READER}, {"ci", OPERATOR, NONE},
                               {"viewer", NONE, NONE},     {"stranger", NONE, NONE}};
  int calls = 0;
  for (const MethodDescriptor* method : AllMethods()) {
    const Role need = Needs().at(method->name());
    const MethodRule& rule = RuleOf(method->input_type());
    for (const Actor& actor : kActors) {
      for (const bool own : {true, false}) {
        auto request = NewRequest(method);
        for (const auto& field : rule.names) {
          SetName(request.get(), field.path, own ? "ci/missing" : "other/missing");
        }
        const Role role = own ? actor.own : actor.others;
        bool denied = role < need;
        if (rule.names.empty()) {
          // Names nothing: any grant of the role will do, for pool-wide calls one over everything.
          const bool viewer = std::string(actor.who) == "viewer";
          denied = (viewer ? READER : actor.own) < need;
          // There is no such operation: whoever may not see all is told nothing.
          if (method->name() == "GetOperation" || method->name() == "Undestroy") {
            denied = actor.others < need;
          }
        }
        const grpc::Status status = CallAny(actor.who, method, *request);
        const std::string what = std::string(actor.who) + (own ? " own " : " others' ") +
                                 method->name() + ": " + status.error_message();
        EXPECT_EQ(status.error_code() == grpc::StatusCode::PERMISSION_DENIED, denied) << what;
        EXPECT_NE(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << what;
        EXPECT_NE(status.error_code(), grpc::StatusCode::INTERNAL) << what;
        EXPECT_NE(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << what;
        ++calls;
      }
    }
  }
  EXPECT_GE(calls, 35 * 12);
}

TEST_F(PermissionTest, RefusalTellsNothingOfWhatExists) {
  Create("other/here");
  const auto ci = DatasetsOf("ci");
  for (const char* method : {"GetDataset", "CreateDataset"}) {
    const auto refusal = [&](const std::string& name) {
      const std::string text = "name: '" + name + "'";
      const grpc::Status status = std::string(method) == "GetDataset"
                                      ? Try(*ci, &Datasets::GetDataset, text)
                                      : Try(*ci, &Datasets::CreateDataset, text);
      std::string all = status.error_message() + status.error_details();
      for (size_t at; (at = all.find(name)) != std::string::npos;)
        all.replace(at, name.size(), "?");
      EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
      return all;
    };
    EXPECT_EQ(refusal("other/here"), refusal("other/gone"));
  }
}

TEST_F(PermissionTest, CallsOnTwoNamesNeedRightsOnBoth) {
  Create("golden/base");
  Create("other/base");
  Snapshot({"golden/base@s", "other/base@s"});
  const auto ci = DatasetsOf("ci");
  Call(*ci, &Datasets::CloneDataset, "source: 'golden/base@s' name: 'ci/a'");
  EXPECT_FAILS(Try(*ci, &Datasets::CloneDataset, "source: 'other/base@s' name: 'ci/b'"),
               kPermissionDenied, PERMISSION_DENIED);
  EXPECT_FAILS(Try(*ci, &Datasets::CloneDataset, "source: 'golden/base@s' name: 'golden/b'"),
               kPermissionDenied, PERMISSION_DENIED);
  EXPECT_FAILS(Try(*ci, &Datasets::RenameDataset, "name: 'ci/a' new_name: 'other/a'"),
               kPermissionDenied, PERMISSION_DENIED);
  // He may read the origin, not take its snapshots away.
  EXPECT_FAILS(Try(*ci, &Datasets::PromoteDataset, "name: 'ci/a'"), kPermissionDenied,
               PERMISSION_DENIED);
  Call(*DatasetsOf("pair"), &Datasets::PromoteDataset, "name: 'ci/a'");
  EXPECT_FAILS(Try(*ci, &Datasets::DestroyDatasets, "names: 'ci/a' names: 'other/base'"),
               kPermissionDenied, PERMISSION_DENIED);
  EXPECT_FAILS(Try(*ci, &Datasets::DestroyDatasets, "prefix: 'ci' cascade: true"),
               kPermissionDenied, PERMISSION_DENIED);
}

TEST_F(PermissionTest, ListsShowWhatTheCallerMayRead) {
  for (const char* name : {"ci/a", "ci/b", "cix", "golden", "golden/a", "other/a", "zoo"}) {
    Create(name);
    Snapshot({std::string(name) + "@s"});
    Call(datasets(), &Datasets::HoldSnapshot, "snapshot: '" + std::string(name) + "@s' tag: 't'");
  }
  const auto ci = DatasetsOf("ci");
  std::vector<std::string> names, snapshots, holds;
  std::string token;
  do {
    const auto page =
        Call(*ci, &Datasets::ListDatasets, "page_size: 1 page_token: '" + token + "'");
    for (const auto& dataset : page.datasets()) names.push_back(dataset.name());
    token = page.next_page_token();
  } while (!token.empty());
  EXPECT_THAT(names, testing::ElementsAre("ci/a", "ci/b", "golden", "golden/a"));
  do {
    const auto page = Call(*ci, &Datasets::ListSnapshots, "page_token: '" + token + "'");
    for (const auto& snapshot : page.snapshots()) snapshots.push_back(snapshot.name());
    token = page.next_page_token();
  } while (!token.empty());
  EXPECT_THAT(snapshots, testing::ElementsAre("ci/a@s", "ci/b@s", "golden@s", "golden/a@s"));
  do {
    const auto page = Call(*ci, &Datasets::ListHolds, "page_token: '" + token + "'");
    for (const auto& hold : page.holds()) holds.push_back(hold.snapshot());
    token = page.next_page_token();
  } while (!token.empty());
  EXPECT_THAT(holds, testing::SizeIs(4));
  EXPECT_FAILS(Try(*ci, &Datasets::ListDatasets, "prefix: 'other'"), kPermissionDenied,
               PERMISSION_DENIED);
  // Clones of what he may read, without those that he may not.
  Clone("golden@s", "ci/clone");
  Clone("golden@s", "other/clone");
  const auto clones = Call(*ci, &Datasets::ListDatasets, "origin: 'golden@s'");
  ASSERT_EQ(clones.datasets_size(), 1);
  EXPECT_EQ(clones.datasets(0).name(), "ci/clone");
}

TEST_F(PermissionTest, NamesOfOthersAreNowhereInAnAnswer) {
  Create("ci/base");
  Snapshot({"ci/base@s"});
  Clone("ci/base@s", "other/secret");
  const auto ci = DatasetsOf("ci");
  const auto status = Try(*ci, &Datasets::DestroyDatasets, "names: 'ci/base' recursive: true");
  const auto failure = FailureOf(status);
  EXPECT_EQ(failure.reason, "SNAPSHOT_HAS_CLONES");
  EXPECT_EQ(failure.blockers.total(), 1u);
  ASSERT_EQ(failure.blockers.blockers_size(), 1);
  EXPECT_EQ(failure.blockers.blockers(0).blocked_name(), "ci/base@s");
  EXPECT_EQ(failure.blockers.blockers(0).name(), "");
  EXPECT_EQ((status.error_message() + status.error_details()).find("secret"), std::string::npos);
  const auto listed =
      Call(*ci, &Datasets::ListBlockers, "list_token: '" + failure.blockers.list_token() + "'");
  ASSERT_EQ(listed.blockers_size(), 1);
  EXPECT_EQ(listed.DebugString().find("secret"), std::string::npos);
  // The admin sees it all, through the same token.
  EXPECT_EQ(Call(datasets(), &Datasets::ListBlockers,
                 "list_token: '" + failure.blockers.list_token() + "'")
                .blockers(0)
                .name(),
            "other/secret");
  // The origin of his own clone.
  Create("other/base");
  Snapshot({"other/base@s"});
  Clone("other/base@s", "ci/clone");
  const auto clone = Call(*ci, &Datasets::GetDataset, "name: 'ci/clone'");
  EXPECT_EQ(clone.origin(), "");
  EXPECT_NE(clone.origin_uid(), "");
}

TEST_F(PermissionTest, OperationsAreSeenByWhoMayReadTheirTarget) {
  Create("ci/a");
  Create("ci/b");
  Create("other/a");
  const std::string window = " reclaim_after { seconds: 3600 }";
  const auto own =
      Call(datasets(), &Datasets::DestroyDatasets, "names: 'ci/a'" + window).operation().name();
  const auto others =
      Call(datasets(), &Datasets::DestroyDatasets, "names: 'other/a'" + window).operation().name();
  const auto ci = DatasetsOf("ci");
  const auto operations = v1::OperationService::NewStub(ChannelOf("ci"));
  EXPECT_EQ(Call(*operations, &Operations::GetOperation, "name: '" + own + "'").target(), "ci/a");
  EXPECT_FAILS(Try(*operations, &Operations::GetOperation, "name: '" + others + "'"),
               kPermissionDenied, PERMISSION_DENIED);
  EXPECT_FAILS(
      Try(*operations, &Operations::WaitOperations, "names: '" + own + "' names: '" + others + "'"),
      kPermissionDenied, PERMISSION_DENIED);
  const auto list = Call(*operations, &Operations::ListOperations, "");
  ASSERT_EQ(list.operations_size(), 1);
  EXPECT_EQ(list.operations(0).name(), own);
  EXPECT_FAILS(Try(*ci, &Datasets::Undestroy, "operation: '" + others + "'"), kPermissionDenied,
               PERMISSION_DENIED);
  Call(*ci, &Datasets::Undestroy, "operation: '" + own + "'");
  Call(*ci, &Datasets::GetDataset, "name: 'ci/a'");
}

TEST_F(PermissionTest, PolicyIsReplacedWhole) {
  const auto ci = DatasetsOf("ci");
  Call(*ci, &Datasets::CreateDataset, "name: 'ci/a' size_bytes: 4096");
  server_->Replace(engine::ValueOf(Policy::Parse(
      R"({"grants": [{"who": ["cert:ci.test"], "role": "READER", "prefixes": ["ci"]},
                     {"who": ["unix"], "role": "ADMIN"}]})")));
  EXPECT_FAILS(Try(*ci, &Datasets::CreateDataset, "name: 'ci/b' size_bytes: 4096"),
               kPermissionDenied, PERMISSION_DENIED);
  Call(*ci, &Datasets::GetDataset, "name: 'ci/a'");
  server_->Replace(engine::ValueOf(Policy::Parse("{}")));
  EXPECT_FAILS(Try(datasets(), &Datasets::ListDatasets, ""), kPermissionDenied, PERMISSION_DENIED);
}

}  // namespace
}  // namespace cowshed::service

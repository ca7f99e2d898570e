// SPDX-License-Identifier: Apache-2.0
#include "service/audit.h"
#include "engine/attachments.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <set>

#include "engine/attachments.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"
#include "service/method_rules.h"
#include "tests/service/server_fixture.h"

namespace cowshed::service {
namespace {

using google::protobuf::Struct;
using testing::HasSubstr;

std::vector<Struct> LinesOf(const std::string& path) {
  std::vector<Struct> lines;
  std::ifstream file(path);
  for (std::string text; std::getline(file, text);) {
    EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(text, &lines.emplace_back()).ok())
        << text;
  }
  return lines;
}

std::string TextOf(const Struct& line, const std::string& key) {
  const auto field = line.fields().find(key);
  return field == line.fields().end() ? "" : field->second.string_value();
}

double NumberOf(const Struct& line, const std::string& key) {
  const auto field = line.fields().find(key);
  return field == line.fields().end() ? -1 : field->second.number_value();
}

class AuditTest : public ServerTest {
 protected:
  void SetUp() override {
    server_options_.audit.path = dir_.Path("audit");
    ServerTest::SetUp();
  }
  // The server is stopped: its log is complete.
  std::vector<Struct> Lines() {
    Stop();
    return LinesOf(dir_.Path("audit"));
  }
  void AttachAndDetach(const std::string& name) {
    std::unique_ptr<engine::Attachment> attachment;
    engine::AttachArgs args;
    args.name = name;
    args.cut = [&attachment](const absl::Status&) { attachment.reset(); };
    attachment = engine::ValueOf(pool_->attachments().Attach(args));
    Call(attachments(), &Attachments::Detach, "name: '" + name + "'");
    EXPECT_EQ(attachment, nullptr);
  }
  void WriteStream(const std::string& dataset) {
    grpc::ClientContext context;
    const auto stream = data().Write(&context);
    v1::WriteRequest request;
    request.mutable_header()->set_dataset(dataset);
    stream->Write(request);
    request.mutable_chunk()->set_data("bytes");
    stream->Write(request);
    request.mutable_chunk()->set_flush(true);
    stream->Write(request);
    stream->WritesDone();
    v1::WriteAck ack;
    while (stream->Read(&ack)) {
    }
    EXPECT_TRUE(stream->Finish().ok());
  }
};

TEST_F(AuditTest, EachMethodThatChangesLeavesOneLine) {
  Create("a");
  Call(datasets(), &Datasets::UpdateDataset,
       "dataset { name: 'a' } set_labels { key: 'k' value: 'v' }");
  Snapshot({"a@1"});
  Call(datasets(), &Datasets::RenameSnapshot, "name: 'a@1' new_name: 'a@3'");
  Call(datasets(), &Datasets::RollbackDataset, "name: 'a'");
  Clone("a@3", "b");
  Call(datasets(), &Datasets::PromoteDataset, "name: 'b'");
  Call(datasets(), &Datasets::RenameDataset, "name: 'b' new_name: 'c'");
  Call(datasets(), &Datasets::HoldSnapshot, "snapshot: 'c@3' tag: 't'");
  Call(datasets(), &Datasets::ReleaseHold, "snapshot: 'c@3' tag: 't'");
  Write("c", 0, "bytes");
  Call(data(), &Data::Flush, "dataset: 'c'");
  WriteStream("c");
  AttachAndDetach("c");
  Call(datasets(), &Datasets::DestroySnapshots, "names: 'c@3' defer: true");
  const auto destroyed =
      Call(datasets(), &Datasets::DestroyDatasets, "names: 'a' reclaim_after { seconds: 3600 }");
  Call(datasets(), &Datasets::Undestroy, "operation: '" + destroyed.operation().name() + "'");
  Call(pools(), &Pools::UpdateReclaim, "");
  Call(pools(), &Pools::StartScrub, "rate_bytes_per_second: 1");
  Call(pools(), &Pools::CancelScrub, "");
  Call(pools(), &Pools::Backup, "directory: '" + dir_.Path("backup") + "'");
  // Reads leave none.
  ListNames();
  Read("a", 0, 10);
  EXPECT_EQ(stats_->audit_lines, 21u);
  const std::set<std::string> of_the_pool = {"UpdateReclaim", "StartScrub", "CancelScrub",
                                             "Backup"};
  std::map<std::string, int> seen;
  for (const Struct& line : Lines()) {
    ++seen[TextOf(line, "method")];
    EXPECT_EQ(TextOf(line, "code"), "OK") << line.DebugString();
    EXPECT_EQ(TextOf(line, "who"), "uid:" + std::to_string(getuid()));
    EXPECT_EQ(TextOf(line, "peer"), "unix");
    EXPECT_THAT(TextOf(line, "time"), testing::ContainsRegex("^20..-..-..T..:..:......Z$"));
    if (!of_the_pool.contains(TextOf(line, "method"))) {
      EXPECT_FALSE(line.fields().at("names").list_value().values().empty()) << line.DebugString();
    }
    const bool committed = TextOf(line, "method") != "Detach";
    EXPECT_EQ(NumberOf(line, "txg") > 0, committed) << line.DebugString();
  }
  for (const auto& rule : MethodRules()) {
    EXPECT_EQ(seen[rule.method], rule.effect == Effect::kChanges ? 1 : 0) << rule.method;
  }
}

TEST_F(AuditTest, RepeatsFailuresAndPlansAreMarked) {
  const std::string create = "name: 'a' size_bytes: 4096 request_id: 'r\"1'";
  Call(datasets(), &Datasets::CreateDataset, create);
  Call(datasets(), &Datasets::CreateDataset, create);
  Try(datasets(), &Datasets::CreateDataset, "name: 'a' size_bytes: 4096");
  Call(datasets(), &Datasets::DestroyDatasets, "names: 'a' validate_only: true");
  const auto lines = Lines();
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(TextOf(lines[0], "request_id"), "r\"1");
  EXPECT_FALSE(lines[0].fields().contains("replayed"));
  EXPECT_TRUE(lines[1].fields().at("replayed").bool_value());
  EXPECT_EQ(NumberOf(lines[0], "txg"), NumberOf(lines[1], "txg"));
  EXPECT_EQ(TextOf(lines[2], "code"), "ALREADY_EXISTS");
  EXPECT_EQ(TextOf(lines[2], "reason"), "DATASET_EXISTS");
  EXPECT_TRUE(lines[3].fields().at("validate_only").bool_value());
}

TEST_F(AuditTest, EveryDenialLeavesALine) {
  server_options_.policy = engine::ValueOf(
      Policy::Parse(R"({"grants": [{"who": ["unix"], "role": "READER", "prefixes": ["mine"]}]})"));
  Restart();
  Try(datasets(), &Datasets::GetDataset, "name: 'theirs'");
  Try(datasets(), &Datasets::CreateDataset, "name: 'mine/x' size_bytes: 4096 request_id: 'q'");
  grpc::ClientContext context;
  const auto stream = data().Read(&context, Text<v1::ReadRequest>("name: 'theirs'"));
  v1::ReadChunk chunk;
  while (stream->Read(&chunk)) {
  }
  EXPECT_FAILS(stream->Finish(), kPermissionDenied, PERMISSION_DENIED);
  Try(operations(), &Operations::WaitOperations, "names: 'operations/1'");
  EXPECT_EQ(stats_->calls_denied, 4u);
  std::vector<std::string> methods;
  for (const Struct& line : Lines()) {
    methods.push_back(TextOf(line, "method"));
    EXPECT_EQ(TextOf(line, "code"), "PERMISSION_DENIED");
    EXPECT_EQ(TextOf(line, "reason"), "PERMISSION_DENIED");
  }
  EXPECT_THAT(methods,
              testing::ElementsAre("GetDataset", "CreateDataset", "Read", "WaitOperations"));
}

TEST(AuditLogTest, RotatesBySizeAndKeepsSoMany) {
  engine::TempDir dir;
  metrics::ServiceStats stats;
  AuditLog::Options options;
  options.path = dir.Path("audit");
  options.file_bytes = 1000;
  options.files = 2;
  auto log = engine::ValueOf(AuditLog::Open(options, stats));
  AuditRecord record;
  record.method = "M";
  for (int i = 0; i < 100; ++i) {
    record.request_id = std::to_string(i);
    log->Write(record);
  }
  log->Close();
  int last = -1;
  for (const char* name : {"audit.2", "audit.1", "audit"}) {
    struct stat status {};
    ASSERT_EQ(stat(dir.Path(name).c_str(), &status), 0) << name;
    EXPECT_LE(status.st_size, 1000);
    EXPECT_EQ(status.st_mode & 0777, 0600u) << name;
    for (const Struct& line : LinesOf(dir.Path(name))) {
      const int number = std::stoi(TextOf(line, "request_id"));
      if (last >= 0) EXPECT_EQ(number, last + 1);
      last = number;
    }
  }
  EXPECT_EQ(last, 99);
  EXPECT_NE(access(dir.Path("audit.3").c_str(), F_OK), 0);
  EXPECT_EQ(stats.audit_failures, 0u);
}

TEST(AuditLogTest, ManyNamesAreCounted) {
  AuditRecord record;
  record.names.assign(AuditLog::kNamesInLine + 1, "n");
  const std::string line = AuditLine(record, 1700000000123);
  EXPECT_THAT(line, HasSubstr("\"time\":\"2023-11-14T22:13:20.123Z\""));
  EXPECT_THAT(line, HasSubstr("\"names_total\":101"));
  record.names = {"a\nb"};
  EXPECT_THAT(AuditLine(record, 0), HasSubstr("[\"a\\u000ab\"]"));
}

TEST_F(AuditTest, LogThatCannotBeWrittenStopsNothing) {
  server_options_.audit.path = "/dev/full";
  Restart();
  Create("a");
  Create("b");
  EXPECT_EQ(ListNames(), (std::vector<std::string>{"a", "b"}));
  Stop();
  EXPECT_GE(stats_->audit_failures, 2u);
}

TEST(AuditLogTest, FileThatCannotBeOpenedIsNamed) {
  engine::TempDir dir;
  metrics::ServiceStats stats;
  AuditLog::Options options;
  options.path = dir.Path("none/audit");
  EXPECT_THAT(std::string(AuditLog::Open(options, stats).status().message()),
              HasSubstr(options.path));
}

}  // namespace
}  // namespace cowshed::service

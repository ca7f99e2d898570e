// SPDX-License-Identifier: Apache-2.0
//
// NBD until an export is attached: every option, who may attach what, and the limits of it all.
#include <algorithm>
#include <fstream>

#include "tests/service/nbd_fixture.h"

namespace cowshed::service {
namespace {

using namespace nbd_numbers;  // NOLINT: the protocol's own names, in a test of it

class NbdHandshakeTest : public NbdTest {
 protected:
  void SetUp() override {
    NbdTest::SetUp();
    Create("a/x");
    Create("b");
    Snapshot({"a/x@s"});
  }
  // A connection that has been greeted.
  std::unique_ptr<NbdClient> Greeted() const {
    auto client = Dial();
    EXPECT_TRUE(client->Greet());
    return client;
  }
  static std::vector<std::string> NamesOf(const std::vector<NbdClient::OptionReply>& replies) {
    std::vector<std::string> names;
    for (const auto& reply : replies) {
      if (reply.type == kServer) names.push_back(reply.data.substr(4));
    }
    return names;
  }
  void UsePolicy(const std::string& grants) {
    server_->Replace(engine::ValueOf(Policy::Parse("{\"grants\":[" + grants + "]}")));
  }
};

TEST_F(NbdHandshakeTest, ListNamesDatasetsAndSnapshots) {
  const auto client = Greeted();
  const auto replies = client->Option(kList);
  EXPECT_EQ(replies.back().type, kAck);
  EXPECT_EQ(NamesOf(replies), (std::vector<std::string>{"a/x", "b", "a/x@s"}));
  EXPECT_EQ(client->TypeOf(kList, "x"), kErrInvalid);
  EXPECT_EQ(client->TypeOf(kAbort), kAck);
  EXPECT_TRUE(client->AtEnd());
}

TEST_F(NbdHandshakeTest, InfoTellsAndGoAttaches) {
  const auto client = Greeted();
  std::map<uint64_t, std::string> infos;
  const auto replies = client->Option(kOptInfo, NbdClient::NameAndInfos("a/x@latest", {1, 2, 99}));
  for (const auto& reply : replies) {
    if (reply.type == kInfo) infos[engine::FromBe(reply.data, 0, 2)] = reply.data.substr(2);
  }
  EXPECT_EQ(replies.back().type, kAck);
  EXPECT_EQ(infos[0].substr(0, 8), engine::Be64(1 << 20));
  EXPECT_EQ(infos[1], "a/x@s");
  EXPECT_EQ(infos[2].rfind("snapshot of Cowshed", 0), 0u);
  EXPECT_EQ(infos[3], engine::Be32(1) + engine::Be32(16384) + engine::Be32(32 << 20));
  EXPECT_EQ(pool_->attachments().Count(), 0u);
  EXPECT_EQ(client->TypeOf(kGo, NbdClient::NameAndInfos("a/x")), kAck);
  EXPECT_EQ(pool_->attachments().Count(), 1u);
}

TEST_F(NbdHandshakeTest, FlagsSayWhatIsTrue) {
  const auto flags = [&](const std::string& name) { return Attach(name)->export_flags; };
  EXPECT_EQ(flags("a/x"), 0b1101'1110'1101);  // MULTI_CONN: one process, one lease
  EXPECT_EQ(flags("a/x?shared"), 0b1101'1110'1101);
  EXPECT_EQ(flags("a/x?read-only"), 0b0101'1000'1111);
  EXPECT_EQ(flags("a/x@s"), 0b0101'1000'1111);
  EXPECT_EQ(Attach("a/x@s", /*structured=*/false)->export_flags, 0b0101'0000'1111);  // no DF
}

TEST_F(NbdHandshakeTest, ExportNameOfOldWorksToo) {
  for (const bool zeroes : {true, false}) {
    const auto client = Dial();
    ASSERT_TRUE(client->Greet(zeroes ? 1 : 3));
    client->Send("IHAVEOPT" + engine::Be32(kExportName) + engine::Be32(1) + "b");
    EXPECT_EQ(client->Receive(8), engine::Be64(1 << 20));
    EXPECT_EQ(client->Receive(zeroes ? 126 : 2).size(), zeroes ? 126u : 2u);
    EXPECT_EQ(client->Write(0, "abc"), 0u);
    EXPECT_EQ(client->Read(0, 3).data, "abc");
    client->Close();
    AwaitAttachments(0);
  }
  const auto client = Greeted();
  client->Send("IHAVEOPT" + engine::Be32(kExportName) + engine::Be32(2) + "no");
  EXPECT_TRUE(client->AtEnd());
}

TEST_F(NbdHandshakeTest, WhatDoesNotExistIsUnknown) {
  for (const char* name :
       {"", "nothing", "a", "a/x@nothing", "no such name", "a/x?fast", "?shared", "a/x@s@s"}) {
    EXPECT_EQ(RefusalOf(name), kErrUnknown) << name;
  }
}

TEST_F(NbdHandshakeTest, StructuredRepliesAreAskedForOnce) {
  const auto client = Greeted();
  EXPECT_EQ(client->TypeOf(kSetMeta, NbdClient::NameAndQueries("b", {"base:allocation"})),
            kErrInvalid);
  EXPECT_EQ(client->TypeOf(kStructured, "x"), kErrInvalid);
  EXPECT_EQ(client->TypeOf(kStructured), kAck);
  EXPECT_EQ(client->TypeOf(kStructured), kErrInvalid);
  EXPECT_EQ(client->TypeOf(kStartTls), kErrUnsupported);
  EXPECT_EQ(client->TypeOf(4711), kErrUnsupported);
}

TEST_F(NbdHandshakeTest, BrokenOptionsAreRefusedAndTheConnectionGoesOn) {
  const auto client = Greeted();
  EXPECT_EQ(client->TypeOf(kOptInfo, ""), kErrInvalid);
  EXPECT_EQ(client->TypeOf(kOptInfo, engine::Be32(5000) + "b"), kErrInvalid);
  EXPECT_EQ(client->TypeOf(kOptInfo, NbdClient::NameAndInfos(std::string(4097, 'a'))), kErrInvalid);
  EXPECT_EQ(client->TypeOf(kOptInfo, NbdClient::NameAndInfos(std::string(4096, 'a'))), kErrUnknown);
  EXPECT_EQ(client->TypeOf(kGo, NbdClient::NameAndInfos("b") + "x"), kErrInvalid);
  EXPECT_EQ(client->TypeOf(kOptInfo, std::string(100000, 'x')), kErrTooBig);
  EXPECT_EQ(client->TypeOf(kStructured), kAck);
  EXPECT_EQ(client->TypeOf(kListMeta, engine::Be32(1) + "b" + engine::Be32(0xffffffff)),
            kErrInvalid);
  EXPECT_EQ(client->TypeOf(kGo, NbdClient::NameAndInfos("b")), kAck);
}

TEST_F(NbdHandshakeTest, WhatIsNoHandshakeEndsTheConnection) {
  const auto flags = Dial();
  EXPECT_TRUE(flags->Greet(4));
  EXPECT_TRUE(flags->AtEnd());
  const auto magic = Greeted();
  magic->Send(std::string(16, 'x'));
  EXPECT_TRUE(magic->AtEnd());
  const auto huge = Greeted();
  huge->Send("IHAVEOPT" + engine::Be32(kList) + engine::Be32(2 << 20));
  EXPECT_TRUE(huge->AtEnd());
  const auto busy = Greeted();
  for (int i = 0; i < 1024; ++i) ASSERT_EQ(busy->TypeOf(4711), kErrUnsupported);
  EXPECT_TRUE(busy->AtEnd());
  Eventually([&] { return stats_->nbd.errors[metrics::NbdError::kBrokenProtocol] == 4; });
}

TEST_F(NbdHandshakeTest, AHandshakeThatTakesTooLongIsCutShort) {
  server_options_.limits.handshake_timeout = std::chrono::milliseconds(50);
  Restart();
  const auto silent = Dial();
  EXPECT_EQ(silent->Receive(18).size(), 18u);
  EXPECT_TRUE(silent->AtEnd());
  const auto slow = Greeted();
  slow->Send("IHAVE");
  EXPECT_TRUE(slow->AtEnd());
  Eventually([&] { return stats_->nbd.errors[metrics::NbdError::kHandshakeTimeout] == 2; });
}

TEST_F(NbdHandshakeTest, ConnectionsAreBounded) {
  server_options_.limits.nbd_connections_max = 2;
  Restart();
  auto first = Attach("a/x");
  const auto second = Attach("b");
  EXPECT_TRUE(Dial()->AtEnd());
  first.reset();
  Eventually([&] { return stats_->nbd.connections == 1; });
  EXPECT_EQ(Attach("a/x@s")->Read(0, 1).error, 0u);
}

TEST_F(NbdHandshakeTest, ContextsAreOfferedIfTheyCanBeAnswered) {
  Create("a/x2");
  Snapshot({"a/x@t", "b@s"});
  Clone("a/x@s", "c");
  const auto names = [&](uint32_t option, const std::string& name,
                         const std::vector<std::string>& queries) {
    const auto client = Greeted();
    EXPECT_EQ(client->TypeOf(kStructured), kAck);
    std::vector<std::string> found;
    const auto replies = client->Option(option, NbdClient::NameAndQueries(name, queries));
    for (const auto& reply : replies) {
      if (reply.type == kMeta) found.push_back(reply.data.substr(4));
    }
    EXPECT_EQ(replies.back().type, kAck);
    return found;
  };
  using Names = std::vector<std::string>;
  const std::string since = "cowshed:changed-since:";
  EXPECT_EQ(names(kListMeta, "a/x", {}),
            (Names{"base:allocation", since + "a/x@s", since + "a/x@t"}));
  EXPECT_EQ(names(kListMeta, "a/x@t", {"cowshed:"}), (Names{since + "a/x@s"}));
  EXPECT_EQ(names(kListMeta, "b", {"base:", "qemu:"}), Names{"base:allocation"});
  EXPECT_EQ(names(kSetMeta, "b", {"base:", "base:allocations"}), Names{});
  EXPECT_EQ(names(kSetMeta, "c", {since + "a/x@s", "base:allocation", since + "a/x@s"}),
            (Names{since + "a/x@s", "base:allocation"}));
  // Bug: was answered with the full name; clients look for the one they asked for.
  EXPECT_EQ(names(kSetMeta, "a/x@t", {since + "@s"}), Names{since + "@s"});
  // Not there, not of one lineage, not older, itself.
  EXPECT_EQ(names(kSetMeta, "a/x@s", {since + "@no", since + "b@s", since + "a/x@t", since + "@s"}),
            Names{});
  EXPECT_EQ(Greeted()->TypeOf(kListMeta, NbdClient::NameAndQueries("no", {})), kErrInvalid);
}

TEST_F(NbdHandshakeTest, RightsAreThoseOfReadAndWrite) {
  UsePolicy(R"({"who":["unix"],"role":"READER","prefixes":["a"]})");
  EXPECT_EQ(NamesOf(Greeted()->Option(kList)), (std::vector<std::string>{"a/x", "a/x@s"}));
  EXPECT_EQ(RefusalOf("a/x"), kErrPolicy);
  EXPECT_EQ(RefusalOf("a/x?read-only"), 0u);
  EXPECT_EQ(RefusalOf("a/x@s"), 0u);
  EXPECT_EQ(RefusalOf("b"), kErrUnknown);  // as if it were not there
  EXPECT_EQ(RefusalOf("b?read-only"), kErrUnknown);
  const auto there = Dial(), not_there = Dial();
  EXPECT_FALSE(there->Go("b"));
  EXPECT_FALSE(not_there->Go("n"));
  EXPECT_EQ(there->refusal.data.size(), not_there->refusal.data.size());
  UsePolicy(R"({"who":["unix"],"role":"OPERATOR","prefixes":["b"]})");
  EXPECT_EQ(RefusalOf("b"), 0u);
  UsePolicy(R"({"who":["tcp"],"role":"ADMIN"})");
  EXPECT_EQ(NamesOf(Greeted()->Option(kList)), std::vector<std::string>{});
}

TEST_F(NbdHandshakeTest, AttachmentsAndRefusalsAreAudited) {
  server_options_.audit.path = dir_.Path("audit");
  Restart();
  EXPECT_EQ(RefusalOf("a/x@s"), 0u);
  UsePolicy(R"({"who":["unix"],"role":"READER"})");
  EXPECT_EQ(RefusalOf("b"), kErrPolicy);
  Stop();
  std::ifstream file(dir_.Path("audit"));
  const std::string log((std::istreambuf_iterator<char>(file)), {});
  EXPECT_NE(log.find(R"("method":"NbdAttach","names":["a/x@s"],"request_id":"","code":"OK")"),
            std::string::npos)
      << log;
  EXPECT_NE(log.find(R"("names":["b"],"request_id":"","code":"PERMISSION_DENIED")"),
            std::string::npos)
      << log;
  check_at_end_ = false;
}

}  // namespace
}  // namespace cowshed::service

// SPDX-License-Identifier: Apache-2.0
//
// How NBD connections end: by the client, by a detach, with the server, for want of a reader. And
// the writer lease, which ends with them.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>

#include "tests/service/nbd_fixture.h"

namespace cowshed::service {
namespace {

using namespace nbd_numbers;  // NOLINT: the protocol's own names, in a test of it
using std::chrono::milliseconds;

constexpr uint64_t kSize = 64 << 20;

class NbdEndingTest : public NbdTest {
 protected:
  void SetUp() override {
    NbdTest::SetUp();
    Create("d", kSize);
  }
  // Asks the attachments to end, and goes on meanwhile.
  void DetachAll() {
    pool_->attachments().End(
        [](const engine::AttachmentInfo&) { return absl::AbortedError("detached by a test"); },
        [](size_t) {});
  }
  // Somebody else's process has attached `name` for writing for as long as this lives.
  class OtherProcess {
   public:
    OtherProcess(const NbdEndingTest& test, const std::string& name) {
      int ready[2];
      EXPECT_EQ(pipe(ready), 0);
      EXPECT_EQ(pipe(end_), 0);
      child_ = fork();
      if (child_ == 0) {
        close(end_[1]);
        const auto client = test.Dial();
        const char attached = client->Go(name) ? 'y' : 'n';
        char byte = 0;
        if (write(ready[1], &attached, 1) != 1 || read(end_[0], &byte, 1) != 0) _exit(1);
        _exit(0);
      }
      char attached = 0;
      EXPECT_EQ(read(ready[0], &attached, 1), 1);
      EXPECT_EQ(attached, 'y');
      close(ready[0]);
      close(ready[1]);
      close(end_[0]);
    }
    ~OtherProcess() {
      close(end_[1]);
      int status = 0;
      waitpid(child_, &status, 0);
      EXPECT_EQ(status, 0);
    }

   private:
    int end_[2] = {-1, -1};
    pid_t child_ = -1;
  };
};

TEST_F(NbdEndingTest, OneProcessSharesTheLeaseAndAnotherOneDoesNotGetIt) {
  {
    const OtherProcess other(*this, "d");
    const auto refused = Dial();
    EXPECT_FALSE(refused->Go("d"));
    EXPECT_EQ(refused->refusal.type, kErrPolicy);
    EXPECT_NE(refused->refusal.data.find("attached for writing by uid:"), std::string::npos);
    EXPECT_EQ(refused->TypeOf(kGo, NbdClient::NameAndInfos("d?shared")), kErrPolicy);
    EXPECT_EQ(refused->TypeOf(kGo, NbdClient::NameAndInfos("d?read-only")), kAck);
  }
  AwaitAttachments(0);
  const auto first = Attach("d"), second = Attach("d");
  EXPECT_EQ(first->Write(0, "first"), 0u);
  EXPECT_EQ(second->Read(0, 5).data, "first");
  EXPECT_EQ(second->Write(0, "again"), 0u);
  EXPECT_EQ(first->Flush(), 0u);
  EXPECT_EQ(first->Read(0, 5).data, "again");
}

TEST_F(NbdEndingTest, SharedAttachmentsBearEachOther) {
  const OtherProcess other(*this, "d?shared");
  EXPECT_EQ(Attach("d?shared")->Write(0, "x"), 0u);
  EXPECT_EQ(RefusalOf("d"), kErrPolicy);
}

// Bug: a client that had closed its connection could be refused the lease it had just given up,
// when another one asked for it before the server had seen the end.
TEST_F(NbdEndingTest, WhoeverComesNextGetsTheLeaseOfWhoHasJustGone) {
  for (int i = 0; i < 20; ++i) {
    auto other = std::make_unique<OtherProcess>(*this, "d");
    other.reset();
    EXPECT_EQ(RefusalOf("d"), 0u) << i;
  }
}

TEST_F(NbdEndingTest, ACutAttachmentAnswersShutdownAndEnds) {
  const auto client = Attach("d");
  EXPECT_EQ(client->Write(0, "kept"), 0u);
  // Requests that are there when it is cut are answered.
  DetachAll();
  const auto answer = client->Ask(kRead, 0, 4);
  if (!answer.ended) {
    EXPECT_EQ(answer.error, kEshutdown);
    EXPECT_EQ(answer.text, "detached by a test");
  }
  EXPECT_TRUE(client->AtEnd());
  AwaitAttachments(0);
  EXPECT_EQ(Read("d", 0, 4), "kept");
}

TEST_F(NbdEndingTest, ACutDuringAWriteAnswersIt) {
  const auto client = Attach("d");
  const uint64_t cookie = client->Request(kWrite, 0, 8192, 0, std::string(4096, 'x'));
  Eventually([&] { return pool_->attachments().List()[0].requests == 1; });
  DetachAll();
  client->Send(std::string(4096, 'y'));
  const auto answer = client->Take();
  EXPECT_EQ(answer.cookie, cookie);
  EXPECT_EQ(answer.error, 0u);
  EXPECT_TRUE(client->AtEnd());
}

TEST_F(NbdEndingTest, TheServersStopAnswersWhatIsInFlight) {
  const auto client = Attach("d");
  std::set<uint64_t> cookies;
  for (uint64_t i = 0; i < 16; ++i) {
    cookies.insert(client->Request(kWrite, i << 20, 1 << 20, kFua, std::string(1 << 20, 'w')));
  }
  std::thread stops([&] { server_->Stop(); });
  size_t done = 0;
  for (auto answer = client->Take(); !answer.ended; answer = client->Take()) {
    EXPECT_EQ(cookies.erase(answer.cookie), 1u);
    EXPECT_TRUE(answer.error == 0 || answer.error == kEshutdown) << answer.error;
    done += answer.error == 0;
  }
  stops.join();
  EXPECT_EQ(pool_->attachments().Count(), 0u);
  EXPECT_LE(done, 16u);
}

TEST_F(NbdEndingTest, WhatIsDestroyedOrRolledBackByForceIsCut) {
  Snapshot({"d@s"});
  for (const bool destroy : {false, true}) {
    const auto client = Attach("d");
    EXPECT_EQ(client->Write(0, "lost"), 0u);
    if (destroy) {
      Call(datasets(), &Datasets::DestroyDatasets, "names: 'd' recursive: true force: true");
    } else {
      Call(datasets(), &Datasets::RollbackDataset, "name: 'd' snapshot: 'd@s' force: true");
    }
    EXPECT_TRUE(client->Take().ended);
  }
  EXPECT_EQ(pool_->attachments().Count(), 0u);
}

TEST_F(NbdEndingTest, AClientThatTakesNothingIsCut) {
  server_options_.limits.stall_timeout = milliseconds(200);
  Restart();
  const auto client = Attach("d");
  EXPECT_EQ(client->Write(0, std::string(32 << 20, 'x')), 0u);
  for (int i = 0; i < 4; ++i) client->Request(kRead, 0, 32 << 20);
  AwaitAttachments(0);
  Eventually([&] { return stats_->nbd.errors[metrics::NbdError::kStalled] == 1; });
}

// Slow, but it takes: as little as it is, it is served to the end.
TEST_F(NbdEndingTest, AClientThatTakesLittleAtATimeIsNot) {
  server_options_.limits.stall_timeout = milliseconds(500);
  Restart();
  const auto client = Attach("d", /*structured=*/false);
  const std::string bytes(16 << 20, 'x');
  EXPECT_EQ(client->Write(0, bytes), 0u);
  client->Request(kRead, 0, 16 << 20);
  EXPECT_EQ(client->Receive(16).size(), 16u);
  for (int i = 0; i < 16; ++i) {
    std::this_thread::sleep_for(milliseconds(60));  // the slowness itself
    EXPECT_EQ(client->Receive(1 << 20).size(), size_t{1} << 20);
  }
  EXPECT_EQ(client->Read(0, 3).data, "xxx");
}

TEST_F(NbdEndingTest, RequestsPastTheBoundWaitForRepliesToLeave) {
  server_options_.limits.nbd_requests_max = 4;
  server_options_.limits.nbd_memory_bytes = 1 << 20;
  Restart();
  const auto client = Attach("d?shared"), other = Attach("d?shared");
  EXPECT_EQ(client->Write(0, std::string(4 << 20, 'x')), 0u);
  std::thread asks([&] {
    for (int i = 0; i < 50; ++i) EXPECT_EQ(other->Read(0, 3 << 20).data.size(), size_t{3} << 20);
  });
  for (int i = 0; i < 100; ++i) client->Request(kRead, 0, 1 << 20);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(client->Take().data.size(), size_t{1} << 20);
  asks.join();
}

TEST_F(NbdEndingTest, AResizeIsSeenByNewConnections) {
  const auto before = Attach("d");
  Call(datasets(), &Datasets::UpdateDataset,
       "dataset { name: 'd' size_bytes: 134217728 } update_mask { paths: 'size_bytes' }");
  EXPECT_EQ(before->Write(kSize, "x"), kEnospc);
  const auto after = Attach("d");
  EXPECT_EQ(after->size_bytes, 2 * kSize);
  EXPECT_EQ(after->Write(kSize, "x"), 0u);
}

}  // namespace
}  // namespace cowshed::service

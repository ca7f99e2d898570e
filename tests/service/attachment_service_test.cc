// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "engine/attachments.h"
#include "service/attachment_service.h"
#include "tests/service/certificates.h"
#include "tests/service/server_fixture.h"
#include "tests/support/await.h"

namespace cowshed::service {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class AttachmentServiceTest : public ServerTest {
 protected:
  void SetUp() override {
    ServerTest::SetUp();
    Create("dev/a");
    Snapshot({"dev/a@s"});
  }
  struct Device {
    engine::Mutex mutex{engine::LockRank::kNbdConnection};
    std::unique_ptr<engine::Attachment> attachment ABSL_GUARDED_BY(mutex);
    absl::Status why ABSL_GUARDED_BY(mutex);
    bool stays ABSL_GUARDED_BY(mutex) = false;  // takes its time to end
    engine::Await<absl::Status> cut;
  };
  static void End(Device& device) {
    std::unique_ptr<engine::Attachment> ended;
    const engine::MutexLock lock(device.mutex);
    ended = std::move(device.attachment);
  }
  void TearDown() override {
    for (const auto& [_, device] : devices_) End(*device);
    ServerTest::TearDown();
  }

  // Attaches as a connection does that ends when it is cut. Returns the attachment's id.
  std::string Attach(const std::string& name, bool read_only = true, bool shared = false) {
    engine::AttachArgs args;
    args.name = name;
    args.read_only = read_only;
    args.shared = shared;
    args.holder = args.client = "uid:1 pid:" + std::to_string(++clients_);
    args.protocol = "nbd";
    auto device = std::make_shared<Device>();
    args.cut = [device](const absl::Status& why) {
      std::unique_ptr<engine::Attachment> ended;
      const engine::MutexLock lock(device->mutex);
      if (!device->stays) ended = std::move(device->attachment);
      if (device->why.ok()) device->cut.Callback()(why);
      device->why = why;
    };
    auto attachment = engine::ValueOf(pool_->attachments().Attach(args));
    devices_[attachment->id()] = device;
    const std::string id = attachment->id();
    const engine::MutexLock lock(device->mutex);
    device->attachment = std::move(attachment);
    return id;
  }
  // Why the attachment was cut; "" while it has not been.
  std::string CutOf(const std::string& id) {
    const engine::MutexLock lock(devices_.at(id)->mutex);
    return std::string(devices_.at(id)->why.message());
  }

  std::vector<std::string> Listed(v1::AttachmentService::Stub& stub, const std::string& request) {
    std::vector<std::string> names;
    const auto page = Call(stub, &Stub::ListAttachments, request);
    for (const auto& attachment : page.attachments()) {
      names.push_back(attachment.name());
    }
    return names;
  }
  std::vector<std::string> Listed(const std::string& request = "") {
    return Listed(attachments(), request);
  }
  v1::GetExportResponse Export(const std::string& request) {
    return Call(attachments(), &Stub::GetExport, request);
  }

  using Stub = Attachments;
  std::map<std::string, std::shared_ptr<Device>> devices_;
  int clients_ = 0;
};

TEST_F(AttachmentServiceTest, ListsWhoUsesWhat) {
  EXPECT_THAT(Listed(), IsEmpty());
  const std::string id = Attach("dev/a", /*read_only=*/false, /*shared=*/true);
  Attach("dev/a@s");
  Create("other");
  Attach("other");
  const auto page = Call(attachments(), &Stub::ListAttachments, "page_size: 1 name: 'dev/a'");
  ASSERT_EQ(page.attachments_size(), 1);
  const v1::Attachment& first = page.attachments(0);
  EXPECT_EQ(first.id(), id);
  EXPECT_EQ(first.name(), "dev/a");
  EXPECT_EQ(first.uid(), engine::ValueOf(pool_->GetDataset("dev/a")).uid);
  EXPECT_FALSE(first.read_only());
  EXPECT_TRUE(first.shared());
  EXPECT_EQ(first.client(), "uid:1 pid:1");
  EXPECT_EQ(first.protocol(), "nbd");
  EXPECT_GT(first.since_time().seconds(), 0);
  EXPECT_FALSE(first.ending());
  EXPECT_THAT(Listed("name: 'dev/a' page_token: '" + page.next_page_token() + "'"),
              ElementsAre("dev/a@s"));
  EXPECT_THAT(Listed("prefix: 'dev'"), ElementsAre("dev/a", "dev/a@s"));
  EXPECT_THAT(Listed(), ElementsAre("dev/a", "dev/a@s", "other"));
}

TEST_F(AttachmentServiceTest, ListRefusesWhatMakesNoSense) {
  const auto list = [this](const std::string& request) {
    return Try(attachments(), &Stub::ListAttachments, request);
  };
  EXPECT_FAILS(list("name: 'a' prefix: 'b'"), kInvalidArgument, INVALID_FIELD);
  EXPECT_FAILS(list("name: 'missing'"), kNotFound, DATASET_NOT_FOUND);
  EXPECT_FAILS(list("name: 'dev/a@missing'"), kNotFound, SNAPSHOT_NOT_FOUND);
  EXPECT_FAILS(list("prefix: 'a//b'"), kInvalidArgument, INVALID_NAME);
  EXPECT_FAILS(list("page_token: 'x'"), kInvalidArgument, INVALID_PAGE_TOKEN);
}

TEST_F(AttachmentServiceTest, DetachesOneOrAll) {
  const std::string one = Attach("dev/a");
  const std::string two = Attach("dev/a", /*read_only=*/false);
  const std::string snapshot = Attach("dev/a@s");
  const std::string three = Attach("dev/a");
  EXPECT_EQ(Call(attachments(), &Stub::Detach, "attachment: '" + one + "'").count(), 1u);
  EXPECT_THAT(CutOf(one), testing::StartsWith("detached by uid:"));
  EXPECT_EQ(CutOf(two), "");
  EXPECT_EQ(Call(attachments(), &Stub::Detach, "name: 'dev/a'").count(), 2u);
  EXPECT_THAT(Listed(), ElementsAre("dev/a@s"));
  EXPECT_EQ(Call(attachments(), &Stub::Detach, "name: 'dev/a'").count(), 0u);
  EXPECT_EQ(Call(attachments(), &Stub::Detach, "name: 'dev/a@s'").count(), 1u);
  EXPECT_FAILS(Try(attachments(), &Stub::Detach, "attachment: '" + one + "'"), kNotFound,
               ATTACHMENT_NOT_FOUND);
  EXPECT_FAILS(Try(attachments(), &Stub::Detach, "name: 'missing'"), kNotFound, DATASET_NOT_FOUND);
  EXPECT_FAILS(Try(attachments(), &Stub::Detach, ""), kInvalidArgument, INVALID_FIELD);
  EXPECT_FAILS(Try(attachments(), &Stub::Detach, "name: 'dev/a' attachment: '1'"), kInvalidArgument,
               INVALID_FIELD);
}

TEST_F(AttachmentServiceTest, DetachAnswersWhenTheAttachmentIsOver) {
  const std::string id = Attach("dev/a");
  const std::shared_ptr<Device> device = devices_.at(id);
  {
    const engine::MutexLock lock(device->mutex);
    device->stays = true;
  }
  engine::Await<uint64_t> count;
  std::thread caller(
      [&] { count.Callback()(Call(attachments(), &Stub::Detach, "name: 'dev/a'").count()); });
  EXPECT_FALSE(device->cut.Wait().ok());
  EXPECT_TRUE(Call(attachments(), &Stub::ListAttachments, "").attachments(0).ending());
  EXPECT_FALSE(count.Ready());
  End(*device);
  EXPECT_EQ(count.Wait(), 1u);
  caller.join();
}

TEST_F(AttachmentServiceTest, WhatIsAttachedGoesByForceOnly) {
  const auto attached = [this](const grpc::Status& status) {
    const Failure failure = FailureOf(status);
    EXPECT_EQ(failure.code, absl::StatusCode::kFailedPrecondition) << failure.message;
    EXPECT_EQ(failure.reason, v1::ErrorReason_Name(v1::ATTACHED)) << failure.message;
    EXPECT_EQ(failure.blockers.total(), 1u);
    const auto page = Call(datasets(), &Datasets::ListBlockers,
                           "list_token: '" + failure.blockers.list_token() + "'");
    EXPECT_EQ(page.blockers_size(), 1);
    const v1::Blocker& blocker = page.blockers(0);
    EXPECT_EQ(blocker.kind(), v1::BLOCKER_KIND_ATTACHMENT);
    EXPECT_THAT(blocker.client(), testing::StartsWith("uid:1 pid:"));
    EXPECT_EQ(CutOf(blocker.attachment()), "");
    EXPECT_GT(blocker.since_time().seconds(), 0);
    EXPECT_EQ(failure.blockers.blockers(0).SerializeAsString(), blocker.SerializeAsString());
    return blocker.attachment();
  };
  const std::string shrink =
      "dataset { name: 'dev/a' size_bytes: 4096 } update_mask { paths: 'size_bytes' } ";
  Attach("dev/a");
  std::string id = attached(Try(datasets(), &Datasets::UpdateDataset, shrink));
  Call(datasets(), &Datasets::UpdateDataset, shrink + "force: true");
  EXPECT_NE(CutOf(id), "");

  Attach("dev/a");
  id = attached(Try(datasets(), &Datasets::RollbackDataset, "name: 'dev/a'"));
  Call(datasets(), &Datasets::RollbackDataset, "name: 'dev/a' force: true");
  EXPECT_NE(CutOf(id), "");

  Attach("dev/a@s");
  id = attached(Try(datasets(), &Datasets::DestroySnapshots, "names: 'dev/a@s'"));
  Call(datasets(), &Datasets::DestroySnapshots, "names: 'dev/a@s' force: true");
  EXPECT_NE(CutOf(id), "");

  Create("golden");
  const std::string clone = "source: 'golden' name: 'dev/a' ";
  Attach("dev/a");
  id = attached(Try(datasets(), &Datasets::CloneDataset, clone + "replace: true"));
  EXPECT_FAILS(Try(datasets(), &Datasets::CloneDataset, clone + "force: true"), kInvalidArgument,
               INVALID_FIELD);
  Call(datasets(), &Datasets::CloneDataset, clone + "replace: true force: true");
  EXPECT_NE(CutOf(id), "");

  Attach("dev/a");
  id = attached(Try(datasets(), &Datasets::DestroyDatasets, "names: 'dev/a'"));
  const auto plan =
      Call(datasets(), &Datasets::DestroyDatasets, "names: 'dev/a' validate_only: true").plan();
  EXPECT_EQ(plan.blockers().total(), 1u);
  Call(datasets(), &Datasets::DestroyDatasets, "names: 'dev/a' force: true");
  EXPECT_NE(CutOf(id), "");
  EXPECT_THAT(Listed(), IsEmpty());
}

TEST(ExportAddressTest, IsAUriThatClientsUnderstand) {
  auto made = MakeExportAddress("unix:/run/cow shed/nbd", true, "dev/a");
  EXPECT_EQ(made.uri(), "nbd+unix:///dev/a?socket=/run/cow%20shed/nbd");
  EXPECT_EQ(made.socket(), "/run/cow shed/nbd");
  EXPECT_EQ(made.host_port(), "");
  EXPECT_FALSE(made.tls()) << "the socket is guarded by who may open it";
  made = MakeExportAddress("127.0.0.1:10809", true, "dev/a?shared");
  EXPECT_EQ(made.uri(), "nbds://127.0.0.1:10809/dev/a%3Fshared");
  EXPECT_EQ(made.host_port(), "127.0.0.1:10809");
  EXPECT_EQ(made.socket(), "");
  EXPECT_TRUE(made.tls());
  made = MakeExportAddress("[::1]:10809", false, "dev/a@s");
  EXPECT_EQ(made.uri(), "nbd://[::1]:10809/dev/a%40s");
  EXPECT_FALSE(made.tls());
}

TEST_F(AttachmentServiceTest, WithoutNbdThereIsNowhereToAttach) {
  EXPECT_FAILS(Try(attachments(), &Stub::GetExport, "name: 'dev/a'"), kFailedPrecondition,
               NBD_DISABLED);
}

class ExportTest : public AttachmentServiceTest {
 protected:
  void SetUp() override {
    server_options_.nbd_listen = {"unix:" + dir_.Path("nbd"), "127.0.0.1:0"};
    AttachmentServiceTest::SetUp();
  }
};

TEST_F(ExportTest, SaysWhereToAttach) {
  auto reply = Export("name: 'dev/a'");
  EXPECT_EQ(reply.name(), "dev/a");
  EXPECT_EQ(reply.uid(), engine::ValueOf(pool_->GetDataset("dev/a")).uid);
  EXPECT_EQ(reply.export_name(), "dev/a");
  EXPECT_EQ(reply.size_bytes(), 1u << 20);
  EXPECT_EQ(reply.block_size_bytes(), 16384u);
  EXPECT_FALSE(reply.read_only());
  ASSERT_EQ(reply.addresses_size(), 2);
  EXPECT_EQ(reply.addresses(0).uri(), "nbd+unix:///dev/a?socket=" + dir_.Path("nbd"));
  EXPECT_EQ(reply.addresses(1).uri(), "nbd://" + reply.addresses(1).host_port() + "/dev/a");
  EXPECT_THAT(reply.addresses(1).host_port(), testing::Not(testing::EndsWith(":0")));
  EXPECT_EQ(reply.attachments_size(), 0);

  Attach("dev/a");
  reply = Export("name: 'dev/a' shared: true");
  EXPECT_EQ(reply.export_name(), "dev/a?shared");
  EXPECT_FALSE(reply.read_only());
  ASSERT_EQ(reply.attachments_size(), 1);
  EXPECT_EQ(reply.attachments(0).name(), "dev/a");
  reply = Export("name: 'dev/a' read_only: true");
  EXPECT_EQ(reply.export_name(), "dev/a?read-only");
  EXPECT_TRUE(reply.read_only());
  reply = Export("name: 'dev/a@latest'");
  EXPECT_EQ(reply.name(), "dev/a@s");
  EXPECT_EQ(reply.export_name(), "dev/a@s");
  EXPECT_TRUE(reply.read_only());
  EXPECT_EQ(reply.attachments_size(), 0);
}

TEST_F(ExportTest, RefusesWhatMakesNoSense) {
  const auto refused = [this](const std::string& request) {
    return Try(attachments(), &Stub::GetExport, request);
  };
  EXPECT_FAILS(refused("name: 'dev/a' shared: true read_only: true"), kInvalidArgument,
               INVALID_FIELD);
  EXPECT_FAILS(refused("name: 'dev/a@s' shared: true"), kInvalidArgument, INVALID_FIELD);
  EXPECT_FAILS(refused("name: 'missing'"), kNotFound, DATASET_NOT_FOUND);
  EXPECT_FAILS(refused("name: 'dev/a@x'"), kNotFound, SNAPSHOT_NOT_FOUND);
  EXPECT_FAILS(refused("name: ''"), kInvalidArgument, INVALID_NAME);
}

constexpr char kPolicy[] = R"({"grants": [
  {"who": ["unix"], "role": "ADMIN"},
  {"who": ["cert:ci.test"], "role": "OPERATOR", "prefixes": ["ci"]},
  {"who": ["cert:ci.test"], "role": "READER", "prefixes": ["dev"]}
]})";

class AttachmentRightsTest : public AttachmentServiceTest {
 protected:
  void SetUp() override {
    const Certificate server = authority_.Sign("cowshed.test");
    server_options_.tls = {server.pem, server.key_pem, authority_.pem(), 1};
    server_options_.roles.certificates = true;
    server_options_.policy = engine::ValueOf(Policy::Parse(kPolicy));
    AttachmentServiceTest::SetUp();
    const auto channel = ConnectTls(tcp_address(), authority_, authority_.Sign("ci.test"));
    ci_ = v1::AttachmentService::NewStub(channel);
    ci_datasets_ = v1::DatasetService::NewStub(channel);
    Create("ci/a");
    Create("other");
  }
  const Authority authority_;
  std::unique_ptr<Stub> ci_;
  std::unique_ptr<Datasets> ci_datasets_;
};

TEST_F(AttachmentRightsTest, EverybodySeesAndEndsHisOwn) {
  const std::string own = Attach("ci/a");
  const std::string readable = Attach("dev/a");
  const std::string hidden = Attach("other");
  EXPECT_THAT(Listed(*ci_, ""), ElementsAre("ci/a"));  // a page for each of his prefixes
  std::vector<std::string> all;
  std::string token;
  do {
    const auto page = Call(*ci_, &Stub::ListAttachments, "page_token: '" + token + "'");
    for (const auto& attachment : page.attachments()) all.push_back(attachment.name());
    token = page.next_page_token();
  } while (!token.empty());
  EXPECT_THAT(all, ElementsAre("ci/a", "dev/a"));
  const auto detach = [this](const std::string& id) {
    return Try(*ci_, &Stub::Detach, "attachment: '" + id + "'");
  };
  for (const std::string& id : {readable, hidden, std::string("4711")}) {
    EXPECT_FAILS(detach(id), kPermissionDenied, PERMISSION_DENIED);
  }
  EXPECT_EQ(CutOf(readable) + CutOf(hidden), "");
  EXPECT_TRUE(detach(own).ok());
  EXPECT_NE(CutOf(own), "");
}

TEST_F(AttachmentRightsTest, AnAttachmentThatHasBeenRenamedAwayIsHiddenByItsNewName) {
  const std::string id = Attach("ci/a");
  Call(datasets(), &Datasets::RenameDataset, "name: 'ci/a' new_name: 'other/a'");
  EXPECT_FAILS(Try(*ci_, &Stub::Detach, "attachment: '" + id + "'"), kPermissionDenied,
               PERMISSION_DENIED);
  EXPECT_EQ(CutOf(id), "");
}

TEST_F(AttachmentRightsTest, WhoIsInTheWayUnderANameOfOthersStaysUnknown) {
  Attach("ci/a");
  const Failure failure =
      FailureOf(Try(*ci_datasets_, &Datasets::DestroyDatasets, "names: 'ci/a'"));
  EXPECT_EQ(failure.blockers.blockers(0).client(), "uid:1 pid:1");
  Call(datasets(), &Datasets::RenameDataset, "name: 'ci/a' new_name: 'other/a'");
  const auto page = Call(*ci_datasets_, &Datasets::ListBlockers,
                         "list_token: '" + failure.blockers.list_token() + "'");
  ASSERT_EQ(page.blockers_size(), 1);
  EXPECT_EQ(page.blockers(0).ShortDebugString(), "kind: BLOCKER_KIND_ATTACHMENT");
}

}  // namespace
}  // namespace cowshed::service

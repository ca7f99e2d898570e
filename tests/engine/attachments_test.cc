// SPDX-License-Identifier: Apache-2.0
#include "engine/attachments.h"

#include <gmock/gmock.h>

#include <thread>

#include "engine/base/strings.h"
#include "engine/errors.h"
#include "tests/engine/held_sync.h"
#include "tests/support/await.h"
#include "tests/support/temp_pool.h"
#include "tests/support/testing.h"

namespace cowshed::engine {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::string ReasonOf(const absl::Status& status) {
  const auto details = GetErrorDetails(status);
  return details.has_value() ? details->reason : status.ToString();
}

// A client's device: keeps what it was cut with. `ends_when_cut`: as a connection does.
class Device {
 public:
  Device(Attachments& table, AttachArgs args, bool ends_when_cut = false) {
    args.protocol = "test";
    // Its state is shared: it may be cut while it goes.
    args.cut = [state = state_, ends_when_cut](const absl::Status& why) {
      std::unique_ptr<Attachment> ended;
      const MutexLock lock(state->mutex);
      if (state->why.ok()) state->cut.Callback()(why);
      state->why = why;
      if (ends_when_cut) ended = std::move(state->attachment);
    };
    auto attached = table.Attach(args);
    status_ = attached.status();
    if (!attached.ok()) return;
    const MutexLock lock(state_->mutex);
    state_->attachment = *std::move(attached);
  }
  ~Device() { End(); }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  absl::Status status() const { return status_; }
  // The reason; "" while it has not been cut.
  std::string cut() const {
    const MutexLock lock(state_->mutex);
    return state_->why.ok() ? "" : ReasonOf(state_->why);
  }
  absl::Status WaitForCut() { return state_->cut.Wait(); }
  Volume& volume() {
    const MutexLock lock(state_->mutex);
    return state_->attachment->volume();
  }
  void End() {
    std::unique_ptr<Attachment> ended;
    const MutexLock lock(state_->mutex);
    ended = std::move(state_->attachment);
  }

 private:
  struct State {
    Mutex mutex{LockRank::kNbdConnection};
    absl::Status why ABSL_GUARDED_BY(mutex);
    std::unique_ptr<Attachment> attachment ABSL_GUARDED_BY(mutex);
    Await<absl::Status> cut;
  };

  const std::shared_ptr<State> state_ = std::make_shared<State>();
  absl::Status status_;
};

class AttachmentsTest : public testing::Test {
 protected:
  static AttachArgs Writer(const std::string& name, const std::string& holder = "one") {
    AttachArgs args;
    args.name = name;
    args.holder = holder;
    args.client = "client " + holder;
    return args;
  }
  static AttachArgs Reader(const std::string& name, const std::string& holder = "one") {
    AttachArgs args = Writer(name, holder);
    args.read_only = true;
    return args;
  }
  static AttachArgs Shared(const std::string& name, const std::string& holder = "one") {
    AttachArgs args = Writer(name, holder);
    args.shared = true;
    return args;
  }
  Attachments& table() { return pool_->attachments(); }

  absl::Status Destroy(const std::string& name, bool force, bool recursive = false) {
    DestroyDatasetsArgs args;
    args.names = {name};
    args.force = force;
    args.recursive = recursive;
    return pool_.Call(&Pool::DestroyDatasets, args).status();
  }
  absl::Status Rollback(const std::string& name, bool force, bool destroy_newer = false,
                        const std::string& to = "") {
    RollbackDatasetArgs args;
    args.name = name;
    args.force = force;
    args.snapshot = to;
    args.destroy_newer = destroy_newer;
    return pool_.Call(&Pool::RollbackDataset, args).status();
  }
  absl::Status Shrink(const std::string& name, bool force) {
    UpdateDatasetArgs args;
    args.name = name;
    args.size_bytes = 8192;
    args.force = force;
    return pool_.Call(&Pool::UpdateDataset, args).status();
  }
  absl::Status DestroySnapshot(const std::string& name, bool force, bool defer = false) {
    DestroySnapshotsArgs args;
    args.names = {name};
    args.force = force;
    args.defer = defer;
    return pool_.Call(&Pool::DestroySnapshots, args).status();
  }
  // What a refusal lists, `page_size` at a time, as "name by client".
  std::vector<std::string> BlockersOf(const absl::Status& refusal, uint32_t page_size = 100) {
    const auto details = GetErrorDetails(refusal);
    if (!details.has_value()) return {"no details: " + refusal.ToString()};
    std::vector<std::string> found;
    ListArgs args;
    args.page_size = page_size;
    do {
      const Page<Blocker> page = ValueOf(pool_->ListBlockers(details->blockers.query, args));
      for (const Blocker& blocker : page.items) {
        found.push_back(StrCat(blocker.name, " by ", blocker.client));
        EXPECT_EQ(blocker.kind, BlockerKind::kAttachment);
        EXPECT_EQ(blocker.blocked_name, blocker.name);
        EXPECT_EQ(blocker.since_ms, TempPool::kStartMs);
        EXPECT_FALSE(blocker.attachment.empty());
      }
      args.position = page.next;
    } while (!args.position.empty());
    EXPECT_EQ(details->blockers.total, found.size());
    return found;
  }
  std::vector<std::string> Listed(const ListArgs& args = {}) {
    std::vector<std::string> names;
    for (const auto& info : ValueOf(pool_->ListAttachments(args)).items) names.push_back(info.name);
    return names;
  }

  TempPool pool_{[](PoolOptions* options) {
    options->bulk_names_per_txg = 2;
    options->discard_direct_blocks = 4;
  }};
};

TEST_F(AttachmentsTest, TheWriterLeaseHasOneHolder) {
  ASSERT_OK(pool_.Create("d").status());
  Device first(table(), Writer("d"));
  ASSERT_OK(first.status());
  EXPECT_OK(Device(table(), Writer("d", "one")).status()) << "another connection of the holder";
  EXPECT_OK(Device(table(), Reader("d", "two")).status()) << "a reader needs no lease";
  Device second(table(), Writer("d", "two"));
  EXPECT_EQ(ReasonOf(second.status()), "ATTACHED");
  EXPECT_EQ(GetErrorDetails(second.status())->metadata.at("client"), "client one");
  EXPECT_EQ(ReasonOf(Device(table(), Shared("d", "two")).status()), "ATTACHED");
  first.End();
  EXPECT_OK(Device(table(), Writer("d", "two")).status()) << "the lease goes with its connection";
}

TEST_F(AttachmentsTest, SharedWritersBearEachOther) {
  ASSERT_OK(pool_.Create("d").status());
  Device first(table(), Shared("d", "one"));
  Device second(table(), Shared("d", "two"));
  ASSERT_OK(first.status());
  ASSERT_OK(second.status());
  EXPECT_EQ(ReasonOf(Device(table(), Writer("d", "three")).status()), "ATTACHED");
  EXPECT_EQ(pool_->stats().attachments[AttachMode::kShared], 2u);
  second.End();
  EXPECT_EQ(pool_->stats().attachments[AttachMode::kShared], 1u);
}

TEST_F(AttachmentsTest, DestroyIsRefusedAndNamesThemAll) {
  ASSERT_OK(pool_.Create("d").status());
  ASSERT_OK(pool_.Snapshot("d@s").status());
  Device writer(table(), Writer("d"));
  Device reader(table(), Reader("d", "two"));
  Device backup(table(), Reader("d@s", "three"));
  const absl::Status refusal = Destroy("d", /*force=*/false, /*recursive=*/true);
  EXPECT_EQ(refusal.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(refusal), "ATTACHED");
  EXPECT_THAT(std::string(refusal.message()), testing::HasSubstr("attached by client one"));
  for (const uint32_t page_size : {1u, 2u, 100u}) {
    EXPECT_THAT(BlockersOf(refusal, page_size),
                ElementsAre("d by client one", "d by client two", "d@s by client three"));
  }
  EXPECT_OK(pool_->GetDataset("d").status());
  EXPECT_EQ(writer.cut() + reader.cut() + backup.cut(), "");
  for (Device* device : {&writer, &reader, &backup}) device->End();
  EXPECT_OK(Destroy("d", /*force=*/false, /*recursive=*/true));
}

TEST_F(AttachmentsTest, MoreThanAnErrorCarries) {
  ASSERT_OK(pool_.Create("d").status());
  std::vector<std::unique_ptr<Device>> devices;
  for (int i = 0; i < 30; ++i) {
    devices.push_back(std::make_unique<Device>(table(), Reader("d", StrCat(i))));
  }
  const absl::Status refusal = Destroy("d", /*force=*/false);
  EXPECT_EQ(GetErrorDetails(refusal)->blockers.first.size(), 20u);
  EXPECT_EQ(BlockersOf(refusal, 7).size(), 30u);
}

TEST_F(AttachmentsTest, ForceCutsOnceTheDatasetIsGone) {
  ASSERT_OK(pool_.Create("d").status());
  std::optional<bool> was_there;
  AttachArgs args = Writer("d");
  args.cut = [&](const absl::Status&) { was_there = pool_->GetDataset("d").ok(); };
  const auto watcher = ValueOf(table().Attach(args));
  Device device(table(), Writer("d"));
  ASSERT_OK(Destroy("d", /*force=*/true));
  EXPECT_EQ(was_there, false);
  EXPECT_EQ(device.cut(), "DATASET_DESTROYED");
  EXPECT_EQ(ReasonOf(device.volume().Write(0, std::vector<std::byte>(16))), "DATASET_DESTROYED");
  EXPECT_EQ(pool_->stats().attachments_cut, 2u);
  ASSERT_OK(pool_.Create("d").status());
  EXPECT_OK(Device(table(), Writer("d", "two")).status()) << "the successor is not attached";
}

TEST_F(AttachmentsTest, ThePlanSaysWhatIsInTheWay) {
  ASSERT_OK(pool_.Create("d").status());
  Device device(table(), Writer("d"));
  DestroyDatasetsArgs args;
  args.names = {"d"};
  args.validate_only = true;
  EXPECT_EQ(ValueOf(pool_.Call(&Pool::DestroyDatasets, args)).plan->blockers.total, 1u);
  args.force = true;
  EXPECT_EQ(ValueOf(pool_.Call(&Pool::DestroyDatasets, args)).plan->blockers.total, 0u);
  EXPECT_EQ(device.cut(), "");
}

TEST_F(AttachmentsTest, AttachedBetweenTheCheckAndTheCommitIsCut) {
  // What is held has to be the test's own txg, never one of reclaim's.
  pool_.Reopen([](PoolOptions* options) { options->background_work = false; });
  for (const bool forced : {false, true}) {
    ASSERT_OK(pool_.Create("d").status());
    Await<absl::StatusOr<Outcome>> destroyed;
    {
      // The destroy is the next txg's, which is held once its tasks have run.
      HeldSync held(pool_, StrCat("pilot", forced ? 1 : 0));
      DestroyDatasetsArgs args;
      args.names = {"d"};
      args.force = forced;
      pool_->DestroyDatasets(args, std::nullopt, destroyed.Callback());
      ASSERT_OK(Failpoints::Arm("sync.tasks_run=pause"));
    }
    while (Failpoints::Hits("sync.tasks_run") == 0) std::this_thread::yield();
    Device late(table(), Writer("d"));
    EXPECT_OK(late.status());
    EXPECT_FALSE(destroyed.Ready());
    Failpoints::Disarm("sync.tasks_run");
    ASSERT_OK(destroyed.Wait().status());
    EXPECT_EQ(ReasonOf(late.WaitForCut()), "DATASET_DESTROYED");
  }
}

TEST_F(AttachmentsTest, OpenedBeforeAndAttachedAfterTheDestroy) {
  ASSERT_OK(pool_.Create("d").status());
  int opened = 0;
  PoolStats stats;
  Attachments table(
      [&](const std::string& name) {
        auto volume = pool_->OpenVolume(name, "");
        if (++opened == 1) EXPECT_OK(Destroy("d", /*force=*/false));
        return volume;
      },
      [] { return TempPool::kStartMs; }, stats);
  Device device(table, Writer("d"));
  EXPECT_EQ(ReasonOf(device.status()), "DATASET_NOT_FOUND");
  EXPECT_EQ(opened, 2);
  EXPECT_EQ(table.Count(), 0u);
}

TEST_F(AttachmentsTest, BytesUnderWayAtARollbackAreRefused) {
  ASSERT_OK(pool_.Create("d").status());
  ASSERT_OK(pool_.Write("d", 0, "before"));
  ASSERT_OK(pool_.Snapshot("d@s").status());
  Device device(table(), Writer("d"));
  EXPECT_EQ(ReasonOf(Rollback("d", /*force=*/false)), "ATTACHED");
  const std::vector<std::byte> bytes(16, std::byte{'x'});
  ASSERT_OK(device.volume().Write(0, bytes));
  ASSERT_OK(Rollback("d", /*force=*/true));
  EXPECT_EQ(device.cut(), "DATASET_CHANGED");
  EXPECT_EQ(ReasonOf(device.volume().Write(0, bytes)), "DATASET_CHANGED");
  std::vector<std::byte> out(16);
  EXPECT_EQ(ReasonOf(device.volume().Read(0, out)), "DATASET_CHANGED");
  for (const uint64_t length : {uint64_t{4096}, uint64_t{1 << 20}}) {  // direct, and by a task
    Await<absl::Status> done;
    device.volume().Discard(0, length, done.Callback());
    EXPECT_EQ(ReasonOf(done.Wait()), "DATASET_CHANGED");
  }
  EXPECT_EQ(ValueOf(pool_.Read("d", 0, 6)), "before");
  device.End();
  Device again(table(), Writer("d", "two"));
  ASSERT_OK(again.status());
  EXPECT_OK(again.volume().Write(0, bytes));
}

TEST_F(AttachmentsTest, ADiscardBehindARollbackOfTheSameTxgIsRefused) {
  ASSERT_OK(pool_.Create("d").status());
  ASSERT_OK(pool_.Write("d", 0, "before"));
  ASSERT_OK(pool_.Snapshot("d@s").status());
  Device device(table(), Writer("d"));
  Await<absl::StatusOr<Outcome>> rolled_back;
  Await<absl::Status> discarded;
  {
    HeldSync held(pool_);
    RollbackDatasetArgs args;
    args.name = "d";
    args.force = true;
    pool_->RollbackDataset(args, std::nullopt, rolled_back.Callback());
    device.volume().Discard(0, 1 << 20, discarded.Callback());
  }
  ASSERT_OK(rolled_back.Wait().status());
  EXPECT_EQ(ReasonOf(discarded.Wait()), "DATASET_CHANGED");
  EXPECT_EQ(ValueOf(pool_.Read("d", 0, 6)), "before");
}

TEST_F(AttachmentsTest, ARollbackTakesAttachedSnapshotsOnlyByForce) {
  ASSERT_OK(pool_.Create("d").status());
  for (const char* name : {"d@1", "d@2"}) ASSERT_OK(pool_.Snapshot(name).status());
  Device older(table(), Reader("d@1"));
  Device newer(table(), Reader("d@2"));
  const absl::Status refusal = Rollback("d", /*force=*/false, /*destroy_newer=*/true, "1");
  EXPECT_THAT(BlockersOf(refusal), ElementsAre("d@2 by client one"));
  ASSERT_OK(Rollback("d", /*force=*/true, /*destroy_newer=*/true, "1"));
  EXPECT_EQ(newer.cut(), "DATASET_DESTROYED");
  EXPECT_EQ(older.cut(), "");
  std::vector<std::byte> out(16);
  EXPECT_OK(older.volume().Read(0, out));
}

TEST_F(AttachmentsTest, OnlyASmallerSizeIsInTheWay) {
  ASSERT_OK(pool_.Create("d").status());
  ASSERT_OK(pool_.Snapshot("d@s").status());
  Device device(table(), Writer("d"));
  Device snapshot(table(), Reader("d@s"));
  ASSERT_OK(pool_.Resize("d", 2 << 20).status());
  EXPECT_EQ(device.cut(), "");
  std::vector<std::byte> last(1);
  EXPECT_OK(device.volume().Read((2 << 20) - 1, last));
  EXPECT_THAT(BlockersOf(Shrink("d", /*force=*/false)), ElementsAre("d by client one"));
  ASSERT_OK(Shrink("d", /*force=*/true));
  EXPECT_EQ(device.cut(), "DATASET_CHANGED");
  EXPECT_EQ(snapshot.cut(), "");
  EXPECT_EQ(ReasonOf(device.volume().Write(0, std::vector<std::byte>(1))), "DATASET_CHANGED");
}

TEST_F(AttachmentsTest, SnapshotsThatGoAreInTheWayAndMarkedOnesAreNot) {
  ASSERT_OK(pool_.Create("d").status());
  for (const char* name : {"d@1", "d@2"}) ASSERT_OK(pool_.Snapshot(name).status());
  ASSERT_OK(pool_.Clone("d@2", "c").status());
  Device one(table(), Reader("d@1"));
  Device two(table(), Reader("d@2"));
  EXPECT_THAT(BlockersOf(DestroySnapshot("d@1", /*force=*/false, /*defer=*/true)),
              ElementsAre("d@1 by client one"));
  ASSERT_OK(DestroySnapshot("d@1", /*force=*/true));
  EXPECT_EQ(one.cut(), "DATASET_DESTROYED");
  ASSERT_OK(DestroySnapshot("d@2", /*force=*/false, /*defer=*/true));
  EXPECT_EQ(two.cut(), "");
  ASSERT_OK(Destroy("c", /*force=*/false));  // the last that the snapshot waited for
  EXPECT_EQ(two.cut(), "DATASET_DESTROYED");
}

TEST_F(AttachmentsTest, ACloneReplacesWhatIsAttachedOnlyByForce) {
  ASSERT_OK(pool_.Create("golden").status());
  ASSERT_OK(pool_.Snapshot("golden@s").status());
  ASSERT_OK(pool_.Clone("golden@s", "c").status());
  Device device(table(), Writer("c"));
  CloneDatasetArgs args;
  args.source = "golden@s";
  args.name = "c";
  args.replace = true;
  EXPECT_THAT(BlockersOf(pool_.Call(&Pool::CloneDataset, args).status()),
              ElementsAre("c by client one"));
  args.force = true;
  ASSERT_OK(pool_.Call(&Pool::CloneDataset, args).status());
  EXPECT_EQ(device.cut(), "DATASET_DESTROYED");
}

TEST_F(AttachmentsTest, APrefixOfManyDatasets) {
  for (const char* name : {"p/a", "p/b", "p/c", "p/d", "q"}) ASSERT_OK(pool_.Create(name).status());
  Device inside(table(), Writer("p/d"));
  Device outside(table(), Writer("q"));
  DestroyDatasetsArgs args;
  args.prefix = "p";
  EXPECT_THAT(BlockersOf(pool_.Call(&Pool::DestroyDatasets, args).status()),
              ElementsAre("p/d by client one"));
  args.force = true;
  ASSERT_OK(pool_.Call(&Pool::DestroyDatasets, args).status());
  EXPECT_EQ(inside.cut(), "DATASET_DESTROYED");
  EXPECT_EQ(outside.cut(), "");
}

TEST_F(AttachmentsTest, AnExpiredDatasetWaitsForItsDetachment) {
  CreateDatasetArgs create;
  create.name = "d";
  create.size_bytes = 1 << 20;
  create.expire_time_ms = pool_.now_ms() + 1000;
  ASSERT_OK(pool_.Call(&Pool::CreateDataset, create).status());
  Device device(table(), Writer("d"));
  pool_.Advance(2000);
  ASSERT_OK(pool_->DrainBackground());
  EXPECT_EQ(ValueOf(pool_->GetDataset("d")).state, DatasetState::kExpired);
  EXPECT_EQ(device.cut(), "");
  device.End();
  ASSERT_OK(pool_->DrainBackground());
  EXPECT_CODE(pool_->GetDataset("d"), kNotFound);
}

TEST_F(AttachmentsTest, NamesChangeAndAttachmentsStay) {
  ASSERT_OK(pool_.Create("d").status());
  ASSERT_OK(pool_.Snapshot("d@s").status());
  ASSERT_OK(pool_.Clone("d@s", "c").status());
  Device head(table(), Writer("d"));
  Device snapshot(table(), Reader("d@s"));
  ASSERT_OK(pool_.Rename("d", "e").status());
  EXPECT_THAT(Listed(), ElementsAre("e", "e@s"));
  ASSERT_OK(pool_.Promote("c").status());
  EXPECT_THAT(Listed(), ElementsAre("e", "c@s"));
  EXPECT_THAT(BlockersOf(Destroy("e", /*force=*/false)), ElementsAre("e by client one"));
  EXPECT_EQ(head.cut() + snapshot.cut(), "");
  EXPECT_OK(head.volume().Write(0, std::vector<std::byte>(16)));
}

TEST_F(AttachmentsTest, ListsByNameByPrefixAndByPage) {
  for (const char* name : {"a", "a/b", "ab"}) ASSERT_OK(pool_.Create(name).status());
  ASSERT_OK(pool_.Snapshot("a@s").status());
  std::vector<std::unique_ptr<Device>> devices;
  for (const char* name : {"ab", "a", "a/b", "a@s"}) {
    devices.push_back(std::make_unique<Device>(table(), Reader(name)));
  }
  ListArgs args;
  args.parent = "a";
  EXPECT_THAT(Listed(args), ElementsAre("a", "a@s"));
  args.parent = "a@s";
  EXPECT_THAT(Listed(args), ElementsAre("a@s"));
  args.parent = "missing";
  EXPECT_CODE(pool_->ListAttachments(args), kNotFound);
  args.parent = "";
  args.prefix = "a";
  EXPECT_THAT(Listed(args), ElementsAre("a", "a/b", "a@s"));
  args.prefix = "";
  args.page_size = 3;
  Page<AttachmentInfo> page = ValueOf(pool_->ListAttachments(args));
  EXPECT_EQ(page.items.size(), 3u);
  args.position = page.next;
  page = ValueOf(pool_->ListAttachments(args));
  ASSERT_EQ(page.items.size(), 1u);
  EXPECT_EQ(page.items[0].name, "a@s");
  EXPECT_EQ(page.next, "");
  args.position = "no number";
  EXPECT_CODE(pool_->ListAttachments(args), kInvalidArgument);
}

TEST_F(AttachmentsTest, WhoeverEndsThemHearsWhenTheLastIsOver) {
  ASSERT_OK(pool_.Create("d").status());
  Device slow(table(), Writer("d"));
  Device prompt(table(), Reader("d"), /*ends_when_cut=*/true);
  Await<size_t> ended;
  const auto all = [](const AttachmentInfo&) { return absl::CancelledError("detached"); };
  table().End(all, ended.Callback());
  EXPECT_EQ(table().Count(), 1u);
  EXPECT_FALSE(ended.Ready());
  EXPECT_TRUE(table().List()[0].ending);
  EXPECT_EQ(ReasonOf(Device(table(), Writer("d", "two")).status()), "ATTACHED")
      << "bytes may still be on their way";
  EXPECT_OK(Destroy("d", /*force=*/false)) << "who is about to go is in nobody's way";
  slow.End();
  EXPECT_EQ(ended.Wait(), 2u);
  Await<size_t> none;
  table().End(all, none.Callback());
  EXPECT_EQ(none.Wait(), 0u);
}

// Clients attach and write while datasets are destroyed under them and made anew: none is left with
// what is no more, and none is cut from what is there.
TEST_F(AttachmentsTest, NoOrderOfAttachAndDestroyLeavesAnAttachmentBehind) {
  constexpr int kRounds = 60;
  std::atomic<bool> done{false};
  std::vector<std::thread> clients;
  for (int i = 0; i < 3; ++i) {
    clients.emplace_back([this, i, &done] {
      while (!done) {
        Device device(table(), Shared("d", StrCat(i)));
        if (!device.status().ok()) {
          EXPECT_EQ(ReasonOf(device.status()), "DATASET_NOT_FOUND");
          std::this_thread::yield();
          continue;
        }
        const absl::Status written = device.volume().Write(0, std::vector<std::byte>(16));
        if (written.ok()) continue;
        EXPECT_EQ(ReasonOf(written), "DATASET_DESTROYED");
        EXPECT_EQ(ReasonOf(device.WaitForCut()), "DATASET_DESTROYED");
      }
    });
  }
  for (int i = 0; i < kRounds; ++i) {
    ASSERT_OK(pool_.Create("d").status());
    ASSERT_OK(Destroy("d", /*force=*/true));
  }
  done = true;
  for (std::thread& client : clients) client.join();
  EXPECT_THAT(Listed(), IsEmpty());
}

}  // namespace
}  // namespace cowshed::engine

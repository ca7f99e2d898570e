// SPDX-License-Identifier: Apache-2.0
//
// The metadata store at its limits, seen from the pool: a map that is full, and a table of readers
// that others have filled. Errors with their reasons, never a wait without end; what frees space
// goes on, and so do reads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/errors.h"
#include "engine/store/meta_store.h"
#include "tests/support/temp_pool.h"
#include "tests/support/testing.h"

namespace cowshed::engine {
namespace {

constexpr uint64_t kMiB = 1 << 20;

std::string Reason(const absl::Status& status) {
  const auto details = GetErrorDetails(status);
  return details.has_value() ? details->reason : std::string(status.ToString());
}

class FullMapTest : public ::testing::Test {
 protected:
  // A txg may take 32 MiB of it and the reserve is 1 MiB, so 5 MiB are there to be filled.
  FullMapTest() : pool_([](PoolOptions* options) { options->meta_map_bytes = 38 * kMiB; }) {}

  // Creates datasets with a record of more than 2 KiB each until the pool refuses.
  absl::Status FillMap() {
    absl::Status status;
    for (int i = 0; status.ok() && i < 10000; i += 50) {
      std::vector<Await<absl::StatusOr<Outcome>>> replies(50);
      for (int j = 0; j < 50; ++j) {
        CreateDatasetArgs args;
        args.name = "m/" + std::to_string(i + j);
        args.size_bytes = kMiB;
        for (int k = 0; k < 8; ++k) args.labels["k" + std::to_string(k)] = std::string(250, 'l');
        pool_->CreateDataset(std::move(args), std::nullopt, replies[j].Callback());
      }
      for (auto& reply : replies) {
        if (const auto outcome = reply.Wait(); !outcome.ok()) status = outcome.status();
      }
    }
    return status;
  }

  TempPool pool_;
};

// Where the map was full, creates and flushes waited for ever, as for a host that may grow.
TEST_F(FullMapTest, RefusesWithItsReasonAndGoesOnAfterADestroy) {
  ASSERT_OK(pool_.Create("d").status());
  const std::string data(65536, 'd');
  ASSERT_OK(pool_.Write("d", 0, data));
  ASSERT_OK(pool_.Flush("d").status());
  for (int round = 0; round < 3; ++round) {
    SCOPED_TRACE(round);
    const absl::Status full = FillMap();
    EXPECT_CODE(full, kResourceExhausted);
    EXPECT_EQ(Reason(full), "POOL_FULL");
    const auto details = GetErrorDetails(full);
    ASSERT_TRUE(details.has_value());
    EXPECT_EQ(details->metadata.at("resource"), "metadata");
    EXPECT_EQ(pool_->stats().alarms[Alarm::kPoolReserveReached], 1u);
    EXPECT_EQ(pool_->stats().alarms[Alarm::kHostFull], 0u);
    EXPECT_OK(pool_->health());
    EXPECT_EQ(Reason(pool_.Write("d", 0, data)), "POOL_FULL");
    EXPECT_EQ(Reason(pool_.Snapshot("d@s").status()), "POOL_FULL");
    EXPECT_EQ(ValueOf(pool_.Read("d", 0, data.size())), data);
    DestroyDatasetsArgs args;
    args.prefix = "m";
    args.recursive = true;
    ASSERT_OK(pool_.Call(&Pool::DestroyDatasets, std::move(args)).status());
    ASSERT_OK(pool_->DrainBackground());
    EXPECT_OK(pool_.Write("d", 0, data));
    EXPECT_OK(pool_.Flush("d").status());
    EXPECT_EQ(pool_->stats().alarms[Alarm::kPoolReserveReached], 0u);
  }
  pool_.Reopen();
  EXPECT_EQ(ValueOf(pool_.Read("d", 0, data.size())), data);
}

// A process that takes every free reader slot of a metadata store, and keeps them until it is
// killed. Forked before this one has threads.
class SlotTaker {
 public:
  SlotTaker() {
    if (pipe(go_) != 0 || pipe(done_) != 0) std::abort();
    pid_ = fork();
    if (pid_ == 0) Run();
  }
  ~SlotTaker() { Kill(); }
  void Take(const std::string& directory) {
    ASSERT_EQ(write(go_[1], directory.c_str(), directory.size()),
              static_cast<ssize_t>(directory.size()));
    close(go_[1]);
    char answer = 0;
    ASSERT_EQ(read(done_[0], &answer, 1), 1);
    ASSERT_EQ(answer, 'y');
  }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  // How many slots of the reader table say they are this process's: its pid is the second word of
  // each 64 bytes.
  uint64_t SlotsIn(const std::string& directory, pid_t pid) const {
    std::ifstream file(directory + "/lock.mdb", std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(file)), {});
    uint64_t slots = 0;
    for (size_t at = 0; at + 64 <= bytes.size(); at += 64) {
      slots += std::memcmp(bytes.data() + at + 8, &pid, sizeof(pid)) == 0 ? 1 : 0;
    }
    return slots;
  }
  pid_t pid() const { return pid_; }

 private:
  [[noreturn]] void Run() {
    close(go_[1]);
    std::string directory(4096, '\0');
    directory.resize(static_cast<size_t>(read(go_[0], directory.data(), directory.size())));
    const auto meta = MetaStore::Open(directory, /*create=*/false, /*read_only=*/true,
                                      {.map_bytes = uint64_t{1} << 30});
    std::vector<std::unique_ptr<ReadTxn>> readers;
    absl::Status status = meta.status();
    while (status.ok()) {
      auto reader = (*meta)->BeginRead();
      status = reader.status();
      if (status.ok()) readers.push_back(*std::move(reader));
    }
    const char answer = absl::IsResourceExhausted(status) && readers.size() > 900 ? 'y' : 'n';
    if (write(done_[1], &answer, 1) != 1) _exit(1);
    while (true) pause();
  }

  int go_[2];
  int done_[2];
  pid_t pid_ = 0;
};

TEST(ReaderSlotsTest, PoolDoesNotOpenWhileOthersHaveThemAllAndSaysWhy) {
  SlotTaker taker;
  TempPool pool;
  const std::string meta = pool.directory() + "/meta";
  const PoolOptions options = pool.options();
  ASSERT_OK(pool.Create("d").status());
  pool.Abandon();
  taker.Take(meta);
  const auto refused = Pool::Open(options);
  EXPECT_CODE(refused, kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()), ::testing::HasSubstr("MDB_READERS_FULL"));
  taker.Kill();
  const auto opened = Pool::Open(options);
  ASSERT_OK(opened.status());
  EXPECT_OK((*opened)->GetDataset("d").status());
}

// Readers of a process that had died kept their slots, and old pages, until the next open.
TEST(ReaderSlotsTest, SlotsOfADeadProcessAreTakenBackWhileThePoolIsOpen) {
  SlotTaker taker;
  const pid_t pid = taker.pid();
  TempPool pool;
  const std::string meta = pool.directory() + "/meta";
  ASSERT_OK(pool.Create("d").status());
  taker.Take(meta);
  EXPECT_GT(taker.SlotsIn(meta, pid), 900u);
  // The pool goes on meanwhile, with the slots it has.
  ASSERT_OK(pool.Write("d", 0, std::string(4096, 'd')));
  ASSERT_OK(pool.Flush("d").status());
  taker.Kill();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (taker.SlotsIn(meta, pid) > 0 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(taker.SlotsIn(meta, pid), 0u);
}

}  // namespace
}  // namespace cowshed::engine

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

// A txg may take 32 MiB of it and the reserve is 1 MiB, so 5 MiB are there to be filled.
void SmallMap(PoolOptions* options) { options->meta_map_bytes = 38 * kMiB; }

// Creates datasets m/0, m/1, ... with a record of more than 2 KiB each until the pool refuses, and
// says how many there are.
absl::Status FillMap(TempPool& pool, int* created) {
  absl::Status status;
  for (*created = 0; status.ok() && *created < 10000;) {
    std::vector<Await<absl::StatusOr<Outcome>>> replies(50);
    for (size_t j = 0; j < replies.size(); ++j) {
      CreateDatasetArgs args;
      args.name = "m/" + std::to_string(*created + static_cast<int>(j));
      args.size_bytes = kMiB;
      for (int k = 0; k < 8; ++k) args.labels["k" + std::to_string(k)] = std::string(250, 'l');
      pool->CreateDataset(std::move(args), std::nullopt, replies[j].Callback());
    }
    for (auto& reply : replies) {
      const auto outcome = reply.Wait();
      if (outcome.ok() && status.ok()) ++*created;
      if (!outcome.ok()) status = outcome.status();
    }
  }
  return status;
}

// Where the map was full, creates and flushes waited for ever, as for a host that may grow.
TEST(FullMapTest, RefusesWithItsReasonAndGoesOnAfterADestroy) {
  TempPool pool(SmallMap);
  int created = 0;
  ASSERT_OK(pool.Create("d").status());
  const std::string data(65536, 'd');
  ASSERT_OK(pool.Write("d", 0, data));
  ASSERT_OK(pool.Flush("d").status());
  for (int round = 0; round < 3; ++round) {
    SCOPED_TRACE(round);
    const absl::Status full = FillMap(pool, &created);
    EXPECT_CODE(full, kResourceExhausted);
    EXPECT_EQ(Reason(full), "POOL_FULL");
    const auto details = GetErrorDetails(full);
    ASSERT_TRUE(details.has_value());
    EXPECT_EQ(details->metadata.at("resource"), "metadata");
    EXPECT_EQ(pool->stats().alarms[Alarm::kPoolReserveReached], 1u);
    EXPECT_EQ(pool->stats().alarms[Alarm::kHostFull], 0u);
    EXPECT_OK(pool->health());
    EXPECT_EQ(Reason(pool.Write("d", 0, data)), "POOL_FULL");
    EXPECT_EQ(Reason(pool.Snapshot("d@s").status()), "POOL_FULL");
    EXPECT_EQ(ValueOf(pool.Read("d", 0, data.size())), data);
    DestroyDatasetsArgs args;
    args.prefix = "m";
    args.recursive = true;
    ASSERT_OK(pool.Call(&Pool::DestroyDatasets, std::move(args)).status());
    ASSERT_OK(pool->DrainBackground());
    EXPECT_OK(pool.Write("d", 0, data));
    EXPECT_OK(pool.Flush("d").status());
    EXPECT_EQ(pool->stats().alarms[Alarm::kPoolReserveReached], 0u);
  }
  pool.Reopen();
  EXPECT_EQ(ValueOf(pool.Read("d", 0, data.size())), data);
}

// A process that takes every free reader slot of a metadata store but `spare` ones, and keeps them
// until it is killed. Forked before this one has threads.
class SlotTaker {
 public:
  explicit SlotTaker(size_t spare = 0) : spare_(spare) {
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
    const size_t most = MetaStoreOptions().max_readers - spare_;
    while (status.ok() && (spare_ == 0 || readers.size() < most)) {
      auto reader = (*meta)->BeginRead();
      status = reader.status();
      if (status.ok()) readers.push_back(*std::move(reader));
    }
    const char answer =
        (spare_ > 0 || absl::IsResourceExhausted(status)) && readers.size() > 900 ? 'y' : 'n';
    if (write(done_[1], &answer, 1) != 1) _exit(1);
    while (true) pause();
  }

  const size_t spare_;
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
  SlotTaker taker(/*spare=*/64);
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

// Pages that a reader of another process still saw were counted as free: destroys failed half-way
// where the map was full, without an alarm.
TEST(PinnedPagesTest, DestroysWaitForAReaderOfAnotherProcessAndGoOnByThemselves) {
  SlotTaker taker(/*spare=*/64);
  TempPool pool(SmallMap);
  ASSERT_OK(pool.Create("d").status());
  taker.Take(pool.directory() + "/meta");
  int created = 0;
  EXPECT_CODE(FillMap(pool, &created), kResourceExhausted);
  // Every destroy takes pages at the end of the file, until there are none.
  int destroyed = 0;
  std::vector<Await<absl::StatusOr<Outcome>>> waiting;
  while (waiting.empty() && destroyed < created) {
    Await<absl::StatusOr<Outcome>> reply;
    DestroyDatasetsArgs args;
    args.names = {"m/" + std::to_string(destroyed)};
    pool->DestroyDatasets(std::move(args), std::nullopt, reply.Callback());
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(2);
    while (!reply.Ready() && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    if (reply.Ready()) {
      ASSERT_OK(reply.Wait().status()) << destroyed;
      ++destroyed;
    } else {
      waiting.push_back(std::move(reply));
    }
  }
  ASSERT_LT(destroyed, created) << "the map never got full";
  EXPECT_OK(pool->health());
  EXPECT_EQ(pool->stats().alarms[Alarm::kPoolReserveReached], 1u);
  EXPECT_OK(pool->GetDataset("m/" + std::to_string(created - 1)).status());
  EXPECT_EQ(pool->stats().alarms[Alarm::kHostFull], 0u);
  taker.Kill();
  for (auto& reply : waiting) EXPECT_OK(reply.Wait().status());
  DestroyDatasetsArgs rest;
  rest.prefix = "m";
  EXPECT_OK(pool.Call(&Pool::DestroyDatasets, std::move(rest)).status());
  ASSERT_OK(pool->DrainBackground());
  EXPECT_OK(pool->health());
  EXPECT_OK(pool.Create("after").status());
}

}  // namespace
}  // namespace cowshed::engine

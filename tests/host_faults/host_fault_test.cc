// SPDX-License-Identifier: Apache-2.0
//
// Every call that reaches the host fails, under every file of a pool, at its k-th time for every k,
// once and for ever: under `blocks` and under LMDB's own file while a script does everything a pool
// can do (faulted_script.h says what must hold), and under these, the locks and the directories
// while a pool is made, opened and closed.
//
// The default run of the script tries some k of each kind, COWSHED_TEST_FULL=1 all of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/errors.h"
#include "tests/host_faults/fault_interposer.h"
#include "tests/support/faulted_script.h"
#include "tests/support/pool_script.h"
#include "tests/support/temp_pool.h"
#include "tests/support/testing.h"

namespace cowshed::engine {
namespace {

constexpr uint64_t kTriesByDefault = 3;
constexpr char kBlocks[] = "/blocks";
constexpr char kMeta[] = "/meta/data.mdb";

struct Kind {
  std::string name;
  std::string file;
  HostCall call = HostCall::kWrite;
  int error = EIO;
  HostFault::Way way = HostFault::Way::kError;
  bool once_only = false;  // failing for ever only means waiting for ever
};

std::ostream& operator<<(std::ostream& out, const Kind& kind) { return out << kind.name; }

class HostFaultTest : public ::testing::TestWithParam<Kind> {
 protected:
  void TearDown() override { HealHost(); }
};

TEST_P(HostFaultTest, LosesNothing) {
  const Kind& kind = GetParam();
  const auto arm = [&](uint64_t k, bool for_ever) {
    SetHostFault({kind.file, {kind.call}, k, for_ever, kind.way, kind.error});
  };
  SweepFaults(kind.name, ScriptOptions(), {arm, HealHost, HostCallsCounted}, kTriesByDefault,
              kind.once_only);
}

// Once LMDB could not write a meta page, nothing of the pool could be read any more.
TEST(MetaPageTest, ReadsGoOnWhicheverWriteOfACommitFails) {
  TempPool pool(ScriptOptions());
  ASSERT_OK(pool.Create("d").status());
  ASSERT_OK(pool.Write("d", 0, std::string(8192, 'a')));
  ASSERT_OK(pool.Flush("d").status());
  bool suspended = true;
  for (uint64_t k = 1; suspended; ++k) {
    SCOPED_TRACE(k);
    ASSERT_OK(pool.Write("d", 4096, std::string(4096, 'b')));
    SetHostFault({kMeta, {HostCall::kWrite}, k, /*for_ever=*/true, {}, EIO});
    const absl::Status flushed = pool.Flush("d").status();
    HealHost();
    suspended = !pool->health().ok();
    EXPECT_EQ(flushed.ok(), !suspended);
    EXPECT_EQ(ValueOf(pool.Read("d", 0, 4096)), std::string(4096, 'a'));
    EXPECT_OK(pool->GetDataset("d").status());
    EXPECT_TRUE(ValueOf(pool->Check()).ok());
    if (k == 1) EXPECT_TRUE(suspended);
    pool.Reopen();
  }
}

constexpr auto kShort = HostFault::Way::kShort;

INSTANTIATE_TEST_SUITE_P(
    Kinds, HostFaultTest,
    ::testing::Values(Kind{"BlocksRead", kBlocks, HostCall::kRead},
                      Kind{"BlocksWrite", kBlocks, HostCall::kWrite},
                      Kind{"BlocksWriteNoSpace", kBlocks, HostCall::kWrite, ENOSPC, {}, true},
                      Kind{"BlocksShortWrite", kBlocks, HostCall::kWrite, 0, kShort},
                      Kind{"BlocksSync", kBlocks, HostCall::kSync},
                      Kind{"BlocksSyncNoSpace", kBlocks, HostCall::kSync, ENOSPC},
                      Kind{"BlocksPunch", kBlocks, HostCall::kAllocate},
                      Kind{"MetaWrite", kMeta, HostCall::kWrite},
                      Kind{"MetaWriteNoSpace", kMeta, HostCall::kWrite, ENOSPC},
                      Kind{"MetaShortWrite", kMeta, HostCall::kWrite, 0, kShort},
                      Kind{"MetaSync", kMeta, HostCall::kSync},
                      Kind{"MetaSyncNoSpace", kMeta, HostCall::kSync, ENOSPC}),
    [](const auto& info) { return info.param.name; });

// ---- Making, opening and closing ----------------------------------------------------------------

class OpeningFaultTest : public ::testing::Test {
 protected:
  OpeningFaultTest() {
    ScriptOptions()(&options_);
    options_.meta_map_bytes = uint64_t{1} << 30;
    options_.meta_reserve_bytes = 1 << 20;
    options_.blocks_reserve_bytes = 1 << 20;
  }
  ~OpeningFaultTest() override {
    HealHost();
    std::filesystem::remove_all(root_);
  }
  void SetUp() override { ASSERT_NE(mkdtemp(root_.data()), nullptr); }

  absl::StatusOr<std::unique_ptr<Pool>> OpenPool() { return Pool::Open(options_); }
  static absl::StatusOr<Txg> WriteOne(Pool& pool) {
    Await<absl::StatusOr<Outcome>> created;
    CreateDatasetArgs args;
    args.name = "d";
    args.size_bytes = 1 << 20;
    pool.CreateDataset(std::move(args), std::nullopt, created.Callback());
    if (const auto outcome = created.Wait(); !outcome.ok()) return outcome.status();
    const auto volume = ValueOf(pool.OpenVolume("d", ""));
    const std::string data(65536, 'd');
    EXPECT_OK(volume->Write(4096, std::as_bytes(std::span(data))));
    Await<absl::StatusOr<Txg>> flushed;
    volume->Flush(flushed.Callback());
    return flushed.Wait();
  }
  static void ExpectClean(Pool& pool) {
    EXPECT_OK(pool.health());
    for (const CheckFinding& finding : ValueOf(pool.Check()).findings) {
      ADD_FAILURE() << finding.invariant << ": " << finding.name << ": " << finding.message;
    }
  }

  struct Way {
    std::string name;
    std::vector<HostCall> calls;
    int error;
    HostFault::Way way = HostFault::Way::kError;
  };
  // Runs `episode` with every call on the pool's files failing in turn, in every way.
  void Sweep(const std::string& what, const std::function<void()>& begin,
             const std::function<void()>& episode, const std::function<void()>& after) {
    const std::vector<Way> ways = {{"input/output error", {}, EIO},
                                   {"no space",
                                    {HostCall::kOpen, HostCall::kWrite, HostCall::kSync,
                                     HostCall::kAllocate, HostCall::kTruncate},
                                    ENOSPC},
                                   {"short write", {HostCall::kWrite}, 0, HostFault::Way::kShort},
                                   {"no descriptors", {HostCall::kOpen}, EMFILE},
                                   {"no locks", {HostCall::kLock}, ENOLCK}};
    for (const Way& way : ways) {
      uint64_t places = 0;
      for (uint64_t k = 1; !HasFailure(); ++k) {
        uint64_t calls = 0;
        for (const bool for_ever : {false, true}) {
          SCOPED_TRACE(what + ": " + way.name + " at " + std::to_string(k) +
                       (for_ever ? " and for ever" : ""));
          begin();
          SetHostFault({root_, way.calls, k, for_ever, way.way, way.error});
          episode();
          calls = std::max(calls, HostCallsCounted());
          HealHost();
          after();
        }
        if (calls < k) break;
        ++places;
      }
      EXPECT_GT(places, 0u) << way.name;
      std::cout << what << ": " << way.name << " at all " << places << " places, twice\n";
    }
  }

  std::string root_ = FastTempRoot() + "/cowshed_opening_XXXXXX";
  PoolOptions options_;
};

// A pool that had been made in part, its metadata cut short, could never be made or opened again.
TEST_F(OpeningFaultTest, PoolThatCouldNotBeMadeIsMadeTheNextTime) {
  uint64_t made = 0;
  Sweep(
      "making",
      [this] {
        std::filesystem::remove_all(root_ + "/new");
        options_.directory = root_ + "/new";
      },
      [this] {
        const auto pool = OpenPool();
        if (pool.ok()) EXPECT_OK((*pool)->health());
      },
      [&] {
        const auto pool = OpenPool();
        ASSERT_OK(pool.status());
        // The first txg allocates 32 MiB, so not every one of them.
        if (++made % 5 == 0) ASSERT_OK(WriteOne(**pool).status());
        ExpectClean(**pool);
      });
}

TEST_F(OpeningFaultTest, PoolThatCouldNotBeOpenedOpensTheNextTimeAsItWas) {
  options_.directory = root_ + "/pool";
  {
    const auto pool = ValueOf(OpenPool());
    ASSERT_OK(WriteOne(*pool).status());
  }
  const PoolImage expected = ValueOf(ReadImage(*ValueOf(OpenPool())));
  Sweep(
      "opening", [] {},
      [&] {
        const auto pool = OpenPool();
        if (!pool.ok()) return;
        // It opened: what it shows is right, or it says that it cannot read.
        const auto shown = ReadImage(**pool);
        if (shown.ok()) EXPECT_EQ(Difference(expected, *shown), "");
      },
      [&] {
        const auto pool = OpenPool();
        ASSERT_OK(pool.status());
        EXPECT_EQ(Difference(expected, ValueOf(ReadImage(**pool))), "");
        ExpectClean(**pool);
      });
}

}  // namespace
}  // namespace cowshed::engine

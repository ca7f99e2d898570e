// SPDX-License-Identifier: Apache-2.0
//
// I2: what a commit references was synced before it. The power is cut before every write and every
// sync of `blocks` that a script causes, and whatever was not synced is lost: all of it, or all but
// the first writes, the last of them torn. Each such image must open, check clean and show the last
// state that was acknowledged.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "engine/base/failpoints.h"
#include "engine/base/strings.h"
#include "tests/crash/pool_script.h"
#include "tests/crash/power_cut_file.h"
#include "tests/support/temp_pool.h"
#include "tests/support/testing.h"

namespace cowshed::engine {
namespace {

class PowerCutTest : public ::testing::Test {
 protected:
  PowerCutTest() {
    image_root_ = FastTempRoot() + "/cowshed_images_XXXXXX";
    if (mkdtemp(image_root_.data()) == nullptr) std::abort();
  }
  ~PowerCutTest() override {
    std::error_code ignored;
    std::filesystem::remove_all(image_root_, ignored);
  }

  TempPool::Tweak Options() {
    return [this](PoolOptions* options) {
      ScriptOptions()(options);
      options->wrap_blocks_file = [unsynced = unsynced_](std::unique_ptr<File> file) {
        return std::make_unique<RecordingFile>(std::move(file), unsynced);
      };
    };
  }

  // The files of `pool` as a power cut would leave them now, with the first `kept` unsynced writes
  // and a part of the next. No commit may be under way.
  std::string MakeImage(const TempPool& pool, size_t kept, uint64_t torn_bytes) {
    const std::filesystem::path from = pool.directory();
    const std::filesystem::path to = image_root_ + "/image";
    std::filesystem::remove_all(to);
    std::filesystem::create_directories(to / "meta");
    // Only what the database uses: it is allocated far ahead.
    for (const char* file : {"blocks", "meta/data.mdb"}) {
      const std::string command =
          StrCat("cp --sparse=always '", (from / file).string(), "' '", (to / file).string(), "'");
      if (std::system(command.c_str()) != 0) std::abort();
    }
    EXPECT_OK(unsynced_->UndoIn((to / "blocks").string(), kept, torn_bytes));
    return to.string();
  }

  // Opens an image, checks it, and expects the one or the other state.
  void ExpectImage(const TempPool& pool, size_t kept, uint64_t torn_bytes,
                   const PoolImage& expected, const PoolImage& or_else) {
    SCOPED_TRACE(StrCat("cut ", cuts_, ": ", kept, " of ", unsynced_->count(),
                        " unsynced writes kept and ", torn_bytes, " bytes"));
    ++cuts_;
    PoolOptions options = pool.options();
    options.directory = MakeImage(pool, kept, torn_bytes);
    options.blocks_path.clear();
    options.wrap_blocks_file = nullptr;
    const absl::StatusOr<std::unique_ptr<Pool>> image = Pool::Open(options);
    ASSERT_OK(image.status());
    const CheckReport report = ValueOf((*image)->Check());
    EXPECT_TRUE(report.ok()) << report.findings[0].name << ": " << report.findings[0].message;
    const PoolImage found = ValueOf(ReadImage(**image));
    EXPECT_TRUE(found == expected || found == or_else) << Difference(expected, found);
  }

  std::shared_ptr<UnsyncedWrites> unsynced_ = std::make_shared<UnsyncedWrites>();
  std::string image_root_;
  int cuts_ = 0;
};

TEST_F(PowerCutTest, LosesNothingThatWasAcknowledged) {
  TempPool pool(Options());
  PoolImage expected;
  PoolImage or_else;  // of a step that goes on after the txg that changes what is shown
  unsynced_->OnAccess([&] {
    if (HasFailure()) return;
    const size_t count = unsynced_->count();
    ExpectImage(pool, 0, 0, expected, or_else);
    if (count > 0) {
      ExpectImage(pool, count, 0, expected, or_else);
      ExpectImage(pool, count - 1, 5000, expected, or_else);
    }
    if (count > 1) ExpectImage(pool, count / 2, 512, expected, or_else);
  });
  for (const ScriptStep& step : MakeScript()) {
    SCOPED_TRACE(step.name);
    PoolImage after = expected;
    step.expect(&after);
    or_else = step.more_after ? after : expected;
    ASSERT_OK(step.act(pool));
    expected = std::move(after);
    if (HasFailure()) break;
  }
  unsynced_->OnAccess(nullptr);
  EXPECT_GT(cuts_, 100);
}

// The first commit after a crash named the stamp of a superblock that the dead process had written
// and not synced: after a power cut the two files did not belong together any more.
TEST_F(PowerCutTest, StampOfADeadProcessIsNotTrusted) {
  TempPool pool(Options());
  ASSERT_OK(pool.Create("d").status());
  ASSERT_OK(pool.Write("d", 0, std::string(8192, 'a')));
  ASSERT_OK(pool.Flush("d").status());
  ASSERT_OK(pool.Write("d", 0, std::string(8192, 'b')));
  // The process dies between its write of the superblock and the end of the sync.
  ASSERT_OK(Failpoints::Arm("file.sync=eio:count=1"));
  EXPECT_CODE(pool.Flush("d"), kUnavailable);
  Failpoints::DisarmAll();
  pool.Reopen();
  ASSERT_GT(unsynced_->count(), 0u);
  ASSERT_OK(pool.Create("metadata/only").status());
  PoolImage expected = ValueOf(ReadImage(*pool));
  EXPECT_EQ(expected.contents["d"].substr(0, 8192), std::string(8192, 'a'));
  for (size_t kept = 0; kept <= unsynced_->count(); ++kept) {
    ExpectImage(pool, kept, 0, expected, expected);
  }
  // And a superblock that is being replaced must not be the only durable one.
  ASSERT_OK(pool.Write("d", 0, std::string(8192, 'c')));
  unsynced_->OnAccess([&] {
    for (size_t kept = 0; kept <= unsynced_->count(); ++kept) {
      ExpectImage(pool, kept, 0, expected, expected);
      ExpectImage(pool, kept, 100, expected, expected);
    }
  });
  ASSERT_OK(pool.Flush("d").status());
  unsynced_->OnAccess(nullptr);
}

}  // namespace
}  // namespace cowshed::engine

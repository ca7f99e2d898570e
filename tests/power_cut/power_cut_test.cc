// SPDX-License-Identifier: Apache-2.0
//
// I2, I7: whatever a power cut leaves of both files opens, checks clean and shows what was
// acknowledged. `./dev crash` runs the same with many more images.
#include <gtest/gtest.h>

#include <string>

#include "engine/base/failpoints.h"
#include "tests/power_cut/crash_campaign.h"
#include "tests/power_cut/crash_workload.h"
#include "tests/support/testing.h"

namespace cowshed::engine {
namespace {

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define COWSHED_SLOW_BUILD
#endif
#endif
#ifdef COWSHED_SLOW_BUILD
constexpr uint64_t kImages = 150;
#else
constexpr uint64_t kImages = 400;
#endif

CampaignResult Judge(const Recording& recording, uint64_t images, const std::string& deaf_to = "") {
  CampaignOptions options;
  options.images = images;
  options.deaf_to = deaf_to;
  options.quiet = !deaf_to.empty();
  return JudgeRecording(recording, 0, options);
}

TEST(PowerCutTest, LosesNothingThatWasAcknowledged) {
  CampaignOptions options;
  options.images = kImages;
  options.seed = 42;
  const CampaignResult result = RunCampaign(options);
  EXPECT_EQ(result.images, kImages);
  EXPECT_EQ(result.losses, 0u);
}

// The name of a new pool's directory was never synced: after a power cut everything could be gone.
// And a cut while the metadata were being made left a file that LMDB refuses for ever.
TEST(PowerCutTest, PoolBeingMadeIsThereOrOpensAnew) {
  WorkloadRecorder recorder("a pool is made");
  ASSERT_OK(recorder.Step("create", [&] { return recorder.pool().Create("d").status(); }));
  EXPECT_EQ(Judge(recorder.Take(), kImages).losses, 0u);
}

// The detector detects: where the syncs of one of the files do nothing, things are lost.
class DeafSyncTest : public ::testing::TestWithParam<const char*> {};

TEST_P(DeafSyncTest, LosesThings) {
  static const Recording* const recording = new Recording(RecordRandom(7));
  EXPECT_GT(Judge(*recording, kImages / 2, GetParam()).losses, 0u);
}

INSTANTIATE_TEST_SUITE_P(Files, DeafSyncTest, ::testing::Values("blocks", "data.mdb", "pool"),
                         [](const auto& info) { return std::string(info.param).substr(0, 4); });

// The first commit after a crash named the stamp of a superblock that the dead process had written
// and not synced: after a power cut the two files did not belong together any more.
TEST(PowerCutTest, StampOfADeadProcessIsNotTrusted) {
  WorkloadRecorder recorder("stamp of a dead process");
  TempPool& pool = recorder.pool();
  const auto flushed = [&](char byte) {
    return [&pool, byte]() -> absl::Status {
      const absl::Status status = pool.Write("d", 0, std::string(8192, byte));
      return status.ok() ? pool.Flush("d").status() : status;
    };
  };
  ASSERT_OK(recorder.Step("create", [&] { return pool.Create("d", 1 << 16).status(); }));
  ASSERT_OK(recorder.Step("write a", flushed('a')));
  // The process dies between its write of the superblock and the end of the sync.
  ASSERT_OK(Failpoints::Arm("file.sync=eio:count=1"));
  EXPECT_CODE(recorder.Step("write b", flushed('b')), kUnavailable);
  Failpoints::DisarmAll();
  recorder.Restart("the next process", [&] { pool.Reopen(); });
  EXPECT_EQ(ValueOf(pool.Read("d", 0, 8192)), std::string(8192, 'a'));
  ASSERT_OK(recorder.Step("metadata", [&] { return pool.Create("metadata/only").status(); }));
  // And a superblock that is being replaced must not be the only durable one.
  ASSERT_OK(recorder.Step("write c", flushed('c')));
  EXPECT_EQ(Judge(recorder.Take(), kImages).losses, 0u);
}

}  // namespace
}  // namespace cowshed::engine

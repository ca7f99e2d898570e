// SPDX-License-Identifier: Apache-2.0
#include "metrics/process_collector.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "gtest/gtest.h"
#include "tests/metrics/scrape.h"

namespace cowshed::metrics {
namespace {

TEST(ProcessCollectorTest, DescribesThisProcess) {
  const ProcessCollector collector;
  const auto families = collector.Collect();
  EXPECT_EQ(families.size(), 7u);
  EXPECT_GT(*ValueOf(families, "process_resident_memory_bytes"), 100000);
  EXPECT_GT(*ValueOf(families, "process_virtual_memory_bytes"),
            *ValueOf(families, "process_resident_memory_bytes"));
  EXPECT_GE(*ValueOf(families, "process_threads"), 1);
  EXPECT_GE(*ValueOf(families, "process_max_fds"), *ValueOf(families, "process_open_fds"));
  const double now_seconds =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  EXPECT_NEAR(*ValueOf(families, "process_start_time_seconds"), now_seconds, 300);
}

TEST(ProcessCollectorTest, CountsOpenDescriptorsButItsOwn) {
  const ProcessCollector collector;
  const double before = *ValueOf(collector.Collect(), "process_open_fds");
  const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  EXPECT_EQ(ValueOf(collector.Collect(), "process_open_fds"), before + 1);
  close(fd);
  EXPECT_EQ(ValueOf(collector.Collect(), "process_open_fds"), before);
}

TEST(ProcessCollectorTest, CpuTimeGrowsWithWork) {
  const ProcessCollector collector;
  const double before = *ValueOf(collector.Collect(), "process_cpu_seconds_total");
  // Ticks are 10 ms: burn until one is seen; a counter that stands still runs into the limit.
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (*ValueOf(collector.Collect(), "process_cpu_seconds_total") == before) {
    ASSERT_LT(std::chrono::steady_clock::now(), limit);
  }
}

class FakeProcTest : public testing::Test {
 protected:
  FakeProcTest() {
    root_ = testing::TempDir() + "/proc_" + std::to_string(getpid());
    std::filesystem::create_directories(root_ + "/self/fd");
  }
  ~FakeProcTest() override { std::filesystem::remove_all(root_); }
  void Write(const std::string& name, const std::string& text) {
    std::ofstream(root_ + "/" + name) << text;
  }
  std::string root_;
};

TEST_F(FakeProcTest, ReadsFieldsBehindANameWithBlanksAndParentheses) {
  Write("self/stat", "42 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 300 200 0 0 20 0 17 0 1000 4096000 25 0");
  Write("stat", "cpu 1 2 3\nbtime 1700000000\n");
  Write("self/limits", "Limit  Soft Limit\nMax open files            1024   4096   files\n");
  const ProcessCollector collector(root_);
  const auto families = collector.Collect();
  const double ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  EXPECT_DOUBLE_EQ(*ValueOf(families, "process_cpu_seconds_total"), 500 / ticks);
  EXPECT_EQ(ValueOf(families, "process_threads"), 17);
  EXPECT_EQ(ValueOf(families, "process_virtual_memory_bytes"), 4096000);
  EXPECT_EQ(ValueOf(families, "process_resident_memory_bytes"), 25 * sysconf(_SC_PAGESIZE));
  EXPECT_DOUBLE_EQ(*ValueOf(families, "process_start_time_seconds"), 1700000000 + 1000 / ticks);
  EXPECT_EQ(ValueOf(families, "process_max_fds"), 1024);
}

TEST_F(FakeProcTest, LeavesOutWhatItCannotRead) {
  const ProcessCollector collector(root_ + "/nowhere");
  EXPECT_TRUE(collector.Collect().empty());
}

}  // namespace
}  // namespace cowshed::metrics

// SPDX-License-Identifier: Apache-2.0
#include "metrics/collector.h"

#include <cmath>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/metrics/scrape.h"

namespace cowshed::metrics {
namespace {

using engine::Counter;
using engine::PoolStats;
using prometheus::MetricFamily;
using prometheus::MetricType;

class CollectorTest : public testing::Test {
 protected:
  PoolStats pool_;
  ServiceStats service_;
  Collector collector_{pool_, service_, {"1.2.3", "abc", "7"}};
};

bool EndsWith(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

TEST_F(CollectorTest, EverySeriesExistsAtZeroBeforeAnythingHappened) {
  for (const MetricFamily& family : collector_.Collect()) {
    EXPECT_FALSE(family.metric.empty()) << family.name;
    if (family.name == "cowshed_build_info" || family.name == "cowshed_scrape_duration_seconds") {
      continue;
    }
    for (const auto& metric : family.metric) {
      EXPECT_EQ(metric.counter.value, 0) << family.name;
      EXPECT_EQ(metric.gauge.value, 0) << family.name;
      EXPECT_EQ(metric.histogram.sample_count, 0u) << family.name;
    }
  }
}

TEST_F(CollectorTest, NamesFollowPrometheusPractice) {
  std::set<std::string> names;
  for (const MetricFamily& family : collector_.Collect()) {
    EXPECT_TRUE(names.insert(family.name).second) << family.name << " twice";
    EXPECT_EQ(family.name.rfind("cowshed_", 0), 0u) << family.name;
    EXPECT_TRUE(EndsWith(family.help, ".")) << family.name << ": help is a sentence";
    EXPECT_EQ(EndsWith(family.name, "_total"), family.type == MetricType::Counter) << family.name;
    std::set<std::vector<prometheus::ClientMetric::Label>> label_sets;
    for (const auto& metric : family.metric) {
      EXPECT_TRUE(label_sets.insert(metric.label).second) << family.name << ": a series twice";
      for (const auto& label : metric.label) EXPECT_FALSE(label.value.empty()) << family.name;
    }
  }
}

TEST_F(CollectorTest, ShowsWhatTheEngineCounted) {
  pool_.datasets = 5;
  pool_.allocated_bytes = uint64_t{1} << 50;
  pool_.reclaim_oldest_pending_ms = 1700000000500;
  pool_.alarms[engine::Alarm::kReclaimStalled] = 1;
  pool_.destroy_requests[engine::DestroyKind::kClone] = 3;
  pool_.destroy_methods[engine::DestroyMethod::kTreeWalk] = 2;
  pool_.reclaim_failures[engine::ReclaimFailure::kIo] = 4;
  pool_.livelist_dropped[engine::DropReason::kCostly] = 6;
  pool_.livelist_rebuilds[engine::RebuildResult::kFailed] = 7;
  pool_.condenses[engine::CondenseResult::kCancelled] = 8;
  pool_.condense_entries_in = 9;
  pool_.condense_entries_out = 10;
  pool_.condense_written_bytes = 21;
  pool_.node_cache_misses = 11;
  service_.connections = 12;
  service_.executor_rejected = 13;
  service_.nbd.connections = 14;
  service_.nbd.requests[NbdCommand::kWriteZeroes] = 15;
  service_.nbd.written_bytes = 16;
  service_.nbd.read_bytes = 17;
  service_.nbd.errors[NbdError::kStalled] = 18;
  service_.nbd.request_seconds[static_cast<size_t>(NbdCommand::kFlush)].Observe(0.001);

  const auto families = collector_.Collect();
  EXPECT_EQ(ValueOf(families, "cowshed_datasets"), 5);
  EXPECT_EQ(ValueOf(families, "cowshed_pool_allocated_bytes"), std::exp2(50));
  EXPECT_DOUBLE_EQ(*ValueOf(families, "cowshed_reclaim_oldest_pending_timestamp_seconds"),
                   1700000000.5);
  EXPECT_EQ(ValueOf(families, "cowshed_alarm_active", {{"alarm", "reclaim_stalled"}}), 1);
  EXPECT_EQ(ValueOf(families, "cowshed_alarm_active", {{"alarm", "host_full"}}), 0);
  EXPECT_EQ(ValueOf(families, "cowshed_destroy_requests_total", {{"kind", "clone"}}), 3);
  EXPECT_EQ(ValueOf(families, "cowshed_destroy_method_total", {{"method", "tree_walk"}}), 2);
  EXPECT_EQ(ValueOf(families, "cowshed_reclaim_failures_total", {{"reason", "io"}}), 4);
  EXPECT_EQ(ValueOf(families, "cowshed_livelist_dropped_total", {{"reason", "costly"}}), 6);
  EXPECT_EQ(ValueOf(families, "cowshed_livelist_rebuild_total", {{"result", "failed"}}), 7);
  EXPECT_EQ(ValueOf(families, "cowshed_livelist_condense_total", {{"result", "cancelled"}}), 8);
  EXPECT_EQ(ValueOf(families, "cowshed_livelist_condense_written_bytes_total"), 21);
  EXPECT_EQ(ValueOf(families, "cowshed_livelist_condense_entries_total", {{"direction", "in"}}), 9);
  EXPECT_EQ(ValueOf(families, "cowshed_livelist_condense_entries_total", {{"direction", "out"}}),
            10);
  EXPECT_EQ(ValueOf(families, "cowshed_node_cache_requests_total", {{"result", "miss"}}), 11);
  EXPECT_EQ(ValueOf(families, "cowshed_connections"), 12);
  EXPECT_EQ(ValueOf(families, "cowshed_executor_rejected_total"), 13);
  EXPECT_EQ(ValueOf(families, "cowshed_nbd_connections"), 14);
  EXPECT_EQ(ValueOf(families, "cowshed_nbd_requests_total", {{"command", "write_zeroes"}}), 15);
  EXPECT_EQ(ValueOf(families, "cowshed_nbd_bytes_total", {{"direction", "write"}}), 16);
  EXPECT_EQ(ValueOf(families, "cowshed_nbd_bytes_total", {{"direction", "read"}}), 17);
  EXPECT_EQ(ValueOf(families, "cowshed_nbd_errors_total", {{"reason", "stalled"}}), 18);
  EXPECT_EQ(ValueOf(families, "cowshed_build_info",
                    {{"version", "1.2.3"}, {"revision", "abc"}, {"format", "7"}}),
            1);
  EXPECT_GT(*ValueOf(families, "cowshed_scrape_duration_seconds"), 0);
}

// Each plain counter has a family of its own: setting one changes exactly one sample. The members
// lie in a row, so one that no table names is found here.
void ExpectEveryCounterShown(Counter* first, Counter* last, const Collector& collector) {
  std::set<std::string> seen;
  for (Counter* counter = first; counter <= last; ++counter) {
    *counter = 977000;  // some are shown in seconds: of milli- or microseconds
    std::vector<std::string> changed;
    for (const auto& family : collector.Collect()) {
      if (family.name == "cowshed_scrape_duration_seconds") continue;
      for (const auto& metric : family.metric) {
        const double value = metric.counter.value + metric.gauge.value;
        if (value == 977000 || value == 977 || std::abs(value - 0.977) < 1e-9)
          changed.push_back(family.name);
      }
    }
    *counter = 0;
    ASSERT_EQ(changed.size(), 1u) << "counter " << counter - first << " of the struct";
    if (changed[0].find("node_cache") == std::string::npos) {
      EXPECT_TRUE(seen.insert(changed[0]).second) << changed[0];
    }
  }
}

TEST_F(CollectorTest, EveryPlainCounterOfTheEngineIsShownOnce) {
  ExpectEveryCounterShown(&pool_.datasets, &pool_.meta_oldest_reader_lag_txns, collector_);
  ExpectEveryCounterShown(&pool_.read_bytes, &pool_.request_replays, collector_);
}

TEST_F(CollectorTest, EveryCounterOfTheServiceIsShownOnce) {
  ExpectEveryCounterShown(&service_.executor_queue_length, &service_.reload_failures, collector_);
  const size_t members =
      static_cast<size_t>(&service_.reload_failures - &service_.executor_queue_length) + 1;
  EXPECT_EQ(sizeof(ServiceStats), members * sizeof(Counter) + sizeof(NbdStats));
}

TEST_F(CollectorTest, HistogramsAreCumulativeAndEndInInfinity) {
  engine::SyncHistogram& commits =
      pool_.sync_seconds[static_cast<size_t>(engine::SyncPhase::kCommit)];
  commits.Observe(0.0005);  // on the first bound: belongs below it
  commits.Observe(0.003);
  commits.Observe(60);
  for (const MetricFamily& family : collector_.Collect()) {
    if (family.name != "cowshed_lmdb_commit_duration_seconds") continue;
    ASSERT_EQ(family.metric.size(), 1u);
    const auto& histogram = family.metric[0].histogram;
    EXPECT_EQ(histogram.sample_count, 3u);
    EXPECT_DOUBLE_EQ(histogram.sample_sum, 60.0035);
    ASSERT_EQ(histogram.bucket.size(), engine::kSyncSecondsBounds.size() + 1);
    EXPECT_EQ(histogram.bucket.front().cumulative_count, 1u);
    EXPECT_EQ(histogram.bucket[3].cumulative_count, 2u);
    EXPECT_EQ(histogram.bucket[11].cumulative_count, 2u);
    EXPECT_TRUE(std::isinf(histogram.bucket.back().upper_bound));
    EXPECT_EQ(histogram.bucket.back().cumulative_count, 3u);
    return;
  }
  FAIL() << "no commit histogram";
}

TEST_F(CollectorTest, TheNumberOfSeriesDoesNotDependOnTheNumberOfObjects) {
  const auto series = [this] {
    size_t count = 0;
    for (const auto& family : collector_.Collect()) count += family.metric.size();
    return count;
  };
  const size_t before = series();
  pool_.datasets = 1000000;
  pool_.livelists = 1000000;
  EXPECT_EQ(series(), before);
}

}  // namespace
}  // namespace cowshed::metrics

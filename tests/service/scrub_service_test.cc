// SPDX-License-Identifier: Apache-2.0
//
// Scrub and backup over the wire: replies, operations, reasons and repeats.
#include <gmock/gmock.h>

#include "engine/base/failpoints.h"
#include "tests/service/server_fixture.h"

namespace cowshed::service {
namespace {

class ScrubServiceTest : public ServerTest {
 protected:
  v1::Operation Await(const std::string& name) {
    const auto waited = Call(operations(), &Operations::WaitOperations,
                             "names: '" + name + "' timeout { seconds: 60 }");
    EXPECT_TRUE(waited.done());
    return waited.operations(0);
  }
  engine::TempDir targets_;
};

TEST_F(ScrubServiceTest, AScrubReadsAllAndSaysSo) {
  Create("a");
  Write("a", 0, std::string(300000, 'x'));
  Call(pools(), &Pools::SyncPool, "");
  const auto begun = Call(pools(), &Pools::StartScrub, "request_id: 'one'");
  EXPECT_EQ(begun.operation().kind(), v1::OPERATION_KIND_SCRUB);
  EXPECT_GT(begun.operation().total_bytes(), 300000u);
  const auto done = Await(begun.operation().name());
  EXPECT_EQ(done.state(), v1::OPERATION_STATE_SUCCEEDED);
  EXPECT_EQ(done.done_bytes(), begun.operation().total_bytes());
  EXPECT_EQ(done.errors(), 0u);
  EXPECT_EQ(done.damaged_size(), 0);
  // A repeat is the same scrub; another request is another.
  const auto again = Call(pools(), &Pools::StartScrub, "request_id: 'one'");
  EXPECT_EQ(again.operation().name(), begun.operation().name());
  EXPECT_NE(Call(pools(), &Pools::StartScrub, "").operation().name(), begun.operation().name());
}

TEST_F(ScrubServiceTest, APausedOneWaitsAndACancelledOneFails) {
  Create("a");
  Write("a", 0, std::string(1000000, 'x'));
  Call(pools(), &Pools::SyncPool, "");
  EXPECT_FAILS(Try(pools(), &Pools::CancelScrub, ""), kFailedPrecondition, NO_SCRUB);
  const auto begun = Call(pools(), &Pools::StartScrub, "rate_bytes_per_second: 20000");
  const auto paused = Call(pools(), &Pools::CancelScrub, "pause: true");
  EXPECT_EQ(paused.operation().name(), begun.operation().name());
  EXPECT_EQ(paused.operation().state(), v1::OPERATION_STATE_PENDING);
  EXPECT_EQ(Call(pools(), &Pools::StartScrub, "").operation().name(), begun.operation().name());
  const auto cancelled = Call(pools(), &Pools::CancelScrub, "request_id: 'c'");
  EXPECT_EQ(cancelled.operation().state(), v1::OPERATION_STATE_FAILED);
  EXPECT_EQ(Call(pools(), &Pools::CancelScrub, "request_id: 'c'").operation().name(),
            begun.operation().name());
  EXPECT_FAILS(Try(pools(), &Pools::CancelScrub, ""), kFailedPrecondition, NO_SCRUB);
  EXPECT_FAILS(Try(pools(), &Pools::StartScrub, "request_id: '" + std::string(200, 'x') + "'"),
               kInvalidArgument, INVALID_FIELD);
}

TEST_F(ScrubServiceTest, OneBackupAtATime) {
  EXPECT_OK(engine::Failpoints::Arm("backup.before_rename=pause"));
  const auto begun = Call(pools(), &Pools::Backup, "directory: '" + targets_.Path("a") + "'");
  EXPECT_FAILS(Try(pools(), &Pools::Backup, "directory: '" + targets_.Path("b") + "'"),
               kFailedPrecondition, BACKUP_RUNNING);
  engine::Failpoints::DisarmAll();
  EXPECT_EQ(Await(begun.operation().name()).state(), v1::OPERATION_STATE_SUCCEEDED);
}

TEST_F(ScrubServiceTest, ABackupIsAPool) {
  Create("a");
  Write("a", 0, "moo");
  Call(data(), &Data::Flush, "dataset: 'a'");
  const std::string target = targets_.Path("copy");
  const auto begun = Call(pools(), &Pools::Backup, "directory: '" + target + "' request_id: 'b'");
  EXPECT_EQ(begun.operation().kind(), v1::OPERATION_KIND_BACKUP);
  EXPECT_EQ(begun.operation().target(), target);
  EXPECT_EQ(Await(begun.operation().name()).state(), v1::OPERATION_STATE_SUCCEEDED);
  EXPECT_EQ(Call(pools(), &Pools::Backup, "directory: '" + target + "' request_id: 'b'")
                .operation()
                .name(),
            begun.operation().name());
  EXPECT_FAILS(Try(pools(), &Pools::Backup, "directory: '" + target + "'"), kFailedPrecondition,
               BACKUP_TARGET);
  EXPECT_FAILS(Try(pools(), &Pools::Backup, "directory: 'here'"), kInvalidArgument, INVALID_FIELD);
  engine::PoolOptions options;
  options.directory = target;
  options.create_if_missing = false;
  const auto copy = engine::ValueOf(engine::Pool::Open(options));
  EXPECT_NE(copy->uid(), pool_->uid());
  EXPECT_OK(copy->GetDataset("a").status());
  EXPECT_TRUE(engine::ValueOf(copy->Check()).ok());
}

}  // namespace
}  // namespace cowshed::service

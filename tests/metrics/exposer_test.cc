// SPDX-License-Identifier: Apache-2.0
#include "metrics/exposer.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "metrics/collector.h"
#include "tests/metrics/scrape.h"

namespace cowshed::metrics {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class ExposerTest : public testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<Exposer>> Listen(const std::string& address) {
    return Exposer::Listen(
        address, {std::make_shared<Collector>(pool_, service_, BuildInfo{"1", "r", "1"})});
  }
  engine::PoolStats pool_;
  ServiceStats service_;
};

TEST_F(ExposerTest, ServesTheMetricsOnAChosenPort) {
  auto exposer = Listen("127.0.0.1:0");
  ASSERT_TRUE(exposer.ok()) << exposer.status();
  EXPECT_NE((*exposer)->port(), 0);
  EXPECT_EQ((*exposer)->address(), "127.0.0.1:" + std::to_string((*exposer)->port()));

  pool_.datasets = 41;
  const std::string answer = HttpGet((*exposer)->port(), "/metrics");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK"));
  EXPECT_THAT(answer, HasSubstr("text/plain"));
  EXPECT_THAT(answer, HasSubstr("\n# TYPE cowshed_datasets gauge\ncowshed_datasets 41\n"));
  pool_.datasets = 42;
  EXPECT_THAT(HttpGet((*exposer)->port(), "/metrics"), HasSubstr("\ncowshed_datasets 42\n"));
  EXPECT_THAT(HttpGet((*exposer)->port(), "/"), StartsWith("HTTP/1.1 404"));
}

TEST_F(ExposerTest, StopsListeningWhenDestroyed) {
  auto exposer = Listen("127.0.0.1:0");
  ASSERT_TRUE(exposer.ok()) << exposer.status();
  const uint16_t port = (*exposer)->port();
  exposer->reset();
  EXPECT_EQ(HttpGet(port, "/metrics"), "");
  EXPECT_TRUE(Listen("127.0.0.1:" + std::to_string(port)).ok());
}

// Failed in a container without /etc/hosts, where nothing resolves.
TEST_F(ExposerTest, KnowsLocalhostWithoutAskingAnybody) {
  auto exposer = Listen("localhost:0");
  ASSERT_TRUE(exposer.ok()) << exposer.status();
  EXPECT_EQ((*exposer)->host(), "127.0.0.1");
}

TEST_F(ExposerTest, NamesAddressAndReasonWhenThePortIsTaken) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in taken = {};
  taken.sin_family = AF_INET;
  taken.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(taken);
  ASSERT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&taken), size), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&taken), &size), 0);
  const std::string address = "127.0.0.1:" + std::to_string(ntohs(taken.sin_port));
  const absl::Status status = Listen(address).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(std::string(status.message()),
            "cannot serve metrics on " + address + ": Address already in use");
  close(fd);
}

TEST_F(ExposerTest, TwoExposersNeverShareAPort) {
  auto first = Listen("127.0.0.1:0");
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(Listen((*first)->address()).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(ExposerTest, NamesAddressAndReasonWhenTheHostIsNotOurs) {
  const absl::Status status = Listen("192.0.2.1:9742").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(std::string(status.message()),
            "cannot serve metrics on 192.0.2.1:9742: Cannot assign requested address");
}

TEST_F(ExposerTest, RefusesWhatIsNoAddress) {
  for (const char* address :
       {"", "9742", ":9742", "localhost", "localhost:", "localhost:http", "127.0.0.1:65536",
        "127.0.0.1:-1", "127.0.0.1:97s", "::1:9742", "127.0.0.1:9742,9743", "no such host:1"}) {
    const absl::Status status = Listen(address).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << address << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string("\"") + address + "\""));
  }
}

}  // namespace
}  // namespace cowshed::metrics

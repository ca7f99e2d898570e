// SPDX-License-Identifier: Apache-2.0
//
// The whole NBD server under ThreadSanitizer: it needs no gRPC. Clients read, write and flush at
// once, are cut, come and go, while the server stops.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/attachments.h"
#include "service/context.h"
#include "service/nbd/nbd_server.h"
#include "spdlog/spdlog.h"
#include "tests/support/nbd_client.h"
#include "tests/support/temp_pool.h"
#include "tests/support/testing.h"

namespace cowshed::service {
namespace {

using engine::NbdClient;

// spdlog is not instrumented: it is there before the threads, and says nothing.
const bool silent = [] {
  spdlog::set_level(spdlog::level::off);
  return true;
}();

constexpr int kClients = 4;
constexpr uint64_t kSize = 4 << 20;

// A server on a pool of its own.
struct Service {
  explicit Service(const Limits& limits)
      : context(*pool, limits, /*certificates=*/false, Policy::Of({}), /*secret=*/"",
                /*audit_log=*/nullptr, stats) {
    EXPECT_OK(pool.Create("d", kSize).status());
    EXPECT_OK(pool.Snapshot("d@s").status());
    server = engine::ValueOf(nbd::NbdServer::Listen(context, {"unix:" + path()}, {}, {}));
    EXPECT_OK(server->Start());
  }
  ~Service() {
    server->Stop();
    context.control.Stop();
    context.callbacks.WaitForNone();
  }
  std::string path() const { return dir.Path("nbd"); }
  std::unique_ptr<NbdClient> Dial() const {
    return std::make_unique<NbdClient>(NbdClient::ConnectUnix(path()));
  }

  engine::TempDir dir;
  engine::TempPool pool;
  metrics::ServiceStats stats;
  ServiceContext context;
  std::unique_ptr<nbd::NbdServer> server;
};

// One client's share: writes of its own, with many requests in flight. False once it is cut off.
bool Work(NbdClient& client, uint64_t number, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    const uint64_t base = number * (kSize / kClients);
    int asked = 0;
    for (uint64_t i = 0; i < 8; ++i, ++asked) {
      client.Request(1, base + i * 20000, 20000, i == 7 ? 1 : 0, std::string(20000, 'w'));
    }
    for (uint64_t i = 0; i < 8; ++i, ++asked) client.Request(0, base + i * 20000, 100000);
    for (const uint16_t command : {3, 4, 5, 6, 7}) {
      client.Request(command, command == 3 ? 0 : base + 500000, command == 3 ? 0 : 300000);
      ++asked;
    }
    for (; asked > 0; --asked) {
      const auto answer = client.Take();
      if (answer.ended) return false;
      EXPECT_TRUE(answer.error == 0 || answer.error == 108) << answer.error << answer.text;
    }
  }
  return true;
}

TEST(NbdThreadsTest, ClientsWorkWhileOthersAreCutAndTheServerStops) {
  Service service(
      {.control_workers = 3, .nbd_workers = 3, .nbd_requests_max = 10, .nbd_memory_bytes = 400000});
  std::atomic<bool> stops{false};
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < kClients; ++i) {
    threads.emplace_back([&, i] {
      while (!stops) {
        const auto client = service.Dial();
        const std::vector<std::string> contexts = {"base:allocation", "cowshed:changed-since:@s"};
        if (!client->Go("d?shared", i != 0, contexts)) continue;
        if (i == 0) {
          client->Read(0, 5000);
          client->Flush();
        } else if (Work(*client, i, 3)) {
          client->Disconnect();
        }
      }
    });
  }
  for (int i = 0; i < 40; ++i) {
    bool first = true;
    service.pool->attachments().End(
        [&](const engine::AttachmentInfo&) {
          return std::exchange(first, false) ? absl::AbortedError("cut") : absl::OkStatus();
        },
        [](size_t) {});
    std::this_thread::sleep_for(std::chrono::milliseconds(10));  // the pace of the cuts
  }
  std::thread stopper([&] { service.server->Stop(); });
  stops = true;
  for (std::thread& thread : threads) thread.join();
  stopper.join();
  EXPECT_EQ(service.pool->attachments().Count(), 0u);
  EXPECT_EQ(service.stats.nbd.connections, 0u);
}

}  // namespace
}  // namespace cowshed::service

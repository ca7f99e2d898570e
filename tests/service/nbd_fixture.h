// SPDX-License-Identifier: Apache-2.0
//
// A server that serves NBD on a unix socket beside gRPC, and what tests of it begin with.
//
// Threads     As ServerTest.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/attachments.h"
#include "tests/service/server_fixture.h"
#include "tests/support/nbd_client.h"

namespace cowshed::service {

using engine::NbdClient;

// Numbers of the protocol that tests speak of.
namespace nbd_numbers {
inline constexpr uint32_t kAck = 1, kServer = 2, kInfo = 3, kMeta = 4;
inline constexpr uint32_t kErrUnsupported = 0x80000001, kErrPolicy = 0x80000002,
                          kErrInvalid = 0x80000003, kErrTlsRequired = 0x80000005,
                          kErrUnknown = 0x80000006, kErrTooBig = 0x80000009;
inline constexpr uint32_t kExportName = 1, kAbort = 2, kList = 3, kStartTls = 5, kOptInfo = 6,
                          kGo = 7, kStructured = 8, kListMeta = 9, kSetMeta = 10;
inline constexpr uint16_t kRead = 0, kWrite = 1, kFlush = 3, kTrim = 4, kCache = 5,
                          kWriteZeroes = 6, kBlockStatus = 7;
inline constexpr uint16_t kFua = 1, kNoHole = 2, kDf = 4, kReqOne = 8, kFastZero = 16;
inline constexpr uint32_t kEperm = 1, kEio = 5, kEnomem = 12, kEinval = 22, kEnospc = 28,
                          kEoverflow = 75, kEnotsup = 95, kEshutdown = 108;
}  // namespace nbd_numbers

class NbdTest : public ServerTest {
 protected:
  NbdTest() { server_options_.nbd_listen = {"unix:" + nbd_path()}; }

  std::string nbd_path() const { return dir_.Path("nbd"); }
  // A connection that has not said anything.
  std::unique_ptr<NbdClient> Dial() const {
    return std::make_unique<NbdClient>(NbdClient::ConnectUnix(nbd_path()));
  }
  // One that has attached `name`.
  std::unique_ptr<NbdClient> Attach(const std::string& name, bool structured = true,
                                    const std::vector<std::string>& contexts = {}) const {
    auto client = Dial();
    EXPECT_TRUE(client->Go(name, structured, contexts)) << client->refusal.data;
    return client;
  }
  // How an attempt to attach was refused; 0: it was not.
  uint32_t RefusalOf(const std::string& name) const {
    const auto client = Dial();
    return client->Go(name) ? 0 : client->refusal.type;
  }
  // Waits until `holds`; fails after a minute.
  static void Eventually(const std::function<bool()>& holds) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!holds()) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  void AwaitAttachments(size_t count) const {
    Eventually([&] { return pool_->attachments().Count() == count; });
  }
};

}  // namespace cowshed::service

// SPDX-License-Identifier: Apache-2.0
//
// Certificates that are replaced while the server runs, over real connections.
#include "service/tls.h"

#include <gmock/gmock.h>

#include <fstream>

#include "tests/service/certificates.h"
#include "tests/service/server_fixture.h"

namespace cowshed::service {
namespace {

using testing::HasSubstr;

class TlsTest : public ServerTest {
 protected:
  void SetUp() override {
    Place(first_.Sign("cowshed.test"), first_);
    server_options_.tls = engine::ValueOf(ReadTls(paths_));
    server_options_.roles.certificates = true;
    server_options_.roles.admins = {"admin.test"};
    ServerTest::SetUp();
  }

  // Puts a server's certificate in place, and the authority that clients must come from.
  void Place(const Certificate& server, const Authority& clients) {
    paths_ = {File("server.pem", server.pem), File("server.key", server.key_pem),
              File("ca.pem", clients.pem())};
  }
  std::string File(const std::string& name, const std::string& text) {
    std::ofstream(dir_.Path(name)) << text;
    return dir_.Path(name);
  }
  std::unique_ptr<Datasets> Client(const Authority& server, const Authority& own) {
    return v1::DatasetService::NewStub(ConnectTls(tcp_address(), server, own.Sign("admin.test")));
  }
  bool Works(Datasets& client) { return Try(client, &Datasets::ListDatasets, "").ok(); }
  // Whether new connections work before long: gRPC looks at its files every second.
  bool ComesToWork(const Authority& server, const Authority& own) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (std::chrono::steady_clock::now() < end) {
      if (Works(*Client(server, own))) return true;
    }
    return false;
  }

  const Authority first_;
  const Authority second_;
  TlsPaths paths_;
};

TEST_F(TlsTest, NewHandshakesUseTheNewCertificateAndOldConnectionsLiveOn) {
  const auto old = Client(first_, first_);
  ASSERT_TRUE(Works(*old));
  EXPECT_FALSE(Works(*Client(second_, second_)));
  Place(second_.Sign("cowshed.test", {true, 30}), second_);
  EXPECT_OK(server_->Install(engine::ValueOf(ReadTls(paths_))));
  EXPECT_TRUE(ComesToWork(second_, second_));
  EXPECT_FALSE(Works(*Client(first_, first_)));
  EXPECT_FALSE(Works(*Client(second_, first_)));
  EXPECT_TRUE(Works(*old));
  EXPECT_GT(stats_->certificate_expiry_seconds, server_options_.tls.expiry_seconds + 28 * 86400);
  // And back again.
  Place(first_.Sign("cowshed.test"), first_);
  EXPECT_OK(server_->Install(engine::ValueOf(ReadTls(paths_))));
  EXPECT_TRUE(ComesToWork(first_, first_));
}

TEST_F(TlsTest, BrokenFilesAreNamedAndNeverInstalled) {
  const Certificate good = first_.Sign("cowshed.test");
  const Certificate other = first_.Sign("cowshed.test");
  const auto problem = [&] { return std::string(ReadTls(paths_).status().message()); };
  Place({good.pem, other.key_pem}, first_);
  EXPECT_THAT(problem(), HasSubstr("is not the key of"));
  Place({good.pem.substr(0, good.pem.size() / 2), good.key_pem}, first_);
  EXPECT_THAT(problem(), HasSubstr("server.pem: holds no certificate"));
  Place({good.pem, "no key"}, first_);
  EXPECT_THAT(problem(), HasSubstr("server.key: holds no private key"));
  Place(good, first_);
  File("ca.pem", "no certificate");
  EXPECT_THAT(problem(), HasSubstr("ca.pem: holds no certificate"));
  File("ca.pem", "");
  EXPECT_THAT(problem(), HasSubstr("ca.pem: can not be read"));
  EXPECT_TRUE(Works(*Client(first_, first_)));
}

TEST_F(TlsTest, TlsIsTurnedOnAndOffByARestartOnly) {
  EXPECT_CODE(server_->Install({}), kFailedPrecondition);
  TlsOptions without_clients = server_options_.tls;
  without_clients.client_ca.clear();
  EXPECT_CODE(server_->Install(without_clients), kFailedPrecondition);
  EXPECT_TRUE(Works(*Client(first_, first_)));
}

TEST_F(TlsTest, CommonNameCountsOnlyWithoutSans) {
  const auto as = [&](const Certificate& certificate) {
    return v1::DatasetService::NewStub(ConnectTls(tcp_address(), first_, certificate));
  };
  EXPECT_TRUE(Works(*as(first_.Sign("admin.test", {false, 1}))));
  // The names of a certificate with SANs are these; its CN is "admin.test" all the same.
  EXPECT_FALSE(Works(*as(first_.Sign("admin.test", {true, 1, "other.test"}))));
}

}  // namespace
}  // namespace cowshed::service

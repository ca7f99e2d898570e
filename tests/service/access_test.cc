// SPDX-License-Identifier: Apache-2.0
//
// TLS and roles: who gets in, as whom, and what he may do.
#include "service/access.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <fstream>

#include "service/tls.h"
#include "tests/service/certificates.h"
#include "tests/service/server_fixture.h"

namespace cowshed::service {
namespace {

class AccessTest : public ServerTest {
 protected:
  void SetUp() override {
    const Certificate server = authority_.Sign("cowshed.test");
    const auto tls =
        engine::ValueOf(ReadTls({File("server.pem", server.pem), File("server.key", server.key_pem),
                                 File("ca.pem", authority_.pem())}));
    server_options_.tls = tls;
    server_options_.roles.certificates = true;
    server_options_.roles.admins = {"admin.test"};
    server_options_.roles.readers = {"reader.test"};
    ServerTest::SetUp();
  }

  std::string File(const std::string& name, const std::string& text) {
    std::ofstream(dir_.Path(name)) << text;
    return dir_.Path(name);
  }
  // A client with a certificate for `name`; none for an empty one.
  std::unique_ptr<Datasets> As(const std::string& name) { return As(name, authority_); }
  std::unique_ptr<Datasets> As(const std::string& name, const Authority& authority) {
    return v1::DatasetService::NewStub(
        ConnectTls(tcp_address(), authority_, name.empty() ? Certificate() : authority.Sign(name)));
  }

  const Authority authority_;
};

constexpr char kCreate[] = "name: 'a' size_bytes: 4096 request_id: 'r'";

TEST_F(AccessTest, AdminMayDoEverything) {
  const auto admin = As("admin.test");
  Call(*admin, &Datasets::CreateDataset, kCreate);
  EXPECT_EQ(Call(*admin, &Datasets::ListDatasets, "").datasets_size(), 1);
}

TEST_F(AccessTest, ReaderMayChangeNothing) {
  const auto reader = As("reader.test");
  Call(*reader, &Datasets::ListDatasets, "");
  const auto failure = FailureOf(Try(*reader, &Datasets::CreateDataset, kCreate));
  EXPECT_EQ(failure.code, absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(failure.reason, v1::ErrorReason_Name(v1::PERMISSION_DENIED));
  EXPECT_EQ(failure.metadata.at("role"), "reader");
}

TEST_F(AccessTest, UnknownNameMayDoNothing) {
  EXPECT_FAILS(Try(*As("stranger.test"), &Datasets::ListDatasets, ""), kPermissionDenied,
               PERMISSION_DENIED);
}

TEST_F(AccessTest, WithoutACertificateNobodyIsAnybody) {
  EXPECT_FAILS(Try(*As(""), &Datasets::ListDatasets, ""), kUnauthenticated, UNAUTHENTICATED);
}

TEST_F(AccessTest, CertificateOfAnotherAuthorityDoesNotGetIn) {
  const Authority other;
  const auto forged = As("admin.test", other);
  EXPECT_EQ(Try(*forged, &Datasets::ListDatasets, "").error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(AccessTest, UnixSocketNeedsNoCertificate) {
  Create("a");
  EXPECT_EQ(stats_->certificate_expiry_seconds, server_options_.tls.expiry_seconds);
  EXPECT_GT(server_options_.tls.expiry_seconds, 1700000000u);
}

TEST_F(AccessTest, RequestIdsOfTwoNamesAreTwo) {
  server_options_.roles.admins = {"admin.test", "second.test"};
  Restart();
  Call(*As("admin.test"), &Datasets::CreateDataset, kCreate);
  Call(*As("admin.test"), &Datasets::CreateDataset, kCreate);
  EXPECT_FAILS(Try(*As("second.test"), &Datasets::CreateDataset, kCreate), kAlreadyExists,
               DATASET_EXISTS);
}

TEST_F(AccessTest, SomeUsersOnlyOnTheUnixSocket) {
  server_options_.roles.users = {getuid()};
  Restart();
  Create("a");
  server_options_.roles.users = {getuid() + 1};
  Restart();
  EXPECT_FAILS(Try(datasets(), &Datasets::ListDatasets, ""), kPermissionDenied, PERMISSION_DENIED);
  EXPECT_EQ(stats_->calls_denied, 1u);
}

// Once a call was taken for one of whoever came next: gRPC knows a connection on a unix socket by
// the number of its descriptor only, and numbers are used again while calls are still on their way.
TEST(AccessClaimTest, NumberOfADescriptorStaysOnePeers) {
  Access access(false, Policy::Of({}));
  Peer first;
  first.kind = Peer::Kind::kUnix;
  first.uid = 1000;
  Peer second = first;
  second.uid = 0;
  const auto open_null = [] { return FileDescriptor(open("/dev/null", O_RDONLY | O_CLOEXEC)); };
  const int number = access.Claim(open_null(), first).get();  // and closed
  FileDescriptor next = open_null();
  ASSERT_EQ(next.get(), number);
  const FileDescriptor claimed = access.Claim(std::move(next), second);
  EXPECT_TRUE(claimed.valid());
  EXPECT_NE(claimed.get(), number);
  FileDescriptor again = open_null();
  ASSERT_EQ(again.get(), number);
  EXPECT_EQ(access.Claim(std::move(again), first).get(), number);
}

TEST_F(AccessTest, FilesThatAreNoCertificatesAreNamed) {
  const std::string text = File("text", "no certificate");
  EXPECT_CODE(ReadTls({text, text, ""}), kInvalidArgument);
  EXPECT_CODE(ReadTls({dir_.Path("missing"), text, ""}), kInvalidArgument);
  EXPECT_CODE(ReadTls({text, "", ""}), kInvalidArgument);
  EXPECT_CODE(ReadTls({"", "", text}), kInvalidArgument);
  EXPECT_OK(ReadTls({"", "", ""}).status());
}

}  // namespace
}  // namespace cowshed::service

// SPDX-License-Identifier: Apache-2.0
//
// NBD over TCP: in the clear on loopback, and with STARTTLS where the server has certificates.
#include <openssl/pem.h>
#include <openssl/ssl.h>

#include "tests/service/certificates.h"
#include "tests/service/nbd_fixture.h"

namespace cowshed::service {
namespace {

using namespace nbd_numbers;  // NOLINT: the protocol's own names, in a test of it

// The client's side of TLS over a socket that blocks.
class TlsWire final : public NbdClient::Wire {
 public:
  TlsWire(int fd, const Authority& authority, const Certificate& certificate)
      : context_(SSL_CTX_new(TLS_client_method()), SSL_CTX_free) {
    X509* const ca = CertificateOf(authority.pem());
    X509_STORE_add_cert(SSL_CTX_get_cert_store(context_.get()), ca);
    X509_free(ca);
    SSL_CTX_set_verify(context_.get(), SSL_VERIFY_PEER, nullptr);
    if (!certificate.pem.empty()) {
      X509* const own = CertificateOf(certificate.pem);
      SSL_CTX_use_certificate(context_.get(), own);
      X509_free(own);
      BIO* const bio = BIO_new_mem_buf(certificate.key_pem.data(), -1);
      EVP_PKEY* const key = PEM_read_bio_PrivateKey(bio, nullptr, nullptr, nullptr);
      SSL_CTX_use_PrivateKey(context_.get(), key);
      EVP_PKEY_free(key);
      BIO_free(bio);
    }
    ssl_.reset(SSL_new(context_.get()));
    SSL_set1_host(ssl_.get(), "cowshed.test");
    SSL_set_fd(ssl_.get(), fd);
    connected_ = SSL_connect(ssl_.get()) == 1;
  }
  bool connected() const { return connected_; }
  bool Send(const std::string& bytes) override {
    return SSL_write(ssl_.get(), bytes.data(), static_cast<int>(bytes.size())) > 0;
  }
  std::string Receive(size_t count) override {
    std::string bytes(count, '\0');
    size_t got = 0;
    while (got < count) {
      const int came = SSL_read(ssl_.get(), bytes.data() + got, static_cast<int>(count - got));
      if (came <= 0) break;
      got += static_cast<size_t>(came);
    }
    bytes.resize(got);
    return bytes;
  }

 private:
  static X509* CertificateOf(const std::string& pem) {
    BIO* const bio = BIO_new_mem_buf(pem.data(), -1);
    X509* const certificate = PEM_read_bio_X509(bio, nullptr, nullptr, nullptr);
    BIO_free(bio);
    return certificate;
  }

  std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context_;
  std::unique_ptr<SSL, decltype(&SSL_free)> ssl_{nullptr, SSL_free};
  bool connected_ = false;
};

class NbdTlsTest : public NbdTest {
 protected:
  NbdTlsTest() {
    server_options_.nbd_listen = {"127.0.0.1:0", "unix:" + nbd_path()};
    certificate_ = authority_.Sign("cowshed.test");
  }
  void UseTls(bool client_certificates) {
    server_options_.tls.certificate = certificate_.pem;
    server_options_.tls.key = certificate_.key_pem;
    server_options_.tls.client_ca = client_certificates ? authority_.pem() : "";
    server_options_.roles.certificates = client_certificates;
    Restart();
    Create("d");
  }
  std::unique_ptr<NbdClient> DialTcp() const {
    const std::string& address = server_->nbd_addresses()[0];
    const auto port = static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
    auto client = std::make_unique<NbdClient>(NbdClient::ConnectTcp(port));
    EXPECT_TRUE(client->Greet());
    return client;
  }
  // After STARTTLS, if the handshake of TLS works out.
  std::unique_ptr<TlsWire> StartTls(NbdClient& client, const Certificate& certificate = {}) const {
    EXPECT_EQ(client.TypeOf(kStartTls), kAck);
    auto wire = std::make_unique<TlsWire>(client.fd(), authority_, certificate);
    if (!wire->connected()) return nullptr;
    client.Use(wire.get());
    return wire;
  }

  Authority authority_;
  Certificate certificate_;
};

TEST_F(NbdTlsTest, LoopbackInTheClearIsServedWithoutCertificates) {
  Create("d");
  const auto client = DialTcp();
  EXPECT_EQ(client->TypeOf(kStartTls), kErrUnsupported);
  const auto infos = client->Option(kGo, NbdClient::NameAndInfos("d"));
  EXPECT_EQ(infos.back().type, kAck);
  const auto flags = static_cast<uint16_t>(engine::FromBe(infos[0].data, 10, 2));
  EXPECT_EQ(flags & (1 << 8), 0) << "a writer on TCP has the lease for one connection";
  EXPECT_EQ(client->Write(0, "tcp"), 0u);
  const auto second = DialTcp();
  EXPECT_EQ(second->TypeOf(kGo, NbdClient::NameAndInfos("d")), kErrPolicy);
}

TEST_F(NbdTlsTest, OtherMachinesNeedTlsOrInsecure) {
  server_options_.nbd_listen = {"0.0.0.0:0"};
  metrics::ServiceStats stats;
  Stop();
  pool_ = engine::ValueOf(engine::Pool::Open(pool_options_));
  const auto refused = Server::Start(*pool_, server_options_, stats, nullptr);
  EXPECT_TRUE(absl::IsInvalidArgument(refused.status()));
  server_options_.sockets.insecure = true;
  EXPECT_OK(Server::Start(*pool_, server_options_, stats, nullptr).status());
}

TEST_F(NbdTlsTest, NothingIsToldBeforeTls) {
  UseTls(false);
  const auto client = DialTcp();
  for (const uint32_t option : {kList, kOptInfo, kGo, kStructured, kSetMeta, 4711u}) {
    EXPECT_EQ(client->TypeOf(option, NbdClient::NameAndInfos("d")), kErrTlsRequired) << option;
  }
  EXPECT_EQ(client->TypeOf(kStartTls, "x"), kErrInvalid);
  EXPECT_EQ(client->TypeOf(kAbort), kAck);
  const auto old = DialTcp();
  old->Send("IHAVEOPT" + engine::Be32(kExportName) + engine::Be32(1) + "d");
  EXPECT_TRUE(old->AtEnd());
  EXPECT_EQ(Attach("d")->Write(0, "the unix socket is as it was"), 0u);
}

TEST_F(NbdTlsTest, BytesTravelUnderTls) {
  UseTls(false);
  const auto client = DialTcp();
  const auto wire = StartTls(*client);
  ASSERT_NE(wire, nullptr);
  EXPECT_EQ(client->TypeOf(kStartTls), kErrInvalid);
  EXPECT_EQ(client->TypeOf(kStructured), kAck);
  EXPECT_EQ(client->TypeOf(kGo, NbdClient::NameAndInfos("d")), kAck);
  std::string bytes(700000, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * i / 77);
  EXPECT_EQ(client->Write(1, bytes), 0u);
  // Many in flight, whose answers are larger than the socket.
  for (int i = 0; i < 10; ++i) client->Request(kRead, 1, 700000);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(client->Take().data == bytes);
  EXPECT_EQ(client->Flush(), 0u);
  client->Disconnect();
  EXPECT_TRUE(client->AtEnd());
}

TEST_F(NbdTlsTest, WhatWasSettledInTheClearIsForgottenAndWhatWasSlippedInIsNot) {
  UseTls(false);
  const auto client = DialTcp();
  // Sent with STARTTLS, as whoever sits in between might: it must not be taken for the client's.
  client->Send("IHAVEOPT" + engine::Be32(kStartTls) + engine::Be32(0) + "IHAVEOPT" +
               engine::Be32(kAbort) + engine::Be32(0));
  EXPECT_EQ(client->Receive(20).size(), 20u);
  EXPECT_FALSE(TlsWire(client->fd(), authority_, {}).connected());
  Eventually([&] { return stats_->nbd.errors[metrics::NbdError::kTls] == 1; });
}

TEST_F(NbdTlsTest, ClientCertificatesSayWhoItIs) {
  server_options_.roles.readers = {"reader.test"};
  server_options_.roles.admins = {"admin.test"};
  UseTls(true);
  const auto type_of = [&](const std::string& who, const std::string& name) -> uint32_t {
    const auto client = DialTcp();
    const auto wire = StartTls(*client, who.empty() ? Certificate() : authority_.Sign(who));
    if (wire == nullptr) return 0;
    const uint32_t type = client->TypeOf(kGo, NbdClient::NameAndInfos(name));
    client->Use(nullptr);
    return type;
  };
  EXPECT_EQ(type_of("admin.test", "d"), kAck);
  EXPECT_EQ(type_of("reader.test", "d"), kErrPolicy);
  EXPECT_EQ(type_of("reader.test", "d?read-only"), kAck);
  EXPECT_EQ(type_of("nobody.test", "d?read-only"), kErrUnknown);
  EXPECT_EQ(type_of("", "d"), kErrPolicy);  // is told to show one
  const Authority other;
  const auto client = DialTcp();
  EXPECT_EQ(client->TypeOf(kStartTls), kAck);
  TlsWire wire(client->fd(), authority_, other.Sign("admin.test"));
  client->Use(&wire);  // TLS 1.3: the client may believe that all is well until it reads
  EXPECT_EQ(client->TypeOf(kGo, NbdClient::NameAndInfos("d")), 0u);
  client->Use(nullptr);
}

TEST_F(NbdTlsTest, OtherCertificatesAreForConnectionsToCome) {
  UseTls(false);
  const auto before = DialTcp();
  const auto before_wire = StartTls(*before);
  ASSERT_NE(before_wire, nullptr);
  const Authority other;
  const Certificate next = other.Sign("cowshed.test");
  TlsOptions options = server_options_.tls;
  options.certificate = next.pem;
  options.key = next.key_pem;
  EXPECT_OK(server_->Install(options));
  const auto after = DialTcp();
  EXPECT_EQ(after->TypeOf(kStartTls), kAck);
  EXPECT_TRUE(TlsWire(after->fd(), other, {}).connected());
  EXPECT_EQ(before->TypeOf(kGo, NbdClient::NameAndInfos("d")), kAck);
}

}  // namespace
}  // namespace cowshed::service

// SPDX-License-Identifier: Apache-2.0
#include "service/nbd/tls_stream.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/base/strings.h"

namespace cowshed::service::nbd {
namespace {

using SslPtr = std::unique_ptr<SSL, decltype(&SSL_free)>;
using X509Ptr = std::unique_ptr<X509, decltype(&X509_free)>;
using BioPtr = std::unique_ptr<BIO, decltype(&BIO_free_all)>;
using KeyPtr = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using NamesPtr = std::unique_ptr<GENERAL_NAMES, decltype(&GENERAL_NAMES_free)>;

// The oldest error of OpenSSL's queue of this thread, which is emptied.
absl::Status TlsError(std::string_view what) {
  std::array<char, 256> text{};
  const unsigned long code = ERR_get_error();
  ERR_error_string_n(code, text.data(), text.size());
  ERR_clear_error();
  return absl::UnavailableError(
      engine::StrCat("TLS: ", what, code == 0 ? "" : ": ", code == 0 ? "" : text.data()));
}

BioPtr BioOf(const std::string& pem) {
  return {BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), BIO_free_all};
}

// All certificates of a PEM text.
std::vector<X509Ptr> CertificatesOf(const std::string& pem) {
  const BioPtr bio = BioOf(pem);
  std::vector<X509Ptr> certificates;
  while (X509* next = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) {
    certificates.emplace_back(next, X509_free);
  }
  ERR_clear_error();  // the end of the text is one, too
  return certificates;
}

// The server's certificate, what leads from it to an authority, and its key.
absl::Status UseCertificate(SSL_CTX* context, const TlsOptions& options) {
  const std::vector<X509Ptr> chain = CertificatesOf(options.certificate);
  if (chain.empty() || SSL_CTX_use_certificate(context, chain[0].get()) != 1) {
    return TlsError("the certificate");
  }
  for (size_t i = 1; i < chain.size(); ++i) {
    if (SSL_CTX_add1_chain_cert(context, chain[i].get()) != 1) return TlsError("its chain");
  }
  const KeyPtr key(PEM_read_bio_PrivateKey(BioOf(options.key).get(), nullptr, nullptr, nullptr),
                   EVP_PKEY_free);
  if (key == nullptr || SSL_CTX_use_PrivateKey(context, key.get()) != 1 ||
      SSL_CTX_check_private_key(context) != 1) {
    return TlsError("its key");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<SSL_CTX>> ContextOf(const TlsOptions& options) {
  const std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  if (context == nullptr) return TlsError("no context");
  SSL_CTX* const raw = context.get();
  if (SSL_CTX_set_min_proto_version(raw, TLS1_2_VERSION) != 1) return TlsError("TLS 1.2");
  SSL_CTX_set_session_cache_mode(raw, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(raw, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_mode(raw, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  RETURN_IF_ERROR(UseCertificate(raw, options));
  if (options.client_ca.empty()) return context;
  const std::vector<X509Ptr> authorities = CertificatesOf(options.client_ca);
  if (authorities.empty()) return TlsError("the authority of clients");
  for (const X509Ptr& authority : authorities) {
    if (X509_STORE_add_cert(SSL_CTX_get_cert_store(raw), authority.get()) != 1) {
      return TlsError("the authority of clients");
    }
    SSL_CTX_add_client_CA(raw, authority.get());
  }
  SSL_CTX_set_verify(raw, SSL_VERIFY_PEER, nullptr);
  return context;
}

std::string TextOf(const ASN1_STRING* text) {
  return {reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
          static_cast<size_t>(ASN1_STRING_length(text))};
}

std::string AddressText(const ASN1_STRING* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const int family = ASN1_STRING_length(address) == 4 ? AF_INET : AF_INET6;
  if (family == AF_INET6 && ASN1_STRING_length(address) != 16) return {};
  const auto* const made =
      inet_ntop(family, ASN1_STRING_get0_data(address), text.data(), text.size());
  return made == nullptr ? "" : made;
}

// The SANs of a certificate; the CN where it has none.
std::vector<std::string> NamesOf(X509* certificate) {
  std::vector<std::string> names;
  const NamesPtr found(static_cast<GENERAL_NAMES*>(
                           X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)),
                       GENERAL_NAMES_free);
  for (int i = 0; found != nullptr && i < sk_GENERAL_NAME_num(found.get()); ++i) {
    int type = 0;
    const void* const value = GENERAL_NAME_get0_value(sk_GENERAL_NAME_value(found.get(), i), &type);
    const auto* const text = static_cast<const ASN1_STRING*>(value);
    if (type == GEN_DNS || type == GEN_URI || type == GEN_EMAIL) names.push_back(TextOf(text));
    if (type == GEN_IPADD) names.push_back(AddressText(text));
  }
  std::erase(names, std::string());
  if (!names.empty()) return names;
  const X509_NAME* const subject = X509_get_subject_name(certificate);
  const int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
  if (at >= 0) names.push_back(TextOf(X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at))));
  return names;
}

class TlsStream final : public Stream {
 public:
  TlsStream(SslPtr ssl, FileDescriptor socket, std::shared_ptr<SSL_CTX> context)
      : context_(std::move(context)), socket_(std::move(socket)), ssl_(std::move(ssl)) {}
  ~TlsStream() override {
    const engine::MutexLock lock(mutex_);
    if (!failed_) SSL_shutdown(ssl_.get());  // says good-bye; nobody waits for the answer
    ERR_clear_error();
    TlsStream::Shutdown();
  }

  int fd() const override { return socket_.get(); }

  ssize_t Receive(std::span<std::byte> into) override {
    const engine::MutexLock lock(mutex_);
    if (failed_) return -EPIPE;
    size_t count = 0;
    const int done = SSL_read_ex(ssl_.get(), into.data(), into.size(), &count);
    if (done == 1) return static_cast<ssize_t>(count);
    return SSL_get_error(ssl_.get(), done) == SSL_ERROR_ZERO_RETURN ? 0 : Failure(done, nullptr);
  }

  ssize_t Send(std::span<const iovec> parts) override {
    const engine::MutexLock lock(mutex_);
    ssize_t sent = 0;
    for (const iovec& part : parts) {
      if (failed_) return sent > 0 ? sent : -EPIPE;
      if (part.iov_len == 0) continue;
      size_t count = 0;
      const int done = SSL_write_ex(ssl_.get(), part.iov_base, part.iov_len, &count);
      if (done != 1) {
        const ssize_t failure = Failure(done, &send_wants_input_);
        return sent > 0 ? sent : failure;
      }
      sent += static_cast<ssize_t>(count);
      if (count < part.iov_len) break;
    }
    send_wants_input_ = false;
    return sent;
  }

  bool pending() const override {
    const engine::MutexLock lock(mutex_);
    return !failed_ && SSL_pending(ssl_.get()) > 0;
  }
  bool send_wants_input() const override {
    const engine::MutexLock lock(mutex_);
    return send_wants_input_;
  }
  void Shutdown() override { shutdown(socket_.get(), SHUT_RDWR); }
  FileDescriptor Release() override { return std::move(socket_); }

 private:
  ssize_t Failure(int done, bool* wants_input) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const int error = SSL_get_error(ssl_.get(), done);
    ERR_clear_error();
    if (wants_input != nullptr) *wants_input = error == SSL_ERROR_WANT_READ;
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) return -EAGAIN;
    failed_ = true;
    return -EPIPE;
  }

  const std::shared_ptr<SSL_CTX> context_;
  FileDescriptor socket_;
  mutable engine::Mutex mutex_{engine::LockRank::kLeaf};
  const SslPtr ssl_ ABSL_PT_GUARDED_BY(mutex_);
  bool failed_ ABSL_GUARDED_BY(mutex_) = false;
  bool send_wants_input_ ABSL_GUARDED_BY(mutex_) = false;
};

absl::Status Handshake(SSL* ssl, int fd, Waker& waker, Clock::time_point deadline) {
  while (true) {
    ERR_clear_error();
    const int done = SSL_accept(ssl);
    if (done == 1) return absl::OkStatus();
    const int error = SSL_get_error(ssl, done);
    if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) {
      return TlsError("the handshake failed");
    }
    const short events = error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT;
    switch (WaitFor(fd, events, waker, deadline)) {
      case Woken::kReady:
        break;
      case Woken::kEnding:
        return absl::CancelledError("the connection is to end");
      case Woken::kTimeout:
        return absl::DeadlineExceededError("the handshake took too long");
    }
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<TlsServer>> TlsServer::Make(const TlsOptions& options) {
  std::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes to sockets with write(2), which raises it
  std::unique_ptr<TlsServer> server(new TlsServer);
  RETURN_IF_ERROR(server->Install(options));
  return server;
}

absl::Status TlsServer::Install(const TlsOptions& options) {
  ASSIGN_OR_RETURN(std::shared_ptr<SSL_CTX> next, ContextOf(options));
  const engine::MutexLock lock(mutex_);
  context_.swap(next);
  return absl::OkStatus();
}

absl::StatusOr<TlsConnection> TlsServer::Accept(std::unique_ptr<Stream> plain, Waker& waker,
                                                Clock::time_point deadline) {
  std::shared_ptr<SSL_CTX> context;
  {
    const engine::MutexLock lock(mutex_);
    context = context_;
  }
  SslPtr ssl(SSL_new(context.get()), SSL_free);
  if (ssl == nullptr || SSL_set_fd(ssl.get(), plain->fd()) != 1) return TlsError("no connection");
  RETURN_IF_ERROR(Handshake(ssl.get(), plain->fd(), waker, deadline));
  TlsConnection connection;
  const X509Ptr certificate(SSL_get1_peer_certificate(ssl.get()), X509_free);
  if (certificate != nullptr && SSL_get_verify_result(ssl.get()) == X509_V_OK) {
    connection.names = NamesOf(certificate.get());
  }
  connection.stream =
      std::make_unique<TlsStream>(std::move(ssl), plain->Release(), std::move(context));
  return connection;
}

}  // namespace cowshed::service::nbd

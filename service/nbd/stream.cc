// SPDX-License-Identifier: Apache-2.0
#include "service/nbd/stream.h"

#include <sys/socket.h>

#include <cerrno>
#include <utility>

namespace cowshed::service::nbd {
namespace {

class PlainStream final : public Stream {
 public:
  explicit PlainStream(FileDescriptor socket) : socket_(std::move(socket)) {}
  ~PlainStream() override {
    if (socket_.valid()) PlainStream::Shutdown();
  }

  int fd() const override { return socket_.get(); }

  ssize_t Receive(std::span<std::byte> into) override {
    const ssize_t count = recv(socket_.get(), into.data(), into.size(), 0);
    return count >= 0 ? count : ErrorNow();
  }

  ssize_t Send(std::span<const iovec> parts) override {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(parts.data());
    message.msg_iovlen = parts.size();
    const ssize_t count = sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
    return count >= 0 ? count : ErrorNow();
  }

  void Shutdown() override { shutdown(socket_.get(), SHUT_RDWR); }
  FileDescriptor Release() override { return std::move(socket_); }

 private:
  static ssize_t ErrorNow() { return errno == EINTR ? -EAGAIN : -errno; }

  FileDescriptor socket_;
};

}  // namespace

std::unique_ptr<Stream> MakePlainStream(FileDescriptor socket) {
  return std::make_unique<PlainStream>(std::move(socket));
}

}  // namespace cowshed::service::nbd

// SPDX-License-Identifier: Apache-2.0
#include "tests/support/nbd_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <utility>

namespace cowshed::engine {
namespace {

constexpr uint64_t kOptionReplyMagic = 0x0003e889045565a9;
constexpr uint32_t kSimpleMagic = 0x67446698;
constexpr uint32_t kChunkMagic = 0x668e33ef;
constexpr uint32_t kAck = 1;
constexpr uint32_t kErrorBit = 0x80000000;
constexpr int kPatienceSeconds = 60;  // generous: the machine may be busy

int Connected(int fd, const sockaddr* address, socklen_t size) {
  if (connect(fd, address, size) == 0) return fd;
  close(fd);
  return -1;
}

}  // namespace

std::string Be16(uint16_t value) {
  return {static_cast<char>(value >> 8), static_cast<char>(value)};
}
std::string Be32(uint32_t value) {
  return Be16(static_cast<uint16_t>(value >> 16)) + Be16(static_cast<uint16_t>(value));
}
std::string Be64(uint64_t value) {
  return Be32(static_cast<uint32_t>(value >> 32)) + Be32(static_cast<uint32_t>(value));
}
uint64_t FromBe(const std::string& bytes, size_t at, size_t count) {
  uint64_t value = 0;
  for (size_t i = at; i < at + count && i < bytes.size(); ++i) {
    value = value << 8 | static_cast<uint8_t>(bytes[i]);
  }
  return value;
}

int NbdClient::ConnectUnix(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  return Connected(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0),
                   reinterpret_cast<const sockaddr*>(&address), sizeof(address));
}

int NbdClient::ConnectTcp(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return Connected(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0),
                   reinterpret_cast<const sockaddr*>(&address), sizeof(address));
}

NbdClient::NbdClient(int fd) : fd_(fd) {
  const timeval patience = {kPatienceSeconds, 0};
  setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
}

NbdClient::~NbdClient() { Close(); }

void NbdClient::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

bool NbdClient::Send(const std::string& bytes) {
  if (wire_ != nullptr) return wire_->Send(bytes);
  size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t count = send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (count <= 0) return false;
    sent += static_cast<size_t>(count);
  }
  return true;
}

std::string NbdClient::Receive(size_t count) {
  if (wire_ != nullptr) return wire_->Receive(count);
  std::string bytes(count, '\0');
  size_t got = 0;
  while (got < count) {
    const ssize_t came = recv(fd_, bytes.data() + got, count - got, 0);
    if (came <= 0) break;
    got += static_cast<size_t>(came);
  }
  bytes.resize(got);
  return bytes;
}

bool NbdClient::AtEnd() { return Receive(1).empty(); }

bool NbdClient::Greet(uint32_t client_flags) {
  const std::string greeting = Receive(18);
  return greeting == std::string("NBDMAGICIHAVEOPT") + Be16(3) && Send(Be32(client_flags));
}

std::vector<NbdClient::OptionReply> NbdClient::Option(uint32_t option, const std::string& data) {
  std::vector<OptionReply> replies;
  Send("IHAVEOPT" + Be32(option) + Be32(static_cast<uint32_t>(data.size())) + data);
  while (true) {
    const std::string head = Receive(20);
    OptionReply& reply = replies.emplace_back();
    if (head.size() < 20 || FromBe(head, 0, 8) != kOptionReplyMagic) return replies;
    reply.option = static_cast<uint32_t>(FromBe(head, 8, 4));
    reply.type = static_cast<uint32_t>(FromBe(head, 12, 4));
    reply.data = Receive(FromBe(head, 16, 4));
    if (reply.type == kAck || (reply.type & kErrorBit) != 0) return replies;
  }
}

uint32_t NbdClient::TypeOf(uint32_t option, const std::string& data) {
  return Option(option, data).back().type;
}

std::string NbdClient::NameAndInfos(const std::string& name, const std::vector<uint16_t>& infos) {
  std::string data =
      Be32(static_cast<uint32_t>(name.size())) + name + Be16(static_cast<uint16_t>(infos.size()));
  for (const uint16_t info : infos) data += Be16(info);
  return data;
}

std::string NbdClient::NameAndQueries(const std::string& name,
                                      const std::vector<std::string>& queries) {
  std::string data =
      Be32(static_cast<uint32_t>(name.size())) + name + Be32(static_cast<uint32_t>(queries.size()));
  for (const auto& query : queries) data += Be32(static_cast<uint32_t>(query.size())) + query;
  return data;
}

bool NbdClient::Go(const std::string& name, bool structured,
                   const std::vector<std::string>& queries) {
  if (!Greet()) return false;
  if (structured && TypeOf(8) != kAck) return false;
  if (!queries.empty()) {
    for (const OptionReply& reply : Option(10, NameAndQueries(name, queries))) {
      if (reply.type == 4) {
        contexts[static_cast<uint32_t>(FromBe(reply.data, 0, 4))] = reply.data.substr(4);
      }
    }
  }
  for (const OptionReply& reply : Option(7, NameAndInfos(name, {3}))) {
    if (reply.type == kAck) return true;
    if (reply.type != 3) {
      refusal = reply;
      return false;
    }
    if (FromBe(reply.data, 0, 2) == 0) {
      size_bytes = FromBe(reply.data, 2, 8);
      export_flags = static_cast<uint16_t>(FromBe(reply.data, 10, 2));
    } else if (FromBe(reply.data, 0, 2) == 3) {
      block_min = static_cast<uint32_t>(FromBe(reply.data, 2, 4));
      block_preferred = static_cast<uint32_t>(FromBe(reply.data, 6, 4));
      payload_max = static_cast<uint32_t>(FromBe(reply.data, 10, 4));
    }
  }
  return false;
}

uint64_t NbdClient::Request(uint16_t command, uint64_t offset, uint32_t length,
                            uint16_t request_flags, const std::string& payload) {
  const uint64_t cookie = next_cookie_++;
  pending_[cookie] = {command, offset, length, {}};
  Send(Be32(0x25609513) + Be16(request_flags) + Be16(command) + Be64(cookie) + Be64(offset) +
       Be32(length) + payload);
  return cookie;
}

// Chunks of several answers may come in turns.
NbdClient::Answer NbdClient::Take() {
  while (true) {
    const std::string magic = Receive(4);
    const bool simple = FromBe(magic, 0, 4) == kSimpleMagic;
    const std::string head = Receive(simple ? 12 : 16);
    if (!simple && (FromBe(magic, 0, 4) != kChunkMagic || head.size() < 16)) {
      Answer none;
      none.ended = true;
      return none;
    }
    const uint64_t cookie = FromBe(head, 4, 8);
    Pending& pending = pending_[cookie];
    Answer& answer = pending.answer;
    answer.cookie = cookie;
    answer.structured = !simple;
    if (simple) {
      answer.error = static_cast<uint32_t>(FromBe(head, 0, 4));
      if (pending.command == 0 && answer.error == 0) answer.data = Receive(pending.length);
    } else {
      TakeChunk(static_cast<uint16_t>(FromBe(head, 2, 2)), Receive(FromBe(head, 12, 4)), &pending);
      if ((FromBe(head, 0, 2) & 1) == 0) continue;
    }
    Answer whole = std::move(answer);
    pending_.erase(cookie);
    return whole;
  }
}

void NbdClient::TakeChunk(uint16_t type, const std::string& body, Pending* pending) {
  Answer* const answer = &pending->answer;
  if (type == 1 || type == 2) {
    answer->data.resize(pending->length, '?');
    const uint64_t at = FromBe(body, 0, 8) - pending->offset;
    const std::string bytes = type == 1 ? body.substr(8) : std::string(FromBe(body, 8, 4), '\0');
    if (at + bytes.size() <= answer->data.size()) answer->data.replace(at, bytes.size(), bytes);
    ++(type == 1 ? answer->data_chunks : answer->hole_chunks);
  } else if (type == 5) {
    auto& extents = answer->extents[static_cast<uint32_t>(FromBe(body, 0, 4))];
    for (size_t at = 4; at + 8 <= body.size(); at += 8) {
      extents.push_back({static_cast<uint32_t>(FromBe(body, at, 4)),
                         static_cast<uint32_t>(FromBe(body, at + 4, 4))});
    }
  } else if ((type & 0x8000) != 0) {
    answer->error = static_cast<uint32_t>(FromBe(body, 0, 4));
    const auto size = FromBe(body, 4, 2);
    answer->text = body.substr(6, size);
    if (type == 0x8002) answer->error_offset = FromBe(body, 6 + size, 8);
  }
}

NbdClient::Answer NbdClient::Ask(uint16_t command, uint64_t offset, uint32_t length,
                                 uint16_t request_flags, const std::string& payload) {
  Request(command, offset, length, request_flags, payload);
  return Take();
}

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// A raw NBD client for tests: speaks the protocol byte by byte, also where a decent client would
// not. It knows the numbers of the protocol by itself, not from the server's sources.
//
// Threads     Externally synchronised.
// Ownership   Owns its socket, unless it is told to let go.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace cowshed::engine {

class NbdClient {
 public:
  // What a transport does instead of plain sockets (TLS).
  class Wire {
   public:
    virtual ~Wire() = default;
    virtual bool Send(const std::string& bytes) = 0;
    // Fewer than `count` at the end of the stream.
    virtual std::string Receive(size_t count) = 0;
  };

  static int ConnectUnix(const std::string& path);
  static int ConnectTcp(uint16_t port);

  explicit NbdClient(int fd);
  ~NbdClient();
  NbdClient(const NbdClient&) = delete;
  NbdClient& operator=(const NbdClient&) = delete;

  int fd() const { return fd_; }
  void Close();
  // From now on, all goes through `wire`, which is the caller's.
  void Use(Wire* wire) { wire_ = wire; }

  bool Send(const std::string& bytes);
  std::string Receive(size_t count);
  // The server has closed the connection; true too if it takes no more than a while to do so.
  bool AtEnd();

  // --- handshake ---

  // The greeting is right; answers with `flags`.
  bool Greet(uint32_t flags = 3);
  struct OptionReply {
    uint32_t option = 0;
    uint32_t type = 0;  // 0: the connection ended
    std::string data;
  };
  // Sends an option and reads its replies; the last one is an acknowledgement or an error.
  std::vector<OptionReply> Option(uint32_t option, const std::string& data = "");
  // The same, of which only the last reply matters.
  uint32_t TypeOf(uint32_t option, const std::string& data = "");
  static std::string NameAndInfos(const std::string& name, const std::vector<uint16_t>& infos = {});
  static std::string NameAndQueries(const std::string& name,
                                    const std::vector<std::string>& queries);
  // Greeting, structured replies if wanted, contexts, GO. False, and `refusal`, if it was refused.
  bool Go(const std::string& name, bool structured = true,
          const std::vector<std::string>& contexts = {});

  uint64_t size_bytes = 0;
  uint16_t export_flags = 0;
  uint32_t block_min = 0, block_preferred = 0, payload_max = 0;
  OptionReply refusal;
  std::map<uint32_t, std::string> contexts;  // by number

  // --- transmission ---

  struct Extent {
    uint32_t length = 0;
    uint32_t flags = 0;
    bool operator==(const Extent&) const = default;
  };
  struct Answer {
    bool ended = false;  // the connection
    uint64_t cookie = 0;
    uint32_t error = 0;
    std::string text;  // of an error
    uint64_t error_offset = 0;
    std::string data;  // of a read, put together
    int data_chunks = 0, hole_chunks = 0;
    bool structured = false;
    std::map<uint32_t, std::vector<Extent>> extents;  // by context
  };
  // Sends a request, with `payload` after it; returns its cookie.
  uint64_t Request(uint16_t command, uint64_t offset, uint32_t length, uint16_t flags = 0,
                   const std::string& payload = "");
  // The next answer, whosever it is.
  Answer Take();
  // Both, for a client with one request at a time.
  Answer Ask(uint16_t command, uint64_t offset, uint32_t length, uint16_t flags = 0,
             const std::string& payload = "");
  Answer Read(uint64_t offset, uint32_t length) { return Ask(0, offset, length); }
  uint32_t Write(uint64_t offset, const std::string& bytes, uint16_t flags = 0) {
    return Ask(1, offset, static_cast<uint32_t>(bytes.size()), flags, bytes).error;
  }
  uint32_t Flush() { return Ask(3, 0, 0).error; }
  void Disconnect() { Request(2, 0, 0); }

 private:
  struct Pending {
    uint16_t command = 0;
    uint64_t offset = 0;
    uint32_t length = 0;
    Answer answer;  // what has come of it
  };
  void TakeChunk(uint16_t type, const std::string& body, Pending* pending);

  int fd_;
  Wire* wire_ = nullptr;
  uint64_t next_cookie_ = 0x1122334400000001;
  std::map<uint64_t, Pending> pending_;
};

// Big-endian numbers.
std::string Be16(uint16_t value);
std::string Be32(uint32_t value);
std::string Be64(uint64_t value);
uint64_t FromBe(const std::string& bytes, size_t at, size_t count);

}  // namespace cowshed::engine

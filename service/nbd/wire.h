// SPDX-License-Identifier: Apache-2.0
//
// The NBD protocol as bytes: its numbers, and every message of it that we speak, encoded and
// decoded. Nothing here does I/O or knows a pool, so all of it can be fuzzed.
//
// Model       Fixed newstyle: a greeting, options and their replies, then requests and replies (the
//             protocol's own document names the constants). All numbers are big-endian. Decoding
//             takes exactly the bytes of one message; what is short, long or not a number we know
//             is INVALID_ARGUMENT with words for the client.
// Threads     Free functions on values.
// Cost        The two hot messages, requests and heads of replies, are plain loads and stores.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace cowshed::service::nbd {

inline constexpr uint64_t kGreetingMagic = 0x4e42444d41474943;  // "NBDMAGIC"
inline constexpr uint64_t kOptionMagic = 0x49484156454f5054;    // "IHAVEOPT"
inline constexpr uint64_t kOptionReplyMagic = 0x0003e889045565a9;
inline constexpr uint32_t kRequestMagic = 0x25609513;
inline constexpr uint32_t kSimpleReplyMagic = 0x67446698;
inline constexpr uint32_t kChunkMagic = 0x668e33ef;

inline constexpr size_t kGreetingBytes = 18;
inline constexpr size_t kClientFlagsBytes = 4;
inline constexpr size_t kOptionHeadBytes = 16;
inline constexpr size_t kRequestBytes = 28;
inline constexpr size_t kStringBytesMax = 4096;  // of the protocol: names and queries

// Of the greeting, and of the client's answer.
inline constexpr uint16_t kFixedNewstyle = 1 << 0;
inline constexpr uint16_t kNoZeroes = 1 << 1;

enum class Option : uint32_t {
  kExportName = 1,
  kAbort = 2,
  kList = 3,
  kStartTls = 5,
  kInfo = 6,
  kGo = 7,
  kStructuredReply = 8,
  kListMetaContext = 9,
  kSetMetaContext = 10
};

enum class OptionReply : uint32_t {
  kAck = 1,
  kServer = 2,
  kInfo = 3,
  kMetaContext = 4,
  kUnsupported = 0x80000001,
  kPolicy = 0x80000002,
  kInvalid = 0x80000003,
  kTlsRequired = 0x80000005,
  kUnknown = 0x80000006,
  kShutdown = 0x80000007,
  kTooBig = 0x80000009
};

enum class Info : uint16_t { kExport = 0, kName = 1, kDescription = 2, kBlockSize = 3 };

// What an export can do.
namespace export_flags {
inline constexpr uint16_t kHasFlags = 1 << 0;
inline constexpr uint16_t kReadOnly = 1 << 1;
inline constexpr uint16_t kSendFlush = 1 << 2;
inline constexpr uint16_t kSendFua = 1 << 3;
inline constexpr uint16_t kSendTrim = 1 << 5;
inline constexpr uint16_t kSendWriteZeroes = 1 << 6;
inline constexpr uint16_t kSendDf = 1 << 7;
inline constexpr uint16_t kCanMultiConn = 1 << 8;
inline constexpr uint16_t kSendCache = 1 << 10;
inline constexpr uint16_t kSendFastZero = 1 << 11;
}  // namespace export_flags

enum class Command : uint16_t {
  kRead = 0,
  kWrite = 1,
  kDisconnect = 2,
  kFlush = 3,
  kTrim = 4,
  kCache = 5,
  kWriteZeroes = 6,
  kBlockStatus = 7
};

namespace command_flags {
inline constexpr uint16_t kFua = 1 << 0;
inline constexpr uint16_t kNoHole = 1 << 1;
inline constexpr uint16_t kDf = 1 << 2;
inline constexpr uint16_t kReqOne = 1 << 3;
inline constexpr uint16_t kFastZero = 1 << 4;
}  // namespace command_flags

enum class ChunkType : uint16_t {
  kNone = 0,
  kOffsetData = 1,
  kOffsetHole = 2,
  kBlockStatus = 5,
  kError = 0x8001,
  kErrorOffset = 0x8002
};

// The errors of the protocol.
enum class Errno : uint32_t {
  kOk = 0,
  kPermission = 1,
  kIo = 5,
  kNoMemory = 12,
  kInvalid = 22,
  kNoSpace = 28,
  kOverflow = 75,
  kNotSupported = 95,
  kShutdown = 108
};

// --- handshake ---

std::string EncodeGreeting();
// Size and flags of an export as EXPORT_NAME answers them; 124 zeros unless the client wants none.
std::string EncodeExport(uint64_t size_bytes, uint16_t flags, bool zeroes);

struct OptionHead {
  uint32_t option = 0;
  uint32_t data_bytes = 0;
};
absl::StatusOr<OptionHead> DecodeOptionHead(std::span<const std::byte> bytes);

// A reply to the option with number `option`; `data` as one of those below, a text of an error, or
// nothing.
std::string EncodeOptionReply(uint32_t option, OptionReply type, std::string_view data = {});
std::string EncodeServer(std::string_view name);
std::string EncodeInfoExport(uint64_t size_bytes, uint16_t flags);
std::string EncodeInfoText(Info info, std::string_view text);
std::string EncodeInfoBlockSize(uint32_t min, uint32_t preferred, uint32_t max);
std::string EncodeMetaContext(uint32_t id, std::string_view name);

// The data of INFO and GO.
struct InfoRequest {
  std::string name;
  std::vector<uint16_t> infos;
};
absl::StatusOr<InfoRequest> DecodeInfoRequest(std::span<const std::byte> bytes);

// The data of LIST_META_CONTEXT and SET_META_CONTEXT.
struct MetaRequest {
  std::string name;
  std::vector<std::string> queries;
};
absl::StatusOr<MetaRequest> DecodeMetaRequest(std::span<const std::byte> bytes);

// --- transmission ---

struct Request {
  uint16_t flags = 0;
  uint16_t command = 0;
  uint64_t cookie = 0;  // the client's, given back as it came
  uint64_t offset_bytes = 0;
  uint32_t length_bytes = 0;

  bool Is(Command other) const { return command == static_cast<uint16_t>(other); }
  bool Has(uint16_t flag) const { return (flags & flag) != 0; }
};
// REQUIRES: kRequestBytes of them. INVALID_ARGUMENT if they are no request: nothing that follows
// can be read.
absl::StatusOr<Request> DecodeRequest(std::span<const std::byte> bytes);

// The head of a reply: all of it but what is as long as the request says.
struct ReplyHead {
  std::array<std::byte, 32> bytes;
  uint32_t size = 0;
};
ReplyHead SimpleReply(uint64_t cookie, Errno error);
// `payload_bytes` follow the head, which ends with the fields that the chunk's type has of its own.
ReplyHead NoneChunk(uint64_t cookie);
ReplyHead DataChunk(uint64_t cookie, uint64_t offset, uint32_t payload_bytes, bool done);
ReplyHead HoleChunk(uint64_t cookie, uint64_t offset, uint32_t hole_bytes, bool done);
ReplyHead ErrorChunk(uint64_t cookie, ChunkType type, Errno error, uint32_t payload_bytes);
ReplyHead BlockStatusChunk(uint64_t cookie, uint32_t context, uint32_t payload_bytes, bool done);

struct Extent {
  uint32_t length_bytes = 0;
  uint32_t flags = 0;
};
std::string EncodeExtents(std::span<const Extent> extents);
// What follows the head of an error.
std::string EncodeErrorText(std::string_view text);
std::string EncodeErrorOffsetText(std::string_view text, uint64_t offset);

}  // namespace cowshed::service::nbd

// SPDX-License-Identifier: Apache-2.0
#include "service/nbd/wire.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "engine/base/check.h"
#include "engine/base/status_macros.h"
#include "engine/base/strings.h"

namespace cowshed::service::nbd {
namespace {

constexpr size_t kOldPaddingBytes = 124;
constexpr size_t kErrorTextBytesMax = 1024;
constexpr uint16_t kDone = 1;  // of a chunk: the last of its reply

template <typename T>
T BigEndian(T value) {
  static_assert(std::endian::native == std::endian::little);
  if constexpr (sizeof(T) == 8) return __builtin_bswap64(value);
  if constexpr (sizeof(T) == 4) return __builtin_bswap32(value);
  if constexpr (sizeof(T) == 2) return __builtin_bswap16(value);
}

template <typename T>
void Append(std::string& out, T value) {
  const T big = BigEndian(value);
  out.append(reinterpret_cast<const char*>(&big), sizeof(big));
}

template <typename T>
T Load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return BigEndian(value);
}

// Takes a message apart from its front; what is asked for beyond its end makes it a broken one.
class Taker {
 public:
  explicit Taker(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <typename T>
  T Take() {
    if (rest_.size() < sizeof(T)) {
      broken_ = true;
      return 0;
    }
    const T value = Load<T>(rest_.data());
    rest_ = rest_.subspan(sizeof(T));
    return value;
  }
  // A string with its length before it.
  std::string TakeString() {
    const auto size = Take<uint32_t>();
    if (size > rest_.size() || size > kStringBytesMax) {
      broken_ = true;
      return {};
    }
    std::string text(reinterpret_cast<const char*>(rest_.data()), size);
    rest_ = rest_.subspan(size);
    return text;
  }
  bool broken() const { return broken_; }
  // All of it was taken, and it was enough.
  bool whole() const { return !broken_ && rest_.empty(); }

 private:
  std::span<const std::byte> rest_;
  bool broken_ = false;
};

class HeadMaker {
 public:
  template <typename T>
  HeadMaker& Put(T value) {
    COWSHED_CHECK(head_.size + sizeof(T) <= head_.bytes.size(), "a head has room for its fields");
    const T big = BigEndian(value);
    std::memcpy(head_.bytes.data() + head_.size, &big, sizeof(big));
    head_.size += sizeof(big);
    return *this;
  }
  const ReplyHead& head() const { return head_; }

 private:
  ReplyHead head_;
};

// `length` counts all that follows the 20 bytes of a chunk's head.
HeadMaker Chunk(uint64_t cookie, ChunkType type, bool done, uint32_t length) {
  HeadMaker maker;
  const auto flags = static_cast<uint16_t>(done ? kDone : 0);
  maker.Put(kChunkMagic).Put(flags).Put(static_cast<uint16_t>(type)).Put(cookie).Put(length);
  return maker;
}

}  // namespace

// --- handshake ---

std::string EncodeGreeting() {
  std::string out;
  Append(out, kGreetingMagic);
  Append(out, kOptionMagic);
  Append(out, static_cast<uint16_t>(kFixedNewstyle | kNoZeroes));
  return out;
}

std::string EncodeExport(uint64_t size_bytes, uint16_t flags, bool zeroes) {
  std::string out;
  Append(out, size_bytes);
  Append(out, flags);
  if (zeroes) out.append(kOldPaddingBytes, '\0');
  return out;
}

absl::StatusOr<OptionHead> DecodeOptionHead(std::span<const std::byte> bytes) {
  Taker taker(bytes);
  const auto magic = taker.Take<uint64_t>();
  OptionHead head;
  head.option = taker.Take<uint32_t>();
  head.data_bytes = taker.Take<uint32_t>();
  if (taker.whole() && magic == kOptionMagic) return head;
  return absl::InvalidArgumentError("this is no option of NBD");
}

std::string EncodeOptionReply(uint32_t option, OptionReply type, std::string_view data) {
  std::string out;
  Append(out, kOptionReplyMagic);
  Append(out, option);
  Append(out, static_cast<uint32_t>(type));
  Append(out, static_cast<uint32_t>(data.size()));
  out.append(data);
  return out;
}

std::string EncodeServer(std::string_view name) {
  std::string out;
  Append(out, static_cast<uint32_t>(name.size()));
  out.append(name);
  return out;
}

std::string EncodeInfoExport(uint64_t size_bytes, uint16_t flags) {
  std::string out;
  Append(out, static_cast<uint16_t>(Info::kExport));
  Append(out, size_bytes);
  Append(out, flags);
  return out;
}

std::string EncodeInfoText(Info info, std::string_view text) {
  std::string out;
  Append(out, static_cast<uint16_t>(info));
  out.append(text);
  return out;
}

std::string EncodeInfoBlockSize(uint32_t min, uint32_t preferred, uint32_t max) {
  std::string out;
  Append(out, static_cast<uint16_t>(Info::kBlockSize));
  Append(out, min);
  Append(out, preferred);
  Append(out, max);
  return out;
}

std::string EncodeMetaContext(uint32_t id, std::string_view name) {
  std::string out;
  Append(out, id);
  out.append(name);
  return out;
}

absl::StatusOr<InfoRequest> DecodeInfoRequest(std::span<const std::byte> bytes) {
  Taker taker(bytes);
  InfoRequest request;
  request.name = taker.TakeString();
  const auto count = taker.Take<uint16_t>();
  for (uint16_t i = 0; i < count && !taker.broken(); ++i) {
    request.infos.push_back(taker.Take<uint16_t>());
  }
  if (taker.whole()) return request;
  return absl::InvalidArgumentError("the option's data are no name and list of infos");
}

absl::StatusOr<MetaRequest> DecodeMetaRequest(std::span<const std::byte> bytes) {
  Taker taker(bytes);
  MetaRequest request;
  request.name = taker.TakeString();
  const auto count = taker.Take<uint32_t>();
  for (uint32_t i = 0; i < count && !taker.broken(); ++i) {
    request.queries.push_back(taker.TakeString());
  }
  if (taker.whole()) return request;
  return absl::InvalidArgumentError("the option's data are no name and list of queries");
}

// --- transmission ---

absl::StatusOr<Request> DecodeRequest(std::span<const std::byte> bytes) {
  COWSHED_CHECK(bytes.size() == kRequestBytes, "a request has its size");
  if (Load<uint32_t>(bytes.data()) != kRequestMagic) {
    return absl::InvalidArgumentError("this is no request of NBD");
  }
  Request request;
  request.flags = Load<uint16_t>(bytes.data() + 4);
  request.command = Load<uint16_t>(bytes.data() + 6);
  request.cookie = Load<uint64_t>(bytes.data() + 8);
  request.offset_bytes = Load<uint64_t>(bytes.data() + 16);
  request.length_bytes = Load<uint32_t>(bytes.data() + 24);
  return request;
}

ReplyHead SimpleReply(uint64_t cookie, Errno error) {
  HeadMaker maker;
  return maker.Put(kSimpleReplyMagic).Put(static_cast<uint32_t>(error)).Put(cookie).head();
}

ReplyHead NoneChunk(uint64_t cookie) { return Chunk(cookie, ChunkType::kNone, true, 0).head(); }

ReplyHead DataChunk(uint64_t cookie, uint64_t offset, uint32_t payload_bytes, bool done) {
  const auto length = static_cast<uint32_t>(sizeof(offset) + payload_bytes);
  return Chunk(cookie, ChunkType::kOffsetData, done, length).Put(offset).head();
}

ReplyHead HoleChunk(uint64_t cookie, uint64_t offset, uint32_t hole_bytes, bool done) {
  const uint32_t length = sizeof(offset) + sizeof(hole_bytes);
  return Chunk(cookie, ChunkType::kOffsetHole, done, length).Put(offset).Put(hole_bytes).head();
}

ReplyHead ErrorChunk(uint64_t cookie, ChunkType type, Errno error, uint32_t payload_bytes) {
  const auto length = static_cast<uint32_t>(sizeof(error) + payload_bytes);
  return Chunk(cookie, type, true, length).Put(static_cast<uint32_t>(error)).head();
}

ReplyHead BlockStatusChunk(uint64_t cookie, uint32_t context, uint32_t payload_bytes, bool done) {
  const auto length = static_cast<uint32_t>(sizeof(context) + payload_bytes);
  return Chunk(cookie, ChunkType::kBlockStatus, done, length).Put(context).head();
}

std::string EncodeExtents(std::span<const Extent> extents) {
  std::string out;
  out.reserve(extents.size() * 2 * sizeof(uint32_t));
  for (const Extent& extent : extents) {
    Append(out, extent.length_bytes);
    Append(out, extent.flags);
  }
  return out;
}

std::string EncodeErrorText(std::string_view text) {
  text = text.substr(0, kErrorTextBytesMax);
  std::string out;
  Append(out, static_cast<uint16_t>(text.size()));
  out.append(text);
  return out;
}

std::string EncodeErrorOffsetText(std::string_view text, uint64_t offset) {
  std::string out = EncodeErrorText(text);
  Append(out, offset);
  return out;
}

}  // namespace cowshed::service::nbd

// SPDX-License-Identifier: Apache-2.0
#include "engine/requests.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/base/hash.h"
#include "engine/base/status_macros.h"
#include "engine/base/strings.h"

namespace cowshed::engine {
namespace {

struct RequestHeader {
  uint64_t fingerprint = 0;
  uint32_t bytes = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(RequestHeader) == 16);

constexpr size_t kHashBytes = 16;
// Two independent 64-bit hashes: at a million keys a collision has odds of about 1 in 10^27.
constexpr uint64_t kSecondSeed = 0x9e3779b97f4a7c15;

}  // namespace

std::string RequestHash(std::string_view key) {
  return std::string(std::string_view(Key(Hash64(key), Hash64(key, kSecondSeed))));
}

absl::StatusOr<std::optional<StoredReply>> FindReply(const MetaTxn& txn, std::string_view hash) {
  ASSIGN_OR_RETURN(const std::optional<std::string_view> first,
                   txn.Get(Table::kRequests, Key(hash, uint32_t{0})));
  if (!first.has_value()) return std::nullopt;
  Decoder decoder(*first);
  RequestHeader header;
  decoder.Get(&header);
  StoredReply reply{header.fingerprint, std::string(first->substr(sizeof(header)))};
  for (uint32_t chunk = 1; reply.bytes.size() < header.bytes; ++chunk) {
    ASSIGN_OR_RETURN(const std::optional<std::string_view> more,
                     txn.Get(Table::kRequests, Key(hash, chunk)));
    if (!more.has_value()) return absl::DataLossError("a stored reply has lost a part");
    reply.bytes.append(*more);
  }
  return reply;
}

absl::Status StoreReply(TxgContext& context, std::string_view hash, const StoredReply& reply) {
  Encoder encoder;
  encoder.Put(RequestHeader{reply.fingerprint, static_cast<uint32_t>(reply.bytes.size()), 0});
  std::string rest = encoder.Take() + reply.bytes;
  uint32_t chunk = 0;
  for (size_t at = 0; at < rest.size(); at += kMaxPayloadBytes) {
    RETURN_IF_ERROR(context.meta.Put(
        Table::kRequests, Key(hash, chunk++),
        std::string_view(rest).substr(at, std::min<size_t>(kMaxPayloadBytes, rest.size() - at))));
  }
  ++context.pool.requests;
  return context.meta.Put(Table::kRequestTimes, Key(static_cast<uint64_t>(context.now_ms), hash),
                          "");
}

absl::StatusOr<bool> ForgetReplies(TxgContext& context, int64_t before_ms, uint64_t keep_max,
                                   uint64_t limit) {
  std::vector<std::string> old;
  {
    MetaCursor cursor(context.meta, Table::kRequestTimes);
    for (cursor.Seek(Key(uint64_t{0})); cursor.valid() && old.size() < limit; cursor.Next()) {
      const auto time = static_cast<int64_t>(KeyNumber<uint64_t>(cursor.key(), 0));
      if (time >= before_ms && context.pool.requests - old.size() <= keep_max) break;
      old.emplace_back(cursor.key());
    }
    RETURN_IF_ERROR(cursor.status());
  }
  for (const std::string& key : old) {
    const std::string hash = key.substr(8, kHashBytes);
    while (true) {
      std::string chunk;
      {
        MetaCursor cursor(context.meta, Table::kRequests);
        cursor.Seek(hash);
        if (cursor.ValidFor(hash)) chunk = std::string(cursor.key());
        RETURN_IF_ERROR(cursor.status());
      }
      if (chunk.empty()) break;
      RETURN_IF_ERROR(context.meta.Delete(Table::kRequests, chunk));
    }
    RETURN_IF_ERROR(context.meta.Delete(Table::kRequestTimes, key));
    --context.pool.requests;
  }
  return old.size() < limit;
}

}  // namespace cowshed::engine

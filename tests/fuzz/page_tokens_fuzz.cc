// SPDX-License-Identifier: Apache-2.0
//
// Tokens that clients send back: what the server made opens as it was, what it did not make is
// refused, and even a forged position does not upset a list.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "absl/strings/escaping.h"
#include "cowshed/v1/dataset.pb.h"
#include "engine/pool.h"
#include "service/tokens.h"
#include "tests/fuzz/byte_source.h"
#include "tests/support/temp_pool.h"
#include "tests/support/testing.h"

namespace cowshed::fuzz {
namespace {

using service::Tokens;

void Demand(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "LOSS: %s\n", what);
  std::abort();
}

void DemandRefused(const absl::Status& status) {
  Demand(absl::IsInvalidArgument(status), "a foreign token is INVALID_ARGUMENT");
}

v1::ListDatasetsRequest RequestOf(ByteSource& source) {
  v1::ListDatasetsRequest request;
  request.set_page_size(source.Take());
  request.set_prefix(std::string(1, static_cast<char>('a' + source.Take() % 4)));
  (*request.mutable_labels())["k"] = std::to_string(source.Take() % 2);
  return request;
}

// A token nobody made: under a secret of its own each time, for libFuzzer picks up what it sees
// compared, and whole tokens that other cases sealed are among that.
void TryForeign(ByteSource source) {
  static uint64_t cases = 0;
  Tokens tokens(std::to_string(++cases));
  v1::ListDatasetsRequest request = RequestOf(source);
  const std::string raw(source.Rest());
  for (const std::string& token : {raw, [&] {
                                     std::string text;
                                     absl::WebSafeBase64Escape(raw, &text);
                                     return text;
                                   }()}) {
    if (token.empty()) continue;
    request.set_page_token(token);
    DemandRefused(tokens.OpenPosition(request).status());
    DemandRefused(tokens.OpenBlockers(token).status());
  }
}

// A token of the server's opens; one byte changed, or other filters, and it does not.
void TryPosition(Tokens& tokens, ByteSource source) {
  v1::ListDatasetsRequest request = RequestOf(source);
  const size_t at = source.Number<uint16_t>();
  const char change = static_cast<char>(source.Take());
  v1::ListDatasetsRequest other = RequestOf(source);
  const std::string position(source.Rest());
  std::string token = tokens.SealPosition(request, position);
  Demand(token.empty() == position.empty(), "only no position has no token");
  request.set_page_token(token);
  request.set_page_size(request.page_size() + 1);
  const auto opened = tokens.OpenPosition(request);
  Demand(opened.ok() && *opened == position, "a token opens as it was sealed");
  if (token.empty()) return;
  DemandRefused(tokens.OpenBlockers(token).status());
  if (other.prefix() != request.prefix() || other.labels().at("k") != request.labels().at("k")) {
    other.set_page_token(token);
    DemandRefused(tokens.OpenPosition(other).status());
  }
  if (change == 0) return;
  token[at % token.size()] = static_cast<char>(token[at % token.size()] ^ change);
  request.set_page_token(token);
  const auto changed = tokens.OpenPosition(request);
  // The last characters of base64 may carry bits that mean nothing.
  if (changed.ok()) return Demand(*changed == position, "a changed token is no other position");
  DemandRefused(changed.status());
}

void TryBlockers(Tokens& tokens, ByteSource source) {
  engine::BlockerQuery query;
  const size_t count = source.Take() % 80;
  for (size_t i = 0; i < count; ++i) {
    query.targets.push_back({.kind = static_cast<engine::BlockerKind>(source.Take() % 6),
                             .id = source.Number<uint64_t>(),
                             .floor_txg = source.Number<uint16_t>()});
  }
  const std::string token = tokens.SealBlockers(query);
  const auto opened = tokens.OpenBlockers(token);
  Demand(opened.ok() && opened->targets.size() == count, "a list opens as it was sealed");
  for (size_t i = 0; i < count; ++i) {
    const auto& before = query.targets[i];
    const auto& after = opened->targets[i];
    Demand(
        before.id == after.id && before.kind == after.kind && before.floor_txg == after.floor_txg,
        "a target opens as it was sealed");
  }
}

// What a forged token would reach: the engine with any bytes as a position.
void TryForged(engine::Pool& pool, ByteSource source) {
  engine::ListArgs args;
  const uint8_t list = source.Take();
  args.page_size = source.Take() % 8 + 1;
  const uint8_t filter = source.Take();
  if (filter % 4 == 1) args.prefix = "a";
  if (filter % 4 == 2) args.parent = list % 5 == 2 ? "a@s" : "a";
  if (filter % 4 == 3) args.origin = "a";
  args.state = filter / 4 % 8;
  args.unfinished = filter >= 128;
  args.position = std::string(source.Rest());
  absl::Status status;
  if (list % 5 == 0) status = pool.ListDatasets(args).status();
  if (list % 5 == 1) status = pool.ListSnapshots(args).status();
  if (list % 5 == 2) status = pool.ListHolds(args).status();
  if (list % 5 == 3) status = pool.ListOperations(args).status();
  if (list % 5 == 4) {
    engine::BlockerQuery query;
    query.targets.push_back({.kind = static_cast<engine::BlockerKind>(filter % 6), .id = list});
    status = pool.ListBlockers(query, args).status();
  }
  Demand(status.ok() || absl::IsInvalidArgument(status) || absl::IsNotFound(status),
         status.ToString().c_str());
}

// A pool with some of everything that lists show.
std::unique_ptr<engine::TempPool> NewPool() {
  auto pool = std::make_unique<engine::TempPool>();
  bool made = true;
  for (const char* name : {"a", "a/x", "a/y", "b"}) made &= pool->Create(name).ok();
  for (const char* name : {"a@s", "a@t", "a/x@s", "b@s"}) made &= pool->Snapshot(name).ok();
  for (const char* name : {"c", "a/z"}) made &= pool->Clone("a@s", name).ok();
  for (const char* tag : {"k", "l", "m"}) made &= pool->Hold("a@s", tag).ok();
  made &= pool->Destroy("b", /*recursive=*/true).ok();
  Demand(made, "the pool can be furnished");
  return pool;
}

void Try(ByteSource source) {
  static Tokens& tokens = *new Tokens("0123456789abcdef");
  static std::unique_ptr<engine::TempPool> pool;
  static const bool made = [] {
    pool = NewPool();
    std::atexit([] { pool.reset(); });
    return true;
  }();
  Demand(made, "there is a pool");
  switch (source.Take() % 4) {
    case 0:
      return TryForeign(source);
    case 1:
      return TryPosition(tokens, source);
    case 2:
      return TryBlockers(tokens, source);
    default:
      return TryForged(**pool, source);
  }
}

}  // namespace
}  // namespace cowshed::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  cowshed::fuzz::Try(cowshed::fuzz::ByteSource(data, size));
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
#include "service/tokens.h"

#include <memory>
#include <utility>

#include "absl/strings/escaping.h"
#include "engine/base/check.h"
#include "engine/base/strings.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "service/digest.h"

namespace cowshed::service {
namespace {

using engine::BlockerQuery;

constexpr char kVersion = 1;
constexpr size_t kDigestBytes = 16;

// What follows in the contents of a list token.
enum class ListForm : uint32_t { kTargets = 1, kNumber = 2 };

absl::Status Foreign() {
  return engine::MakeError(absl::StatusCode::kInvalidArgument, "INVALID_PAGE_TOKEN",
                           "the token is not one of this server's, or belongs to other filters");
}

// The request without its page fields, and its type: what a page token is bound to.
std::string FiltersOf(const google::protobuf::Message& request) {
  const std::unique_ptr<google::protobuf::Message> filters(request.New());
  filters->CopyFrom(request);
  const auto* descriptor = filters->GetDescriptor();
  for (const char* field : {"page_size", "page_token"}) {
    filters->GetReflection()->ClearField(filters.get(), descriptor->FindFieldByName(field));
  }
  return engine::StrCat(descriptor->full_name(), ":", DeterministicBytes(*filters));
}

std::string EncodeTargets(const BlockerQuery& query) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream out(&stream);
  out.WriteVarint32(static_cast<uint32_t>(ListForm::kTargets));
  for (const auto& target : query.targets) {
    out.WriteVarint32(static_cast<uint32_t>(target.kind));
    out.WriteVarint64(target.id);
    out.WriteVarint64(target.floor_txg);
  }
  out.Trim();
  return bytes;
}

std::string EncodeNumber(uint64_t number) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream out(&stream);
  out.WriteVarint32(static_cast<uint32_t>(ListForm::kNumber));
  out.WriteVarint64(number);
  out.Trim();
  return bytes;
}

bool DecodeTargets(google::protobuf::io::CodedInputStream& in, int size, BlockerQuery* query) {
  while (in.CurrentPosition() < size) {
    uint32_t kind = 0;
    BlockerQuery::Target target;
    if (!in.ReadVarint32(&kind) || !in.ReadVarint64(&target.id) ||
        !in.ReadVarint64(&target.floor_txg)) {
      return false;
    }
    target.kind = static_cast<engine::BlockerKind>(kind);
    query->targets.push_back(target);
  }
  return true;
}

}  // namespace

std::string DeterministicBytes(const google::protobuf::Message& message) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream out(&stream);
  out.SetSerializationDeterministic(true);
  message.SerializeToCodedStream(&out);
  out.Trim();
  return bytes;
}

Tokens::Tokens(std::string_view secret) : key_(Hmac(secret, "cowshed tokens", 32)) {}

std::string Tokens::Seal(std::string_view context, std::string_view contents) const {
  const std::string digest =
      Hmac(key_, engine::StrCat(Hmac(key_, context, 32), contents), kDigestBytes);
  return absl::WebSafeBase64Escape(
      engine::StrCat(std::string_view(&kVersion, 1), digest, contents));
}

absl::StatusOr<std::string> Tokens::Open(std::string_view context, std::string_view token) const {
  std::string sealed;
  if (!absl::WebSafeBase64Unescape(engine::View(token), &sealed) ||
      sealed.size() <= 1 + kDigestBytes || sealed[0] != kVersion) {
    return Foreign();
  }
  std::string contents = sealed.substr(1 + kDigestBytes);
  // Whole tokens are compared: base64 has several spellings of the same bytes.
  if (Seal(context, contents) != token) return Foreign();
  return contents;
}

std::string Tokens::SealPosition(const google::protobuf::Message& request,
                                 std::string_view position) {
  return position.empty() ? std::string() : Seal(FiltersOf(request), position);
}

absl::StatusOr<std::string> Tokens::OpenPosition(const google::protobuf::Message& request) {
  const auto* field = request.GetDescriptor()->FindFieldByName("page_token");
  const std::string token = request.GetReflection()->GetString(request, field);
  if (token.empty()) return std::string();
  return Open(FiltersOf(request), token);
}

std::string Tokens::SealBlockers(const BlockerQuery& query) {
  if (query.targets.size() <= kTargetsInToken) return Seal("blockers", EncodeTargets(query));
  // The number is a digest of the list: the same refusal repeated takes no further room.
  const uint64_t number = Fingerprint(EncodeTargets(query));
  engine::MutexLock lock(mutex_);
  if (lists_.try_emplace(number, query).second) {
    list_order_.push_back(number);
  } else {
    list_order_.remove(number);
    list_order_.push_back(number);
  }
  if (list_order_.size() > kListsKept) {
    lists_.erase(list_order_.front());
    list_order_.pop_front();
  }
  return Seal("blockers", EncodeNumber(number));
}

absl::StatusOr<BlockerQuery> Tokens::OpenBlockers(std::string_view token) {
  auto contents = Open("blockers", token);
  if (!contents.ok()) return contents.status();
  const int size = static_cast<int>(contents->size());
  google::protobuf::io::CodedInputStream in(reinterpret_cast<const uint8_t*>(contents->data()),
                                            size);
  uint32_t form = 0;
  uint64_t number = 0;
  BlockerQuery query;
  if (!in.ReadVarint32(&form)) return Foreign();
  if (form == static_cast<uint32_t>(ListForm::kTargets)) {
    if (!DecodeTargets(in, size, &query)) return Foreign();
    return query;
  }
  if (form != static_cast<uint32_t>(ListForm::kNumber) || !in.ReadVarint64(&number)) {
    return Foreign();
  }
  engine::MutexLock lock(mutex_);
  const auto found = lists_.find(number);
  if (found == lists_.end()) {
    return engine::MakeError(absl::StatusCode::kInvalidArgument, "INVALID_PAGE_TOKEN",
                             "the list is no longer kept: repeat the call that was refused");
  }
  list_order_.remove(number);
  list_order_.push_back(number);
  return found->second;
}

}  // namespace cowshed::service

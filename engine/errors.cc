// SPDX-License-Identifier: Apache-2.0
#include "engine/errors.h"

#include "absl/strings/cord.h"
#include "engine/base/strings.h"
#include "engine/store/codec.h"

namespace cowshed::engine {
namespace {

constexpr char kPayloadUrl[] = "cowshed.engine/ErrorDetails";

std::string Serialize(const ErrorDetails& details) {
  Encoder encoder;
  encoder.PutString(details.reason).Put(static_cast<uint32_t>(details.metadata.size()));
  for (const auto& [key, value] : details.metadata) encoder.PutString(key).PutString(value);
  encoder.Put(details.blockers.total).Put(static_cast<uint32_t>(details.blockers.first.size()));
  for (const Blocker& blocker : details.blockers.first) {
    encoder.Put(blocker.kind).PutString(blocker.name).PutString(blocker.blocked_name);
    encoder.PutString(blocker.tag).PutString(blocker.attachment).PutString(blocker.client);
    encoder.Put(blocker.since_ms);
  }
  encoder.Put(static_cast<uint32_t>(details.blockers.query.targets.size()));
  for (const BlockerQuery::Target& target : details.blockers.query.targets) encoder.Put(target);
  return encoder.Take();
}

ErrorDetails Deserialize(const std::string& bytes) {
  Decoder decoder(bytes);
  ErrorDetails details;
  uint32_t count = 0;
  decoder.GetString(&details.reason).Get(&count);
  for (uint32_t i = 0; i < count; ++i) {
    std::string key;
    decoder.GetString(&key).GetString(&details.metadata[key]);
  }
  decoder.Get(&details.blockers.total).Get(&count);
  details.blockers.first.resize(count);
  for (Blocker& blocker : details.blockers.first) {
    decoder.Get(&blocker.kind).GetString(&blocker.name).GetString(&blocker.blocked_name);
    decoder.GetString(&blocker.tag).GetString(&blocker.attachment).GetString(&blocker.client);
    decoder.Get(&blocker.since_ms);
  }
  decoder.Get(&count);
  details.blockers.query.targets.resize(count);
  for (BlockerQuery::Target& target : details.blockers.query.targets) decoder.Get(&target);
  return details;
}

}  // namespace

absl::Status MakeError(absl::StatusCode code, std::string_view message, ErrorDetails details) {
  absl::Status status(code, View(message));
  status.SetPayload(kPayloadUrl, absl::Cord(Serialize(details)));
  return status;
}

absl::Status MakeError(absl::StatusCode code, std::string_view reason, std::string_view message,
                       std::map<std::string, std::string> metadata) {
  return MakeError(code, message, ErrorDetails{std::string(reason), std::move(metadata), {}});
}

std::optional<ErrorDetails> GetErrorDetails(const absl::Status& status) {
  const auto payload = status.GetPayload(kPayloadUrl);
  if (!payload.has_value()) return std::nullopt;
  return Deserialize(std::string(*payload));
}

}  // namespace cowshed::engine

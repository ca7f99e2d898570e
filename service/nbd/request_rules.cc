// SPDX-License-Identifier: Apache-2.0
#include "service/nbd/request_rules.h"

#include <algorithm>
#include <iterator>

#include "engine/base/strings.h"

namespace cowshed::service::nbd {
namespace {

namespace flags = command_flags;

struct CommandRule {
  Command command;
  uint16_t flags;  // that it may have; FUA means something where it changes bytes only
  bool changes;
  bool has_range;
};

constexpr CommandRule kRules[] = {
    {Command::kRead, flags::kFua | flags::kDf, false, true},
    {Command::kWrite, flags::kFua, true, true},
    {Command::kFlush, flags::kFua, false, false},
    {Command::kTrim, flags::kFua, true, true},
    {Command::kCache, flags::kFua, false, true},
    {Command::kWriteZeroes, flags::kFua | flags::kNoHole | flags::kFastZero, true, true},
    {Command::kBlockStatus, flags::kFua | flags::kReqOne, false, true},
};

std::optional<Refusal> JudgeRange(const Request& request, const CommandRule& rule,
                                  uint64_t size_bytes) {
  if (request.offset_bytes <= size_bytes &&
      request.length_bytes <= size_bytes - request.offset_bytes) {
    return std::nullopt;
  }
  const bool grows = rule.command == Command::kWrite || rule.command == Command::kWriteZeroes;
  return Refusal{grows ? Errno::kNoSpace : Errno::kInvalid,
                 engine::StrCat("bytes ", request.offset_bytes, "+", request.length_bytes,
                                " reach past the size of ", size_bytes)};
}

}  // namespace

std::optional<Refusal> Judge(const Request& request, const ExportRules& rules) {
  const auto* const rule =
      std::find_if(std::begin(kRules), std::end(kRules),
                   [&](const CommandRule& candidate) { return request.Is(candidate.command); });
  if (rule == std::end(kRules)) {
    return Refusal{Errno::kInvalid, engine::StrCat("there is no command ", request.command)};
  }
  if ((request.flags & ~rule->flags) != 0 || (request.Has(flags::kDf) && !rules.structured)) {
    return Refusal{Errno::kInvalid,
                   engine::StrCat("command ", request.command, " has no flags ", request.flags)};
  }
  if (rule->changes && rules.read_only) {
    return Refusal{Errno::kPermission, "the export is read-only"};
  }
  const bool payload = rule->command == Command::kRead || rule->command == Command::kWrite;
  if (payload && request.length_bytes > kPayloadBytesMax) {
    return Refusal{request.Has(flags::kDf) ? Errno::kOverflow : Errno::kInvalid,
                   engine::StrCat("more than ", kPayloadBytesMax, " bytes in one request")};
  }
  if (rule->has_range) {
    if (auto refusal = JudgeRange(request, *rule, rules.size_bytes)) return refusal;
  }
  if (request.Has(flags::kFastZero) && request.Has(flags::kNoHole)) {
    return Refusal{Errno::kNotSupported, "zeros that are no hole are written, which is not fast"};
  }
  if (rule->command == Command::kBlockStatus && !rules.contexts) {
    return Refusal{Errno::kInvalid, "no metadata context was negotiated"};
  }
  if (rule->command == Command::kBlockStatus && request.length_bytes == 0) {
    return Refusal{Errno::kInvalid, "the status of no bytes was asked for"};
  }
  return std::nullopt;
}

}  // namespace cowshed::service::nbd

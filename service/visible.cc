// SPDX-License-Identifier: Apache-2.0
#include "service/visible.h"

namespace cowshed::service {
namespace {

constexpr char kCut = '\0';  // ends the prefix in a position: no name has it

}  // namespace

absl::StatusOr<engine::OperationInfo> SeeOperation(engine::Pool& pool, const Rights& rights,
                                                   const MethodRule& rule, const std::string& name,
                                                   Role role) {
  auto operation = pool.GetOperation(name);
  if (rights.everywhere() >= role) return operation;
  if (!operation.ok() || rights.On(operation->target) < role) return Denied(rights, rule, name);
  return operation;
}

bool OpenPrefix(const Rights& rights, engine::ListArgs* args) {
  const std::vector<std::string> prefixes = rights.ReadablePrefixes();
  const size_t cut = args->position.find(kCut);
  const std::string at = args->position.substr(0, cut);
  const auto prefix = std::lower_bound(prefixes.begin(), prefixes.end(), at);
  if (prefix == prefixes.end()) return false;
  const bool resumes = cut != std::string::npos && *prefix == at;
  args->position = resumes ? args->position.substr(cut + 1) : std::string();
  args->prefix = *prefix;
  return true;
}

std::string SealPrefix(const Rights& rights, const std::string& prefix, const std::string& next) {
  if (!next.empty()) return prefix + kCut + next;
  const std::vector<std::string> prefixes = rights.ReadablePrefixes();
  const auto following = std::upper_bound(prefixes.begin(), prefixes.end(), prefix);
  return following == prefixes.end() ? std::string() : *following + kCut;
}

}  // namespace cowshed::service

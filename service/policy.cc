// SPDX-License-Identifier: Apache-2.0
#include "service/policy.h"

#include <grp.h>
#include <pwd.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <sstream>

#include "absl/strings/numbers.h"
#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "google/protobuf/util/json_util.h"

namespace cowshed::service {
namespace {

constexpr size_t kLookupBytes = 1 << 16;  // of one entry of the user or group database

absl::Status Wrong(std::string_view what) { return absl::InvalidArgumentError(engine::View(what)); }

absl::StatusOr<uint32_t> UserId(const std::string& text) {
  uint32_t id = 0;
  if (absl::SimpleAtoi(text, &id)) return id;
  std::string buffer(kLookupBytes, '\0');
  passwd entry{};
  passwd* found = nullptr;
  getpwnam_r(text.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (found == nullptr) return Wrong(engine::StrCat("there is no user ", text));
  return found->pw_uid;
}

absl::StatusOr<uint32_t> GroupId(const std::string& text) {
  uint32_t id = 0;
  if (absl::SimpleAtoi(text, &id)) return id;
  std::string buffer(kLookupBytes, '\0');
  group entry{};
  group* found = nullptr;
  getgrnam_r(text.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (found == nullptr) return Wrong(engine::StrCat("there is no group ", text));
  return found->gr_gid;
}

absl::Status CheckPrefix(const std::string& prefix) {
  const bool cut = prefix.empty() || prefix.front() == '/' || prefix.back() == '/';
  if (!cut && prefix.find('@') == std::string::npos && prefix.find("//") == std::string::npos) {
    return absl::OkStatus();
  }
  return Wrong(engine::StrCat("\"", prefix, "\" is no prefix: segments joined by /"));
}

}  // namespace

bool IsCovered(std::string_view prefix, std::string_view name) {
  if (name.compare(0, prefix.size(), prefix) != 0) return false;
  if (name.size() == prefix.size()) return true;
  return name[prefix.size()] == '/' || name[prefix.size()] == '@';
}

std::string RoleText(Role role) {
  std::string text = Role_Name(role);
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// --- rights ---

void Rights::Add(Role role, const std::string& prefix) {
  anywhere_ = std::max(anywhere_, role);
  if (prefix.empty()) {
    everywhere_ = std::max(everywhere_, role);
  } else {
    below_.emplace_back(prefix, role);
  }
}

Role Rights::On(std::string_view name) const {
  Role role = everywhere_;
  for (const auto& [prefix, granted] : below_) {
    if (granted > role && IsCovered(prefix, name)) role = granted;
  }
  return role;
}

std::vector<std::string> Rights::ReadablePrefixes() const {
  std::set<std::string> all;
  for (const auto& [prefix, role] : below_) all.insert(prefix);
  std::vector<std::string> outermost;
  for (const auto& prefix : all) {
    const bool inner = std::any_of(all.begin(), all.end(), [&](const std::string& other) {
      return other != prefix && IsCovered(other, prefix);
    });
    if (!inner) outermost.push_back(prefix);
  }
  return outermost;
}

// --- policy ---

absl::StatusOr<Policy::Who> Policy::ParseWho(const std::string& text) {
  if (text == "unix") return Who{Who::Kind::kUnix, 0, ""};
  if (text == "tcp") return Who{Who::Kind::kTcp, 0, ""};
  const size_t colon = text.find(':');
  const std::string kind = text.substr(0, colon);
  const std::string name = colon == std::string::npos ? "" : text.substr(colon + 1);
  if (name.empty() || (kind != "cert" && kind != "user" && kind != "group")) {
    return Wrong(engine::StrCat(
        "\"", text, "\" is nobody: cert:NAME, user:NAME or UID, group:NAME or GID, unix, tcp"));
  }
  if (kind == "cert") return Who{Who::Kind::kCertificate, 0, name};
  if (kind == "user") {
    ASSIGN_OR_RETURN(const uint32_t uid, UserId(name));
    return Who{Who::Kind::kUser, uid, ""};
  }
  ASSIGN_OR_RETURN(const uint32_t gid, GroupId(name));
  return Who{Who::Kind::kGroup, gid, ""};
}

absl::StatusOr<Policy::Compiled> Policy::Compile(const Grant& grant) {
  Compiled compiled;
  compiled.role = grant.role();
  if (grant.role() == NONE) return Wrong("has no role: READER, OPERATOR or ADMIN");
  if (!Role_IsValid(grant.role())) return Wrong("has a role that does not exist");
  if (grant.role() == ADMIN && !grant.prefixes().empty()) {
    return Wrong("limits an ADMIN to prefixes: he acts on the whole pool");
  }
  if (grant.who().empty()) return Wrong("names nobody");
  for (const auto& text : grant.who()) {
    ASSIGN_OR_RETURN(compiled.who.emplace_back(), ParseWho(text));
  }
  for (const auto& prefix : grant.prefixes()) {
    RETURN_IF_ERROR(CheckPrefix(prefix));
    compiled.prefixes.push_back(prefix);
  }
  return compiled;
}

absl::StatusOr<Policy> Policy::Parse(const std::string& json) {
  PolicyFile file;
  const auto parsed = google::protobuf::util::JsonStringToMessage(json, &file);
  if (!parsed.ok()) return Wrong(parsed.ToString());
  Policy policy;
  for (int i = 0; i < file.grants_size(); ++i) {
    auto grant = Compile(file.grants(i));
    if (!grant.ok()) {
      return Wrong(
          engine::StrCat("grant ", i + 1, ": ", engine::StdView(grant.status().message())));
    }
    policy.grants_.push_back(*std::move(grant));
  }
  return policy;
}

absl::StatusOr<Policy> Policy::Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file || text.str().empty()) return Wrong(engine::StrCat(path, ": can not be read"));
  auto policy = Parse(text.str());
  if (policy.ok()) return policy;
  return Wrong(engine::StrCat(path, ": ", engine::StdView(policy.status().message())));
}

Policy Policy::Of(const Flags& flags) {
  Policy policy;
  const auto grant = [&policy](Who who, Role role) {
    policy.grants_.push_back({{std::move(who)}, role, {}});
  };
  if (flags.users.empty()) grant({Who::Kind::kUnix, 0, ""}, ADMIN);
  for (const uint32_t uid : flags.users) grant({Who::Kind::kUser, uid, ""}, ADMIN);
  if (!flags.certificates) grant({Who::Kind::kTcp, 0, ""}, ADMIN);
  for (const auto& name : flags.admins) grant({Who::Kind::kCertificate, 0, name}, ADMIN);
  for (const auto& name : flags.readers) grant({Who::Kind::kCertificate, 0, name}, READER);
  return policy;
}

bool Policy::Matches(const Who& who, const Peer& peer) {
  const bool local = peer.kind == Peer::Kind::kUnix;
  switch (who.kind) {
    case Who::Kind::kUnix:
      return local;
    case Who::Kind::kTcp:
      return peer.kind == Peer::Kind::kTcp;
    case Who::Kind::kUser:
      return local && peer.uid == who.id;
    case Who::Kind::kGroup:
      return local && std::find(peer.gids.begin(), peer.gids.end(), who.id) != peer.gids.end();
    case Who::Kind::kCertificate:
      return std::find(peer.names.begin(), peer.names.end(), who.name) != peer.names.end();
  }
  return false;
}

Rights Policy::RightsOf(const Peer& peer) const {
  Rights rights;
  for (const auto& grant : grants_) {
    const bool named = std::any_of(grant.who.begin(), grant.who.end(),
                                   [&](const Who& who) { return Matches(who, peer); });
    if (!named) continue;
    if (grant.prefixes.empty()) rights.Add(grant.role, "");
    for (const auto& prefix : grant.prefixes) rights.Add(grant.role, prefix);
  }
  return rights;
}

std::string Policy::NameOf(const Peer& peer) const {
  for (const auto& name : peer.names) {
    for (const auto& grant : grants_) {
      for (const auto& who : grant.who) {
        if (who.kind == Who::Kind::kCertificate && who.name == name) return name;
      }
    }
  }
  return peer.names.empty() ? "" : peer.names.front();
}

}  // namespace cowshed::service

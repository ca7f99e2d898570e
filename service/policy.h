// SPDX-License-Identifier: Apache-2.0
//
// Who has which role where: the policy file, read and made ready to ask.
//
// Model       A policy is a list of grants (policy.proto): callers, a role, prefixes. A caller's
//             Rights are the sum of the grants that name him; who is not named has none. Without a
//             file the policy is made of the flags: whoever may open the unix socket, and without
//             client certificates whoever reaches the port, is an admin.
// Invariants  Rights only ever add up: a grant never takes away what another one gives. A role over
//             a prefix is one over its whole subtree.
// Threads     Immutable once made: thread-safe.
// Cost        RightsOf looks at every grant; On at every prefix of the caller's.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "service/policy.pb.h"

namespace cowshed::service {

// Whom a connection proves to be at its other end.
struct Peer {
  enum class Kind { kUnix, kTcp, kCertificate };
  Kind kind = Kind::kTcp;
  uint32_t uid = 0;                // kUnix: as the kernel reports it
  std::vector<uint32_t> gids;      // kUnix: all of his groups
  std::vector<std::string> names;  // kCertificate: its SANs, or the CN

  bool operator==(const Peer&) const = default;
};

// `name` is `prefix` or lies below it; both may be a dataset's, a snapshot's or a subtree's.
bool IsCovered(std::string_view prefix, std::string_view name);

// "READER" as people write it: "reader".
std::string RoleText(Role role);

class Rights {
 public:
  void Add(Role role, const std::string& prefix);  // empty: everywhere
  // The role over what `name` names, or over the subtree if it is a prefix.
  Role On(std::string_view name) const;
  // The role over everything, and the highest over anything.
  Role everywhere() const { return everywhere_; }
  Role anywhere() const { return anywhere_; }
  // Whether there may be names that he must not see.
  bool limited() const { return everywhere_ < READER; }
  // Where he may read, in byte order and without one that another covers. REQUIRES: limited.
  std::vector<std::string> ReadablePrefixes() const;

 private:
  Role everywhere_ = NONE;
  Role anywhere_ = NONE;
  std::vector<std::pair<std::string, Role>> below_;
};

class Policy {
 public:
  // INVALID_ARGUMENT saying what is wrong in `json`.
  static absl::StatusOr<Policy> Parse(const std::string& json);
  // As above, from a file; the message begins with its path.
  static absl::StatusOr<Policy> Read(const std::string& path);
  // Of the flags, for want of a file. Empty `users`: everybody on the unix socket.
  struct Flags {
    bool certificates = false;  // TCP callers must show one; else all of them are admins
    std::set<std::string> admins;
    std::set<std::string> readers;
    std::set<uint32_t> users;
  };
  static Policy Of(const Flags& flags);

  Rights RightsOf(const Peer& peer) const;
  // Which of his names a caller with a certificate goes by: the first that a grant names.
  std::string NameOf(const Peer& peer) const;

 private:
  struct Who {
    enum class Kind { kUnix, kTcp, kUser, kGroup, kCertificate };
    Kind kind;
    uint32_t id;       // kUser, kGroup
    std::string name;  // kCertificate
  };
  struct Compiled {
    std::vector<Who> who;
    Role role;
    std::vector<std::string> prefixes;
  };
  static absl::StatusOr<Who> ParseWho(const std::string& text);
  static absl::StatusOr<Compiled> Compile(const Grant& grant);
  static bool Matches(const Who& who, const Peer& peer);

  std::vector<Compiled> grants_;
};

}  // namespace cowshed::service

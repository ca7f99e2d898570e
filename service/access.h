// SPDX-License-Identifier: Apache-2.0
//
// Who calls, and what he may do.
//
// Model       A caller on a unix socket is its user id, as the kernel reports it: whoever may open
//             the socket may do everything. A caller on TCP is `tcp` and may do everything, unless
//             the server demands client certificates: then he is the name his certificate proves
//             (a SAN; the CN only where there is none), and may do what the role of that name
//             allows: an admin everything, a reader what changes nothing.
// Threads     Thread-safe.
// Cost        A lock and a lookup.
#pragma once

#include <map>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "engine/base/mutex.h"
#include "grpcpp/server_context.h"

namespace cowshed::service {

// What a method does to the pool.
enum class Effect { kReads, kChanges };

class Access {
 public:
  struct Roles {
    bool certificates = false;  // TCP callers must show a certificate
    std::set<std::string> admins;
    std::set<std::string> readers;
  };

  explicit Access(Roles roles) : roles_(std::move(roles)) {}

  // The caller's name, if he may call `method`. UNAUTHENTICATED or PERMISSION_DENIED otherwise.
  absl::StatusOr<std::string> Admit(const grpc::ServerContextBase& rpc, const std::string& method,
                                    Effect effect) ABSL_LOCKS_EXCLUDED(mutex_);

  // The connection with this file descriptor in gRPC's hands belongs to user `uid`. A connection is
  // known by gRPC as peer "fd:N"; the entry is overwritten when N is used again.
  void SetUser(int fd, uint32_t uid) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::StatusOr<std::string> AdmitCertificate(const grpc::ServerContextBase& rpc,
                                               const std::string& method, Effect effect) const;

  const Roles roles_;
  engine::Mutex mutex_{engine::LockRank::kAccess};
  std::map<std::string, uint32_t> users_ ABSL_GUARDED_BY(mutex_);  // peer -> uid
};

}  // namespace cowshed::service

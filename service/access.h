// SPDX-License-Identifier: Apache-2.0
//
// Who calls, and with which rights: joins a call's connection to the policy in force.
//
// Model       A caller on a unix socket is his user and groups, as the kernel reports them; one on
//             TCP with a client certificate is the names it proves (its SANs; the CN only where
//             there is none); any other is `tcp`. What he may do the policy says (policy.h), per
//             method (method_rules.h). A connection to a server that demands client certificates
//             and shows none is nobody.
// Invariants  A descriptor's number belongs to one peer for as long as the process lives: a call
//             that outlives its connection is never taken for one of whoever came next.
// Threads     Thread-safe. Replace takes effect with the next call, whole.
// Cost        A lock and a look at every grant.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/mutex.h"
#include "google/protobuf/message.h"
#include "grpcpp/server_context.h"
#include "service/file_descriptor.h"
#include "service/method_rules.h"
#include "service/policy.h"

namespace cowshed::service {

// Who makes a call. `name` is the same in all his calls: "uid:1000", "cert:ci.example", "tcp".
struct Caller {
  std::string name;
  std::string peer;  // where from: "unix", or gRPC's "ipv4:..."
  std::shared_ptr<const Rights> rights = std::make_shared<Rights>();
};

// A caller, and whether he may; of a refused one what is known of him.
struct Admission {
  Caller caller;
  absl::Status status;
};

class Access {
 public:
  // `certificates`: TCP callers must show one.
  Access(bool certificates, Policy policy)
      : certificates_(certificates), policy_(std::make_shared<Policy>(std::move(policy))) {}

  // Puts `policy` in force from the next call on.
  void Replace(Policy policy) ABSL_LOCKS_EXCLUDED(mutex_);

  // UNAUTHENTICATED or PERMISSION_DENIED if not. A null `request`: of a stream, still to come.
  Admission Admit(const grpc::ServerContextBase& rpc, const MethodRule& rule,
                  const google::protobuf::Message* request) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Who `peer` is, from `where`, and which rights he has now; what for is not judged.
  Admission Recognise(const absl::StatusOr<Peer>& peer, std::string where) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The peer of a TCP connection whose verified certificate has `names`; none without one.
  absl::StatusOr<Peer> TcpPeer(std::vector<std::string> names) const;

  // The connection `fd` is `peer`'s. Returns the descriptor to hand on: `fd`, or a duplicate where
  // that number has been another peer's. An invalid one when descriptors run out.
  FileDescriptor Claim(FileDescriptor fd, const Peer& peer) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::StatusOr<Peer> PeerOf(const grpc::ServerContextBase& rpc) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const bool certificates_;
  mutable engine::Mutex mutex_{engine::LockRank::kAccess};
  std::shared_ptr<const Policy> policy_ ABSL_GUARDED_BY(mutex_);
  // gRPC knows a unix connection as "fd:N" only.
  std::map<std::string, Peer> users_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cowshed::service

// SPDX-License-Identifier: Apache-2.0
#include "service/access.h"

#include <fcntl.h>

#include <utility>

#include "engine/base/strings.h"
#include "service/status.h"

namespace cowshed::service {

void Access::Replace(Policy policy) {
  auto next = std::make_shared<Policy>(std::move(policy));
  engine::MutexLock lock(mutex_);
  policy_ = std::move(next);
}

FileDescriptor Access::Claim(FileDescriptor fd, const Peer& peer) {
  engine::MutexLock lock(mutex_);
  while (fd.valid()) {
    const auto [known, added] = users_.try_emplace(engine::StrCat("fd:", fd.get()), peer);
    if (added || known->second == peer) break;
    fd = FileDescriptor(fcntl(fd.get(), F_DUPFD_CLOEXEC, fd.get() + 1));
  }
  return fd;
}

absl::StatusOr<Peer> Access::PeerOf(const grpc::ServerContextBase& rpc) const {
  const auto user = users_.find(rpc.peer());
  if (user != users_.end()) return user->second;
  std::vector<std::string> names;
  const auto auth = rpc.auth_context();
  if (certificates_ && auth != nullptr && auth->IsPeerAuthenticated()) {
    for (const auto& name : auth->GetPeerIdentity()) names.emplace_back(name.data(), name.size());
  }
  return TcpPeer(std::move(names));
}

absl::StatusOr<Peer> Access::TcpPeer(std::vector<std::string> names) const {
  Peer peer;
  if (!certificates_) return peer;
  peer.kind = Peer::Kind::kCertificate;
  peer.names = std::move(names);
  if (!peer.names.empty()) return peer;
  return Error(absl::StatusCode::kUnauthenticated, v1::UNAUTHENTICATED,
               "this server demands a client certificate");
}

Admission Access::Recognise(const absl::StatusOr<Peer>& peer, std::string where) const {
  Admission admission;
  std::shared_ptr<const Policy> policy;
  {
    engine::MutexLock lock(mutex_);
    policy = policy_;
  }
  Caller& caller = admission.caller;
  caller.peer = std::move(where);
  admission.status = peer.status();
  if (!peer.ok()) {
    caller.name = "unknown";
    return admission;
  }
  switch (peer->kind) {
    case Peer::Kind::kUnix:
      caller.name = engine::StrCat("uid:", peer->uid);
      caller.peer = "unix";
      break;
    case Peer::Kind::kTcp:
      caller.name = "tcp";
      break;
    case Peer::Kind::kCertificate:
      caller.name = engine::StrCat("cert:", policy->NameOf(*peer));
      break;
  }
  caller.rights = std::make_shared<Rights>(policy->RightsOf(*peer));
  return admission;
}

Admission Access::Admit(const grpc::ServerContextBase& rpc, const MethodRule& rule,
                        const google::protobuf::Message* request) const {
  absl::StatusOr<Peer> peer;
  {
    engine::MutexLock lock(mutex_);
    peer = PeerOf(rpc);
  }
  Admission admission = Recognise(peer, rpc.peer());
  if (admission.status.ok()) admission.status = MayCall(*admission.caller.rights, rule, request);
  return admission;
}

}  // namespace cowshed::service

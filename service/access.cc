// SPDX-License-Identifier: Apache-2.0
#include "service/access.h"

#include "engine/base/strings.h"
#include "service/status.h"

namespace cowshed::service {

void Access::SetUser(int fd, uint32_t uid) {
  engine::MutexLock lock(mutex_);
  users_[engine::StrCat("fd:", fd)] = uid;
}

absl::StatusOr<std::string> Access::Admit(const grpc::ServerContextBase& rpc,
                                          const std::string& method, Effect effect) {
  {
    engine::MutexLock lock(mutex_);
    const auto user = users_.find(rpc.peer());
    if (user != users_.end()) return engine::StrCat("uid:", user->second);
  }
  if (!roles_.certificates) return std::string("tcp");
  return AdmitCertificate(rpc, method, effect);
}

absl::StatusOr<std::string> Access::AdmitCertificate(const grpc::ServerContextBase& rpc,
                                                     const std::string& method,
                                                     Effect effect) const {
  const auto auth = rpc.auth_context();
  if (auth == nullptr || !auth->IsPeerAuthenticated() || auth->GetPeerIdentity().empty()) {
    return Error(absl::StatusCode::kUnauthenticated, v1::UNAUTHENTICATED,
                 "this server demands a client certificate");
  }
  std::string role = "none";
  for (const auto& identity : auth->GetPeerIdentity()) {
    const std::string name(identity.data(), identity.size());
    if (roles_.admins.contains(name)) return name;
    if (!roles_.readers.contains(name)) continue;
    if (effect == Effect::kReads) return name;
    role = "reader";
  }
  return Error(absl::StatusCode::kPermissionDenied, v1::PERMISSION_DENIED,
               engine::StrCat("role ", role, " may not call ", method),
               {{"method", method}, {"role", role}});
}

}  // namespace cowshed::service

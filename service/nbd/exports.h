// SPDX-License-Identifier: Apache-2.0
//
// Exports: datasets and snapshots as one NBD client may see and attach them.
//
// Names       `dataset` or `dataset@snap`, then perhaps `?` and options joined by `&`: `read-only`,
//             `shared` (writes without the lease, beside others that do the same).
// Rights      Those of the RPCs Read and Write, judged anew at each option by the policy in force.
//             What is not there and what may not be seen are told apart by nobody.
// Audit       Each attachment, and each that was refused, leaves a line in the audit log.
// Threads     Externally synchronised: a connection's own.
// Ownership   Borrows the service; an attachment is the caller's.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/attachments.h"
#include "service/context.h"
#include "service/nbd/departures.h"

namespace cowshed::service::nbd {

struct ExportName {
  std::string volume;
  bool read_only = false;
  bool shared = false;
};
// NOT_FOUND where there can be no such export.
absl::StatusOr<ExportName> ParseExportName(std::string_view text);

// Who is at the other end of a connection.
struct Client {
  absl::StatusOr<Peer> peer = Peer();  // UNAUTHENTICATED: the server demands a certificate
  std::string from;                    // "unix", or HOST:PORT
  std::string text;                    // for people: who, and from where
  std::string holder;                  // of leases
  bool one_process = false;            // all connections of this holder are of one process
};

// What is told of an export before and when it is attached.
struct ExportInfo {
  std::string name;  // as it is called; @latest is resolved
  std::string uid;
  uint64_t size_bytes = 0;
  uint32_t block_bytes = 0;
  uint16_t flags = 0;
};

// An export in use.
struct Export {
  ExportInfo info;
  std::unique_ptr<engine::Attachment> attachment;
};

class Exports {
 public:
  // Names in one answer to LIST.
  static constexpr size_t kListedMax = 1000;
  // For a holder of the lease that is just leaving.
  static constexpr std::chrono::milliseconds kDepartureWait{1000};

  Exports(ServiceContext& context, Departures& departures, const Client& client)
      : context_(context), departures_(departures), client_(client) {}

  // NOT_FOUND, PERMISSION_DENIED, UNAUTHENTICATED; their messages are for the client.
  absl::StatusOr<ExportInfo> Look(const std::string& name);
  // As above; FAILED_PRECONDITION ATTACHED, after kDepartureWait. `cut`: as in AttachArgs.
  absl::StatusOr<Export> Attach(const std::string& name,
                                std::function<void(const absl::Status&)> cut);
  // Some of what the client may read: datasets, then snapshots, by name; at most kListedMax.
  absl::StatusOr<std::vector<std::string>> List();
  // Whether he may read `name`.
  bool MayRead(const std::string& name);

 private:
  absl::StatusOr<ExportName> Admit(const std::string& text, Caller* caller);
  void Audit(const Caller& caller, const ExportName& name, const absl::Status& status);
  ExportInfo InfoOf(const engine::Volume& volume, const ExportName& name) const;

  ServiceContext& context_;
  Departures& departures_;
  const Client& client_;
};

}  // namespace cowshed::service::nbd

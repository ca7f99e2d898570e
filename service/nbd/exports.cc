// SPDX-License-Identifier: Apache-2.0
#include "service/nbd/exports.h"

#include <algorithm>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "service/nbd/wire.h"
#include "service/visible.h"

namespace cowshed::service::nbd {
namespace {

// What an attachment needs is what the RPCs Read and Write do; the name is for the audit log.
const MethodRule& RuleFor(const ExportName& name) {
  static const auto& read = *new MethodRule{"NbdAttach", Effect::kChanges, READER};
  static const auto& write = *new MethodRule{"NbdAttach", Effect::kChanges, OPERATOR};
  const bool snapshot = name.volume.find('@') != std::string::npos;
  return name.read_only || snapshot ? read : write;
}

absl::Status NoSuchExport(std::string_view text) {
  return absl::NotFoundError(
      engine::StrCat("there is no export ", text, ", or it is not yours to see"));
}

bool IsAttached(const absl::Status& status) {
  const auto details = engine::GetErrorDetails(status);
  return details && details->reason == "ATTACHED";
}

}  // namespace

absl::StatusOr<ExportName> ParseExportName(std::string_view text) {
  const size_t mark = text.find('?');
  ExportName name;
  name.volume = text.substr(0, mark);
  std::string_view options = mark == std::string_view::npos ? "" : text.substr(mark + 1);
  while (!options.empty()) {
    const size_t end = std::min(options.find('&'), options.size());
    const std::string_view option = options.substr(0, end);
    options.remove_prefix(std::min(end + 1, options.size()));
    if (option == "read-only") {
      name.read_only = true;
    } else if (option == "shared") {
      name.shared = true;
    } else {
      return absl::NotFoundError(engine::StrCat("exports have no option ", option,
                                                ": NAME, then perhaps ?read-only or ?shared"));
    }
  }
  if (name.volume.empty())
    return absl::NotFoundError("no export is named, and there is no default");
  return name;
}

// Depends on names and rights alone, never on what exists.
absl::StatusOr<ExportName> Exports::Admit(const std::string& text, Caller* caller) {
  Admission admission = context_.access.Recognise(client_.peer, client_.from);
  *caller = std::move(admission.caller);
  ASSIGN_OR_RETURN(const ExportName name, ParseExportName(text));
  absl::Status status = admission.status;
  const MethodRule& rule = RuleFor(name);
  const Role role = caller->rights->On(name.volume);
  if (status.ok() && role < rule.role) status = Denied(*caller->rights, rule, name.volume);
  if (status.ok()) return name;
  Audit(*caller, name, status);
  // Without a right to read it he does not even learn what he lacks.
  if (absl::IsPermissionDenied(status) && role < READER) return NoSuchExport(text);
  return status;
}

void Exports::Audit(const Caller& caller, const ExportName& name, const absl::Status& status) {
  const bool denied = absl::IsPermissionDenied(status) || absl::IsUnauthenticated(status);
  if (denied) context_.stats.calls_denied.fetch_add(1, std::memory_order_relaxed);
  if (context_.audit_log == nullptr) return;
  AuditRecord record;
  record.who = caller.name;
  record.peer = caller.peer;
  record.method = RuleFor(name).method;
  record.names = {name.volume};
  record.code = absl::StatusCodeToString(status.code());
  record.reason = ReasonOf(status);
  context_.audit_log->Write(record);
}

ExportInfo Exports::InfoOf(const engine::Volume& volume, const ExportName& name) const {
  namespace flags = export_flags;
  const bool read_only = name.read_only || volume.read_only();
  ExportInfo info;
  info.name = volume.name();
  info.uid = volume.uid();
  info.size_bytes = volume.size_bytes();
  info.block_bytes = volume.block_bytes();
  info.flags =
      flags::kHasFlags | flags::kSendFlush | flags::kSendFua | flags::kSendDf | flags::kSendCache;
  info.flags |= read_only ? flags::kReadOnly
                          : flags::kSendTrim | flags::kSendWriteZeroes | flags::kSendFastZero;
  // A flush covers what all connections have written, so this is only about the lease: would a
  // second connection of this client get it?
  if (read_only || name.shared || client_.one_process) info.flags |= flags::kCanMultiConn;
  return info;
}

absl::StatusOr<ExportInfo> Exports::Look(const std::string& text) {
  Caller caller;
  ASSIGN_OR_RETURN(const ExportName name, Admit(text, &caller));
  const auto volume = context_.pool.OpenVolume(name.volume, "");
  if (volume.ok()) return InfoOf(**volume, name);
  if (absl::IsNotFound(volume.status()) || absl::IsInvalidArgument(volume.status())) {
    return NoSuchExport(text);
  }
  return volume.status();
}

absl::StatusOr<Export> Exports::Attach(const std::string& text,
                                       std::function<void(const absl::Status&)> cut) {
  Caller caller;
  ASSIGN_OR_RETURN(const ExportName name, Admit(text, &caller));
  engine::AttachArgs args;
  args.name = name.volume;
  args.read_only = name.read_only;
  args.shared = name.shared;
  args.holder = client_.holder;
  args.client = client_.text;
  args.protocol = "nbd";
  args.cut = std::move(cut);
  const auto deadline = Clock::now() + kDepartureWait;
  absl::StatusOr<std::unique_ptr<engine::Attachment>> attachment;
  do {
    const uint64_t departed = departures_.count();
    attachment = context_.pool.attachments().Attach(args);
    if (!IsAttached(attachment.status()) || !departures_.WaitForMore(departed, deadline)) break;
  } while (true);
  Audit(caller, name, attachment.status());
  if (absl::IsNotFound(attachment.status()) || absl::IsInvalidArgument(attachment.status())) {
    return NoSuchExport(text);
  }
  RETURN_IF_ERROR(attachment.status());
  Export result;
  result.info = InfoOf((*attachment)->volume(), name);
  result.attachment = *std::move(attachment);
  return result;
}

absl::StatusOr<std::vector<std::string>> Exports::List() {
  const Admission admission = context_.access.Recognise(client_.peer, client_.from);
  RETURN_IF_ERROR(admission.status);
  std::vector<std::string> names;
  const auto add = [&](auto list) -> absl::Status {
    engine::ListArgs args;
    args.page_size = kListedMax;
    do {
      ASSIGN_OR_RETURN(const auto page, list(args));
      for (const auto& item : page.items) {
        if (names.size() == kListedMax) return absl::OkStatus();
        names.push_back(NameOf(item));
      }
      args.position = page.next;
    } while (!args.position.empty() && names.size() < kListedMax);
    return absl::OkStatus();
  };
  const Rights& rights = *admission.caller.rights;
  if (rights.anywhere() < READER) return names;
  RETURN_IF_ERROR(add([&](const engine::ListArgs& args) {
    return ListVisible<engine::DatasetInfo>(
        rights, args, [&](const auto& these) { return context_.pool.ListDatasets(these); });
  }));
  RETURN_IF_ERROR(add([&](const engine::ListArgs& args) {
    return ListVisible<engine::SnapshotInfo>(
        rights, args, [&](const auto& these) { return context_.pool.ListSnapshots(these); });
  }));
  return names;
}

bool Exports::MayRead(const std::string& name) {
  const Admission admission = context_.access.Recognise(client_.peer, client_.from);
  return admission.status.ok() && admission.caller.rights->On(name) >= READER;
}

}  // namespace cowshed::service::nbd

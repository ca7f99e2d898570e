// SPDX-License-Identifier: Apache-2.0
#include "service/attachment_service.h"

#include <cctype>
#include <filesystem>
#include <limits>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"
#include "engine/attachments.h"
#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "service/unary.h"

namespace cowshed::service {
namespace {

using Reactor = grpc::ServerUnaryReactor;

constexpr std::string_view kUnix = "unix:";
constexpr uint32_t kAttachmentsInExport = 100;

// As a part of a URI: whatever may mean something in one is written %XX.
std::string Escaped(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0 || std::string_view("-._~/:").find(c) != std::string_view::npos) {
      escaped += c;
    } else {
      escaped += absl::StrFormat("%%%02X", byte);
    }
  }
  return escaped;
}

absl::Status NoAttachment(const std::string& id) {
  return Error(absl::StatusCode::kNotFound, v1::ATTACHMENT_NOT_FOUND,
               engine::StrCat("there is no attachment ", id), {{"attachment", id}});
}

// Why an attachment ends that somebody has detached.
absl::Status DetachedBy(const Caller& caller) {
  return absl::CancelledError(engine::StrCat("detached by ", caller.name));
}

// The attachment `id`, if the caller may end it: PERMISSION_DENIED, also where there is none,
// unless he may act everywhere.
absl::Status SeeAttachment(const Call& call, const std::string& id) {
  engine::ListArgs all;
  all.page_size = std::numeric_limits<uint32_t>::max();
  ASSIGN_OR_RETURN(const auto page, call.context.pool.ListAttachments(all));
  for (const auto& info : page.items) {
    if (info.id != id) continue;
    const bool may = call.rights().On(info.name) >= OPERATOR;
    return may ? absl::OkStatus() : Denied(call.rights(), call.rule, id);
  }
  return call.rights().everywhere() >= OPERATOR ? NoAttachment(id)
                                                : Denied(call.rights(), call.rule, id);
}

// The uid of the dataset or snapshot of that name.
absl::StatusOr<std::string> UidOf(engine::Pool& pool, const std::string& name) {
  if (name.find('@') == std::string::npos) {
    ASSIGN_OR_RETURN(const auto info, pool.GetDataset(name));
    return info.uid;
  }
  ASSIGN_OR_RETURN(const auto info, pool.GetSnapshot(name));
  return info.uid;
}

void DetachNow(const Call& call, const v1::DetachRequest& request, v1::DetachResponse* reply) {
  if (request.name().empty() == request.attachment().empty()) {
    return call.Finish(InvalidField("name", "or attachment must be given, and not both"));
  }
  engine::Attachments& attachments = call.context.pool.attachments();
  const auto end = [&](auto chosen) {
    attachments.End(
        [&](const engine::AttachmentInfo& info) {
          return chosen(info) ? DetachedBy(call.caller) : absl::OkStatus();
        },
        [ticket = Ticket(call.context.callbacks), call, reply](size_t count) {
          reply->set_count(count);
          call.Finish(absl::OkStatus());
        });
  };
  if (!request.attachment().empty()) {
    const absl::Status seen = SeeAttachment(call, request.attachment());
    if (!seen.ok()) return call.Finish(seen);
    return end([&](const auto& info) { return info.id == request.attachment(); });
  }
  const auto uid = UidOf(call.context.pool, request.name());
  if (!uid.ok()) return call.Finish(uid.status());
  end([&](const auto& info) { return info.uid == *uid; });
}

}  // namespace

v1::ExportAddress MakeExportAddress(const std::string& address, bool certificates,
                                    const std::string& export_name) {
  v1::ExportAddress made;
  const std::string name = Escaped(export_name);
  if (address.compare(0, kUnix.size(), kUnix) == 0) {
    made.set_socket(std::filesystem::absolute(address.substr(kUnix.size())).string());
    made.set_uri(engine::StrCat("nbd+unix:///", name, "?socket=", Escaped(made.socket())));
  } else {
    made.set_host_port(address);
    made.set_tls(certificates);
    made.set_uri(engine::StrCat(certificates ? "nbds://" : "nbd://", address, "/", name));
  }
  return made;
}

Reactor* AttachmentServiceImpl::ListAttachments(Rpc* rpc, const v1::ListAttachmentsRequest* request,
                                                v1::ListAttachmentsResponse* reply) {
  return ListPage(context_, rpc, request, reply, &engine::Pool::ListAttachments,
                  &v1::ListAttachmentsResponse::add_attachments);
}

Reactor* AttachmentServiceImpl::Detach(Rpc* rpc, const v1::DetachRequest* request,
                                       v1::DetachResponse* reply) {
  return Begin(context_, rpc, context_.control, request, reply,
               [request, reply](const Call& call) { DetachNow(call, *request, reply); });
}

absl::Status AttachmentServiceImpl::FillExport(const v1::GetExportRequest& request,
                                               v1::GetExportResponse* reply) const {
  if (request.read_only() && request.shared()) {
    return InvalidField("shared", "is about writing: not together with read_only");
  }
  if (context_.nbd_addresses.empty()) {
    return Error(absl::StatusCode::kFailedPrecondition, v1::NBD_DISABLED,
                 "this server serves no NBD: start it with --nbd-listen");
  }
  if (request.name().find('@') == std::string::npos) {
    ASSIGN_OR_RETURN(const auto info, context_.pool.GetDataset(request.name()));
    reply->set_name(info.name);
    reply->set_uid(info.uid);
    reply->set_size_bytes(info.size_bytes);
    reply->set_block_size_bytes(info.block_bytes);
    reply->set_read_only(request.read_only());
  } else {
    ASSIGN_OR_RETURN(const auto info, context_.pool.GetSnapshot(request.name()));
    if (request.shared()) return InvalidField("shared", "is about writing: a snapshot is read");
    reply->set_name(info.name);
    reply->set_uid(info.uid);
    reply->set_size_bytes(info.size_bytes);
    reply->set_block_size_bytes(info.block_bytes);
    reply->set_read_only(true);
  }
  const char* const options = request.shared()      ? "?shared"
                              : request.read_only() ? "?read-only"
                                                    : "";
  reply->set_export_name(engine::StrCat(reply->name(), options));
  for (const std::string& address : context_.nbd_addresses) {
    *reply->add_addresses() = MakeExportAddress(address, certificates_, reply->export_name());
  }
  for (auto& info : context_.pool.attachments().List(reply->uid())) {
    if (reply->attachments_size() == kAttachmentsInExport) break;
    info.name = reply->name();
    Fill(info, reply->add_attachments());
  }
  return absl::OkStatus();
}

Reactor* AttachmentServiceImpl::GetExport(Rpc* rpc, const v1::GetExportRequest* request,
                                          v1::GetExportResponse* reply) {
  return Query(
      context_, rpc, context_.control, request, reply,
      [this](const auto& from, v1::GetExportResponse* to) { return FillExport(from, to); });
}

}  // namespace cowshed::service

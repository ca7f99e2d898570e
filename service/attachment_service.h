// SPDX-License-Identifier: Apache-2.0
//
// cowshed.v1.AttachmentService: who uses what as a device, and where to attach. What is attached is
// the pool's to know (engine/attachments.h), where NBD is served the context's.
//
// Threads     Thread-safe; methods run on gRPC's threads and never block.
// Ownership   Borrows the context.
#pragma once

#include <string>

#include "cowshed/v1/attachment.grpc.pb.h"
#include "service/context.h"

namespace cowshed::service {

// Where an NBD client finds the export of that name. `address`: `unix:PATH` or `HOST:PORT`, where
// it must start TLS if the server has certificates.
v1::ExportAddress MakeExportAddress(const std::string& address, bool certificates,
                                    const std::string& export_name);

class AttachmentServiceImpl final : public v1::AttachmentService::CallbackService {
 public:
  AttachmentServiceImpl(ServiceContext& context, bool certificates)
      : context_(context), certificates_(certificates) {}

  using Rpc = grpc::CallbackServerContext;
  using Reactor = grpc::ServerUnaryReactor;

  Reactor* ListAttachments(Rpc* rpc, const v1::ListAttachmentsRequest* request,
                           v1::ListAttachmentsResponse* reply) override;
  Reactor* Detach(Rpc* rpc, const v1::DetachRequest* request, v1::DetachResponse* reply) override;
  Reactor* GetExport(Rpc* rpc, const v1::GetExportRequest* request,
                     v1::GetExportResponse* reply) override;

 private:
  absl::Status FillExport(const v1::GetExportRequest& request, v1::GetExportResponse* reply) const;

  ServiceContext& context_;
  const bool certificates_;
};

}  // namespace cowshed::service

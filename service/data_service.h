// SPDX-License-Identifier: Apache-2.0
//
// cowshed.v1.DataService: the bytes of datasets and snapshots. Unary calls run on the data workers;
// streams are ChunkStream (Read, Diff) and WriteStream.
//
// Threads     Thread-safe; methods run on gRPC's threads and never block.
// Ownership   Borrows the context.
#pragma once

#include "cowshed/v1/data.grpc.pb.h"
#include "service/context.h"

namespace cowshed::service {

class DataServiceImpl final : public v1::DataService::CallbackService {
 public:
  explicit DataServiceImpl(ServiceContext& context) : context_(context) {}

  using Rpc = grpc::CallbackServerContext;

  grpc::ServerUnaryReactor* ReadRange(Rpc* rpc, const v1::ReadRangeRequest* request,
                                      v1::ReadRangeResponse* reply) override;
  grpc::ServerUnaryReactor* WriteRange(Rpc* rpc, const v1::WriteRangeRequest* request,
                                       v1::WriteRangeResponse* reply) override;
  grpc::ServerUnaryReactor* Flush(Rpc* rpc, const v1::FlushRequest* request,
                                  v1::FlushResponse* reply) override;
  grpc::ServerWriteReactor<v1::ReadChunk>* Read(Rpc* rpc, const v1::ReadRequest* request) override;
  grpc::ServerBidiReactor<v1::WriteRequest, v1::WriteAck>* Write(Rpc* rpc) override;
  grpc::ServerWriteReactor<v1::DiffChunk>* Diff(Rpc* rpc, const v1::DiffRequest* request) override;

 private:
  ServiceContext& context_;
};

}  // namespace cowshed::service

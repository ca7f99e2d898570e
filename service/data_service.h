// SPDX-License-Identifier: Apache-2.0
//
// cowshed.v1.DataService: the bytes of datasets and snapshots. Unary calls run on the data workers;
// streams are ChunkStream (Read, Diff) and WriteStream. Read and Write take and give the bytes of
// their messages (frames.h), the others the messages.
//
// Threads     Thread-safe; methods run on gRPC's threads and never block.
// Ownership   Borrows the context.
#pragma once

#include "cowshed/v1/data.grpc.pb.h"
#include "service/context.h"

namespace cowshed::service {

template <typename Base>
using ByteStreams =
    v1::DataService::WithRawCallbackMethod_Read<v1::DataService::WithRawCallbackMethod_Write<Base>>;
template <typename Base>
using MessageCalls =
    v1::DataService::WithCallbackMethod_ReadRange<v1::DataService::WithCallbackMethod_WriteRange<
        v1::DataService::WithCallbackMethod_Flush<v1::DataService::WithCallbackMethod_Diff<Base>>>>;

class DataServiceImpl final : public MessageCalls<ByteStreams<v1::DataService::Service>> {
 public:
  explicit DataServiceImpl(ServiceContext& context) : context_(context) {}

  using Rpc = grpc::CallbackServerContext;

  grpc::ServerUnaryReactor* ReadRange(Rpc* rpc, const v1::ReadRangeRequest* request,
                                      v1::ReadRangeResponse* reply) override;
  grpc::ServerUnaryReactor* WriteRange(Rpc* rpc, const v1::WriteRangeRequest* request,
                                       v1::WriteRangeResponse* reply) override;
  grpc::ServerUnaryReactor* Flush(Rpc* rpc, const v1::FlushRequest* request,
                                  v1::FlushResponse* reply) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Read(Rpc* rpc,
                                                   const grpc::ByteBuffer* request) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Write(Rpc* rpc) override;
  grpc::ServerWriteReactor<v1::DiffChunk>* Diff(Rpc* rpc, const v1::DiffRequest* request) override;

 private:
  ServiceContext& context_;
};

}  // namespace cowshed::service

// SPDX-License-Identifier: Apache-2.0
//
// A running server as the measuring programs use it: its stubs, and calls that end the program when
// they fail, for a measurement that went wrong is none.
//
// Threads     ServiceClient: thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "bench/samples.h"
#include "cowshed/v1/data.grpc.pb.h"
#include "cowshed/v1/dataset.grpc.pb.h"
#include "cowshed/v1/operation.grpc.pb.h"
#include "cowshed/v1/pool.grpc.pb.h"
#include "grpcpp/grpcpp.h"

namespace cowshed::bench {

// The stubs of one server, over one connection.
struct ServiceClient {
  explicit ServiceClient(const std::string& address);

  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::DatasetService::Stub> datasets;
  std::unique_ptr<v1::DataService::Stub> data;
  std::unique_ptr<v1::OperationService::Stub> operations;
  std::unique_ptr<v1::PoolService::Stub> pool;
};

// Calls `method` of a stub: Call(*client.datasets, &Stub::GetDataset, request).
template <typename Stub, typename Request, typename Reply>
Reply Call(Stub& stub, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
           const Request& request) {
  grpc::ClientContext context;
  Reply reply;
  const grpc::Status status = (stub.*method)(&context, request, &reply);
  if (!status.ok()) Die(Request::descriptor()->name(), status.error_message());
  return reply;
}

void CreateDataset(ServiceClient& client, const std::string& name, uint64_t size_bytes);
void CreateSnapshot(ServiceClient& client, const std::string& name);
void CloneDataset(ServiceClient& client, const std::string& source, const std::string& name);
void WriteRange(ServiceClient& client, const std::string& name, uint64_t offset_bytes,
                const std::string& bytes);
void Flush(ServiceClient& client, const std::string& name);
v1::Pool GetPool(ServiceClient& client);

// Runs work(0) .. work(count - 1), each once, by `callers` threads; returns the seconds it took.
double RunBy(uint32_t callers, uint64_t count, const std::function<void(uint64_t)>& work);

// Bytes that no codec and no check for zeros makes anything of.
std::string RandomBytes(size_t count, uint64_t seed);

}  // namespace cowshed::bench

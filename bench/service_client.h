// SPDX-License-Identifier: Apache-2.0
//
// What the programs that measure a running server share: its stubs, calls that end the program when
// they fail (a bench whose work failed has no figure), samples, and one JSON document on stdout.
//
// Threads     ServiceClient: thread-safe. Samples, Document: one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cowshed/v1/data.grpc.pb.h"
#include "cowshed/v1/dataset.grpc.pb.h"
#include "cowshed/v1/operation.grpc.pb.h"
#include "cowshed/v1/pool.grpc.pb.h"
#include "google/protobuf/struct.pb.h"
#include "grpcpp/grpcpp.h"

namespace cowshed::bench {

using Clock = std::chrono::steady_clock;

inline double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Says why and exits.
[[noreturn]] void Die(std::string_view what, std::string_view why);

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

// Measured values, in the unit of whoever fills it.
class Samples {
 public:
  void Add(double value) { values_.push_back(value); }
  void Append(const Samples& other) {
    values_.insert(values_.end(), other.values_.begin(), other.values_.end());
  }
  // The least value that `fraction` of all do not exceed; 0 if there is none.
  double Quantile(double fraction) const;
  double Median() const { return Quantile(0.5); }
  double Max() const { return Quantile(1); }
  size_t count() const { return values_.size(); }

 private:
  std::vector<double> values_;
};

// A row of the document: names and values, in any order.
class Row {
 public:
  Row& Set(const std::string& name, double value);
  Row& Set(const std::string& name, const std::string& value);
  const google::protobuf::Struct& value() const { return value_; }

 private:
  google::protobuf::Struct value_;
};

// {"rows": [...]}, printed as one line.
class Document {
 public:
  void Add(const Row& row);
  void Print() const;

 private:
  google::protobuf::Struct value_;
};

}  // namespace cowshed::bench

// SPDX-License-Identifier: Apache-2.0
//
// One service under a fuzzer: a server over a small pool in this process, and calls made of the
// input that go through the real handlers, over a unix socket.
//
// Model       An input is a script of up to kStepsMax calls. The first byte of a step picks the
//             method (mostly of the service under test, else of any: something has to be there to
//             act on) and whether the request is drawn (RequestMaker) or given as on the wire: a
//             16-bit length and the bytes. A Write takes up to 8 messages; a stream that answers is
//             read to its end, or cancelled on the way.
// Invariants  Checked after every call: it answered in time, and a failure has exactly one
//             ErrorInfo, whose reason is not INTERNAL. Checked after every kInputsPerCheck inputs:
//             the pool passes its own check. Whatever fails aborts, which is how libFuzzer learns.
// Threads     The fuzzer's.
// Cost        The pool is made anew every kInputsPerPool inputs: what a loss needs to be repeated
//             lies no further back.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/pool.h"
#include "google/protobuf/descriptor.h"
#include "grpcpp/generic/generic_stub.h"
#include "service/server.h"
#include "tests/fuzz/fuzz_devices.h"
#include "tests/fuzz/request_maker.h"

namespace cowshed::fuzz {

class ServiceFuzzer {
 public:
  explicit ServiceFuzzer(const std::string& service);
  ~ServiceFuzzer();

  void Run(const uint8_t* data, size_t size);

 private:
  using Method = google::protobuf::MethodDescriptor;
  using Requests = std::vector<std::unique_ptr<google::protobuf::Message>>;

  static constexpr int kStepsMax = 12;
  static constexpr int kInputsPerCheck = 64;
  static constexpr int kInputsPerPool = 512;

  void OpenPool();
  void ClosePool();
  // Something to act on: datasets with data, snapshots, a clone, a hold, a finished operation.
  void Furnish();
  void Prepare(const char* method, const std::string& request);
  void CheckPool();

  void Step(ByteSource& source);
  Requests MakeRequests(const Method& method, bool drawn, ByteSource& source);
  // Makes the call; reads at most `chunks_max` replies before it cancels.
  void Call(const Method& method, const Requests& requests, int chunks_max);
  void Judge(const Method& method, const Requests& requests, const grpc::Status& status);

  std::vector<const Method*> own_;
  std::vector<const Method*> all_;
  RequestMaker maker_;
  int inputs_ = 0;
  std::string directory_;  // in memory where there is room
  std::unique_ptr<engine::Pool> pool_;
  std::unique_ptr<metrics::ServiceStats> stats_;
  std::unique_ptr<service::Server> server_;
  std::unique_ptr<grpc::GenericStub> stub_;
  bool attaches_ = false;
  std::unique_ptr<FuzzDevices> devices_;
};

// The body of a fuzz target: makes the fuzzer at the first input and takes it down at exit.
int FuzzService(const char* service, const uint8_t* data, size_t size);

}  // namespace cowshed::fuzz

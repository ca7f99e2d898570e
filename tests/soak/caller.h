// SPDX-License-Identifier: Apache-2.0
//
// One client's way to a server that may die and come back at any moment: sends a call until it is
// answered, always the same request, with the same request_id.
//
// Model       A connection that breaks, or a server that says it stops, ends an attempt. Then, and
//             whenever a reply says SERVER_RESTARTED, the owner's `lost` runs before the next
//             attempt: it asks for the boot_id and looks at what is left.
//             An attempt has no deadline that a live server could miss: a call given up might still
//             happen, after the calls that follow it.
// Threads     One thread, except for the counters.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "cowshed/v1/data.grpc.pb.h"
#include "cowshed/v1/dataset.grpc.pb.h"
#include "cowshed/v1/pool.grpc.pb.h"
#include "grpcpp/grpcpp.h"

namespace cowshed::soak {

struct Counters {
  std::atomic<uint64_t> acknowledged{0};
  std::atomic<uint64_t> sent_again{0};  // after a connection broke
  std::atomic<uint64_t> replayed{0};    // after they had been answered
  std::atomic<uint64_t> restarts{0};    // seen, by any client
  std::atomic<uint64_t> losses{0};
};

class Caller {
 public:
  Caller(const std::string& target, uint64_t seed, Counters& counters);

  v1::DatasetService::Stub& datasets() { return *datasets_; }
  v1::DataService::Stub& data() { return *data_; }
  Counters& counters() { return counters_; }

  // Runs before a call that got no answer is sent again.
  void OnLost(std::function<void()> lost) { lost_ = std::move(lost); }

  // Sends until there is an answer, and returns it.
  grpc::Status Insist(const std::function<grpc::Status(grpc::ClientContext&)>& attempt);
  // The boot_id of the server, once one answers.
  std::string BootId();
  std::string NewRequestId();

 private:
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::DatasetService::Stub> datasets_;
  const std::unique_ptr<v1::DataService::Stub> data_;
  const std::unique_ptr<v1::PoolService::Stub> pool_;
  const uint64_t seed_;
  uint64_t request_ids_ = 0;
  std::function<void()> lost_ = [] {};
  Counters& counters_;
};

}  // namespace cowshed::soak

// SPDX-License-Identifier: Apache-2.0
//
// The service's own logic under many threads, without a server: what ThreadSanitizer can see of it,
// for the gRPC of Debian is not instrumented. Each part is driven by more threads at once than it
// meets in a server, and stopped while they are at work.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "cowshed/v1/dataset.pb.h"
#include "engine/base/strings.h"
#include "service/context.h"
#include "service/operation_waits.h"
#include "tests/support/temp_pool.h"
#include "tests/support/testing.h"

namespace cowshed::service {
namespace {

// As the server does: Abseil's graph of the locks that gRPC takes is not instrumented.
const bool ignores_deadlocks_in_grpc = [] {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  return true;
}();

constexpr int kThreads = 4;
static_assert(kThreads * 60 < Tokens::kListsKept);
constexpr int kRounds = 20;

// Runs `work(thread)` on some threads and `meanwhile` on this one.
void Together(const std::function<void(int)>& work, const std::function<void()>& meanwhile) {
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back([&, i] { work(i); });
  meanwhile();
  for (std::thread& thread : threads) thread.join();
}

TEST(ServiceThreadsTest, WhatAStoppingExecutorTakesItRunsOnce) {
  for (int round = 0; round < kRounds; ++round) {
    metrics::ServiceStats stats;
    std::atomic<int> taken = 0;
    std::atomic<int> ran = 0;
    Executor executor(3, 16, stats);
    Together(
        [&](int) {
          for (int i = 0; i < 200; ++i) {
            Executor::Task task = [&] { ++ran; };
            taken += i % 2 == 0 ? executor.TrySubmit(std::move(task))
                                : executor.SubmitUnlessStopped(task);
          }
        },
        [&] { executor.Stop(); });
    EXPECT_EQ(ran, taken);
    EXPECT_EQ(stats.executor_queue_length, 0u);
  }
}

// A stream that only remembers how it was ended.
class FakeStream final : public OpenStream {
 public:
  void End(const absl::Status& status) override { ended_ = status; }
  void CutIfStalled(std::chrono::steady_clock::time_point) override { ++looks_; }
  const absl::Status& ended() const { return ended_; }

 private:
  absl::Status ended_;  // guarded by the registry's lock
  int looks_ = 0;       // the same
};

TEST(ServiceThreadsTest, StreamsComeAndGoWhileTheRegistryEndsThem) {
  for (int round = 0; round < kRounds; ++round) {
    metrics::ServiceStats stats;
    StreamRegistry registry(kThreads - 1, stats);
    std::atomic<bool> ended{false};
    Together(
        [&](int) {
          for (int i = 0; i < 300; ++i) {
            FakeStream stream;
            const absl::Status added = registry.Add(&stream);
            if (added.ok()) registry.Remove(&stream);
            EXPECT_TRUE(added.ok() || ended || !absl::IsUnavailable(added)) << added;
          }
        },
        [&] {
          registry.CutStalled(std::chrono::steady_clock::now());
          ended = true;
          registry.EndAll(Stopping());
        });
    FakeStream late;
    EXPECT_TRUE(absl::IsUnavailable(registry.Add(&late)));
    EXPECT_EQ(stats.data_streams, 0u);
  }
}

TEST(ServiceThreadsTest, TokensOfManyCallersAreTheirOwn) {
  Tokens tokens("pool");
  Together(
      [&](int thread) {
        for (uint64_t i = 0; i < 60; ++i) {  // together fewer than are kept
          engine::BlockerQuery query;
          query.targets.resize(Tokens::kTargetsInToken + 1);
          query.targets[0].id = static_cast<uint64_t>(thread) * 1000 + i;
          const auto opened = tokens.OpenBlockers(tokens.SealBlockers(query));
          ASSERT_OK(opened.status());
          EXPECT_EQ(opened->targets[0].id, query.targets[0].id);
        }
      },
      [] {});
}

TEST(ServiceThreadsTest, CallersAreAdmittedWhileConnectionsCome) {
  Access access(/*certificates=*/false, Policy::Of({}));
  const MethodRule& rule = RuleOf(v1::GetDatasetRequest::descriptor());
  Together(
      [&](int) {
        for (int i = 0; i < 200; ++i) {
          const grpc::CallbackServerContext rpc;
          EXPECT_OK(access.Admit(rpc, rule, nullptr).status);
        }
      },
      [&] {
        for (uint32_t i = 0; i < 200; ++i) {
          access.Claim(FileDescriptor(::dup(STDIN_FILENO)), {.kind = Peer::Kind::kUnix, .uid = i});
        }
      });
}

// A context on a pool of its own.
struct Service {
  Service()
      : context(*pool, Limits{.control_workers = 3, .data_workers = 2}, /*certificates=*/false,
                Policy::Of({}), /*secret=*/"", /*audit_log=*/nullptr, stats) {}

  engine::TempPool pool;
  metrics::ServiceStats stats;
  ServiceContext context;
};

TEST(ServiceThreadsTest, EveryCallbackIsCalledOnceThoughTheWorkersStop) {
  for (int round = 0; round < kRounds / 4; ++round) {
    Service service;
    std::atomic<int> sent = 0;
    std::atomic<int> answered = 0;
    Together(
        [&](int thread) {
          for (int i = 0; i < 10; ++i) {
            ++sent;
            service.pool->CreateDataset(
                {.name = engine::StrCat("t", thread, "/", i), .size_bytes = 1 << 20}, std::nullopt,
                service.context.Counted([&](absl::StatusOr<engine::Outcome> outcome) {
                  EXPECT_OK(outcome.status());
                  ++answered;
                }));
          }
        },
        [&] { service.context.control.Stop(); });
    service.context.callbacks.WaitForNone();
    EXPECT_EQ(answered, sent);
    EXPECT_EQ(service.context.callbacks.count(), 0);
  }
}

// A caller who may do everything.
Caller Everywhere() {
  const auto rights = std::make_shared<Rights>();
  rights->Add(ADMIN, "");
  return {.name = "test", .peer = "unix", .rights = rights};
}

// One WaitOperations call as gRPC would make it, up to the answer.
struct WaitCall {
  v1::WaitOperationsRequest request;
  v1::WaitOperationsResponse reply;
  std::shared_ptr<OperationWait> wait;
};

TEST(ServiceThreadsTest, WaitsBeginEndAndAreCancelledWhileOperationsFinish) {
  for (int round = 0; round < kRounds / 4; ++round) {
    Service service;
    const auto waits = std::make_shared<OperationWaits>(service.context);
    std::vector<std::unique_ptr<WaitCall>> calls(kThreads * 6);
    const auto wait_for = [&](int thread, int i, const std::string& operation) {
      auto call = std::make_unique<WaitCall>();
      call->request.add_names(operation);
      call->request.set_mode(v1::WAIT_MODE_ALL);
      call->request.mutable_timeout()->set_seconds(30);
      call->wait = std::make_shared<OperationWait>(waits, service.context, Everywhere(),
                                                   call->request, &call->reply);
      call->wait->Start(absl::OkStatus());
      if (i % 3 == 0) call->wait->OnCancel();
      calls[static_cast<size_t>(thread * 6 + i)] = std::move(call);
    };
    Together(
        [&](int thread) {
          for (int i = 0; i < 6; ++i) {
            const std::string name = engine::StrCat("t", thread, "/", i);
            EXPECT_OK(service.pool.Create(name).status());
            const auto destroyed = service.pool.Destroy(name);
            ASSERT_OK(destroyed.status());
            wait_for(thread, i, destroyed->operation->name);
          }
        },
        [] {});
    waits->Stop();  // answers what still waits
    service.context.control.Stop();
    for (const auto& call : calls) call->wait->OnDone();
    EXPECT_OK(service.pool.Sync().status());
  }
}

}  // namespace
}  // namespace cowshed::service

// SPDX-License-Identifier: Apache-2.0
//
// Does anybody notice when 10,000 clones are thrown away at once? Makes clones with a few writes
// each on a running server, then destroys them with one call by prefix. All the while one client
// writes and reads at a steady pace, and another one flushes, gets, lists and clones now and then.
// Reports the latencies of every kind of call before the call and from then until the last sector
// is free, and how many txgs it took.
#include <CLI/CLI.hpp>
#include <atomic>
#include <map>
#include <random>
#include <string>
#include <thread>

#include "bench/service_client.h"

namespace cowshed::bench {
namespace {

constexpr uint64_t kBlockBytes = 16384;
constexpr uint64_t kGoldenBytes = uint64_t{1} << 30;
constexpr uint64_t kForegroundBytes = uint64_t{256} << 20;
constexpr uint32_t kFillCallers = 16;

struct Options {
  std::string address;
  uint64_t clones = 10000;
  uint64_t writes_per_clone = 4;
  uint64_t rounds = 5;
  double before_seconds = 5;
  double byte_calls_per_second = 1000;
  double other_calls_per_second = 40;
};

// Latencies in seconds, by kind of call.
using Latencies = std::map<std::string, Samples>;

// A thread that makes one call after another at a pace, and sorts what each took by phase.
class Caller {
 public:
  using Step = std::function<std::string(uint64_t)>;  // makes call number i, gives its kind

  Caller(double calls_per_second, Step step)
      : interval_(1 / calls_per_second), step_(std::move(step)), thread_([this] { Run(); }) {}
  ~Caller() { Stop(); }
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

  void StormBegins() { storming_.store(true); }
  void Stop() {
    stopping_.store(true);
    if (thread_.joinable()) thread_.join();
  }
  // After Stop.
  const Latencies& before() const { return latencies_[0]; }
  const Latencies& during() const { return latencies_[1]; }

 private:
  void Run() {
    auto due = Clock::now();
    for (uint64_t i = 0; !stopping_.load(); ++i) {
      due += std::chrono::duration_cast<Clock::duration>(interval_);
      // One that is late does not make up for it: what waits behind a slow call is no slow call.
      if (due < Clock::now()) due = Clock::now();
      std::this_thread::sleep_until(due);
      const auto begin = Clock::now();
      const bool storming = storming_.load();
      const std::string kind = step_(i);
      // A call that the storm overtakes belongs to it.
      latencies_[storming || storming_.load() ? 1 : 0][kind].Add(SecondsSince(begin));
    }
  }

  const std::chrono::duration<double> interval_;
  const Step step_;
  std::atomic<bool> storming_{false};
  std::atomic<bool> stopping_{false};
  Latencies latencies_[2];
  std::thread thread_;
};

class Storm {
 public:
  Storm(ServiceClient& client, const Options& options) : client_(client), options_(options) {}

  void Run() {
    CreateDataset(client_, "golden", kGoldenBytes);
    CreateDataset(client_, "busy", kForegroundBytes);
    WriteRange(client_, "golden", 0, RandomBytes(kBlockBytes, 0));
    for (uint64_t at = 0; at < kForegroundBytes; at += 1 << 20) {
      WriteRange(client_, "busy", at, RandomBytes(1 << 20, at));
    }
    CreateSnapshot(client_, "golden@base");
    for (uint64_t round = 0; round < options_.rounds; ++round) Round(round);
    document_.Print();
  }

 private:
  void Fill(const std::string& prefix) {
    const std::string bytes = RandomBytes(kBlockBytes, 1);
    RunBy(kFillCallers, options_.clones, [&](uint64_t i) {
      const std::string name = prefix + "/" + std::to_string(i);
      CloneDataset(client_, "golden@base", name);
      std::mt19937_64 random(i);
      for (uint64_t k = 0; k < options_.writes_per_clone; ++k) {
        WriteRange(client_, name, random() % (kGoldenBytes / kBlockBytes) * kBlockBytes, bytes);
      }
    });
    Call(*client_.pool, &v1::PoolService::Stub::SyncPool, v1::SyncPoolRequest());
  }

  std::string ByteCall(uint64_t i) {
    const uint64_t at = random_() % (kForegroundBytes / kBlockBytes) * kBlockBytes;
    if (i % 2 == 0) {
      WriteRange(client_, "busy", at, block_);
      return "write";
    }
    v1::ReadRangeRequest request;
    request.set_name("busy");
    request.set_offset_bytes(at);
    request.set_length_bytes(kBlockBytes);
    Call(*client_.data, &v1::DataService::Stub::ReadRange, request);
    return "read";
  }

  std::string OtherCall(const std::string& prefix, uint64_t i) {
    switch (i % 4) {
      case 0:
        Flush(client_, "busy");
        return "flush";
      case 1: {
        v1::GetDatasetRequest request;
        request.set_name("busy");
        Call(*client_.datasets, &v1::DatasetService::Stub::GetDataset, request);
        return "get";
      }
      case 2: {
        v1::ListDatasetsRequest request;
        request.set_page_size(100);
        Call(*client_.datasets, &v1::DatasetService::Stub::ListDatasets, request);
        return "list";
      }
      default:
        CloneDataset(client_, "golden@base", "kept-" + prefix + "/" + std::to_string(i));
        return "clone";
    }
  }

  // Destroys the clones and waits until nothing of them is left; returns seconds of the call and
  // of everything.
  std::pair<double, double> Destroy(const std::string& prefix) {
    v1::DestroyDatasetsRequest request;
    request.set_prefix(prefix);
    const auto begin = Clock::now();
    const v1::DestroyDatasetsResponse reply =
        Call(*client_.datasets, &v1::DatasetService::Stub::DestroyDatasets, request);
    const double call_seconds = SecondsSince(begin);
    v1::WaitOperationsRequest wait;
    wait.add_names(reply.operation().name());
    wait.mutable_timeout()->set_seconds(60);
    v1::WaitOperationsResponse answer;
    do {
      answer = Call(*client_.operations, &v1::OperationService::Stub::WaitOperations, wait);
    } while (!answer.done());
    if (answer.operations(0).state() != v1::OPERATION_STATE_SUCCEEDED) {
      Die("destroy", answer.operations(0).error().message());
    }
    return {call_seconds, SecondsSince(begin)};
  }

  void Round(uint64_t round) {
    const std::string prefix = "storm" + std::to_string(round);
    Fill(prefix);
    Caller bytes(options_.byte_calls_per_second, [this](uint64_t i) { return ByteCall(i); });
    Caller others(options_.other_calls_per_second,
                  [&](uint64_t i) { return OtherCall(prefix, i); });
    const uint64_t idle_txg = GetPool(client_).txg();
    std::this_thread::sleep_for(std::chrono::duration<double>(options_.before_seconds));
    const uint64_t begin_txg = GetPool(client_).txg();
    bytes.StormBegins();
    others.StormBegins();
    const auto [call_seconds, seconds] = Destroy(prefix);
    bytes.Stop();
    others.Stop();
    const uint64_t end_txg = GetPool(client_).txg();
    const double idle_rate = static_cast<double>(begin_txg - idle_txg) / options_.before_seconds;
    document_.Add(Row()
                      .Set("kind", "storm")
                      .Set("round", static_cast<double>(round))
                      .Set("clones", static_cast<double>(options_.clones))
                      .Set("call_ms", call_seconds * 1e3)
                      .Set("seconds", seconds)
                      .Set("commits", static_cast<double>(end_txg - begin_txg))
                      .Set("commits_per_second_before", idle_rate));
    for (const Caller* caller : {&bytes, &others}) Report(round, *caller);
  }

  void Report(uint64_t round, const Caller& caller) {
    for (const auto& [kind, before] : caller.before()) {
      const auto it = caller.during().find(kind);
      const Samples during = it == caller.during().end() ? Samples() : it->second;
      document_.Add(Row()
                        .Set("kind", "calls")
                        .Set("round", static_cast<double>(round))
                        .Set("call", kind)
                        .Set("count_before", static_cast<double>(before.count()))
                        .Set("count_during", static_cast<double>(during.count()))
                        .Set("p50_before_ms", before.Median() * 1e3)
                        .Set("p50_during_ms", during.Median() * 1e3)
                        .Set("p99_before_ms", before.Quantile(0.99) * 1e3)
                        .Set("p99_during_ms", during.Quantile(0.99) * 1e3)
                        .Set("max_before_ms", before.Max() * 1e3)
                        .Set("max_during_ms", during.Max() * 1e3));
    }
  }

  ServiceClient& client_;
  const Options options_;
  const std::string block_ = RandomBytes(kBlockBytes, 2);
  std::mt19937_64 random_{3};  // of the thread that makes byte calls
  Document document_;
};

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Clones of a running server destroyed by one call while other clients go on");
  app.add_option("--address", options.address, "The server")->required();
  app.add_option("--clones", options.clones, "How many are destroyed at once");
  app.add_option("--writes", options.writes_per_clone, "Blocks written to each");
  app.add_option("--rounds", options.rounds, "How often");
  app.add_option("--before-seconds", options.before_seconds, "Calm before each storm");
  CLI11_PARSE(app, argc, argv);
  ServiceClient client(options.address);
  Storm(client, options).Run();
  return 0;
}

}  // namespace
}  // namespace cowshed::bench

int main(int argc, char** argv) { return cowshed::bench::Main(argc, argv); }

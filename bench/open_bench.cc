// SPDX-License-Identifier: Apache-2.0
//
// Does a full pool take longer to open? `fill` makes a pool of many clones, each with a snapshot of
// its own. `start` starts a server on a pool, again and again, and kills it with SIGKILL in the
// middle of its work each time: how long from exec until the first call is answered.
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstring>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "bench/bench_pool.h"
#include "bench/samples.h"
#include "bench/service_client.h"

namespace cowshed::bench {
namespace {

constexpr uint64_t kClonesInFlight = 1000;  // they share txgs
constexpr uint64_t kClonesInGroup = 1000;   // names below one prefix, snapshotted by one call
constexpr auto kStartMax = std::chrono::seconds(60);

struct Options {
  std::string pool;
  uint64_t clones = 100000;
  std::string server;
  uint64_t runs = 5;
};

std::string GroupOf(uint64_t clone) { return "clones/" + std::to_string(clone / kClonesInGroup); }
std::string NameOf(uint64_t clone) { return GroupOf(clone) + "/" + std::to_string(clone); }

using OutcomeReply = Reply<absl::StatusOr<engine::Outcome>>;

void Fill(const Options& options) {
  engine::PoolOptions pool_options;
  pool_options.directory = options.pool;
  BenchPool pool(pool_options);
  pool.Create("golden", uint64_t{1} << 30, 16384);
  const auto volume = pool.Open("golden");
  const std::string bytes = RandomBytes(1 << 20, 1);
  Must(volume->Write(0, std::as_bytes(std::span(bytes))), "write");
  pool.Snapshot("golden@base");
  std::deque<OutcomeReply> under_way;
  const auto finish = [&] {
    Must(under_way.front().Wait(), "clone");
    under_way.pop_front();
  };
  for (uint64_t i = 0; i < options.clones; ++i) {
    if (under_way.size() == kClonesInFlight) finish();
    engine::CloneDatasetArgs args;
    args.source = "golden@base";
    args.name = NameOf(i);
    pool->CloneDataset(args, std::nullopt, under_way.emplace_back().Callback());
  }
  while (!under_way.empty()) finish();
  for (uint64_t i = 0; i < options.clones; i += kClonesInGroup) {
    engine::CreateSnapshotsArgs args;
    args.prefix = GroupOf(i);
    args.snapshot = "first";
    OutcomeReply reply;
    pool->CreateSnapshots(args, std::nullopt, reply.Callback());
    Must(reply.Wait(), "snapshots");
  }
}

pid_t Exec(const std::vector<std::string>& words) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const int nothing = open("/dev/null", O_WRONLY);
  dup2(nothing, STDOUT_FILENO);
  execv(argv[0], argv.data());
  _exit(127);
}

bool Connects(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  const int descriptor = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool connected =
      connect(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  close(descriptor);
  return connected;
}

// Seconds from exec to the answer to a Get of `dataset`; then work goes on until the kill.
double StartOnce(const Options& options, const std::string& socket, const std::string& dataset) {
  unlink(socket.c_str());
  const auto begin = Clock::now();
  const pid_t pid = Exec({options.server, "serve", "--pool", options.pool, "--listen",
                          "unix:" + socket, "--metrics-listen", "off"});
  if (pid < 0) Die(options.server, std::strerror(errno));
  // gRPC's own attempts to connect lie too far apart to measure with.
  while (!Connects(socket)) {
    if (Clock::now() - begin > kStartMax || waitpid(pid, nullptr, WNOHANG) == pid) {
      Die(options.server, "does not start");
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  ServiceClient client("unix:" + socket);
  v1::GetDatasetRequest request;
  request.set_name(dataset);
  Call(*client.datasets, &v1::DatasetService::Stub::GetDataset, request);
  const double seconds = SecondsSince(begin);
  // Flushed and unflushed writes and a snapshot, so that the kill finds it at work.
  const std::string name = std::to_string(Clock::now().time_since_epoch().count());
  WriteRange(client, "golden", 0, RandomBytes(1 << 20, 2));
  CreateSnapshot(client, "golden@" + name);
  WriteRange(client, "golden", 1 << 20, RandomBytes(1 << 20, 3));
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  return seconds;
}

void Start(const Options& options, Document* document) {
  const std::string socket = options.pool + ".sock";
  const std::string dataset = options.clones > 0 ? NameOf(options.clones / 2) : "golden";
  for (uint64_t i = 0; i < options.runs; ++i) {
    document->Add(Row().Set("seconds", StartOnce(options, socket, dataset)));
  }
  unlink(socket.c_str());
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Time to open a pool");
  app.require_subcommand(1);
  app.fallthrough();
  app.add_option("--pool", options.pool, "Folder of the pool")->required();
  app.add_option("--clones", options.clones, "Clones in it, each with a snapshot");
  app.add_option("--server", options.server, "The server program, for start");
  app.add_option("--runs", options.runs, "Starts");
  Document document;
  app.add_subcommand("fill")->callback([&] { Fill(options); });
  app.add_subcommand("start")->callback([&] { Start(options, &document); });
  CLI11_PARSE(app, argc, argv);
  document.Print();
  return 0;
}

}  // namespace
}  // namespace cowshed::bench

int main(int argc, char** argv) { return cowshed::bench::Main(argc, argv); }

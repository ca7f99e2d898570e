// SPDX-License-Identifier: Apache-2.0
//
// What a little durable write costs: durable.py drives it.
//
//   file     pwrite and fdatasync at random places of a file that has been written through
//   log      writes to clones of a dataset, each made durable by the intent log
//   flush    the same, each made durable by a txg
//
// Each of `--writers` threads has a file, or a clone, of its own, and one write under way at a
// time.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "bench/bench_pool.h"
#include "bench/json_line.h"
#include "engine/base/strings.h"

namespace cowshed::bench {
namespace {

constexpr uint32_t kWriteBytes = 4096;

struct Arguments {
  std::string directory;
  uint64_t size_bytes = 64 << 20;  // of a file or dataset
  uint32_t writers = 1;
  double seconds = 2;
};

// One writer's way to make `data` at `offset` durable.
using WriteOne = std::function<void(uint64_t offset, std::span<const std::byte> data)>;

// Runs all writers for the time that was asked for and prints how many writes that made.
void Run(const Arguments& args, const std::vector<WriteOne>& writers) {
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> writes{0};
  std::vector<std::thread> threads;
  const Stopwatch watch;
  for (size_t i = 0; i < writers.size(); ++i) {
    threads.emplace_back([&, i] {
      std::mt19937_64 random(i + 1);
      std::vector<std::byte> data(kWriteBytes);
      while (!stop) {
        for (std::byte& byte : data) byte = static_cast<std::byte>(random());
        writers[i](random() % (args.size_bytes / kWriteBytes) * kWriteBytes, data);
        ++writes;
      }
    });
  }
  std::this_thread::sleep_for(std::chrono::duration<double>(args.seconds));
  stop = true;
  for (std::thread& thread : threads) thread.join();
  JsonLine()
      .Add("writes_per_second", static_cast<double>(writes.load()) / watch.seconds())
      .Add("writes", writes.load())
      .Print();
}

void RunFile(const Arguments& args) {
  std::filesystem::create_directories(args.directory);
  std::vector<WriteOne> writers;
  std::vector<int> descriptors;
  for (uint32_t i = 0; i < args.writers; ++i) {
    const std::string path = engine::StrCat(args.directory, "/file", i);
    const int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    Must(descriptor >= 0 ? absl::OkStatus() : absl::ErrnoToStatus(errno, "open"), "make a file");
    const std::vector<std::byte> piece(1 << 20);
    for (uint64_t at = 0; at < args.size_bytes; at += piece.size()) {
      const bool done = pwrite(descriptor, piece.data(), piece.size(), static_cast<off_t>(at)) ==
                        static_cast<ssize_t>(piece.size());
      Must(done ? absl::OkStatus() : absl::ErrnoToStatus(errno, "pwrite"), "fill a file");
    }
    Must(fsync(descriptor) == 0 ? absl::OkStatus() : absl::ErrnoToStatus(errno, "fsync"), "sync");
    descriptors.push_back(descriptor);
    writers.emplace_back([descriptor](uint64_t offset, std::span<const std::byte> data) {
      const bool done = pwrite(descriptor, data.data(), data.size(), static_cast<off_t>(offset)) ==
                            static_cast<ssize_t>(data.size()) &&
                        fdatasync(descriptor) == 0;
      Must(done ? absl::OkStatus() : absl::ErrnoToStatus(errno, "write"), "write durably");
    });
  }
  Run(args, writers);
  for (const int descriptor : descriptors) close(descriptor);
}

void RunEngine(const Arguments& args, bool log) {
  engine::PoolOptions options;
  options.directory = args.directory + "/pool";
  options.capacity_bytes = uint64_t{16} << 30;
  std::filesystem::create_directories(args.directory);
  BenchPool pool(options);
  if (!pool->GetDataset("base").ok()) {
    pool.Create("base", args.size_bytes, 4096);
    const auto base = pool.Open("base");
    const std::vector<std::byte> piece(1 << 20, std::byte{'b'});
    for (uint64_t at = 0; at < args.size_bytes; at += piece.size()) {
      Must(base->Write(at, piece), "fill the base");
    }
    BenchPool::Flush(*base);
    pool.Snapshot("base@s");
    for (uint32_t i = 0; i < 16; ++i) pool.Clone("base@s", engine::StrCat("c", i));
  }
  std::vector<std::shared_ptr<engine::Volume>> volumes;
  std::vector<WriteOne> writers;
  for (uint32_t i = 0; i < args.writers; ++i) {
    volumes.push_back(pool.Open(engine::StrCat("c", i)));
    engine::Volume& volume = *volumes.back();
    const auto durable = [&volume] {
      Reply<absl::Status> reply;
      volume.MakeDurable(reply.Callback());
      Must(reply.Wait(), "make durable");
    };
    if (log) durable();  // whoever comes first has the ring made
    writers.emplace_back([&volume, log, durable](uint64_t offset, std::span<const std::byte> data) {
      Must(volume.Write(offset, data), "write");
      log ? durable() : BenchPool::Flush(volume);
    });
  }
  Run(args, writers);
}

}  // namespace
}  // namespace cowshed::bench

int main(int argc, char** argv) {
  CLI::App app("Measures what a little durable write costs.");
  cowshed::bench::Arguments args;
  app.fallthrough();
  app.require_subcommand(1);
  app.add_option("--dir", args.directory)->required();
  app.add_option("--size", args.size_bytes, "bytes of a file or dataset");
  app.add_option("--writers", args.writers)->check(CLI::Range(1, 16));
  app.add_option("--seconds", args.seconds);
  app.add_subcommand("file")->callback([&] { cowshed::bench::RunFile(args); });
  app.add_subcommand("log")->callback([&] { cowshed::bench::RunEngine(args, /*log=*/true); });
  app.add_subcommand("flush")->callback([&] { cowshed::bench::RunEngine(args, /*log=*/false); });
  CLI11_PARSE(app, argc, argv);
  return 0;
}

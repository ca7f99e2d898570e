// SPDX-License-Identifier: Apache-2.0
//
// Does a snapshot hold up those who write? Three measurements of one engine in this process, with a
// client that writes one block after another all the while, at a steady pace:
//
//   volumes   a large and a small volume with complete trees (of the large one a block in every
//             node's reach is written, the small one is written through, so that the client finds
//             more blocks in each than it writes between two snapshots; bulk data is dropped by the
//             sparse file): four snapshots of the large one, then snapshots of both in turns
//   many      thousands of snapshots of one volume, a few blocks written between any two
//   stall     the same client with a snapshot every 100 ms and without, in turns
#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/bench_pool.h"
#include "bench/samples.h"
#include "bench/sparse_file.h"
#include "bench/workload.h"

namespace cowshed::bench {
namespace {

using engine::PoolOptions;
using engine::Volume;
using std::chrono::milliseconds;

constexpr uint64_t kGiB = uint64_t{1} << 30;
constexpr uint64_t kBlocksPerNode = 128;
constexpr auto kSettle = milliseconds(1000);

struct Options {
  std::string directory;
  uint32_t block_kib = 16;
  uint64_t large_gb = 1400;
  uint64_t small_gb = 1;
  uint64_t snapshots = 4;
  uint64_t count = 10000;
  uint64_t writes_between = 8;
  uint64_t band = 500;
  uint64_t rounds = 5;
  double seconds = 4;
  double writes_per_second = 1000;
};

PoolOptions PoolAt(const Options& options, bool durable) {
  PoolOptions pool;
  pool.directory = options.directory + "/pool";
  const uint64_t nodes = (options.large_gb + options.small_gb) * kGiB /
                         (uint64_t{options.block_kib} << 10) / kBlocksPerNode;
  pool.capacity_bytes = nodes * ((uint64_t{options.block_kib} << 10) + 8192) * 2 + 64 * kGiB;
  SparseFileOptions sparse;
  sparse.durable = durable;
  pool.wrap_blocks_file = SparseFileWrapper(pool.directory + "/blocks", sparse);
  return pool;
}

// A call of the client, and when.
struct WriteCall {
  Clock::time_point begin;
  Clock::time_point end;
  double seconds() const { return std::chrono::duration<double>(end - begin).count(); }
};

// The client: writes one block after another, at random, to blocks that are there.
class Writer {
 public:
  // Every `stride`-th block is there.
  Writer(std::shared_ptr<Volume> volume, uint64_t stride, double writes_per_second)
      : volume_(std::move(volume)),
        stride_(stride),
        interval_(1 / writes_per_second),
        thread_([this] { Run(); }) {}
  ~Writer() { Stop(); }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // The calls so far, in their order.
  const std::vector<WriteCall>& Stop() {
    stopping_.store(true);
    if (thread_.joinable()) thread_.join();
    return calls_;
  }

 private:
  void Run() {
    std::mt19937_64 random(1);
    std::vector<uint64_t> block(volume_->block_bytes() / sizeof(uint64_t));
    for (uint64_t& word : block) word = random();
    const uint64_t places = volume_->size_bytes() / volume_->block_bytes() / stride_;
    auto due = Clock::now();
    while (!stopping_.load()) {
      due = std::max(due + std::chrono::duration_cast<Clock::duration>(interval_), Clock::now());
      std::this_thread::sleep_until(due);
      block[0] = random();
      const uint64_t at = random() % places * stride_ * volume_->block_bytes();
      WriteCall& call = calls_.emplace_back();
      call.begin = Clock::now();
      Must(volume_->Write(at, std::as_bytes(std::span(block))), "write");
      call.end = Clock::now();
    }
  }

  const std::shared_ptr<Volume> volume_;
  const uint64_t stride_;
  const std::chrono::duration<double> interval_;
  std::atomic<bool> stopping_{false};
  std::vector<WriteCall> calls_;
  std::thread thread_;
};

// A snapshot, and when.
using Interval = std::pair<Clock::time_point, Clock::time_point>;

Interval TakeSnapshot(BenchPool& pool, const std::string& name) {
  const auto begin = Clock::now();
  pool.Snapshot(name);
  return {begin, Clock::now()};
}

double SecondsOf(const Interval& interval) {
  return std::chrono::duration<double>(interval.second - interval.first).count();
}

// Longest of the calls that overlap the interval; 0 if none does.
double LongestDuring(const std::vector<WriteCall>& calls, const Interval& interval) {
  double longest = 0;
  for (const WriteCall& call : calls) {
    if (call.begin <= interval.second && call.end >= interval.first) {
      longest = std::max(longest, call.seconds());
    }
  }
  return longest;
}

// Makes the volume and writes every `stride`-th block.
void Fill(BenchPool& pool, const std::string& name, uint64_t gb, uint32_t block_bytes,
          uint64_t stride) {
  pool.Create(name, gb * kGiB, block_bytes);
  const std::shared_ptr<Volume> volume = pool.Open(name);
  std::vector<SparseSector> block(block_bytes / sizeof(SparseSector), BulkSector());
  for (uint64_t at = 0; at < gb * kGiB; at += stride * block_bytes) {
    Must(volume->Write(at, std::as_bytes(std::span(block))), "fill");
  }
  BenchPool::Flush(*volume);
}

void MeasureVolumes(const Options& options, Document* document) {
  const uint32_t block_bytes = options.block_kib << 10;
  {
    BenchPool pool(PoolAt(options, /*durable=*/false));
    Fill(pool, "large", options.large_gb, block_bytes, kBlocksPerNode);
    Fill(pool, "small", options.small_gb, block_bytes, 1);
  }
  sync();
  BenchPool pool(PoolAt(options, /*durable=*/true));
  {
    Writer writer(pool.Open("large"), kBlocksPerNode, options.writes_per_second);
    std::this_thread::sleep_for(kSettle);
    std::vector<Interval> taken;
    for (uint64_t i = 0; i < options.snapshots; ++i) {
      taken.push_back(TakeSnapshot(pool, "large@table" + std::to_string(i)));
      std::this_thread::sleep_for(kSettle);
    }
    const std::vector<WriteCall>& calls = writer.Stop();
    for (uint64_t i = 0; i < options.snapshots; ++i) {
      document->Add(Row()
                        .Set("kind", "table")
                        .Set("snapshot", static_cast<double>(i + 1))
                        .Set("create_seconds", SecondsOf(taken[i]))
                        .Set("standstill_seconds", LongestDuring(calls, taken[i])));
    }
  }
  for (uint64_t round = 0; round < options.rounds; ++round) {
    for (const std::string name : {"small", "large"}) {
      const uint64_t stride = name == "large" ? kBlocksPerNode : 1;
      for (const bool writing : {false, true}) {
        pool.Sync();
        std::unique_ptr<Writer> writer;
        if (writing) {
          writer = std::make_unique<Writer>(pool.Open(name), stride, options.writes_per_second);
        }
        Samples seconds;
        for (int i = 0; i < 5; ++i) {
          std::this_thread::sleep_for(milliseconds(100));
          const std::string snapshot =
              std::to_string(round) + (writing ? "w" : "q") + std::to_string(i);
          seconds.Add(SecondsOf(TakeSnapshot(pool, name + "@" + snapshot)));
        }
        document->Add(Row()
                          .Set("kind", writing ? "create_while_written" : "create_quiet")
                          .Set("volume", name)
                          .Set("seconds", seconds.Median()));
      }
    }
  }
}

void MeasureMany(const Options& options, Document* document) {
  BenchPool pool(PoolAt(options, /*durable=*/true));
  pool.Create("v", options.small_gb * kGiB, options.block_kib << 10);
  const std::shared_ptr<Volume> volume = pool.Open("v");
  // Every write replaces something from the first on: only the number of snapshots changes.
  FillWithBulk(*volume);
  BenchPool::Flush(*volume);
  std::mt19937_64 random(2);
  std::vector<uint64_t> block(volume->block_bytes() / sizeof(uint64_t));
  const uint64_t blocks = volume->size_bytes() / volume->block_bytes();
  Samples seconds;
  for (uint64_t i = 1; i <= options.count; ++i) {
    for (uint64_t k = 0; k < options.writes_between; ++k) {
      for (uint64_t& word : block) word = random();
      Must(
          volume->Write(random() % blocks * volume->block_bytes(), std::as_bytes(std::span(block))),
          "write");
    }
    seconds.Add(SecondsOf(TakeSnapshot(pool, "v@" + std::to_string(i))));
    if (i % options.band != 0 && i != options.count) continue;
    document->Add(Row()
                      .Set("kind", "many")
                      .Set("snapshots", static_cast<double>(i))
                      .Set("seconds", seconds.Median()));
    seconds = Samples();
  }
}

void MeasureStall(const Options& options, Document* document) {
  BenchPool pool(PoolAt(options, /*durable=*/true));
  pool.Create("v", options.small_gb * kGiB, options.block_kib << 10);
  const std::shared_ptr<Volume> volume = pool.Open("v");
  for (uint64_t round = 0; round < options.rounds; ++round) {
    for (const bool with : {false, true}) {
      pool.Sync();
      Writer writer(volume, 1, options.writes_per_second);
      const auto end = Clock::now() + std::chrono::duration<double>(options.seconds);
      for (uint64_t i = 0; Clock::now() < end; ++i) {
        std::this_thread::sleep_for(milliseconds(100));
        if (with) pool.Snapshot("v@" + std::to_string(round) + "-" + std::to_string(i));
      }
      Samples seconds;
      for (const WriteCall& call : writer.Stop()) seconds.Add(call.seconds());
      document->Add(Row()
                        .Set("kind", with ? "with" : "without")
                        .Set("p50_seconds", seconds.Median())
                        .Set("p999_seconds", seconds.Quantile(0.999))
                        .Set("max_seconds", seconds.Max()));
    }
  }
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Snapshots of volumes that are written to");
  app.require_subcommand(1);
  app.fallthrough();
  app.add_option("--dir", options.directory, "An empty folder")->required();
  app.add_option("--block-kib", options.block_kib, "Block size of the volumes");
  app.add_option("--large-gb", options.large_gb, "Size of the large volume");
  app.add_option("--small-gb", options.small_gb, "Size of the small volume, or the only one");
  app.add_option("--snapshots", options.snapshots, "Of the large volume");
  app.add_option("--count", options.count, "Snapshots of the one volume");
  app.add_option("--band", options.band, "Snapshots in a row of the output");
  app.add_option("--rounds", options.rounds, "Samples of each figure");
  app.add_option("--seconds", options.seconds, "With and without snapshots each, per round");
  app.add_option("--rate", options.writes_per_second, "Writes per second of the client");
  Document document;
  app.add_subcommand("volumes")->callback([&] { MeasureVolumes(options, &document); });
  app.add_subcommand("many")->callback([&] { MeasureMany(options, &document); });
  app.add_subcommand("stall")->callback([&] { MeasureStall(options, &document); });
  CLI11_PARSE(app, argc, argv);
  document.Print();
  return 0;
}

}  // namespace
}  // namespace cowshed::bench

int main(int argc, char** argv) { return cowshed::bench::Main(argc, argv); }

// SPDX-License-Identifier: Apache-2.0
//
// What writes cost: write_path.py drives it.
//
//   build       makes a pool with a full dataset "base" and a snapshot of it, its data not stored
//   overhead    writes to two datasets in turn, a stretch each, one with its livelist and one whose
//               list is dropped (failpoint livelist.costly). The datasets stay behind
//   prepare     makes a pool with a dataset that is written through once, all bytes stored
//   throughput  times writes over it
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "bench/bench_pool.h"
#include "bench/json_line.h"
#include "bench/sparse_file.h"
#include "bench/workload.h"
#include "engine/base/failpoints.h"
#include "engine/base/strings.h"

namespace cowshed::bench {
namespace {

constexpr uint32_t kBlockBytes = 16384;
constexpr uint32_t kSequentialBytes = 1 << 20;  // a write of a sequential client
constexpr char kBase[] = "base";
constexpr char kOrigin[] = "base@origin";

struct Arguments {
  std::string directory;
  uint64_t size_bytes = 0;
  uint64_t write_bytes = 0;  // to each dataset
  uint64_t flush_bytes = 64 << 20;
  uint64_t seed = 1;
  bool contiguous = false;
  bool plain = false;  // a dataset that is no clone
};

engine::PoolOptions Options(const Arguments& args, bool durable) {
  engine::PoolOptions options;
  options.directory = args.directory;
  options.capacity_bytes = 2 * args.size_bytes + (uint64_t{64} << 30);
  options.wrap_blocks_file = SparseFileWrapper(args.directory + "/blocks", {.durable = durable});
  return options;
}

void Build(const Arguments& args) {
  std::filesystem::create_directories(args.directory);
  BenchPool pool(Options(args, /*durable=*/false));
  pool.Create(kBase, args.size_bytes, kBlockBytes);
  FillWithBulk(*pool.Open(kBase));
  pool.Snapshot(kOrigin);
  pool.Drain();
}

// One of the two that are compared.
struct Side {
  std::shared_ptr<engine::Volume> volume;
  bool listed = false;
  double seconds = 0;
  uint64_t stored_bytes = 0;  // on the disk, by all files of the pool
};

double WriteStretch(Side& side, const WriteOptions& options) {
  if (!side.listed) Must(engine::Failpoints::Arm("livelist.costly=true"), "arm");
  const uint64_t stored_before = StorageWrittenBytes();
  const Stopwatch watch;
  WriteBlocks(*side.volume, options);
  const double seconds = watch.seconds();
  side.seconds += seconds;
  side.stored_bytes += StorageWrittenBytes() - stored_before;
  engine::Failpoints::Disarm("livelist.costly");
  return seconds;
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void Overhead(const Arguments& args) {
  BenchPool pool(Options(args, /*durable=*/true));
  Side sides[2];
  for (Side& side : sides) {
    side.listed = &side == &sides[0];
    const std::string name =
        engine::StrCat(side.listed ? "listed" : "unlisted", args.contiguous ? "-contiguous" : "",
                       args.plain ? "-plain-" : "-", args.seed);
    args.plain ? pool.Create(name, args.size_bytes, kBlockBytes) : pool.Clone(kOrigin, name);
    side.volume = pool.Open(name);
  }
  WriteOptions options;
  options.pattern = args.contiguous ? Pattern::kContiguous : Pattern::kScattered;
  options.block_bytes = args.contiguous ? kSequentialBytes : kBlockBytes;
  options.bytes = args.flush_bytes;
  options.flush_bytes = args.flush_bytes;
  options.seed = args.seed;
  std::vector<double> ratios;
  const uint64_t stretches = args.write_bytes / args.flush_bytes;
  for (uint64_t i = 0; i < stretches; ++i) {
    options.first_block = i * args.flush_bytes / options.block_bytes;
    // Which comes first alternates, so that neither profits from what the other leaves behind.
    double seconds[2];
    for (const uint64_t k : {i % 2, 1 - i % 2}) seconds[k] = WriteStretch(sides[k], options);
    ratios.push_back(seconds[0] / seconds[1]);
  }
  const auto bytes = static_cast<double>(stretches * args.flush_bytes);
  const auto list = Must(pool->GetLivelist(sides[0].volume->name(), 0, 1), "get the livelist");
  JsonLine()
      .Add("listed_seconds", sides[0].seconds)
      .Add("unlisted_seconds", sides[1].seconds)
      .Add("ratio", Median(ratios))
      .Add("amplification", static_cast<double>(sides[0].stored_bytes) / bytes)
      .Add("unlisted_amplification", static_cast<double>(sides[1].stored_bytes) / bytes)
      .Add("list_entries", list.total.entries)
      .Print();
}

engine::PoolOptions StoredOptions(const Arguments& args) {
  engine::PoolOptions options;
  options.directory = args.directory;
  options.capacity_bytes = 4 * args.size_bytes + (uint64_t{1} << 30);
  return options;
}

void Prepare(const Arguments& args) {
  std::filesystem::create_directories(args.directory);
  BenchPool pool(StoredOptions(args));
  pool.Create(kBase, args.size_bytes, kBlockBytes);
  WriteOptions options;
  options.pattern = Pattern::kContiguous;
  options.block_bytes = kSequentialBytes;
  options.bytes = args.size_bytes;
  WriteBlocks(*pool.Open(kBase), options);
  pool.Drain();
}

void Throughput(const Arguments& args) {
  BenchPool pool(StoredOptions(args));
  const auto volume = pool.Open(kBase);
  WriteOptions options;
  options.pattern = args.contiguous ? Pattern::kContiguous : Pattern::kScattered;
  options.block_bytes = args.contiguous ? kSequentialBytes : kBlockBytes;
  options.bytes = args.write_bytes;
  options.flush_bytes = args.flush_bytes;
  options.seed = args.seed;
  const Stopwatch watch;
  WriteBlocks(*volume, options);
  JsonLine line;
  line.Add("seconds", watch.seconds());
  // Where the time of the syncs went: `tasks` holds the writes to the data file.
  using engine::SyncPhase;
  const auto& phases = pool->stats().sync_seconds;
  const auto seconds = [&](SyncPhase phase) { return phases[static_cast<size_t>(phase)].sum(); };
  line.Add("data_seconds", seconds(SyncPhase::kData))
      .Add("tasks_seconds", seconds(SyncPhase::kTasks))
      .Add("fsync_seconds", seconds(SyncPhase::kFsync))
      .Add("commit_seconds", seconds(SyncPhase::kCommit))
      .Print();
}

}  // namespace
}  // namespace cowshed::bench

int main(int argc, char** argv) {
  CLI::App app("Measures what writes cost.");
  cowshed::bench::Arguments args;
  app.fallthrough();
  app.require_subcommand(1);
  app.add_option("--dir", args.directory)->required();
  app.add_option("--size", args.size_bytes, "bytes of a dataset")->required();
  app.add_option("--write", args.write_bytes, "bytes written to a dataset");
  app.add_option("--flush", args.flush_bytes, "bytes between two flushes");
  app.add_option("--seed", args.seed);
  app.add_flag("--contiguous", args.contiguous);
  app.add_flag("--plain", args.plain);
  app.add_subcommand("build")->callback([&] { cowshed::bench::Build(args); });
  app.add_subcommand("overhead")->callback([&] { cowshed::bench::Overhead(args); });
  app.add_subcommand("prepare")->callback([&] { cowshed::bench::Prepare(args); });
  app.add_subcommand("throughput")->callback([&] { cowshed::bench::Throughput(args); });
  CLI11_PARSE(app, argc, argv);
  return 0;
}

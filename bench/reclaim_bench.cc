// SPDX-License-Identifier: Apache-2.0
//
// What it takes to get rid of a clone: reclaim.py drives it.
//
//   build    makes a pool with a full dataset "base" of that size and a snapshot of it; only the
//            nodes of its tree take room on the disk
//   write    clones the snapshot and writes to the clone, real bytes, in 16 KiB blocks
//   destroy  opens the pool, destroys the clone and waits until its last sector is free
//   cycle    write and destroy in one process: everything is warm
//
// --walk makes the reclaimer take the list as damaged, so that it walks the tree, pruned by birth;
// without --read-ahead the kernel reads each node when it is asked for, and none before.
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "bench/bench_pool.h"
#include "bench/json_line.h"
#include "bench/sparse_file.h"
#include "bench/workload.h"
#include "engine/base/failpoints.h"

namespace cowshed::bench {
namespace {

constexpr uint32_t kBlockBytes = 16384;
constexpr uint64_t kProvedBlocks = 1000;
constexpr char kBase[] = "base";
constexpr char kOrigin[] = "base@origin";
constexpr char kClone[] = "clone";

struct Arguments {
  std::string directory;
  uint64_t size_bytes = 0;
  uint64_t write_bytes = 0;
  uint64_t seed = 1;
  bool contiguous = false;
  bool walk = false;
  bool read_ahead = false;
};

engine::PoolOptions Options(const Arguments& args, bool durable) {
  engine::PoolOptions options;
  options.directory = args.directory;
  // Room for the base, its nodes, the clone and the reserve of 1/32.
  options.capacity_bytes = args.size_bytes + args.size_bytes / 8 + (uint64_t{4} << 30);
  options.wrap_blocks_file = SparseFileWrapper(args.directory + "/blocks",
                                               {.durable = durable, .read_ahead = args.read_ahead});
  return options;
}

// Blocks that are not stored read back with the checksums they were written with.
void ProveReadable(engine::Volume& volume, uint64_t seed) {
  std::vector<std::byte> block(kBlockBytes);
  const Permutation places(volume.size_bytes() / kBlockBytes, seed);
  for (uint64_t i = 0; i < kProvedBlocks; ++i) {
    Must(volume.Read(places(i) * kBlockBytes, block), "read the base");
  }
}

void Build(const Arguments& args) {
  std::filesystem::create_directories(args.directory);
  const Stopwatch watch;
  {
    BenchPool pool(Options(args, /*durable=*/false));
    pool.Create(kBase, args.size_bytes, kBlockBytes);
    FillWithBulk(*pool.Open(kBase));
    pool.Snapshot(kOrigin);
    pool.Drain();
    ProveReadable(*pool.Open(kOrigin), args.seed);
  }
  sync();
  JsonLine().Add("seconds", watch.seconds()).Print();
}

void WriteClone(BenchPool& pool, const Arguments& args) {
  pool.Clone(kOrigin, kClone);
  WriteOptions options;
  options.pattern = args.contiguous ? Pattern::kContiguous : Pattern::kScattered;
  options.bytes = args.write_bytes;
  options.seed = args.seed;
  WriteBlocks(*pool.Open(kClone), options);
}

void Destroy(BenchPool& pool, const Arguments& args) {
  const auto info = Must(pool->GetDataset(kClone), "get the clone");
  const auto list = Must(pool->GetLivelist(kClone, 0, 1), "get its livelist");
  if (args.walk) Must(engine::Failpoints::Arm("reclaim.verify=error"), "arm");
  const engine::PoolStats& stats = pool->stats();
  const uint64_t misses_before = stats.node_cache_misses;
  const Stopwatch watch;
  pool.Destroy(kClone);
  const double call_seconds = watch.seconds();
  pool.WaitFree();
  const double free_seconds = watch.seconds();
  engine::Failpoints::DisarmAll();
  Must(stats.reclaim_freed_bytes == info.used_bytes
           ? absl::OkStatus()
           : absl::InternalError("freed other than the clone held"),
       "reclaim");
  JsonLine()
      .Add("call_seconds", call_seconds)
      .Add("free_seconds", free_seconds)
      .Add("freed_bytes", stats.reclaim_freed_bytes.load())
      .Add("list_entries", list.total.entries)
      .Add("walked", stats.livelist_dropped[engine::DropReason::kDamaged].load())
      .Add("nodes_read", stats.node_cache_misses - misses_before)
      .Print();
  pool.Drain();
}

void Run(const CLI::App& app, const Arguments& args) {
  if (app.got_subcommand("build")) return Build(args);
  BenchPool pool(Options(args, /*durable=*/true));
  if (!app.got_subcommand("destroy")) WriteClone(pool, args);
  if (!app.got_subcommand("write")) Destroy(pool, args);
}

}  // namespace
}  // namespace cowshed::bench

int main(int argc, char** argv) {
  CLI::App app("Measures what it takes to get rid of a clone.");
  cowshed::bench::Arguments args;
  app.fallthrough();
  app.require_subcommand(1);
  app.add_option("--dir", args.directory)->required();
  app.add_option("--size", args.size_bytes, "bytes of the base")->required();
  app.add_option("--write", args.write_bytes, "bytes written to the clone");
  app.add_option("--seed", args.seed);
  app.add_flag("--contiguous", args.contiguous);
  app.add_flag("--walk", args.walk);
  app.add_flag("--read-ahead", args.read_ahead);
  for (const char* name : {"build", "write", "destroy", "cycle"}) app.add_subcommand(name);
  CLI11_PARSE(app, argc, argv);
  cowshed::bench::Run(app, args);
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
//
// How much memory reclaim takes for a very long livelist: memory.py drives it.
//
//   build    makes a pool with a clone of 4 KiB blocks, written through (bulk data: only the tree
//            and the metadata are stored), of which every second block is discarded again: so no
//            two entries of its livelist, and no two of its survivors, can join
//   reclaim  opens the pool, destroys the clone and samples RssAnon until its last sector is free;
//            notes how long the plan said that it would take, and the operation when half was done
//
// --one-sublist makes the whole list one sublist, which has to be worked through in parts.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <thread>

#include "CLI/CLI.hpp"
#include "bench/bench_pool.h"
#include "bench/json_line.h"
#include "bench/sparse_file.h"
#include "bench/workload.h"

namespace cowshed::bench {
namespace {

constexpr uint32_t kBlockBytes = 4096;
constexpr auto kSampleInterval = std::chrono::milliseconds(5);
constexpr char kOrigin[] = "base@origin";
constexpr char kClone[] = "clone";

struct Arguments {
  std::string directory;
  uint64_t entries = 0;
  bool one_sublist = false;

  uint64_t size_bytes() const { return 2 * entries * kBlockBytes; }
};

engine::PoolOptions Options(const Arguments& args, bool durable) {
  engine::PoolOptions options;
  options.directory = args.directory;
  options.capacity_bytes = args.size_bytes() + args.size_bytes() / 4 + (uint64_t{2} << 30);
  options.wrap_blocks_file = SparseFileWrapper(args.directory + "/blocks", {.durable = durable});
  if (args.one_sublist) options.livelist_max_entries = UINT64_MAX;
  return options;
}

void Build(const Arguments& args) {
  std::filesystem::create_directories(args.directory);
  JsonLine line;
  const Stopwatch watch;
  {
    BenchPool pool(Options(args, /*durable=*/false));
    pool.Create("base", args.size_bytes(), kBlockBytes);
    pool.Snapshot(kOrigin);
    pool.Clone(kOrigin, kClone);
    const auto volume = pool.Open(kClone);
    FillWithBulk(*volume);
    pool.Sync();
    line.Add("fill_seconds", watch.seconds());
    for (uint64_t block = 0; block < 2 * args.entries; block += 2) {
      volume->Discard(block * kBlockBytes, kBlockBytes,
                      [](const absl::Status& status) { Must(status, "discard"); });
    }
    pool.Sync();
    pool.Drain();
    const auto list = Must(pool->GetLivelist(kClone, 0, 1), "get the livelist");
    line.Add("entries", list.total.entries)
        .Add("sublists", list.total.start_txg)
        .Add("blocks", list.total.blocks);
  }
  sync();
  line.Add("seconds", watch.seconds()).Print();
}

void Reclaim(const Arguments& args) {
  BenchPool pool(Options(args, /*durable=*/true));
  const uint64_t before = AnonymousBytes();
  uint64_t greatest = before;
  const engine::DestroyPlan plan = pool.PlanOfDestroy(kClone);
  const Stopwatch watch;
  const std::string operation = pool.Destroy(kClone).operation->name;
  const engine::PoolStats& stats = pool->stats();
  double half_seconds = 0;  // until half was done
  double eta_seconds = 0;   // what the operation then said about the rest
  while (stats.reclaim_pending_items > 0 || pool->space().freeing_bytes > 0) {
    greatest = std::max(greatest, AnonymousBytes());
    Must(pool->health(), "reclaim");
    if (half_seconds == 0) {
      const auto info = Must(pool->GetOperation(operation), "get the operation");
      if (2 * info.done_bytes >= info.total_bytes && info.eta_ms != 0) {
        half_seconds = watch.seconds();
        eta_seconds = static_cast<double>(info.eta_ms) / 1000;
      }
    }
    std::this_thread::sleep_for(kSampleInterval);
  }
  JsonLine()
      .Add("seconds", watch.seconds())
      .Add("predicted_seconds", plan.predicted_seconds)
      .Add("half_seconds", half_seconds)
      .Add("eta_seconds", eta_seconds)
      .Add("before_bytes", before)
      .Add("growth_bytes", greatest - before)
      .Add("freed_bytes", stats.reclaim_freed_bytes.load())
      .Add("damaged", stats.livelist_dropped[engine::DropReason::kDamaged].load())
      .Print();
}

}  // namespace
}  // namespace cowshed::bench

int main(int argc, char** argv) {
  CLI::App app("Measures how much memory reclaim takes for a very long livelist.");
  cowshed::bench::Arguments args;
  app.fallthrough();
  app.require_subcommand(1);
  app.add_option("--dir", args.directory)->required();
  app.add_option("--entries", args.entries, "of the livelist")->required();
  app.add_flag("--one-sublist", args.one_sublist);
  app.add_subcommand("build")->callback([&] { cowshed::bench::Build(args); });
  app.add_subcommand("reclaim")->callback([&] { cowshed::bench::Reclaim(args); });
  CLI11_PARSE(app, argc, argv);
  return 0;
}

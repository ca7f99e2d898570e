// SPDX-License-Identifier: Apache-2.0
//
// What a long life does to a clone's livelist: condense.py drives it.
//
//   age      makes a pool with two clones of one snapshot: "aged" is written at random places and
//            overwritten `rounds` times, "fresh" is written once at the same places. A round takes
//            each place once, in an order of its own, or with --random as many places by chance.
//            Bulk data: only trees and metadata are stored
//   destroy  opens the pool, destroys one of them and waits until its last sector is free
#include <algorithm>
#include <filesystem>
#include <random>
#include <string>

#include "CLI/CLI.hpp"
#include "bench/bench_pool.h"
#include "bench/json_line.h"
#include "bench/sparse_file.h"
#include "bench/workload.h"
#include "engine/store/codec.h"
#include "engine/store/meta_store.h"
#include "engine/tree/live_list.h"

namespace cowshed::bench {
namespace {

constexpr uint32_t kBlockBytes = 16384;
constexpr uint64_t kFlushBytes = 16 << 20;
constexpr uint64_t kEntryBytes = 24;  // of a stored log entry (engine/tree/pointer_log.h)
constexpr char kBase[] = "base";
constexpr char kOrigin[] = "base@origin";
constexpr char kAged[] = "aged";
constexpr char kFresh[] = "fresh";

struct Arguments {
  std::string directory;
  std::string name;
  uint64_t size_bytes = uint64_t{16} << 30;  // of the base
  uint64_t live_bytes = 0;                   // in each clone, in the end
  uint64_t rounds = 20;
  uint64_t seed = 1;
  bool random = false;
};

engine::PoolOptions Options(const Arguments& args) {
  engine::PoolOptions options;
  options.directory = args.directory;
  options.capacity_bytes = args.size_bytes + 8 * args.live_bytes + (uint64_t{4} << 30);
  options.wrap_blocks_file = SparseFileWrapper(args.directory + "/blocks", {});
  return options;
}

// Runs that survive in all livelists of a pool that is closed: what a perfect log would hold.
uint64_t CountSurvivors(const std::string& directory) {
  const auto meta = Must(engine::MetaStore::Open(directory + "/meta", /*create=*/false,
                                                 /*read_only=*/true, {.reserve_bytes = 0}),
                         "open the metadata");
  const auto txn = Must(meta->BeginRead(), "read the metadata");
  uint64_t runs = 0;
  engine::MetaCursor cursor(*txn, engine::Table::kSublists);
  for (cursor.Seek(engine::Key(uint64_t{0})); cursor.valid(); cursor.Next()) {
    if (cursor.value().size() != sizeof(engine::SublistRecord)) continue;  // an attached log
    const auto list = engine::KeyNumber<engine::LivelistId>(cursor.key(), 0);
    const auto start = engine::KeyNumber<engine::Txg>(cursor.key(), sizeof(list));
    runs += Must(engine::LiveList::Survivors(*txn, list, start), "find survivors").size();
  }
  Must(cursor.status(), "read the sublists");
  return runs;
}

// One round over the clone's places: each once in an order of its own, or by chance.
void Overwrite(engine::Volume& volume, const Arguments& args, uint64_t order, bool random) {
  const std::vector<SparseSector> block(kBlockBytes / sizeof(SparseSector), BulkSector());
  const uint64_t count = args.live_bytes / kBlockBytes;
  const Permutation places(volume.size_bytes() / kBlockBytes, args.seed);
  const Permutation turns(count, order);
  std::mt19937_64 dice(args.seed * 1000 + order);
  std::uniform_int_distribution<uint64_t> any(0, count - 1);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t place = places(random ? any(dice) : turns(i));
    Must(volume.Write(place * kBlockBytes, std::as_bytes(std::span(block))), "write");
    if ((i + 1) % (kFlushBytes / kBlockBytes) == 0) BenchPool::Flush(volume);
  }
  BenchPool::Flush(volume);
}

void Age(const Arguments& args) {
  std::filesystem::create_directories(args.directory);
  JsonLine line;
  double greatest = 0;  // entries at the end of a round
  const auto entries = [](BenchPool& pool, const char* name) {
    return Must(pool->GetLivelist(name, 0, 1), "get a livelist").total.entries;
  };
  {
    BenchPool pool(Options(args));
    pool.Create(kBase, args.size_bytes, kBlockBytes);
    pool.Snapshot(kOrigin);
    pool.Clone(kOrigin, kAged);
    const auto volume = pool.Open(kAged);
    const Stopwatch watch;
    for (uint64_t round = 0; round <= args.rounds; ++round) {
      // The first round takes every place, so that both clones hold the same in the end.
      Overwrite(*volume, args, /*order=*/round + 1, args.random && round > 0);
      greatest = std::max(greatest, static_cast<double>(entries(pool, kAged)));
    }
    line.Add("write_seconds", watch.seconds());
    pool.Drain();
    const engine::PoolStats& stats = pool->stats();
    line.Add("entries", entries(pool, kAged))
        .Add("entries_greatest", greatest)
        .Add("blocks", Must(pool->GetLivelist(kAged, 0, 1), "get a livelist").total.blocks)
        .Add("written_bytes", stats.write_bytes.load())
        .Add("condense_bytes",
             (stats.condense_entries_in + stats.condense_entries_out) * kEntryBytes)
        .Add("condenses", stats.condenses[engine::CondenseResult::kCompleted].load());
  }
  line.Add("survivors", CountSurvivors(args.directory));
  {
    BenchPool pool(Options(args));
    pool.Clone(kOrigin, kFresh);
    Overwrite(*pool.Open(kFresh), args, /*order=*/1, /*random=*/false);
    pool.Drain();
    line.Add("fresh_entries", entries(pool, kFresh));
  }
  line.Print();
}

void Destroy(const Arguments& args) {
  BenchPool pool(Options(args));
  const Stopwatch watch;
  pool.Destroy(args.name);
  const double call_seconds = watch.seconds();
  pool.WaitFree();
  JsonLine().Add("call_seconds", call_seconds).Add("free_seconds", watch.seconds()).Print();
  pool.Drain();
}

}  // namespace
}  // namespace cowshed::bench

int main(int argc, char** argv) {
  CLI::App app("Measures what a long life does to a clone's livelist.");
  cowshed::bench::Arguments args;
  app.fallthrough();
  app.require_subcommand(1);
  app.add_option("--dir", args.directory)->required();
  app.add_option("--live", args.live_bytes, "bytes written to each clone")->required();
  app.add_option("--rounds", args.rounds, "how often the aged one is overwritten");
  app.add_option("--seed", args.seed);
  app.add_flag("--random", args.random, "overwrite places by chance");
  app.add_option("--name", args.name, "which to destroy: aged or fresh");
  app.add_subcommand("age")->callback([&] { cowshed::bench::Age(args); });
  app.add_subcommand("destroy")->callback([&] { cowshed::bench::Destroy(args); });
  CLI11_PARSE(app, argc, argv);
  return 0;
}

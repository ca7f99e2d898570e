// SPDX-License-Identifier: Apache-2.0
#include "bench/bench_pool.h"

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>
#include <thread>

namespace cowshed::bench {
namespace {

using engine::Outcome;
using engine::Pool;
using engine::Txg;

constexpr auto kPoll = std::chrono::microseconds(100);

// The number behind `name` in a file of lines "name: number [unit]".
uint64_t NumberFrom(const char* path, std::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, name.size(), name) != 0) continue;
    uint64_t value = 0;
    std::istringstream(line.substr(name.size())) >> value;
    return value;
  }
  Must(absl::NotFoundError(path), name);
  return 0;
}

}  // namespace

void Must(const absl::Status& status, std::string_view what) {
  if (status.ok()) return;
  std::cerr << what << ": " << status << std::endl;
  std::_Exit(1);
}

BenchPool::BenchPool(const engine::PoolOptions& options)
    : pool_(Must(Pool::Open(options), "open the pool")) {}

template <typename Args>
Outcome BenchPool::Call(void (Pool::*verb)(Args, engine::Idempotency, engine::OutcomeCallback),
                        Args args, std::string_view what) {
  Reply<absl::StatusOr<Outcome>> reply;
  ((*pool_).*verb)(std::move(args), std::nullopt, reply.Callback());
  return Must(reply.Wait(), what);
}

void BenchPool::Create(const std::string& name, uint64_t size_bytes, uint32_t block_bytes) {
  engine::CreateDatasetArgs args;
  args.name = name;
  args.size_bytes = size_bytes;
  args.block_bytes = block_bytes;
  Call(&Pool::CreateDataset, std::move(args), "create");
}

void BenchPool::Snapshot(const std::string& name) {
  engine::CreateSnapshotsArgs args;
  args.names = {name};
  Call(&Pool::CreateSnapshots, std::move(args), "snapshot");
}

void BenchPool::Clone(const std::string& source, const std::string& name) {
  engine::CloneDatasetArgs args;
  args.source = source;
  args.name = name;
  Call(&Pool::CloneDataset, std::move(args), "clone");
}

Outcome BenchPool::Destroy(const std::string& name) {
  engine::DestroyDatasetsArgs args;
  args.names = {name};
  return Call(&Pool::DestroyDatasets, std::move(args), "destroy");
}

engine::DestroyPlan BenchPool::PlanOfDestroy(const std::string& name) {
  engine::DestroyDatasetsArgs args;
  args.names = {name};
  args.validate_only = true;
  return *Call(&Pool::DestroyDatasets, std::move(args), "plan a destroy").plan;
}

void BenchPool::WaitFree() {
  while (pool_->stats().reclaim_pending_items.load() > 0 || pool_->space().freeing_bytes > 0) {
    Must(pool_->health(), "reclaim");
    std::this_thread::sleep_for(kPoll);
  }
}

void BenchPool::Drain() {
  WaitFree();
  Must(pool_->DrainBackground(), "drain the background");
}

void BenchPool::Sync() {
  Reply<absl::StatusOr<Txg>> reply;
  pool_->Sync(reply.Callback());
  Must(reply.Wait().status(), "sync");
}

std::shared_ptr<engine::Volume> BenchPool::Open(const std::string& name) {
  return Must(pool_->OpenVolume(name, ""), "open a volume");
}

void BenchPool::Flush(engine::Volume& volume) {
  Reply<absl::StatusOr<Txg>> reply;
  volume.Flush(reply.Callback());
  Must(reply.Wait().status(), "flush");
}

uint64_t StorageWrittenBytes() { return NumberFrom("/proc/self/io", "write_bytes:"); }

uint64_t AnonymousBytes() { return NumberFrom("/proc/self/status", "RssAnon:") * 1024; }

}  // namespace cowshed::bench

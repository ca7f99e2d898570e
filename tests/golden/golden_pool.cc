// SPDX-License-Identifier: Apache-2.0
#include "tests/golden/golden_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "engine/base/strings.h"
#include "tests/support/testing.h"

namespace cowshed::engine {
namespace {

constexpr uint64_t kBlock = 4096;
constexpr int64_t kHourMs = 3600000;
constexpr char kReply[] = "the reply that was stored";

// Content, as stretches of one byte each: {byte, blocks}.
using Stretches = std::vector<std::pair<char, uint64_t>>;
std::string Content(const Stretches& stretches) {
  std::string content;
  for (const auto& [byte, blocks] : stretches) content.append(blocks * kBlock, byte);
  return content;
}

// What is read, by name.
const std::map<std::string, Stretches>& GoldenContents() {
  static const auto* const contents = new std::map<std::string, Stretches>{
      {"app/base", {{'\0', 4}, {'a', 6}, {'b', 20}, {'a', 10}, {'\0', 24}}},
      {"app/base@one", {{'a', 40}, {'\0', 24}}},
      {"app/base@two", {{'a', 10}, {'b', 20}, {'a', 10}, {'\0', 24}}},
      {"app/clone", {{'a', 20}, {'c', 30}, {'\0', 14}}},
      {"app/clone@x", {{'a', 20}, {'c', 20}, {'\0', 24}}},
      {"app/pin", {{'\0', 4}, {'a', 6}, {'b', 20}, {'a', 10}, {'\0', 24}}},
      {"deep", {{'\0', 150}, {'d', 3}, {'\0', 47}}},
      {"promoted", {{'p', 8}, {'q', 4}, {'\0', 4}}},
      {"promoted@s", {{'p', 8}, {'\0', 8}}},
      {"parent", {{'p', 8}, {'\0', 2}, {'r', 2}, {'\0', 4}}},
      {"trimmed", {{'t', 2}, {'\0', 58}, {'t', 4}}},
  };
  return *contents;
}

void WriteFlushed(TempPool& pool, const std::string& name, uint64_t block, char byte,
                  uint64_t blocks) {
  ASSERT_OK(pool.Write(name, block * kBlock, std::string(blocks * kBlock, byte)));
  ASSERT_OK(pool.Flush(name).status());
}

std::string ReadAll(Pool& pool, const std::string& name) {
  const std::shared_ptr<Volume> volume = ValueOf(pool.OpenVolume(name, ""));
  std::string bytes(volume->size_bytes(), '?');
  EXPECT_OK(volume->Read(0, std::as_writable_bytes(std::span(bytes))));
  return bytes;
}

std::vector<std::string> NamesIn(Pool& pool) {
  std::vector<std::string> names;
  ListArgs all;
  all.page_size = 1000;
  for (const DatasetInfo& dataset : ValueOf(pool.ListDatasets(all)).items) {
    names.push_back(dataset.name);
    ListArgs own = all;
    own.parent = dataset.name;
    for (const SnapshotInfo& snapshot : ValueOf(pool.ListSnapshots(own)).items) {
      names.push_back(snapshot.name);
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

CreateDatasetArgs LabelledArgs(int64_t now_ms) {
  CreateDatasetArgs args;
  args.name = "app/base";
  args.size_bytes = 64 * kBlock;
  args.block_bytes = kBlock;
  args.labels = {{"owner", "tests"}, {"tier", "gold"}};
  args.quota_bytes = 1 << 20;
  args.expire_time_ms = now_ms + 1000 * kHourMs;
  return args;
}

RequestKey StoredRequest() {
  RequestKey key;
  key.key = "caller method request";
  key.fingerprint = 7;
  key.encode = [](const Outcome& /*outcome*/) { return std::string(kReply); };
  return key;
}

absl::StatusOr<Outcome> CreateLabelled(TempPool& pool, const std::string& name) {
  Await<absl::StatusOr<Outcome>> done;
  CreateDatasetArgs args = LabelledArgs(TempPool::kStartMs);
  args.name = name;
  pool->CreateDataset(std::move(args), StoredRequest(), done.Callback());
  return done.Wait();
}

void Destroy(TempPool& pool, const std::string& name, int64_t window_ms) {
  DestroyDatasetsArgs args;
  args.names = {name};
  args.recursive = true;
  args.reclaim_after_ms = window_ms;
  ASSERT_OK(pool.Call(&Pool::DestroyDatasets, args).status());
}

const OperationInfo* FindOperation(const std::vector<OperationInfo>& operations, OperationKind kind,
                                   const std::string& target) {
  for (const OperationInfo& operation : operations) {
    if (operation.kind == kind && operation.target == target) return &operation;
  }
  return nullptr;
}

void ExpectSound(Pool& pool) {
  const CheckReport report = ValueOf(pool.Check());
  EXPECT_TRUE(report.ok()) << report.findings[0].name << ": " << report.findings[0].message;
}

void ExpectContents(Pool& pool) {
  std::vector<std::string> names;
  for (const auto& [name, stretches] : GoldenContents()) {
    names.push_back(name);
    EXPECT_TRUE(ReadAll(pool, name) == Content(stretches)) << name;
  }
  std::sort(names.begin(), names.end());
  std::vector<std::string> found = NamesIn(pool);
  std::erase(found, "app/base@three");  // deferred
  EXPECT_EQ(found, names);
}

void ExpectAttributes(Pool& pool) {
  const DatasetInfo base = ValueOf(pool.GetDataset("app/base"));
  EXPECT_EQ(base.labels, LabelledArgs(0).labels);
  EXPECT_EQ(base.quota_bytes, uint64_t{1} << 20);
  EXPECT_EQ(base.expire_time_ms, TempPool::kStartMs + 1000 * kHourMs);
  EXPECT_EQ(base.create_time_ms, TempPool::kStartMs);
  EXPECT_EQ(ValueOf(pool.GetDataset("app/clone")).origin, "app/base@one");
  EXPECT_EQ(ValueOf(pool.GetDataset("parent")).origin, "promoted@s");
  EXPECT_TRUE(ValueOf(pool.GetDataset("promoted")).origin.empty());
  EXPECT_TRUE(ValueOf(pool.GetSnapshot("app/base@three")).deferred);
  const std::vector<HoldInfo> holds = ValueOf(pool.ListHolds(ListArgs())).items;
  ASSERT_EQ(holds.size(), 1u);
  EXPECT_EQ(holds[0].snapshot, "app/base@two");
  EXPECT_EQ(holds[0].tag, "lease");
}

void ExpectOperations(Pool& pool) {
  const std::vector<OperationInfo> operations = ValueOf(pool.ListOperations(ListArgs())).items;
  const auto* gone = FindOperation(operations, OperationKind::kDestroyDatasets, "gone");
  ASSERT_NE(gone, nullptr);
  EXPECT_FALSE(gone->done());
  const auto* kept = FindOperation(operations, OperationKind::kDestroyDatasets, "kept");
  ASSERT_NE(kept, nullptr);
  EXPECT_EQ(kept->state, OperationState::kWaiting);
  const auto* trim = FindOperation(operations, OperationKind::kTrim, "trimmed");
  ASSERT_NE(trim, nullptr);
  EXPECT_FALSE(trim->done());
  EXPECT_EQ(ValueOf(pool.GetDataset("trimmed")).state, DatasetState::kTrimming);
  EXPECT_GT(pool.space().freeing_bytes, 0u);
  EXPECT_GT(pool.space().waiting_bytes, 0u);
}

}  // namespace

TempPool::Tweak GoldenOptions(const std::string& directory) {
  return [directory](PoolOptions* options) {
    options->directory = directory;
    options->capacity_bytes = 8 << 20;
    options->meta_reserve_bytes = 64 << 10;
    options->background_work = false;
    options->discard_direct_blocks = 16;
    options->trim_pointers_per_txg = 8;
    options->livelist_max_entries = 20;
    options->deadlist_tail_max_entries = 4;
  };
}

void WriteGoldenPool(TempPool& pool) {
  ASSERT_OK(CreateLabelled(pool, "app/base").status());
  WriteFlushed(pool, "app/base", 0, 'a', 40);
  ASSERT_OK(pool.Snapshot("app/base@one").status());
  WriteFlushed(pool, "app/base", 10, 'b', 20);
  ASSERT_OK(pool.Snapshot("app/base@two").status());
  ASSERT_OK(pool.Hold("app/base@two", "lease").status());
  ASSERT_OK(pool.Discard("app/base", 0, 4 * kBlock));
  ASSERT_OK(pool.Flush("app/base").status());
  ASSERT_OK(pool.Snapshot("app/base@three").status());
  ASSERT_OK(pool.Clone("app/base@three", "app/pin").status());
  ASSERT_OK(pool.DestroySnapshot("app/base@three", /*defer=*/true).status());
  ASSERT_OK(pool.Clone("app/base@one", "app/clone").status());
  WriteFlushed(pool, "app/clone", 20, 'c', 20);
  ASSERT_OK(pool.Snapshot("app/clone@x").status());
  WriteFlushed(pool, "app/clone", 35, 'c', 15);
  ASSERT_OK(pool.Create("deep", 200 * kBlock).status());  // two levels of nodes
  WriteFlushed(pool, "deep", 150, 'd', 3);
  ASSERT_OK(pool.Create("parent", 16 * kBlock).status());
  WriteFlushed(pool, "parent", 0, 'p', 8);
  ASSERT_OK(pool.Snapshot("parent@s").status());
  WriteFlushed(pool, "parent", 10, 'r', 2);
  ASSERT_OK(pool.Clone("parent@s", "promoted").status());
  WriteFlushed(pool, "promoted", 8, 'q', 4);
  ASSERT_OK(pool.Promote("promoted").status());
  for (const char* const name : {"gone", "kept"}) {
    ASSERT_OK(pool.Create(name, 32 * kBlock).status());
    WriteFlushed(pool, name, 0, 'k', 16);
    ASSERT_OK(pool.Snapshot(std::string(name) + "@s").status());
    WriteFlushed(pool, name, 8, 'K', 16);
  }
  ASSERT_OK(pool->DrainBackground());  // what comes now is left to do
  ASSERT_OK(pool.Create("trimmed", 64 * kBlock).status());
  WriteFlushed(pool, "trimmed", 0, 't', 64);
  Destroy(pool, "gone", 0);
  Destroy(pool, "kept", 24 * kHourMs);
  ASSERT_OK(pool.Discard("trimmed", 2 * kBlock, 58 * kBlock));
}

void ExpectGoldenPool(Pool& pool, uint32_t version) {
  ASSERT_GE(version, 1u);
  ExpectSound(pool);
  ExpectContents(pool);
  ExpectAttributes(pool);
  ExpectOperations(pool);
}

void ExpectGoldenPoolLives(TempPool& pool, uint32_t version) {
  ASSERT_GE(version, 1u);
  // The repeat of a call gets the reply that was stored.
  EXPECT_EQ(ValueOf(CreateLabelled(pool, "app/base")).replayed, kReply);
  ListArgs waiting;
  waiting.state = static_cast<uint8_t>(OperationState::kWaiting);
  const std::vector<OperationInfo> windows = ValueOf(pool->ListOperations(waiting)).items;
  ASSERT_EQ(windows.size(), 1u);
  ASSERT_OK(pool.Call(&Pool::Undestroy, windows[0].name).status());
  EXPECT_TRUE(ReadAll(*pool, "kept@s") == Content({{'k', 16}, {'\0', 16}}));
  EXPECT_TRUE(ReadAll(*pool, "kept") == Content({{'k', 8}, {'K', 16}, {'\0', 8}}));
  ASSERT_OK(pool->DrainBackground());
  EXPECT_EQ(pool->space().freeing_bytes, 0u);
  EXPECT_EQ(ValueOf(pool->GetDataset("trimmed")).state, DatasetState::kActive);
  for (const auto& [name, stretches] : GoldenContents()) {
    EXPECT_TRUE(ReadAll(*pool, name) == Content(stretches)) << name;
  }
  WriteFlushed(pool, "app/clone", 0, 'n', 64);
  ASSERT_OK(pool.Rollback("app/clone").status());
  EXPECT_TRUE(ReadAll(*pool, "app/clone") == ReadAll(*pool, "app/clone@x"));
  ASSERT_OK(pool.Destroy("app/pin").status());  // and with it the deferred snapshot
  ASSERT_OK(pool.Destroy("deep").status());
  ASSERT_OK(pool->DrainBackground());
  ExpectSound(*pool);
}

TempPool::Tweak GoldenLogOptions(const std::string& directory) {
  return [directory](PoolOptions* options) {
    GoldenOptions(directory)(options);
    options->capacity_bytes = 32 << 20;  // in less there is no room for a log
  };
}

// In the log are two batches: blocks side by side, a hole, and a part of a block.
void WriteGoldenLog(TempPool& pool) {
  ASSERT_OK(pool.Create("logged", 64 * kBlock).status());
  WriteFlushed(pool, "logged", 0, 'a', 32);
  ASSERT_OK(pool.Write("logged", 0, "the first durable write makes the log"));
  ASSERT_OK(pool.MakeDurable("logged"));
  ASSERT_OK(pool.Flush("logged").status());
  ASSERT_OK(pool.Write("logged", 8 * kBlock, std::string(4 * kBlock, 'l')));
  ASSERT_OK(pool.Discard("logged", 16 * kBlock, 2 * kBlock));
  ASSERT_OK(pool.MakeDurable("logged"));
  ASSERT_OK(pool.Write("logged", 9 * kBlock + 5, "a part of a block"));
  ASSERT_OK(pool.MakeDurable("logged"));
}

void ExpectGoldenLog(TempPool& pool) {
  EXPECT_EQ(pool->stats().log_replayed_entries.load(), 3u);
  std::string expected = Content({{'a', 8}, {'l', 4}, {'a', 4}, {'\0', 2}, {'a', 14}, {'\0', 32}});
  const std::string first = "the first durable write makes the log";
  const std::string part = "a part of a block";
  expected.replace(0, first.size(), first);
  expected.replace(9 * kBlock + 5, part.size(), part);
  EXPECT_TRUE(ReadAll(*pool, "logged") == expected);
  ExpectSound(*pool);
  // And it serves as a log again.
  ASSERT_OK(pool.Write("logged", 0, "another"));
  ASSERT_OK(pool.MakeDurable("logged"));
  EXPECT_EQ(pool->stats().log_batches.load(), 1u);
}

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
#include "tests/crash/damaged_pool.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>

#include "engine/base/failpoints.h"
#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/store/lmdb_pages.h"
#include "tests/support/testing.h"

namespace cowshed::engine {
namespace {

constexpr uint64_t kBlock = 4096;

void Fill(TempPool& pool, const std::string& name, uint64_t first, uint64_t count, char byte) {
  ASSERT_OK(pool.Write(name, first * kBlock, std::string(count * kBlock, byte)));
  ASSERT_OK(pool.Flush(name).status());
}

void AddLineages(TempPool& pool) {
  ASSERT_OK(pool.Create("a").status());
  Fill(pool, "a", 0, 120, 'a');
  ASSERT_OK(pool.Snapshot("a@1").status());
  Fill(pool, "a", 10, 60, 'b');
  ASSERT_OK(pool.Snapshot("a@2").status());
  Fill(pool, "a", 30, 90, 'c');
  for (uint64_t block = 0; block < 40; block += 3) Fill(pool, "a", block, 1, 'd');
  ASSERT_OK(pool.Clone("a@1", "dir/deep/clone").status());
  Fill(pool, "dir/deep/clone", 5, 40, 'e');
  ASSERT_OK(pool.Snapshot("dir/deep/clone@x").status());
  Fill(pool, "dir/deep/clone", 20, 10, 'f');
  ASSERT_OK(pool.Clone("a", "dir/of_head").status());
  Fill(pool, "dir/of_head", 100, 100, 'g');
  ASSERT_OK(pool.Create("origin", 1 << 20).status());
  Fill(pool, "origin", 0, 50, 'o');
  ASSERT_OK(pool.Snapshot("origin@s").status());
  ASSERT_OK(pool.Clone("origin@s", "promoted").status());
  Fill(pool, "promoted", 10, 10, 'p');
  ASSERT_OK(pool.Promote("promoted").status());
  ASSERT_OK(pool.Hold("a@1", "tag").status());
  ASSERT_OK(pool.Hold("dir/deep/clone@x", "other").status());
  ASSERT_OK(pool.DestroySnapshot("a@1", /*defer=*/true).status());
}

// What is destroyed and still there, in one way or another.
void AddWaiting(TempPool& pool) {
  ASSERT_OK(pool.Create("doomed").status());
  Fill(pool, "doomed", 0, 40, 'x');
  ASSERT_OK(pool.Snapshot("doomed@s").status());
  Fill(pool, "doomed", 5, 10, 'y');
  ASSERT_OK(pool.Create("kept").status());
  Fill(pool, "kept", 0, 30, 'k');
  ASSERT_OK(pool.Snapshot("kept@s").status());
  for (int i = 0; i < 4; ++i) {
    const std::string name = "many/" + std::to_string(i);
    ASSERT_OK(pool.Create(name, 1 << 18).status());
    Fill(pool, name, 0, 8, 'm');
  }
  ASSERT_OK(pool->DrainBackground());
  ASSERT_OK(pool.Snapshot("a@3").status());
  Fill(pool, "a", 50, 20, 'h');
  ASSERT_OK(pool.DestroySnapshot("a@2").status());
  ASSERT_OK(pool.Discard("a", 110 * kBlock, 100 * kBlock));
  ASSERT_OK(pool.Destroy("doomed", /*recursive=*/true).status());
  DestroyDatasetsArgs window;
  window.names = {"kept"};
  window.recursive = true;
  window.reclaim_after_ms = 3600000;
  ASSERT_OK(pool.Call(&Pool::DestroyDatasets, std::move(window)).status());
  DestroyDatasetsArgs prefix;
  prefix.prefix = "many";
  prefix.recursive = true;
  ASSERT_OK(pool.Call(&Pool::DestroyDatasets, std::move(prefix)).status());
}

}  // namespace

TempPool::Tweak DamageOptions() {
  return [](PoolOptions* options) {
    options->background_work = false;
    options->capacity_bytes = 16 << 20;
    options->node_cache_bytes = 0;
    options->livelist_max_entries = 60;
    options->deadlist_tail_max_entries = 4;
    options->discard_direct_blocks = 16;
    options->condense_min_entries = 8;
    options->bulk_names_per_txg = 3;
    options->condense_chunks_per_txg = 1;
    options->meta_copy_interval = std::chrono::milliseconds(0);
    options->write_wait_max = std::chrono::milliseconds(200);
  };
}

void FillPool(TempPool& pool) {
  AddLineages(pool);
  AddWaiting(pool);
}

void CopyPool(const std::string& from, const std::string& to) {
  std::filesystem::remove_all(to);
  const std::string command = StrCat("cp -r --sparse=always '", from, "' '", to, "'");
  ASSERT_EQ(std::system(command.c_str()), 0);
}

void CopyWithDurableWrites(PoolOptions options, const std::string& to,
                           const std::vector<std::string>& names, PoolImage* image) {
  options.txg_interval = std::chrono::hours(1);
  const auto pool = ValueOf(Pool::Open(options));
  const auto write = [&](const std::string& name, const std::string& bytes) {
    const auto volume = ValueOf(pool->OpenVolume(name, ""));
    ASSERT_OK(volume->Write(0, std::as_bytes(std::span(bytes))));
    Await<absl::Status> done;
    volume->MakeDurable(done.Callback());
    ASSERT_OK(done.Wait());
    image->contents.at(name).replace(0, bytes.size(), bytes);
  };
  write(names[0], "the first one waits for a ring");
  for (const std::string& name : names) write(name, "durable: " + name);
  ASSERT_EQ(pool->stats().log_waiters.load(), names.size());
  CopyPool(options.directory, to);
}

std::vector<ValuePlace> FindValues(const std::string& pool_directory) {
  std::vector<ValuePlace> places;
  const LmdbReport report =
      ValueOf(WalkLmdb(pool_directory + "/meta/data.mdb", [&places](const LmdbEntry& entry) {
        places.push_back({std::string(entry.table), entry.value_offset, entry.value.size()});
      }));
  EXPECT_TRUE(report.ok()) << report.Summary();
  return places;
}

std::string Overwrite(const std::string& path, uint64_t offset, const std::string& bytes) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  std::string before(bytes.size(), '\0');
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(before.data(), static_cast<std::streamsize>(before.size()));
  file.clear();
  file.seekp(static_cast<std::streamoff>(offset));
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  EXPECT_TRUE(file.good());
  return before;
}

void FlipBits(const std::string& path, uint64_t offset, uint8_t mask) {
  std::string byte = Overwrite(path, offset, "?");
  byte[0] = static_cast<char>(static_cast<uint8_t>(byte[0]) ^ mask);
  Overwrite(path, offset, byte);
}

void ChangeMeta(const std::string& pool_directory,
                const std::function<void(WriteTxn& txn)>& change) {
  const MetaStoreOptions options = {
      .map_bytes = uint64_t{1} << 30, .reserve_bytes = 0, .max_readers = 16};
  const auto meta = ValueOf(MetaStore::Open(pool_directory + "/meta", /*create=*/false,
                                            /*read_only=*/false, options));
  const auto txn = ValueOf(meta->BeginWrite());
  change(*txn);
  ASSERT_OK(txn->Commit());
}

ReadResult ReadAgain(Pool& pool, const PoolImage& expected) {
  ReadResult result;
  for (const auto& [name, bytes] : expected.contents) {
    const auto volume = pool.OpenVolume(name, "");
    if (absl::IsNotFound(volume.status())) {
      result.missing.insert(name);
      continue;
    }
    if (!volume.ok()) {
      // Its record, or the way to it, is damaged.
      if (!absl::IsDataLoss(volume.status())) result.wrong += volume.status().ToString() + "; ";
      result.lossy.insert(name);
      continue;
    }
    for (uint64_t offset = 0; offset < bytes.size(); offset += kBlock) {
      std::string block(std::min<uint64_t>(kBlock, bytes.size() - offset), '?');
      const absl::Status read = (*volume)->Read(offset, std::as_writable_bytes(std::span(block)));
      if (absl::IsDataLoss(read)) {
        result.lossy.insert(name);
      } else if (!read.ok()) {
        result.wrong += StrCat(name, ": ", read.ToString(), "; ");
        break;
      } else if (bytes.compare(offset, block.size(), block) != 0) {
        result.wrong += StrCat(name, " block ", offset / kBlock, " has wrong bytes; ");
      }
    }
  }
  return result;
}

absl::Status DestroyAll(Pool& pool) {
  ListArgs all;
  all.page_size = 1000;
  ASSIGN_OR_RETURN(const Page<HoldInfo> holds, pool.ListHolds(all));
  for (const HoldInfo& hold : holds.items) {
    Await<absl::StatusOr<Outcome>> done;
    pool.ReleaseHold(hold.snapshot, hold.tag, std::nullopt, done.Callback());
    RETURN_IF_ERROR(done.Wait().status());
  }
  ASSIGN_OR_RETURN(const Page<DatasetInfo> datasets, pool.ListDatasets(all));
  for (const DatasetInfo& dataset : datasets.items) {
    DestroyDatasetsArgs args;
    args.names = {dataset.name};
    args.cascade = true;
    args.allow_missing = true;
    RETURN_IF_ERROR(CallPool(pool, &Pool::DestroyDatasets, std::move(args)).status());
  }
  return pool.DrainBackground();
}

}  // namespace cowshed::engine

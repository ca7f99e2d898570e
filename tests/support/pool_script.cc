// SPDX-License-Identifier: Apache-2.0
#include "tests/support/pool_script.h"

#include <algorithm>
#include <span>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/base/strings.h"

namespace cowshed::engine {
namespace {

constexpr uint64_t kBlock = 4096;
constexpr uint64_t kMiB = 1 << 20;

// Builds the script: one member a verb, each adding a step.
class ScriptBuilder {
 public:
  std::vector<ScriptStep> Take() { return std::move(steps_); }

  void Create(const std::string& name, uint64_t size_bytes, uint32_t block_bytes = kBlock) {
    Add(
        "create " + name,
        [=](TempPool& pool) { return pool.Create(name, size_bytes, block_bytes).status(); },
        [=](PoolImage* image) { image->contents[name] = std::string(size_bytes, '\0'); });
  }
  void Write(const std::string& name, uint64_t offset, char byte, uint64_t length) {
    const std::string data(length, byte);
    Add(
        "write " + name,
        [=](TempPool& pool) {
          const absl::Status status = pool.Write(name, offset, data);
          return status.ok() ? pool.Flush(name).status() : status;
        },
        [=](PoolImage* image) { image->contents[name].replace(offset, length, data); });
  }
  // By the intent log, but for the first: it has the ring made.
  void WriteDurable(const std::string& name, uint64_t offset, char byte, uint64_t length) {
    const std::string data(length, byte);
    Add(
        "durable write " + name,
        [=](TempPool& pool) {
          const absl::Status status = pool.Write(name, offset, data);
          return status.ok() ? pool.MakeDurable(name) : status;
        },
        [=](PoolImage* image) { image->contents[name].replace(offset, length, data); });
  }
  void Discard(const std::string& name, uint64_t first, uint64_t count) {
    Add(
        "discard " + name,
        [=](TempPool& pool) {
          const absl::Status status = pool.Discard(name, first * kBlock, count * kBlock);
          return status.ok() ? pool.Flush(name).status() : status;
        },
        [=](PoolImage* image) {
          image->contents[name].replace(first * kBlock, count * kBlock, count * kBlock, '\0');
        });
  }
  void Snapshot(const std::string& dataset, const std::string& snapshot) {
    const std::string name = dataset + "@" + snapshot;
    Add(
        "snapshot " + name, [=](TempPool& pool) { return pool.Snapshot(name).status(); },
        [=](PoolImage* image) { image->contents[name] = image->contents[dataset]; });
  }
  void SnapshotPrefix(const std::string& prefix, const std::string& snapshot) {
    Add(
        "snapshot of all under " + prefix,
        [=](TempPool& pool) {
          CreateSnapshotsArgs args;
          args.prefix = prefix;
          args.snapshot = snapshot;
          return pool.Call(&Pool::CreateSnapshots, std::move(args)).status();
        },
        [=](PoolImage* image) {
          const std::map<std::string, std::string> before = image->contents;
          for (const auto& [name, bytes] : before) {
            if (name.starts_with(prefix + "/")) image->contents[name + "@" + snapshot] = bytes;
          }
        });
  }
  void Clone(const std::string& source, const std::string& name, bool replace = false) {
    Add(
        "clone " + source + " as " + name,
        [=](TempPool& pool) {
          CloneDatasetArgs args;
          args.source = source;
          args.name = name;
          args.replace = replace;
          return pool.Call(&Pool::CloneDataset, std::move(args)).status();
        },
        [=](PoolImage* image) { image->contents[name] = image->contents[source]; });
  }
  void Rollback(const std::string& name, const std::string& target) {
    Add(
        "rollback " + name, [=](TempPool& pool) { return pool.Rollback(name).status(); },
        [=](PoolImage* image) { image->contents[name] = image->contents[target]; });
  }
  void Reset(const std::string& name, const std::string& expected_bytes_of) {
    Add(
        "reset " + name, [=](TempPool& pool) { return pool.ResetToOrigin(name).status(); },
        [=](PoolImage* image) { image->contents[name] = image->contents[expected_bytes_of]; });
  }
  void Resize(const std::string& name, uint64_t size_bytes) {
    Add(
        "resize " + name, [=](TempPool& pool) { return pool.Resize(name, size_bytes).status(); },
        [=](PoolImage* image) { image->contents[name].resize(size_bytes, '\0'); });
  }
  // `moved`: the snapshots that change hands, by short name.
  void Promote(const std::string& parent, const std::string& clone,
               const std::vector<std::string>& moved) {
    Add(
        "promote " + clone, [=](TempPool& pool) { return pool.Promote(clone).status(); },
        [=](PoolImage* image) {
          for (const std::string& snapshot : moved) {
            Move(image, parent + "@" + snapshot, clone + "@" + snapshot);
          }
        });
  }
  void Rename(const std::string& name, const std::string& new_name) {
    Add(
        "rename " + name, [=](TempPool& pool) { return pool.Rename(name, new_name).status(); },
        [=](PoolImage* image) {
          const std::map<std::string, std::string> before = image->contents;
          for (const auto& entry : before) {
            if (entry.first == name || entry.first.starts_with(name + "@")) {
              Move(image, entry.first, new_name + entry.first.substr(name.size()));
            }
          }
        });
  }
  void Hold(const std::string& snapshot, const std::string& tag, int64_t ttl_ms = 0) {
    Add(
        "hold " + snapshot,
        [=](TempPool& pool) {
          HoldSnapshotArgs args;
          args.snapshot = snapshot;
          args.tag = tag;
          args.expire_time_ms = ttl_ms == 0 ? 0 : pool.now_ms() + ttl_ms;
          return pool.Call(&Pool::HoldSnapshot, std::move(args)).status();
        },
        [=](PoolImage* image) { image->holds.insert(snapshot + " " + tag); });
  }
  void Release(const std::string& snapshot, const std::string& tag) {
    Add(
        "release " + snapshot, [=](TempPool& pool) { return pool.Release(snapshot, tag).status(); },
        [=](PoolImage* image) { image->holds.erase(snapshot + " " + tag); });
  }
  void DestroySnapshot(const std::string& name) {
    Add(
        "destroy " + name, [=](TempPool& pool) { return pool.DestroySnapshot(name).status(); },
        [=](PoolImage* image) { image->contents.erase(name); });
  }
  // Of a snapshot that something depends on: it stays for now.
  void Defer(const std::string& name) {
    Add(
        "defer " + name,
        [=](TempPool& pool) { return pool.DestroySnapshot(name, /*defer=*/true).status(); },
        [](PoolImage* /*image*/) {});
  }
  // `gone`: everything that goes, by name.
  void Destroy(const std::string& what, const DestroyDatasetsArgs& args,
               const std::vector<std::string>& gone) {
    Add(
        "destroy " + what,
        [=](TempPool& pool) {
          return pool.Call(&Pool::DestroyDatasets, DestroyDatasetsArgs(args)).status();
        },
        [=](PoolImage* image) {
          for (const std::string& name : gone) image->contents.erase(name);
        });
  }
  void CreateExpiring(const std::string& name, int64_t ttl_ms) {
    Add(
        "create " + name,
        [=](TempPool& pool) {
          CreateDatasetArgs args;
          args.name = name;
          args.size_bytes = kBlock;
          args.block_bytes = kBlock;
          args.expire_time_ms = pool.now_ms() + ttl_ms;
          return pool.Call(&Pool::CreateDataset, std::move(args)).status();
        },
        [=](PoolImage* image) { image->contents[name] = std::string(kBlock, '\0'); });
  }
  void Expire(int64_t ms, const std::string& dataset, const std::string& hold) {
    Add(
        "expiry of " + dataset + hold,
        [=](TempPool& pool) {
          pool.Advance(ms);
          return pool->DrainBackground();
        },
        [=](PoolImage* image) {
          image->contents.erase(dataset);
          image->holds.erase(hold);
        });
    steps_.back().more_after = true;
  }
  void Drain() {
    Add(
        "drain", [](TempPool& pool) { return pool->DrainBackground(); },
        [](PoolImage* /*image*/) {});
  }

 private:
  static void Move(PoolImage* image, const std::string& from, const std::string& to) {
    image->contents[to] = std::move(image->contents[from]);
    image->contents.erase(from);
  }
  void Add(std::string name, std::function<absl::Status(TempPool&)> act,
           std::function<void(PoolImage*)> expect) {
    steps_.push_back({std::move(name), std::move(act), std::move(expect), false});
  }

  std::vector<ScriptStep> steps_;
};

// Overwrites, holes, trims, snapshots and a rollback.
void AddBytes(ScriptBuilder& script) {
  script.Create("a", 64 * kBlock);
  script.Write("a", 0, 'a', 40 * kBlock);
  script.Snapshot("a", "1");
  script.Write("a", 10 * kBlock, 'b', 20 * kBlock);
  script.Write("a", 5 * kBlock + 100, 'p', 3000);
  script.Snapshot("a", "2");
  script.Discard("a", 0, 3);
  script.Discard("a", 20, 24);
  script.Write("a", 22 * kBlock, 'x', 2 * kBlock);
  script.Drain();
  script.Snapshot("a", "3");
  script.Write("a", 30 * kBlock, 'y', 9 * kBlock);
  script.DestroySnapshot("a@3");
  script.Drain();
  script.Write("a", 0, 'r', 10 * kBlock);
  script.WriteDurable("a", kBlock + 7, 's', 2 * kBlock);
  script.WriteDurable("a", 2 * kBlock, 't', kBlock);
  script.WriteDurable("a", 60 * kBlock, 'u', 100);
  script.Rollback("a", "a@2");
  script.WriteDurable("a", 3 * kBlock, 'v', 2 * kBlock);
}

// Clones, of snapshots and of a head; holds, deferral, promotion, names, sizes.
void AddLineages(ScriptBuilder& script) {
  script.Clone("a@1", "c");
  script.Write("c", 5 * kBlock, 'c', 12 * kBlock);
  script.Snapshot("c", "x");
  script.Write("c", 8 * kBlock, 'd', 4 * kBlock);
  script.Clone("a", "h");
  script.Write("h", 0, 'h', 6 * kBlock);
  script.Reset("h", "a");
  script.Hold("a@1", "tag");
  script.Defer("a@1");
  script.Release("a@1", "tag");
  script.WriteDurable("a", 50 * kBlock, 'f', 3 * kBlock);
  script.Promote("a", "c", {"1"});
  script.WriteDurable("c", 5 * kBlock + 5, 'g', 10);
  script.Drain();
  script.Resize("a", 20 * kBlock + 100);
  script.Drain();
  script.Resize("a", 64 * kBlock);
  script.Write("a", 30 * kBlock, 'e', 10 * kBlock);
  script.Rename("a", "z/a");
  script.Rename("z/a@2", "z/a@two");
  script.Hold("z/a@two", "lease", 1000);
  script.Expire(2000, "", "z/a@two lease");
  script.Clone("c@x", "h", /*replace=*/true);
  script.Drain();
}

// A prefix too big for one txg, a dataset whose time has come, long runs to punch, and the end.
void AddDestruction(ScriptBuilder& script) {
  std::vector<std::string> gone;
  for (int i = 0; i < 5; ++i) {
    const std::string name = "p/" + std::to_string(i);
    script.Create(name, 4 * kBlock);
    if (i % 2 == 0) script.Write(name, 0, 'w', 2 * kBlock);
    gone.insert(gone.end(), {name, name + "@all"});
  }
  script.SnapshotPrefix("p", "all");
  DestroyDatasetsArgs prefix;
  prefix.prefix = "p";
  prefix.recursive = true;
  script.Destroy("prefix p", prefix, gone);
  script.Drain();
  script.Create("big", 2 * kMiB, 16384);
  script.Write("big", 0, 'B', 3 * kMiB / 2);
  DestroyDatasetsArgs big;
  big.names = {"big"};
  script.Destroy("big", big, {"big"});
  script.Drain();
  script.CreateExpiring("soon", 1000);
  script.Expire(2000, "soon", "");
  DestroyDatasetsArgs rest;
  rest.names = {"c"};
  rest.cascade = true;
  script.Destroy("c and its clones", rest, {"c", "c@1", "c@x", "h", "z/a", "z/a@two"});
  script.Drain();
}

}  // namespace

std::vector<ScriptStep> MakeScript() {
  ScriptBuilder script;
  AddBytes(script);
  AddLineages(script);
  AddDestruction(script);
  return script.Take();
}

TempPool::Tweak ScriptOptions() {
  return [](PoolOptions* options) {
    options->background_work = false;
    options->capacity_bytes = 16 * kMiB;
    options->node_cache_bytes = 0;
    options->livelist_max_entries = 20;
    options->deadlist_tail_max_entries = 4;
    options->discard_direct_blocks = 4;
    options->trim_pointers_per_txg = 8;
    options->reclaim_bite_runs = 6;
    options->drop_pages_per_bite = 2;
    options->bulk_names_per_txg = 3;
  };
}

absl::StatusOr<PoolImage> ReadImage(Pool& pool) {
  PoolImage image;
  std::vector<std::string> names;
  ListArgs all;
  all.page_size = 1000;
  ASSIGN_OR_RETURN(const Page<DatasetInfo> datasets, pool.ListDatasets(all));
  for (const DatasetInfo& dataset : datasets.items) {
    names.push_back(dataset.name);
    ListArgs own = all;
    own.parent = dataset.name;
    ASSIGN_OR_RETURN(const Page<SnapshotInfo> snapshots, pool.ListSnapshots(own));
    for (const SnapshotInfo& snapshot : snapshots.items) names.push_back(snapshot.name);
  }
  ASSIGN_OR_RETURN(const Page<HoldInfo> holds, pool.ListHolds(all));
  for (const HoldInfo& hold : holds.items) image.holds.insert(hold.snapshot + " " + hold.tag);
  for (const std::string& name : names) {
    ASSIGN_OR_RETURN(const std::shared_ptr<Volume> volume, pool.OpenVolume(name, ""));
    std::string bytes(volume->size_bytes(), '?');
    RETURN_IF_ERROR(volume->Read(0, std::as_writable_bytes(std::span(bytes))));
    image.contents[name] = std::move(bytes);
  }
  return image;
}

std::string Difference(const PoolImage& expected, const PoolImage& found) {
  std::string text;
  for (const auto& [name, bytes] : expected.contents) {
    const auto it = found.contents.find(name);
    if (it == found.contents.end()) {
      text += name + " is missing; ";
    } else if (it->second.size() != bytes.size()) {
      text += StrCat(name, " has ", it->second.size(), " bytes, not ", bytes.size(), "; ");
    } else if (it->second != bytes) {
      const auto at = std::mismatch(bytes.begin(), bytes.end(), it->second.begin()).first;
      text += StrCat(name, " differs from byte ", at - bytes.begin(), " on; ");
    }
  }
  for (const auto& entry : found.contents) {
    if (!expected.contents.contains(entry.first)) text += entry.first + " should not be there; ";
  }
  return text + (expected.holds == found.holds ? "" : "the holds differ");
}

}  // namespace cowshed::engine

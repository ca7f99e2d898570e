// SPDX-License-Identifier: Apache-2.0
//
// The random workload: verbs, places and bytes by chance, on few names so that they meet. A verb
// that is refused is a step, too.
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "engine/base/failpoints.h"
#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "tests/power_cut/crash_workload.h"

namespace cowshed::engine {
namespace {

constexpr uint64_t kBlock = 4096;
constexpr int kSteps = 120;

class RandomRecorder {
 public:
  explicit RandomRecorder(uint64_t seed)
      : recorder_(StrCat("random workload of seed ", seed)),
        pool_(recorder_.pool()),
        random_(seed) {}

  Recording Record() {
    for (int i = 0; i < 3; ++i) Create();
    for (int i = 0; i < kSteps; ++i) OneStep();
    return recorder_.Take();
  }

 private:
  uint64_t Below(uint64_t n) { return random_() % n; }
  std::string NewName() { return StrCat(Below(3) == 0 ? "p/" : "", "d", Below(6)); }
  std::string NewSnapshot() { return StrCat("s", Below(4)); }
  // Something that exists, in most cases. Heads have no '@' and no blank in their names.
  std::string Any(bool snapshot) {
    std::vector<std::string> names;
    for (const auto& entry : recorder_.state()) {
      const std::string& name = entry.first;
      if (name.find(' ') != std::string::npos) continue;
      if ((name.find('@') != std::string::npos) == snapshot) names.push_back(name);
    }
    if (names.empty() || Below(30) == 0) return snapshot ? "d0@s0" : "d0";
    return names[Below(names.size())];
  }
  std::string AnyWindow() {
    static constexpr std::string_view kPrefix = "window of ";
    for (const auto& entry : recorder_.state()) {
      if (entry.first.starts_with(kPrefix)) return entry.first.substr(kPrefix.size());
    }
    return "operations/1";
  }
  // A call commits the txg that all writes before it are in, unless nothing had to change.
  void Do(const std::string& name, const std::function<absl::Status()>& act) {
    Durable durable = unflushed_.empty() ? Durable::kYes : Durable::kIfCommitted;
    recorder_.Step(name, act, durable).IgnoreError();
    if (recorder_.all_acknowledged()) unflushed_.clear();
  }
  void DoVolatile(const std::string& name, const std::function<absl::Status()>& act) {
    recorder_.Step(name, act, Durable::kNo).IgnoreError();
  }

  void Create() {
    const std::string name = NewName();
    const uint64_t bytes = Below(8) == 0 ? 140 * kBlock : (1 + Below(16)) * kBlock - Below(2) * 100;
    Do("create " + name, [&] { return pool_.Create(name, bytes).status(); });
  }
  absl::Status WriteSome(const std::string& name) {
    for (uint64_t i = 0, count = 1 + Below(4); i < count; ++i) {
      const std::string data(1 + Below(3 * kBlock), static_cast<char>('a' + Below(26)));
      RETURN_IF_ERROR(pool_.Write(name, Below(13) * kBlock + Below(2) * Below(kBlock), data));
    }
    return absl::OkStatus();
  }
  // What was written before an error is in the open txg and may be committed with any later one.
  void Write() {
    const std::string name = Any(false);
    unflushed_.insert(name);
    DoVolatile("write " + name, [&] { return WriteSome(name); });
    if (Below(3) > 0) Flush(name);
  }
  void Flush(const std::string& name) {
    unflushed_.erase(name);  // what is left after it, it does not speak for
    // Without a txg it comes before what others have on its way: here, where there is nothing.
    if (unflushed_.empty() && Below(2) == 0) {
      return Do("make durable " + name, [&] { return pool_.MakeDurable(name); });
    }
    Do("flush " + name, [&] { return pool_.Flush(name).status(); });
  }
  // A second trim of a dataset, and a change of its size, wait for the first: for a drain.
  void DrainIfTrimming(const std::string& name) {
    const absl::StatusOr<DatasetInfo> info = pool_->GetDataset(name);
    if (info.ok() && info->state == DatasetState::kTrimming) Drain();
  }
  void Discard() {
    const std::string name = Any(false);
    DrainIfTrimming(name);
    unflushed_.insert(name);
    DoVolatile("discard " + name,
               [&] { return pool_.Discard(name, Below(8) * kBlock, (1 + Below(7)) * kBlock); });
  }
  void Destroy() {
    DestroyDatasetsArgs args;
    args.names = {Any(false)};
    args.recursive = Below(2) == 0;
    args.cascade = Below(4) == 0;
    args.reclaim_after_ms = Below(2) == 0 ? 5000 : 0;
    Do("destroy " + args.names[0],
       [&] { return pool_.Call(&Pool::DestroyDatasets, args).status(); });
  }
  void Undestroy() {
    const std::string operation = AnyWindow();
    Do("undestroy " + operation, [&] {
      Await<absl::StatusOr<Outcome>> done;
      pool_->Undestroy(operation, std::nullopt, done.Callback());
      return done.Wait().status();
    });
  }
  void Clone() {
    CloneDatasetArgs args;
    args.source = Any(Below(3) > 0);
    args.name = NewName();
    args.replace = Below(4) == 0;
    Do(StrCat("clone ", args.source, " as ", args.name),
       [&] { return pool_.Call(&Pool::CloneDataset, args).status(); });
  }
  void Rename() {
    if (Below(2) == 0) {
      const std::string name = Any(false);
      Do("rename " + name, [&] { return pool_.Rename(name, NewName()).status(); });
      return;
    }
    const std::string name = Any(true);
    const std::string to = StrCat(name.substr(0, name.find('@')), "@", NewSnapshot());
    Do("rename " + name, [&] { return pool_.Rename(name, to).status(); });
  }
  void Update() {
    UpdateDatasetArgs args;
    args.name = Any(false);
    if (Below(2) == 0) args.size_bytes = (1 + Below(16)) * kBlock;
    if (Below(2) == 0) args.set_labels["l"] = StrCat(Below(100));
    if (Below(8) == 0) args.expire_time_ms = pool_.now_ms() + 3000;
    if (args.size_bytes.has_value()) DrainIfTrimming(args.name);
    Do("update " + args.name, [&] { return pool_.Call(&Pool::UpdateDataset, args).status(); });
  }
  // A list is lost where the next write finds it costly or damaged; the background rebuilds it.
  void LoseList() {
    const char* const point = Below(2) == 0 ? "livelist.damaged" : "livelist.costly";
    const std::string name = Any(false);
    Do(StrCat("lose the list of ", name), [&] {
      RETURN_IF_ERROR(Failpoints::Arm(StrCat(point, "=true:count=1")));
      absl::Status status = WriteSome(name);
      if (status.ok()) status = pool_.Flush(name).status();
      Failpoints::DisarmAll();
      return status;
    });
    if (!recorder_.all_acknowledged()) unflushed_.insert(name);
  }
  // The process ends in the middle of a txg, with writes that no sync covered.
  void Die() {
    const std::string name = Any(false);
    Do("a txg that fails", [&] {
      const bool log = unflushed_.empty() && Below(3) == 0;
      RETURN_IF_ERROR(Failpoints::Arm(log             ? "file.write_durable=eio:count=1"
                                      : Below(2) == 0 ? "file.sync=eio:count=1"
                                                      : "meta.before_commit=eio:count=1"));
      absl::Status status = WriteSome(name);
      if (status.ok()) status = log ? pool_.MakeDurable(name) : pool_.Flush(name).status();
      Failpoints::DisarmAll();
      return status;
    });
    recorder_.Restart("the next process", [&] { pool_.Reopen(); });
    unflushed_.clear();
  }
  void Drain() {
    recorder_
        .Step(
            "drain", [&] { return pool_->DrainBackground(); }, Durable::kNo, /*gradual=*/true)
        .IgnoreError();
  }

  void OneStep() {
    const std::string head = Any(false);
    const std::string snapshot = Any(true);
    switch (Below(26)) {
      case 0:
        return Create();
      case 1:
      case 2:
      case 3:
      case 4:
      case 5:
      case 6:
        return Write();
      case 7:
        return Discard();
      case 8:
      case 9: {
        const std::string name = StrCat(head, "@", NewSnapshot());
        return Do("snapshot " + name, [&] { return pool_.Snapshot(name).status(); });
      }
      case 10:
      case 11:
      case 12:
        return Clone();
      case 13:
        return Destroy();
      case 14:
        return Undestroy();
      case 15:
        return Do("destroy " + snapshot,
                  [&] { return pool_.DestroySnapshot(snapshot, Below(2) == 0).status(); });
      case 16:
        return Do("rollback " + head, [&] { return pool_.Rollback(head).status(); });
      case 17:
        return Do("reset " + head, [&] { return pool_.ResetToOrigin(head).status(); });
      case 18:
        return Do("promote " + head, [&] { return pool_.Promote(head).status(); });
      case 19:
        return Rename();
      case 20:
        return Update();
      case 21:
        if (Below(2) == 0) {
          return Do("hold " + snapshot, [&] { return pool_.Hold(snapshot, "t").status(); });
        }
        return Do("release " + snapshot, [&] { return pool_.Release(snapshot, "t").status(); });
      case 22:
        return LoseList();
      case 23:
        return Below(3) == 0 ? Die() : Flush(head);
      case 24:
        return Below(3) == 0 ? pool_.Advance(2000) : Drain();
      default:
        return Drain();
    }
  }

  WorkloadRecorder recorder_;
  TempPool& pool_;
  std::mt19937_64 random_;
  std::set<std::string> unflushed_;  // heads with writes that nothing acknowledged
};

}  // namespace

Recording RecordRandom(uint64_t seed) { return RandomRecorder(seed).Record(); }

}  // namespace cowshed::engine

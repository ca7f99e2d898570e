// SPDX-License-Identifier: Apache-2.0
//
// One lifecycle call each: what the model says, how to make it, what it does.
#include <algorithm>
#include <array>

#include "engine/base/strings.h"
#include "tests/model/pool_model.h"

namespace cowshed::engine {
namespace {

using absl::StatusCode;

constexpr std::array kNames = {"a", "b", "c", "a/x", "a/y", "a/x/1", "a/x/2", "b/z", "d/e/f", "g"};
constexpr std::array kSnapshotNames = {"s0", "s1", "s2", "s3", "s4", "s5"};
constexpr std::array kTags = {"t0", "t1"};
constexpr size_t kMaxSnapshots = 8;

}  // namespace

std::string PoolModel::AnyName() { return prefix_ + kNames[Below(kNames.size())]; }

std::string PoolModel::KnownName() {
  return datasets_.empty() || Chance(3) ? AnyName() : AnyDataset()->name;
}

std::string PoolModel::AnySnapshotName() { return kSnapshotNames[Below(kSnapshotNames.size())]; }

std::string PoolModel::KnownSnapshot() {
  const Snapshot snapshot = Chance(95) ? AnySnapshot() : nullptr;
  if (snapshot == nullptr || !snapshot->visible()) {
    return StrCat(KnownName(), "@", Chance(50) ? "latest" : AnySnapshotName());
  }
  return StrCat(snapshot->owner->name, "@", snapshot->name);
}

PoolModel::Call PoolModel::Create() {
  CreateDatasetArgs args;
  args.name = AnyName();
  args.block_bytes = 4096u << Below(4);
  const bool tall = Chance(15);
  const uint64_t base_bytes = tall ? uint64_t{1} << (24 + Below(18)) : 0;
  const uint64_t cells = 1 + Below(Chance(10) ? max_cells_ : std::min(max_cells_, 160u));
  args.size_bytes = base_bytes + cells * kCellBytes;
  if (Chance(8)) args.quota_bytes = (16 + Below(64)) * 4096;
  if (!shared() && Chance(5))
    args.expire_time_ms = pool_->now_ms() + static_cast<int64_t>(1 + Below(10));
  Call call;
  call.text = StrCat("create ", args.name, " of ", args.size_bytes);
  call.expect = [this, args] {
    return Find(args.name) ? StatusCode::kAlreadyExists : StatusCode::kOk;
  };
  call.submit = [this, args](OutcomeCallback done) {
    (*pool_)->CreateDataset(args, std::nullopt, std::move(done));
  };
  call.apply = [this, args, base_bytes, cells](const Outcome&) {
    auto dataset = std::make_shared<ModelDataset>();
    dataset->name = args.name;
    dataset->base_bytes = base_bytes;
    dataset->block_bytes = args.block_bytes;
    dataset->cells.assign(cells, 0);
    dataset->expire_ms = args.expire_time_ms;
    dataset->quota = args.quota_bytes.has_value();
    datasets_.push_back(std::move(dataset));
  };
  return call;
}

PoolModel::Call PoolModel::TakeSnapshot() {
  CreateSnapshotsArgs args;
  args.names = {StrCat(KnownName(), "@", AnySnapshotName())};
  const std::string name = args.names[0];
  Call call;
  call.text = "snapshot " + name;
  call.expect = [this, name] {
    if (Find(name.substr(0, name.find('@'))) == nullptr) return StatusCode::kNotFound;
    return FindSnapshot(name) ? StatusCode::kAlreadyExists : StatusCode::kOk;
  };
  call.submit = [this, args](OutcomeCallback done) {
    (*pool_)->CreateSnapshots(args, std::nullopt, std::move(done));
  };
  call.apply = [this, name](const Outcome& outcome) {
    const size_t at = name.find('@');
    AddSnapshot(Find(name.substr(0, at)), name.substr(at + 1), outcome.txg);
  };
  return call;
}

// A whole subtree at one point in time.
PoolModel::Call PoolModel::TakeSnapshots() {
  CreateSnapshotsArgs args;
  args.prefix = Chance(50) ? prefix_ + "a" : KnownName();
  args.snapshot = AnySnapshotName();
  Call call;
  call.text = StrCat("snapshot all of ", args.prefix, " as ", args.snapshot);
  call.expect = [this, args] {
    const std::vector<Dataset> below = Subtree(args.prefix);
    if (below.empty()) return StatusCode::kNotFound;
    for (const Dataset& dataset : below) {
      if (FindSnapshot(StrCat(dataset->name, "@", args.snapshot)))
        return StatusCode::kAlreadyExists;
    }
    return StatusCode::kOk;
  };
  call.submit = [this, args](OutcomeCallback done) {
    (*pool_)->CreateSnapshots(args, std::nullopt, std::move(done));
  };
  call.apply = [this, args](const Outcome& outcome) {
    for (const Dataset& dataset : Subtree(args.prefix)) {
      AddSnapshot(dataset, args.snapshot, outcome.txg);
    }
  };
  return call;
}

PoolModel::Call PoolModel::Clone() {
  CloneDatasetArgs args;
  const bool of_head = Chance(25);
  args.source = of_head ? KnownName() : KnownSnapshot();
  args.name = AnyName();
  args.replace = Chance(30);
  if (!shared() && Chance(5))
    args.expire_time_ms = pool_->now_ms() + static_cast<int64_t>(1 + Below(10));
  const std::string source = args.source.substr(0, args.source.find('@'));
  Call call;
  call.text = StrCat("clone ", args.source, " as ", args.name, args.replace ? ", replacing" : "");
  call.expect = [this, args, source, of_head] {
    const Dataset existing = Find(args.name);
    if (existing && !args.replace) return StatusCode::kAlreadyExists;
    if (args.replace && source == args.name) return StatusCode::kInvalidArgument;
    if (of_head ? Find(source) == nullptr : FindSnapshot(args.source) == nullptr) {
      return StatusCode::kNotFound;
    }
    const bool may = !existing || CanDestroy({existing}, /*recursive=*/false);
    return may ? StatusCode::kOk : StatusCode::kFailedPrecondition;
  };
  call.submit = [this, args](OutcomeCallback done) {
    (*pool_)->CloneDataset(args, std::nullopt, std::move(done));
  };
  call.apply = [this, args, source, of_head](const Outcome& outcome) {
    Snapshot origin;
    if (!of_head) {
      origin = FindSnapshot(args.source);
    } else {
      // Clones of one head made in one txg share its hidden snapshot.
      const Dataset head = Find(source);
      const Snapshot newest = head->snapshots.empty() ? nullptr : head->snapshots.back();
      const bool shared = newest && !newest->visible() && newest->txg == outcome.txg;
      origin = shared ? newest : AddSnapshot(head, "", outcome.txg);
    }
    const Dataset replaced = Find(args.name);
    AddClone("", origin, args.expire_time_ms);  // before what it replaces may take the origin along
    const Dataset clone = datasets_.back();
    if (replaced) RemoveDatasets({replaced});
    clone->name = args.name;
  };
  return call;
}

PoolModel::Call PoolModel::Promote() {
  std::string name = KnownName();
  for (const Dataset& dataset : datasets_) {
    if (dataset->origin && Chance(50)) name = dataset->name;
  }
  // The parent's snapshots up to the origin.
  const auto moved = [](const Dataset& clone) {
    std::vector<Snapshot> snapshots = clone->origin->owner->snapshots;
    std::erase_if(snapshots, [&](const Snapshot& s) { return s->txg > clone->origin->txg; });
    return snapshots;
  };
  Call call;
  call.text = "promote " + name;
  call.expect = [this, name, moved] {
    const Dataset clone = Find(name);
    if (clone == nullptr) return StatusCode::kNotFound;
    if (clone->origin == nullptr) return StatusCode::kFailedPrecondition;
    for (const Snapshot& snapshot : moved(clone)) {
      for (const Snapshot& own : clone->snapshots) {
        if (own->visible() && own->name == snapshot->name) return StatusCode::kAlreadyExists;
      }
    }
    return StatusCode::kOk;
  };
  call.submit = [this, name](OutcomeCallback done) {
    (*pool_)->PromoteDataset(name, "", std::nullopt, std::move(done));
  };
  call.apply = [this, name, moved](const Outcome&) {
    const Dataset clone = Find(name);
    const Snapshot pivot = clone->origin;
    ModelDataset* parent = pivot->owner;
    std::vector<Snapshot> snapshots = moved(clone);
    for (const Snapshot& snapshot : snapshots) {
      snapshot->owner = clone.get();
      std::erase(parent->snapshots, snapshot);
    }
    clone->snapshots.insert(clone->snapshots.begin(), snapshots.begin(), snapshots.end());
    clone->origin = parent->origin;
    parent->origin = pivot;
  };
  return call;
}

PoolModel::Call PoolModel::Rollback() {
  RollbackDatasetArgs args;
  args.name = KnownName();
  args.to_origin = Chance(35);
  args.destroy_newer = Chance(50);
  if (const Dataset dataset = Find(args.name);
      !args.to_origin && dataset && !dataset->snapshots.empty() && Chance(50)) {
    args.snapshot = dataset->snapshots[Below(dataset->snapshots.size())]->name;
  }
  const auto target_of = [args](const Dataset& dataset) -> Snapshot {
    if (args.to_origin) return dataset->origin;
    Snapshot found;
    for (const Snapshot& snapshot : dataset->snapshots) {
      if (snapshot->visible() && (args.snapshot.empty() || snapshot->name == args.snapshot)) {
        found = snapshot;
      }
    }
    return found;
  };
  Call call;
  call.text =
      StrCat("roll ", args.name, " back to ", args.to_origin ? "its origin" : "@" + args.snapshot,
             args.destroy_newer ? ", destroying newer" : "");
  call.expect = [this, args, target_of] {
    const Dataset dataset = Find(args.name);
    if (dataset == nullptr) return StatusCode::kNotFound;
    const Snapshot target = target_of(dataset);
    if (target == nullptr) {
      return args.snapshot.empty() ? StatusCode::kFailedPrecondition : StatusCode::kNotFound;
    }
    for (const Snapshot& snapshot : NewerThan(dataset, target->txg)) {
      const bool needed =
          !snapshot->holds.empty() || !ClonesOf(snapshot).empty() || IsKeptFor(snapshot);
      if (needed || (snapshot->visible() && !args.destroy_newer)) {
        return StatusCode::kFailedPrecondition;
      }
    }
    return StatusCode::kOk;
  };
  call.submit = [this, args](OutcomeCallback done) {
    (*pool_)->RollbackDataset(args, std::nullopt, std::move(done));
  };
  call.apply = [this, args, target_of](const Outcome&) {
    const Dataset dataset = Find(args.name);
    const Snapshot target = target_of(dataset);
    for (const Snapshot& snapshot : NewerThan(dataset, target->txg)) RemoveSnapshot(snapshot);
    dataset->cells = target->cells;
  };
  return call;
}

PoolModel::Call PoolModel::Rename() {
  const std::string from = KnownName();
  const std::string to = AnyName();
  Call call;
  call.text = StrCat("rename ", from, " to ", to);
  call.expect = [this, from, to] {
    if (Find(from) == nullptr) return StatusCode::kNotFound;
    return from != to && Find(to) ? StatusCode::kAlreadyExists : StatusCode::kOk;
  };
  call.submit = [this, from, to](OutcomeCallback done) {
    (*pool_)->RenameDataset(from, to, "", std::nullopt, std::move(done));
  };
  call.apply = [this, from, to](const Outcome&) { Find(from)->name = to; };
  return call;
}

PoolModel::Call PoolModel::RenameSnapshot() {
  const std::string from = KnownSnapshot();
  const std::string to = AnySnapshotName();
  Call call;
  call.text = StrCat("rename ", from, " to @", to);
  call.expect = [this, from, to] {
    const Snapshot snapshot = FindSnapshot(from);
    if (snapshot == nullptr) return StatusCode::kNotFound;
    const Snapshot taken = FindSnapshot(StrCat(snapshot->owner->name, "@", to));
    return taken && taken != snapshot ? StatusCode::kAlreadyExists : StatusCode::kOk;
  };
  call.submit = [this, from, to](OutcomeCallback done) {
    (*pool_)->RenameSnapshot(from, to, std::nullopt, std::move(done));
  };
  call.apply = [this, from, to](const Outcome&) { FindSnapshot(from)->name = to; };
  return call;
}

// Resizes within the cells, or moves the expiry.
PoolModel::Call PoolModel::Update() {
  UpdateDatasetArgs args;
  args.name = KnownName();
  uint64_t cells = 0;
  if (const Dataset dataset = Find(args.name); dataset && Chance(85)) {
    cells = 1 + Below(std::max<uint64_t>(dataset->cells.size() * 3 / 2, 8));
    cells = std::min<uint64_t>(cells, max_cells_);
    args.size_bytes = dataset->base_bytes + cells * kCellBytes;
  } else {
    args.expire_time_ms = Chance(50) ? 0 : pool_->now_ms() + static_cast<int64_t>(1 + Below(20));
  }
  Call call;
  call.text = StrCat("update ", args.name, ", cells ", cells);
  call.expect = [this, args] { return Find(args.name) ? StatusCode::kOk : StatusCode::kNotFound; };
  call.submit = [this, args](OutcomeCallback done) {
    (*pool_)->UpdateDataset(args, std::nullopt, std::move(done));
  };
  call.apply = [this, args, cells](const Outcome&) {
    const Dataset dataset = Find(args.name);
    if (cells > 0) dataset->cells.resize(cells, 0);
    if (args.expire_time_ms.has_value()) dataset->expire_ms = *args.expire_time_ms;
  };
  // In a burst a rename can come between: the base of another dataset would be a wrong size.
  call.alone = true;
  return call;
}

PoolModel::Call PoolModel::Hold() {
  HoldSnapshotArgs args;
  args.snapshot = KnownSnapshot();
  args.tag = kTags[Below(kTags.size())];
  if (Chance(30)) args.expire_time_ms = pool_->now_ms() + static_cast<int64_t>(1 + Below(10));
  Call call;
  call.text = StrCat("hold ", args.snapshot, " ", args.tag);
  call.expect = [this, args] {
    const Snapshot snapshot = FindSnapshot(args.snapshot);
    if (snapshot == nullptr) return StatusCode::kNotFound;
    return snapshot->holds.contains(args.tag) ? StatusCode::kAlreadyExists : StatusCode::kOk;
  };
  call.submit = [this, args](OutcomeCallback done) {
    (*pool_)->HoldSnapshot(args, std::nullopt, std::move(done));
  };
  call.apply = [this, args](const Outcome&) {
    FindSnapshot(args.snapshot)->holds[args.tag] = args.expire_time_ms;
  };
  return call;
}

PoolModel::Call PoolModel::Release() {
  std::string name = KnownSnapshot();
  std::string tag = kTags[Below(kTags.size())];
  for (const Dataset& dataset : datasets_) {
    for (const Snapshot& snapshot : dataset->snapshots) {
      if (snapshot->holds.empty() || Chance(40)) continue;
      name = StrCat(dataset->name, "@", snapshot->name);
      tag = snapshot->holds.begin()->first;
    }
  }
  Call call;
  call.text = StrCat("release ", name, " ", tag);
  call.expect = [this, name, tag] {
    const Snapshot snapshot = FindSnapshot(name);
    return snapshot && snapshot->holds.contains(tag) ? StatusCode::kOk : StatusCode::kNotFound;
  };
  call.submit = [this, name, tag](OutcomeCallback done) {
    (*pool_)->ReleaseHold(name, tag, std::nullopt, std::move(done));
  };
  call.apply = [this, name, tag](const Outcome&) {
    const Snapshot snapshot = FindSnapshot(name);
    snapshot->holds.erase(tag);
    Reap(snapshot);
  };
  return call;
}

PoolModel::Call PoolModel::Destroy() {
  DestroyDatasetsArgs args;
  for (uint64_t count = 1 + (Chance(15) ? Below(3) : 0); count > 0; --count) {
    const std::string name = KnownName();
    if (std::find(args.names.begin(), args.names.end(), name) == args.names.end()) {
      args.names.push_back(name);
    }
  }
  args.recursive = Chance(40);
  args.cascade = Chance(crowded_ ? 30 : 10);
  args.allow_missing = Chance(20);
  args.reclaim_after_ms = AnyWindowMs();
  const auto targets = [this, args] {
    std::vector<Dataset> found;
    for (const std::string& name : args.names) {
      if (const Dataset dataset = Find(name)) found.push_back(dataset);
    }
    return args.cascade ? Cascade(found) : found;
  };
  Call call;
  call.text = StrCat("destroy ", args.names[0], " and ", args.names.size() - 1, " more",
                     args.recursive ? ", recursive" : "", args.cascade ? ", cascade" : "",
                     args.reclaim_after_ms > 0 ? ", keeping" : "");
  call.expect = [this, args, targets] {
    for (const std::string& name : args.names) {
      if (Find(name) == nullptr && !args.allow_missing) return StatusCode::kNotFound;
    }
    return CanDestroy(targets(), args.recursive || args.cascade) ? StatusCode::kOk
                                                                 : StatusCode::kFailedPrecondition;
  };
  call.submit = [this, args](OutcomeCallback done) {
    (*pool_)->DestroyDatasets(args, std::nullopt, std::move(done));
  };
  call.apply = [this, args, targets](const Outcome& outcome) {
    Take(targets(), args.reclaim_after_ms, /*as_prefix=*/false, "", outcome);
  };
  return call;
}

PoolModel::Call PoolModel::DestroyPrefix() {
  DestroyDatasetsArgs args;
  args.prefix = Chance(50) ? prefix_ + "a" : KnownName();
  args.recursive = Chance(70);
  args.reclaim_after_ms = AnyWindowMs();
  Call call;
  call.text = StrCat("destroy all of ", args.prefix, args.recursive ? ", recursive" : "",
                     args.reclaim_after_ms > 0 ? ", keeping" : "");
  call.expect = [this, args] {
    const std::vector<Dataset> below = Subtree(args.prefix);
    if (below.empty()) return StatusCode::kNotFound;
    return CanDestroy(below, args.recursive) ? StatusCode::kOk : StatusCode::kFailedPrecondition;
  };
  call.submit = [this, args](OutcomeCallback done) {
    (*pool_)->DestroyDatasets(args, std::nullopt, std::move(done));
  };
  call.apply = [this, args](const Outcome& outcome) {
    Take(Subtree(args.prefix), args.reclaim_after_ms, /*as_prefix=*/true, args.prefix, outcome);
  };
  call.alone = call.drains = true;
  return call;
}

PoolModel::Call PoolModel::DestroySnapshots() {
  DestroySnapshotsArgs args;
  std::set<Snapshot> seen;
  for (uint64_t count = 1 + (Chance(25) ? Below(3) : 0); count > 0; --count) {
    const std::string name = KnownSnapshot();
    const Snapshot snapshot = FindSnapshot(name);
    if (snapshot == nullptr ? args.names.empty() : seen.insert(snapshot).second) {
      args.names.push_back(name);
    }
  }
  args.defer = Chance(50);
  Call call;
  call.text = StrCat("destroy ", args.names[0], " and ", args.names.size() - 1, " more",
                     args.defer ? ", deferred" : "");
  call.expect = [this, args] {
    std::set<Snapshot> found;
    for (const std::string& name : args.names) {
      const Snapshot snapshot = FindSnapshot(name);
      if (snapshot == nullptr) return StatusCode::kNotFound;
      if (!found.insert(snapshot).second) return StatusCode::kInvalidArgument;
    }
    for (const Snapshot& snapshot : found) {
      if (!args.defer && !(snapshot->holds.empty() && ClonesOf(snapshot).empty())) {
        return StatusCode::kFailedPrecondition;
      }
    }
    return StatusCode::kOk;
  };
  call.submit = [this, args](OutcomeCallback done) {
    (*pool_)->DestroySnapshots(args, std::nullopt, std::move(done));
  };
  call.apply = [this, args](const Outcome&) {
    std::vector<Snapshot> found;
    for (const std::string& name : args.names) found.push_back(FindSnapshot(name));
    for (const Snapshot& snapshot : found) {
      snapshot->deferred = true;
      Reap(snapshot);
    }
  };
  return call;
}

PoolModel::Call PoolModel::DestroyRange() {
  DestroySnapshotsArgs args;
  args.range_dataset = KnownName();
  if (const Dataset dataset = Find(args.range_dataset); dataset && !dataset->snapshots.empty()) {
    const auto pick = [&] { return dataset->snapshots[Below(dataset->snapshots.size())]->name; };
    if (Chance(70)) args.range_first = pick();
    if (Chance(70)) args.range_last = pick();
  }
  const auto in_range = [this, args] {
    std::vector<Snapshot> found;
    const Dataset dataset = Find(args.range_dataset);
    const auto txg_of = [&](const std::string& name, Txg open) {
      return name.empty() ? open : FindSnapshot(StrCat(dataset->name, "@", name))->txg;
    };
    for (const Snapshot& snapshot : dataset->snapshots) {
      if (snapshot->visible() && snapshot->txg >= txg_of(args.range_first, 0) &&
          snapshot->txg <= txg_of(args.range_last, UINT64_MAX)) {
        found.push_back(snapshot);
      }
    }
    return found;
  };
  Call call;
  call.text = StrCat("destroy ", args.range_dataset, "@", args.range_first, "..", args.range_last);
  call.expect = [this, args, in_range] {
    const Dataset dataset = Find(args.range_dataset);
    if (dataset == nullptr) return StatusCode::kNotFound;
    for (const std::string& name : {args.range_first, args.range_last}) {
      if (!name.empty() && !FindSnapshot(StrCat(dataset->name, "@", name))) {
        return StatusCode::kNotFound;
      }
    }
    if (!args.range_first.empty() && !args.range_last.empty() &&
        FindSnapshot(StrCat(dataset->name, "@", args.range_first))->txg >
            FindSnapshot(StrCat(dataset->name, "@", args.range_last))->txg) {
      return StatusCode::kInvalidArgument;
    }
    for (const Snapshot& snapshot : in_range()) {
      if (!snapshot->holds.empty() || !ClonesOf(snapshot).empty()) {
        return StatusCode::kFailedPrecondition;
      }
    }
    return StatusCode::kOk;
  };
  call.submit = [this, args](OutcomeCallback done) {
    (*pool_)->DestroySnapshots(args, std::nullopt, std::move(done));
  };
  call.apply = [this, in_range](const Outcome&) {
    for (const Snapshot& snapshot : in_range()) {
      snapshot->deferred = true;  // for those with clones that wait
      Reap(snapshot);
    }
  };
  return call;
}

PoolModel::Call PoolModel::RandomCall() {
  const uint64_t dice = Below(100);
  if (datasets_.size() < 2 || dice < 8) return Create();
  if (dice < 26) {
    const Dataset dataset = AnyDataset();
    if (dataset->snapshots.size() > kMaxSnapshots) return DestroyRange();
    return dice < 23 ? TakeSnapshot() : TakeSnapshots();
  }
  if (dice < 41) return Clone();
  if (dice < 48) return Promote();
  if (dice < 58) return Rollback();
  if (dice < 62) return Rename();
  if (dice < 65) return RenameSnapshot();
  if (dice < 72) return Update();
  if (dice < 75) return Hold();
  if (dice < 80) return Release();
  if (dice < 84 && !windows_.empty() && Chance(60)) return Undestroy();
  if (dice < 88) return Destroy();
  if (dice < 89 && !shared()) return DestroyPrefix();
  return dice < 98 ? DestroySnapshots() : DestroyRange();
}

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
#include "service/nbd/meta_context.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/base/strings.h"

namespace cowshed::service::nbd {
namespace {

constexpr std::string_view kBase = "base:";
constexpr std::string_view kAllocation = "base:allocation";
constexpr std::string_view kCowshed = "cowshed:";
constexpr std::string_view kChangedSince = "cowshed:changed-since:";
// Blocks looked at under one view of the pool, and in one answer.
constexpr uint64_t kBlocksPerBite = 4096;
constexpr uint64_t kBlocksMax = 1 << 18;

std::string DatasetOf(const std::string& name) { return name.substr(0, name.find('@')); }

// The uid that `name`, a dataset or a snapshot, has now.
absl::StatusOr<std::string> UidOf(engine::Pool& pool, const std::string& name) {
  if (name.find('@') == std::string::npos) {
    ASSIGN_OR_RETURN(const engine::DatasetInfo info, pool.GetDataset(name));
    return info.uid;
  }
  ASSIGN_OR_RETURN(const engine::SnapshotInfo info, pool.GetSnapshot(name));
  return info.uid;
}

// Whether what changed from `since` to the export can be told.
bool IsOlder(engine::Pool& pool, const engine::SnapshotInfo& since, const ExportInfo& info) {
  if (since.uid == info.uid) return false;
  if (info.name.find('@') != std::string::npos) {
    const auto to = pool.GetSnapshot(info.name);
    if (!to.ok() || to->create_txg < since.create_txg) return false;
  }
  // From the end on there is nothing to compare: only the lineage is looked at.
  return pool.Diff(since.name, info.name, info.size_bytes, [](const auto&) { return false; }).ok();
}

class Finder {
 public:
  Finder(engine::Pool& pool, Exports& exports, const ExportInfo& info)
      : pool_(pool), exports_(exports), info_(info) {}

  void AddAllocation() { Add({0, std::string(kAllocation), "", ""}); }

  void AddChangedSince(std::string_view snapshot) {
    std::string name(snapshot);
    if (!name.empty() && name[0] == '@') name = DatasetOf(info_.name) + name;
    if (!exports_.MayRead(name)) return;
    const auto since = pool_.GetSnapshot(name);
    // Named as it was asked for: clients look for their own words in the answer.
    if (since.ok() && IsOlder(pool_, *since, info_)) Add(ContextOf(snapshot, *since));
  }

  // Of the snapshots of the export's own dataset.
  void AddAllChangedSince() {
    engine::ListArgs args;
    args.parent = DatasetOf(info_.name);
    args.page_size = kContextsListedMax;
    if (!exports_.MayRead(args.parent)) return;
    const auto page = pool_.ListSnapshots(args);
    if (!page.ok()) return;
    for (const auto& since : page->items) {
      if (IsOlder(pool_, since, info_)) Add(ContextOf(since.name, since));
    }
  }

  std::vector<MetaContext> Take() { return std::move(found_); }

 private:
  static MetaContext ContextOf(std::string_view named, const engine::SnapshotInfo& since) {
    return {0, engine::StrCat(kChangedSince, named), since.name, since.uid};
  }
  void Add(MetaContext context) {
    const bool known = std::any_of(found_.begin(), found_.end(), [&](const MetaContext& other) {
      return other.name == context.name;
    });
    if (known || found_.size() == kContextsListedMax) return;
    context.id = static_cast<uint32_t>(found_.size() + 1);
    found_.push_back(std::move(context));
  }

  engine::Pool& pool_;
  Exports& exports_;
  const ExportInfo& info_;
  std::vector<MetaContext> found_;
};

// Makes a list of extents without two neighbours alike.
class ExtentList {
 public:
  explicit ExtentList(const Request& request)
      : next_(request.offset_bytes),
        end_(next_ + request.length_bytes),
        extents_max_(request.Has(command_flags::kReqOne) ? 1 : kExtentsMax) {}

  uint64_t next() const { return next_; }
  uint64_t end() const { return end_; }
  bool full() const { return full_ || next_ == end_; }
  // All up to `to` is so.
  void AddUpTo(uint64_t to, uint32_t flags) {
    to = std::min(to, end_);
    if (to <= next_ || full_) return;
    const auto length = static_cast<uint32_t>(to - next_);
    if (!extents_.empty() && extents_.back().flags == flags) {
      extents_.back().length_bytes += length;
    } else if (extents_.size() == extents_max_) {
      full_ = true;
      return;
    } else {
      extents_.push_back({length, flags});
    }
    next_ = to;
  }
  std::vector<Extent> Take() { return std::move(extents_); }

 private:
  uint64_t next_;
  const uint64_t end_;
  const size_t extents_max_;
  bool full_ = false;
  std::vector<Extent> extents_;
};

absl::Status AddAllocation(engine::Volume& volume, ExtentList* list) {
  const uint64_t begin = list->next();
  const uint64_t bite_bytes = kBlocksPerBite * volume.block_bytes();
  for (uint64_t blocks = 0; !list->full() && blocks < kBlocksMax; blocks += kBlocksPerBite) {
    ASSIGN_OR_RETURN(const uint64_t data, volume.NextData(list->next()));
    list->AddUpTo(data, kExtentHole | kExtentZero);
    if (list->full()) break;
    const uint64_t end = std::min(list->end(), list->next() + bite_bytes);
    ASSIGN_OR_RETURN(const uint64_t hole, volume.NextHole(list->next(), end));
    list->AddUpTo(hole, 0);
  }
  // Where a discard was always quicker between the two looks: data is never a wrong answer.
  if (list->next() == begin) list->AddUpTo(begin + volume.block_bytes(), 0);
  return absl::OkStatus();
}

absl::Status CheckUid(engine::Pool& pool, const std::string& name, const std::string& uid) {
  ASSIGN_OR_RETURN(const std::string now, UidOf(pool, name));
  if (now == uid) return absl::OkStatus();
  return absl::FailedPreconditionError(engine::StrCat(name, " is another one by now"));
}

absl::Status AddChanges(engine::Pool& pool, const ExportInfo& info, const MetaContext& context,
                        ExtentList* list) {
  bool complete = true;
  RETURN_IF_ERROR(pool.Diff(context.since, info.name, list->next(), [&](const auto& extent) {
    list->AddUpTo(extent.offset_bytes, 0);
    list->AddUpTo(extent.offset_bytes + extent.length_bytes,
                  extent.data ? kExtentChanged : kExtentChanged | kExtentZero);
    complete = !list->full();
    return complete;
  }));
  // Names are looked up by Diff: they must mean what they meant, or the answer is of others.
  RETURN_IF_ERROR(CheckUid(pool, context.since, context.since_uid));
  RETURN_IF_ERROR(CheckUid(pool, info.name, info.uid));
  if (complete) list->AddUpTo(list->end(), 0);
  return absl::OkStatus();
}

}  // namespace

std::vector<MetaContext> FindContexts(engine::Pool& pool, Exports& exports, const ExportInfo& info,
                                      const std::vector<std::string>& queries, bool list) {
  Finder finder(pool, exports, info);
  if (list && queries.empty()) {
    finder.AddAllocation();
    finder.AddAllChangedSince();
  }
  for (const std::string& query : queries) {
    if (query == kAllocation || (list && query == kBase)) {
      finder.AddAllocation();
    } else if (list && (query == kCowshed || query == kChangedSince)) {
      finder.AddAllChangedSince();
    } else if (query.compare(0, kChangedSince.size(), kChangedSince) == 0) {
      finder.AddChangedSince(std::string_view(query).substr(kChangedSince.size()));
    }
  }
  std::vector<MetaContext> found = finder.Take();
  if (!list && found.size() > kContextsMax) found.resize(kContextsMax);
  return found;
}

absl::StatusOr<std::vector<Extent>> ExtentsOf(engine::Pool& pool, engine::Volume& volume,
                                              const ExportInfo& info, const MetaContext& context,
                                              const Request& request) {
  ExtentList list(request);
  RETURN_IF_ERROR(context.since.empty() ? AddAllocation(volume, &list)
                                        : AddChanges(pool, info, context, &list));
  return list.Take();
}

}  // namespace cowshed::service::nbd

// SPDX-License-Identifier: Apache-2.0
#include "engine/attached.h"

#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/catalog.h"

namespace cowshed::engine {
namespace {

// Which attachments a list is about.
struct Filter {
  std::string prefix;
  std::optional<DatasetId> dataset;
  std::optional<SnapshotId> snapshot;

  bool Has(const std::string& name, const std::optional<Attached>& attached) const {
    if (dataset.has_value()) return attached.has_value() && attached->dataset == *dataset;
    if (snapshot.has_value()) return attached.has_value() && attached->snapshot == *snapshot;
    if (prefix.empty()) return true;
    if (name.compare(0, prefix.size(), prefix) != 0) return false;
    return name.size() == prefix.size() || name[prefix.size()] == '/' || name[prefix.size()] == '@';
  }
};

absl::StatusOr<Filter> MakeFilter(const MetaTxn& txn, const ListArgs& args) {
  Filter filter;
  if (!args.prefix.empty()) {
    ASSIGN_OR_RETURN(filter.prefix, ParseDatasetName(args.prefix));
  }
  if (args.parent.empty()) return filter;
  ASSIGN_OR_RETURN(const ParsedName parsed, ParseName(args.parent));
  if (parsed.snapshot.empty()) {
    ASSIGN_OR_RETURN(const FoundDataset dataset, ResolveDataset(txn, args.parent));
    filter.dataset = dataset.id;
  } else {
    ASSIGN_OR_RETURN(const FoundSnapshot snapshot, ResolveSnapshot(txn, args.parent));
    filter.snapshot = snapshot.id;
  }
  return filter;
}

}  // namespace

absl::StatusOr<std::optional<Attached>> FindAttached(const MetaTxn& txn, uint64_t object) {
  Attached attached;
  ASSIGN_OR_RETURN(std::optional<DatasetRecord> owner, FindRecord<DatasetRecord>(txn, Key(object)));
  std::optional<SnapshotRecord> snapshot;
  attached.dataset = DatasetId{object};
  if (!owner.has_value()) {
    ASSIGN_OR_RETURN(snapshot, FindRecord<SnapshotRecord>(txn, Key(object)));
    if (!snapshot.has_value() || !snapshot->visible()) return std::nullopt;
    attached.dataset = snapshot->dataset;
    attached.snapshot = SnapshotId{object};
    ASSIGN_OR_RETURN(owner, FindRecord<DatasetRecord>(txn, Key(snapshot->dataset)));
    if (!owner.has_value()) return std::nullopt;  // it went with a rollback
  }
  ASSIGN_OR_RETURN(const bool destroyed, IsDestroyed(txn, *owner));
  if (destroyed) return std::nullopt;
  ASSIGN_OR_RETURN(attached.name, Names::FullName(txn, *owner));
  if (snapshot.has_value()) attached.name = SnapshotFullName(attached.name, snapshot->name);
  return attached;
}

absl::StatusOr<Page<AttachmentInfo>> ListAttachments(const MetaTxn& txn,
                                                     const Attachments& attachments,
                                                     const ListArgs& args) {
  uint64_t after = 0;
  if (!args.position.empty() && !absl::SimpleAtoi(View(args.position), &after)) {
    return absl::InvalidArgumentError("the position of a list of attachments is malformed");
  }
  ASSIGN_OR_RETURN(const Filter filter, MakeFilter(txn, args));
  std::map<uint64_t, std::optional<Attached>> found;  // by object
  Page<AttachmentInfo> page;
  for (AttachmentInfo& info : attachments.List()) {
    if (info.number <= after) continue;
    const auto [it, first] = found.try_emplace(info.object);
    if (first) {
      ASSIGN_OR_RETURN(it->second, FindAttached(txn, info.object));
    }
    if (it->second.has_value()) info.name = it->second->name;
    if (!filter.Has(info.name, it->second)) continue;
    if (page.items.size() == args.page_size) {
      page.next = StrCat(page.items.back().number);
      break;
    }
    page.items.push_back(std::move(info));
  }
  return page;
}

}  // namespace cowshed::engine

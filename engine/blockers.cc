// SPDX-License-Identifier: Apache-2.0
#include "engine/blockers.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/attached.h"
#include "engine/base/status_macros.h"
#include "engine/catalog.h"
#include "engine/store/codec.h"

namespace cowshed::engine {
namespace {

constexpr uint32_t kMaxExamined = 5000;
constexpr uint32_t kFirstInError = 20;
constexpr size_t kTargetBytes = 4;  // a position is the number of its target, then the last key

// The stretch of an index that holds a target's blockers.
struct Stretch {
  Table table;
  Key prefix;
  Key start;
};

Stretch StretchOf(const BlockerQuery::Target& target) {
  switch (target.kind) {
    case BlockerKind::kSnapshot:
    case BlockerKind::kNewerSnapshot:
      return {Table::kSnapshotsByTxg, Key(target.id), Key(target.id, target.floor_txg + 1)};
    case BlockerKind::kClone:
      return {Table::kClones, Key(target.id), Key(target.id)};
    case BlockerKind::kHold:
      return {Table::kHolds, Key(target.id), Key(target.id)};
    case BlockerKind::kNameCollision:
      return {Table::kSnapshotsByName, Key(target.id), Key(target.id)};
    case BlockerKind::kAttachment:
      break;  // in memory: AddAttachments
  }
  return {Table::kSnapshotsByTxg, Key(target.id), Key(target.id)};
}

absl::StatusOr<std::string> NameOfDataset(const MetaTxn& txn, DatasetId id) {
  ASSIGN_OR_RETURN(const DatasetRecord record, LoadRecord<DatasetRecord>(txn, Key(id)));
  return Names::FullName(txn, record);
}

// Full name of a snapshot; of a hidden one its dataset's, which is what a caller knows it by.
absl::StatusOr<std::string> NameOfSnapshot(const MetaTxn& txn, const SnapshotRecord& record) {
  ASSIGN_OR_RETURN(const std::string dataset, NameOfDataset(txn, record.dataset));
  return record.name.empty() ? dataset : SnapshotFullName(dataset, record.name);
}

// Turns the index entries of one target into blockers.
class TargetReader {
 public:
  TargetReader(const MetaTxn& txn, const BlockerQuery::Target& target)
      : txn_(txn), target_(target) {}

  // False if the target does not exist any more, or cannot be blocked that way.
  absl::StatusOr<bool> Open() {
    switch (target_.kind) {
      case BlockerKind::kSnapshot:
      case BlockerKind::kNewerSnapshot: {
        ASSIGN_OR_RETURN(const auto dataset, FindRecord<DatasetRecord>(txn_, Key(target_.id)));
        if (!dataset.has_value()) return false;
        ASSIGN_OR_RETURN(blocked_, Names::FullName(txn_, *dataset));
        return true;
      }
      case BlockerKind::kClone:
      case BlockerKind::kHold: {
        ASSIGN_OR_RETURN(const auto snapshot, FindRecord<SnapshotRecord>(txn_, Key(target_.id)));
        if (!snapshot.has_value()) return false;
        ASSIGN_OR_RETURN(blocked_, NameOfSnapshot(txn_, *snapshot));
        return true;
      }
      case BlockerKind::kNameCollision: {
        ASSIGN_OR_RETURN(const auto clone, FindRecord<DatasetRecord>(txn_, Key(target_.id)));
        if (!clone.has_value() || clone->origin == SnapshotId{}) return false;
        ASSIGN_OR_RETURN(const SnapshotRecord origin,
                         LoadRecord<SnapshotRecord>(txn_, Key(clone->origin)));
        parent_ = origin.dataset;
        origin_txg_ = origin.txg;
        ASSIGN_OR_RETURN(blocked_, NameOfDataset(txn_, parent_));
        ASSIGN_OR_RETURN(clone_, Names::FullName(txn_, *clone));
        return true;
      }
      case BlockerKind::kAttachment:
        break;
    }
    return false;
  }

  // The blocker that the entry stands for; nullopt if it does not block.
  absl::StatusOr<std::optional<Blocker>> Read(std::string_view key, std::string_view value) const {
    switch (target_.kind) {
      case BlockerKind::kSnapshot:
      case BlockerKind::kNewerSnapshot: {
        ASSIGN_OR_RETURN(const SnapshotRecord snapshot, LoadSnapshot(value));
        if (!snapshot.visible()) return std::nullopt;
        return Blocker{target_.kind, SnapshotFullName(blocked_, snapshot.name), blocked_, ""};
      }
      case BlockerKind::kClone: {
        ASSIGN_OR_RETURN(const auto clone,
                         LoadRecord<DatasetRecord>(txn_, Key(KeyNumber<DatasetId>(key, 8))));
        ASSIGN_OR_RETURN(const bool destroyed, IsDestroyed(txn_, clone));
        if (destroyed) return std::nullopt;
        ASSIGN_OR_RETURN(std::string name, Names::FullName(txn_, clone));
        return Blocker{target_.kind, std::move(name), blocked_, ""};
      }
      case BlockerKind::kHold:
        return Blocker{target_.kind, blocked_, blocked_, std::string(key.substr(8))};
      case BlockerKind::kNameCollision:
        return ReadCollision(key.substr(8));
      case BlockerKind::kAttachment:
        break;
    }
    return std::nullopt;
  }

 private:
  absl::StatusOr<SnapshotRecord> LoadSnapshot(std::string_view index_value) const {
    return LoadRecord<SnapshotRecord>(txn_, Key(KeyNumber<SnapshotId>(index_value, 0)));
  }

  absl::StatusOr<std::optional<Blocker>> ReadCollision(std::string_view name) const {
    ASSIGN_OR_RETURN(const auto theirs, txn_.Get(Table::kSnapshotsByName, Key(parent_, name)));
    if (!theirs.has_value()) return std::nullopt;
    ASSIGN_OR_RETURN(const SnapshotRecord snapshot, LoadSnapshot(*theirs));
    if (snapshot.txg > origin_txg_) return std::nullopt;  // stays with the parent
    return Blocker{BlockerKind::kNameCollision, SnapshotFullName(clone_, name),
                   SnapshotFullName(blocked_, name), ""};
  }

  const MetaTxn& txn_;
  const BlockerQuery::Target target_;
  std::string blocked_;  // name of what is blocked; of the parent for kNameCollision
  std::string clone_;    // kNameCollision
  DatasetId parent_{};   // kNameCollision
  Txg origin_txg_ = 0;   // kNameCollision
};

std::string PositionAt(size_t target, std::string_view key) {
  return std::string(Key(static_cast<uint32_t>(target), key));
}

// Adds the attachments of one dataset or snapshot behind `*last`, the key of one, as far as the
// page goes. False: there are more. They block what they hold, so they are called as it is.
absl::StatusOr<bool> AddAttachments(const MetaTxn& txn, const Attachments& attachments,
                                    uint64_t object, uint32_t page_size, Page<Blocker>* page,
                                    std::string* last) {
  ASSIGN_OR_RETURN(const std::optional<Attached> attached, FindAttached(txn, object));
  if (!attached.has_value()) return true;
  const uint64_t after = last->size() == 8 ? KeyNumber<uint64_t>(*last, 0) : 0;
  const size_t room = page_size - page->items.size();
  const std::vector<AttachmentInfo> found = attachments.ListOf(object, after, room + 1);
  for (size_t i = 0; i < std::min(found.size(), room); ++i) {
    page->items.push_back({BlockerKind::kAttachment, attached->name, attached->name, "",
                           found[i].id, found[i].client, found[i].since_ms});
    *last = std::string(Key(found[i].number));
  }
  return found.size() <= room;
}

}  // namespace

absl::StatusOr<Page<Blocker>> ListBlockers(const MetaTxn& txn, const Attachments& attachments,
                                           const BlockerQuery& query, uint32_t page_size,
                                           std::string_view position) {
  size_t target = 0;
  std::string_view after;
  if (!position.empty()) {
    if (position.size() < kTargetBytes) {
      return absl::InvalidArgumentError("the position of a list of blockers is malformed");
    }
    target = KeyNumber<uint32_t>(position, 0);
    after = position.substr(kTargetBytes);
  }
  Page<Blocker> page;
  uint32_t examined = 0;
  for (; target < query.targets.size(); ++target, after = {}) {
    std::string last(after);
    if (query.targets[target].kind == BlockerKind::kAttachment) {
      ASSIGN_OR_RETURN(const bool all, AddAttachments(txn, attachments, query.targets[target].id,
                                                      page_size, &page, &last));
      if (all) continue;
      page.next = PositionAt(target, last);
      return page;
    }
    TargetReader reader(txn, query.targets[target]);
    ASSIGN_OR_RETURN(const bool exists, reader.Open());
    ++examined;
    const Stretch stretch = StretchOf(query.targets[target]);
    MetaCursor cursor(txn, stretch.table);
    // No key equals another one with a zero byte behind it: the next key after `after`.
    cursor.Seek(after.empty() ? std::string(stretch.start) : std::string(after) + '\0');
    for (; exists && cursor.ValidFor(stretch.prefix); cursor.Next()) {
      if (page.items.size() >= page_size || examined >= kMaxExamined) {
        page.next = PositionAt(target, last);
        return page;
      }
      ++examined;
      last = std::string(cursor.key());
      ASSIGN_OR_RETURN(auto blocker, reader.Read(cursor.key(), cursor.value()));
      if (blocker.has_value()) page.items.push_back(*std::move(blocker));
    }
    RETURN_IF_ERROR(cursor.status());
    if (examined >= kMaxExamined && target + 1 < query.targets.size()) {
      page.next = PositionAt(target + 1, "");
      return page;
    }
  }
  return page;
}

absl::StatusOr<Blockers> MakeBlockers(const MetaTxn& txn, const Attachments& attachments,
                                      BlockerQuery query, uint64_t total) {
  ASSIGN_OR_RETURN(Page<Blocker> page, ListBlockers(txn, attachments, query, kFirstInError, {}));
  Blockers blockers;
  blockers.total = total;
  blockers.first = std::move(page.items);
  blockers.query = std::move(query);
  return blockers;
}

}  // namespace cowshed::engine

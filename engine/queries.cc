// SPDX-License-Identifier: Apache-2.0
#include "engine/queries.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/catalog.h"
#include "engine/destroy_plan.h"
#include "engine/scrubber.h"
#include "engine/store/codec.h"
#include "engine/tree/live_list.h"

namespace cowshed::engine {
namespace {

constexpr uint32_t kMaxExamined = 5000;

absl::Status BadPosition() {
  return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_PAGE_TOKEN",
                   "the position does not belong to this list");
}

// What a page may still take in and look at.
template <typename Info>
class PageBuilder {
 public:
  explicit PageBuilder(uint32_t page_size) : room_(std::max(page_size, 1u)) {}

  // Whether another record may be examined. If not, the page ends behind what was examined last.
  bool Admits() {
    if (page_.items.size() >= room_ || examined_ >= kMaxExamined) {
      full_ = true;
      return false;
    }
    ++examined_;
    return true;
  }
  void Add(Info info) { page_.items.push_back(std::move(info)); }
  // The page, to go on at `next` if it was not the last.
  Page<Info> Finish(std::string next) {
    if (full_) page_.next = std::move(next);
    return std::move(page_);
  }

 private:
  const size_t room_;
  uint32_t examined_ = 0;
  bool full_ = false;
  Page<Info> page_;
};

// The least key above `key`.
std::string Above(std::string_view key) { return std::string(key) + '\0'; }

absl::StatusOr<FoundDataset> LoadDataset(const MetaTxn& txn, DatasetId id) {
  FoundDataset found;
  found.id = id;
  ASSIGN_OR_RETURN(found.record, LoadRecord<DatasetRecord>(txn, Key(id)));
  return found;
}

// `name`, of the dataset, is filled in if it is empty.
absl::StatusOr<FoundSnapshot> LoadSnapshot(const MetaTxn& txn, SnapshotId id,
                                           std::string_view dataset_name = {}) {
  FoundSnapshot found;
  found.id = id;
  ASSIGN_OR_RETURN(found.record, LoadRecord<SnapshotRecord>(txn, Key(id)));
  std::string owner(dataset_name);
  if (owner.empty()) {
    ASSIGN_OR_RETURN(const auto dataset, LoadRecord<DatasetRecord>(txn, Key(found.record.dataset)));
    ASSIGN_OR_RETURN(owner, Names::FullName(txn, dataset));
  }
  found.name = SnapshotFullName(owner, found.record.name);
  return found;
}

// --- datasets ------------------------------------------------------------------------------------

absl::Status AddDataset(const MetaTxn& txn, const PoolUid& pool, const ListArgs& args,
                        const FoundDataset& found, PageBuilder<DatasetInfo>* page) {
  if (!MatchesLabels(found.record.labels, args.labels)) return absl::OkStatus();
  ASSIGN_OR_RETURN(DatasetInfo info, Describe(txn, pool, found));
  if (args.state != 0 && info.state != static_cast<DatasetState>(args.state)) {
    return absl::OkStatus();
  }
  page->Add(std::move(info));
  return absl::OkStatus();
}

bool IsBelow(std::string_view name, std::string_view prefix) {
  return prefix.empty() || name == prefix ||
         (name.size() > prefix.size() && name.starts_with(prefix) && name[prefix.size()] == '/');
}

// Walks datasets by name behind `position` until `visit` returns false.
absl::Status WalkDatasets(const MetaTxn& txn, std::string_view prefix, std::string_view position,
                          const std::function<absl::StatusOr<bool>(FoundDataset)>& visit) {
  return Names::Walk(txn, prefix, position,
                     [&](const std::string& name, DatasetId id) -> absl::StatusOr<bool> {
                       ASSIGN_OR_RETURN(FoundDataset found, LoadDataset(txn, id));
                       found.name = name;
                       return visit(std::move(found));
                     });
}

// The clones of one snapshot behind `*last_clone`, which moves along; false once the page is full.
absl::StatusOr<bool> AddClones(const MetaTxn& txn, const PoolUid& pool, const ListArgs& args,
                               SnapshotId snapshot, uint64_t* last_clone,
                               PageBuilder<DatasetInfo>* page) {
  const Key prefix(snapshot);
  MetaCursor cursor(txn, Table::kClones);
  for (cursor.Seek(Key(snapshot, *last_clone + 1)); cursor.ValidFor(prefix); cursor.Next()) {
    if (!page->Admits()) return false;
    *last_clone = KeyNumber<uint64_t>(cursor.key(), 8);
    ASSIGN_OR_RETURN(FoundDataset found, LoadDataset(txn, DatasetId{*last_clone}));
    ASSIGN_OR_RETURN(const bool destroyed, IsDestroyed(txn, found.record));
    if (destroyed) continue;
    ASSIGN_OR_RETURN(const bool nameless, Names::IsDetached(txn, found.record));
    if (nameless) continue;
    ASSIGN_OR_RETURN(found.name, Names::FullName(txn, found.record));
    if (!IsBelow(found.name, args.prefix)) continue;
    RETURN_IF_ERROR(AddDataset(txn, pool, args, found, page));
  }
  RETURN_IF_ERROR(cursor.status());
  return true;
}

// Position: txg of the snapshot and id of its clone seen last.
absl::StatusOr<Page<DatasetInfo>> ListClones(const MetaTxn& txn, const PoolUid& pool,
                                             const ListArgs& args) {
  Txg txg = 0;
  uint64_t last_clone = 0;
  if (!args.position.empty()) {
    Decoder position(args.position);
    position.Get(&txg).Get(&last_clone);
    if (!position.Finish("position").ok()) return BadPosition();
  }
  PageBuilder<DatasetInfo> page(args.page_size);
  const auto finish = [&] { return page.Finish(Encoder().Put(txg).Put(last_clone).Take()); };
  if (args.origin.find('@') != std::string::npos) {
    ASSIGN_OR_RETURN(const FoundSnapshot origin, ResolveSnapshot(txn, args.origin));
    txg = origin.record.txg;
    RETURN_IF_ERROR(AddClones(txn, pool, args, origin.id, &last_clone, &page).status());
    return finish();
  }
  ASSIGN_OR_RETURN(const FoundDataset parent, ResolveDataset(txn, args.origin));
  const Key prefix(parent.id);
  MetaCursor cursor(txn, Table::kSnapshotsByTxg);
  for (cursor.Seek(Key(parent.id, txg)); cursor.ValidFor(prefix); cursor.Next()) {
    const Txg at = KeyNumber<Txg>(cursor.key(), 8);
    if (at != txg && !page.Admits()) return finish();
    if (at != txg) last_clone = 0;
    txg = at;
    const auto snapshot = KeyNumber<SnapshotId>(cursor.value(), 0);
    ASSIGN_OR_RETURN(const bool all, AddClones(txn, pool, args, snapshot, &last_clone, &page));
    if (!all) return finish();
  }
  RETURN_IF_ERROR(cursor.status());
  return finish();
}

// --- snapshots -----------------------------------------------------------------------------------

// Where a list of snapshots, or of their holds, goes on.
struct SnapshotPosition {
  std::string dataset;  // name
  Txg next_txg = 0;     // first snapshot of it to look at
  std::string tag;      // holds: seen last of the snapshot at next_txg

  std::string Encode() const {
    return Encoder().PutString(dataset).Put(next_txg).PutString(tag).Take();
  }
  absl::Status Decode(std::string_view bytes) {
    if (bytes.empty()) return absl::OkStatus();
    Decoder decoder(bytes);
    decoder.GetString(&dataset).Get(&next_txg).GetString(&tag);
    return decoder.Finish("position").ok() ? absl::OkStatus() : BadPosition();
  }
};

using SnapshotVisitor = std::function<absl::StatusOr<bool>(const FoundSnapshot&)>;

// Visits the visible snapshots of one dataset from `*position` on, which moves along; false once
// `visit` said so or `admits`, asked before each snapshot, visible or not.
absl::StatusOr<bool> VisitSnapshots(const MetaTxn& txn, const FoundDataset& dataset,
                                    const std::function<bool()>& admits,
                                    const SnapshotVisitor& visit, SnapshotPosition* position) {
  if (dataset.record.all_snapshots == 0) return true;
  const Key prefix(dataset.id);
  MetaCursor cursor(txn, Table::kSnapshotsByTxg);
  for (cursor.Seek(Key(dataset.id, position->next_txg)); cursor.ValidFor(prefix); cursor.Next()) {
    if (!admits()) return false;
    const Txg txg = KeyNumber<Txg>(cursor.key(), 8);
    if (txg != position->next_txg) position->tag.clear();
    position->next_txg = txg;
    ASSIGN_OR_RETURN(const FoundSnapshot found,
                     LoadSnapshot(txn, KeyNumber<SnapshotId>(cursor.value(), 0), dataset.name));
    if (found.record.visible()) {
      ASSIGN_OR_RETURN(const bool more, visit(found));
      if (!more) return false;
    }
    position->next_txg = txg + 1;
    position->tag.clear();
  }
  RETURN_IF_ERROR(cursor.status());
  return true;
}

// Visits the snapshots of `args.parent`, or of the datasets below `args.prefix`, from `*position`
// on, which moves along.
absl::Status WalkSnapshots(const MetaTxn& txn, const ListArgs& args,
                           const std::function<bool()>& admits, const SnapshotVisitor& visit,
                           SnapshotPosition* position) {
  if (!args.parent.empty()) {
    ASSIGN_OR_RETURN(const FoundDataset parent, ResolveDataset(txn, args.parent));
    return VisitSnapshots(txn, parent, admits, visit, position).status();
  }
  const std::string resumed = position->dataset;
  if (!resumed.empty()) {
    if (!IsBelow(resumed, args.prefix)) return BadPosition();
    ASSIGN_OR_RETURN(const std::optional<DatasetId> id, Names::Find(txn, resumed));
    if (id.has_value()) {
      ASSIGN_OR_RETURN(FoundDataset found, LoadDataset(txn, *id));
      found.name = resumed;
      ASSIGN_OR_RETURN(const bool more, VisitSnapshots(txn, found, admits, visit, position));
      if (!more) return absl::OkStatus();
    }
  }
  return WalkDatasets(txn, args.prefix, resumed,
                      [&](const FoundDataset& found) -> absl::StatusOr<bool> {
                        if (!admits()) return false;
                        *position = {found.name, 0, ""};
                        return VisitSnapshots(txn, found, admits, visit, position);
                      });
}

// --- holds ---------------------------------------------------------------------------------------

// The holds in key order: all, or with `prefix` those of one snapshot. Position: the last key.
absl::StatusOr<Page<HoldInfo>> ScanHolds(const MetaTxn& txn, const PoolUid& pool,
                                         const ListArgs& args, std::string_view prefix) {
  PageBuilder<HoldInfo> page(args.page_size);
  std::string last = args.position;
  MetaCursor cursor(txn, Table::kHolds);
  for (cursor.Seek(last.empty() ? std::string(prefix) : Above(last)); cursor.ValidFor(prefix);
       cursor.Next()) {
    if (!page.Admits()) break;
    last = std::string(cursor.key());
    ASSIGN_OR_RETURN(const HoldRecord hold, HoldRecord::Decode(cursor.value()));
    ASSIGN_OR_RETURN(const FoundSnapshot snapshot,
                     LoadSnapshot(txn, KeyNumber<SnapshotId>(last, 0)));
    page.Add(Describe(pool, snapshot, std::string_view(last).substr(8), hold));
  }
  RETURN_IF_ERROR(cursor.status());
  return page.Finish(last);
}

absl::StatusOr<Page<HoldInfo>> ListHoldsBelow(const MetaTxn& txn, const PoolUid& pool,
                                              const ListArgs& args) {
  SnapshotPosition position;
  RETURN_IF_ERROR(position.Decode(args.position));
  PageBuilder<HoldInfo> page(args.page_size);
  const auto visit = [&](const FoundSnapshot& found) -> absl::StatusOr<bool> {
    if (found.record.holds == 0) return true;
    const Key prefix(found.id);
    MetaCursor cursor(txn, Table::kHolds);
    cursor.Seek(position.tag.empty() ? std::string(prefix) : Above(Key(found.id, position.tag)));
    for (; cursor.ValidFor(prefix); cursor.Next()) {
      if (!page.Admits()) return false;
      position.tag = std::string(cursor.key().substr(8));
      ASSIGN_OR_RETURN(const HoldRecord hold, HoldRecord::Decode(cursor.value()));
      page.Add(Describe(pool, found, position.tag, hold));
    }
    RETURN_IF_ERROR(cursor.status());
    return true;
  };
  RETURN_IF_ERROR(WalkSnapshots(
      txn, args, [&] { return page.Admits(); }, visit, &position));
  return page.Finish(position.Encode());
}

// A prefix that can cover nothing is a mistake, and an empty list would not say so.
absl::Status CheckPrefix(const ListArgs& args) {
  return args.prefix.empty() ? absl::OkStatus() : ParseDatasetName(args.prefix).status();
}

bool Matches(const OperationRecord& record, const ListArgs& args) {
  if (args.state != 0 && record.state != args.state) return false;
  if (args.kind != 0 && record.kind != args.kind) return false;
  return !args.unfinished || !IsDone(static_cast<OperationState>(record.state));
}

}  // namespace

absl::StatusOr<Page<DatasetInfo>> ListDatasets(const MetaTxn& txn, const PoolUid& pool,
                                               const ListArgs& args) {
  RETURN_IF_ERROR(CheckPrefix(args));
  if (!args.origin.empty()) return ListClones(txn, pool, args);
  if (!args.position.empty() && !IsBelow(args.position, args.prefix)) return BadPosition();
  PageBuilder<DatasetInfo> page(args.page_size);
  std::string last = args.position;
  RETURN_IF_ERROR(WalkDatasets(txn, args.prefix, args.position,
                               [&](const FoundDataset& found) -> absl::StatusOr<bool> {
                                 if (!page.Admits()) return false;
                                 last = found.name;
                                 RETURN_IF_ERROR(AddDataset(txn, pool, args, found, &page));
                                 return true;
                               }));
  return page.Finish(last);
}

absl::StatusOr<Page<SnapshotInfo>> ListSnapshots(const MetaTxn& txn, const PoolUid& pool,
                                                 const ListArgs& args) {
  RETURN_IF_ERROR(CheckPrefix(args));
  SnapshotPosition position;
  RETURN_IF_ERROR(position.Decode(args.position));
  PageBuilder<SnapshotInfo> page(args.page_size);
  const auto visit = [&](const FoundSnapshot& found) -> absl::StatusOr<bool> {
    if (!MatchesLabels(found.record.labels, args.labels)) return true;
    ASSIGN_OR_RETURN(SnapshotInfo info, Describe(txn, pool, found));
    page.Add(std::move(info));
    return true;
  };
  RETURN_IF_ERROR(WalkSnapshots(
      txn, args, [&] { return page.Admits(); }, visit, &position));
  return page.Finish(position.Encode());
}

absl::StatusOr<Page<HoldInfo>> ListHolds(const MetaTxn& txn, const PoolUid& pool,
                                         const ListArgs& args) {
  RETURN_IF_ERROR(CheckPrefix(args));
  if (!args.parent.empty()) {
    ASSIGN_OR_RETURN(const FoundSnapshot snapshot, ResolveSnapshot(txn, args.parent));
    return ScanHolds(txn, pool, args, Key(snapshot.id));
  }
  return args.prefix.empty() ? ScanHolds(txn, pool, args, {}) : ListHoldsBelow(txn, pool, args);
}

absl::StatusOr<Page<OperationInfo>> ListOperations(const MetaTxn& txn, const ListArgs& args) {
  PageBuilder<OperationInfo> page(args.page_size);
  std::string last = args.position;
  MetaCursor cursor(txn, Table::kOperations);
  // Newest first: ids rise.
  const std::string end(sizeof(uint64_t) + 1, '\xff');
  for (cursor.SeekBefore(last.empty() ? end : last); cursor.valid(); cursor.Prev()) {
    if (!page.Admits()) break;
    last = std::string(cursor.key());
    ASSIGN_OR_RETURN(const OperationRecord record, OperationRecord::Decode(cursor.value()));
    if (!Matches(record, args)) continue;
    const auto id = KeyNumber<OperationId>(last, 0);
    OperationInfo info = Describe(id, record);
    RETURN_IF_ERROR(AddScrubResult(txn, id, &info));
    page.Add(std::move(info));
  }
  RETURN_IF_ERROR(cursor.status());
  return page.Finish(last);
}

absl::StatusOr<LivelistInfo> GetLivelist(const MetaTxn& txn, const PoolUid& pool,
                                         const ReclaimPacer& pacer, std::string_view dataset,
                                         Txg from_start, uint32_t limit) {
  ASSIGN_OR_RETURN(const FoundDataset found, ResolveDataset(txn, dataset));
  ASSIGN_OR_RETURN(const PoolRecord record, LoadRecord<PoolRecord>(txn, PoolRecord::kKey));
  LivelistInfo info;
  info.dataset = found.name;
  info.uid = FormatUid(pool, static_cast<uint64_t>(found.id));
  info.origin_txg = found.record.origin_txg;
  info.txg = record.txg;
  info.state = found.record.list_state == ListState::kWhole     ? LivelistState::kWhole
               : found.record.list_state == ListState::kDropped ? LivelistState::kDropped
                                                                : LivelistState::kRebuilding;
  const uint64_t block_sectors = found.record.tree.block_sectors();
  ASSIGN_OR_RETURN(const std::vector<Sublist> sublists, LiveList::List(txn, found.record.livelist));
  info.total.start_txg = sublists.size();
  for (const Sublist& sublist : sublists) {
    const SublistRecord& sums = sublist.record;
    const uint64_t allocated = sums.allocated.data_sectors / block_sectors;
    const uint64_t freed = sums.freed.data_sectors / block_sectors;
    const SublistInfo one = {sublist.start,
                             sums.entries,
                             allocated - freed,
                             allocated,
                             sums.live_sectors() * kSectorBytes,
                             uint64_t{1} + sums.attached_logs};
    info.total.entries += one.entries;
    info.total.blocks += one.blocks;
    info.total.allocated_blocks += one.allocated_blocks;
    info.total.bytes += one.bytes;
    info.total.logs += one.logs;
    if (one.start_txg < from_start) continue;
    if (info.sublists.size() < limit) {
      info.sublists.push_back(one);
    } else if (info.next_start == 0) {
      info.next_start = one.start_txg;
    }
  }
  ReclaimForecast forecast{.jobs = 1};
  RETURN_IF_ERROR(ForecastLivelist(txn, found.record.livelist, &forecast));
  info.destroy_seconds = pacer.PredictSeconds(forecast);
  return info;
}

}  // namespace cowshed::engine

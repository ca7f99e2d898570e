// SPDX-License-Identifier: Apache-2.0
//
// Comparing the pool with the model.
#include <algorithm>

#include "engine/base/strings.h"
#include "tests/model/pool_model.h"

namespace cowshed::engine {
namespace {

// All pages of a list, three items at a time; empty names on an error.
template <typename Info>
std::vector<std::string> NamesOf(
    const std::function<absl::StatusOr<Page<Info>>(const ListArgs&)>& list,
    const std::string& prefix, std::string* error) {
  std::vector<std::string> names;
  ListArgs args;
  args.prefix = prefix;
  args.page_size = 3;
  do {
    const absl::StatusOr<Page<Info>> page = list(args);
    if (!page.ok()) {
      *error = page.status().ToString();
      return {};
    }
    for (const Info& info : page->items) names.push_back(info.name);
    args.position = page->next;
  } while (!args.position.empty());
  return names;
}

std::string Joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += name + " ";
  return text;
}

}  // namespace

void PoolModel::VerifyDataset(const Dataset& dataset) {
  if (failed()) return;
  absl::StatusOr<std::shared_ptr<Volume>> volume = (*pool_)->OpenVolume(dataset->name, "");
  if (!volume.ok()) return Fail(StrCat("open ", dataset->name, ": ", volume.status().ToString()));
  if ((*volume)->size_bytes() != dataset->size_bytes()) {
    return Fail(StrCat(dataset->name, " has ", (*volume)->size_bytes(), " bytes and should have ",
                       dataset->size_bytes()));
  }
  std::vector<std::byte> bytes(dataset->cells.size() * kCellBytes);
  const absl::Status status = (*volume)->Read(dataset->base_bytes, bytes);
  if (!status.ok()) return Fail(StrCat("read ", dataset->name, ": ", status.ToString()));
  for (size_t i = 0; i < dataset->cells.size(); ++i) {
    if (Matches(std::span(dataset->cells).subspan(i, 1),
                std::span(bytes).subspan(i * kCellBytes, kCellBytes))) {
      continue;
    }
    return Fail(StrCat(dataset->name, " has wrong bytes in cell ", i, ", block ",
                       i * kCellBytes / dataset->block_bytes));
  }
  // Where data begins must not be skipped.
  const absl::StatusOr<uint64_t> next = (*volume)->NextData(0);
  if (!next.ok()) return Fail(StrCat("next data of ", dataset->name, next.status().ToString()));
  const auto first = std::find_if(dataset->cells.begin(), dataset->cells.end(),
                                  [](uint32_t tag) { return tag != 0; });
  const uint64_t first_cell = static_cast<uint64_t>(first - dataset->cells.begin());
  if (*next > dataset->base_bytes + first_cell * kCellBytes) {
    Fail(StrCat(dataset->name, ": data before ", *next, " was skipped"));
  }
}

void PoolModel::VerifySnapshot(const Snapshot& snapshot) {
  if (failed() || !snapshot->visible()) return;
  const std::string name = StrCat(snapshot->owner->name, "@", snapshot->name);
  absl::StatusOr<std::shared_ptr<Volume>> volume = (*pool_)->OpenVolume(name, "");
  if (!volume.ok()) return Fail(StrCat("open ", name, ": ", volume.status().ToString()));
  const uint64_t base_bytes = snapshot->owner->base_bytes;
  if ((*volume)->size_bytes() != base_bytes + snapshot->cells.size() * kCellBytes) {
    return Fail(StrCat(name, " has a wrong size: ", (*volume)->size_bytes()));
  }
  std::vector<std::byte> bytes(snapshot->cells.size() * kCellBytes);
  const absl::Status status = (*volume)->Read(base_bytes, bytes);
  if (!status.ok()) return Fail(StrCat("read ", name, ": ", status.ToString()));
  if (!Matches(snapshot->cells, bytes)) Fail(name + " has wrong bytes");
}

void PoolModel::VerifyAll() {
  ++operations_;
  for (const Dataset& dataset : datasets_) {
    VerifyDataset(dataset);
    VerifyInfo(dataset);
    for (const Snapshot& snapshot : dataset->snapshots) VerifySnapshot(snapshot);
  }
  Check();
  VerifyLists();
}

void PoolModel::VerifyInfo(const Dataset& dataset) {
  if (failed()) return;
  const absl::StatusOr<DatasetInfo> info = (*pool_)->GetDataset(dataset->name);
  if (!info.ok()) return Fail(StrCat("get ", dataset->name, ": ", info.status().ToString()));
  uint64_t snapshots = 0;
  uint64_t clones = 0;
  for (const Snapshot& snapshot : dataset->snapshots) {
    snapshots += snapshot->visible();
    clones += ClonesOf(snapshot).size();
  }
  std::string origin;
  if (dataset->origin && dataset->origin->visible()) {
    origin = StrCat(dataset->origin->owner->name, "@", dataset->origin->name);
  }
  if (info->snapshot_count != snapshots || info->clone_count != clones || info->origin != origin ||
      info->origin_uid.empty() != (dataset->origin == nullptr)) {
    Fail(StrCat(dataset->name, " says ", info->snapshot_count, " snapshots, ", info->clone_count,
                " clones, origin ", info->origin, "; the model ", snapshots, ", ", clones, ", ",
                origin));
  }
}

// Whatever was lost has been made whole again, unless nobody wants it.
void PoolModel::VerifyLivelists() {
  const PoolStats& stats = (*pool_)->stats();
  if (stats.livelist_rebuilds[RebuildResult::kFailed] > 0) return Fail("a rebuild failed");
  if (stats.alarms[Alarm::kLivelistDamaged] != 0) return Fail("livelist_damaged stays raised");
  for (const Dataset& dataset : datasets_) {
    const absl::StatusOr<LivelistInfo> info = (*pool_)->GetLivelist(dataset->name, 0, 1);
    if (!info.ok()) return Fail(StrCat("livelist of ", dataset->name, info.status().ToString()));
    if (info->state == LivelistState::kWhole) continue;
    if (info->state == LivelistState::kDropped && costly_) continue;
    return Fail(StrCat("the livelist of ", dataset->name, " was not made whole again"));
  }
}

void PoolModel::VerifyLists() {
  if (failed()) return;
  std::vector<std::string> datasets;
  std::vector<std::string> snapshots;
  for (const Dataset& dataset : datasets_) {
    datasets.push_back(dataset->name);
    for (const Snapshot& snapshot : dataset->snapshots) {
      if (snapshot->visible()) snapshots.push_back(StrCat(dataset->name, "@", snapshot->name));
    }
  }
  std::string error;
  const std::string prefix = prefix_.substr(0, prefix_.find('/'));
  std::vector<std::string> listed = NamesOf<DatasetInfo>(
      [&](const ListArgs& args) { return (*pool_)->ListDatasets(args); }, prefix, &error);
  std::vector<std::string> listed_snapshots = NamesOf<SnapshotInfo>(
      [&](const ListArgs& args) { return (*pool_)->ListSnapshots(args); }, prefix, &error);
  if (!error.empty()) return Fail("list: " + error);
  if (crowded_) datasets.push_back("filler");
  for (auto* names : {&datasets, &snapshots, &listed, &listed_snapshots}) {
    std::sort(names->begin(), names->end());
  }
  if (listed != datasets) {
    return Fail(StrCat("listed are ", Joined(listed), "instead of ", Joined(datasets)));
  }
  if (listed_snapshots != snapshots) {
    Fail(StrCat("listed are ", Joined(listed_snapshots), "instead of ", Joined(snapshots)));
  }
}

// A write that was not flushed, or that found no room, may be there or not, block by block.
void PoolModel::Settle(const Dataset& dataset) {
  if (failed()) return;
  const absl::StatusOr<std::string> read =
      pool_->Read(dataset->name, dataset->base_bytes, dataset->cells.size() * kCellBytes);
  if (!read.ok()) return Fail(StrCat("read ", dataset->name, ": ", read.status().ToString()));
  const auto bytes = std::as_bytes(std::span(*read));
  std::vector<Cells> states = dataset->history;
  states.push_back(dataset->cells);
  const uint64_t block_cells = dataset->block_bytes / kCellBytes;
  for (uint64_t begin = 0; begin < dataset->cells.size(); begin += block_cells) {
    const uint64_t count = std::min(block_cells, dataset->cells.size() - begin);
    const auto state = std::find_if(states.begin(), states.end(), [&](const Cells& cells) {
      return Matches(std::span(cells).subspan(begin, count),
                     bytes.subspan(begin * kCellBytes, count * kCellBytes));
    });
    if (state == states.end()) {
      return Fail(StrCat(dataset->name, ": block ", begin / block_cells,
                         " holds none of the states it was in"));
    }
    std::copy_n(state->begin() + static_cast<ptrdiff_t>(begin), count,
                dataset->cells.begin() + static_cast<ptrdiff_t>(begin));
  }
  dataset->history.push_back(dataset->cells);
}

void PoolModel::Durable() {
  for (const Dataset& dataset : datasets_) dataset->history.clear();
}

void PoolModel::Check() {
  if (failed()) return;
  if (!shared()) {
    if (!stopped_at_.empty()) CheckAsItIs();
    if (!failed()) Drain();
    if (!failed()) VerifyLivelists();
  }
  if (!failed()) CheckAsItIs();
}

void PoolModel::CheckAsItIs() {
  const absl::StatusOr<CheckReport> report = (*pool_)->Check();
  if (!report.ok()) return Fail("check: " + report.status().ToString());
  if (report->ok()) return;
  std::string text = StrCat("the checker has ", report->total_findings, " findings:");
  for (size_t i = 0; i < std::min<size_t>(report->findings.size(), 8); ++i) {
    const CheckFinding& finding = report->findings[i];
    text += StrCat("\n  ", finding.invariant, " ", finding.name, ": ", finding.message);
  }
  Fail(text);
}

}  // namespace cowshed::engine

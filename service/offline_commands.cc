// SPDX-License-Identifier: Apache-2.0
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/pool.h"
#include "engine/repair.h"
#include "service/commands.h"
#include "service/convert.h"
#include "spdlog/spdlog.h"

namespace cowshed::service {
namespace {

using engine::ListArgs;
using engine::Page;
using engine::Pool;

constexpr uint32_t kPageSize = 1000;

// Section -> name -> figure; sections and names in the order they are printed.
using Figures = std::vector<std::pair<std::string, std::vector<std::pair<std::string, uint64_t>>>>;

// Calls `visit` with every object that `list` lists.
template <typename Info, typename Visit>
absl::Status ForEach(Pool& pool, absl::StatusOr<Page<Info>> (Pool::*list)(const ListArgs&),
                     Visit visit) {
  ListArgs args;
  args.page_size = kPageSize;
  do {
    ASSIGN_OR_RETURN(auto page, (pool.*list)(args));
    for (const auto& item : page.items) RETURN_IF_ERROR(visit(item));
    args.position = std::move(page.next);
  } while (!args.position.empty());
  return absl::OkStatus();
}

// The part of an enum value's name behind the enum's own, in lower case.
std::string ShortName(std::string name, std::string_view prefix) {
  name.erase(0, prefix.size());
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name;
}

// The newest copy of the metadata in the pool: zeros without one.
std::vector<std::pair<std::string, uint64_t>> MetaCopyFigures(const engine::PoolOptions& options) {
  const auto copies = engine::InspectMetaCopies(options);
  uint64_t good = 0;
  for (const auto& copy : copies) good += copy.good ? 1 : 0;
  engine::MetaCopyInfo newest;
  if (!copies.empty()) newest = copies.front();
  return {{"count", copies.size()},
          {"good", good},
          {"newest_txg", newest.txg},
          {"newest_time_ms", static_cast<uint64_t>(newest.time_ms)},
          {"newest_bytes", newest.bytes}};
}

absl::StatusOr<Figures> Recount(Pool& pool) {
  uint64_t datasets = 0, clones = 0, used = 0, logical = 0;
  uint64_t livelists = 0, sublists = 0, entries = 0, blocks = 0, bytes = 0;
  RETURN_IF_ERROR(ForEach(pool, &Pool::ListDatasets, [&](const auto& dataset) -> absl::Status {
    ++datasets;
    if (!dataset.origin_uid.empty()) ++clones;
    used += dataset.used_bytes;
    logical += dataset.logical_bytes;
    ASSIGN_OR_RETURN(const auto livelist, pool.GetLivelist(dataset.name, 0, 1));
    if (livelist.state != engine::LivelistState::kWhole) return absl::OkStatus();
    ++livelists;
    sublists += livelist.total.start_txg;
    entries += livelist.total.entries;
    blocks += livelist.total.blocks;
    bytes += livelist.total.bytes;
    return absl::OkStatus();
  }));
  uint64_t snapshots = 0, deferred = 0, holds = 0;
  RETURN_IF_ERROR(ForEach(pool, &Pool::ListSnapshots, [&](const auto& snapshot) {
    ++snapshots;
    if (snapshot.deferred) ++deferred;
    return absl::OkStatus();
  }));
  RETURN_IF_ERROR(ForEach(pool, &Pool::ListHolds, [&](const auto&) {
    ++holds;
    return absl::OkStatus();
  }));
  std::map<std::string, uint64_t> operations, freed;
  RETURN_IF_ERROR(ForEach(pool, &Pool::ListOperations, [&](const auto& operation) {
    const auto kind = static_cast<v1::OperationKind>(operation.kind);
    const auto state = static_cast<v1::OperationState>(operation.state);
    const std::string kind_name = ShortName(v1::OperationKind_Name(kind), "OPERATION_KIND_");
    const std::string state_name = ShortName(v1::OperationState_Name(state), "OPERATION_STATE_");
    ++operations[kind_name + "_" + state_name];
    // What a scrub read and a backup copied is not freed.
    const bool frees = operation.kind != engine::OperationKind::kScrub &&
                       operation.kind != engine::OperationKind::kBackup;
    if (frees) freed[kind_name] += operation.done_bytes;
    return absl::OkStatus();
  }));
  const engine::SpaceInfo space = pool.space();
  return Figures{{"pool",
                  {{"txg", pool.committed_txg()},
                   {"datasets", datasets},
                   {"clones", clones},
                   {"snapshots", snapshots},
                   {"deferred_snapshots", deferred},
                   {"holds", holds}}},
                 {"livelists",
                  {{"count", livelists},
                   {"sublists", sublists},
                   {"entries", entries},
                   {"blocks", blocks},
                   {"bytes", bytes}}},
                 {"operations", {operations.begin(), operations.end()}},
                 {"freed_bytes", {freed.begin(), freed.end()}},
                 {"space",
                  {{"capacity_bytes", space.capacity_bytes},
                   {"allocated_bytes", space.allocated_bytes},
                   {"available_bytes", space.available_bytes},
                   {"freeing_bytes", space.freeing_bytes},
                   {"reserve_bytes", space.reserve_bytes},
                   {"used_bytes", used},
                   {"logical_bytes", logical}}}};
}

void PrintText(const Figures& figures) {
  for (const auto& [section, values] : figures) {
    for (const auto& [name, value] : values) {
      std::printf("%s.%s\t%" PRIu64 "\n", section.c_str(), name.c_str(), value);
    }
  }
}

// Names are identifiers: nothing in them needs escaping.
void PrintJson(const std::string& uid, const Figures& figures) {
  std::printf("{\"uid\": \"%s\"", uid.c_str());
  for (const auto& [section, values] : figures) {
    std::printf(", \"%s\": {", section.c_str());
    const char* separator = "";
    for (const auto& [name, value] : values) {
      std::printf("%s\"%s\": %" PRIu64, std::exchange(separator, ", "), name.c_str(), value);
    }
    std::printf("}");
  }
  std::printf("}\n");
}

constexpr int kDamaged = 1;
constexpr int kBeyondRepair = 3;

void Print(const std::vector<engine::CheckFinding>& findings) {
  for (const auto& finding : findings) {
    std::printf("%s\t%s\t%s\n", finding.invariant.c_str(), finding.name.c_str(),
                finding.message.c_str());
  }
}

int Report(const absl::Status& status) {
  spdlog::error("{}", std::string(status.message()));
  return 1;
}

absl::StatusOr<std::unique_ptr<Pool>> OpenReadOnly(engine::PoolOptions options) {
  options.read_only = true;
  options.create_if_missing = false;
  return Pool::Open(options);
}

int FindDamage(const engine::PoolOptions& options) {
  auto pool = OpenReadOnly(options);
  if (!pool.ok()) return Report(pool.status());
  const auto report = (*pool)->Check();
  if (!report.ok()) return Report(report.status());
  Print(report->findings);
  std::printf("%s: txg %" PRIu64 ", %" PRIu64 " datasets, %" PRIu64 " snapshots, %" PRIu64
              " blocks, %" PRIu64 " bytes referenced, %" PRIu64 " findings\n",
              report->ok() ? "ok" : "damaged", report->txg, report->dataset_count,
              report->snapshot_count, report->block_count, report->referenced_bytes,
              report->total_findings);
  if (report->log_batches > 0) {
    std::printf("intent log: %" PRIu64 " batches with %" PRIu64
                " bytes wait to be replayed when the pool is served\n",
                report->log_batches, report->log_bytes);
  }
  return report->ok() ? 0 : 1;
}

// Runs `check` in a process of its own: what LMDB does with damage that its pages hide from a look
// at them ends that one at most.
template <typename Run>
int InChild(const Run& check) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) return Report(absl::ErrnoToStatus(errno, "fork"));
  if (child == 0) {
    const int code = check();
    std::fflush(nullptr);
    _exit(code);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  std::printf("damage\tmetadata\tthe check was ended by signal %d: the page structure is damaged\n",
              WTERMSIG(status));
  return kDamaged;
}

int RunRepair(const CheckOptions& options) {
  const auto repair = engine::Repair::Prepare({options.pool, options.from_copy, options.drop_log});
  if (!repair.ok()) {
    Report(repair.status());
    return kBeyondRepair;
  }
  for (const std::string& step : (*repair)->plan()) std::printf("plan\t%s\n", step.c_str());
  Print((*repair)->lost());
  Print((*repair)->report().findings);
  const bool whole = (*repair)->lost().empty() && (*repair)->report().ok();
  const char* const result = whole ? "everything is brought back" : "some things are lost";
  if (options.plan) {
    std::printf("plan: %s; nothing has been changed\n", result);
    return kDamaged;
  }
  std::fflush(stdout);
  const auto aside = (*repair)->Apply();
  if (!aside.ok()) return Report(aside.status());
  std::printf("repaired: %s; the old metadata is in %s\n", result, aside->c_str());
  return whole ? 0 : kDamaged;
}

}  // namespace

int Check(const CheckOptions& options) {
  const absl::Status pages = engine::CheckMetaPages(options.pool);
  if (!pages.ok() && !absl::IsDataLoss(pages)) {
    // Of a pool that has lost its metadata there may be copies.
    if (!options.repair || !absl::IsNotFound(pages)) return Report(pages);
  }
  int code = kDamaged;
  if (pages.ok()) {
    code = InChild([&] { return FindDamage(options.pool); });
  } else {
    const std::string message(pages.message());
    std::printf("damage\tmetadata\t%s\n", message.c_str());
    std::printf("damaged: nothing else could be checked\n");
  }
  const bool asked = options.from_copy || options.drop_log;
  if (!options.repair || (code == 0 && !asked)) return code;
  return RunRepair(options);
}

int Inspect(const engine::PoolOptions& options, bool json) {
  auto pool = OpenReadOnly(options);
  if (!pool.ok()) return Report(pool.status());
  auto figures = Recount(**pool);
  if (!figures.ok()) return Report(figures.status());
  figures->emplace_back("intent_log", std::vector<std::pair<std::string, uint64_t>>{
                                          {"ring_bytes", (*pool)->stats().log_ring_bytes.load()}});
  figures->emplace_back("meta_copies", MetaCopyFigures(options));
  if (json) {
    PrintJson((*pool)->uid(), *figures);
  } else {
    PrintText(*figures);
  }
  return 0;
}

}  // namespace cowshed::service

// SPDX-License-Identifier: Apache-2.0
#include "engine/store/meta_tables.h"

#include <array>
#include <cstring>

#include "absl/strings/escaping.h"
#include "engine/base/hash.h"
#include "engine/base/strings.h"
#include "engine/store/format.h"

namespace cowshed::engine {
namespace {

constexpr size_t kTableCount = static_cast<size_t>(Table::kCount);

// By table number. On disk: never rename.
// clang-format off
constexpr std::array<const char*, kTableCount> kTableNames = {
    nullptr, "pool", "names", "directories", "datasets", "snapshots", "snapshots_by_txg",
    "snapshots_by_name", "clones", "holds", "expiry", "states", "sublists", "dead_buckets", "logs",
    "dropped_logs", "log_holders", "regions", "region_sums", "free_log", "jobs", "operations",
    "requests", "request_times"};
// clang-format on
static_assert(kTableNames.back() != nullptr, "every table has a name");

}  // namespace

const char* TableName(Table table) { return kTableNames[static_cast<size_t>(table)]; }

std::optional<Table> FindTable(std::string_view name) {
  for (size_t i = 1; i < kTableCount; ++i) {
    if (name == kTableNames[i]) return static_cast<Table>(i);
  }
  return std::nullopt;
}

uint64_t ValueChecksum(Table table, std::string_view key, std::string_view value) {
  return Hash64(value, Hash64(key, static_cast<uint64_t>(table)));
}

absl::StatusOr<std::string_view> ProveValue(Table table, std::string_view key,
                                            std::string_view stored) {
  if (stored.size() >= kValueChecksumBytes) {
    const std::string_view value = stored.substr(0, stored.size() - kValueChecksumBytes);
    uint64_t checksum = 0;
    std::memcpy(&checksum, stored.data() + value.size(), sizeof(checksum));
    if (checksum == ValueChecksum(table, key, value)) {
      return value;
    }
  }
  return absl::DataLossError(StrCat("metadata store: value of key ",
                                    absl::BytesToHexString(View(key)), " in table ",
                                    TableName(table), " has a wrong checksum"));
}

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// The metadata store's tables as they lie in its file: the name of each, and the checksum that
// proves a value. For whoever reads that file without LMDB, and for MetaStore itself.
//
// Threads     Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/store/meta_store.h"

namespace cowshed::engine {

// The name of the LMDB database. REQUIRES: a table.
const char* TableName(Table table);
std::optional<Table> FindTable(std::string_view name);

// Proves that a value is the one written for this key of this table.
uint64_t ValueChecksum(Table table, std::string_view key, std::string_view value);
// The value without its checksum; DATA_LOSS, naming table and key, if that is wrong.
absl::StatusOr<std::string_view> ProveValue(Table table, std::string_view key,
                                            std::string_view stored);

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// What BLOCK_STATUS tells of an export: where its data is (`base:allocation`), and what of it has
// changed since an older snapshot (`cowshed:changed-since:SNAPSHOT`), for backup tools.
//
// Model       A context is offered if it can be answered: the snapshot is there, of the same
//             lineage, older, and the client's to read. It is pinned by uid: one that has been
//             destroyed or renamed since answers an error, never another one's blocks.
//             Allocation    flags 3 (a hole that reads as zeros) or 0 (data)
//             Changed since flags 1 (changed), 3 (changed, and reads as zeros now) or 0
// Bounds      An answer has at most kExtentsMax extents and looks at a bounded number of blocks;
// what
//             is left the client asks for again, as the protocol has it.
// Threads     Free functions, thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "service/nbd/exports.h"
#include "service/nbd/wire.h"

namespace cowshed::service::nbd {

inline constexpr size_t kContextsMax = 16;         // of one connection
inline constexpr size_t kContextsListedMax = 100;  // in one answer to LIST_META_CONTEXT
inline constexpr size_t kExtentsMax = 4096;        // 32 KiB

inline constexpr uint32_t kExtentHole = 1;     // of base:allocation
inline constexpr uint32_t kExtentChanged = 1;  // of changed-since
inline constexpr uint32_t kExtentZero = 2;

struct MetaContext {
  uint32_t id = 0;
  std::string name;   // as it was offered
  std::string since;  // the older snapshot; empty: base:allocation
  std::string since_uid;
};

// The contexts that `queries` name, of export `info`; those that can not be offered are left out.
// With `list`, a namespace alone ("base:") stands for all in it, and no query for all there are.
std::vector<MetaContext> FindContexts(engine::Pool& pool, Exports& exports, const ExportInfo& info,
                                      const std::vector<std::string>& queries, bool list);

// The beginning of [offset, offset + length) of `volume`, which is export `info`, in extents that
// differ from their neighbours; `one`: the first only. For changed-since, what is to be seen has
// been committed.
absl::StatusOr<std::vector<Extent>> ExtentsOf(engine::Pool& pool, engine::Volume& volume,
                                              const ExportInfo& info, const MetaContext& context,
                                              const Request& request);

}  // namespace cowshed::service::nbd

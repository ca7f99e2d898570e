// SPDX-License-Identifier: Apache-2.0
//
// The arguments of the calls, one struct a verb. Defaults are the cautious choice:
// refuse, and say what blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/store/format.h"

namespace cowshed::engine {

using BlockBytes = std::unique_ptr<std::byte[]>;  // of one block, made uncleared

using Labels = std::map<std::string, std::string>;

inline constexpr uint32_t kMaxNameBytes = 255;
inline constexpr uint32_t kMaxLabels = 64;
inline constexpr uint32_t kMaxLabelsBytes = 2048;  // keys and values: a record stays one value
inline constexpr uint32_t kMaxTagBytes = 128;
inline constexpr uint32_t kMaxOwnerBytes = 255;
inline constexpr uint32_t kMaxNamesPerCall = 10000;
inline constexpr uint64_t kMaxDatasetBytes = uint64_t{1} << 50;
inline constexpr int64_t kMaxReclaimAfterMs = 30 * int64_t{86400000};
inline constexpr uint64_t kMaxReclaimBudgetUs = 1000000;

struct CreateDatasetArgs {
  std::string name;
  uint64_t size_bytes = 0;       // 1 .. kMaxDatasetBytes; the last block may be short
  uint32_t block_bytes = 16384;  // 4 KiB .. 128 KiB, a power of two
  Labels labels;
  std::optional<uint64_t> quota_bytes;  // of what the head references
  int64_t expire_time_ms = 0;           // 0 = never
};

struct UpdateDatasetArgs {
  std::string name;
  std::string etag;  // empty: unconditional
  std::optional<uint64_t> size_bytes;
  std::optional<std::optional<uint64_t>> quota_bytes;  // inner nullopt removes it
  std::optional<int64_t> expire_time_ms;               // 0 removes it
  Labels set_labels;
  std::vector<std::string> remove_labels;
  bool force = false;  // cut the attachments that a smaller size is in the way of
};

struct CreateSnapshotsArgs {
  std::vector<std::string> names;  // "dataset@snap" each; or:
  std::string prefix;              // every dataset of this subtree
  std::string snapshot;            // with this snapshot name
  Labels labels;
};

struct CloneDatasetArgs {
  std::string source;  // "dataset@snap", "dataset@latest" or "dataset" (its head)
  std::string name;
  bool replace = false;      // destroy the dataset of that name in the same txg
  std::string replace_etag;  // what it must be; empty: any
  Labels labels;
  std::optional<uint64_t> quota_bytes;
  int64_t expire_time_ms = 0;
  bool force = false;  // cut the attachments of what is replaced
};

struct DestroyDatasetsArgs {
  std::vector<std::string> names;  // or:
  std::string prefix;              // the subtree
  bool recursive = false;          // their snapshots too
  bool cascade = false;            // and the clones of these; implies recursive
  bool allow_missing = false;
  bool validate_only = false;
  std::string plan_etag;                     // of an earlier validate_only; empty: unconditional
  std::map<std::string, std::string> etags;  // name -> etag
  // How long Undestroy can bring them back, at most kMaxReclaimAfterMs; 0: reclaim begins at once.
  int64_t reclaim_after_ms = 0;
  bool force = false;  // cut attachments
};

struct DestroySnapshotsArgs {
  std::vector<std::string> names;  // or the range:
  std::string range_dataset;
  std::string range_first;  // oldest, empty: from the first
  std::string range_last;   // newest, empty: to the last
  bool defer = false;       // where clones or holds block: hide, go with the last of them
  bool allow_missing = false;
  bool validate_only = false;
  std::string plan_etag;
  bool force = false;  // cut attachments
};

struct HoldSnapshotArgs {
  std::string snapshot;
  std::string tag;
  std::string owner;
  int64_t expire_time_ms = 0;
};

// How reclaim runs; persisted. Members that are not set stay as they are.
struct UpdateReclaimArgs {
  std::optional<bool> paused;
  std::optional<uint64_t> rate_bytes_per_second;  // 0: no limit
  std::optional<uint64_t> txg_budget_us;          // 0: the program's default
};

// A scrub; the one under way, or paused, is gone on with.
struct StartScrubArgs {
  std::optional<uint64_t> rate_bytes_per_second;  // 0: no limit; not set: as it is, or no limit
};

struct CancelScrubArgs {
  bool pause = false;  // keep its place: StartScrub goes on from it
};

struct BackupArgs {
  std::string directory;  // absolute, on this host; empty or absent, its parent there
};

struct RollbackDatasetArgs {
  std::string name;
  bool to_origin = false;
  std::string snapshot;         // short name; empty: the newest
  std::string expected_target;  // full or short name the newest must have; empty: any
  bool destroy_newer = false;
  std::string etag;
  bool force = false;  // cut attachments
};

// What to list, and from where on; what is empty or 0 restricts nothing.
struct ListArgs {
  uint32_t page_size = 100;
  std::string position;  // `next` of the page before; empty: from the start
  std::string prefix;    // datasets, snapshots, holds: a subtree
  std::string origin;    // datasets: clones of this snapshot ("d@s") or of any snapshot of "d"
  std::string parent;    // snapshots: of this dataset; holds: of this snapshot
  Labels labels;         // all must match
  uint8_t state = 0;     // DatasetState or OperationState; 0: any
  uint8_t kind = 0;      // OperationKind; 0: any
  bool unfinished = false;
};

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// Volumes: the bytes of a head (read and write) or of a snapshot (read). A read takes {tree,
// syncing, open} as one view; a write copies into the open layer and reads the rest of a block it
// fills only in part, so that a layer holds whole blocks. All-zero blocks become holes.
//
// Threads     Thread-safe.
// Ownership   Borrow the pool's parts; the pool outlives their use.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/head.h"
#include "engine/pool.h"
#include "engine/tree_reader.h"
#include "engine/txg.h"

namespace cowshed::engine {

// ABORTED DATASET_DESTROYED, ABORTED DATASET_CHANGED and OUT_OF_RANGE BEYOND_SIZE.
absl::Status DestroyedError(std::string_view name);
absl::Status ChangedError(std::string_view name);
absl::Status BeyondSizeError(uint64_t offset, uint64_t length, uint64_t size);

// What a volume does when its head is rolled back or made smaller: goes on with what came of it, or
// refuses all further bytes with DATASET_CHANGED. kReplays: takes what the head accepted in an
// earlier life: no quota counts, and where the pool is full it comes out of the reserve.
enum class Holding : uint8_t { kFollows, kPinned, kReplays };

std::shared_ptr<Volume> MakeHeadVolume(PoolParts& parts, TxgManager& txgs,
                                       std::shared_ptr<Head> head, std::string name,
                                       Holding holding);
std::shared_ptr<Volume> MakeSnapshotVolume(PoolParts& parts, std::shared_ptr<SnapshotView> view,
                                           std::string name);

}  // namespace cowshed::engine

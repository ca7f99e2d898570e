// SPDX-License-Identifier: Apache-2.0
//
// A data file that forgets bulk data: sectors that begin with a magic pattern are not stored but
// regenerated when they are read. So a pool can hold a dataset of 500 GB whose tree, metadata and
// checksums are all there and real, on a disk that has room for its nodes only. Whatever does not
// begin with the pattern (nodes, superblocks, data that a bench wants stored) passes through.
//
// A sector that was dropped lies in a hole of the file: a hole reads as zeros, and no stored sector
// is all zeros (blocks of zeros are never written). Where a dropped sector falls on one that was
// stored before, the old bytes are punched out.
//
// Threads     As File. Ownership: owns the wrapped file.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "engine/store/file.h"
#include "engine/store/format.h"

namespace cowshed::bench {

// What a dropped sector holds. A block of these sectors is bulk data.
using SparseSector = std::array<uint64_t, engine::kSectorBytes / sizeof(uint64_t)>;
const SparseSector& BulkSector();

struct SparseFileOptions {
  // False: Sync returns at once. For filling a pool whose fill nobody times; sync(2) ends it.
  bool durable = true;
  // False: the kernel reads what it is asked for and nothing ahead of it.
  bool read_ahead = true;
};

// For PoolOptions::wrap_blocks_file of the pool whose data file lies at `path`.
std::function<std::unique_ptr<engine::File>(std::unique_ptr<engine::File>)> SparseFileWrapper(
    const std::string& path, SparseFileOptions options);

}  // namespace cowshed::bench

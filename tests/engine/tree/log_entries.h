// SPDX-License-Identifier: Apache-2.0
//
// Log entries in short form, and what they say sector by sector: something a model can hold in a
// set.
//
// Threads     Plain values.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <tuple>

#include "engine/tree/pointer_log.h"
#include "tests/engine/tree/meta_fixture.h"

namespace cowshed::engine {

inline LogEntry Alloc(uint64_t address, uint32_t sectors, Txg birth,
                      BlockKind kind = BlockKind::kData) {
  return {.op = LogOp::kAlloc,
          .run = {.address = address, .birth = birth, .sectors = sectors, .kind = kind}};
}
inline LogEntry Free(uint64_t address, uint32_t sectors, Txg birth,
                     BlockKind kind = BlockKind::kData) {
  LogEntry entry = Alloc(address, sectors, birth, kind);
  entry.op = LogOp::kFree;
  return entry;
}

// One sector of a run: what a model can hold in a set.
using Sector = std::tuple<uint64_t, Txg, BlockKind>;  // address, birth, kind

inline void AddSectors(const engine::Run& run, std::set<Sector>* sectors) {
  for (uint64_t address = run.address; address < run.end(); ++address) {
    EXPECT_TRUE(sectors->insert({address, run.birth, run.kind}).second) << "twice: " << address;
  }
}

inline std::set<Sector> Expand(const Runs& runs) {
  std::set<Sector> sectors;
  for (const engine::Run& run : runs) {
    AddSectors(run, &sectors);
  }
  return sectors;
}

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// What a golden pool holds: one pool with everything that the format can say, written by the
// program of each format version and kept in tests/golden/pools/version<N>.tar.gz, and one for each
// feature that a pool may use or not: intent_log.tar.gz. A pool that opened once must open,
// unchanged, for ever.
//
// To add one  When kFormatVersion rises, or a feature bit is first used: let WriteGoldenPool write
//             what is new (below `if`s on nothing: old files stay as they are), let
//             ExpectGoldenPool(version) expect it from that version on, and pack what it wrote:
//
//               ./dev build && build/release/tests/golden_pool version DIR/pool &&
//                 tar --sort=name --mtime=@0 --owner=0 --group=0 --sparse -C DIR/pool \
//                   -cf - blocks meta/data.mdb | gzip -9n >tests/golden/pools/version<N>.tar.gz
//
//             Never replace a file that is there: it is the proof that old pools open.
// Threads     Externally synchronised.
#pragma once

#include <string>

#include "engine/pool.h"
#include "tests/support/temp_pool.h"

namespace cowshed::engine {

// The options that a golden pool was written with, and is opened with: nothing moves by itself.
TempPool::Tweak GoldenOptions(const std::string& directory);
// Fills a new pool. Jobs are left waiting for reclaim, a trim is left on its way.
void WriteGoldenPool(TempPool& pool);
// Expects what version `version` wrote, as it was written.
void ExpectGoldenPool(Pool& pool, uint32_t version);
// Expects that its life goes on: stored replies, undelete, reclaim, trim, new bytes.
void ExpectGoldenPoolLives(TempPool& pool, uint32_t version);

// A pool that died with its last writes in the intent log and nowhere else: `golden_pool log`.
TempPool::Tweak GoldenLogOptions(const std::string& directory);
void WriteGoldenLog(TempPool& pool);
// Expects, of one that is opened, that they have been replayed.
void ExpectGoldenLog(TempPool& pool);

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// The checker recomputes from scratch what the engine keeps up step by step, from one metadata
// transaction and the nodes in `blocks`, and reports every difference as a finding:
//
//   I1     every sector is free, or referenced by a tree, a job or the free log: never two of them,
//          never none; and a pointer names sectors that were born when it says
//   I4     births fall on the way down every tree
//   I5     a deadlist holds exactly what the previous snapshot references and its owner does not,
//          in buckets that no snapshot cuts
//   I6     the survivors of a livelist are exactly the blocks and nodes born after the origin that
//          the head or an own snapshot references
//   sums   used, referenced, written, data blocks, counts, `freeing`
//   names  names, directories and every index against the records they point at
//   logs   every log has as many holders as it says, and none is left behind
//   damage what cannot be read or decoded
//
// Data blocks are not read (a scrub does that); nodes are, each once, and once more where it was
// born after the previous snapshot.
//
// Threads     Any thread. The caller holds a reader epoch on a running pool.
// Cost        Time: all records, livelists, deadlists and nodes. Memory: a bit per sector of the
//             pool, 32 bytes per surviving run, 24 bytes per node.
#pragma once

#include "absl/status/statusor.h"
#include "engine/store/block_store.h"
#include "engine/store/meta_store.h"
#include "engine/types.h"

namespace cowshed::engine {

// An error only where nothing could be checked at all; damage is a finding.
absl::StatusOr<CheckReport> CheckPool(const MetaTxn& txn, const BlockStore& blocks,
                                      const PoolUid& uid);

}  // namespace cowshed::engine

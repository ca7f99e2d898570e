// SPDX-License-Identifier: Apache-2.0
//
// The identity of a pool: 128 random bits, in both of its files. A copy of a pool that is to live
// beside it needs another one.
//
// Threads     Any.
#pragma once

#include "engine/store/format.h"

namespace cowshed::engine {

PoolUid NewPoolUid();

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// Runs the script of pool_script.h while something fails, and holds the pool to its promise:
// whatever was acknowledged is there afterwards; what was not is wholly there or not at all; reads
// go on; the checker finds nothing; the pool goes on by itself, or is suspended, with its alarm,
// and goes on after it was opened again; and in the end not a sector is missing.
//
// Threads     Externally synchronised.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "tests/support/temp_pool.h"

namespace cowshed::engine {

// A hand on something that can fail: its k-th use from now on, alone or with all after it.
struct FaultDoor {
  std::function<void(uint64_t k, bool for_ever)> arm;
  std::function<void()> heal;
  std::function<uint64_t()> hits;  // since arm
};

// One run. Returns how often the door was hit, up to the first failure that a step met.
uint64_t RunFaultedScript(const TempPool::Tweak& options, const FaultDoor& door, uint64_t k,
                          bool for_ever);

// Runs for some k, or with COWSHED_TEST_FULL for every k, once (and for ever unless `once_only`).
// Prints how many of how many places were tried.
void SweepFaults(const std::string& name, const TempPool::Tweak& options, const FaultDoor& door,
                 uint64_t tries_by_default, bool once_only);

}  // namespace cowshed::engine

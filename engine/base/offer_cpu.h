// SPDX-License-Identifier: Apache-2.0
//
// Background work that shares its processors with callers. A scheduler lets a busy thread finish
// its slice, some milliseconds, before it looks at one that has just been woken: with as many busy
// threads as processors, that is what a call of some 0.2 ms then waits. So loops over much work
// offer the processor on their way.
//
// Threads     Any thread.
// Cost        A look at the clock; past 0.2 ms since the thread's last offer, a system call.
#pragma once

namespace cowshed::engine {

// Lets whoever waits for this processor go first, unless it has been offered just now.
void OfferCpu();

}  // namespace cowshed::engine

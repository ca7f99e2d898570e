// SPDX-License-Identifier: Apache-2.0
#include "engine/base/offer_cpu.h"

#include <sched.h>

#include <chrono>

namespace cowshed::engine {

void OfferCpu() {
  using Clock = std::chrono::steady_clock;
  constexpr auto kTurn = std::chrono::microseconds(200);
  thread_local Clock::time_point last{};
  if (Clock::now() - last < kTurn) return;
  sched_yield();
  last = Clock::now();
}

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
#include "service/nbd/waker.h"

#include <poll.h>

#include <limits>

namespace cowshed::service::nbd {

int PollTimeout(Clock::time_point deadline) {
  if (deadline == Clock::time_point::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, std::numeric_limits<int>::max()));
}

Woken WaitFor(int fd, short events, Waker& waker, Clock::time_point deadline) {
  while (true) {
    if (waker.ending()) return Woken::kEnding;
    pollfd polled[2] = {{fd, events, 0}, {waker.fd(), POLLIN, 0}};
    const int count = poll(polled, 2, PollTimeout(deadline));
    if (count > 0 && polled[0].revents != 0) return Woken::kReady;
    if (count > 0) waker.Clear();
    if (Clock::now() >= deadline) return Woken::kTimeout;
  }
}

}  // namespace cowshed::service::nbd

// SPDX-License-Identifier: Apache-2.0
//
// soak_client TARGET SEED THREADS: herds at work on a server that others kill and start again,
// until SIGTERM. Then everything is looked at once more and destroyed. The last line says what was
// counted; the exit status is 1 after a loss.
#include <sys/prctl.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "tests/soak/caller.h"
#include "tests/soak/herd.h"

namespace cowshed::soak {
namespace {

std::atomic<bool> stopping{false};

int Main(const std::string& target, uint64_t seed, uint32_t threads) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // nothing to do without whoever starts the servers
  std::signal(SIGTERM, [](int) { stopping = true; });
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  Counters counters;
  std::vector<std::thread> herds;
  for (uint32_t number = 0; number < threads; ++number) {
    herds.emplace_back([&, number] {
      Herd herd(target, number, seed, counters);
      while (!stopping && herd.Step()) {
      }
      herd.Finish();
    });
  }
  for (std::thread& herd : herds) herd.join();
  std::printf("%lu acknowledged, %lu sent again, %lu replayed, %lu restarts, %lu losses\n",
              counters.acknowledged.load(), counters.sent_again.load(), counters.replayed.load(),
              counters.restarts.load(), counters.losses.load());
  return counters.losses == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace
}  // namespace cowshed::soak

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fputs("usage: soak_client TARGET SEED THREADS\n", stderr);
    return 2;
  }
  return cowshed::soak::Main(argv[1], std::strtoull(argv[2], nullptr, 10),
                             static_cast<uint32_t>(std::strtoul(argv[3], nullptr, 10)));
}

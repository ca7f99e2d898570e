// SPDX-License-Identifier: Apache-2.0
//
// golden_pool version|log DIRECTORY: writes a golden pool of this program's format there.
// golden_pool.h says which, and how they are packed.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>

#include "tests/golden/golden_pool.h"

int main(int argc, char** argv) {
  const std::string what = argc == 3 ? argv[1] : "";
  if ((what != "version" && what != "log") || std::filesystem::exists(argv[2])) {
    std::cerr << "usage: golden_pool version|log DIRECTORY (a new one)\n";
    return 2;
  }
  testing::InitGoogleTest();
  using namespace cowshed::engine;
  TempPool pool(what == "log" ? GoldenLogOptions(argv[2]) : GoldenOptions(argv[2]));
  what == "log" ? WriteGoldenLog(pool) : WriteGoldenPool(pool);
  if (what == "log")
    std::_Exit(testing::Test::HasFailure() ? 1 : 0);  // as a crash: no txg takes it
  pool.Abandon();
  return testing::Test::HasFailure() ? 1 : 0;
}

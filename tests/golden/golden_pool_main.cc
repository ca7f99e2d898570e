// SPDX-License-Identifier: Apache-2.0
//
// golden_pool DIRECTORY: writes the golden pool of this program's format there. golden_pool.h says
// how it is packed.
#include <gtest/gtest.h>

#include <filesystem>
#include <iostream>

#include "tests/golden/golden_pool.h"

int main(int argc, char** argv) {
  if (argc != 2 || std::filesystem::exists(argv[1])) {
    std::cerr << "usage: golden_pool DIRECTORY (a new one)\n";
    return 2;
  }
  testing::InitGoogleTest();
  cowshed::engine::TempPool pool(cowshed::engine::GoldenOptions(argv[1]));
  cowshed::engine::WriteGoldenPool(pool);
  pool.Abandon();
  return testing::Test::HasFailure() ? 1 : 0;
}

// SPDX-License-Identifier: Apache-2.0
#include "tests/support/testing.h"

#include <stdlib.h>

#include <cstdlib>
#include <iostream>

namespace cowshed::engine {

TempDir::TempDir() {
  std::string path = (std::filesystem::temp_directory_path() / "cowshed_test_XXXXXX").string();
  if (mkdtemp(path.data()) == nullptr) {
    std::abort();
  }
  path_ = path;
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::vector<uint64_t> TestSeeds(uint64_t count) {
  std::vector<uint64_t> seeds;
  if (const char* const chosen = std::getenv("COWSHED_TEST_SEED"); chosen != nullptr) {
    seeds.push_back(std::strtoull(chosen, nullptr, 10));
  } else {
    for (uint64_t seed = 1; seed <= count; ++seed) {
      seeds.push_back(seed);
    }
  }
  std::cout << "seeds " << seeds.front() << ".." << seeds.back()
            << " (COWSHED_TEST_SEED=n for one)\n";
  return seeds;
}

}  // namespace cowshed::engine

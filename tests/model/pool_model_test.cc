// SPDX-License-Identifier: Apache-2.0
//
// Random operations on a pool and on its model, and proof that the model can fail: mutations of
// the rules of a block's life must each be found.
//
//   pool_model_test [--seed N] [--steps N] [--mutate FAILPOINT]
//
// Without --seed: seeds 1, 2, ... until 200,000 operations are done (COWSHED_MODEL_OPERATIONS).
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include "engine/base/failpoints.h"
#include "tests/model/pool_model.h"
#include "tests/support/testing.h"

namespace cowshed::engine {
namespace {

constexpr uint64_t kDefaultSteps = 600;
constexpr uint64_t kDefaultOperations = 200000;

struct Arguments {
  std::string program;
  uint64_t seed = 0;  // 0: many
  uint64_t steps = kDefaultSteps;
  std::string mutation;
};
Arguments arguments;

std::string RunSeed(uint64_t seed, uint64_t steps, uint64_t* operations, uint64_t* condenses) {
  std::cout << "seed " << seed << std::endl;
  PoolModel model(seed);
  std::string failure = model.Run(steps);
  *operations += model.operations();
  *condenses += model.condenses();
  if (failure.empty()) return "";
  return "seed " + std::to_string(seed) + ", --steps " + std::to_string(steps) + ": " + failure;
}

TEST(PoolModelTest, PoolAndModelAgree) {
  uint64_t wanted = kDefaultOperations;
  if (const char* text = std::getenv("COWSHED_MODEL_OPERATIONS"); text != nullptr) {
    wanted = std::strtoull(text, nullptr, 10);
  }
  uint64_t operations = 0;
  uint64_t condenses = 0;
  if (arguments.seed != 0) {
    const std::string failure = RunSeed(arguments.seed, arguments.steps, &operations, &condenses);
    ASSERT_TRUE(failure.empty()) << failure;
    return;
  }
  for (uint64_t seed = 1; operations < wanted; ++seed) {
    const std::string failure = RunSeed(seed, arguments.steps, &operations, &condenses);
    ASSERT_TRUE(failure.empty()) << failure;
  }
  std::cout << operations << " operations, " << condenses << " condenses" << std::endl;
  EXPECT_GT(condenses, wanted / 1000);
}

// Runs this program with a broken rule in a child: it may fail in words or by an assertion.
bool MutationIsFound(const std::string& mutation) {
  const TempDir root;  // a child that aborts leaves its pool behind
  for (int seed = 1; seed <= 5; ++seed) {
    const pid_t child = fork();
    if (child == 0) {
      setenv("COWSHED_TEST_ROOT", root.Path("").c_str(), /*overwrite=*/1);
      const std::string seed_text = std::to_string(seed);
      if (freopen("/dev/null", "w", stdout) == nullptr) _exit(0);
      if (freopen("/dev/null", "w", stderr) == nullptr) _exit(0);
      execl(arguments.program.c_str(), arguments.program.c_str(), "--seed", seed_text.c_str(),
            "--mutate", mutation.c_str(), static_cast<char*>(nullptr));
      _exit(0);
    }
    int status = 0;
    if (waitpid(child, &status, 0) == child && status != 0) return true;
  }
  return false;
}

class PoolModelMutationTest : public ::testing::TestWithParam<const char*> {};

TEST_P(PoolModelMutationTest, IsFound) { EXPECT_TRUE(MutationIsFound(GetParam())); }

INSTANTIATE_TEST_SUITE_P(All, PoolModelMutationTest,
                         ::testing::Values("mutate.killed_frees_snapshotted",
                                           "mutate.free_not_logged", "mutate.deadlist_off_by_one",
                                           "mutate.rebuild_forgets_newest",
                                           "mutate.condense_loses_entries"));

}  // namespace

int Main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  arguments.program = argv[0];
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    const std::string value = argv[i + 1];
    if (name == "--seed") arguments.seed = std::stoull(value);
    if (name == "--steps") arguments.steps = std::stoull(value);
    if (name == "--mutate") arguments.mutation = value;
  }
  if (!arguments.mutation.empty() && !Failpoints::Arm(arguments.mutation + "=true").ok()) return 2;
  if (arguments.seed != 0) ::testing::GTEST_FLAG(filter) = "PoolModelTest.*";
  return RUN_ALL_TESTS();
}

}  // namespace cowshed::engine

int main(int argc, char** argv) { return cowshed::engine::Main(argc, argv); }

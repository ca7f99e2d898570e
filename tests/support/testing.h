// SPDX-License-Identifier: Apache-2.0
//
// What every engine test needs: a directory that goes away, statuses that print themselves, and
// seeds that can be repeated.
//
// Threads     Externally synchronised.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define ASSERT_OK(expression) ASSERT_EQ((expression), ::absl::OkStatus())
#define EXPECT_OK(expression) EXPECT_EQ((expression), ::absl::OkStatus())
// The status of `expression` has the code `code`, e.g. kDataLoss.
#define EXPECT_CODE(expression, status_code) \
  EXPECT_EQ(::cowshed::engine::StatusOf(expression).code(), ::absl::StatusCode::status_code)

namespace cowshed::engine {

inline absl::Status StatusOf(const absl::Status& status) { return status; }
template <typename T>
absl::Status StatusOf(const absl::StatusOr<T>& value) {
  return value.status();
}

// The value of a StatusOr that must be OK; the test stops where it is not.
template <typename T>
T ValueOf(absl::StatusOr<T> value) {
  EXPECT_TRUE(value.ok()) << value.status();
  if (!value.ok()) {
    std::abort();
  }
  return *std::move(value);
}

// A new directory that is removed with everything in it.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  std::string Path(const std::string& name) const { return (path_ / name).string(); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// The seeds of a randomized test, printed first: 1..count, or COWSHED_TEST_SEED alone.
std::vector<uint64_t> TestSeeds(uint64_t count);

}  // namespace cowshed::engine

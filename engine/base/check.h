// SPDX-License-Identifier: Apache-2.0
//
// Assertions that stay on in every build. A failed check is a bug in Cowshed, never bad input or a
// broken disk: those are absl::Status. Messages name the invariant they guard ("I4: ...").
#pragma once

#include <string_view>

namespace cowshed::engine {

// Prints `file:line: check failed: expression (message)` to stderr and aborts.
[[noreturn]] void CheckFailed(const char* file, int line, const char* expression,
                              std::string_view message);

}  // namespace cowshed::engine

#define COWSHED_CHECK(condition, message)                                        \
  do {                                                                           \
    if (!(condition)) [[unlikely]] {                                             \
      ::cowshed::engine::CheckFailed(__FILE__, __LINE__, #condition, (message)); \
    }                                                                            \
  } while (false)

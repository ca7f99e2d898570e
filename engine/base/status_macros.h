// SPDX-License-Identifier: Apache-2.0
//
// Early return for absl::Status and absl::StatusOr, so that the happy path reads straight down.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define COWSHED_CONCAT_INNER(a, b) a##b
#define COWSHED_CONCAT(a, b) COWSHED_CONCAT_INNER(a, b)

// Returns the status of `expression` from the enclosing function unless it is OK.
#define RETURN_IF_ERROR(expression)                           \
  do {                                                        \
    if (absl::Status status_ = (expression); !status_.ok()) { \
      return status_;                                         \
    }                                                         \
  } while (false)

// Evaluates a StatusOr; returns its error, or moves its value into `declaration`.
#define ASSIGN_OR_RETURN(declaration, expression) \
  ASSIGN_OR_RETURN_INNER(COWSHED_CONCAT(status_or_, __LINE__), declaration, expression)

#define ASSIGN_OR_RETURN_INNER(variable, declaration, expression) \
  auto variable = (expression);                                   \
  if (!variable.ok()) {                                           \
    return std::move(variable).status();                          \
  }                                                               \
  declaration = *std::move(variable)

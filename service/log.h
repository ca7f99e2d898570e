// SPDX-License-Identifier: Apache-2.0
//
// The program's log: lines on stderr, for people or as one JSON object each.
//
// Threads     SetUpLog before other threads start; logging itself is thread-safe.
#pragma once

#include <string>

namespace cowshed::service {

// `format`: `text` or `json`. `level`: trace, debug, info, warning, error, critical, off.
void SetUpLog(const std::string& format, const std::string& level);

// `text` as the inside of a JSON string.
std::string JsonEscaped(const std::string& text);

}  // namespace cowshed::service

// SPDX-License-Identifier: Apache-2.0
//
// Bridges std::string_view to Abseil: Debian's Abseil is built for C++14, where absl::string_view
// is a type of its own that std::string_view does not convert to.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace cowshed::engine {

inline absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }
inline std::string_view StdView(absl::string_view text) { return {text.data(), text.size()}; }

// absl::StrCat that takes std::string_view too.
template <typename... Args>
std::string StrCat(const Args&... args) {
  const auto convert = [](const auto& arg) -> decltype(auto) {
    if constexpr (std::is_same_v<std::decay_t<decltype(arg)>, std::string_view>) {
      return View(arg);
    } else {
      return (arg);
    }
  };
  return absl::StrCat(convert(args)...);
}

}  // namespace cowshed::engine

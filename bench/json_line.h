// SPDX-License-Identifier: Apache-2.0
//
// The last line of a measuring program: one flat JSON object of numbers.
//
//   JsonLine().Add("seconds", watch.seconds()).Add("bytes", bytes).Print();
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

#include "absl/strings/str_format.h"

namespace cowshed::bench {

class JsonLine {
 public:
  // Names are words of ours: nothing in them needs escaping.
  template <typename Number>
  JsonLine& Add(std::string_view name, Number value) {
    text_ += text_.empty() ? "{" : ", ";
    text_ += "\"" + std::string(name) + "\": ";
    text_ += absl::StrFormat("%.17g", static_cast<double>(value));
    return *this;
  }
  void Print() const {
    std::printf("%s}\n", text_.empty() ? "{" : text_.c_str());
    std::fflush(stdout);
  }

 private:
  std::string text_;
};

}  // namespace cowshed::bench

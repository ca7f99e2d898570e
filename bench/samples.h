// SPDX-License-Identifier: Apache-2.0
//
// Measured values and what becomes of them: quantiles, rows of named values, and one JSON document
// as the last line of a measuring program.
//
// Threads     One thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "google/protobuf/struct.pb.h"

namespace cowshed::bench {

using Clock = std::chrono::steady_clock;

inline double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Says why and exits.
[[noreturn]] void Die(std::string_view what, std::string_view why);

// Measured values, in the unit of whoever fills it.
class Samples {
 public:
  void Add(double value) { values_.push_back(value); }
  void Append(const Samples& other) {
    values_.insert(values_.end(), other.values_.begin(), other.values_.end());
  }
  // The least value that `fraction` of all do not exceed; 0 if there is none.
  double Quantile(double fraction) const;
  double Median() const { return Quantile(0.5); }
  double Max() const { return Quantile(1); }
  size_t count() const { return values_.size(); }

 private:
  std::vector<double> values_;
};

// A row of the document: names and values, in any order.
class Row {
 public:
  Row& Set(const std::string& name, double value);
  Row& Set(const std::string& name, const std::string& value);
  const google::protobuf::Struct& value() const { return value_; }

 private:
  google::protobuf::Struct value_;
};

// {"rows": [...]}, printed as one line.
class Document {
 public:
  void Add(const Row& row);
  void Print() const;

 private:
  google::protobuf::Struct value_;
};

}  // namespace cowshed::bench

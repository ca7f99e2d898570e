// SPDX-License-Identifier: Apache-2.0
#include "bench/samples.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "google/protobuf/util/json_util.h"

namespace cowshed::bench {

void Die(std::string_view what, std::string_view why) {
  std::fprintf(stderr, "%.*s: %.*s\n", static_cast<int>(what.size()), what.data(),
               static_cast<int>(why.size()), why.data());
  std::exit(1);
}

double Samples::Quantile(double fraction) const {
  if (values_.empty()) return 0;
  std::vector<double> sorted = values_;
  std::sort(sorted.begin(), sorted.end());
  const double rank = std::ceil(fraction * static_cast<double>(sorted.size()));
  return sorted[static_cast<size_t>(std::max(rank, 1.0)) - 1];
}

Row& Row::Set(const std::string& name, double value) {
  (*value_.mutable_fields())[name].set_number_value(value);
  return *this;
}

Row& Row::Set(const std::string& name, const std::string& value) {
  (*value_.mutable_fields())[name].set_string_value(value);
  return *this;
}

void Document::Add(const Row& row) {
  google::protobuf::ListValue* rows = (*value_.mutable_fields())["rows"].mutable_list_value();
  *rows->add_values()->mutable_struct_value() = row.value();
}

void Document::Print() const {
  std::string text;
  const auto status = google::protobuf::util::MessageToJsonString(value_, &text);
  if (!status.ok()) Die("JSON", status.ToString());
  std::puts(text.c_str());
}

}  // namespace cowshed::bench

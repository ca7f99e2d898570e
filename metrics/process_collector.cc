// SPDX-License-Identifier: Apache-2.0
#include "metrics/process_collector.h"

#include <dirent.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>

#include "metrics/families.h"

namespace cowshed::metrics {
namespace {

using prometheus::MetricType;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The fields of /proc/self/stat from field 3 (state) on: the name before may hold blanks and
// parentheses, so counting starts behind the last one. Field n of proc(5) is element n - 3.
std::vector<std::string> StatFields(const std::string& stat) {
  const size_t name_end = stat.rfind(')');
  std::vector<std::string> fields;
  if (name_end == std::string::npos) return fields;
  std::istringstream rest(stat.substr(name_end + 1));
  for (std::string field; rest >> field;) fields.push_back(field);
  return fields;
}

constexpr size_t kUserTicks = 14 - 3;
constexpr size_t kSystemTicks = 15 - 3;
constexpr size_t kThreads = 20 - 3;
constexpr size_t kStartTicks = 22 - 3;  // since the machine's boot
constexpr size_t kVirtualBytes = 23 - 3;
constexpr size_t kResidentPages = 24 - 3;

// The number behind `key` at the start of a line.
std::optional<double> NumberAfter(const std::string& text, std::string_view key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.compare(0, key.size(), key) != 0) continue;
    const char* digits = line.c_str() + key.size();
    char* end = nullptr;
    const double value = std::strtod(digits, &end);
    if (end != digits) return value;
  }
  return std::nullopt;
}

std::optional<double> OpenDescriptors(const std::string& path) {
  DIR* directory = opendir(path.c_str());
  if (directory == nullptr) return std::nullopt;
  uint64_t count = 0;
  while (const dirent* entry = readdir(directory)) {
    if (entry->d_name[0] != '.') ++count;
  }
  closedir(directory);
  // The listing's own descriptor is no news.
  return static_cast<double>(count > 0 ? count - 1 : 0);
}

void Add(std::vector<prometheus::MetricFamily>& families, std::string_view name,
         std::string_view help, MetricType type, std::optional<double> value) {
  if (value) AddSample(families.emplace_back(MakeFamily(name, help, type)), {}, *value);
}

}  // namespace

std::vector<prometheus::MetricFamily> ProcessCollector::Collect() const {
  const auto fields = StatFields(ReadFile(proc_ + "/self/stat"));
  const auto field = [&fields](size_t i) -> std::optional<double> {
    if (i >= fields.size()) return std::nullopt;
    return std::strtod(fields[i].c_str(), nullptr);
  };
  const double ticks_per_second = static_cast<double>(sysconf(_SC_CLK_TCK));
  const double page_bytes = static_cast<double>(sysconf(_SC_PAGESIZE));
  const auto scaled = [](std::optional<double> value, double factor) {
    return value ? std::optional(*value * factor) : std::nullopt;
  };

  std::optional<double> cpu_seconds, start_seconds;
  if (field(kSystemTicks)) {
    cpu_seconds = (*field(kUserTicks) + *field(kSystemTicks)) / ticks_per_second;
  }
  const auto boot_seconds = NumberAfter(ReadFile(proc_ + "/stat"), "btime ");
  if (boot_seconds && field(kStartTicks)) {
    start_seconds = *boot_seconds + *field(kStartTicks) / ticks_per_second;
  }

  std::vector<prometheus::MetricFamily> families;
  Add(families, "process_cpu_seconds_total", "CPU time, user and system.", MetricType::Counter,
      cpu_seconds);
  Add(families, "process_resident_memory_bytes",
      "Resident memory, pages of the mapped metadata included.", MetricType::Gauge,
      scaled(field(kResidentPages), page_bytes));
  Add(families, "process_virtual_memory_bytes", "Address space, the metadata map included.",
      MetricType::Gauge, field(kVirtualBytes));
  Add(families, "process_threads", "Threads.", MetricType::Gauge, field(kThreads));
  Add(families, "process_start_time_seconds", "Unix time at which the process started.",
      MetricType::Gauge, start_seconds);
  Add(families, "process_open_fds", "Open file descriptors.", MetricType::Gauge,
      OpenDescriptors(proc_ + "/self/fd"));
  Add(families, "process_max_fds", "Most file descriptors that may be open.", MetricType::Gauge,
      NumberAfter(ReadFile(proc_ + "/self/limits"), "Max open files"));
  return families;
}

}  // namespace cowshed::metrics

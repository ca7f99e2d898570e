// SPDX-License-Identifier: Apache-2.0
//
// crash_images [--images N] [--seed S] [--children C] [--keep DIR] [--only R.I] [--deaf-to PATH]
// Cuts the power N times; the last line says cases and losses. Exit 0: none was lost, 1: some were,
// 2: wrong arguments.
#include <charconv>
#include <iostream>
#include <map>
#include <string>
#include <string_view>
#include <thread>

#include "tests/power_cut/crash_campaign.h"

namespace cowshed::engine {
namespace {

bool ToNumber(std::string_view text, uint64_t* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size();
}

bool Parse(int argc, char** argv, CampaignOptions* options) {
  uint64_t children = 0;
  for (int i = 1; i < argc; i += 2) {
    if (i + 1 >= argc) return false;
    const std::string_view name = argv[i];
    const std::string_view value = argv[i + 1];
    bool good = true;
    if (name == "--images") {
      good = ToNumber(value, &options->images) && options->images > 0;
    } else if (name == "--seed") {
      good = ToNumber(value, &options->seed);
    } else if (name == "--children") {
      good = ToNumber(value, &children) && children > 0 && children <= 256;
      options->children = static_cast<uint32_t>(children);
    } else if (name == "--keep") {
      options->keep_below = value;
    } else if (name == "--deaf-to") {
      options->deaf_to = value;
    } else if (name == "--only") {
      const size_t dot = value.find('.');
      options->only.emplace();
      good = dot != value.npos && ToNumber(value.substr(0, dot), &options->only->first) &&
             ToNumber(value.substr(dot + 1), &options->only->second);
    } else {
      good = false;
    }
    if (!good) return false;
  }
  return true;
}

int Main(int argc, char** argv) {
  CampaignOptions options;
  options.children = std::max(std::thread::hardware_concurrency(), 1u);
  if (!Parse(argc, argv, &options)) {
    std::cerr << "usage: crash_images [--images N] [--seed S] [--children C] [--keep DIR] "
                 "[--only R.I] [--deaf-to PATH]\n";
    return 2;
  }
  std::cout << "seed " << options.seed << std::endl;
  const CampaignResult result = RunCampaign(options);
  std::cout << static_cast<uint64_t>(static_cast<double>(result.images) / result.seconds)
            << " images a second\n"
            << "crash: " << result.images << " images, " << result.losses << " losses\n";
  return result.losses == 0 && result.images > 0 ? 0 : 1;
}

}  // namespace
}  // namespace cowshed::engine

int main(int argc, char** argv) { return cowshed::engine::Main(argc, argv); }

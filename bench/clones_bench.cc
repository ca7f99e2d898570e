// SPDX-License-Identifier: Apache-2.0
//
// Is the last clone as fast as the first? Makes clones of one snapshot of a running server, each
// durable when acknowledged, in bands: up to 4,000 in bands of 500, then on in bands of 8,000. In
// every band some are made by one caller and the rest by 16, in turns, and in between the machine's
// own rate of 4 KiB overwrites, each followed by fdatasync, is measured on the same file system.
// Then all are listed, page by page.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <vector>

#include "bench/service_client.h"

namespace cowshed::bench {
namespace {

constexpr uint32_t kCallers = 16;
constexpr int kSlices = 5;  // of a band: its rates are the medians over them
constexpr uint64_t kPageSize = 1000;

struct Options {
  std::string address;
  std::string probe_path;  // on the file system of the pool
  uint64_t clones = 100000;
  uint64_t first_bands_end = 4000;
  uint64_t first_band = 500;
  uint64_t band = 8000;
  uint64_t one_caller_per_slice = 50;
  uint64_t syncs_per_slice = 50;
  uint64_t gets_per_band = 1000;
};

// The machine's own durable write.
class SyncProbe {
 public:
  explicit SyncProbe(const std::string& path) : path_(path) {
    file_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file_ < 0) Die(path, std::strerror(errno));
    const std::string bytes(kBytes, 'x');
    if (pwrite(file_, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()) ||
        fsync(file_) != 0) {
      Die(path, std::strerror(errno));
    }
  }
  ~SyncProbe() {
    close(file_);
    unlink(path_.c_str());
  }
  SyncProbe(const SyncProbe&) = delete;
  SyncProbe& operator=(const SyncProbe&) = delete;

  double Rate(uint64_t count) {
    std::array<char, kSectorBytes> sector{};
    const auto begin = Clock::now();
    for (uint64_t i = 0; i < count; ++i) {
      sector.fill(static_cast<char>(++writes_));
      const off_t at = static_cast<off_t>(writes_ * kSectorBytes % kBytes);
      if (pwrite(file_, sector.data(), sector.size(), at) != kSectorBytes ||
          fdatasync(file_) != 0) {
        Die(path_, std::strerror(errno));
      }
    }
    return static_cast<double>(count) / SecondsSince(begin);
  }

 private:
  static constexpr size_t kSectorBytes = 4096;
  static constexpr size_t kBytes = 4 << 20;
  const std::string path_;
  int file_ = -1;
  uint64_t writes_ = 0;
};

std::string NameOf(uint64_t clone) { return "clones/" + std::to_string(1000000 + clone); }

class Clones {
 public:
  Clones(ServiceClient& client, const Options& options)
      : client_(client), options_(options), probe_(options.probe_path) {}

  void Run() {
    CreateDataset(client_, "golden", uint64_t{1} << 30);
    for (uint64_t i = 0; i < 64; ++i) {
      WriteRange(client_, "golden", i << 20, RandomBytes(16384, i));
    }
    CreateSnapshot(client_, "golden@base");
    while (made_ < options_.clones) {
      const uint64_t size = made_ < options_.first_bands_end ? options_.first_band : options_.band;
      Band(std::min(size, options_.clones - made_));
    }
    for (int i = 0; i < kSlices; ++i) List();
    document_.Print();
  }

 private:
  void Make(uint32_t callers, uint64_t count, Samples* rates) {
    if (count == 0) return;
    const uint64_t first = made_;
    const double seconds = RunBy(callers, count, [&](uint64_t i) {
      CloneDataset(client_, "golden@base", NameOf(first + i));
    });
    made_ += count;
    rates->Add(static_cast<double>(count) / seconds);
  }

  void Band(uint64_t size) {
    const uint64_t from = made_;
    const uint64_t slice = size / kSlices;
    const uint64_t alone = std::min(options_.one_caller_per_slice, slice / 2);
    Samples one;
    Samples many;
    Samples syncs;
    for (int i = 0; i < kSlices; ++i) {
      syncs.Add(probe_.Rate(options_.syncs_per_slice));
      Make(1, alone, &one);
      syncs.Add(probe_.Rate(options_.syncs_per_slice));
      Make(kCallers, slice - alone, &many);
    }
    Make(kCallers, from + size - made_, &many);
    document_.Add(Row()
                      .Set("kind", "band")
                      .Set("from", static_cast<double>(from))
                      .Set("to", static_cast<double>(made_))
                      .Set("one_caller_per_second", one.Median())
                      .Set("callers16_per_second", many.Median())
                      .Set("fdatasyncs_per_second", syncs.Median())
                      .Set("get_p99_ms", GetLatencies().Quantile(0.99) * 1e3));
  }

  Samples GetLatencies() {
    Samples seconds;
    std::mt19937_64 random(made_);
    for (uint64_t i = 0; i < options_.gets_per_band; ++i) {
      v1::GetDatasetRequest request;
      request.set_name(NameOf(random() % made_));
      const auto begin = Clock::now();
      Call(*client_.datasets, &v1::DatasetService::Stub::GetDataset, request);
      seconds.Add(SecondsSince(begin));
    }
    return seconds;
  }

  void List() {
    v1::ListDatasetsRequest request;
    request.set_page_size(kPageSize);
    request.set_prefix("clones");
    uint64_t listed = 0;
    const auto begin = Clock::now();
    do {
      const v1::ListDatasetsResponse page =
          Call(*client_.datasets, &v1::DatasetService::Stub::ListDatasets, request);
      listed += static_cast<uint64_t>(page.datasets_size());
      request.set_page_token(page.next_page_token());
    } while (!request.page_token().empty());
    const double seconds = SecondsSince(begin);
    if (listed != made_) Die("list", "it does not show every clone exactly once");
    document_.Add(Row()
                      .Set("kind", "list")
                      .Set("clones", static_cast<double>(listed))
                      .Set("seconds", seconds));
  }

  ServiceClient& client_;
  const Options options_;
  SyncProbe probe_;
  uint64_t made_ = 0;
  Document document_;
};

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Clones of one snapshot of a running server: rates per band, Get and list");
  app.add_option("--address", options.address, "The server")->required();
  app.add_option("--probe", options.probe_path,
                 "File to measure fdatasync with; is made and removed")
      ->required();
  app.add_option("--clones", options.clones, "How many to make");
  app.add_option("--band", options.band, "Clones in a band past the first bands");
  app.add_option("--first-band", options.first_band, "Clones in each of the first bands");
  app.add_option("--one-caller", options.one_caller_per_slice,
                 "Clones of each fifth of a band that one caller makes");
  app.add_option("--first-bands-end", options.first_bands_end, "Where the first bands end");
  CLI11_PARSE(app, argc, argv);
  ServiceClient client(options.address);
  Clones(client, options).Run();
  return 0;
}

}  // namespace
}  // namespace cowshed::bench

int main(int argc, char** argv) { return cowshed::bench::Main(argc, argv); }

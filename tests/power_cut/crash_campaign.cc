// SPDX-License-Identifier: Apache-2.0
#include "tests/power_cut/crash_campaign.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <new>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/hash.h"
#include "engine/base/strings.h"
#include "tests/power_cut/disk_replay.h"

namespace cowshed::engine {
namespace {

constexpr unsigned kHangSeconds = 60;
constexpr uint64_t kImagesOfARandomWorkload = 2500;
constexpr uint64_t kKeptLosses = 10;  // of a child

// What a child tells its parent, in memory they share.
struct ChildReport {
  std::atomic<uint64_t> image{0};  // that it is judging
  std::atomic<uint64_t> judged{0};
  std::atomic<uint64_t> losses{0};
};

// The cuts that a recording has, and which of their images are judged.
class Plan {
 public:
  Plan(const DiskLog& log, uint64_t images, uint64_t seed)
      : cuts_(DiskReplay::CutsOf(log)), images_(images), seed_(seed) {}

  size_t CutOf(uint64_t image) const { return cuts_[IndexOf(image)]; }
  // Every cut sees all that was not synced lost, all kept, and then chance; where there are fewer
  // images than cuts, chance decides among these, too.
  uint64_t ChoiceOf(uint64_t image) const {
    const uint64_t chance = Hash64(StrCat(seed_, " ", image)) | 2;
    if (images_ < 2 * cuts_.size()) return chance % 5 < 2 ? chance % 5 : chance;
    const uint64_t index = IndexOf(image);
    const uint64_t first = (index * images_ + cuts_.size() - 1) / cuts_.size();
    return image - first < 2 ? image - first : chance;
  }

 private:
  uint64_t IndexOf(uint64_t image) const { return image * cuts_.size() / images_; }

  const std::vector<size_t> cuts_;
  const uint64_t images_;
  const uint64_t seed_;
};

// The pool of an image goes on living: it does what is left to do, and takes new bytes.
std::string GoOn(Pool& pool) {
  if (const absl::Status status = pool.DrainBackground(); !status.ok()) {
    return StrCat("it does not drain: ", View(status.ToString()));
  }
  Await<absl::StatusOr<Outcome>> created;
  CreateDatasetArgs args;
  args.name = "after/the/cut";
  args.size_bytes = 8 * 4096;
  args.block_bytes = 4096;
  pool.CreateDataset(std::move(args), std::nullopt, created.Callback());
  absl::Status status = created.Wait().status();
  if (status.ok()) {
    const absl::StatusOr<std::shared_ptr<Volume>> volume = pool.OpenVolume("after/the/cut", "");
    status = volume.status();
    const std::string bytes(5 * 4096, '!');
    if (status.ok()) status = (*volume)->Write(0, std::as_bytes(std::span(bytes)));
    if (status.ok()) {
      Await<absl::StatusOr<Txg>> flushed;
      (*volume)->Flush(flushed.Callback());
      status = flushed.Wait().status();
    }
  }
  if (!status.ok()) return StrCat("it takes no writes: ", View(status.ToString()));
  return "";
}

std::string CheckFindings(Pool& pool) {
  const absl::StatusOr<CheckReport> report = pool.Check();
  if (!report.ok()) return StrCat("it can not be checked: ", View(report.status().ToString()));
  if (report->ok()) return "";
  const CheckFinding& finding = report->findings[0];
  return StrCat("the checker finds ", finding.invariant, ": ", finding.name, ": ", finding.message);
}

// Judges the images of one recording.
class Judge {
 public:
  Judge(const Recording& recording, uint64_t number, const CampaignOptions& options)
      : recording_(recording),
        number_(number),
        options_(options),
        plan_(recording.log, options.images, options.seed) {}

  // In a child: images first, first + stride, ...
  void JudgeFrom(uint64_t first, uint64_t stride, ChildReport* report) {
    DiskReplay replay(recording_.log, options_.deaf_to);
    const std::string directory = StrCat(FastTempRoot(), "/cowshed_image_", getpid());
    uint64_t kept = 0;
    for (uint64_t image = first; image < options_.images; image += stride) {
      if (options_.only.has_value() && image != options_.only->second) continue;
      report->image.store(image);
      replay.AdvanceTo(plan_.CutOf(image));
      alarm(kHangSeconds);
      const std::string loss = JudgeImage(replay, plan_.ChoiceOf(image), image, directory);
      if (!loss.empty()) {
        report->losses.fetch_add(1);
        Tell(image, loss);
        if (!options_.keep_below.empty() && kept++ < kKeptLosses) Keep(replay, image, loss);
      }
      report->judged.fetch_add(1);
    }
    std::filesystem::remove_all(directory);
  }
  bool quiet() const { return options_.quiet; }
  void Tell(uint64_t image, const std::string& loss) const {
    if (options_.quiet) return;
    std::cerr << StrCat("LOSS ", number_, ".", image, " (", recording_.name, "): ", loss, "\n");
    if (options_.command.empty()) return;
    std::cerr << StrCat("  again: ", options_.command, " --only ", number_, ".", image, "\n");
  }

 private:
  // Empty, or what is wrong.
  std::string JudgeImage(const DiskReplay& replay, uint64_t choice, uint64_t image,
                         const std::string& directory) const {
    std::filesystem::remove_all(directory);
    std::filesystem::create_directory(directory);
    replay.WriteImage(directory, choice);
    PoolOptions options;
    SetCrashOptions(&options);
    options.directory = directory + "/" + kPoolFolder;
    options.create_if_missing = !replay.anything_acknowledged();
    options.clock_ms = [] { return TempPool::kStartMs; };
    absl::StatusOr<std::unique_ptr<Pool>> pool = Pool::Open(options);
    if (!pool.ok()) return StrCat("it does not open: ", View(pool.status().ToString()));
    std::string loss = CheckFindings(**pool);
    if (loss.empty()) loss = CompareState(replay, **pool);
    if (loss.empty() && image % 4 == 0) {
      loss = GoOn(**pool);
      if (loss.empty()) loss = CheckFindings(**pool);
    }
    return loss;
  }
  std::string CompareState(const DiskReplay& replay, Pool& pool) const {
    const absl::StatusOr<VisibleState> found = ReadState(pool);
    if (!found.ok()) return StrCat("it can not be read: ", View(found.status().ToString()));
    const uint64_t last = std::min<uint64_t>(std::max(replay.begun(), replay.acknowledged()),
                                             recording_.states.size() - 1);
    for (uint64_t state = replay.acknowledged(); state <= last; ++state) {
      if (*found == recording_.states[state]) return "";
    }
    const uint64_t acknowledged = replay.acknowledged();
    if (IsMixture(*found, acknowledged, last)) return "";
    return StrCat("after step ", acknowledged, " \"", recording_.steps[acknowledged], "\", in \"",
                  recording_.steps[last],
                  "\": ", StateDifference(recording_.states[acknowledged], *found));
  }
  // Whether a gradual step is on its way and each name is as one of the states has it.
  bool IsMixture(const VisibleState& found, uint64_t first, uint64_t last) const {
    const auto& gradual = recording_.gradual;
    if (std::none_of(gradual.begin() + static_cast<ptrdiff_t>(first) + 1,
                     gradual.begin() + static_cast<ptrdiff_t>(last) + 1, std::identity())) {
      return false;
    }
    std::set<std::string> names;
    for (const auto& entry : found) names.insert(entry.first);
    for (uint64_t state = first; state <= last; ++state) {
      for (const auto& entry : recording_.states[state]) names.insert(entry.first);
    }
    const auto of = [](const VisibleState& state, const std::string& name) {
      const auto it = state.find(name);
      return it == state.end() ? std::optional<uint64_t>() : it->second;
    };
    return std::all_of(names.begin(), names.end(), [&](const std::string& name) {
      for (uint64_t state = first; state <= last; ++state) {
        if (of(found, name) == of(recording_.states[state], name)) return true;
      }
      return false;
    });
  }
  // The image as the cut left it, for `cowshed check` and eyes.
  void Keep(const DiskReplay& replay, uint64_t image, const std::string& loss) const {
    const std::string directory =
        StrCat(options_.keep_below, "/seed", options_.seed, ".", number_, ".", image);
    std::filesystem::remove_all(directory);
    std::filesystem::create_directories(directory);
    replay.WriteImage(directory, plan_.ChoiceOf(image));
    std::ofstream(directory + "/loss.txt") << loss << '\n';
    std::cerr << "  kept: " << directory << '\n';
  }

  const Recording& recording_;
  const uint64_t number_;
  const CampaignOptions& options_;
  const Plan plan_;
};

// Lets a child judge from `first` on, again after each image that ends it. Children run side by
// side, so this only starts one.
pid_t StartChild(Judge& judge, uint64_t first, uint64_t stride, ChildReport* report) {
  std::cout.flush();
  const pid_t child = fork();
  COWSHED_CHECK(child >= 0, "a child can be made");
  if (child > 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // nobody would count what it finds
  std::signal(SIGALRM, SIG_DFL);
  // What an expected crash has to say is no news.
  if (judge.quiet() && std::freopen("/dev/null", "w", stderr) == nullptr) _exit(1);
  judge.JudgeFrom(first, stride, report);
  _exit(0);
}

}  // namespace

CampaignResult JudgeRecording(const Recording& recording, uint64_t number,
                              const CampaignOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  Judge judge(recording, number, options);
  const uint32_t children = std::max(options.children, 1u);
  const size_t bytes = children * sizeof(ChildReport);
  void* const shared =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  COWSHED_CHECK(shared != MAP_FAILED, "memory can be shared");
  ChildReport* const reports = static_cast<ChildReport*>(shared);
  std::vector<pid_t> pids;
  for (uint32_t i = 0; i < children; ++i) {
    pids.push_back(StartChild(judge, i, children, new (reports + i) ChildReport));
  }
  CampaignResult result;
  for (uint32_t i = 0; i < children; ++i) {
    while (true) {
      int status = 0;
      COWSHED_CHECK(waitpid(pids[i], &status, 0) == pids[i], "a child ends");
      if (WIFEXITED(status) && WEXITSTATUS(status) == 0) break;
      const uint64_t image = reports[i].image.load();
      judge.Tell(image, WIFSIGNALED(status)
                            ? StrCat("its process died of signal ", WTERMSIG(status))
                            : StrCat("its process ended with ", WEXITSTATUS(status)));
      reports[i].losses.fetch_add(1);
      reports[i].judged.fetch_add(1);
      std::filesystem::remove_all(StrCat(FastTempRoot(), "/cowshed_image_", pids[i]));
      pids[i] = StartChild(judge, image + children, children, &reports[i]);
    }
    result.images += reports[i].judged.load();
    result.losses += reports[i].losses.load();
  }
  munmap(shared, bytes);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

CampaignResult RunCampaign(const CampaignOptions& options) {
  const uint64_t of_random = options.images / 2;
  const uint64_t workloads = (of_random + kImagesOfARandomWorkload - 1) / kImagesOfARandomWorkload;
  CampaignResult total;
  for (uint64_t number = 0; number <= workloads; ++number) {
    CampaignOptions part = options;
    part.command = StrCat("./dev crash --images ", options.images, " --seed ", options.seed,
                          options.deaf_to.empty() ? "" : " --deaf-to ", options.deaf_to);
    part.images = number == 0 ? options.images - of_random
                              : of_random / workloads + (number <= of_random % workloads ? 1 : 0);
    if (part.images == 0 || (options.only.has_value() && number != options.only->first)) continue;
    const Recording recording =
        number == 0 ? RecordScript() : RecordRandom(options.seed * 1000003 + number);
    const CampaignResult result = JudgeRecording(recording, number, part);
    total.images += result.images;
    total.losses += result.losses;
    total.seconds += result.seconds;
    std::cout << recording.name << ": " << recording.log.ops.size() << " operations, "
              << recording.states.size() << " states, " << result.images << " images, "
              << result.losses << " losses" << std::endl;
  }
  return total;
}

}  // namespace cowshed::engine

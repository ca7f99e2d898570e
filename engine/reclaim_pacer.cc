// SPDX-License-Identifier: Apache-2.0
#include "engine/reclaim_pacer.h"

#include <algorithm>

#include "engine/store/format.h"

namespace cowshed::engine {
namespace {

constexpr double kIdleFactor = 10;
constexpr double kPressedFactor = 8;
constexpr double kNewest = 0.2;  // weight of a sample
constexpr double kMaxStep = 2;   // factor by which one sample may move a cost
constexpr double kLeastSeconds = 1e-9;
constexpr auto kRateSlice = std::chrono::milliseconds(100);

// Before anything was measured: what a list of 50 M entries took (docs/benchmarks.md, memory), for
// a new process forecasts by these.
constexpr double kRunSeconds = 0.2e-6;
constexpr double kJobSeconds = 30e-6;
constexpr double kNameSeconds = 40e-6;
constexpr double kSnapshotSeconds = 20e-6;
constexpr double kTakeOutSeconds = 60e-6;
constexpr double kReadSeconds = 0.08e-6;
constexpr double kRestFactor = 1;
constexpr double kRoundSeconds = 2e-3;  // two flushes of a disk with a write cache

// 0 to 1, by the square of the share that still waits for reclaim of the space that is not taken.
double Pressure(const ReclaimLoad& load) {
  const double to_come = static_cast<double>(load.freeing_sectors);
  const double free = to_come + static_cast<double>(load.available_sectors);
  const double share = load.writers_wait ? 1 : free > 0 ? to_come / free : 0;
  return share * share;
}

}  // namespace

void ReclaimPacer::Rate::Observe(uint64_t count, double seconds) {
  if (count == 0) return;
  const double sample =
      std::clamp(seconds / static_cast<double>(count), seconds_ / kMaxStep, seconds_ * kMaxStep);
  seconds_ = std::max(kLeastSeconds, seconds_ * (1 - kNewest) + sample * kNewest);
}

ReclaimPacer::ReclaimPacer(std::chrono::microseconds budget, uint64_t max_runs, uint32_t max_jobs)
    : budget_(budget),
      max_runs_(std::max<uint64_t>(max_runs, 1)),
      max_jobs_(std::max<uint32_t>(max_jobs, 1)),
      costs_{Rate(kRunSeconds), Rate(kJobSeconds), Rate(kNameSeconds), Rate(kSnapshotSeconds),
             Rate(kTakeOutSeconds)},
      read_(kReadSeconds),
      round_(kRoundSeconds) {}

double ReclaimPacer::RoundSeconds(uint64_t budget_us, const ReclaimLoad& load) const {
  const double budget = budget_us != 0 ? static_cast<double>(budget_us) * 1e-6
                                       : std::chrono::duration<double>(budget_).count();
  const double pressed = 1 + (kPressedFactor - 1) * Pressure(load);
  return budget * std::max(pressed, load.foreground ? 1 : kIdleFactor);
}

double ReclaimPacer::RestSeconds(double seconds, const ReclaimLoad& load) {
  return load.foreground ? seconds * kRestFactor * (1 - Pressure(load)) : 0;
}

uint64_t ReclaimPacer::Fits(ReclaimUnit unit, double seconds) const {
  const MutexLock lock(mutex_);
  const double cost = costs_[static_cast<size_t>(unit)].seconds();
  return std::max<uint64_t>(1, static_cast<uint64_t>(std::max(seconds, 0.0) / cost));
}

double ReclaimPacer::Cost(ReclaimUnit unit, uint64_t count) const {
  const MutexLock lock(mutex_);
  return costs_[static_cast<size_t>(unit)].seconds() * static_cast<double>(count);
}

void ReclaimPacer::Observe(ReclaimUnit unit, uint64_t count, double seconds) {
  const MutexLock lock(mutex_);
  costs_[static_cast<size_t>(unit)].Observe(count, seconds);
}

void ReclaimPacer::ObserveRead(uint64_t entries, double seconds) {
  const MutexLock lock(mutex_);
  read_.Observe(entries, seconds);
}

void ReclaimPacer::ObserveRound(double seconds) {
  const MutexLock lock(mutex_);
  round_.Observe(1, seconds);
}

double ReclaimPacer::PredictSeconds(const ReclaimForecast& forecast) const {
  if (forecast.jobs == 0) return 0;
  const double apply =
      Cost(ReclaimUnit::kJob, forecast.jobs) + Cost(ReclaimUnit::kRun, forecast.runs);
  const double budget = RoundSeconds(0, {});
  const uint64_t by_runs = (forecast.runs + max_runs_ - 1) / max_runs_;
  const uint64_t by_jobs = (forecast.jobs + max_jobs_ - 1) / max_jobs_;
  // The rounds, and the txg that turns their frees into free sectors.
  const double rounds =
      std::max({apply / budget, static_cast<double>(by_runs), static_cast<double>(by_jobs), 1.0}) +
      1;
  // A list that does not fit a bite is read once more before: to be verified.
  const double reads = forecast.entries > max_runs_ ? 2 : 1;
  const MutexLock lock(mutex_);
  return rounds * round_.seconds() + apply +
         reads * read_.seconds() * static_cast<double>(forecast.entries);
}

void ReclaimPacer::Freed(uint64_t bytes, uint64_t rate, Clock::time_point now) {
  const MutexLock lock(mutex_);
  if (rate == 0) {
    free_from_ = {};
    return;
  }
  const std::chrono::duration<double> owed(static_cast<double>(bytes) / static_cast<double>(rate));
  free_from_ = std::max(free_from_, now) + std::chrono::duration_cast<Clock::duration>(owed);
}

ReclaimPacer::Clock::duration ReclaimPacer::WaitFor(uint64_t rate, Clock::time_point now) {
  const MutexLock lock(mutex_);
  if (rate == 0) free_from_ = {};
  return free_from_ > now ? free_from_ - now : Clock::duration::zero();
}

uint64_t ReclaimPacer::RoundSectors(uint64_t rate) {
  const double seconds = std::chrono::duration<double>(kRateSlice).count();
  return std::max<uint64_t>(
      1, static_cast<uint64_t>(static_cast<double>(rate) * seconds / kSectorBytes));
}

}  // namespace cowshed::engine

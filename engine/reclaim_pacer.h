// SPDX-License-Identifier: Apache-2.0
//
// How much reclaim may do at a time. Applying a bite happens in the txg thread, where everybody
// else's changes wait for it; so the pacer measures what each unit of that work costs and sizes the
// next round to a budget of seconds:
//
//   busy      the budget itself (2 ms unless set otherwise)
//   idle      ten times that: nobody writes, and the next writer waits for one such txg at most
//   pressed   up to eight times that, as the space that is to come back outgrows the space that is
//             left, so that churn cannot outrun reclaim; at once where a writer waits for space
//
// Between two rounds it rests: as long as a round took while others work, so that it has half a
// processor; less under pressure, and not at all when idle.
//
// The same measurements answer how long a destroy will take. A rate in bytes per second, where one
// is set, is kept by a debt: a round that freed more than its share makes the next one wait.
//
// Threads     Thread-safe.
// Ownership   None. Cost: a short lock.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "engine/base/mutex.h"

namespace cowshed::engine {

// What a round is made of; each has a cost of its own.
enum class ReclaimUnit : uint8_t {
  kRun,       // a run freed
  kJob,       // a job looked up, advanced and stored
  kName,      // a dataset of a prefix turned into a job
  kSnapshot,  // a snapshot record of a destroyed dataset dropped
  kTakeOut,   // a snapshot taken out of its lineage
  kCount
};

// What reclaim stands in the way of.
struct ReclaimLoad {
  bool foreground = false;       // somebody wrote or called lately
  bool writers_wait = false;     // for space
  uint64_t freeing_sectors = 0;  // that reclaim can give back
  uint64_t available_sectors = 0;
};

// What a destroy leaves to reclaim.
struct ReclaimForecast {
  uint64_t jobs = 0;
  uint64_t entries = 0;  // of lists to be read
  uint64_t runs = 0;     // to be freed
};

class ReclaimPacer {
 public:
  using Clock = std::chrono::steady_clock;

  ReclaimPacer(std::chrono::microseconds budget, uint64_t max_runs, uint32_t max_jobs);

  // Seconds that the next round may add to its txg. `budget_us` 0: the default.
  double RoundSeconds(uint64_t budget_us, const ReclaimLoad& load) const;
  // How long reclaim rests after a round that took `seconds`, its reading included.
  static double RestSeconds(double seconds, const ReclaimLoad& load);
  // How many units fit into `seconds`: at least one.
  uint64_t Fits(ReclaimUnit unit, double seconds) const;
  double Cost(ReclaimUnit unit, uint64_t count) const;
  // `count` units took `seconds` in a txg.
  void Observe(ReclaimUnit unit, uint64_t count, double seconds);
  // Reading and matching `entries` outside of a txg took `seconds`.
  void ObserveRead(uint64_t entries, double seconds);
  // A round took `seconds` from its submission until it was durable.
  void ObserveRound(double seconds);

  // How long reclaim will take for this and nothing else, on a pool where nobody writes.
  double PredictSeconds(const ReclaimForecast& forecast) const;

  // `bytes` were freed under a limit of `rate` bytes per second (0: none).
  void Freed(uint64_t bytes, uint64_t rate, Clock::time_point now);
  // How long the next round has to wait for the sake of the rate.
  Clock::duration WaitFor(uint64_t rate, Clock::time_point now);
  // What one round may free under the rate: a tenth of a second's worth.
  static uint64_t RoundSectors(uint64_t rate);

 private:
  // A smoothed cost per unit. One sample moves it by a factor of two at most: a thread that lost
  // its processor for a while says nothing about the work.
  class Rate {
   public:
    explicit constexpr Rate(double prior) : seconds_(prior) {}
    double seconds() const { return seconds_; }
    void Observe(uint64_t count, double seconds);

   private:
    double seconds_;
  };

  const std::chrono::microseconds budget_;
  const uint64_t max_runs_;
  const uint32_t max_jobs_;
  mutable Mutex mutex_{LockRank::kReclaimPacer};
  std::array<Rate, static_cast<size_t>(ReclaimUnit::kCount)> costs_ ABSL_GUARDED_BY(mutex_);
  Rate read_ ABSL_GUARDED_BY(mutex_);
  Rate round_ ABSL_GUARDED_BY(mutex_);
  Clock::time_point free_from_ ABSL_GUARDED_BY(mutex_);  // when the debt will be paid off
};

}  // namespace cowshed::engine

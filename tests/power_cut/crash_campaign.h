// SPDX-License-Identifier: Apache-2.0
//
// Many power cuts: records workloads, builds images of what cuts may leave, opens and judges each,
// and counts the losses.
//
// Judged      An image opens (as an existing pool once the making of it was acknowledged), the
//             checker finds nothing, and it shows a state from the newest that was acknowledged to
//             the newest on its way, bit by bit. One in four then goes on: the background drains,
//             bytes are written and flushed, and the checker looks again.
// Processes   Images are judged by child processes, one at a time each: a crash or a hang (60 s) of
//             a child is a loss of the image it had, and a new child goes on after it. REQUIRES: no
//             other thread runs.
// Cost        A few milliseconds an image, in memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "tests/power_cut/crash_workload.h"

namespace cowshed::engine {

struct CampaignOptions {
  uint64_t images = 2000;
  uint64_t seed = 1;
  uint32_t children = 1;
  std::string deaf_to;     // see DiskReplay
  std::string keep_below;  // lost images are kept here; empty: nowhere
  bool quiet = false;      // says nothing of single losses
  std::string command;     // that repeats all this; a loss adds which image it is
  std::optional<std::pair<uint64_t, uint64_t>> only;  // one image of one recording
};

struct CampaignResult {
  uint64_t images = 0;
  uint64_t losses = 0;
  double seconds = 0;  // of judging
};

// Half of the images are of the script, the others of random workloads that follow from the seed.
CampaignResult RunCampaign(const CampaignOptions& options);
// `options.images` images of one recording, number `number`.
CampaignResult JudgeRecording(const Recording& recording, uint64_t number,
                              const CampaignOptions& options);

}  // namespace cowshed::engine

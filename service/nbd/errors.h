// SPDX-License-Identifier: Apache-2.0
//
// The only map from the engine's errors to NBD's: what a request answers, and what an option does.
//
// Threads     Free functions, thread-safe.
#pragma once

#include "absl/status/status.h"
#include "metrics/nbd_stats.h"
#include "service/nbd/wire.h"

namespace cowshed::service::nbd {

// What a request that failed with `status` answers.
Errno ErrnoOf(const absl::Status& status);
// What an option that failed with `status` answers.
OptionReply OptionReplyOf(const absl::Status& status);
// Under what the metrics count an answered error. REQUIRES: it is one.
metrics::NbdError CountedAs(Errno error);

}  // namespace cowshed::service::nbd

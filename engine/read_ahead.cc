// SPDX-License-Identifier: Apache-2.0
#include "engine/read_ahead.h"

#include <algorithm>

namespace cowshed::engine {

ReadAhead::Range ReadAhead::Next(uint64_t offset, uint64_t length, bool waited) {
  const MutexLock lock(mutex_);
  const bool goes_on = offset <= end_ + kSlackBytes && offset + kSlackBytes >= end_;
  if (!goes_on) {
    end_ = told_ = offset + length;
    window_ = 0;
    reads_ = 1;
    return {};
  }
  end_ = std::max(end_, offset + length);
  ++reads_;
  if (window_ == 0) {
    if (!waited || reads_ < 2) return {};
    window_ = kFirstWindowBytes;
    told_ = end_;
  }
  if (end_ + window_ / 2 < told_) return {};
  const uint64_t begin = std::max(told_, end_);
  return {begin, end_ + window_ - begin};
}

void ReadAhead::Told(const Range& range) {
  const MutexLock lock(mutex_);
  told_ = std::max(told_, range.offset_bytes + range.length_bytes);
  window_ = std::min(2 * window_, kMaxWindowBytes);
}

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
#include "engine/store/reader_epochs.h"

#include <algorithm>

#include "engine/base/check.h"

namespace cowshed::engine {

void ReaderEpochs::Publish(Txg txg) {
  const MutexLock lock(mutex_);
  COWSHED_CHECK(txg > published_ || published_ == 0, "I3: txgs are published in rising order");
  published_ = txg;
}

Txg ReaderEpochs::ReusableUpTo() const {
  const MutexLock lock(mutex_);
  return readers_.empty() ? published_ : std::min(published_, readers_.begin()->first);
}

Txg ReaderEpochs::Enter() {
  const MutexLock lock(mutex_);
  ++readers_[published_];
  return published_;
}

void ReaderEpochs::Leave(Txg txg) {
  const MutexLock lock(mutex_);
  const auto it = readers_.find(txg);
  COWSHED_CHECK(it != readers_.end(), "I3: a reader leaves the epoch it entered");
  if (--it->second == 0) {
    readers_.erase(it);
  }
}

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// Who may still be reading what. A reader enters with the last published txg before it copies a
// root; sectors freed in txg N may be reused or punched only when N is durable and no reader that
// entered before N was published is left (I3).
//
// Threads     Thread-safe.
// Cost        Enter and leave: one short lock, O(log distinct txgs).
#pragma once

#include <map>

#include "engine/base/mutex.h"
#include "engine/store/format.h"

namespace cowshed::engine {

class ReaderEpochs {
 public:
  // Keeps its epoch open for its lifetime. Never hold one across a wait for a client.
  class Guard {
   public:
    explicit Guard(ReaderEpochs& epochs) : epochs_(epochs), txg_(epochs.Enter()) {}
    ~Guard() { epochs_.Leave(txg_); }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    ReaderEpochs& epochs_;
    Txg txg_;
  };

  // From now on readers see `txg`. Called once per txg, after its commit, in rising order.
  void Publish(Txg txg);
  // Frees logged in a txg <= this one are durable and unseen by any reader.
  Txg ReusableUpTo() const;

 private:
  friend class Guard;
  Txg Enter();
  void Leave(Txg txg);

  mutable Mutex mutex_{LockRank::kReaderEpochs};
  Txg published_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<Txg, uint32_t> readers_ ABSL_GUARDED_BY(mutex_);  // entry txg -> readers
};

}  // namespace cowshed::engine

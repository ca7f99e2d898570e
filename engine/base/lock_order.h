// SPDX-License-Identifier: Apache-2.0
//
// The order of all locks. A thread may take a lock only if its rank comes after the ranks of all
// that the thread holds: then no circle of waiting threads, hence no deadlock, can exist. The table
// below is the order; every Mutex says at its declaration which place it has.
//
// Model       Ranks belong to places in the code, not to objects: two locks of one rank (two heads,
//             two shards) are never held together either.
// Threads     What a thread holds is known to that thread only.
// Cost        Checked in debug and sanitizer builds (COWSHED_CHECK_LOCK_ORDER): a few compares per
//             lock. In release builds a rank leaves no trace.
#pragma once

#include <cstdint>
#include <string_view>

namespace cowshed::engine {

// First to last. The service's come before the engine's, for it calls the engine, and the engine
// calls back with no lock held.
enum class LockRank : uint8_t {
  kServer,         // service: its housekeeper, which asks for health and cuts stalled streams
  kStreams,        // service: the registry of open streams; it ends them under its lock
  kCall,           // service: one stream, or one wait for operations
  kNbdServer,      // service: the table of NBD connections
  kNbdConnection,  // service: one NBD connection: what it has in flight, and its replies
  kWaits,          // service: the table of waits
  kCallbacks,      // service: how many callbacks the pool still has
  kAccess,         // service: who is at the other end
  kTokens,         // service: lists kept for page tokens
  kExecutor,       // service: a queue of tasks
  kTaskStep,       // one step of a background task
  kTaskState,      // whether a background task is woken or stopped
  kAttachments,    // who uses which volume as a device
  kHeadTable,      // the heads that are open
  kHead,           // one head: its tree and its dirty layers
  kTxg,            // what waits for the txg thread
  kIntentLog,      // who waits for the intent log, and what of it is in use
  kCallsInFlight,  // calls under way with a request_id
  kPunchQueue,     // runs to be given back to the host
  kReclaimPacer,   // what each kind of reclaim work costs
  kMetaGrowth,     // how far the metadata file is allocated
  kMetaReaders,    // read transactions in use and parked
  kReaderEpochs,   // readers by the txg they see
  kNodeCache,      // one shard of the node cache
  kLeaf,           // nothing is taken under it: tests, and what needs no place of its own
  kFailpoints,     // the armed failpoints, met anywhere
};

// As messages show it, e.g. `head table`.
std::string_view LockName(LockRank rank);

#ifdef COWSHED_CHECK_LOCK_ORDER
inline constexpr bool kLockOrderChecked = true;

// The place of one lock; told before it is taken and before it is released.
class LockOrder {
 public:
  explicit constexpr LockOrder(LockRank rank) : rank_(rank) {}
  // Aborts, naming both locks, if the thread holds one that comes later, or of the same rank.
  void Taking() const;
  void Released() const;

 private:
  LockRank rank_;
};
#else
inline constexpr bool kLockOrderChecked = false;

class LockOrder {
 public:
  explicit constexpr LockOrder(LockRank) {}
  void Taking() const {}
  void Released() const {}
};
#endif

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// The counters of the NBD server, a part of ServiceStats.
//
// Invariants  A gauge goes down as often as it went up.
// Threads     Every member may be read and written at any time; relaxed order is enough.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "engine/stats.h"

namespace cowshed::metrics {

// The commands that are answered, numbered as in the protocol less DISC.
enum class NbdCommand : uint8_t {
  kRead,
  kWrite,
  kFlush,
  kTrim,
  kCache,
  kWriteZeroes,
  kBlockStatus,
  kCount
};

// Errors that were answered, then reasons for which connections were ended by the server.
enum class NbdError : uint8_t {
  kPermission,
  kIo,
  kNoMemory,
  kInvalid,
  kNoSpace,
  kOverflow,
  kNotSupported,
  kShutdown,
  kBrokenProtocol,    // what came is no NBD, or too much of it
  kHandshakeTimeout,  // the handshake took too long
  kTls,               // its handshake failed
  kStalled,           // the client took no replies
  kCount
};

inline constexpr std::array<double, 12> kNbdSecondsBounds = {
    0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.25, 1};
using NbdHistogram = engine::Histogram<12>;

struct NbdStats {
  std::atomic<uint64_t> connections{0};  // gauge: open ones
  engine::PerEnum<NbdCommand> requests;  // answered, with errors too
  std::atomic<uint64_t> read_bytes{0};
  std::atomic<uint64_t> written_bytes{0};
  engine::PerEnum<NbdError> errors;
  // From the request read to its reply on its way.
  std::array<NbdHistogram, static_cast<size_t>(NbdCommand::kCount)> request_seconds{
      NbdHistogram(kNbdSecondsBounds), NbdHistogram(kNbdSecondsBounds),
      NbdHistogram(kNbdSecondsBounds), NbdHistogram(kNbdSecondsBounds),
      NbdHistogram(kNbdSecondsBounds), NbdHistogram(kNbdSecondsBounds),
      NbdHistogram(kNbdSecondsBounds)};
};

}  // namespace cowshed::metrics

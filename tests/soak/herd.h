// SPDX-License-Identifier: Apache-2.0
//
// The load of one C++ client and its oracle: a golden dataset that is written, flushed and
// snapshotted, and clones of it that come and go.
//
// Model       Every write has a version, a number that rises; each block says which version it is.
//             The golden dataset must show all versions that were flushed and of the later ones the
//             first k, each whole. Everything else is durable when its call is acknowledged.
//             A call without an answer is sent again; only then the oracle moves on.
// Invariants  What the oracle holds was acknowledged: whatever differs is a loss, and the herd
//             stops there, having told the history of the object.
// Threads     One thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/soak/caller.h"

namespace cowshed::soak {

inline constexpr uint64_t kBlockBytes = 4096;
inline constexpr uint64_t kBlocks = 96;

using Versions = std::vector<uint64_t>;  // one per block; 0: never written

// A snapshot or a dataset as the oracle knows it.
struct Object {
  std::string name;
  Versions versions = Versions(kBlocks);
  Object* origin = nullptr;  // of a clone
  uint32_t clones = 0;       // of a snapshot
  std::deque<std::string> history;
};

class Herd {
 public:
  Herd(const std::string& target, uint32_t number, uint64_t seed, Counters& counters);

  // One random step. False after a loss.
  bool Step();
  // Looks at everything once more, then destroys it. False on a loss.
  bool Finish();

 private:
  struct Write {
    uint64_t first;
    uint64_t count;
    uint64_t version;
  };

  // Steps.
  void WriteGolden();
  void FlushGolden();
  void Snapshot();
  void Clone();
  void Replace();
  void WriteClone();
  void Rename();
  void Reset();
  void DestroyClone();
  void DestroySnapshot();
  void ReadSomething();

  // After a connection broke: is it another boot, and what is left of the golden dataset?
  void Recover();
  void VerifyGolden(bool restarted);
  std::string Differences(const Versions& found) const;
  void VerifyAll();
  void Verify(Object& object);
  // Reads a whole object. Nothing where a block is not wholly of one version.
  bool Read(const Object& object, Versions* versions, std::string* problem);
  Versions GoldenAfter(size_t writes) const;

  // Sends a lifecycle call until it is answered; now and then once more, for the same answer.
  template <typename Request, typename Reply>
  bool Call(grpc::Status (v1::DatasetService::Stub::*method)(grpc::ClientContext*, const Request&,
                                                             Reply*),
            Request request, Object& object, const std::string& what);
  Object* Pick(std::vector<std::unique_ptr<Object>>& objects);
  uint64_t Below(uint64_t bound) { return chance_() % bound; }
  std::string NewName(const char* kind);
  void Note(Object& object, std::string what);
  void Lose(Object& object, const std::string& problem);

  const std::string base_;
  std::mt19937_64 chance_;
  Caller caller_;
  std::string boot_id_;
  Object golden_;  // its versions are these two:
  Versions durable_ = Versions(kBlocks);
  std::deque<Write> unflushed_;  // sent since, in order
  std::vector<std::unique_ptr<Object>> snapshots_;
  std::vector<std::unique_ptr<Object>> clones_;
  uint64_t last_version_ = 0;
  uint64_t last_name_ = 0;
  bool created_ = false;
  bool verify_all_ = false;
  bool lost_ = false;
};

}  // namespace cowshed::soak

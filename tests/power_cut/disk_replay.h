// SPDX-License-Identifier: Apache-2.0
//
// Builds the files that a power cut could leave, from a log of what was done to them.
//
// Model       A disk writes sectors of 512 bytes, each whole. Until a sync covers it, a sector on
//             the disk is any of the versions that the host's cache has held since the last sync,
//             each sector by itself: so every subset, every order and every tearing of what was not
//             synced is reachable. A later version never gives way to an earlier one. Lengths,
//             holes and names that were not synced may have happened or not. A sync, and a
//             synchronous write, is done only once anything after it began; before, it may have
//             done any part of its work.
// Threads     Externally synchronised.
// Cost        AdvanceTo: the bytes of the ops passed. WriteImage: the bytes the files hold; they
//             should go to memory (tmpfs).
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/power_cut/disk_recorder.h"

namespace cowshed::engine {

inline constexpr uint64_t kDiskSectorBytes = 512;

class DiskReplay {
 public:
  // Syncs of paths that end in `deaf_to` do nothing: how a test proves that a missing sync is
  // found. Empty: all syncs work.
  explicit DiskReplay(const DiskLog& log, std::string deaf_to = "");

  // Where cutting tells something new: after each op, and where the last word of the marks is
  // known. Rising.
  static std::vector<size_t> CutsOf(const DiskLog& log);

  // The first `count` ops have begun, all but the last are done. REQUIRES: never falls.
  void AdvanceTo(size_t count);
  uint64_t acknowledged() const { return acknowledged_; }  // newest state of which this was said
  uint64_t begun() const { return begun_; }                // newest state on its way
  bool anything_acknowledged() const { return anything_acknowledged_; }

  // Puts the files as they may be now below `directory`, which exists and is empty. Choice 0 loses
  // all that is not durable, choice 1 nothing, any other what a generator seeded with it says.
  void WriteImage(const std::string& directory, uint64_t choice) const;

 private:
  struct Bytes {
    std::string data;     // up to the last byte written; zeros follow
    uint64_t length = 0;  // of the file
    void Put(uint64_t offset, const char* bytes, uint64_t count);
    std::string Sector(uint64_t sector) const;
  };
  struct Pending {
    uint64_t length = 0;            // 0: unchanged
    std::vector<uint64_t> sectors;  // rising
    std::string data;               // of the sectors, one after another
  };
  struct File {
    bool created = false;
    bool name_durable = false;
    uint32_t renamed_to = 0;  // its other name, under which it is where that is there; 0: none
    Bytes durable;
    Bytes cached;
    std::vector<Pending> pending;
  };

  void Begin(const DiskOp& op);
  void Finish(const DiskOp& op);
  void Change(File& file, uint64_t offset, const std::string& data);
  void MakeDurable(File& file, uint64_t first_sector, uint64_t end_sector);
  uint32_t ParentOf(uint32_t path) const;
  static Bytes Survivors(const File& file, uint64_t choice, std::mt19937_64& random);

  const DiskLog& log_;
  const std::string deaf_to_;
  std::vector<File> files_;  // by path
  size_t position_ = 0;
  uint64_t acknowledged_ = 0;
  uint64_t begun_ = 0;
  bool anything_acknowledged_ = false;
};

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// Changes both superblocks of a pool that is closed, with right checksums: what another version of
// the program might have written.
//
// Threads     Externally synchronised.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <string>
#include <string_view>

#include "engine/base/hash.h"
#include "engine/store/format.h"

namespace cowshed::engine {

inline void ChangeSuperblocks(const std::string& pool_directory,
                              const std::function<void(Superblock*)>& change) {
  std::fstream file(pool_directory + "/blocks", std::ios::in | std::ios::out | std::ios::binary);
  for (const uint64_t at : {uint64_t{0}, uint64_t{kSectorBytes}}) {
    Superblock superblock;
    file.seekg(static_cast<std::streamoff>(at));
    file.read(reinterpret_cast<char*>(&superblock), sizeof(superblock));
    change(&superblock);
    superblock.checksum = Hash64(
        std::string_view(reinterpret_cast<char*>(&superblock), offsetof(Superblock, checksum)));
    file.seekp(static_cast<std::streamoff>(at));
    file.write(reinterpret_cast<const char*>(&superblock), sizeof(superblock));
  }
  EXPECT_TRUE(file.good());
}

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// What the benches write: block numbers in the order they are written, and bytes to write.
//
// Threads     Values; a Payload belongs to one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/pool.h"

namespace cowshed::bench {

// A pseudo-random permutation of [0, count): every number once, in no order. The same seed gives
// the same permutation.
class Permutation {
 public:
  Permutation(uint64_t count, uint64_t seed);
  uint64_t operator()(uint64_t index) const;

 private:
  uint64_t Mix(uint64_t value) const;

  uint64_t count_;
  uint64_t seed_;
  uint32_t half_bits_;  // of the least even number of bits that holds count - 1
};

// Bytes that no file system and no engine can shorten, new ones for every block.
class Payload {
 public:
  Payload(uint32_t block_bytes, uint64_t seed);
  // Good until the next call.
  std::span<const std::byte> Next();

 private:
  std::vector<uint64_t> words_;
  uint64_t counter_;
};

enum class Pattern : uint8_t { kScattered, kContiguous };

// Writes `bytes` in blocks of `block_bytes` (the volume's own or a multiple), each block at most
// once, and flushes after every `flush_bytes` and at the end.
struct WriteOptions {
  Pattern pattern = Pattern::kScattered;
  uint64_t bytes = 0;
  uint32_t block_bytes = 16384;
  uint64_t flush_bytes = 64 << 20;
  uint64_t seed = 1;         // of the places and of their order
  uint64_t first_block = 0;  // how many blocks of the same pattern and seed to leave out
  bool bulk = false;         // bulk data (sparse_file.h) instead of stored bytes
};
void WriteBlocks(engine::Volume& volume, const WriteOptions& options);

// Fills the whole volume with bulk data (sparse_file.h), in rising order, without a flush.
void FillWithBulk(engine::Volume& volume);

}  // namespace cowshed::bench

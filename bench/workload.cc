// SPDX-License-Identifier: Apache-2.0
#include "bench/workload.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "bench/bench_pool.h"
#include "bench/sparse_file.h"

namespace cowshed::bench {
namespace {

constexpr uint32_t kRounds = 4;
constexpr uint64_t kFillBytes = 1 << 20;

// The finalizer of SplitMix64: every bit of the input changes half of the output's.
uint64_t Scramble(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

Permutation::Permutation(uint64_t count, uint64_t seed)
    : count_(count),
      seed_(seed),
      half_bits_(static_cast<uint32_t>(std::bit_width(std::max<uint64_t>(count, 2) - 1) + 1) / 2) {}

// A Feistel network permutes the numbers of 2 x half_bits_ bits.
uint64_t Permutation::Mix(uint64_t value) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_;
  uint64_t right = value & mask;
  for (uint32_t round = 0; round < kRounds; ++round) {
    const uint64_t next = left ^ (Scramble(right ^ (seed_ << 32) ^ (uint64_t{round} << 60)) & mask);
    left = right;
    right = next;
  }
  return left << half_bits_ | right;
}

uint64_t Permutation::operator()(uint64_t index) const {
  // Numbers past the end are permuted again until one is inside: at most four steps on average.
  do {
    index = Mix(index);
  } while (index >= count_);
  return index;
}

Payload::Payload(uint32_t block_bytes, uint64_t seed)
    : words_(block_bytes / sizeof(uint64_t)), counter_(seed << 32) {
  for (uint64_t& word : words_) word = Scramble(counter_++);
}

std::span<const std::byte> Payload::Next() {
  words_.front() = Scramble(counter_++);
  words_.back() = words_.front();
  return std::as_bytes(std::span(words_));
}

void WriteBlocks(engine::Volume& volume, const WriteOptions& options) {
  const uint64_t count = options.bytes / options.block_bytes;
  const uint64_t per_flush = std::max<uint64_t>(options.flush_bytes / options.block_bytes, 1);
  const Permutation scattered(volume.size_bytes() / options.block_bytes, options.seed);
  Payload payload(options.block_bytes, options.seed);
  const std::vector<SparseSector> bulk(options.block_bytes / sizeof(SparseSector), BulkSector());
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t at = options.first_block + i;
    const uint64_t block = options.pattern == Pattern::kScattered ? scattered(at) : at;
    const auto bytes = options.bulk ? std::as_bytes(std::span(bulk)) : payload.Next();
    Must(volume.Write(block * options.block_bytes, bytes), "write");
    if ((i + 1) % per_flush == 0) BenchPool::Flush(volume);
  }
  BenchPool::Flush(volume);
}

void FillWithBulk(engine::Volume& volume) {
  std::vector<SparseSector> buffer(kFillBytes / sizeof(SparseSector), BulkSector());
  const auto bytes = std::as_bytes(std::span(buffer));
  const uint64_t size = volume.size_bytes();
  for (uint64_t offset = 0; offset < size; offset += kFillBytes) {
    Must(volume.Write(offset, bytes.first(std::min(kFillBytes, size - offset))), "fill");
  }
}

}  // namespace cowshed::bench

// SPDX-License-Identifier: Apache-2.0
//
// What has come of a connection's requests and is not taken yet. One buffer: a receive brings as
// many requests as there are, and what a WRITE carries is used where it lies.
//
// Invariants  The bytes that wait are in one piece.
// Threads     Externally synchronised: the connection's own.
// Cost        What is left of a request moves to the front when room runs out: less than a block.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>

#include "service/nbd/stream.h"

namespace cowshed::service::nbd {

class Input {
 public:
  // More than a socket holds, and many times the largest block.
  static constexpr size_t kBytes = 512 << 10;

  Input() : bytes_(new std::byte[kBytes]) {}  // untouched pages take no memory

  size_t size() const { return end_ - begin_; }
  std::span<const std::byte> bytes() const { return {bytes_.get() + begin_, size()}; }
  void Drop(size_t count) {
    begin_ += count;
    if (begin_ == end_) begin_ = end_ = 0;
  }
  // As Stream::Receive.
  ssize_t Fill(Stream& stream) {
    if (begin_ > 0) {
      std::memmove(bytes_.get(), bytes_.get() + begin_, size());
      end_ = size();
      begin_ = 0;
    }
    const ssize_t count = stream.Receive({bytes_.get() + end_, kBytes - end_});
    if (count > 0) end_ += static_cast<size_t>(count);
    return count;
  }

 private:
  const std::unique_ptr<std::byte[]> bytes_;
  size_t begin_ = 0;
  size_t end_ = 0;
};

}  // namespace cowshed::service::nbd

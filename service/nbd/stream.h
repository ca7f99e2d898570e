// SPDX-License-Identifier: Apache-2.0
//
// The bytes of a connection, in the clear or through TLS.
//
// Model       Nothing here ever waits: where the socket can not go on it says so, and the caller
//             polls fd(). What TLS has decrypted already does not show there, hence `pending`.
// Threads     One thread receives while another one sends.
// Ownership   Owns the socket; shuts it down when it goes, so that a duplicate learns of it.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <span>

#include "service/file_descriptor.h"

namespace cowshed::service::nbd {

class Stream {
 public:
  virtual ~Stream() = default;
  virtual int fd() const = 0;
  // How many bytes came; 0 at the end of the stream, -EAGAIN when there are none yet, another
  // negative errno when there will be none.
  virtual ssize_t Receive(std::span<std::byte> into) = 0;
  // How many bytes, from the front of all `parts` together, went; else a negative errno as above.
  virtual ssize_t Send(std::span<const iovec> parts) = 0;
  // Receive has something although the socket may have not.
  virtual bool pending() const { return false; }
  // A send that could not go on waits for the socket to be readable, not writable.
  virtual bool send_wants_input() const { return false; }
  // Nothing is received or sent any more; who waits for the socket wakes. Any thread.
  virtual void Shutdown() = 0;
  // Gives the socket up, to make another stream of it.
  virtual FileDescriptor Release() = 0;
};

// REQUIRES: a socket that does not block.
std::unique_ptr<Stream> MakePlainStream(FileDescriptor socket);

}  // namespace cowshed::service::nbd

// SPDX-License-Identifier: Apache-2.0
//
// The seam to the host: a regular file or a block device. The only file that calls pread, pwrite,
// fdatasync and fallocate, and therefore the place where tests inject faults and record writes.
//
// Threads     Thread-safe; overlapping concurrent writes are the caller's bug.
// Errors      errno becomes a Status: ENOSPC/EDQUOT RESOURCE_EXHAUSTED, EIO UNAVAILABLE, others by
//             absl::ErrnoToStatus; each names the path and the offset. Short reads and writes are
//             continued; a read past the end yields zeros (the file is sparse).
// Scans       Whoever reads all there is, once, reads with kScan: the host does not take that for a
//             reason to keep the bytes, so that a scan does not push out what others come back to.
// Failpoints  file.read, file.write, file.write_durable, file.sync, file.allocate
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <system_error>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace cowshed::engine {

// How a read goes about it. kCached: only if all of it is in memory, so that it never waits for the
// disk. kScan: see above.
enum class ReadMode : uint8_t { kWait, kCached, kScan };

class File {
 public:
  virtual ~File() = default;

  virtual absl::Status Read(uint64_t offset, std::span<std::byte> out) const = 0;
  // Fills the pieces one after another from `offset`, a run with one call of the host. CANCELLED:
  // kCached, and it would have had to wait; the host may have begun to read, for whoever comes
  // next. Here: piece by piece, and never known to be in memory.
  virtual absl::Status ReadV(uint64_t offset, std::span<const iovec> pieces, ReadMode mode) const;
  // The range will be read soon: the host may begin to, and nobody waits. A hint.
  virtual void WillNeed(uint64_t /*offset*/, uint64_t /*bytes*/) const {}
  virtual absl::Status Write(uint64_t offset, std::span<const std::byte> data) = 0;
  // Writes the pieces one after another from `offset`.
  virtual absl::Status WriteV(uint64_t offset, std::span<const iovec> pieces) = 0;
  // Writes bytes that are on stable storage once it returns OK, without waiting for those that
  // others have written elsewhere in the file. After an error nothing is known of them.
  virtual absl::Status WriteDurable(uint64_t offset, std::span<const std::byte> data);
  // Everything written before is on stable storage, or an error: then nothing is known (I7).
  virtual absl::Status Sync() = 0;
  // Returns the range to the host (hole punching, BLKDISCARD). UNIMPLEMENTED where it cannot.
  virtual absl::Status Punch(uint64_t offset, uint64_t bytes) = 0;
  virtual absl::Status Truncate(uint64_t bytes) = 0;
  // Size of the file or device.
  virtual absl::StatusOr<uint64_t> SizeBytes() const = 0;
  // Bytes that the host can still give to this file; the device's size for a device.
  virtual absl::StatusOr<uint64_t> HostFreeBytes() const = 0;
  virtual bool is_device() const = 0;
};

// Opens a regular file or block device; `create` makes a missing regular file.
absl::StatusOr<std::unique_ptr<File>> OpenFile(const std::string& path, bool create,
                                               bool read_only);

// What std::filesystem says, by its errno; `what` names the attempt.
absl::Status FileSystemStatus(const std::error_code& error, std::string_view what);

// A new name in `directory` is durable once this returns OK.
absl::Status SyncDirectory(const std::string& directory);

// Makes the host give all of the range to an open file, which grows to hold it; what it has given
// before costs nothing. For the metadata store, whose file is not a File.
absl::Status AllocateRange(int descriptor, uint64_t offset, uint64_t bytes);
// Writes zeros over a range that is allocated. The first write to allocated bytes makes the file
// system note durably that they hold data now; whoever writes them later need not wait for that.
absl::Status WriteZeros(int descriptor, uint64_t offset, uint64_t bytes);

// Holds an exclusive flock on a file for its lifetime.
class FileLock {
 public:
  // FAILED_PRECONDITION, naming the holder's pid where known, if another process has it. The file
  // is made if it is missing; it holds the pid and nothing else.
  static absl::StatusOr<std::unique_ptr<FileLock>> Acquire(const std::string& path);
  ~FileLock();

 private:
  explicit FileLock(int descriptor) : descriptor_(descriptor) {}
  int descriptor_;
};

}  // namespace cowshed::engine

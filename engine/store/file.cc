// SPDX-License-Identifier: Apache-2.0
#include "engine/store/file.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "engine/base/failpoints.h"
#include "engine/base/status_macros.h"
#include "engine/base/strings.h"

namespace cowshed::engine {
namespace {

constexpr uint64_t kWritebackBytes = 256 << 10;  // shorter writes are better gathered by the host
// The host cuts a longer hint off at the read-ahead of its device: 128 KiB unless somebody chose.
constexpr uint64_t kHintBytes = 128 << 10;

absl::Status ErrnoStatus(int error, std::string_view message) {
  const std::string text = StrCat(message, ": ", std::strerror(error));
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return absl::ResourceExhaustedError(text);
    case EIO:
      return absl::UnavailableError(text);
    case EOPNOTSUPP:
    case ENOSYS:
    case ENOTTY:
      return absl::UnimplementedError(text);
    default:
      return absl::ErrnoToStatus(error, View(message));
  }
}

// Moves `pieces` past `bytes` that are done, from piece *first on; past empty ones, too.
void Advance(std::vector<iovec>* pieces, size_t* first, size_t bytes) {
  while (*first < pieces->size() && bytes >= (*pieces)[*first].iov_len) {
    bytes -= (*pieces)[*first].iov_len;
    ++*first;
  }
  if (*first < pieces->size()) {
    iovec& piece = (*pieces)[*first];
    piece.iov_base = static_cast<char*>(piece.iov_base) + bytes;
    piece.iov_len -= bytes;
  }
}

class PosixFile final : public File {
 public:
  // `durable`: the same file opened with O_DSYNC, -1 where nothing is written. `scans`: the same
  // for scans; may be `descriptor` itself.
  PosixFile(std::string path, int descriptor, int durable, int scans, bool is_device)
      : path_(std::move(path)),
        descriptor_(descriptor),
        durable_(durable),
        scans_(scans),
        is_device_(is_device) {}
  ~PosixFile() override {
    if (scans_ != descriptor_) close(scans_);
    if (durable_ >= 0) close(durable_);
    close(descriptor_);
  }

  absl::Status Read(uint64_t offset, std::span<std::byte> out) const override {
    const iovec piece{out.data(), out.size()};
    return ReadV(offset, std::span(&piece, 1), ReadMode::kWait);
  }

  absl::Status ReadV(uint64_t offset, std::span<const iovec> pieces, ReadMode mode) const override {
    RETURN_IF_ERROR(Failpoints::Hit("file.read"));
    const int descriptor = mode == ReadMode::kScan ? scans_ : descriptor_;
    const bool cached = mode == ReadMode::kCached;
    uint64_t left = 0;
    for (const iovec& piece : pieces) {
      left += piece.iov_len;
    }
    std::vector<iovec> rest;  // of a read that one call does not do: few
    size_t first = 0;
    while (left > 0) {
      const int count = static_cast<int>(std::min<size_t>(pieces.size(), IOV_MAX));
      const ssize_t got = preadv2(descriptor, pieces.data(), count, static_cast<off_t>(offset),
                                  cached ? RWF_NOWAIT : 0);
      if (got < 0 && errno == EINTR) {
        continue;
      }
      if (got < 0 && cached && (errno == EAGAIN || errno == EOPNOTSUPP)) {
        return absl::CancelledError();
      }
      if (got < 0) {
        return Error("read", offset);
      }
      offset += static_cast<uint64_t>(got);
      left -= static_cast<uint64_t>(got);
      if (left == 0) {
        break;
      }
      if (cached) {
        return absl::CancelledError();
      }
      if (rest.empty()) {
        rest.assign(pieces.begin(), pieces.end());
      }
      Advance(&rest, &first, static_cast<size_t>(got));
      pieces = std::span(rest).subspan(first);
      if (got == 0) {
        for (const iovec& piece : pieces) std::memset(piece.iov_base, 0, piece.iov_len);
        break;
      }
    }
    return absl::OkStatus();
  }

  void WillNeed(uint64_t offset, uint64_t bytes) const override {
    for (const uint64_t end = offset + bytes; offset < end; offset += kHintBytes) {
      posix_fadvise(descriptor_, static_cast<off_t>(offset),
                    static_cast<off_t>(std::min(kHintBytes, end - offset)), POSIX_FADV_WILLNEED);
    }
  }

  absl::Status Write(uint64_t offset, std::span<const std::byte> data) override {
    const iovec piece{const_cast<std::byte*>(data.data()), data.size()};
    return WriteV(offset, std::span(&piece, 1));
  }

  // Long writes start on their way to the disk at once, so that it works while the next are copied,
  // and a sync has less to wait for. A hint: what it meets, the sync will tell.
  void StartWriteback(uint64_t offset, uint64_t bytes) const {
    if (bytes < kWritebackBytes) {
      return;
    }
    sync_file_range(descriptor_, static_cast<off_t>(offset), static_cast<off_t>(bytes),
                    SYNC_FILE_RANGE_WRITE);
  }

  absl::Status WriteV(uint64_t offset, std::span<const iovec> pieces) override {
    RETURN_IF_ERROR(Failpoints::Hit("file.write"));
    std::vector<iovec> rest(pieces.begin(), pieces.end());
    const uint64_t begin = offset;
    size_t first = 0;
    Advance(&rest, &first, 0);
    while (first < rest.size()) {
      const int count = static_cast<int>(std::min<size_t>(rest.size() - first, IOV_MAX));
      const ssize_t written = pwritev(descriptor_, &rest[first], count, static_cast<off_t>(offset));
      if (written < 0 && errno == EINTR) {
        continue;
      }
      if (written < 0) {
        return Error("write", offset);
      }
      offset += static_cast<uint64_t>(written);
      Advance(&rest, &first, static_cast<size_t>(written));
    }
    StartWriteback(begin, offset - begin);
    return absl::OkStatus();
  }

  absl::Status WriteDurable(uint64_t offset, std::span<const std::byte> data) override {
    RETURN_IF_ERROR(Failpoints::Hit("file.write_durable"));
    while (!data.empty()) {
      const ssize_t written =
          pwrite(durable_, data.data(), data.size(), static_cast<off_t>(offset));
      if (written < 0 && errno == EINTR) {
        continue;
      }
      if (written < 0) {
        return Error("durable write", offset);
      }
      offset += static_cast<uint64_t>(written);
      data = data.subspan(static_cast<size_t>(written));
    }
    return absl::OkStatus();
  }

  absl::Status Sync() override {
    RETURN_IF_ERROR(Failpoints::Hit("file.sync"));
    return fdatasync(descriptor_) == 0 ? absl::OkStatus() : Error("sync", 0);
  }

  absl::Status Punch(uint64_t offset, uint64_t bytes) override {
    int rc = 0;
    if (is_device_) {
      uint64_t range[2] = {offset, bytes};
      rc = ioctl(descriptor_, BLKDISCARD, range);
    } else {
      rc = fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                     static_cast<off_t>(offset), static_cast<off_t>(bytes));
    }
    return rc == 0 ? absl::OkStatus() : Error("punch", offset);
  }

  absl::Status Truncate(uint64_t bytes) override {
    if (!is_device_) {
      return ftruncate(descriptor_, static_cast<off_t>(bytes)) == 0 ? absl::OkStatus()
                                                                    : Error("truncate", bytes);
    }
    ASSIGN_OR_RETURN(const uint64_t device_bytes, SizeBytes());
    if (bytes > device_bytes) {
      return absl::FailedPreconditionError(
          StrCat("device ", path_, " has ", device_bytes, " bytes, ", bytes, " are asked for"));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<uint64_t> SizeBytes() const override {
    if (is_device_) {
      uint64_t bytes = 0;
      if (ioctl(descriptor_, BLKGETSIZE64, &bytes) != 0) {
        return Error("size", 0);
      }
      return bytes;
    }
    struct stat info {};
    if (fstat(descriptor_, &info) != 0) {
      return Error("stat", 0);
    }
    return static_cast<uint64_t>(info.st_size);
  }

  absl::StatusOr<uint64_t> HostFreeBytes() const override {
    if (is_device_) {
      return SizeBytes();
    }
    struct statvfs info {};
    if (fstatvfs(descriptor_, &info) != 0) {
      return Error("statvfs", 0);
    }
    return static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
  }

  bool is_device() const override { return is_device_; }

 private:
  absl::Status Error(std::string_view call, uint64_t offset) const {
    const int error = errno;
    return ErrnoStatus(error, StrCat(call, " ", path_, " at byte ", offset));
  }

  const std::string path_;
  const int descriptor_;
  // A description of its own: the host tells each open description once of an error that it met
  // writing back, so that what a durable write is told does not keep the next Sync from being told,
  // too.
  const int durable_;
  const int scans_;
  const bool is_device_;
};

// A descriptor whose reads the host takes for no reason to keep what they read. `otherwise` where
// the file cannot be opened once more.
int OpenForScans(const std::string& path, int otherwise) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    return otherwise;
  }
  posix_fadvise(descriptor, 0, 0, POSIX_FADV_NOREUSE);
  return descriptor;
}

}  // namespace

absl::Status File::WriteDurable(uint64_t offset, std::span<const std::byte> data) {
  RETURN_IF_ERROR(Write(offset, data));
  return Sync();
}

absl::Status File::ReadV(uint64_t offset, std::span<const iovec> pieces, ReadMode mode) const {
  if (mode == ReadMode::kCached) {
    return absl::CancelledError();
  }
  for (const iovec& piece : pieces) {
    RETURN_IF_ERROR(
        Read(offset, std::span(static_cast<std::byte*>(piece.iov_base), piece.iov_len)));
    offset += piece.iov_len;
  }
  return absl::OkStatus();
}

absl::Status FileSystemStatus(const std::error_code& error, std::string_view what) {
  return error ? absl::ErrnoToStatus(error.value(), View(what)) : absl::OkStatus();
}

absl::Status SyncDirectory(const std::string& directory) {
  const int descriptor = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) {
    return ErrnoStatus(errno, StrCat("open ", directory));
  }
  const int rc = fsync(descriptor);
  const int error = errno;
  close(descriptor);
  return rc == 0 ? absl::OkStatus() : ErrnoStatus(error, StrCat("fsync ", directory));
}

absl::Status AllocateRange(int descriptor, uint64_t offset, uint64_t bytes) {
  RETURN_IF_ERROR(Failpoints::Hit("file.allocate"));
  while (fallocate(descriptor, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) != 0) {
    if (errno != EINTR) {
      const int error = errno;
      return ErrnoStatus(error, StrCat("allocating ", bytes, " bytes at byte ", offset));
    }
  }
  return absl::OkStatus();
}

absl::Status WriteZeros(int descriptor, uint64_t offset, uint64_t bytes) {
  static constexpr std::array<char, 64 << 10> kZeros{};
  while (bytes > 0) {
    const ssize_t written = pwrite(descriptor, kZeros.data(), std::min(bytes, kZeros.size()),
                                   static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written < 0) {
      const int error = errno;
      return ErrnoStatus(error, StrCat("writing zeros at byte ", offset));
    }
    offset += static_cast<uint64_t>(written);
    bytes -= static_cast<uint64_t>(written);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<File>> OpenFile(const std::string& path, bool create,
                                               bool read_only) {
  struct stat info {};
  const bool exists = stat(path.c_str(), &info) == 0;
  const bool is_device = exists && S_ISBLK(info.st_mode);
  if (exists && !is_device && !S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(StrCat(path, " is no regular file or block device"));
  }
  int flags = O_CLOEXEC | (read_only ? O_RDONLY : O_RDWR);
  if (create && !exists) {
    flags |= O_CREAT;
  }
  if (is_device && !read_only) {
    flags |= O_EXCL;  // On a block device: refuse one that is mounted.
  }
  const int descriptor = open(path.c_str(), flags, 0600);
  if (descriptor < 0) {
    return ErrnoStatus(errno, StrCat("open ", path));
  }
  // Without O_EXCL: a device that this process has claimed refuses a second claim by it, too.
  const int durable = read_only ? -1 : open(path.c_str(), O_WRONLY | O_DSYNC | O_CLOEXEC);
  const int error = errno;
  auto file = std::make_unique<PosixFile>(path, descriptor, durable, OpenForScans(path, descriptor),
                                          is_device);
  if (!read_only && durable < 0) {
    return ErrnoStatus(error, StrCat("open ", path, " for durable writes"));
  }
  if (create) {
    // Also of a file that is there: perhaps whoever made it did not get this far.
    const size_t slash = path.rfind('/');
    RETURN_IF_ERROR(SyncDirectory(slash == std::string::npos ? "." : path.substr(0, slash + 1)));
  }
  return file;
}

absl::StatusOr<std::unique_ptr<FileLock>> FileLock::Acquire(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (descriptor < 0) {
    return ErrnoStatus(errno, StrCat("open ", path));
  }
  std::unique_ptr<FileLock> lock(new FileLock(descriptor));
  char text[24] = {};
  if (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) {
      return ErrnoStatus(errno, StrCat("flock ", path));
    }
    // The holder may be between its flock and its write: then the pid is not known.
    int holder = 0;
    const bool known = pread(descriptor, text, sizeof(text) - 1, 0) > 0 &&
                       absl::SimpleAtoi(absl::StripSuffix(text, "\n"), &holder);
    return absl::FailedPreconditionError(
        StrCat(path, " is locked by ", known ? StrCat("process ", holder) : "another process"));
  }
  const std::string pid = StrCat(getpid(), "\n");
  if (ftruncate(descriptor, 0) != 0 ||
      pwrite(descriptor, pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    // A full host must not keep a pool closed: the lock itself holds.
    (void)ftruncate(descriptor, 0);
  }
  return lock;
}

FileLock::~FileLock() { close(descriptor_); }

}  // namespace cowshed::engine

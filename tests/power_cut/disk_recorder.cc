// SPDX-License-Identifier: Apache-2.0
#include "tests/power_cut/disk_recorder.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/mutex.h"

namespace cowshed::engine {
namespace {

std::atomic<bool> recording{false};

// The log in the making, and who is who.
class Log {
 public:
  Mutex& mutex() ABSL_LOCK_RETURNED(mutex_) { return mutex_; }

  void Start(const std::string& root) {
    const MutexLock lock(mutex_);
    COWSHED_CHECK(!recording.load(), "one recorder at a time");
    root_ = root;
    log_ = DiskLog();
    PathIndex("", /*is_directory=*/true);
    recording.store(true);
  }
  DiskLog Stop() {
    const MutexLock lock(mutex_);
    recording.store(false);
    return std::exchange(log_, DiskLog());
  }
  void Add(DiskOp op) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { log_.ops.push_back(std::move(op)); }

  // The file behind a descriptor, if it is one to record.
  std::optional<uint32_t> Find(int descriptor) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::array<char, 4096> target;
    const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
    const ssize_t length = readlink(link.c_str(), target.data(), target.size());
    if (length <= 0) return std::nullopt;
    struct stat info {};
    const bool is_directory = fstat(descriptor, &info) == 0 && S_ISDIR(info.st_mode);
    return FindPath({target.data(), static_cast<size_t>(length)}, is_directory);
  }
  std::optional<uint32_t> FindPath(std::string_view path, bool is_directory)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!path.starts_with(root_)) return std::nullopt;
    std::string_view below = path.substr(root_.size());
    if (!below.empty() && below.front() != '/') return std::nullopt;
    if (!below.empty()) below.remove_prefix(1);
    if (below.ends_with("lock") || below.ends_with("lock.mdb")) return std::nullopt;
    return PathIndex(std::string(below), is_directory);
  }

 private:
  uint32_t PathIndex(const std::string& path, bool is_directory)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (size_t i = 0; i < log_.paths.size(); ++i) {
      if (log_.paths[i] == path) return static_cast<uint32_t>(i);
    }
    log_.paths.push_back(path);
    log_.is_directory.push_back(is_directory);
    return static_cast<uint32_t>(log_.paths.size() - 1);
  }

  Mutex mutex_{LockRank::kLeaf};
  std::string root_ ABSL_GUARDED_BY(mutex_);
  DiskLog log_ ABSL_GUARDED_BY(mutex_);
};

Log& TheLog() {
  static Log* const log = new Log;  // never destroyed: calls may come after main
  return *log;
}

template <typename Function>
Function* Libc(const char* name) {
  void* const found = dlsym(RTLD_NEXT, name);
  COWSHED_CHECK(found != nullptr, "libc has what is wrapped here");
  return reinterpret_cast<Function*>(found);
}

// Runs `call`, which yields a count or an error as the calls of libc do, and notes what `describe`
// makes of the count.
template <typename Call, typename Describe>
auto Noted(int descriptor, const Call& call, const Describe& describe) -> decltype(call()) {
  if (!recording.load()) return call();
  Log& log = TheLog();
  const MutexLock lock(log.mutex());
  const auto result = call();
  const int error = errno;
  if (result >= 0) {
    if (const std::optional<uint32_t> path = log.Find(descriptor); path.has_value()) {
      DiskOp op;
      op.path = *path;
      describe(result, &op);
      op.synchronous =
          op.kind == DiskOp::Kind::kWrite && (fcntl(descriptor, F_GETFL) & O_DSYNC) != 0;
      log.Add(std::move(op));
    }
  }
  errno = error;
  return result;
}

std::string Gather(const iovec* pieces, int count, size_t bytes) {
  std::string data;
  for (int i = 0; i < count && data.size() < bytes; ++i) {
    data.append(static_cast<const char*>(pieces[i].iov_base), pieces[i].iov_len);
  }
  data.resize(bytes);
  return data;
}

void NoteCreation(const char* path, bool is_directory) {
  Log& log = TheLog();
  const MutexLock lock(log.mutex());
  if (const std::optional<uint32_t> index = log.FindPath(path, is_directory); index.has_value()) {
    DiskOp op;
    op.kind = DiskOp::Kind::kCreate;
    op.path = *index;
    log.Add(std::move(op));
  }
}

void NoteRename(const char* from, const char* to) {
  Log& log = TheLog();
  const MutexLock lock(log.mutex());
  const std::optional<uint32_t> path = log.FindPath(from, /*is_directory=*/false);
  const std::optional<uint32_t> target = log.FindPath(to, /*is_directory=*/false);
  if (!path.has_value() || !target.has_value()) return;
  DiskOp op;
  op.kind = DiskOp::Kind::kRename;
  op.path = *path;
  op.bytes = *target;
  log.Add(std::move(op));
}

void NoteMark(DiskOp::Kind kind, uint64_t state) {
  DiskOp op;
  op.kind = kind;
  op.bytes = state;
  Log& log = TheLog();
  const MutexLock lock(log.mutex());
  log.Add(std::move(op));
}

}  // namespace

DiskRecorder::DiskRecorder(const std::string& root) { TheLog().Start(root); }
DiskRecorder::~DiskRecorder() { Take(); }
void DiskRecorder::Begin(uint64_t state) { NoteMark(DiskOp::Kind::kBegin, state); }
void DiskRecorder::Acknowledge(uint64_t state) { NoteMark(DiskOp::Kind::kAcknowledged, state); }
DiskLog DiskRecorder::Take() { return TheLog().Stop(); }

}  // namespace cowshed::engine

// ---- What comes before libc ---------------------------------------------------------------------

using cowshed::engine::DiskOp;
using cowshed::engine::Gather;
using cowshed::engine::Libc;
using cowshed::engine::Noted;

extern "C" {

int open(const char* path, int flags, ...) {
  static auto* const next = Libc<int(const char*, int, ...)>("open");
  mode_t mode = 0;
  if ((flags & O_CREAT) != 0) {
    va_list arguments;
    va_start(arguments, flags);
    mode = va_arg(arguments, mode_t);
    va_end(arguments);
  }
  struct stat info {};
  const bool creates =
      (flags & O_CREAT) != 0 && cowshed::engine::recording.load() && stat(path, &info) != 0;
  const int descriptor = next(path, flags, mode);
  if (creates && descriptor >= 0) cowshed::engine::NoteCreation(path, /*is_directory=*/false);
  return descriptor;
}

int mkdir(const char* path, mode_t mode) noexcept {
  static auto* const next = Libc<int(const char*, mode_t)>("mkdir");
  const int rc = next(path, mode);
  if (rc == 0 && cowshed::engine::recording.load()) {
    cowshed::engine::NoteCreation(path, /*is_directory=*/true);
  }
  return rc;
}

int rename(const char* from, const char* to) noexcept {
  static auto* const next = Libc<int(const char*, const char*)>("rename");
  const int rc = next(from, to);
  if (rc == 0 && cowshed::engine::recording.load()) cowshed::engine::NoteRename(from, to);
  return rc;
}

ssize_t pwrite(int descriptor, const void* data, size_t bytes, off_t offset) {
  static auto* const next = Libc<ssize_t(int, const void*, size_t, off_t)>("pwrite");
  return Noted(
      descriptor, [&] { return next(descriptor, data, bytes, offset); },
      [&](ssize_t written, DiskOp* op) {
        op->offset = static_cast<uint64_t>(offset);
        op->data.assign(static_cast<const char*>(data), static_cast<size_t>(written));
      });
}

ssize_t pwritev(int descriptor, const iovec* pieces, int count, off_t offset) {
  static auto* const next = Libc<ssize_t(int, const iovec*, int, off_t)>("pwritev");
  return Noted(
      descriptor, [&] { return next(descriptor, pieces, count, offset); },
      [&](ssize_t written, DiskOp* op) {
        op->offset = static_cast<uint64_t>(offset);
        op->data = Gather(pieces, count, static_cast<size_t>(written));
      });
}

// LMDB seeks and writes: where it wrote is before where it is now.
ssize_t writev(int descriptor, const iovec* pieces, int count) {
  static auto* const next = Libc<ssize_t(int, const iovec*, int)>("writev");
  return Noted(
      descriptor, [&] { return next(descriptor, pieces, count); },
      [&](ssize_t written, DiskOp* op) {
        op->offset = static_cast<uint64_t>(lseek(descriptor, 0, SEEK_CUR) - written);
        op->data = Gather(pieces, count, static_cast<size_t>(written));
      });
}

ssize_t write(int descriptor, const void* data, size_t bytes) {
  static auto* const next = Libc<ssize_t(int, const void*, size_t)>("write");
  return Noted(
      descriptor, [&] { return next(descriptor, data, bytes); },
      [&](ssize_t written, DiskOp* op) {
        op->offset = static_cast<uint64_t>(lseek(descriptor, 0, SEEK_CUR) - written);
        op->data.assign(static_cast<const char*>(data), static_cast<size_t>(written));
      });
}

int fdatasync(int descriptor) {
  static auto* const next = Libc<int(int)>("fdatasync");
  return Noted(
      descriptor, [&] { return next(descriptor); },
      [](int /*rc*/, DiskOp* op) { op->kind = DiskOp::Kind::kSync; });
}

int fsync(int descriptor) {
  static auto* const next = Libc<int(int)>("fsync");
  return Noted(
      descriptor, [&] { return next(descriptor); },
      [](int /*rc*/, DiskOp* op) { op->kind = DiskOp::Kind::kSync; });
}

int fallocate(int descriptor, int mode, off_t offset, off_t bytes) {
  static auto* const next = Libc<int(int, int, off_t, off_t)>("fallocate");
  return Noted(
      descriptor, [&] { return next(descriptor, mode, offset, bytes); },
      [&](int /*rc*/, DiskOp* op) {
        const bool punches = (mode & FALLOC_FL_PUNCH_HOLE) != 0;
        COWSHED_CHECK(punches || mode == 0, "a mode of fallocate that the replay knows");
        op->kind = punches ? DiskOp::Kind::kPunch : DiskOp::Kind::kLength;
        op->offset = static_cast<uint64_t>(offset);
        op->bytes = static_cast<uint64_t>(punches ? bytes : offset + bytes);
      });
}

int ftruncate(int descriptor, off_t bytes) noexcept {
  static auto* const next = Libc<int(int, off_t)>("ftruncate");
  return Noted(
      descriptor, [&] { return next(descriptor, bytes); },
      [&](int /*rc*/, DiskOp* op) {
        op->kind = DiskOp::Kind::kLength;
        op->bytes = static_cast<uint64_t>(bytes);
      });
}

}  // extern "C"

// SPDX-License-Identifier: Apache-2.0
#include "tests/host_faults/fault_interposer.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <string_view>

#include "engine/base/mutex.h"
#include "engine/base/strings.h"

namespace cowshed::engine {
namespace {

// What becomes of a call.
struct Fate {
  bool forwarded = true;
  HostFault::Way way = HostFault::Way::kError;
  int error = 0;
};

class FaultState {
 public:
  bool active() const { return active_.load(std::memory_order_relaxed); }
  void Heal() { active_.store(false); }
  void Set(const HostFault& fault) {
    const MutexLock lock(mutex_);
    fault_ = fault;
    counted_ = 0;
    active_.store(true);
  }
  uint64_t counted() const {
    const MutexLock lock(mutex_);
    return counted_;
  }
  Fate Judge(HostCall call, std::string_view path) {
    const MutexLock lock(mutex_);
    const std::vector<HostCall>& calls = fault_.calls;
    const bool counts = calls.empty() || std::find(calls.begin(), calls.end(), call) != calls.end();
    if (!counts || path.find(fault_.path_part) == std::string_view::npos) return {};
    ++counted_;
    const bool met =
        fault_.at != 0 && (counted_ == fault_.at || (fault_.for_ever && counted_ > fault_.at));
    return met ? Fate{false, fault_.way, fault_.error} : Fate{};
  }

 private:
  std::atomic<bool> active_{false};
  mutable Mutex mutex_{LockRank::kLeaf};
  HostFault fault_ ABSL_GUARDED_BY(mutex_);
  uint64_t counted_ ABSL_GUARDED_BY(mutex_) = 0;
};

FaultState& TheState() {
  static FaultState* const state = new FaultState;  // calls may come until the very end
  return *state;
}

Fate FateOf(HostCall call, const char* path) {
  return TheState().active() ? TheState().Judge(call, path) : Fate{};
}

Fate FateOf(HostCall call, int descriptor) {
  if (!TheState().active()) return {};
  std::array<char, PATH_MAX> path;
  const ssize_t length =
      readlink(StrCat("/proc/self/fd/", descriptor).c_str(), path.data(), path.size());
  if (length <= 0) return {};
  return TheState().Judge(call, std::string_view(path.data(), static_cast<size_t>(length)));
}

// The answer to a call that is not forwarded; `done` is what pretending says.
template <typename Result>
Result Answer(const Fate& fate, Result done) {
  if (fate.way == HostFault::Way::kPretend) return done;
  errno = fate.error;
  return static_cast<Result>(-1);
}

template <typename Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

ssize_t BytesOf(const iovec* pieces, int count) {
  size_t bytes = 0;
  for (int i = 0; i < count; ++i) bytes += pieces[i].iov_len;
  return static_cast<ssize_t>(bytes);
}

}  // namespace

void SetHostFault(const HostFault& fault) { TheState().Set(fault); }
void HealHost() { TheState().Heal(); }
uint64_t HostCallsCounted() { return TheState().counted(); }

}  // namespace cowshed::engine

// ---- What the program gets instead of the C library's -------------------------------------------

using cowshed::engine::Answer;
using cowshed::engine::BytesOf;
using cowshed::engine::Fate;
using cowshed::engine::FateOf;
using cowshed::engine::HostCall;
using cowshed::engine::HostFault;
using cowshed::engine::Next;

extern "C" {

int open(const char* path, int flags, ...) {
  static auto* const next = Next<int(const char*, int, ...)>("open");
  mode_t mode = 0;
  if ((flags & (O_CREAT | O_TMPFILE)) != 0) {
    va_list arguments;
    va_start(arguments, flags);
    mode = va_arg(arguments, mode_t);
    va_end(arguments);
  }
  const Fate fate = FateOf(HostCall::kOpen, path);
  return fate.forwarded ? next(path, flags, mode) : Answer(fate, -1);
}

int mkdir(const char* path, mode_t mode) {
  static auto* const next = Next<int(const char*, mode_t)>("mkdir");
  const Fate fate = FateOf(HostCall::kOpen, path);
  return fate.forwarded ? next(path, mode) : Answer(fate, 0);
}

int flock(int descriptor, int operation) {
  static auto* const next = Next<int(int, int)>("flock");
  const Fate fate = FateOf(HostCall::kLock, descriptor);
  return fate.forwarded ? next(descriptor, operation) : Answer(fate, 0);
}

ssize_t pread(int descriptor, void* out, size_t bytes, off_t offset) {
  static auto* const next = Next<ssize_t(int, void*, size_t, off_t)>("pread");
  const Fate fate = FateOf(HostCall::kRead, descriptor);
  return fate.forwarded ? next(descriptor, out, bytes, offset) : Answer(fate, ssize_t{0});
}

ssize_t preadv2(int descriptor, const iovec* pieces, int count, off_t offset, int flags) {
  static auto* const next = Next<ssize_t(int, const iovec*, int, off_t, int)>("preadv2");
  const Fate fate = FateOf(HostCall::kRead, descriptor);
  return fate.forwarded ? next(descriptor, pieces, count, offset, flags) : Answer(fate, ssize_t{0});
}

ssize_t pwrite(int descriptor, const void* data, size_t bytes, off_t offset) {
  static auto* const next = Next<ssize_t(int, const void*, size_t, off_t)>("pwrite");
  const Fate fate = FateOf(HostCall::kWrite, descriptor);
  if (fate.forwarded) return next(descriptor, data, bytes, offset);
  if (fate.way != HostFault::Way::kShort) return Answer(fate, static_cast<ssize_t>(bytes));
  return next(descriptor, data, (bytes + 1) / 2, offset);
}

ssize_t pwritev(int descriptor, const iovec* pieces, int count, off_t offset) {
  static auto* const next = Next<ssize_t(int, const iovec*, int, off_t)>("pwritev");
  const Fate fate = FateOf(HostCall::kWrite, descriptor);
  if (fate.forwarded) return next(descriptor, pieces, count, offset);
  if (fate.way != HostFault::Way::kShort) return Answer(fate, BytesOf(pieces, count));
  const iovec half{pieces[0].iov_base, (pieces[0].iov_len + 1) / 2};
  return next(descriptor, count > 1 ? pieces : &half, count > 1 ? (count + 1) / 2 : 1, offset);
}

ssize_t writev(int descriptor, const iovec* pieces, int count) {
  static auto* const next = Next<ssize_t(int, const iovec*, int)>("writev");
  const Fate fate = FateOf(HostCall::kWrite, descriptor);
  if (fate.forwarded) return next(descriptor, pieces, count);
  if (fate.way != HostFault::Way::kShort) return Answer(fate, BytesOf(pieces, count));
  const iovec half{pieces[0].iov_base, (pieces[0].iov_len + 1) / 2};
  return next(descriptor, count > 1 ? pieces : &half, count > 1 ? (count + 1) / 2 : 1);
}

int fsync(int descriptor) {
  static auto* const next = Next<int(int)>("fsync");
  const Fate fate = FateOf(HostCall::kSync, descriptor);
  return fate.forwarded ? next(descriptor) : Answer(fate, 0);
}

int fdatasync(int descriptor) {
  static auto* const next = Next<int(int)>("fdatasync");
  const Fate fate = FateOf(HostCall::kSync, descriptor);
  return fate.forwarded ? next(descriptor) : Answer(fate, 0);
}

int fallocate(int descriptor, int mode, off_t offset, off_t bytes) {
  static auto* const next = Next<int(int, int, off_t, off_t)>("fallocate");
  const Fate fate = FateOf(HostCall::kAllocate, descriptor);
  return fate.forwarded ? next(descriptor, mode, offset, bytes) : Answer(fate, 0);
}

int ftruncate(int descriptor, off_t bytes) {
  static auto* const next = Next<int(int, off_t)>("ftruncate");
  const Fate fate = FateOf(HostCall::kTruncate, descriptor);
  return fate.forwarded ? next(descriptor, bytes) : Answer(fate, 0);
}

}  // extern "C"

// SPDX-License-Identifier: Apache-2.0
#include "tests/host_faults/small_disk.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/base/strings.h"

namespace cowshed::engine {
namespace {

absl::Status NotAllowed(const std::string& what) {
  return absl::FailedPreconditionError(StrCat(what, ": ", std::strerror(errno)));
}

// Mounts of this process are its own from now on. Without being root it needs a user namespace, in
// which it is.
absl::Status EnterOwnMounts() {
  static bool entered = false;
  if (entered) return absl::OkStatus();
  const bool root = geteuid() == 0;
  const uid_t uid = geteuid();
  const gid_t gid = getegid();
  if (unshare(CLONE_NEWNS | (root ? 0 : CLONE_NEWUSER)) != 0) return NotAllowed("unshare");
  if (!root) {
    std::ofstream("/proc/self/setgroups") << "deny";
    std::ofstream("/proc/self/uid_map") << "0 " << uid << " 1";
    std::ofstream("/proc/self/gid_map") << "0 " << gid << " 1";
  }
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
    return NotAllowed("private mounts");
  }
  entered = true;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<SmallDisk>> SmallDisk::Mount(Kind kind, uint64_t bytes) {
  RETURN_IF_ERROR(EnterOwnMounts());
  std::unique_ptr<SmallDisk> disk(new SmallDisk);
  std::filesystem::create_directory(disk->path());
  if (kind == Kind::kTmpfs) {
    const std::string size = StrCat("size=", bytes);
    if (mount("tmpfs", disk->path().c_str(), "tmpfs", 0, size.c_str()) != 0) {
      return NotAllowed("mount of a tmpfs");
    }
  } else {
    const std::string image = disk->dir_.Path("image");
    std::ofstream(image).close();
    std::filesystem::resize_file(image, bytes);
    const std::string command =
        StrCat("{ PATH=$PATH:/sbin:/usr/sbin; mkfs.ext4 -q -F -m 0 ", image, " && mount -o loop ",
               image, " ", disk->path(), "; } >/dev/null 2>&1");
    if (std::system(command.c_str()) != 0) {
      return absl::FailedPreconditionError("mkfs.ext4 or a loop device is not to be had");
    }
  }
  disk->mounted_ = true;
  return disk;
}

SmallDisk::~SmallDisk() {
  if (mounted_) umount2(path().c_str(), MNT_DETACH);
}

uint64_t SmallDisk::free_bytes() const {
  struct statvfs info {};
  return statvfs(path().c_str(), &info) == 0 ? uint64_t{info.f_bavail} * info.f_frsize : 0;
}

void SmallDisk::Fill() {
  const int file = open((path() + "/filler").c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600);
  const std::vector<char> bytes(1 << 20, 'f');
  for (size_t step = bytes.size(); file >= 0 && step >= 512;) {
    if (write(file, bytes.data(), step) <= 0) step /= 2;
  }
  if (file >= 0) {
    fsync(file);
    close(file);
  }
}

void SmallDisk::RemoveFiller() { std::filesystem::remove(path() + "/filler"); }

}  // namespace cowshed::engine

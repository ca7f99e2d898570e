// SPDX-License-Identifier: Apache-2.0
#include "service/secret.h"

#include <fcntl.h>
#include <openssl/rand.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "engine/base/check.h"
#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "service/file_descriptor.h"

namespace cowshed::service {
namespace {

absl::Status Failed(const std::string& path, std::string_view what) {
  return absl::UnavailableError(engine::StrCat(path, ": ", what));
}

// Under another name first: a crash leaves a whole secret or none.
absl::Status Make(const std::string& path) {
  const std::string secret = NewSecret();
  const std::string draft = path + ".new";
  const FileDescriptor file(
      open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid()) return Failed(draft, strerror(errno));
  if (write(file.get(), secret.data(), secret.size()) != static_cast<ssize_t>(secret.size()) ||
      fsync(file.get()) != 0 || rename(draft.c_str(), path.c_str()) != 0) {
    return Failed(path, strerror(errno));
  }
  return absl::OkStatus();
}

}  // namespace

std::string NewSecret() {
  std::string secret(kSecretBytes, '\0');
  COWSHED_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(secret.data()), kSecretBytes) == 1,
                "the system has randomness");
  return secret;
}

absl::StatusOr<std::string> ReadOrMakeSecret(const std::string& path) {
  FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file.valid() && errno == ENOENT) {
    RETURN_IF_ERROR(Make(path));
    file = FileDescriptor(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  }
  struct stat status {};
  if (!file.valid() || fstat(file.get(), &status) != 0) return Failed(path, strerror(errno));
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return Failed(path, "may be read or written by others: set its mode to 0600");
  }
  std::string secret(kSecretBytes + 1, '\0');
  const ssize_t size = read(file.get(), secret.data(), secret.size());
  if (size != static_cast<ssize_t>(kSecretBytes)) {
    return Failed(path, "is no secret: remove it, and tokens of earlier starts are void");
  }
  secret.resize(kSecretBytes);
  return secret;
}

}  // namespace cowshed::service

// SPDX-License-Identifier: Apache-2.0
#include "engine/store/meta_copy.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <memory>
#include <span>
#include <system_error>
#include <thread>

#include "engine/base/failpoints.h"
#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/store/file.h"
#include "engine/store/lmdb_pages.h"

namespace cowshed::engine {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPieceBytes = 64 << 10;  // what a pipe holds

std::string CopiesOf(const std::string& pool_directory) { return pool_directory + "/meta.copies"; }

// Takes what LMDB writes into one end of a pipe out of the other, at a bounded rate.
class RatedPipe {
 public:
  static absl::StatusOr<std::unique_ptr<RatedPipe>> Make() {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "pipe");
    return std::unique_ptr<RatedPipe>(new RatedPipe(ends[0], ends[1]));
  }
  ~RatedPipe() {
    CloseIn();
    ::close(out_);
  }
  RatedPipe(const RatedPipe&) = delete;
  RatedPipe& operator=(const RatedPipe&) = delete;

  int in() const { return in_; }
  void CloseIn() {
    if (in_ >= 0) ::close(in_);
    in_ = -1;
  }
  // Until the other end is closed. After a failed write it goes on reading, so that whoever writes
  // into the pipe comes to an end.
  absl::Status Drain(File& file, uint64_t bytes_per_second) const {
    using Clock = std::chrono::steady_clock;
    const auto begin = Clock::now();
    std::vector<std::byte> piece(kPieceBytes);
    absl::Status status;
    for (uint64_t offset = 0;;) {
      const ssize_t got = ::read(out_, piece.data(), piece.size());
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return absl::ErrnoToStatus(errno, "read from a pipe");
      if (got == 0) return status;
      if (!status.ok()) continue;
      status = file.Write(offset, std::span(piece).first(static_cast<size_t>(got)));
      offset += static_cast<uint64_t>(got);
      const std::chrono::duration<double> due(static_cast<double>(offset) /
                                              static_cast<double>(bytes_per_second));
      std::this_thread::sleep_until(begin + std::chrono::duration_cast<Clock::duration>(due));
    }
  }

 private:
  RatedPipe(int out, int in) : out_(out), in_(in) {}
  const int out_;
  int in_;
};

absl::Status WriteCopy(const MetaStore& meta, const std::string& path, uint64_t bytes_per_second) {
  ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                   OpenFile(path, /*create=*/true, /*read_only=*/false));
  ASSIGN_OR_RETURN(const std::unique_ptr<RatedPipe> pipe, RatedPipe::Make());
  absl::Status copied;
  std::thread copier([&] {
    copied = meta.CopyTo(pipe->in());
    pipe->CloseIn();
  });
  const absl::Status drained = pipe->Drain(*file, std::max<uint64_t>(bytes_per_second, 1));
  copier.join();
  RETURN_IF_ERROR(drained);
  RETURN_IF_ERROR(copied);
  RETURN_IF_ERROR(Failpoints::Hit("meta_copy.written"));
  return file->Sync();
}

}  // namespace

std::vector<MetaCopy> ListMetaCopies(const std::string& pool_directory) {
  std::vector<MetaCopy> copies;
  std::error_code error;
  for (fs::directory_iterator it(CopiesOf(pool_directory), error), end; !error && it != end;
       it.increment(error)) {
    MetaCopy copy;
    copy.directory = it->path().string();
    const std::string name = it->path().filename().string();
    const auto parsed = std::from_chars(name.data(), name.data() + name.size(), copy.txg);
    struct stat info {};
    if (parsed.ec != std::errc() || parsed.ptr != name.data() + name.size() ||
        ::stat((copy.directory + "/data.mdb").c_str(), &info) != 0) {
      continue;
    }
    copy.time_ms = int64_t{info.st_mtim.tv_sec} * 1000 + info.st_mtim.tv_nsec / 1000000;
    copy.bytes = static_cast<uint64_t>(info.st_size);
    copies.push_back(std::move(copy));
  }
  std::sort(copies.begin(), copies.end(),
            [](const MetaCopy& a, const MetaCopy& b) { return a.txg > b.txg; });
  return copies;
}

absl::StatusOr<MetaCopy> CopyMeta(const MetaStore& meta, const std::string& pool_directory,
                                  uint64_t txg, uint64_t bytes_per_second) {
  const std::string all = CopiesOf(pool_directory);
  const std::string fresh = all + "/new";
  const std::string target = StrCat(all, "/", txg);
  std::error_code error;
  fs::remove_all(fresh, error);
  fs::create_directories(fresh, error);
  RETURN_IF_ERROR(FileSystemStatus(error, StrCat("make ", fresh)));
  absl::Status status = WriteCopy(meta, fresh + "/data.mdb", bytes_per_second);
  if (status.ok()) {
    const absl::StatusOr<LmdbReport> report = WalkLmdb(fresh + "/data.mdb");
    status = report.status();
    if (status.ok() && !report->ok()) {
      status = absl::DataLossError(
          StrCat("a copy of the metadata does not hold together: ", report->Summary()));
    }
  }
  if (!status.ok()) {
    fs::remove_all(fresh, error);
    return status;
  }
  RETURN_IF_ERROR(SyncDirectory(fresh));
  fs::remove_all(target, error);
  fs::rename(fresh, target, error);
  RETURN_IF_ERROR(FileSystemStatus(error, StrCat("rename ", fresh)));
  RETURN_IF_ERROR(SyncDirectory(all));
  std::vector<MetaCopy> copies = ListMetaCopies(pool_directory);
  for (size_t i = kMetaCopiesKept; i < copies.size(); ++i) {
    fs::remove_all(copies[i].directory, error);
  }
  if (copies.empty()) return absl::NotFoundError(StrCat(target, " is gone"));
  return copies.front();
}

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
#include "bench/sparse_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "engine/base/status_macros.h"

namespace cowshed::bench {
namespace {

using engine::File;
using engine::kFirstDataSector;
using engine::kSectorBytes;

// "COWBULK1" and its complement: no node and no text begins so.
constexpr uint64_t kMagic = 0x314b4c5542574f43;

bool IsBulk(const iovec& piece) {
  uint64_t words[2];
  if (piece.iov_len < kSectorBytes) return false;
  std::memcpy(words, piece.iov_base, sizeof(words));
  return words[0] == kMagic && words[1] == ~kMagic;
}

bool IsZero(std::span<const std::byte> bytes) {
  return bytes[0] == std::byte{0} &&
         std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0;
}

class SparseFile final : public File {
 public:
  // `descriptor`: of the same file, to ask where its holes are and to read without reading ahead.
  SparseFile(std::unique_ptr<File> file, int descriptor, SparseFileOptions options)
      : file_(std::move(file)), descriptor_(descriptor), options_(options) {
    if (!options_.read_ahead) posix_fadvise(descriptor_, 0, 0, POSIX_FADV_RANDOM);
  }
  ~SparseFile() override { close(descriptor_); }

  absl::Status Read(uint64_t offset, std::span<std::byte> out) const override {
    RETURN_IF_ERROR(options_.read_ahead ? file_->Read(offset, out) : ReadOnlyThis(offset, out));
    if (offset < kFirstDataSector * kSectorBytes) return absl::OkStatus();
    for (; out.size() >= kSectorBytes; out = out.subspan(kSectorBytes)) {
      const auto sector = out.first(kSectorBytes);
      if (IsZero(sector)) std::memcpy(sector.data(), BulkSector().data(), kSectorBytes);
    }
    return absl::OkStatus();
  }

  absl::Status Write(uint64_t offset, std::span<const std::byte> data) override {
    const iovec piece{const_cast<std::byte*>(data.data()), data.size()};
    return WriteV(offset, std::span(&piece, 1));
  }

  // Stretches of bulk pieces are dropped, stretches of others written.
  absl::Status WriteV(uint64_t offset, std::span<const iovec> pieces) override {
    while (!pieces.empty()) {
      const bool bulk = IsBulk(pieces[0]);
      uint64_t bytes = 0;
      size_t count = 0;
      for (; count < pieces.size() && IsBulk(pieces[count]) == bulk; ++count) {
        bytes += pieces[count].iov_len;
      }
      RETURN_IF_ERROR(bulk ? Drop(offset, bytes) : file_->WriteV(offset, pieces.first(count)));
      pieces = pieces.subspan(count);
      offset += bytes;
    }
    return absl::OkStatus();
  }

  absl::Status Sync() override { return options_.durable ? file_->Sync() : absl::OkStatus(); }
  absl::Status Punch(uint64_t offset, uint64_t bytes) override {
    return file_->Punch(offset, bytes);
  }
  absl::Status Truncate(uint64_t bytes) override { return file_->Truncate(bytes); }
  absl::StatusOr<uint64_t> SizeBytes() const override { return file_->SizeBytes(); }
  // The host need not have room for what is not stored.
  absl::StatusOr<uint64_t> HostFreeBytes() const override { return uint64_t{1} << 50; }
  bool is_device() const override { return file_->is_device(); }

 private:
  absl::Status ReadOnlyThis(uint64_t offset, std::span<std::byte> out) const {
    const ssize_t got = pread(descriptor_, out.data(), out.size(), static_cast<off_t>(offset));
    return got == static_cast<ssize_t>(out.size()) ? absl::OkStatus()
                                                   : absl::UnavailableError("a short read");
  }

  absl::Status Drop(uint64_t offset, uint64_t bytes) {
    const off_t data = lseek(descriptor_, static_cast<off_t>(offset), SEEK_DATA);
    const bool is_hole = data < 0 ? errno == ENXIO : static_cast<uint64_t>(data) >= offset + bytes;
    return is_hole ? absl::OkStatus() : file_->Punch(offset, bytes);
  }

  const std::unique_ptr<File> file_;
  const int descriptor_;
  const SparseFileOptions options_;
};

}  // namespace

const SparseSector& BulkSector() {
  static const SparseSector kSector = [] {
    SparseSector words;
    for (size_t i = 0; i < words.size(); ++i) words[i] = i % 2 == 0 ? kMagic : ~kMagic;
    return words;
  }();
  return kSector;
}

std::function<std::unique_ptr<File>(std::unique_ptr<File>)> SparseFileWrapper(
    const std::string& path, SparseFileOptions options) {
  return [path, options](std::unique_ptr<File> file) -> std::unique_ptr<File> {
    const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    return std::make_unique<SparseFile>(std::move(file), descriptor, options);
  };
}

}  // namespace cowshed::bench

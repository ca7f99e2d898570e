// SPDX-License-Identifier: Apache-2.0
#include "tests/power_cut/disk_replay.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "engine/base/check.h"

namespace cowshed::engine {
namespace {

constexpr uint64_t kPageBytes = 4096;

// Sets the disk's file up, with holes where it holds zeros.
void WriteFile(const std::string& path, const std::string& data, uint64_t length) {
  static constexpr std::array<char, kPageBytes> kZeros{};
  const int descriptor = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  COWSHED_CHECK(descriptor >= 0, "an image's file can be made");
  bool good = ftruncate(descriptor, static_cast<off_t>(length)) == 0;
  const auto empty = [&](uint64_t at) {
    const uint64_t bytes = std::min<uint64_t>(kPageBytes, data.size() - at);
    return std::memcmp(data.data() + at, kZeros.data(), bytes) == 0;
  };
  for (uint64_t begin = 0; begin < data.size();) {
    uint64_t end = begin;
    while (end < data.size() && !empty(end)) end += kPageBytes;
    end = std::min<uint64_t>(end, data.size());
    if (end > begin) {
      good = good && pwrite(descriptor, data.data() + begin, end - begin,
                            static_cast<off_t>(begin)) == static_cast<ssize_t>(end - begin);
    }
    begin = end + kPageBytes;
  }
  close(descriptor);
  COWSHED_CHECK(good, "an image's file can be written");
}

}  // namespace

void DiskReplay::Bytes::Put(uint64_t offset, const char* bytes, uint64_t count) {
  if (data.size() < offset + count) data.resize(offset + count, '\0');
  std::memcpy(data.data() + offset, bytes, count);
}

std::string DiskReplay::Bytes::Sector(uint64_t sector) const {
  const uint64_t begin = sector * kDiskSectorBytes;
  std::string bytes = begin < data.size() ? data.substr(begin, kDiskSectorBytes) : std::string();
  bytes.resize(kDiskSectorBytes, '\0');
  return bytes;
}

DiskReplay::DiskReplay(const DiskLog& log, std::string deaf_to)
    : log_(log), deaf_to_(std::move(deaf_to)), files_(log.paths.size()) {
  files_[0].created = files_[0].name_durable = true;
}

std::vector<size_t> DiskReplay::CutsOf(const DiskLog& log) {
  std::vector<size_t> cuts;
  for (size_t count = 1; count <= log.ops.size(); ++count) {
    const bool marks_go_on = count < log.ops.size() && log.ops[count].is_mark();
    if (!log.ops[count - 1].is_mark() || !marks_go_on) cuts.push_back(count);
  }
  return cuts;
}

void DiskReplay::AdvanceTo(size_t count) {
  for (; position_ < count; ++position_) {
    if (position_ > 0) Finish(log_.ops[position_ - 1]);
    Begin(log_.ops[position_]);
  }
}

void DiskReplay::Begin(const DiskOp& op) {
  File& file = files_[op.path];
  switch (op.kind) {
    case DiskOp::Kind::kCreate:
      file.created = true;
      break;
    case DiskOp::Kind::kRename: {
      File renamed = file;
      renamed.name_durable = false;
      file.renamed_to = static_cast<uint32_t>(op.bytes);
      files_[op.bytes] = std::move(renamed);
      break;
    }
    case DiskOp::Kind::kWrite:
      Change(file, op.offset, op.data);
      break;
    case DiskOp::Kind::kPunch: {
      // A hole does not make a file longer.
      const uint64_t end = std::min(op.offset + op.bytes, file.cached.length);
      if (end > op.offset) Change(file, op.offset, std::string(end - op.offset, '\0'));
      break;
    }
    case DiskOp::Kind::kLength:
      if (op.bytes > file.cached.length) {
        file.cached.length = op.bytes;
        Pending pending;
        pending.length = op.bytes;
        file.pending.push_back(std::move(pending));
      }
      break;
    case DiskOp::Kind::kSync:
      break;
    case DiskOp::Kind::kBegin:
      begun_ = op.bytes;
      break;
    case DiskOp::Kind::kAcknowledged:
      acknowledged_ = op.bytes;
      anything_acknowledged_ = true;
      break;
  }
}

// What a write adds to what may be on the disk: of each sector the version that is in the cache
// now. A version like the one before it adds nothing.
void DiskReplay::Change(File& file, uint64_t offset, const std::string& data) {
  Pending pending;
  const uint64_t end = offset + data.size();
  const uint64_t first = offset / kDiskSectorBytes;
  const uint64_t end_sector = (end + kDiskSectorBytes - 1) / kDiskSectorBytes;
  std::vector<std::string> before;
  for (uint64_t sector = first; sector < end_sector; ++sector) {
    before.push_back(file.cached.Sector(sector));
  }
  file.cached.Put(offset, data.data(), data.size());
  if (end > file.cached.length) {
    file.cached.length = end;
    pending.length = end;
  }
  for (uint64_t sector = first; sector < end_sector; ++sector) {
    const std::string now = file.cached.Sector(sector);
    if (now == before[sector - first]) continue;
    pending.sectors.push_back(sector);
    pending.data += now;
  }
  if (pending.length > 0 || !pending.sectors.empty()) file.pending.push_back(std::move(pending));
}

void DiskReplay::Finish(const DiskOp& op) {
  const bool deaf = !deaf_to_.empty() && log_.paths[op.path].ends_with(deaf_to_);
  File& file = files_[op.path];
  if (op.kind == DiskOp::Kind::kWrite && op.synchronous && !deaf) {
    const uint64_t end = op.offset + op.data.size();
    MakeDurable(file, op.offset / kDiskSectorBytes,
                (end + kDiskSectorBytes - 1) / kDiskSectorBytes);
    file.durable.length = std::max(file.durable.length, end);
  }
  if (op.kind != DiskOp::Kind::kSync || deaf) return;
  if (log_.is_directory[op.path]) {
    for (uint32_t path = 0; path < files_.size(); ++path) {
      if (files_[path].created && path != 0 && ParentOf(path) == op.path) {
        files_[path].name_durable = true;
      }
    }
    return;
  }
  for (const Pending& pending : file.pending) {
    for (size_t i = 0; i < pending.sectors.size(); ++i) {
      file.durable.Put(pending.sectors[i] * kDiskSectorBytes,
                       pending.data.data() + i * kDiskSectorBytes, kDiskSectorBytes);
    }
  }
  file.durable.length = file.cached.length;
  file.pending.clear();
}

// The sectors are on the disk as they are in the cache; no version before counts any more.
void DiskReplay::MakeDurable(File& file, uint64_t first_sector, uint64_t end_sector) {
  for (uint64_t sector = first_sector; sector < end_sector; ++sector) {
    file.durable.Put(sector * kDiskSectorBytes, file.cached.Sector(sector).data(),
                     kDiskSectorBytes);
  }
  for (Pending& pending : file.pending) {
    Pending rest;
    rest.length = pending.length;
    for (size_t i = 0; i < pending.sectors.size(); ++i) {
      if (pending.sectors[i] >= first_sector && pending.sectors[i] < end_sector) continue;
      rest.sectors.push_back(pending.sectors[i]);
      rest.data.append(pending.data, i * kDiskSectorBytes, kDiskSectorBytes);
    }
    pending = std::move(rest);
  }
  std::erase_if(file.pending, [](const Pending& pending) {
    return pending.length == 0 && pending.sectors.empty();
  });
}

uint32_t DiskReplay::ParentOf(uint32_t path) const {
  const std::string& name = log_.paths[path];
  const size_t slash = name.rfind('/');
  const std::string parent = slash == std::string::npos ? "" : name.substr(0, slash);
  const auto it = std::find(log_.paths.begin(), log_.paths.end(), parent);
  COWSHED_CHECK(it != log_.paths.end(), "a directory is known before what is in it");
  return static_cast<uint32_t>(it - log_.paths.begin());
}

DiskReplay::Bytes DiskReplay::Survivors(const File& file, uint64_t choice,
                                        std::mt19937_64& random) {
  if (choice == 1) return file.cached;
  Bytes bytes = file.durable;
  if (choice == 0) return bytes;
  const auto one_in = [&](uint64_t n) { return random() % n == 0; };
  // Each file loses little, much or half, and few writes or many are torn.
  const uint64_t kept_of_8 = std::array<uint64_t, 5>{0, 1, 4, 7, 8}[random() % 5];
  const uint64_t torn_of_8 = std::array<uint64_t, 3>{0, 2, 8}[random() % 3];
  for (const Pending& pending : file.pending) {
    const bool torn = random() % 8 < torn_of_8;
    const bool kept = random() % 8 < kept_of_8;
    if (!torn && !kept) continue;
    if (pending.length > 0 && !(torn && one_in(2))) {
      bytes.length = std::max(bytes.length, pending.length);
    }
    const size_t count = pending.sectors.size();
    const size_t cut = count > 0 ? random() % count : 0;
    const uint64_t way = random() % 3;
    for (size_t i = 0; i < count; ++i) {
      if (torn && (way == 0 ? i >= cut : way == 1 ? i < cut : one_in(2))) continue;
      bytes.Put(pending.sectors[i] * kDiskSectorBytes, pending.data.data() + i * kDiskSectorBytes,
                kDiskSectorBytes);
      // Bytes on the disk lie within the file, which need not have got its whole new length.
      const uint64_t end = (pending.sectors[i] + 1) * kDiskSectorBytes;
      bytes.length = std::max(bytes.length, std::min(end, file.cached.length));
    }
  }
  return bytes;
}

void DiskReplay::WriteImage(const std::string& directory, uint64_t choice) const {
  std::mt19937_64 random(choice);
  std::vector<bool> there(files_.size(), false);
  there[0] = true;
  for (uint32_t path = 1; path < files_.size(); ++path) {
    const File& file = files_[path];
    const bool named = file.name_durable || choice == 1 || (choice > 1 && random() % 2 == 0);
    there[path] = file.created && named && there[ParentOf(path)];
  }
  for (uint32_t path = 1; path < files_.size(); ++path) {
    const File& file = files_[path];
    if (!there[path] || (file.renamed_to != 0 && there[file.renamed_to])) continue;
    const std::string full = directory + "/" + log_.paths[path];
    if (log_.is_directory[path]) {
      COWSHED_CHECK(mkdir(full.c_str(), 0700) == 0, "an image's directory can be made");
    } else {
      const Bytes bytes = Survivors(file, choice, random);
      WriteFile(full, bytes.data, std::max<uint64_t>(bytes.length, 0));
    }
  }
}

}  // namespace cowshed::engine

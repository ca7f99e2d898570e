// SPDX-License-Identifier: Apache-2.0
#include "tests/support/temp_pool.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <span>
#include <thread>
#include <utility>

#include "engine/base/failpoints.h"
#include "engine/base/status_macros.h"
#include "engine/base/strings.h"

namespace cowshed::engine {
namespace {

constexpr char kMemoryRoot[] = "/dev/shm";
constexpr uint64_t kEnoughMemoryBytes = uint64_t{2} << 30;

// Copies a file without filling its holes.
void CopySparse(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::string command = StrCat("cp --sparse=always '", from.string(), "' '", to.string(), "'");
  if (std::system(command.c_str()) != 0) {
    std::cerr << "cannot copy " << from << '\n';
    std::abort();
  }
}

}  // namespace

std::string FastTempRoot() {
  if (const char* const root = std::getenv("COWSHED_TEST_ROOT"); root != nullptr) return root;
  struct statvfs info = {};
  if (access(kMemoryRoot, W_OK) == 0 && statvfs(kMemoryRoot, &info) == 0 &&
      uint64_t{info.f_bavail} * info.f_frsize >= kEnoughMemoryBytes) {
    return kMemoryRoot;
  }
  return std::filesystem::temp_directory_path().string();
}

TempPool::TempPool(const Tweak& tweak) : clock_(std::make_shared<std::atomic<int64_t>>(kStartMs)) {
  root_ = FastTempRoot() + "/cowshed_pool_XXXXXX";
  if (mkdtemp(root_.data()) == nullptr) {
    std::cerr << "cannot make " << root_ << '\n';
    std::abort();
  }
  options_.directory = root_ + "/0";
  std::filesystem::create_directory(options_.directory);
  options_.capacity_bytes = 64 << 20;
  options_.meta_map_bytes = uint64_t{1} << 30;
  options_.meta_reserve_bytes = 1 << 20;
  options_.blocks_reserve_bytes = 1 << 20;
  options_.clock_ms = [clock = clock_] { return clock->load(); };
  if (tweak) tweak(&options_);
  Open();
}

TempPool::~TempPool() {
  if (pool_ != nullptr) {
    ExpectClean();
    pool_.reset();
  }
  std::error_code ignored;
  std::filesystem::remove_all(root_, ignored);
}

void TempPool::Open() {
  absl::StatusOr<std::unique_ptr<Pool>> pool = Pool::Open(options_);
  if (!pool.ok()) {
    std::cerr << "cannot open the pool: " << pool.status() << '\n';
    std::abort();
  }
  pool_ = *std::move(pool);
}

void TempPool::Reopen(const Tweak& change) {
  pool_.reset();
  if (change) change(&options_);
  Open();
}

void TempPool::Crash() {
  // No txg may commit while its files are copied: the next one stops before it writes metadata.
  const absl::Status armed = Failpoints::Arm("sync.before_fsync=pause");
  if (!armed.ok()) std::abort();
  Await<absl::StatusOr<Txg>> synced;
  pool_->Sync(synced.Callback());
  while (!synced.Ready() && Failpoints::Hits("sync.before_fsync") == 0) std::this_thread::yield();
  const std::filesystem::path from = options_.directory;
  const std::filesystem::path to = StrCat(root_, "/", ++generation_);
  std::filesystem::create_directories(to / "meta");
  CopySparse(from / "blocks", to / "blocks");
  for (const auto& entry : std::filesystem::directory_iterator(from / "meta")) {
    if (entry.is_regular_file() && entry.path().filename() != "lock.mdb") {
      CopySparse(entry.path(), to / "meta" / entry.path().filename());
    }
  }
  Failpoints::Disarm("sync.before_fsync");
  pool_.reset();
  std::filesystem::remove_all(from);
  options_.directory = to.string();
  Open();
}

void TempPool::Damage(const std::function<void(WriteTxn& txn)>& change) {
  pool_.reset();
  {
    const MetaStoreOptions options = {
        .map_bytes = options_.meta_map_bytes, .reserve_bytes = 0, .max_readers = 16};
    auto meta = MetaStore::Open(options_.directory + "/meta", /*create=*/false,
                                /*read_only=*/false, options);
    if (!meta.ok()) std::abort();
    auto txn = (*meta)->BeginWrite();
    if (!txn.ok()) std::abort();
    change(**txn);
    const absl::Status committed = (*txn)->Commit();
    EXPECT_TRUE(committed.ok()) << committed;
  }
  Open();
}

void TempPool::Abandon() { pool_.reset(); }

std::vector<CheckFinding> TempPool::DrainAndCheck() {
  const absl::Status drained = pool_->DrainBackground();
  EXPECT_TRUE(drained.ok()) << drained;
  absl::StatusOr<CheckReport> report = pool_->Check();
  EXPECT_TRUE(report.ok()) << report.status();
  return report.ok() ? std::move(report->findings) : std::vector<CheckFinding>();
}

void TempPool::ExpectClean() {
  for (const CheckFinding& finding : DrainAndCheck()) {
    ADD_FAILURE() << finding.invariant << ": " << finding.name << ": " << finding.message;
  }
  // What the online check compares follows from what the offline one does: it must agree.
  const absl::StatusOr<CheckReport> online = pool_->CheckOnline();
  EXPECT_TRUE(online.ok()) << online.status();
  if (!online.ok()) return;
  for (const CheckFinding& finding : online->findings) {
    ADD_FAILURE() << "online " << finding.invariant << ": " << finding.name << ": "
                  << finding.message;
  }
}

absl::StatusOr<Outcome> TempPool::Create(const std::string& name, uint64_t size_bytes,
                                         uint32_t block_bytes) {
  CreateDatasetArgs args;
  args.name = name;
  args.size_bytes = size_bytes;
  args.block_bytes = block_bytes;
  return Call(&Pool::CreateDataset, std::move(args));
}

absl::StatusOr<Outcome> TempPool::Snapshot(const std::string& name) {
  CreateSnapshotsArgs args;
  args.names = {name};
  return Call(&Pool::CreateSnapshots, std::move(args));
}

absl::StatusOr<Outcome> TempPool::Clone(const std::string& source, const std::string& name) {
  CloneDatasetArgs args;
  args.source = source;
  args.name = name;
  return Call(&Pool::CloneDataset, std::move(args));
}

absl::StatusOr<Outcome> TempPool::Destroy(const std::string& name, bool recursive, bool cascade) {
  DestroyDatasetsArgs args;
  args.names = {name};
  args.recursive = recursive;
  args.cascade = cascade;
  return Call(&Pool::DestroyDatasets, std::move(args));
}

absl::StatusOr<Outcome> TempPool::DestroySnapshot(const std::string& name, bool defer) {
  DestroySnapshotsArgs args;
  args.names = {name};
  args.defer = defer;
  return Call(&Pool::DestroySnapshots, std::move(args));
}

absl::StatusOr<Outcome> TempPool::Hold(const std::string& snapshot, const std::string& tag) {
  HoldSnapshotArgs args;
  args.snapshot = snapshot;
  args.tag = tag;
  return Call(&Pool::HoldSnapshot, std::move(args));
}

absl::StatusOr<Outcome> TempPool::Release(const std::string& snapshot, const std::string& tag) {
  Await<absl::StatusOr<Outcome>> done;
  pool_->ReleaseHold(snapshot, tag, std::nullopt, done.Callback());
  return done.Wait();
}

absl::StatusOr<Outcome> TempPool::Rollback(const std::string& name) {
  RollbackDatasetArgs args;
  args.name = name;
  return Call(&Pool::RollbackDataset, std::move(args));
}

absl::StatusOr<Outcome> TempPool::ResetToOrigin(const std::string& name) {
  RollbackDatasetArgs args;
  args.name = name;
  args.to_origin = true;
  return Call(&Pool::RollbackDataset, std::move(args));
}

absl::StatusOr<Outcome> TempPool::Promote(const std::string& name) {
  Await<absl::StatusOr<Outcome>> done;
  pool_->PromoteDataset(name, "", std::nullopt, done.Callback());
  return done.Wait();
}

absl::StatusOr<Outcome> TempPool::Rename(const std::string& name, const std::string& new_name) {
  Await<absl::StatusOr<Outcome>> done;
  if (name.find('@') == std::string::npos) {
    pool_->RenameDataset(name, new_name, "", std::nullopt, done.Callback());
  } else {
    pool_->RenameSnapshot(name, new_name, std::nullopt, done.Callback());
  }
  return done.Wait();
}

absl::StatusOr<Outcome> TempPool::Resize(const std::string& name, uint64_t size_bytes) {
  UpdateDatasetArgs args;
  args.name = name;
  args.size_bytes = size_bytes;
  return Call(&Pool::UpdateDataset, std::move(args));
}

absl::StatusOr<Txg> TempPool::Sync() {
  Await<absl::StatusOr<Txg>> done;
  pool_->Sync(done.Callback());
  return done.Wait();
}

absl::Status TempPool::Write(const std::string& name, uint64_t offset, std::string_view data) {
  absl::StatusOr<std::shared_ptr<Volume>> volume = pool_->OpenVolume(name, "");
  if (!volume.ok()) return volume.status();
  return (*volume)->Write(offset, std::as_bytes(std::span(data)));
}

absl::StatusOr<std::string> TempPool::Read(const std::string& name, uint64_t offset,
                                           uint64_t length) {
  absl::StatusOr<std::shared_ptr<Volume>> volume = pool_->OpenVolume(name, "");
  if (!volume.ok()) return volume.status();
  std::string data(length, '?');
  const absl::Status status = (*volume)->Read(offset, std::as_writable_bytes(std::span(data)));
  if (!status.ok()) return status;
  return data;
}

absl::Status TempPool::Discard(const std::string& name, uint64_t offset, uint64_t length) {
  absl::StatusOr<std::shared_ptr<Volume>> volume = pool_->OpenVolume(name, "");
  if (!volume.ok()) return volume.status();
  Await<absl::Status> done;
  (*volume)->Discard(offset, length, done.Callback());
  return done.Wait();
}

absl::Status TempPool::MakeDurable(const std::string& name) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Volume> volume, pool_->OpenVolume(name, ""));
  Await<absl::Status> done;
  volume->MakeDurable(done.Callback());
  return done.Wait();
}

absl::StatusOr<Txg> TempPool::Flush(const std::string& name) {
  absl::StatusOr<std::shared_ptr<Volume>> volume = pool_->OpenVolume(name, "");
  if (!volume.ok()) return volume.status();
  Await<absl::StatusOr<Txg>> done;
  (*volume)->Flush(done.Callback());
  return done.Wait();
}

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// An open pool: its parts, in the order they depend on each other, and the calls of pool.h turned
// into tasks and queries. Nothing here decides anything; that is in lifecycle*.cc and queries.cc.
//
// Threads     Thread-safe.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/attachments.h"
#include "engine/background_task.h"
#include "engine/backup.h"
#include "engine/base/mutex.h"
#include "engine/condenser.h"
#include "engine/maintenance.h"
#include "engine/meta_copier.h"
#include "engine/pool.h"
#include "engine/rebuilder.h"
#include "engine/reclaimer.h"
#include "engine/scrubber.h"
#include "engine/store/file.h"
#include "engine/txg.h"
#include "engine/undelete.h"
#include "engine/volume.h"

namespace cowshed::engine {

class PoolImpl final : public Pool {
 public:
  static absl::StatusOr<std::unique_ptr<PoolImpl>> Open(const PoolOptions& options);
  ~PoolImpl() override;

  void CreateDataset(CreateDatasetArgs args, Idempotency key, OutcomeCallback done) override;
  void UpdateDataset(UpdateDatasetArgs args, Idempotency key, OutcomeCallback done) override;
  void CreateSnapshots(CreateSnapshotsArgs args, Idempotency key, OutcomeCallback done) override;
  void CloneDataset(CloneDatasetArgs args, Idempotency key, OutcomeCallback done) override;
  void DestroyDatasets(DestroyDatasetsArgs args, Idempotency key, OutcomeCallback done) override;
  void DestroySnapshots(DestroySnapshotsArgs args, Idempotency key, OutcomeCallback done) override;
  void Undestroy(std::string operation, Idempotency key, OutcomeCallback done) override;
  void HoldSnapshot(HoldSnapshotArgs args, Idempotency key, OutcomeCallback done) override;
  void ReleaseHold(std::string snapshot, std::string tag, Idempotency key,
                   OutcomeCallback done) override;
  void RollbackDataset(RollbackDatasetArgs args, Idempotency key, OutcomeCallback done) override;
  void PromoteDataset(std::string name, std::string etag, Idempotency key,
                      OutcomeCallback done) override;
  void RenameDataset(std::string name, std::string new_name, std::string etag, Idempotency key,
                     OutcomeCallback done) override;
  void RenameSnapshot(std::string name, std::string new_name, Idempotency key,
                      OutcomeCallback done) override;
  void Sync(absl::AnyInvocable<void(absl::StatusOr<Txg>)> done) override;

  absl::StatusOr<DatasetInfo> GetDataset(const std::string& name) override;
  absl::StatusOr<SnapshotInfo> GetSnapshot(const std::string& name) override;
  absl::StatusOr<Page<DatasetInfo>> ListDatasets(const ListArgs& args) override;
  absl::StatusOr<Page<SnapshotInfo>> ListSnapshots(const ListArgs& args) override;
  absl::StatusOr<Page<HoldInfo>> ListHolds(const ListArgs& args) override;
  absl::StatusOr<Page<OperationInfo>> ListOperations(const ListArgs& args) override;
  absl::StatusOr<OperationInfo> GetOperation(const std::string& name) override;
  absl::StatusOr<Page<Blocker>> ListBlockers(const BlockerQuery& query,
                                             const ListArgs& args) override;
  absl::StatusOr<LivelistInfo> GetLivelist(const std::string& dataset, Txg from_start,
                                           uint32_t limit) override;
  void OnOperationsChanged(absl::AnyInvocable<void()> changed) override;

  absl::StatusOr<std::shared_ptr<Volume>> OpenVolume(const std::string& name,
                                                     const std::string& expected_uid) override;
  absl::StatusOr<Page<AttachmentInfo>> ListAttachments(const ListArgs& args) override;
  absl::Status Diff(const std::string& from, const std::string& to, uint64_t start_offset,
                    const std::function<bool(const DiffExtent&)>& visit) override;

  void UpdateReclaim(UpdateReclaimArgs args, Idempotency key, OutcomeCallback done) override;
  void StartScrub(StartScrubArgs args, Idempotency key, OutcomeCallback done) override;
  void CancelScrub(CancelScrubArgs args, Idempotency key, OutcomeCallback done) override;
  void Backup(BackupArgs args, Idempotency key, OutcomeCallback done) override;
  ReclaimInfo reclaim() const override;
  SpaceInfo space() const override;
  const PoolStats& stats() const override { return stats_; }
  Attachments& attachments() override { return attachments_; }
  std::string uid() const override;
  Txg committed_txg() const override;
  absl::Status health() const override;
  absl::StatusOr<CheckReport> Check() override;
  absl::StatusOr<CheckReport> CheckOnline() override;
  absl::Status DrainBackground() override;

 private:
  using Call = std::function<absl::StatusOr<Verdict>(TxgContext&, Outcome*)>;

  explicit PoolImpl(PoolOptions options);
  absl::Status OpenFiles();
  absl::Status CreateFiles();
  absl::Status CheckPair(const PoolRecord& record) const;
  void StartBackground();
  // A read has found this dataset's livelist damaged: it is dropped, and rebuilt.
  void ReportDamage(DatasetId id);
  absl::StatusOr<std::shared_ptr<Volume>> OpenVolume(const std::string& name,
                                                     const std::string& expected_uid,
                                                     Holding holding);
  // One side of a diff: its tree as committed, and the lineage it belongs to.
  struct DiffSide;
  absl::StatusOr<DiffSide> ResolveDiffSide(const MetaTxn& txn, const std::string& name);

  // Runs `call` as a task; with a key, at most once for all repeats of it. `kFreesSpace`: also
  // while the host is full, before data that was accepted earlier and waits for space: only what
  // needs no such data may do so.
  enum class Space : uint8_t { kAny, kFreesSpace };
  void Submit(Call call, Idempotency key, OutcomeCallback done, Space space = Space::kAny);
  void SubmitOnce(Call call, RequestKey key, OutcomeCallback done, Space space);
  void FinishOnce(const std::string& hash, absl::StatusOr<Outcome> outcome);

  PoolOptions options_;
  PoolStats stats_;
  std::unique_ptr<FileLock> lock_;
  std::unique_ptr<MetaStore> meta_;
  std::unique_ptr<BlockStore> blocks_;
  std::unique_ptr<Allocator> allocator_;
  std::unique_ptr<NodeCache> nodes_;
  std::unique_ptr<BlockTree> tree_;
  std::unique_ptr<ReclaimPacer> pacer_;
  ReaderEpochs epochs_;
  IdSource ids_;
  HeadTable heads_;
  Attachments attachments_;
  PoolRecord opened_;
  std::unique_ptr<PoolParts> parts_;
  std::unique_ptr<TxgManager> txgs_;
  std::unique_ptr<Reclaimer> reclaimer_;
  std::unique_ptr<Rebuilder> rebuilder_;
  std::unique_ptr<Trimmer> trimmer_;
  std::unique_ptr<Housekeeper> housekeeper_;
  std::unique_ptr<Expirer> expirer_;
  std::unique_ptr<WindowKeeper> windows_;
  std::unique_ptr<Puncher> puncher_;
  std::unique_ptr<MetaCopier> meta_copier_;
  std::unique_ptr<Condenser> condenser_;
  std::unique_ptr<Scrubber> scrubber_;
  std::unique_ptr<Copier> copier_;
  std::vector<std::unique_ptr<BackgroundTask>> tasks_;

  // Calls under way with a request key: whoever repeats one joins it.
  struct InFlight {
    uint64_t fingerprint = 0;
    std::vector<OutcomeCallback> waiters;
  };
  Mutex mutex_{LockRank::kCallsInFlight};
  std::map<std::string, InFlight> in_flight_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cowshed::engine

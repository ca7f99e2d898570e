// SPDX-License-Identifier: Apache-2.0
//
// A backup copies the pool as of one txg into another directory while the pool works. The copy is a
// pool of its own: opening it is the restore.
//
// Consistent  A reader epoch is entered first, then LMDB copies its last commit C. What C
// references
//             was synced before it (I2) and is neither reused nor punched while the epoch is open
//             (I3). The copied metadata then says which sectors to copy: those that are not free
//             and not in the free log. No LMDB reader of the pool outlives the copy of the
//             metadata.
// Bounded     Frees wait for the epoch in the free log. The backup fails, and lets them go, as soon
//             as a writer waits for space, or where the log would outgrow its memory; writers never
//             fail for it.
// Another     The copy gets a pool uid of its own, so that uids, etags and page tokens of the two
//             never meet, and forgets the replies that are kept for request_ids, for they name the
//             old uids.
// Whole       It is built in DIR.partial, synced, and renamed to DIR at the end: DIR is a whole
//             backup or not there. A failed backup takes away what it made; one that ended with its
//             process leaves DIR.partial, and its operation fails when the pool is opened again.
//
// Failpoints  backup.meta_copied, backup.before_rename.
// Threads     Step: one thread at a time. Stop: any. StartBackup: txg thread.
#pragma once

#include <atomic>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/pool.h"
#include "engine/txg.h"

namespace cowshed::engine {

// Where a backup is to go: the path without a trailing slash. INVALID_FIELD if it is not absolute,
// FAILED_PRECONDITION BACKUP_TARGET if it can not take one. Looks at the directory, which may be on
// a slow host: not for the txg thread.
absl::StatusOr<std::string> BackupTarget(const std::string& directory);
// The task of Pool::Backup. FAILED_PRECONDITION BACKUP_RUNNING while another is under way.
absl::StatusOr<Verdict> StartBackup(TxgContext& context, const absl::StatusOr<std::string>& target,
                                    Outcome* outcome);

class Copier {
 public:
  // `opened_txg`: a backup begun up to it has died with its process.
  Copier(PoolParts& parts, TxgManager& txgs, Txg opened_txg)
      : parts_(parts), txgs_(txgs), opened_txg_(opened_txg) {}

  // A whole backup, if one is asked for. True if there was one.
  absl::StatusOr<bool> Step();
  // A backup under way gives up soon: the pool is closing.
  void Stop() { stopping_.store(true); }

 private:
  struct Entry {
    OperationId id{};
    std::string directory;
    Txg txg = 0;
  };
  absl::StatusOr<std::optional<Entry>> Find();
  absl::Status Copy(const Entry& entry, const std::string& partial);
  absl::Status CopyBlocks(const Entry& entry, MetaStore& copy, const std::string& partial);
  // Why the backup has to end now, or OK.
  absl::Status MayGoOn() const;
  absl::Status Book(const Entry& entry, uint64_t done_sectors,
                    std::optional<uint64_t> total_sectors);
  absl::Status Finish(const Entry& entry, const absl::Status& result);

  PoolParts& parts_;
  TxgManager& txgs_;
  const Txg opened_txg_;
  bool looked_ = false;
  std::atomic<bool> stopping_{false};
};

}  // namespace cowshed::engine

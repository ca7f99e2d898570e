// SPDX-License-Identifier: Apache-2.0
//
// Attachments as the catalogue knows what they hold: by the names that datasets and snapshots have
// now, whatever they were called when they were attached.
//
// Threads     Any thread, through any transaction.
// Cost        A lookup or two for each attached dataset or snapshot.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "engine/attachments.h"
#include "engine/pool.h"
#include "engine/store/id_source.h"
#include "engine/store/meta_store.h"

namespace cowshed::engine {

// What the number of an attached dataset or snapshot stands for.
struct Attached {
  DatasetId dataset{};
  SnapshotId snapshot{};  // 0: the dataset's head
  std::string name;       // full
};

// Nullopt if it has been destroyed.
absl::StatusOr<std::optional<Attached>> FindAttached(const MetaTxn& txn, uint64_t object);

// As Pool::ListAttachments. One that holds what has been destroyed has the name it was attached by.
absl::StatusOr<Page<AttachmentInfo>> ListAttachments(const MetaTxn& txn,
                                                     const Attachments& attachments,
                                                     const ListArgs& args);

}  // namespace cowshed::engine

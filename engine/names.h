// SPDX-License-Identifier: Apache-2.0
//
// The namespace: a tree of directories, one per name segment that has something below it, so that a
// whole prefix can be taken away, or counted as gone, by touching one entry.
//
// Names are "a/b/c" or "a/b/c@snap"; parents need not exist as datasets. A directory exists while
// it has entries. Lists run depth first: a dataset, then what is below it, segments in byte order.
//
// Threads     Changes: txg thread. Look-ups: any thread, through any transaction.
// Cost        O(segments) look-ups; independent of how many datasets exist.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/store/records.h"

namespace cowshed::engine {

// A name cut at '@'; `snapshot` is empty for a dataset's.
struct ParsedName {
  std::string dataset;
  std::string snapshot;
};

// INVALID_ARGUMENT INVALID_NAME, saying what is wrong with it.
absl::StatusOr<ParsedName> ParseName(std::string_view name);
// As above, and it must (not) name a snapshot.
absl::StatusOr<std::string> ParseDatasetName(std::string_view name);
absl::StatusOr<ParsedName> ParseSnapshotName(std::string_view name);
// One segment: a snapshot's short name.
absl::Status CheckSegment(std::string_view segment);

class Names {
 public:
  // The dataset of exactly this name.
  static absl::StatusOr<std::optional<DatasetId>> Find(const MetaTxn& txn, std::string_view name);
  // Makes the name point at `dataset` and fills its directory and segment. REQUIRES: it is free.
  static absl::Status Insert(WriteTxn& txn, std::string_view name, DatasetId dataset, IdSource& ids,
                             DatasetRecord* record);
  // Takes the name of `record` away, and directories that it leaves empty.
  static absl::Status Remove(WriteTxn& txn, const DatasetRecord& record);
  // The full name of a dataset: up through its directories. A detached prefix still has its name.
  static absl::StatusOr<std::string> FullName(const MetaTxn& txn, const DatasetRecord& record);
  // Whether one of its directories has been detached: the dataset has no name any more.
  static absl::StatusOr<bool> IsDetached(const MetaTxn& txn, const DatasetRecord& record);

  // Visits the datasets of the subtree `prefix` (empty: all) after the name `position` (empty: from
  // the start), depth first, until `visit` returns false. `position` need not exist any more.
  using Visitor = std::function<absl::StatusOr<bool>(const std::string& name, DatasetId dataset)>;
  static absl::Status Walk(const MetaTxn& txn, std::string_view prefix, std::string_view position,
                           const Visitor& visit);

  // Cuts what is below `prefix` off the namespace: those names are free at once. The dataset of
  // exactly that name still has it, until Remove. What hung there:
  struct Subtree {
    DirectoryId directory{};  // detached, 0: nothing was below
    DatasetId dataset{};      // of exactly that name, 0: none
  };
  static absl::StatusOr<Subtree> Detach(WriteTxn& txn, std::string_view prefix);
  // Undoes it. REQUIRES: nothing is below `prefix`.
  static absl::Status Reattach(WriteTxn& txn, std::string_view prefix, DirectoryId directory,
                               IdSource& ids);
  // Visits what is below a directory of that name, detached or not, as Walk does.
  static absl::Status WalkBelow(const MetaTxn& txn, DirectoryId directory, std::string_view name,
                                const Visitor& visit);
  // First dataset left under a detached directory, pruning empty directories (the detached one too)
  // on the way; nullopt when nothing is left.
  static absl::StatusOr<std::optional<DatasetId>> TakeFirst(WriteTxn& txn, DirectoryId directory);
};

}  // namespace cowshed::engine

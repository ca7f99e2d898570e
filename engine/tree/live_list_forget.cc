// SPDX-License-Identifier: Apache-2.0
#include "engine/tree/live_list_forget.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "engine/base/status_macros.h"
#include "engine/tree/sublist_table.h"

namespace cowshed::engine {
namespace {

struct Item {
  std::string key;
  std::optional<SublistRecord> record;  // of a sublist whose value decodes

  bool is_sublist() const { return key.size() == kSublistKeyBytes; }
};

// Calls `visit(item)` for each key with this prefix until it returns false.
template <typename Visit>
absl::Status ForEachItem(const MetaTxn& txn, std::string_view prefix, const Visit& visit) {
  MetaCursor cursor(txn, Table::kSublists);
  for (cursor.Seek(prefix); cursor.valid() || absl::IsDataLoss(cursor.status()); cursor.Next()) {
    if (!cursor.key().starts_with(prefix)) return absl::OkStatus();
    Item item = {std::string(cursor.key()), std::nullopt};
    if (item.is_sublist() && cursor.valid()) {
      absl::StatusOr<SublistRecord> record = DecodeSublist(item.key, cursor.value());
      if (record.ok()) item.record = *record;
    }
    if (!visit(std::move(item))) return absl::OkStatus();
  }
  return cursor.status();
}

// A damaged list may name a log that is not its own any more: that one has been released.
absl::Status ReleaseLog(WriteTxn& txn, LogId log) {
  const absl::Status status = PointerLog::Release(txn, log);
  return absl::IsDataLoss(status) ? absl::OkStatus() : status;
}

}  // namespace

absl::StatusOr<std::vector<Txg>> SublistStarts(const MetaTxn& txn, LivelistId list) {
  std::vector<Txg> starts;
  RETURN_IF_ERROR(ForEachItem(txn, Key(list), [&](const Item& item) {
    if (item.is_sublist()) starts.push_back(StartOf(item.key));
    return true;
  }));
  return starts;
}

absl::StatusOr<ForgottenSublists> ForgetSublists(WriteTxn& txn, LivelistId list,
                                                 uint64_t max_keys) {
  ForgottenSublists forgotten;
  forgotten.done = true;
  std::vector<Item> items;
  RETURN_IF_ERROR(ForEachItem(txn, Key(list), [&](Item item) {
    forgotten.done = items.size() < std::max<uint64_t>(max_keys, 1);
    if (forgotten.done) items.push_back(std::move(item));
    return forgotten.done;
  }));
  for (const Item& item : items) {
    RETURN_IF_ERROR(txn.Delete(Table::kSublists, item.key));
    if (!item.is_sublist()) {
      RETURN_IF_ERROR(ReleaseLog(txn, KeyNumber<LogId>(item.key, kSublistKeyBytes)));
    } else if (item.record.has_value()) {
      RETURN_IF_ERROR(ReleaseLog(txn, item.record->log));
      forgotten.shrunk.entries += item.record->entries;
      ++forgotten.shrunk.sublists;
    } else {
      forgotten.damaged = true;
    }
  }
  return forgotten;
}

absl::StatusOr<LiveListGrowth> CountSublists(const MetaTxn& txn) {
  LiveListGrowth sum;
  RETURN_IF_ERROR(ForEachItem(txn, "", [&](const Item& item) {
    if (item.record.has_value()) {
      sum.entries += item.record->entries;
      ++sum.sublists;
    }
    return true;
  }));
  return sum;
}

}  // namespace cowshed::engine

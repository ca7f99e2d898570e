// SPDX-License-Identifier: Apache-2.0
#include "engine/tree/sublist_table.h"

#include "engine/base/status_macros.h"
#include "engine/base/strings.h"

namespace cowshed::engine {

namespace {

std::string Name(LivelistId list, Txg start) {
  return StrCat("livelist ", static_cast<uint64_t>(list), " sublist ", start);
}

}  // namespace

absl::Status DamagedSublist(LivelistId list, Txg start, std::string_view problem) {
  return absl::DataLossError(StrCat(Name(list, start), " ", problem));
}

absl::StatusOr<SublistRecord> DecodeSublist(std::string_view key, std::string_view value) {
  SublistRecord record;
  Decoder decoder(value);
  decoder.Get(&record);
  RETURN_IF_ERROR(decoder.Finish(Name(KeyNumber<LivelistId>(key, 0), StartOf(key))));
  return record;
}

absl::StatusOr<SublistRecord> GetSublist(const MetaTxn& txn, LivelistId list, Txg start) {
  const Key key = SublistKey(list, start);
  ASSIGN_OR_RETURN(const auto value, txn.Get(Table::kSublists, key));
  if (!value.has_value()) {
    return absl::NotFoundError(StrCat(Name(list, start), " not found"));
  }
  return DecodeSublist(key, *value);
}

absl::Status PutSublist(WriteTxn& txn, LivelistId list, const Sublist& sublist) {
  return txn.Put(Table::kSublists, SublistKey(list, sublist.start),
                 Encoder().Put(sublist.record).Take());
}

absl::StatusOr<std::vector<LogId>> AttachedLogs(const MetaTxn& txn, LivelistId list, Txg start) {
  std::vector<LogId> logs;
  const Key prefix = SublistKey(list, start);
  MetaCursor cursor(txn, Table::kSublists);
  for (cursor.Seek(prefix); cursor.ValidFor(prefix); cursor.Next()) {
    if (cursor.key().size() == kAttachedKeyBytes) {
      logs.push_back(KeyNumber<LogId>(cursor.key(), kSublistKeyBytes));
    }
  }
  RETURN_IF_ERROR(cursor.status());
  return logs;
}

}  // namespace cowshed::engine

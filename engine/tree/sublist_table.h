// SPDX-License-Identifier: Apache-2.0
//
// The table kSublists, as the files of LiveList share it: keys, records, attached logs. Only they
// include it.
//
// Threads     As LiveList.
// Errors      DATA_LOSS naming livelist and sublist.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/store/codec.h"
#include "engine/tree/live_list.h"

namespace cowshed::engine {

inline constexpr size_t kSublistKeyBytes = 16;   // livelist, start
inline constexpr size_t kAttachedKeyBytes = 24;  // livelist, start, log

inline Key SublistKey(LivelistId list, Txg start) { return Key(list, start); }
inline Txg StartOf(std::string_view key) { return KeyNumber<Txg>(key, sizeof(LivelistId)); }

absl::Status DamagedSublist(LivelistId list, Txg start, std::string_view problem);
absl::StatusOr<SublistRecord> DecodeSublist(std::string_view key, std::string_view value);
// NOT_FOUND if there is none.
absl::StatusOr<SublistRecord> GetSublist(const MetaTxn& txn, LivelistId list, Txg start);
absl::Status PutSublist(WriteTxn& txn, LivelistId list, const Sublist& sublist);
absl::StatusOr<std::vector<LogId>> AttachedLogs(const MetaTxn& txn, LivelistId list, Txg start);

}  // namespace cowshed::engine

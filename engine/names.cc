// SPDX-License-Identifier: Apache-2.0
#include "engine/names.h"

#include <algorithm>
#include <cctype>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/types.h"

namespace cowshed::engine {
namespace {

// Of a length and of bytes that do no harm to who reads the error.
std::string Shown(std::string_view name) {
  std::string shown(name.substr(0, kMaxNameBytes));
  for (char& c : shown) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) c = '?';
  }
  return shown;
}

absl::Status InvalidName(std::string_view name, std::string_view problem) {
  const std::string shown = Shown(name);
  return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_NAME",
                   StrCat("name '", shown, "' ", problem), {{"name", shown}});
}

bool IsSegment(std::string_view text) {
  const auto alnum = [](unsigned char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
  };
  return !text.empty() && alnum(static_cast<unsigned char>(text[0])) &&
         std::all_of(text.begin(), text.end(), [&](char c) {
           return alnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == ':' ||
                  c == '-';
         });
}

std::vector<std::string> Split(std::string_view name) {
  std::vector<std::string> segments;
  while (!name.empty()) {
    const size_t slash = std::min(name.find('/'), name.size());
    segments.emplace_back(name.substr(0, slash));
    name.remove_prefix(std::min(slash + 1, name.size()));
  }
  return segments;
}

Key NameKey(DirectoryId directory, std::string_view segment) { return Key(directory, segment); }

// The entry `segment` of `directory`; empty record if there is none.
absl::StatusOr<NameRecord> Entry(const MetaTxn& txn, DirectoryId directory,
                                 std::string_view segment) {
  ASSIGN_OR_RETURN(const std::optional<NameRecord> found,
                   FindRecord<NameRecord>(txn, NameKey(directory, segment)));
  return found.value_or(NameRecord());
}

// Stores an entry, or drops it when nothing is left of it, then prunes directories upwards.
absl::Status StoreEntry(WriteTxn& txn, DirectoryId directory, std::string segment,
                        NameRecord entry) {
  while (true) {
    if (entry.dataset != DatasetId{} || entry.directory != DirectoryId{}) {
      return StoreRecord(txn, NameKey(directory, segment), entry);
    }
    RETURN_IF_ERROR(txn.Delete(Table::kNames, NameKey(directory, segment)));
    ASSIGN_OR_RETURN(DirectoryRecord record, LoadRecord<DirectoryRecord>(txn, Key(directory)));
    --record.entries;
    if (record.entries > 0 || directory == kRootDirectory || record.detached) {
      return StoreRecord(txn, Key(directory), record);
    }
    RETURN_IF_ERROR(txn.Delete(Table::kDirectories, Key(directory)));
    directory = record.parent;
    segment = record.segment;
    ASSIGN_OR_RETURN(entry, Entry(txn, directory, segment));
    entry.directory = DirectoryId{};
  }
}

// The directory of everything below the segments, 0 if there is none.
absl::StatusOr<DirectoryId> FindDirectory(const MetaTxn& txn,
                                          const std::vector<std::string>& segments) {
  DirectoryId directory = kRootDirectory;
  for (const std::string& segment : segments) {
    ASSIGN_OR_RETURN(const NameRecord entry, Entry(txn, directory, segment));
    directory = entry.directory;
    if (directory == DirectoryId{}) break;
  }
  return directory;
}

// As FindDirectory for all but the last segment, making what is missing.
absl::StatusOr<DirectoryId> MakeParent(WriteTxn& txn, const std::vector<std::string>& segments,
                                       IdSource& ids) {
  DirectoryId directory = kRootDirectory;
  for (size_t i = 0; i + 1 < segments.size(); ++i) {
    ASSIGN_OR_RETURN(NameRecord entry, Entry(txn, directory, segments[i]));
    if (entry.directory == DirectoryId{}) {
      if (entry.dataset == DatasetId{}) {
        ASSIGN_OR_RETURN(DirectoryRecord parent, LoadRecord<DirectoryRecord>(txn, Key(directory)));
        ++parent.entries;
        RETURN_IF_ERROR(StoreRecord(txn, Key(directory), parent));
      }
      entry.directory = ids.Take<DirectoryId>();
      DirectoryRecord made;
      made.parent = directory;
      made.segment = segments[i];
      RETURN_IF_ERROR(StoreRecord(txn, Key(entry.directory), made));
      RETURN_IF_ERROR(StoreRecord(txn, NameKey(directory, segments[i]), entry));
    }
    directory = entry.directory;
  }
  return directory;
}

// One level of a depth-first walk.
struct Level {
  DirectoryId directory;
  std::string prefix;  // of the names in it, ending in '/' unless it is the root's
  std::string after;   // entries up to this segment are done
};

// The next entry of `level` after level.after; false at the end.
absl::StatusOr<bool> NextEntry(const MetaTxn& txn, const Level& level, std::string* segment,
                               NameRecord* entry) {
  const Key directory(level.directory);
  MetaCursor cursor(txn, Table::kNames);
  // '\0' follows no allowed character, so this is the least key above `after`.
  cursor.Seek(level.after.empty()
                  ? std::string(directory)
                  : StrCat(std::string_view(directory), level.after, std::string_view("\0", 1)));
  RETURN_IF_ERROR(cursor.status());
  if (!cursor.ValidFor(directory)) return false;
  *segment = std::string(cursor.key().substr(8));
  ASSIGN_OR_RETURN(*entry, NameRecord::Decode(cursor.value()));
  return true;
}

// Visits the entries of the last level, and what is below them, then those of the one before it.
absl::Status WalkLevels(const MetaTxn& txn, std::vector<Level> levels,
                        const Names::Visitor& visit) {
  while (!levels.empty()) {
    std::string segment;
    NameRecord entry;
    ASSIGN_OR_RETURN(const bool found, NextEntry(txn, levels.back(), &segment, &entry));
    if (!found) {
      levels.pop_back();
      continue;
    }
    levels.back().after = segment;
    const std::string name = levels.back().prefix + segment;
    if (entry.dataset != DatasetId{}) {
      ASSIGN_OR_RETURN(const bool more, visit(name, entry.dataset));
      if (!more) return absl::OkStatus();
    }
    if (entry.directory != DirectoryId{}) levels.push_back({entry.directory, name + "/", ""});
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSegment(std::string_view segment) {
  if (segment.empty()) return InvalidName(segment, "is empty");
  if (segment.size() > kMaxNameBytes) return InvalidName(segment, "is longer than 255 bytes");
  if (!IsSegment(segment)) {
    return InvalidName(segment,
                       "must start with a letter or digit and hold only letters, digits and ._:-");
  }
  return absl::OkStatus();
}

absl::StatusOr<ParsedName> ParseName(std::string_view name) {
  if (name.empty()) return InvalidName(name, "is empty");
  if (name.size() > kMaxNameBytes) return InvalidName(name, "is longer than 255 bytes");
  const size_t at = name.find('@');
  ParsedName parsed{std::string(name.substr(0, at)), ""};
  if (at != std::string_view::npos) {
    parsed.snapshot = std::string(name.substr(at + 1));
    if (!IsSegment(parsed.snapshot)) {
      return InvalidName(name, "has a malformed snapshot part after '@'");
    }
  }
  if (parsed.dataset.empty() || parsed.dataset.front() == '/' || parsed.dataset.back() == '/') {
    return InvalidName(name, "starts or ends with '/' or has no dataset part");
  }
  for (const std::string& segment : Split(parsed.dataset)) {
    if (!IsSegment(segment)) {
      return InvalidName(name, StrCat("has the malformed segment '", Shown(segment),
                                      "' (letters, digits and ._:-, starting with a letter or "
                                      "digit)"));
    }
  }
  return parsed;
}

absl::StatusOr<std::string> ParseDatasetName(std::string_view name) {
  ASSIGN_OR_RETURN(ParsedName parsed, ParseName(name));
  if (!parsed.snapshot.empty()) return InvalidName(name, "names a snapshot, not a dataset");
  return std::move(parsed.dataset);
}

absl::StatusOr<ParsedName> ParseSnapshotName(std::string_view name) {
  ASSIGN_OR_RETURN(ParsedName parsed, ParseName(name));
  if (parsed.snapshot.empty()) return InvalidName(name, "names a dataset, not a snapshot");
  return parsed;
}

absl::StatusOr<std::optional<DatasetId>> Names::Find(const MetaTxn& txn, std::string_view name) {
  std::vector<std::string> segments = Split(name);
  const std::string last = std::move(segments.back());
  segments.pop_back();
  ASSIGN_OR_RETURN(const DirectoryId directory, FindDirectory(txn, segments));
  if (directory == DirectoryId{}) return std::nullopt;
  ASSIGN_OR_RETURN(const NameRecord entry, Entry(txn, directory, last));
  if (entry.dataset == DatasetId{}) return std::nullopt;
  return entry.dataset;
}

absl::Status Names::Insert(WriteTxn& txn, std::string_view name, DatasetId dataset, IdSource& ids,
                           DatasetRecord* record) {
  const std::vector<std::string> segments = Split(name);
  ASSIGN_OR_RETURN(record->directory, MakeParent(txn, segments, ids));
  record->segment = segments.back();
  ASSIGN_OR_RETURN(NameRecord entry, Entry(txn, record->directory, record->segment));
  if (entry.directory == DirectoryId{}) {
    ASSIGN_OR_RETURN(DirectoryRecord parent,
                     LoadRecord<DirectoryRecord>(txn, Key(record->directory)));
    ++parent.entries;
    RETURN_IF_ERROR(StoreRecord(txn, Key(record->directory), parent));
  }
  entry.dataset = dataset;
  return StoreRecord(txn, NameKey(record->directory, record->segment), entry);
}

absl::Status Names::Remove(WriteTxn& txn, const DatasetRecord& record) {
  ASSIGN_OR_RETURN(NameRecord entry, Entry(txn, record.directory, record.segment));
  entry.dataset = DatasetId{};
  return StoreEntry(txn, record.directory, record.segment, entry);
}

absl::StatusOr<std::string> Names::FullName(const MetaTxn& txn, const DatasetRecord& record) {
  std::string name = record.segment;
  DirectoryId directory = record.directory;
  while (directory != kRootDirectory && directory != DirectoryId{}) {
    ASSIGN_OR_RETURN(const std::optional<DirectoryRecord> parent,
                     FindRecord<DirectoryRecord>(txn, Key(directory)));
    if (!parent.has_value()) break;  // a doomed dataset outlives its directories
    name = StrCat(parent->segment, "/", name);
    directory = parent->parent;
  }
  return name;
}

absl::StatusOr<bool> Names::IsDetached(const MetaTxn& txn, const DatasetRecord& record) {
  DirectoryId directory = record.directory;
  while (directory != kRootDirectory) {
    ASSIGN_OR_RETURN(const std::optional<DirectoryRecord> parent,
                     FindRecord<DirectoryRecord>(txn, Key(directory)));
    if (!parent.has_value() || parent->detached) return true;
    directory = parent->parent;
  }
  return false;
}

absl::Status Names::Walk(const MetaTxn& txn, std::string_view prefix, std::string_view position,
                         const Visitor& visit) {
  std::vector<Level> levels;
  if (prefix.empty()) {
    levels.push_back({kRootDirectory, "", ""});
  } else {
    if (position.empty()) {
      ASSIGN_OR_RETURN(const std::optional<DatasetId> self, Find(txn, prefix));
      if (self.has_value()) {
        ASSIGN_OR_RETURN(const bool more, visit(std::string(prefix), *self));
        if (!more) return absl::OkStatus();
      }
    }
    ASSIGN_OR_RETURN(const DirectoryId directory, FindDirectory(txn, Split(prefix)));
    if (directory == DirectoryId{}) return absl::OkStatus();
    levels.push_back({directory, StrCat(prefix, "/"), ""});
  }
  // Goes down along `position`: it is done, what is below and after it is not.
  if (position.size() > levels[0].prefix.size()) {
    for (const std::string& segment : Split(position.substr(levels[0].prefix.size()))) {
      Level& level = levels.back();
      level.after = segment;
      ASSIGN_OR_RETURN(const NameRecord entry, Entry(txn, level.directory, segment));
      if (entry.directory == DirectoryId{}) break;
      levels.push_back({entry.directory, StrCat(level.prefix, segment, "/"), ""});
    }
  }
  return WalkLevels(txn, std::move(levels), visit);
}

absl::Status Names::WalkBelow(const MetaTxn& txn, DirectoryId directory, std::string_view name,
                              const Visitor& visit) {
  return WalkLevels(txn, {{directory, StrCat(name, "/"), ""}}, visit);
}

absl::StatusOr<Names::Subtree> Names::Detach(WriteTxn& txn, std::string_view prefix) {
  std::vector<std::string> segments = Split(prefix);
  const std::string last = std::move(segments.back());
  segments.pop_back();
  ASSIGN_OR_RETURN(const DirectoryId parent, FindDirectory(txn, segments));
  if (parent == DirectoryId{}) return Subtree{};
  ASSIGN_OR_RETURN(const NameRecord entry, Entry(txn, parent, last));
  if (entry.directory == DirectoryId{} && entry.dataset == DatasetId{}) return Subtree{};
  if (entry.directory != DirectoryId{}) {
    ASSIGN_OR_RETURN(DirectoryRecord record,
                     LoadRecord<DirectoryRecord>(txn, Key(entry.directory)));
    record.parent = DirectoryId{};
    record.segment = std::string(prefix);
    record.detached = true;
    RETURN_IF_ERROR(StoreRecord(txn, Key(entry.directory), record));
  }
  // The dataset's own entry stays: Remove takes it away, as it does with those below.
  RETURN_IF_ERROR(StoreEntry(txn, parent, last, {DirectoryId{}, entry.dataset}));
  return Subtree{entry.directory, entry.dataset};
}

absl::Status Names::Reattach(WriteTxn& txn, std::string_view prefix, DirectoryId directory,
                             IdSource& ids) {
  const std::vector<std::string> segments = Split(prefix);
  ASSIGN_OR_RETURN(const DirectoryId parent, MakeParent(txn, segments, ids));
  ASSIGN_OR_RETURN(NameRecord entry, Entry(txn, parent, segments.back()));
  COWSHED_CHECK(entry.directory == DirectoryId{}, "nothing is below the prefix");
  if (entry.dataset == DatasetId{}) {
    ASSIGN_OR_RETURN(DirectoryRecord above, LoadRecord<DirectoryRecord>(txn, Key(parent)));
    ++above.entries;
    RETURN_IF_ERROR(StoreRecord(txn, Key(parent), above));
  }
  entry.directory = directory;
  RETURN_IF_ERROR(StoreRecord(txn, NameKey(parent, segments.back()), entry));
  ASSIGN_OR_RETURN(DirectoryRecord record, LoadRecord<DirectoryRecord>(txn, Key(directory)));
  record.parent = parent;
  record.segment = segments.back();
  record.detached = false;
  return StoreRecord(txn, Key(directory), record);
}

absl::StatusOr<std::optional<DatasetId>> Names::TakeFirst(WriteTxn& txn, DirectoryId directory) {
  DirectoryId at = directory;
  while (true) {
    std::string segment;
    NameRecord entry;
    ASSIGN_OR_RETURN(const bool found, NextEntry(txn, {at, "", ""}, &segment, &entry));
    if (!found) {
      // Only the detached directory itself can be empty: StoreEntry prunes the others.
      RETURN_IF_ERROR(txn.Delete(Table::kDirectories, Key(directory)));
      return std::nullopt;
    }
    if (entry.dataset != DatasetId{}) return entry.dataset;
    at = entry.directory;
  }
}

}  // namespace cowshed::engine

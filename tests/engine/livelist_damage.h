// SPDX-License-Identifier: Apache-2.0
//
// Damage as a disk does it: bits of a value flip in the metadata file, behind LMDB's back.
//
// Threads     Externally synchronised.
// Ownership   Borrows the pool; it is closed and opened again.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "engine/names.h"
#include "engine/store/records.h"
#include "engine/tree/live_list.h"
#include "tests/support/temp_pool.h"
#include "tests/support/testing.h"

namespace cowshed::engine {

// Flips a bit in every copy of `value` in the file.
inline void FlipBits(const std::string& path, std::string_view value) {
  std::string bytes;
  {
    std::ifstream in(path, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(in), {});
  }
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  int flipped = 0;
  for (size_t at = bytes.find(value); at != std::string::npos; at = bytes.find(value, at + 1)) {
    file.seekp(static_cast<std::streamoff>(at + value.size() / 2));
    file.put(static_cast<char>(bytes[at + value.size() / 2] ^ 4));
    ++flipped;
  }
  EXPECT_GT(flipped, 0);
}

enum class ListPart { kRecord, kLog };

// Flips a bit in the record, or in the first chunk of the log, of the dataset's oldest sublist.
inline void DamageLivelist(TempPool& pool, const std::string& name, ListPart part) {
  const std::string path = pool.directory() + "/meta/data.mdb";
  pool.Damage([&](WriteTxn& txn) {
    const auto id = *ValueOf(Names::Find(txn, name));
    const auto record = ValueOf(LoadRecord<DatasetRecord>(txn, Key(id)));
    const std::vector<Sublist> sublists = ValueOf(LiveList::List(txn, record.livelist));
    ASSERT_FALSE(sublists.empty());
    MetaCursor cursor(txn, part == ListPart::kRecord ? Table::kSublists : Table::kLogs);
    cursor.Seek(part == ListPart::kRecord ? Key(record.livelist, sublists[0].start)
                                          : Key(sublists[0].record.log));
    ASSERT_TRUE(cursor.valid());
    FlipBits(path, cursor.value());
  });
}

}  // namespace cowshed::engine

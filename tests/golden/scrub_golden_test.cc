// SPDX-License-Identifier: Apache-2.0
//
// The bytes of the record of a scrub in format version 1.
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/escaping.h"
#include "engine/store/scrub_record.h"
#include "tests/support/testing.h"

namespace cowshed::engine {
namespace {

constexpr char kScrubRecordHex[] =
    "02"                 // phase
    "01"                 // paused
    "2201000000000000"   // start_txg
    "2202000000000000"   // cursor_id
    "2203000000000000"   // cursor_block
    "2204000000000000"   // rate_bytes_per_second
    "2205000000000000"   // read_bytes
    "2206000000000000"   // errors
    "2207000000000000"   // finish_time_ms
    "0100"               // places
    "3301000000000000"   // dataset
    "3302000000000000"   // snapshot
    "3303000000000000"   // first_block
    "3304000000000000"   // block_count
    "0100000000000000";  // node

ScrubRecord Sample() {
  ScrubRecord record;
  record.phase = ScrubPhase::kHeads;
  record.paused = true;
  record.start_txg = 0x122;
  record.cursor_id = 0x222;
  record.cursor_block = 0x322;
  record.rate_bytes_per_second = 0x422;
  record.read_bytes = 0x522;
  record.errors = 0x622;
  record.finish_time_ms = 0x722;
  record.damaged = {{DatasetId{0x133}, SnapshotId{0x233}, 0x333, 0x433, 1}};
  return record;
}

TEST(ScrubGoldenTest, Record) {
  const std::string bytes = Sample().Encode();
  EXPECT_EQ(absl::BytesToHexString(bytes), kScrubRecordHex);
  EXPECT_EQ(ValueOf(ScrubRecord::Decode(bytes)).Encode(), bytes);
}

TEST(ScrubGoldenTest, AnythingElseIsDamage) {
  const std::string bytes = Sample().Encode();
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_CODE(ScrubRecord::Decode(bytes.substr(0, length)), kDataLoss) << length;
  }
  EXPECT_CODE(ScrubRecord::Decode(bytes + "x"), kDataLoss);
}

}  // namespace
}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// The bytes of format version 1, written down. A change here is a change of the format: it needs a
// feature bit or a new version, and pools that exist must still open.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "engine/base/hash.h"
#include "engine/base/strings.h"
#include "engine/store/block_store.h"
#include "engine/store/codec.h"
#include "engine/store/file.h"
#include "engine/store/format.h"
#include "engine/store/free_log.h"
#include "engine/store/intent_log_batch.h"
#include "engine/store/region_bitmap.h"
#include "engine/store/region_records.h"
#include "tests/support/testing.h"

namespace cowshed::engine {
namespace {

template <typename T>
std::string_view BytesOf(const T& object) {
  return {reinterpret_cast<const char*>(&object), sizeof(object)};
}
std::string Hex(std::string_view bytes) { return absl::BytesToHexString(View(bytes)); }

constexpr BlockPtr kPointer = {.address = 0x0102030405060708,
                               .birth = 0x1112131415161718,
                               .checksum = 0x2122232425262728,
                               .sectors = 0x3132,
                               .kind = BlockKind::kNode,
                               .level = 3,
                               .flags = BlockPtr::kGang};
constexpr char kPointerHex[] =
    "0807060504030201"  // address
    "1817161514131211"  // birth
    "2827262524232221"  // checksum
    "3231"              // sectors
    "02"                // kind: node
    "00"                // codec: none
    "03"                // level
    "01"                // flags: gang
    "0000";             // reserved

TEST(FormatGoldenTest, BlockPointer) {
  EXPECT_EQ(Hex(BytesOf(kPointer)), kPointerHex);
  EXPECT_EQ(Hex(BytesOf(BlockPtr{})), std::string(64, '0'));
}

TEST(FormatGoldenTest, Node) {
  Node node;
  node.children[2] = kPointer;
  std::string expected(2 * kSectorBytes, '0');
  expected.replace(2 * 64, 64, kPointerHex);
  EXPECT_EQ(Hex(BytesOf(node)), expected);
}

TEST(FormatGoldenTest, Checksums) {
  EXPECT_EQ(Hash64(std::string_view()), 0x2d06800538d394c2u);  // XXH3-64, as published
  // A value of the metadata store: hash of the value seeded by that of its key, seeded by table.
  EXPECT_EQ(Hash64("value", Hash64("key", 1)), 0x176b1eb2978f993au);
}

TEST(FormatGoldenTest, GangSector) {
  GangSector gang{.birth = 9, .piece_count = 2};
  gang.pieces[0] = {.address = 0x100, .sectors = 3};
  gang.pieces[1] = {.address = 0x200, .sectors = 4};
  gang.checksum = 0x4142434445464748;
  std::string expected(2 * kSectorBytes, '0');
  const std::string head =
      "434f5747414e4731"  // COWGANG1
      "0900000000000000"  // birth
      "0200000000000000"  // pieces, reserved
      "0001000000000000"
      "0300000000000000"
      "0002000000000000"
      "0400000000000000";
  expected.replace(0, head.size(), head);
  expected.replace(2 * 4088, 16, "4847464544434241");
  EXPECT_EQ(Hex(BytesOf(gang)), expected);
}

TEST(FormatGoldenTest, SuperblocksOfANewPool) {
  const TempDir directory;
  const std::string path = directory.Path("blocks");
  const Superblock superblock = {
      .pool_uid = {.high = 0x0102030405060708, .low = 0x1112131415161718},
      .features = {.read_only_compatible = 2, .compatible = 4},
      .capacity_sectors = 20,
      .stamp_txg = 7,
      .base_stamp_txg = 5};
  ValueOf(BlockStore::Create(ValueOf(OpenFile(path, true, false)), superblock));
  std::string bytes(20 * kSectorBytes, '?');
  ASSERT_EQ(std::filesystem::file_size(path), bytes.size());
  ASSERT_OK(
      ValueOf(OpenFile(path, false, true))->Read(0, std::as_writable_bytes(std::span(bytes))));
  std::string expected(1024, '0');
  const std::string head =
      "434f575348454431"  // COWSHED1
      "01000000"
      "00100000"  // version, bytes of a sector
      "0807060504030201"
      "1817161514131211"  // pool uid
      "0000000000000000"
      "0200000000000000"
      "0400000000000000"  // features
      "1400000000000000"  // capacity
      "0700000000000000"
      "0500000000000000";  // stamp, base stamp
  expected.replace(0, head.size(), head);
  expected.replace(2 * 504, 16, "6c43b0a1c62c5421");
  EXPECT_EQ(Hex(std::string_view(bytes).substr(0, 512)), expected);
  EXPECT_EQ(Hex(std::string_view(bytes).substr(kSectorBytes, 512)), expected);
  for (const size_t rest : {size_t{512}, size_t{kSectorBytes + 512}}) {
    EXPECT_EQ(std::string_view(bytes).substr(rest, kSectorBytes - 512),
              std::string(kSectorBytes - 512, '\0'));
  }
}

TEST(FormatGoldenTest, TreeState) {
  const TreeState state = {.root = kPointer,
                           .size_bytes = 0x10,
                           .trim_begin_block = 0x20,
                           .trim_end_block = 0x30,
                           .trim_txg = 0x40,
                           .block_bytes = 16384,
                           .height = 5};
  EXPECT_EQ(Hex(BytesOf(state)), StrCat(kPointerHex,
                                        "1000000000000000"
                                        "2000000000000000"
                                        "3000000000000000"
                                        "4000000000000000"
                                        "00400000"
                                        "05"
                                        "000000"));
}

TEST(FormatGoldenTest, RegionBitmap) {
  EXPECT_EQ(kRegionSectors, 32576u);
  RegionBitmap bitmap;
  bitmap.Set(0, 16);
  bitmap.Set(33, 34);
  bitmap.Set(32575, 32576);
  std::string expected(size_t{2} * 4072, '0');
  expected.replace(0, 10, "ffff000002");
  expected.replace(2 * 4071, 2, "80");
  EXPECT_EQ(Hex(bitmap.bytes()), expected);
}

TEST(FormatGoldenTest, RegionSumsAndKeys) {
  const RegionSumRecord sum = {.flushed_txg = 0x0102, .free_sectors = 0x0304};
  EXPECT_EQ(Hex(BytesOf(sum)),
            "0201000000000000"
            "04030000"
            "00000000");
  EXPECT_EQ(kRegionsPerChunk, 254u);
  EXPECT_EQ(Hex(RegionKey(0x01020304)), "01020304");
  EXPECT_EQ(Hex(RegionSumKey(0x01020304)), "01020304");
  EXPECT_EQ(Hex(FreeLogKey(0x0102030405060708, 0x090a0b0c)),
            "0102030405060708"
            "090a0b0c");
}

TEST(FormatGoldenTest, IntentLogBatch) {
  IntentBatchBuilder builder;
  builder.Begin(/*log_id=*/0x0102030405060708, /*sequence=*/0x11);
  const std::string data = "abc";
  IntentEntry entry = {
      .dataset = 0x20, .offset_bytes = 0x30, .length_bytes = 3, .layer = 0x50, .cut_txg = 0x60};
  builder.Add(entry, std::as_bytes(std::span(data)));
  entry.offset_bytes = 0x33;  // goes on where the one before ends: one entry
  builder.Add(entry, std::as_bytes(std::span(data)));
  builder.Add({.dataset = 0x21,
               .offset_bytes = 0x1000,
               .length_bytes = 0x2000,
               .layer = 0x51,
               .cut_txg = 0x61,
               .flags = IntentEntry::kZeros},
              {});
  const auto batch = builder.Finish(/*offset_sectors=*/0x70);
  ASSERT_EQ(batch.size(), kSectorBytes);
  const std::string expected =
      "434f574c4f473100"  // COWLOG1
      "0807060504030201"  // log id
      "1100000000000000"  // sequence
      "7000000000000000"  // offset in the ring
      "96000000"          // bytes: 48 + 48 + 6 + 48
      "02000000"          // entries
      "55b2f9fea78e105f"  // checksum
      "2000000000000000"  // dataset
      "3000000000000000"  // offset
      "0600000000000000"  // length
      "5000000000000000"  // layer
      "6000000000000000"  // cut_txg
      "00000000"          // flags
      "00000000"
      "616263616263"  // the bytes
      "2100000000000000"
      "0010000000000000"
      "0020000000000000"
      "5100000000000000"
      "6100000000000000"
      "01000000"  // zeros: no bytes follow
      "00000000";
  const std::string found = Hex({reinterpret_cast<const char*>(batch.data()), batch.size()});
  EXPECT_EQ(found.substr(0, expected.size()), expected);
  EXPECT_EQ(found.substr(expected.size()), std::string(found.size() - expected.size(), '0'));
}

TEST(FormatGoldenTest, FreeLogChunk) {
  EXPECT_EQ(kFreesPerChunk, 509u);
  const TempDir directory;
  const auto meta =
      ValueOf(MetaStore::Open(directory.Path("meta"), true, false, {.map_bytes = 1 << 24}));
  const auto txn = ValueOf(meta->BeginWrite());
  FreeLog log;
  log.Add({.address = 0x010203040506, .sectors = 0x0708});
  log.Add({.address = 100, .sectors = 2});
  log.Add({.address = 102, .sectors = 3});  // joins the one before
  for (uint64_t i = 0; i < kFreesPerChunk; ++i) {
    log.Add({.address = 1000 + 2 * i, .sectors = 1});
  }
  ASSERT_OK(log.Write(*txn, 6));
  const std::string first(*ValueOf(txn->Get(Table::kFreeLog, FreeLogKey(6, 0))));
  EXPECT_EQ(first.size(), 4072u);
  EXPECT_EQ(Hex(first.substr(0, 16)),
            "0500640000000000"
            "0100e80300000000");
  EXPECT_EQ(Hex(*ValueOf(txn->Get(Table::kFreeLog, FreeLogKey(6, 1)))),
            "0100e00700000000"
            "0807060504030201");
}

}  // namespace
}  // namespace cowshed::engine

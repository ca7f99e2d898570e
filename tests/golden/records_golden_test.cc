// SPDX-License-Identifier: Apache-2.0
//
// The bytes of every record of the metadata store in format version 1, written down field by field.
// A change here is a change of the format: it needs a feature bit or a new version, and pools that
// exist must still open.
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "absl/strings/escaping.h"
#include "engine/base/strings.h"
#include "engine/store/records.h"
#include "tests/support/testing.h"

namespace cowshed::engine {
namespace {

constexpr TreeState kTree = {.root = {.address = 0x0102030405060708,
                                      .birth = 0x1112131415161718,
                                      .checksum = 0x2122232425262728,
                                      .sectors = 1,
                                      .kind = BlockKind::kNode,
                                      .level = 2},
                             .size_bytes = 0x3132333435363738,
                             .trim_begin_block = 0x41,
                             .trim_end_block = 0x42,
                             .trim_txg = 0x43,
                             .block_bytes = 16384,
                             .height = 2};
// clang-format off
#define COWSHED_TREE_HEX                                                \
    "0807060504030201" "1817161514131211" "2827262524232221" /* root */ \
    "0100" "02" "00" "02" "00" "0000"                                   \
    "3837363534333231"         /* size_bytes */                         \
    "4100000000000000"         /* trim_begin_block */                   \
    "4200000000000000"         /* trim_end_block */                     \
    "4300000000000000"         /* trim_txg */                           \
    "00400000" "02" "000000"   /* block_bytes, height, zero */

PoolRecord SamplePoolRecord() {
  PoolRecord record;
  record.version = 0x133;
  record.uid = {0x1122334455667788, 0x99aabbccddeeff00};
  record.features = {1, 2, 4};
  record.txg = 0x222;
  record.blocks_stamp_txg = 0x322;
  record.next_id = 0x422;
  record.capacity_sectors = 0x522;
  record.create_time_ms = 0x622;
  record.datasets = 0x722;
  record.clones = 0x822;
  record.snapshots = 0x922;
  record.deferred_snapshots = 0xa22;
  record.holds = 0xb22;
  record.livelists = 0xc22;
  record.jobs = 0xd22;
  record.requests = 0xe22;
  record.freeing_sectors = 0xf22;
  record.stalled_sectors = 0xf44;
  record.waiting_items = 0xf55;
  record.waiting_sectors = 0xf66;
  record.reclaim_paused = true;
  record.reclaim_rate_bytes_per_second = 0xf77;
  record.reclaim_txg_budget_us = 0xf88;
  record.livelist_entries = 0x1022;
  record.livelist_sublists = 0x1122;
  record.livelist_sectors = 0x1222;
  record.freed_sectors_total = 0x1322;
  record.destroyed_by_kind[0] = 0x1411;
  record.destroyed_by_kind[1] = 0x1511;
  record.destroyed_by_kind[2] = 0x1611;
  record.destroyed_by_kind[3] = 0x1711;
  record.destroyed_by_method[0] = 0x1811;
  record.destroyed_by_method[1] = 0x1911;
  record.destroyed_by_method[2] = 0x1a11;
  return record;
}

constexpr char kPoolRecordHex[] =
    "33010000"  // version
    "887766554433221100ffeeddccbbaa99"  // uid: high, low
    "010000000000000002000000000000000400000000000000"  // features: one mask after another
    "2202000000000000"  // txg
    "2203000000000000"  // blocks_stamp_txg
    "2204000000000000"  // next_id
    "2205000000000000"  // capacity_sectors
    "2206000000000000"  // create_time_ms
    "2207000000000000"  // datasets
    "2208000000000000"  // clones
    "2209000000000000"  // snapshots
    "220a000000000000"  // deferred_snapshots
    "220b000000000000"  // holds
    "220c000000000000"  // livelists
    "220d000000000000"  // jobs
    "220e000000000000"  // requests
    "220f000000000000"  // freeing_sectors
    "440f000000000000"  // stalled_sectors
    "550f000000000000"  // waiting_items
    "660f000000000000"  // waiting_sectors
    "01"  // reclaim_paused
    "770f000000000000"  // reclaim_rate_bytes_per_second
    "880f000000000000"  // reclaim_txg_budget_us
    "2210000000000000"  // livelist_entries
    "2211000000000000"  // livelist_sublists
    "2212000000000000"  // livelist_sectors
    "2213000000000000"  // freed_sectors_total
    "1114000000000000111500000000000011160000000000001117000000000000"  // destroyed_by_kind: 4 x 8
    "11180000000000001119000000000000111a000000000000";  // destroyed_by_method: 3 x 8

NameRecord SampleNameRecord() {
  NameRecord record;
  record.directory = DirectoryId{0x122};
  record.dataset = DatasetId{0x222};
  return record;
}

constexpr char kNameRecordHex[] =
    "2201000000000000"  // directory
    "2202000000000000";  // dataset

DirectoryRecord SampleDirectoryRecord() {
  DirectoryRecord record;
  record.parent = DirectoryId{0x122};
  record.segment = "segmen";
  record.entries = 0x222;
  record.detached = true;
  return record;
}

constexpr char kDirectoryRecordHex[] =
    "2201000000000000"  // parent
    "06007365676d656e"  // segment: length, bytes
    "2202000000000000"  // entries
    "01";  // detached

DatasetRecord SampleDatasetRecord() {
  DatasetRecord record;
  record.directory = DirectoryId{0x122};
  record.segment = "segmen";
  record.create_txg = 0x222;
  record.create_time_ms = 0x322;
  record.revision = 0x422;
  record.doomed = true;
  record.kept = true;
  record.tree = kTree;
  record.origin = SnapshotId{0x522};
  record.origin_txg = 0x622;
  record.newest_snapshot_txg = 0x722;
  record.livelist = LivelistId{0x822};
  record.list_state = ListState::kRebuilding;
  record.deadlist = DeadlistId{0x922};
  record.used_sectors = 0xa22;
  record.referenced_sectors = 0xb22;
  record.written_sectors = 0xc22;
  record.data_blocks = 0xd22;
  record.snapshots = 0xe22;
  record.deferred_snapshots = 0xf22;
  record.all_snapshots = 0x1022;
  record.clones = 0x1122;
  record.dependents = 0x1222;
  record.quota_bytes = 0x1344;
  record.expire_time_ms = 0x1422;
  record.expiry_blocked = true;
  record.operation = OperationId{0x1522};
  record.labels = {{"key", "value"}, {"l", ""}};
  return record;
}

constexpr char kDatasetRecordHex[] =
    "2201000000000000"  // directory
    "06007365676d656e"  // segment: length, bytes
    "2202000000000000"  // create_txg
    "2203000000000000"  // create_time_ms
    "2204000000000000"  // revision
    "01"  // doomed
    "01"  // kept
    COWSHED_TREE_HEX  // tree
    "2205000000000000"  // origin
    "2206000000000000"  // origin_txg
    "2207000000000000"  // newest_snapshot_txg
    "2208000000000000"  // livelist
    "02"  // list_state
    "2209000000000000"  // deadlist
    "220a000000000000"  // used_sectors
    "220b000000000000"  // referenced_sectors
    "220c000000000000"  // written_sectors
    "220d000000000000"  // data_blocks
    "220e000000000000"  // snapshots
    "220f000000000000"  // deferred_snapshots
    "2210000000000000"  // all_snapshots
    "2211000000000000"  // clones
    "2212000000000000"  // dependents
    "014413000000000000"  // quota_bytes: present, value
    "2214000000000000"  // expire_time_ms
    "01"  // expiry_blocked
    "2215000000000000"  // operation
    "020003006b6579050076616c756501006c0000";  // labels: count, then key and value each

SnapshotRecord SampleSnapshotRecord() {
  SnapshotRecord record;
  record.dataset = DatasetId{0x122};
  record.name = "name";
  record.txg = 0x222;
  record.create_time_ms = 0x322;
  record.deferred = true;
  record.hidden = true;
  record.dying = true;
  record.tree = kTree;
  record.deadlist = DeadlistId{0x422};
  record.referenced_sectors = 0x522;
  record.written_sectors = 0x622;
  record.data_blocks = 0x722;
  record.clones = 0x822;
  record.all_clones = 0x922;
  record.holds = 0xa22;
  record.operation = OperationId{0xb22};
  record.labels = {{"key", "value"}, {"l", ""}};
  return record;
}

constexpr char kSnapshotRecordHex[] =
    "2201000000000000"  // dataset
    "04006e616d65"  // name: length, bytes
    "2202000000000000"  // txg
    "2203000000000000"  // create_time_ms
    "01"  // deferred
    "01"  // hidden
    "01"  // dying
    COWSHED_TREE_HEX  // tree
    "2204000000000000"  // deadlist
    "2205000000000000"  // referenced_sectors
    "2206000000000000"  // written_sectors
    "2207000000000000"  // data_blocks
    "2208000000000000"  // clones
    "2209000000000000"  // all_clones
    "220a000000000000"  // holds
    "220b000000000000"  // operation
    "020003006b6579050076616c756501006c0000";  // labels: count, then key and value each

HoldRecord SampleHoldRecord() {
  HoldRecord record;
  record.owner = "owner";
  record.create_time_ms = 0x122;
  record.expire_time_ms = 0x222;
  return record;
}

constexpr char kHoldRecordHex[] =
    "05006f776e6572"  // owner: length, bytes
    "2201000000000000"  // create_time_ms
    "2202000000000000";  // expire_time_ms

JobRecord SampleJobRecord() {
  JobRecord record;
  record.kind = JobKind::kSnapshot;
  record.phase = JobPhase::kForget;
  record.destroy_kind = 1;
  record.method = 2;
  record.stalled = true;
  record.operation = OperationId{0x322};
  record.create_time_ms = 0x422;
  record.dataset = DatasetId{0x522};
  record.snapshot = SnapshotId{0x622};
  record.directory = DirectoryId{0x722};
  record.livelist = LivelistId{0x822};
  record.deadlist = DeadlistId{0x922};
  record.tree = kTree;
  record.min_birth = 0xa22;
  record.origin_txg = 0xb22;
  record.cursor_start = 0xc22;
  record.cursor = 0xd22;
  record.cursor_chunk = 0xe33;
  record.cursor_entry = 0xf33;
  record.left_sectors = 0x1022;
  record.sized = true;
  record.left_entries = 0x1044;
  record.error = "error";
  return record;
}

constexpr char kJobRecordHex[] =
    "02"  // kind: of a snapshot
    "04"  // phase: forget
    "01"  // destroy_kind
    "02"  // method
    "01"  // stalled
    "2203000000000000"  // operation
    "2204000000000000"  // create_time_ms
    "2205000000000000"  // dataset
    "2206000000000000"  // snapshot
    "2207000000000000"  // directory
    "2208000000000000"  // livelist
    "2209000000000000"  // deadlist
    COWSHED_TREE_HEX  // tree
    "220a000000000000"  // min_birth
    "220b000000000000"  // origin_txg
    "220c000000000000"  // cursor_start
    "220d000000000000"  // cursor
    "330e0000"  // cursor_chunk
    "330f0000"  // cursor_entry
    "2210000000000000"  // left_sectors
    "01"  // sized
    "4410000000000000"  // left_entries
    "05006572726f72";  // error: length, bytes

RebuildRecord SampleRebuildRecord() {
  RebuildRecord record;
  record.damaged = true;
  record.snapshot = SnapshotId{0x122};
  record.txg = 0x222;
  record.shadow = LivelistId{0x322};
  record.cursor_txg = 0x422;
  record.cursor_block = 0x522;
  record.sectors = 0x622;
  return record;
}

constexpr char kRebuildRecordHex[] =
    "01"  // damaged
    "2201000000000000"  // snapshot
    "2202000000000000"  // txg
    "2203000000000000"  // shadow
    "2204000000000000"  // cursor_txg
    "2205000000000000"  // cursor_block
    "2206000000000000";  // sectors

OperationRecord SampleOperationRecord() {
  OperationRecord record;
  record.kind = 1;
  record.state = 2;
  record.destroy_kind = 3;
  record.target = "target";
  record.target_count = 0x422;
  record.jobs_left = 0x522;
  record.planned_sectors = 0x644;
  record.done_sectors = 0x622;
  record.total_sectors = 0x722;
  record.done_entries = 0x822;
  record.total_entries = 0x922;
  record.error = "error";
  record.create_time_ms = 0xa22;
  record.start_time_ms = 0xb22;
  record.update_time_ms = 0xc22;
  record.finish_time_ms = 0xd22;
  record.wait_until_ms = 0xd44;
  record.directory = DirectoryId{0xd55};
  record.txg = 0xe22;
  return record;
}

constexpr char kOperationRecordHex[] =
    "01"  // kind
    "02"  // state
    "03"  // destroy_kind
    "0600746172676574"  // target: length, bytes
    "2204000000000000"  // target_count
    "2205000000000000"  // jobs_left
    "4406000000000000"  // planned_sectors
    "2206000000000000"  // done_sectors
    "2207000000000000"  // total_sectors
    "2208000000000000"  // done_entries
    "2209000000000000"  // total_entries
    "05006572726f72"  // error: length, bytes
    "220a000000000000"  // create_time_ms
    "220b000000000000"  // start_time_ms
    "220c000000000000"  // update_time_ms
    "220d000000000000"  // finish_time_ms
    "440d000000000000"  // wait_until_ms
    "550d000000000000"  // directory
    "220e000000000000";  // txg

// clang-format on

// Encoding gives exactly these bytes, decoding them gives the record back, and anything shorter or
// longer is refused.
template <typename Record>
void ExpectGolden(const Record& record, std::string_view hex) {
  const std::string bytes = absl::HexStringToBytes(View(hex));
  EXPECT_EQ(absl::BytesToHexString(View(record.Encode())), hex);
  EXPECT_EQ(ValueOf(Record::Decode(bytes)).Encode(), bytes);
  EXPECT_CODE(Record::Decode(std::string_view(bytes).substr(1)), kDataLoss);
  EXPECT_CODE(Record::Decode(bytes + '\0'), kDataLoss);
  EXPECT_CODE(Record::Decode(""), kDataLoss);
}

TEST(RecordsGoldenTest, Pool) { ExpectGolden(SamplePoolRecord(), kPoolRecordHex); }
TEST(RecordsGoldenTest, Name) { ExpectGolden(SampleNameRecord(), kNameRecordHex); }
TEST(RecordsGoldenTest, Directory) { ExpectGolden(SampleDirectoryRecord(), kDirectoryRecordHex); }
TEST(RecordsGoldenTest, Dataset) { ExpectGolden(SampleDatasetRecord(), kDatasetRecordHex); }
TEST(RecordsGoldenTest, Snapshot) { ExpectGolden(SampleSnapshotRecord(), kSnapshotRecordHex); }
TEST(RecordsGoldenTest, Hold) { ExpectGolden(SampleHoldRecord(), kHoldRecordHex); }
TEST(RecordsGoldenTest, Job) { ExpectGolden(SampleJobRecord(), kJobRecordHex); }
TEST(RecordsGoldenTest, Rebuild) { ExpectGolden(SampleRebuildRecord(), kRebuildRecordHex); }
TEST(RecordsGoldenTest, Operation) { ExpectGolden(SampleOperationRecord(), kOperationRecordHex); }

// With the feature bit of the intent log, and only then, the record goes on with the log's.
TEST(RecordsGoldenTest, PoolWithAnIntentLog) {
  PoolRecord record = SamplePoolRecord();
  record.features.incompatible = 3;
  record.intent_log = {.id = 0x1c22,
                       .address = 0x1d22,
                       .sectors = 0x1e22,
                       .committed_layer = 0x1f22,
                       .first_offset_sectors = 0x2022,
                       .first_sequence = 0x2122};
  std::string hex = kPoolRecordHex;
  hex.replace(2 * 20, 2, "03");
  ExpectGolden(record, hex +
                           "221c000000000000"    // id
                           "221d000000000000"    // address
                           "221e000000000000"    // sectors
                           "221f000000000000"    // committed_layer
                           "2220000000000000"    // first_offset_sectors
                           "2221000000000000");  // first_sequence
}

TEST(RecordsGoldenTest, AbsentOptionalAndNoLabels) {
  DatasetRecord record = SampleDatasetRecord();
  record.quota_bytes.reset();
  record.labels.clear();
  const DatasetRecord decoded = ValueOf(DatasetRecord::Decode(record.Encode()));
  EXPECT_FALSE(decoded.quota_bytes.has_value());
  EXPECT_TRUE(decoded.labels.empty());
}

// A bool must never hold a damaged byte.
TEST(RecordsGoldenTest, AnyByteMakesABool) {
  std::string bytes = HoldRecord().Encode();
  EXPECT_OK(HoldRecord::Decode(bytes).status());
  bytes = NameRecord().Encode();
  EXPECT_EQ(bytes, std::string(16, '\0'));
  DirectoryRecord directory;
  bytes = directory.Encode();
  bytes.back() = '\x40';
  EXPECT_EQ(ValueOf(DirectoryRecord::Decode(bytes)).Encode().back(), '\1');
}

TEST(RecordsGoldenTest, FixedIds) {
  EXPECT_EQ(kRootDirectory, DirectoryId{1});
  EXPECT_EQ(kFirstId, 16u);
  EXPECT_EQ(PoolRecord::kKey, "pool");
}

}  // namespace
}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
//
// The model of a disk that the power cuts are built with, and that nothing escapes the recorder.
#include "tests/power_cut/disk_replay.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>
#include <string>

#include "tests/power_cut/crash_workload.h"
#include "tests/support/testing.h"

namespace cowshed::engine {
namespace {

using Kind = DiskOp::Kind;

// A log by hand: path 1 is a file "f", whose name is durable unless said otherwise.
class DiskReplayTest : public ::testing::Test {
 protected:
  DiskReplayTest() {
    log_.paths = {"", "f", "g"};
    log_.is_directory = {true, false, false};
    Add(Kind::kCreate, 1);
    Add(Kind::kSync, 0);
    Add(Kind::kBegin, 0);
  }
  DiskOp& Add(Kind kind, uint32_t path, uint64_t offset = 0, const std::string& data = "") {
    DiskOp op;
    op.kind = kind;
    op.path = path;
    op.offset = offset;
    op.data = data;
    log_.ops.push_back(std::move(op));
    return log_.ops.back();
  }
  void Write(uint64_t offset, char byte, uint64_t bytes, bool synchronous = false) {
    Add(Kind::kWrite, 1, offset, std::string(bytes, byte)).synchronous = synchronous;
  }
  void End() { Add(Kind::kBegin, 0); }
  // The file after the whole log; nullopt if it is not there.
  std::optional<std::string> Image(uint64_t choice, const std::string& name = "f") {
    DiskReplay replay(log_);
    replay.AdvanceTo(log_.ops.size());
    TempDir dir;
    replay.WriteImage(dir.path().string(), choice);
    if (!std::filesystem::exists(dir.path() / name)) return std::nullopt;
    std::ostringstream text;
    text << std::ifstream(dir.path() / name, std::ios::binary).rdbuf();
    return text.str();
  }
  // One letter a sector, '.' for zeros.
  static std::string Sectors(const std::string& bytes) {
    std::string text;
    for (uint64_t at = 0; at < bytes.size(); at += kDiskSectorBytes) {
      const std::string sector = bytes.substr(at, kDiskSectorBytes);
      EXPECT_EQ(sector, std::string(sector.size(), sector[0])) << "a sector is whole";
      text += sector[0] == '\0' ? '.' : sector[0];
    }
    return text;
  }
  std::set<std::string> Seen(uint64_t choices) {
    std::set<std::string> seen;
    for (uint64_t choice = 0; choice < choices; ++choice) seen.insert(Sectors(*Image(choice)));
    return seen;
  }

  DiskLog log_;
};

TEST_F(DiskReplayTest, UnsyncedWritesMayBeLostKeptAndTorn) {
  Write(0, 'a', 1024);
  Add(Kind::kSync, 1);
  Write(0, 'b', 1024);
  End();
  EXPECT_EQ(Sectors(*Image(0)), "aa");
  EXPECT_EQ(Sectors(*Image(1)), "bb");
  EXPECT_EQ(Seen(200), (std::set<std::string>{"aa", "ab", "ba", "bb"}));
}

TEST_F(DiskReplayTest, LaterVersionNeverGivesWayToAnEarlierOne) {
  Write(0, 'a', 512);
  Write(0, 'b', 512);
  Add(Kind::kSync, 1);
  Write(0, 'c', 512);
  Write(0, 'd', 512);
  End();
  EXPECT_EQ(Seen(200), (std::set<std::string>{"b", "c", "d"}));
}

TEST_F(DiskReplayTest, SyncIsNotDoneWhileItIsTheLastOp) {
  Write(0, 'a', 512);
  Add(Kind::kSync, 1);
  EXPECT_EQ(*Image(0), "");
  End();
  EXPECT_EQ(Sectors(*Image(0)), "a");
}

TEST_F(DiskReplayTest, SynchronousWriteIsDurableAlone) {
  Write(0, 'a', 1024);
  Write(512, 'b', 512, /*synchronous=*/true);
  EXPECT_EQ(*Image(0), "") << "it is on its way";
  End();
  EXPECT_EQ(Seen(200), (std::set<std::string>{".b", "ab"}));
}

TEST_F(DiskReplayTest, LengthsAndHolesMayHaveHappened) {
  Write(0, 'a', 1024);
  Add(Kind::kSync, 1);
  Add(Kind::kPunch, 1).bytes = 512;
  Add(Kind::kLength, 1).bytes = 2048;
  End();
  EXPECT_EQ(Seen(200), (std::set<std::string>{"aa", ".a", "aa..", ".a.."}));
}

TEST_F(DiskReplayTest, NamesAreDurableOnceTheirDirectoryIs) {
  Write(0, 'a', 512);
  Add(Kind::kSync, 1);
  Add(Kind::kRename, 1).bytes = 2;
  End();
  EXPECT_EQ(Sectors(*Image(0)), "a");
  EXPECT_FALSE(Image(0, "g").has_value());
  EXPECT_EQ(Sectors(*Image(1, "g")), "a");
  EXPECT_FALSE(Image(1).has_value());
  Add(Kind::kSync, 0);
  End();
  EXPECT_EQ(Sectors(*Image(0, "g")), "a");
  EXPECT_FALSE(Image(0).has_value());
}

// Both files of a pool, each by all the calls that it is written with: in the end the replay holds
// what the files hold.
TEST(DiskRecorderTest, NothingEscapes) {
  TempDir dir;
  const std::string root = std::filesystem::canonical(dir.path()).string();
  DiskRecorder recorder(root);
  {
    TempPool pool([&](PoolOptions* options) {
      SetCrashOptions(options);
      options->directory = root + "/pool";
    });
    ASSERT_OK(pool.Create("d", 2 << 20, 16384).status());
    ASSERT_OK(pool.Write("d", 0, std::string(3 << 19, 'x')));
    ASSERT_OK(pool.Flush("d").status());
    ASSERT_OK(pool.Destroy("d").status());
    ASSERT_OK(pool->DrainBackground());
  }
  const DiskLog log = recorder.Take();
  std::set<std::string> seen;
  for (const DiskOp& op : log.ops) {
    if (op.is_mark()) continue;
    seen.insert(log.paths[op.path] + (op.kind == Kind::kWrite
                                          ? op.synchronous ? " O_DSYNC" : " write"
                                      : op.kind == Kind::kSync ? " sync"
                                                               : ""));
  }
  for (const char* const wanted :
       {"pool/blocks write", "pool/blocks sync", "pool/blocks", "pool/meta/data.mdb write",
        "pool/meta/data.mdb sync", "pool/meta/data.mdb O_DSYNC", "pool sync", "pool/meta sync"}) {
    EXPECT_TRUE(seen.contains(wanted)) << wanted;
  }
  DiskReplay replay(log);
  replay.AdvanceTo(log.ops.size());
  TempDir image;
  replay.WriteImage(image.path().string(), 1);
  for (const char* const file : {"pool/blocks", "pool/meta/data.mdb"}) {
    std::ostringstream expected, found;
    expected << std::ifstream(root + "/" + file, std::ios::binary).rdbuf();
    found << std::ifstream(image.path() / file, std::ios::binary).rdbuf();
    EXPECT_TRUE(expected.str() == found.str()) << file;
  }
}

}  // namespace
}  // namespace cowshed::engine

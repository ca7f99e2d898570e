// SPDX-License-Identifier: Apache-2.0
#include "engine/store/file.h"

#include <gtest/gtest.h>
#include <limits.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/base/failpoints.h"
#include "engine/base/strings.h"
#include "tests/support/fault_file.h"
#include "tests/support/testing.h"

namespace cowshed::engine {
namespace {

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

class FileTest : public ::testing::Test {
 protected:
  void TearDown() override { Failpoints::DisarmAll(); }

  std::unique_ptr<File> Open() { return ValueOf(OpenFile(path_, true, false)); }
  static std::string ReadText(const File& file, uint64_t offset, size_t bytes) {
    std::string text(bytes, '?');
    EXPECT_OK(file.Read(offset, std::as_writable_bytes(std::span(text))));
    return text;
  }

  TempDir directory_;
  std::string path_ = directory_.Path("blocks");
};

TEST_F(FileTest, ReadsWhatWasWrittenAndZerosBeyond) {
  const auto file = Open();
  ASSERT_OK(file->Write(3, Bytes("abc")));
  EXPECT_EQ(ReadText(*file, 2, 6), std::string("\0abc\0\0", 6));
  EXPECT_EQ(ReadText(*file, 1000, 2), std::string(2, '\0'));
  EXPECT_EQ(ValueOf(file->SizeBytes()), 6u);
  ASSERT_OK(file->Sync());
  ASSERT_OK(file->Truncate(4));
  EXPECT_EQ(ReadText(*file, 3, 3), std::string("a\0\0", 3));
  EXPECT_FALSE(file->is_device());
  EXPECT_GT(ValueOf(file->HostFreeBytes()), 0u);
}

TEST_F(FileTest, WritesMorePiecesThanOneCallTakes) {
  const auto file = Open();
  std::vector<std::string> texts;
  std::vector<iovec> pieces;
  std::string expected;
  for (size_t i = 0; i < 3 * IOV_MAX + 7; ++i) {
    texts.emplace_back(i % 5, static_cast<char>('a' + i % 26));  // some of them empty
    expected += texts.back();
  }
  pieces.reserve(texts.size());
  for (std::string& text : texts) {
    pieces.push_back({text.data(), text.size()});
  }
  ASSERT_OK(file->WriteV(10, pieces));
  EXPECT_EQ(ReadText(*file, 10, expected.size()), expected);
}

TEST_F(FileTest, ShortWriteIsContinuedUntilItsError) {
  const auto file = Open();
  rlimit limit{};
  getrlimit(RLIMIT_FSIZE, &limit);
  const rlimit small{.rlim_cur = 5000, .rlim_max = limit.rlim_max};
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  const absl::Status status = file->Write(0, Bytes(std::string(8192, 'x')));
  setrlimit(RLIMIT_FSIZE, &limit);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_FALSE(status.ok());
  EXPECT_NE(StdView(status.message()).find("at byte 5000"), std::string_view::npos) << status;
  EXPECT_EQ(ValueOf(file->SizeBytes()), 5000u);
}

TEST_F(FileTest, PunchGivesTheSpaceBack) {
  const auto file = Open();
  ASSERT_OK(file->Write(0, Bytes(std::string(1 << 20, 'x'))));
  ASSERT_OK(file->Sync());
  struct stat before {};
  stat(path_.c_str(), &before);
  const absl::Status status = file->Punch(4096, (1 << 20) - 8192);
  if (absl::IsUnimplemented(status)) {
    GTEST_SKIP() << status;
  }
  ASSERT_OK(status);
  struct stat after {};
  stat(path_.c_str(), &after);
  EXPECT_LT(after.st_blocks, before.st_blocks);
  EXPECT_EQ(ReadText(*file, 4095, 2), std::string("x\0", 2));
  EXPECT_EQ(ValueOf(file->SizeBytes()), uint64_t{1} << 20);
}

TEST_F(FileTest, RefusesWhatIsNoFile) {
  EXPECT_CODE(OpenFile(path_, false, false), kNotFound);
  EXPECT_CODE(OpenFile(directory_.Path("."), false, true), kFailedPrecondition);
  Open();
  const auto file = ValueOf(OpenFile(path_, false, true));
  EXPECT_FALSE(file->Write(0, Bytes("x")).ok());
}

TEST_F(FileTest, FailpointsReachEveryCall) {
  const auto file = Open();
  ASSERT_OK(Failpoints::Arm("file.read=eio;file.write=enospc;file.sync=eio"));
  std::byte byte{};
  EXPECT_CODE(file->Read(0, std::span(&byte, 1)), kUnavailable);
  EXPECT_CODE(file->Write(0, Bytes("x")), kResourceExhausted);
  EXPECT_CODE(file->Sync(), kUnavailable);
  EXPECT_EQ(ValueOf(file->SizeBytes()), 0u);
}

TEST_F(FileTest, LockIsExclusiveAndNamesItsHolder) {
  const std::string lock_path = directory_.Path("lock");
  auto lock = ValueOf(FileLock::Acquire(lock_path));
  const absl::Status second = FileLock::Acquire(lock_path).status();
  EXPECT_CODE(second, kFailedPrecondition);
  EXPECT_NE(StdView(second.message()).find(StrCat("process ", getpid())), std::string_view::npos)
      << second;
  lock.reset();
  EXPECT_OK(StatusOf(FileLock::Acquire(lock_path)));
}

TEST_F(FileTest, FaultFileFailsAndTears) {
  const auto plan = std::make_shared<FaultPlan>();
  FaultFile file(Open(), plan);
  plan->CountOnly(FileOp::kWrite);
  plan->Fail({.at = 2, .torn_bytes = 2});
  EXPECT_OK(file.Write(0, Bytes("aaaa")));
  EXPECT_CODE(file.Write(0, Bytes("bbbb")), kUnavailable);
  EXPECT_EQ(ReadText(file, 0, 4), "bbaa");
  EXPECT_OK(file.Write(0, Bytes("cccc")));
  plan->Fail({.at = 1, .for_ever = true, .status = absl::ResourceExhaustedError("full")});
  EXPECT_CODE(file.Write(0, Bytes("dddd")), kResourceExhausted);
  EXPECT_CODE(file.Write(0, Bytes("dddd")), kResourceExhausted);
  EXPECT_OK(file.Sync());
  plan->Heal();
  EXPECT_OK(file.Write(4, Bytes("e")));
  EXPECT_EQ(ReadText(file, 0, 5), "cccce");
  const std::vector<FileCall> calls = plan->calls();
  ASSERT_EQ(calls.size(), 9u);
  EXPECT_EQ(calls[6].op, FileOp::kSync);
  EXPECT_EQ(calls[1].bytes, 4u);
  EXPECT_FALSE(calls[1].status.ok());
}

// More pieces than one call takes, and an end of the file within one of them.
TEST_F(FileTest, ReadVFillsPiecesAndZerosPastTheEnd) {
  const auto file = ValueOf(OpenFile(directory_.Path("f"), true, false));
  std::string data;
  for (int i = 0; i < 3000; ++i) data += static_cast<char>('a' + i % 23);
  ASSERT_OK(file->Write(100, std::as_bytes(std::span(data))));
  for (const ReadMode mode : {ReadMode::kWait, ReadMode::kScan}) {
    std::string found(4000, '?');
    std::vector<iovec> pieces;
    for (size_t at = 0; at < found.size(); at += 2) pieces.push_back({&found[at], 2});
    ASSERT_OK(file->ReadV(101, pieces, mode));
    EXPECT_EQ(found, data.substr(1) + std::string(4000 - data.size() + 1, '\0'));
  }
}

// What is in memory is read, or said not to be, and never half read and called whole. (Not every
// file system can tell.)
TEST_F(FileTest, CachedReadIsWholeOrNone) {
  const auto file = ValueOf(OpenFile(directory_.Path("f"), true, false));
  const std::string data(100000, 'x');
  ASSERT_OK(file->Write(0, std::as_bytes(std::span(data))));
  std::string found(data.size(), '?');
  const iovec piece{found.data(), found.size()};
  const absl::Status status = file->ReadV(0, std::span(&piece, 1), ReadMode::kCached);
  if (status.ok()) {
    EXPECT_EQ(found, data);
  } else {
    EXPECT_TRUE(absl::IsCancelled(status)) << status;
  }
  // Past the end nothing is in memory.
  EXPECT_TRUE(absl::IsCancelled(file->ReadV(50000, std::span(&piece, 1), ReadMode::kCached)));
}

}  // namespace
}  // namespace cowshed::engine

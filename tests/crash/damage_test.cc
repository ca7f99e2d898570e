// SPDX-License-Identifier: Apache-2.0
//
// A pool is broken at random places and used in a process of its own. It may lose what was broken,
// by name; it may refuse to open; a job may stall. It may not crash, and never show wrong bytes.
// Seeds are printed; COWSHED_TEST_SEED repeats one, COWSHED_TEST_FULL runs more.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <random>
#include <string>

#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/names.h"
#include "engine/repair.h"
#include "engine/store/records.h"
#include "tests/crash/damaged_pool.h"
#include "tests/support/testing.h"

namespace cowshed::engine {
namespace {

constexpr unsigned kHangSeconds = 60;
// With writes that only the intent log holds. The last batch adds nothing to the one before:
// damaged, it is taken for one that a power cut tore.
constexpr const char* kLogged[] = {"a", "promoted", "dir/deep/clone", "dir/deep/clone"};

enum class Outcome : int { kOk = 0, kDataLoss, kStalled, kSuspended, kRefused, kWrong, kError };
constexpr const char* kOutcomeNames[] = {"ok",      "DATA_LOSS", "stalled", "suspended",
                                         "refused", "WRONG",     "ERROR"};

// Runs `use` in a child process; its exit code, or -signal.
template <typename Use>
int InChild(const Use& use) {
  std::cout.flush();
  const pid_t child = fork();
  if (child == 0) {
    alarm(kHangSeconds);
    // An exception must not come back into the test: it ends the child.
    const auto code = [&use]() noexcept { return static_cast<int>(use()); }();
    std::cout.flush();
    _exit(code);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

// Codes that damage may have, and nothing else.
bool IsExcused(const absl::Status& status) {
  return status.ok() || absl::IsDataLoss(status) || absl::IsUnavailable(status) ||
         absl::IsFailedPrecondition(status) || absl::IsAborted(status) ||
         absl::IsResourceExhausted(status) || absl::IsNotFound(status);
}

// Whether a write that was flushed reads back, and what else it gave.
absl::Status WriteAndFlush(Pool& pool, const std::string& name, uint64_t offset, char byte,
                           bool* wrong) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Volume> volume, pool.OpenVolume(name, ""));
  const std::string data(volume->block_bytes(), byte);
  RETURN_IF_ERROR(volume->Write(offset, std::as_bytes(std::span(data))));
  Await<absl::StatusOr<Txg>> flushed;
  volume->Flush(flushed.Callback());
  RETURN_IF_ERROR(flushed.Wait().status());
  std::string found(data.size(), '?');
  RETURN_IF_ERROR(volume->Read(offset, std::as_writable_bytes(std::span(found))));
  *wrong = found != data;
  return absl::OkStatus();
}

Outcome Exercise(const PoolOptions& options, const PoolImage& image) {
  const auto opened = Pool::Open(options);
  if (!opened.ok()) {
    if (!IsExcused(opened.status())) std::cout << opened.status() << '\n';
    return IsExcused(opened.status()) ? Outcome::kRefused : Outcome::kError;
  }
  Pool& pool = **opened;
  PoolImage expected = image;
  bool lossy = false;
  bool unexpected = false;
  bool wrong = false;
  const auto look = [&] {
    const ReadResult read = ReadAgain(pool, expected);
    if (!read.wrong.empty()) std::cout << read.wrong << '\n';
    wrong |= !read.wrong.empty();
    lossy |= !read.lossy.empty() || !read.missing.empty();
  };
  const auto judge = [&](const absl::Status& status) {
    lossy |= !status.ok();
    if (!IsExcused(status)) std::cout << status << '\n';
    unexpected |= !IsExcused(status);
  };
  look();
  const absl::StatusOr<CheckReport> report = pool.Check();
  judge(report.status());
  lossy |= report.ok() && !report->ok();
  for (const char* name : {"a", "dir/of_head", "promoted", "dir/deep/clone"}) {
    bool stale = false;
    const absl::Status status = WriteAndFlush(pool, name, 7 * 4096, 'W', &stale);
    judge(status);
    wrong |= stale;
    // What was not acknowledged by a flush may or may not be there.
    const auto bytes = expected.contents.find(name);
    if (status.ok() && bytes != expected.contents.end()) {
      bytes->second.replace(7 * 4096, 4096, std::string(4096, 'W'));
    }
    if (!status.ok()) expected.contents.erase(name);
  }
  judge(pool.DrainBackground());
  DestroyDatasetsArgs args;
  args.names = {"dir/of_head"};
  args.recursive = true;
  judge(CallPool(pool, &Pool::DestroyDatasets, std::move(args)).status());
  expected.contents.erase("dir/of_head");
  judge(pool.DrainBackground());
  look();
  if (wrong) return Outcome::kWrong;
  if (unexpected) return Outcome::kError;
  if (!pool.health().ok()) return Outcome::kSuspended;
  if (pool.stats().alarms[Alarm::kReclaimStalled] != 0) return Outcome::kStalled;
  return lossy ? Outcome::kDataLoss : Outcome::kOk;
}

// A repair, then the same; what is not named as lost must be there, and be right.
Outcome RepairAndExercise(const PoolOptions& options, const PoolImage& image) {
  auto repair = Repair::Prepare({options, false});
  if (!repair.ok()) {
    std::cout << repair.status() << '\n';
    return IsExcused(repair.status()) ? Outcome::kRefused : Outcome::kError;
  }
  const bool named = !(*repair)->lost().empty();
  for (const CheckFinding& finding : (*repair)->report().findings) {
    if (finding.invariant == "damage" || named) continue;
    std::cout << finding.invariant << " " << finding.name << ": " << finding.message << '\n';
    return Outcome::kError;
  }
  if (const absl::Status applied = (*repair)->Apply().status(); !applied.ok()) {
    std::cout << applied << '\n';
    return Outcome::kError;
  }
  // A head whose record was lost is its newest snapshot now, and the repair says so, as it does of
  // a log that it cannot keep.
  PoolImage expected = image;
  for (const CheckFinding& lost : (*repair)->lost()) {
    if (lost.message.find("its contents are those of") != std::string::npos) {
      expected.contents.erase(lost.name);
    }
    if (lost.name != "intent log" && lost.name != "pool") continue;
    for (const char* const name : kLogged) expected.contents.erase(name);
  }
  repair->reset();  // and its lock
  const Outcome outcome = Exercise(options, expected);
  // A data block that is damaged is found by whoever reads it: a repair reads nodes only.
  const bool usable = outcome != Outcome::kStalled && outcome != Outcome::kRefused;
  if (!usable) std::cout << "after a repair: " << kOutcomeNames[static_cast<int>(outcome)] << '\n';
  return usable ? outcome : Outcome::kError;
}

class DamageTest : public ::testing::Test {
 protected:
  DamageTest() : pool_(DamageOptions()) {}

  void SetUp() override {
    FillPool(pool_);
    image_ = logged_image_ = ValueOf(ReadImage(*pool_));
    pool_.Abandon();
    options_ = pool_.options();
    CopyPool(pool_.directory(), logged());
    options_.directory = logged();
    CopyWithDurableWrites(options_, pool_.directory() + ".crashed",
                          {std::begin(kLogged), std::end(kLogged)}, &logged_image_);
    std::filesystem::remove_all(logged());
    std::filesystem::rename(pool_.directory() + ".crashed", logged());
    options_.directory = pool_.directory() + ".broken";
    Take(pool_.directory());
  }

  // Breaks copies of this pool from now on.
  void Take(const std::string& directory) {
    from_ = directory;
    values_ = FindValues(directory);
    used_bytes_ = 0;
    for (const ValuePlace& value : values_) {
      used_bytes_ = std::max(used_bytes_, value.offset + value.bytes);
    }
  }

  std::string logged() const { return pool_.directory() + ".logged"; }

  std::string blocks() const { return options_.directory + "/blocks"; }
  std::string meta() const { return options_.directory + "/meta/data.mdb"; }

  uint64_t Random(uint64_t end) {
    return std::uniform_int_distribution<uint64_t>(0, end - 1)(rng_);
  }
  uint8_t RandomBit() { return static_cast<uint8_t>(1u << Random(8)); }

  // One way to break a pool; says which.
  std::string Break() {
    switch (Random(8)) {
      case 0:
      case 1:
        // Most of what is in use lies at the front.
        for (uint64_t i = Random(20) + 1; i > 0; --i) {
          FlipBits(blocks(), Random(1200 * kSectorBytes), RandomBit());
        }
        return "bits of blocks";
      case 2:
      case 3:
      case 4:
        for (uint64_t i = Random(4) + 1; i > 0; --i) {
          const ValuePlace& value = values_[Random(values_.size())];
          FlipBits(meta(), value.offset + Random(value.bytes), RandomBit());
        }
        return "bits of values";
      case 5:
        for (uint64_t i = Random(3) + 1; i > 0; --i)
          FlipBits(meta(), Random(used_bytes_), RandomBit());
        return "bits of pages";
      case 6:
        std::filesystem::resize_file(blocks(), Random(1200) * kSectorBytes);
        return "truncated blocks";
      default:
        std::filesystem::resize_file(meta(), Random(used_bytes_));
        return "truncated metadata";
    }
  }

  TempPool pool_;
  PoolOptions options_;
  PoolImage image_, logged_image_;
  std::string from_;
  std::vector<ValuePlace> values_;
  uint64_t used_bytes_ = 0;
  std::mt19937_64 rng_;
};

TEST_F(DamageTest, NothingCrashesAndNothingIsWrong) {
  const bool full = std::getenv("COWSHED_TEST_FULL") != nullptr;
  std::map<std::string, int> counts;
  for (const uint64_t seed : TestSeeds(full ? 5000 : 100)) {
    const bool with_log = seed % 2 != 0;
    const PoolImage& image = with_log ? logged_image_ : image_;
    Take(with_log ? logged() : pool_.directory());
    rng_.seed(seed);
    CopyPool(from_, options_.directory);
    const std::string kind = Break();
    SCOPED_TRACE(StrCat("seed ", seed, ": ", kind));
    // What LMDB would trip over is refused before it sees the file, as `cowshed check` does.
    const absl::Status pages = CheckMetaPages(options_);
    int code = static_cast<int>(Outcome::kRefused);
    if (pages.ok()) {
      code = InChild([&] { return Exercise(options_, image); });
      // The files have been changed: broken anew for the repair.
      rng_.seed(seed);
      CopyPool(from_, options_.directory);
      Break();
    } else {
      EXPECT_TRUE(absl::IsDataLoss(pages)) << pages;
    }
    ASSERT_GE(code, 0) << "signal " << -code;
    EXPECT_LT(code, static_cast<int>(Outcome::kWrong));
    ++counts[kind + ": " + kOutcomeNames[code]];
    if (seed % 3 != 0) continue;
    const int repaired = InChild([&] { return RepairAndExercise(options_, image); });
    ASSERT_GE(repaired, 0) << "repair: signal " << -repaired;
    EXPECT_LT(repaired, static_cast<int>(Outcome::kWrong)) << "after a repair";
    ++counts[StrCat(kind, ", repaired: ", kOutcomeNames[repaired])];
  }
  for (const auto& [what, count] : counts) std::cout << count << "  " << what << '\n';
}

// A txg that found no space but behind damaged bitmaps waited for the host for ever.
TEST_F(DamageTest, DamagedBitmapsThatLeaveNoSpaceStopThePoolWithAReason) {
  CopyPool(pool_.directory(), options_.directory);
  for (const ValuePlace& value : values_) {
    if (value.table == "regions") FlipBits(meta(), value.offset + 1, 2);
  }
  const auto pool = ValueOf(Pool::Open(options_));
  bool wrong = false;
  EXPECT_CODE(WriteAndFlush(*pool, "a", 0, 'W', &wrong), kUnavailable);
  EXPECT_THAT(std::string(pool->health().message()), ::testing::HasSubstr("check --repair"));
  // Reads go on, with what was accepted and could not be synced.
  PoolImage expected = image_;
  expected.contents["a"].replace(0, 4096, std::string(4096, 'W'));
  EXPECT_EQ(ReadAgain(*pool, expected).wrong, "");
}

// A node that goes bad between a write and its sync suspended the whole pool.
TEST_F(DamageTest, DamagedNodeMetInSyncCostsOneHeadItsUnflushedWrites) {
  CopyPool(pool_.directory(), options_.directory);
  options_.txg_interval = std::chrono::milliseconds(3600000);
  BlockPtr root;
  ChangeMeta(options_.directory, [&root](WriteTxn& txn) {
    const Key key(*ValueOf(Names::Find(txn, "a")));
    const auto record = ValueOf(LoadRecord<DatasetRecord>(txn, key));
    root = record.tree.root;
    ASSERT_OK(StoreRecord(txn, key, record));
  });
  const auto pool = ValueOf(Pool::Open(options_));
  const auto a = ValueOf(pool->OpenVolume("a", ""));
  const auto other = ValueOf(pool->OpenVolume("promoted", ""));
  const std::string data(4096, 'Z');
  ASSERT_OK(a->Write(0, std::as_bytes(std::span(data))));
  ASSERT_OK(other->Write(0, std::as_bytes(std::span(data))));
  FlipBits(blocks(), root.address * kSectorBytes + 1, 1);
  Await<absl::StatusOr<Txg>> first, second, third;
  a->Flush(first.Callback());
  EXPECT_CODE(first.Wait(), kDataLoss);
  other->Flush(second.Callback());
  EXPECT_OK(second.Wait().status());
  EXPECT_OK(pool->health());
  std::string found(4096, '?');
  ASSERT_OK(other->Read(0, std::as_writable_bytes(std::span(found))));
  EXPECT_EQ(found, data);
  // It is told once.
  a->Flush(third.Callback());
  EXPECT_OK(third.Wait().status());
}

}  // namespace
}  // namespace cowshed::engine

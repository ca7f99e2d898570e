// SPDX-License-Identifier: Apache-2.0
#include "engine/names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/errors.h"
#include "tests/engine/tree/meta_fixture.h"

namespace cowshed::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ParseNameTest, TakesWhatTheContractAllows) {
  for (const char* name : {"a", "A9", "a/b/c", "0:x.y_z-", "a@s", "a/b@2024-01-01T00:00:00"}) {
    EXPECT_TRUE(ParseName(name).ok()) << name;
  }
  EXPECT_TRUE(ParseName(std::string(255, 'a')).ok());
  const ParsedName parsed = ValueOf(ParseName("a/b@s"));
  EXPECT_EQ(parsed.dataset, "a/b");
  EXPECT_EQ(parsed.snapshot, "s");
}

// Bug: the segment at fault was shown with whatever bytes it had, a terminal's escapes among them.
TEST(ParseNameTest, ErrorsShowHarmlessBytesOnly) {
  const absl::Status status = ParseName("a/b\x1b[31m\xc3\xbc").status();
  for (const char c : std::string(status.message())) EXPECT_TRUE(c >= 0x20 && c < 0x7f) << c;
}

TEST(ParseNameTest, RefusesEverythingElse) {
  for (const std::string& name :
       {std::string(), std::string("/a"), std::string("a/"), std::string("a//b"), std::string("@s"),
        std::string("a@"), std::string("a@s@t"), std::string("a@s/t"), std::string("-a"),
        std::string(".a"), std::string("a b"), std::string("a/../b"), std::string("\xc3\xa4"),
        std::string("a\0b", 3), std::string(256, 'a')}) {
    const absl::Status status = ParseName(name).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    ASSERT_TRUE(GetErrorDetails(status).has_value()) << name;
    EXPECT_EQ(GetErrorDetails(status)->reason, "INVALID_NAME");
  }
  EXPECT_FALSE(ParseDatasetName("a@s").ok());
  EXPECT_FALSE(ParseSnapshotName("a").ok());
}

class NamesTest : public MetaFixture {
 protected:
  void SetUp() override {
    MetaFixture::SetUp();
    ids_.Reset(kFirstId);
    ASSERT_OK(StoreRecord(*txn_, Key(kRootDirectory), DirectoryRecord()));
  }

  DatasetId Add(const std::string& name) {
    const auto id = ids_.Take<DatasetId>();
    DatasetRecord record;
    EXPECT_OK(Names::Insert(*txn_, name, id, ids_, &record));
    EXPECT_OK(StoreRecord(*txn_, Key(id), record));
    return id;
  }
  DatasetRecord Record(DatasetId id) { return ValueOf(LoadRecord<DatasetRecord>(*txn_, Key(id))); }
  void Remove(DatasetId id) { EXPECT_OK(Names::Remove(*txn_, Record(id))); }
  std::vector<std::string> Walk(const std::string& prefix, const std::string& position = "",
                                size_t limit = 1000) {
    std::vector<std::string> names;
    EXPECT_OK(Names::Walk(*txn_, prefix, position,
                          [&](const std::string& name, DatasetId) -> absl::StatusOr<bool> {
                            names.push_back(name);
                            return names.size() < limit;
                          }));
    return names;
  }
  uint64_t Directories() {
    uint64_t count = 0;
    MetaCursor cursor(*txn_, Table::kDirectories);
    for (cursor.Seek(""); cursor.valid(); cursor.Next()) ++count;
    return count;
  }
};

TEST_F(NamesTest, FindsExactlyWhatIsThere) {
  const DatasetId deep = Add("a/b/c");
  EXPECT_EQ(ValueOf(Names::Find(*txn_, "a/b/c")), deep);
  EXPECT_EQ(ValueOf(Names::Find(*txn_, "a/b")), std::nullopt);  // a prefix need not exist
  EXPECT_EQ(ValueOf(Names::Find(*txn_, "a/b/c/d")), std::nullopt);
  EXPECT_EQ(ValueOf(Names::Find(*txn_, "a/b/")), std::nullopt);
  const DatasetId middle = Add("a/b");
  EXPECT_EQ(ValueOf(Names::Find(*txn_, "a/b")), middle);
  EXPECT_EQ(ValueOf(Names::FullName(*txn_, Record(deep))), "a/b/c");
}

TEST_F(NamesTest, RemovingPrunesEmptyDirectories) {
  const DatasetId deep = Add("a/b/c");
  const DatasetId middle = Add("a/b");
  EXPECT_EQ(Directories(), 3u);
  Remove(deep);
  EXPECT_EQ(Directories(), 2u);
  EXPECT_EQ(ValueOf(Names::Find(*txn_, "a/b")), middle);
  Remove(middle);
  EXPECT_EQ(Directories(), 1u);
  EXPECT_THAT(Walk(""), IsEmpty());
}

TEST_F(NamesTest, WalkGoesDepthFirstAndStaysBelowThePrefix) {
  for (const char* name : {"b", "a/x", "a", "ab", "a/x/1", "a-b", "a/y"}) Add(name);
  EXPECT_THAT(Walk(""), ElementsAre("a", "a/x", "a/x/1", "a/y", "a-b", "ab", "b"));
  EXPECT_THAT(Walk("a"), ElementsAre("a", "a/x", "a/x/1", "a/y"));
  EXPECT_THAT(Walk("a/x"), ElementsAre("a/x", "a/x/1"));
  EXPECT_THAT(Walk("nothing"), IsEmpty());
}

TEST_F(NamesTest, WalkGoesOnBehindAnyPosition) {
  const std::vector<std::string> all = {"a", "a/x", "a/x/1", "a/y", "a-b", "ab", "b"};
  for (const std::string& name : all) Add(name);
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(Walk("", all[i]), std::vector<std::string>(all.begin() + i + 1, all.end())) << all[i];
  }
  EXPECT_THAT(Walk("", "a/w"),
              ElementsAre("a/x", "a/x/1", "a/y", "a-b", "ab", "b"));  // gone by now
  EXPECT_THAT(Walk("a", "a/x/1/0"), ElementsAre("a/y"));
  EXPECT_THAT(Walk("a", "a"), ElementsAre("a/x", "a/x/1", "a/y"));
  EXPECT_THAT(Walk("", "a", 2), ElementsAre("a/x", "a/x/1"));
}

TEST_F(NamesTest, DetachFreesTheNamesBelowAtOnce) {
  const DatasetId x = Add("a/x");
  const DatasetId deep = Add("a/y/z");
  Add("b");
  const Names::Subtree subtree = ValueOf(Names::Detach(*txn_, "a"));
  EXPECT_EQ(subtree.dataset, DatasetId{});
  EXPECT_THAT(Walk(""), ElementsAre("b"));
  EXPECT_TRUE(ValueOf(Names::IsDetached(*txn_, Record(x))));
  EXPECT_TRUE(ValueOf(Names::IsDetached(*txn_, Record(deep))));
  EXPECT_EQ(ValueOf(Names::FullName(*txn_, Record(deep))), "a/y/z");
  const DatasetId successor = Add("a/x");  // the name is free
  EXPECT_EQ(ValueOf(Names::TakeFirst(*txn_, subtree.directory)), x);
  Remove(x);
  EXPECT_EQ(ValueOf(Names::TakeFirst(*txn_, subtree.directory)), deep);
  Remove(deep);
  EXPECT_EQ(ValueOf(Names::TakeFirst(*txn_, subtree.directory)), std::nullopt);
  EXPECT_EQ(ValueOf(Names::Find(*txn_, "a/x")), successor);
  EXPECT_EQ(Directories(), 2u);
}

// Bug: detaching a prefix that is a dataset, too, took its entry off the directory's count, and its
// removal in the same txg took it off again.
TEST_F(NamesTest, DetachLeavesTheDatasetOfThatNameToRemove) {
  const DatasetId a = Add("a");
  const DatasetId below = Add("a/x");
  Add("b");
  const Names::Subtree subtree = ValueOf(Names::Detach(*txn_, "a"));
  EXPECT_EQ(subtree.dataset, a);
  Remove(a);
  EXPECT_THAT(Walk(""), ElementsAre("b"));
  EXPECT_EQ(ValueOf(LoadRecord<DirectoryRecord>(*txn_, Key(kRootDirectory))).entries, 1u);
  EXPECT_EQ(ValueOf(Names::TakeFirst(*txn_, subtree.directory)), below);
}

TEST_F(NamesTest, RandomNamesWalkInTheOrderOfASet) {
  for (const uint64_t seed : TestSeeds(20)) {
    Rewind();
    ASSERT_OK(StoreRecord(*txn_, Key(kRootDirectory), DirectoryRecord()));
    Random random(seed);
    std::map<std::vector<std::string>, DatasetId> model;  // by segments: depth first
    const auto joined = [](const std::vector<std::string>& segments) {
      std::string name;
      for (const std::string& segment : segments) name += (name.empty() ? "" : "/") + segment;
      return name;
    };
    for (int step = 0; step < 200; ++step) {
      std::vector<std::string> segments(1 + random.Below(3));
      for (std::string& segment : segments) segment = std::string(1, 'a' + random.Below(3));
      if (const auto it = model.find(segments); it != model.end()) {
        Remove(it->second);
        model.erase(it);
      } else {
        model[segments] = Add(joined(segments));
      }
      std::vector<std::string> expected;
      for (const auto& [name, id] : model) expected.push_back(joined(name));
      ASSERT_EQ(Walk(""), expected);
    }
    for (const auto& [name, id] : model) Remove(id);
    EXPECT_EQ(Directories(), 1u);
  }
}

}  // namespace
}  // namespace cowshed::engine

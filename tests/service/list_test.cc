// SPDX-License-Identifier: Apache-2.0
//
// Lists over the wire: pages, filters, and tokens that hold for nothing else.
#include <gmock/gmock.h>

#include "tests/service/server_fixture.h"

namespace cowshed::service {
namespace {

using testing::ElementsAre;

class ListTest : public ServerTest {
 protected:
  grpc::Status List(const std::string& request) {
    return Try(datasets(), &Datasets::ListDatasets, request);
  }
};

TEST_F(ListTest, PagesCoverAllOnceAndOnlyTheLastHasNoToken) {
  std::vector<std::string> expected;
  for (int i = 10; i < 35; ++i) {
    expected.push_back("d" + std::to_string(i));
    Create(expected.back(), 4096);
  }
  std::vector<std::string> names;
  std::string token;
  int pages = 0;
  do {
    const auto page =
        Call(datasets(), &Datasets::ListDatasets, "page_size: 10 page_token: '" + token + "'");
    EXPECT_LE(page.datasets_size(), 10);
    for (const auto& dataset : page.datasets()) names.push_back(dataset.name());
    token = page.next_page_token();
    ++pages;
  } while (!token.empty());
  EXPECT_EQ(names, expected);
  EXPECT_GE(pages, 3);
}

TEST_F(ListTest, PageSizeHasADefaultAndAMost) {
  for (int i = 0; i < 101; ++i) Create("d" + std::to_string(i), 4096);
  EXPECT_EQ(Call(datasets(), &Datasets::ListDatasets, "").datasets_size(), 100);
  EXPECT_EQ(Call(datasets(), &Datasets::ListDatasets, "page_size: 100000").datasets_size(), 101);
  EXPECT_FAILS(List("page_size: -1"), kInvalidArgument, INVALID_FIELD);
}

TEST_F(ListTest, FiltersAreCombined) {
  Create("ci/a");
  Create("ci/ab");
  Create("ci/a/x");
  Snapshot({"ci/a@s", "ci/ab@s"});
  Clone("ci/a@s", "k/1");
  Clone("ci/ab@s", "k/2");
  Call(datasets(), &Datasets::UpdateDataset,
       "dataset { name: 'k/1' } set_labels { key: 'k' value: 'v' }");
  EXPECT_THAT(ListNames("ci/a"), ElementsAre("ci/a", "ci/a/x"));
  const auto clones = Call(datasets(), &Datasets::ListDatasets, "origin: 'ci/a@s'");
  ASSERT_EQ(clones.datasets_size(), 1);
  EXPECT_EQ(clones.datasets(0).name(), "k/1");
  const auto labelled =
      Call(datasets(), &Datasets::ListDatasets, "prefix: 'k' labels { key: 'k' value: 'v' }");
  ASSERT_EQ(labelled.datasets_size(), 1);
  EXPECT_EQ(labelled.datasets(0).name(), "k/1");
  EXPECT_FAILS(List("state: 77"), kInvalidArgument, INVALID_FIELD);
  EXPECT_FAILS(Try(datasets(), &Datasets::ListSnapshots, "dataset: 'ci/a' prefix: 'ci'"),
               kInvalidArgument, INVALID_FIELD);
  EXPECT_FAILS(Try(datasets(), &Datasets::ListHolds, "snapshot: 'ci/a@s' prefix: 'ci'"),
               kInvalidArgument, INVALID_FIELD);
}

TEST_F(ListTest, TokenHoldsForItsFiltersOnlyButForAnyPageSize) {
  for (int i = 0; i < 5; ++i) Create("ci/" + std::to_string(i), 4096);
  const std::string token =
      Call(datasets(), &Datasets::ListDatasets, "prefix: 'ci' page_size: 2").next_page_token();
  ASSERT_FALSE(token.empty());
  const std::string with_token = " page_token: '" + token + "'";
  EXPECT_FAILS(List("prefix: 'c'" + with_token), kInvalidArgument, INVALID_PAGE_TOKEN);
  EXPECT_FAILS(List(with_token), kInvalidArgument, INVALID_PAGE_TOKEN);
  EXPECT_FAILS(List("prefix: 'ci' labels { key: 'k' value: 'v' }" + with_token), kInvalidArgument,
               INVALID_PAGE_TOKEN);
  EXPECT_FAILS(Try(datasets(), &Datasets::ListSnapshots, "prefix: 'ci'" + with_token),
               kInvalidArgument, INVALID_PAGE_TOKEN);
  EXPECT_EQ(Call(datasets(), &Datasets::ListDatasets, "prefix: 'ci' page_size: 50" + with_token)
                .datasets_size(),
            3);
}

TEST_F(ListTest, TokenThatWasTamperedWithIsRefused) {
  for (int i = 0; i < 5; ++i) Create("d" + std::to_string(i), 4096);
  const std::string token =
      Call(datasets(), &Datasets::ListDatasets, "page_size: 2").next_page_token();
  for (size_t i = 0; i < token.size(); ++i) {
    std::string tampered = token;
    tampered[i] = tampered[i] == 'A' ? 'B' : 'A';
    EXPECT_FAILS(List("page_token: '" + tampered + "'"), kInvalidArgument, INVALID_PAGE_TOKEN);
  }
  for (const std::string& other : {token.substr(1), token + "A", std::string("x")}) {
    EXPECT_FAILS(List("page_token: '" + other + "'"), kInvalidArgument, INVALID_PAGE_TOKEN);
  }
}

TEST_F(ListTest, TokenOutlivesARestart) {
  for (int i = 0; i < 5; ++i) Create("d" + std::to_string(i), 4096);
  const std::string token =
      Call(datasets(), &Datasets::ListDatasets, "page_size: 2").next_page_token();
  Restart();
  EXPECT_EQ(
      Call(datasets(), &Datasets::ListDatasets, "page_token: '" + token + "'").datasets_size(), 3);
}

TEST_F(ListTest, ListTokenIsNeededAndChecked) {
  EXPECT_FAILS(Try(datasets(), &Datasets::ListBlockers, ""), kInvalidArgument, INVALID_FIELD);
  EXPECT_FAILS(Try(datasets(), &Datasets::ListBlockers, "list_token: 'x'"), kInvalidArgument,
               INVALID_PAGE_TOKEN);
}

TEST_F(ListTest, SnapshotsComeByAge) {
  Create("a");
  for (const char* name : {"a@z", "a@b", "a@m"}) Snapshot({name});
  std::vector<std::string> names;
  const auto page = Call(datasets(), &Datasets::ListSnapshots, "dataset: 'a'");
  for (const auto& snapshot : page.snapshots()) names.push_back(snapshot.name());
  EXPECT_THAT(names, ElementsAre("a@z", "a@b", "a@m"));
}

}  // namespace
}  // namespace cowshed::service

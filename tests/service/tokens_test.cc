// SPDX-License-Identifier: Apache-2.0
#include "service/tokens.h"

#include <gmock/gmock.h>

#include "tests/service/server_fixture.h"

namespace cowshed::service {
namespace {

engine::BlockerQuery QueryOf(size_t targets, uint64_t seed = 0) {
  engine::BlockerQuery query;
  for (size_t i = 0; i < targets; ++i) {
    query.targets.push_back({engine::BlockerKind::kHold, seed * 1000 + i, i * 3});
  }
  return query;
}

std::vector<uint64_t> IdsOf(const absl::StatusOr<engine::BlockerQuery>& query) {
  std::vector<uint64_t> ids;
  if (!query.ok()) return ids;
  for (const auto& target : query->targets) ids.push_back(target.id);
  return ids;
}

TEST(TokensTest, PositionComesBackForTheSameFilters) {
  Tokens tokens("uid");
  auto request = Text<v1::ListDatasetsRequest>("prefix: 'a' labels { key: 'x' value: 'y' }");
  const std::string position("any\0bytes\xff", 10);
  request.set_page_token(tokens.SealPosition(request, position));
  request.set_page_size(7);
  EXPECT_EQ(engine::ValueOf(tokens.OpenPosition(request)), position);
  Tokens later("uid");
  EXPECT_EQ(engine::ValueOf(later.OpenPosition(request)), position);
  Tokens other("other uid");
  EXPECT_CODE(other.OpenPosition(request), kInvalidArgument);
  request.set_prefix("b");
  EXPECT_CODE(tokens.OpenPosition(request), kInvalidArgument);
}

TEST(TokensTest, NoPositionIsNoToken) {
  Tokens tokens("uid");
  const v1::ListDatasetsRequest request;
  EXPECT_EQ(tokens.SealPosition(request, ""), "");
  EXPECT_EQ(engine::ValueOf(tokens.OpenPosition(request)), "");
}

TEST(TokensTest, ShortListsLiveInTheToken) {
  Tokens tokens("uid");
  const std::string token = tokens.SealBlockers(QueryOf(Tokens::kTargetsInToken));
  Tokens later("uid");
  EXPECT_EQ(IdsOf(later.OpenBlockers(token)), IdsOf(QueryOf(Tokens::kTargetsInToken)));
}

TEST(TokensTest, LongListsLiveInTheServerUntilOthersCome) {
  Tokens tokens("uid");
  constexpr size_t kTargets = Tokens::kTargetsInToken + 1;
  const std::string first = tokens.SealBlockers(QueryOf(kTargets, 1));
  EXPECT_LE(first.size(), 100u);
  EXPECT_EQ(IdsOf(tokens.OpenBlockers(first)), IdsOf(QueryOf(kTargets, 1)));
  const std::string second = tokens.SealBlockers(QueryOf(kTargets, 2));
  for (size_t i = 0; i < Tokens::kListsKept - 1; ++i) {
    EXPECT_OK(tokens.OpenBlockers(second).status());  // what is used stays
    tokens.SealBlockers(QueryOf(kTargets, 3 + i));
  }
  EXPECT_EQ(IdsOf(tokens.OpenBlockers(second)), IdsOf(QueryOf(kTargets, 2)));
  EXPECT_CODE(tokens.OpenBlockers(first), kInvalidArgument);
  Tokens later("uid");
  EXPECT_CODE(later.OpenBlockers(second), kInvalidArgument);
}

TEST(TokensTest, PageTokenIsNoListToken) {
  Tokens tokens("uid");
  const std::string token = tokens.SealPosition(v1::ListDatasetsRequest(), "x");
  EXPECT_CODE(tokens.OpenBlockers(token), kInvalidArgument);
  v1::ListDatasetsRequest request;
  request.set_page_token(tokens.SealBlockers(QueryOf(1)));
  EXPECT_CODE(tokens.OpenPosition(request), kInvalidArgument);
}

}  // namespace
}  // namespace cowshed::service

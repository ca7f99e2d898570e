// SPDX-License-Identifier: Apache-2.0
#include "service/tokens.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <fstream>

#include "service/secret.h"
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

TEST(TokensTest, SecretIsMadeOnceAndItsOwners) {
  engine::TempDir dir;
  const std::string path = dir.Path("secret");
  const std::string secret = engine::ValueOf(ReadOrMakeSecret(path));
  EXPECT_EQ(secret.size(), kSecretBytes);
  EXPECT_EQ(engine::ValueOf(ReadOrMakeSecret(path)), secret);
  EXPECT_NE(engine::ValueOf(ReadOrMakeSecret(dir.Path("other"))), secret);
  struct stat status {};
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  chmod(path.c_str(), 0640);
  EXPECT_CODE(ReadOrMakeSecret(path), kUnavailable);
  chmod(path.c_str(), 0600);
  std::ofstream(path) << "short";
  EXPECT_CODE(ReadOrMakeSecret(path), kUnavailable);
  EXPECT_CODE(ReadOrMakeSecret(dir.Path("none/secret")), kUnavailable);
}

// Once the key of tokens came from the pool's uid, which GetServerInfo tells everybody: anybody
// could make a token.
class TokenSecretTest : public ServerTest {};

TEST_F(TokenSecretTest, WhoKnowsThePoolsUidCannotMakeAToken) {
  for (const char* name : {"a", "b", "c"}) Create(name);
  auto request = Text<v1::ListDatasetsRequest>("page_size: 1");
  Tokens forger(pool_->uid());
  request.set_page_token(forger.SealPosition(request, "a"));
  v1::ListDatasetsResponse reply;
  EXPECT_FAILS(Try(datasets(), &Datasets::ListDatasets, request, &reply), kInvalidArgument,
               INVALID_PAGE_TOKEN);
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

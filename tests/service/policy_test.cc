// SPDX-License-Identifier: Apache-2.0
#include "service/policy.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <fstream>

#include "tests/support/testing.h"

namespace cowshed::service {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Peer User(uint32_t uid, std::vector<uint32_t> gids = {}) {
  Peer peer;
  peer.kind = Peer::Kind::kUnix;
  peer.uid = uid;
  peer.gids = std::move(gids);
  return peer;
}

Peer Named(std::vector<std::string> names) {
  Peer peer;
  peer.kind = Peer::Kind::kCertificate;
  peer.names = std::move(names);
  return peer;
}

std::string ProblemOf(const std::string& json) {
  return std::string(Policy::Parse(json).status().message());
}

TEST(PolicyTest, GrantsAddUp) {
  const Policy policy = engine::ValueOf(Policy::Parse(R"({
    "comment": "of a build farm",
    "grants": [
      {"who": ["cert:ci.test"], "role": "OPERATOR", "prefixes": ["ci", "tmp/a"]},
      {"who": ["cert:ci.test", "user:7"], "role": "READER", "prefixes": ["golden", "ci/secret"]},
      {"who": ["group:8"], "role": "ADMIN"}
    ]})"));
  const Rights ci = policy.RightsOf(Named({"other.test", "ci.test"}));
  EXPECT_EQ(policy.NameOf(Named({"other.test", "ci.test"})), "ci.test");
  EXPECT_EQ(ci.On("ci"), OPERATOR);
  EXPECT_EQ(ci.On("ci/a@s"), OPERATOR);
  EXPECT_EQ(ci.On("ci@s"), OPERATOR);
  EXPECT_EQ(ci.On("ci/secret/x"), OPERATOR);
  EXPECT_EQ(ci.On("golden/x"), READER);
  EXPECT_EQ(ci.On("cix"), NONE);
  EXPECT_EQ(ci.On("tmp"), NONE);
  EXPECT_EQ(ci.On(""), NONE);
  EXPECT_EQ(ci.everywhere(), NONE);
  EXPECT_EQ(ci.anywhere(), OPERATOR);
  EXPECT_THAT(ci.ReadablePrefixes(), ElementsAre("ci", "golden", "tmp/a"));
  EXPECT_EQ(policy.RightsOf(User(7)).On("golden"), READER);
  EXPECT_EQ(policy.RightsOf(User(9, {1, 8})).everywhere(), ADMIN);
  EXPECT_EQ(policy.RightsOf(User(9, {1})).anywhere(), NONE);
  EXPECT_EQ(policy.RightsOf(Peer()).anywhere(), NONE);
}

TEST(PolicyTest, UsersAndGroupsByName) {
  const Policy policy = engine::ValueOf(Policy::Parse(
      R"({"grants": [{"who": ["user:root"], "role": "ADMIN"},
                     {"who": ["group:root", "unix", "tcp"], "role": "READER"}]})"));
  EXPECT_EQ(policy.RightsOf(User(0)).everywhere(), ADMIN);
  EXPECT_EQ(policy.RightsOf(User(5, {0})).everywhere(), READER);
  EXPECT_EQ(policy.RightsOf(User(5)).everywhere(), READER);
  EXPECT_EQ(policy.RightsOf(Peer()).everywhere(), READER);
  EXPECT_EQ(policy.RightsOf(Named({"root"})).anywhere(), NONE);
}

TEST(PolicyTest, MistakesAreNamed) {
  EXPECT_THAT(ProblemOf("{"), HasSubstr("end of string"));
  EXPECT_THAT(ProblemOf(R"({"grant": []})"), HasSubstr("grant"));
  EXPECT_THAT(ProblemOf(R"({"grants": [{"who": ["unix"], "role": "GOD"}]})"), HasSubstr("GOD"));
  EXPECT_THAT(ProblemOf(R"({"grants": [{"who": ["unix"], "role": 7}]})"), HasSubstr("role"));
  EXPECT_THAT(ProblemOf(R"({"grants": [{"who": ["unix"], "role": "READER"}, {"who": ["unix"]}]})"),
              HasSubstr("grant 2: has no role"));
  EXPECT_THAT(ProblemOf(R"({"grants": [{"role": "READER"}]})"), HasSubstr("nobody"));
  EXPECT_THAT(ProblemOf(R"({"grants": [{"who": ["uid:7"], "role": "READER"}]})"),
              HasSubstr("uid:7"));
  EXPECT_THAT(ProblemOf(R"({"grants": [{"who": ["user:no-such-user"], "role": "READER"}]})"),
              HasSubstr("no user no-such-user"));
  EXPECT_THAT(ProblemOf(R"({"grants": [{"who": ["unix"], "role": "ADMIN", "prefixes": ["a"]}]})"),
              HasSubstr("whole pool"));
  for (const char* prefix : {"", "/a", "a/", "a//b", "a@s"}) {
    EXPECT_THAT(ProblemOf(std::string(R"({"grants": [{"who": ["unix"], "role": "READER",)") +
                          R"("prefixes": [")" + prefix + R"("]}]})"),
                HasSubstr("is no prefix"))
        << prefix;
  }
}

TEST(PolicyTest, FileIsNamed) {
  engine::TempDir dir;
  EXPECT_THAT(std::string(Policy::Read(dir.Path("none")).status().message()),
              HasSubstr(dir.Path("none")));
  std::ofstream(dir.Path("policy")) << "[]";
  EXPECT_THAT(std::string(Policy::Read(dir.Path("policy")).status().message()),
              HasSubstr(dir.Path("policy")));
  std::ofstream(dir.Path("policy")) << "{}";
  EXPECT_EQ(engine::ValueOf(Policy::Read(dir.Path("policy"))).RightsOf(User(0)).anywhere(), NONE);
}

TEST(PolicyTest, FlagsWithoutAFile) {
  EXPECT_EQ(Policy::Of({}).RightsOf(User(5)).everywhere(), ADMIN);
  EXPECT_EQ(Policy::Of({}).RightsOf(Peer()).everywhere(), ADMIN);
  Policy::Flags flags;
  flags.certificates = true;
  flags.admins = {"a"};
  flags.readers = {"r"};
  flags.users = {5};
  const Policy policy = Policy::Of(flags);
  EXPECT_EQ(policy.RightsOf(Peer()).anywhere(), NONE);
  EXPECT_EQ(policy.RightsOf(Named({"a"})).everywhere(), ADMIN);
  EXPECT_EQ(policy.RightsOf(Named({"r"})).everywhere(), READER);
  EXPECT_EQ(policy.RightsOf(User(5)).everywhere(), ADMIN);
  EXPECT_EQ(policy.RightsOf(User(6)).anywhere(), NONE);
}

}  // namespace
}  // namespace cowshed::service

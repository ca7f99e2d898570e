// SPDX-License-Identifier: Apache-2.0
//
// The program `cowshed` as a user runs it: what it prints, how it exits, how it stops.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <grpc/grpc.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "absl/strings/escaping.h"
#include "engine/store/format.h"
#include "engine/store/meta_store.h"
#include "grpcpp/create_channel.h"
#include "service/secret.h"
#include "tests/service/certificates.h"
#include "tests/service/server_fixture.h"
#include "tests/support/nbd_client.h"
#include "tests/support/superblock_change.h"

namespace cowshed::service {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

// A child process. Its output goes to a file.
class Program {
 public:
  Program(const std::vector<std::string>& arguments, const std::string& output,
          const std::vector<std::string>& environment = {})
      : output_(output) {
    const char* const build = std::getenv("COWSHED_BUILD_DIR");
    std::vector<std::string> words = {std::string(build != nullptr ? build : "build/release") +
                                      "/bin/cowshed"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv, envp;
    for (auto& word : words) argv.push_back(word.data());
    std::vector<std::string> variables = environment;
    for (char** variable = environ; *variable != nullptr; ++variable) {
      variables.emplace_back(*variable);
    }
    for (auto& variable : variables) envp.push_back(variable.data());
    argv.push_back(nullptr);
    envp.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC,
                                     0600);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    EXPECT_EQ(posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), envp.data()), 0);
    posix_spawn_file_actions_destroy(&actions);
  }
  ~Program() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      Wait();
    }
  }
  int Wait() {
    int status = 0;
    waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  void Signal(int signal) { kill(pid_, signal); }
  // Waits until the output says `text`.
  void WaitFor(const std::string& text) const {
    while (Output().find(text) == std::string::npos) {
      ASSERT_EQ(waitpid(pid_, nullptr, WNOHANG), 0) << Output();
      usleep(10000);
    }
  }
  int Stop() {
    kill(pid_, SIGTERM);
    return Wait();
  }
  std::string Output() const {
    std::ifstream file(output_);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }
  // What follows `prefix` on its line of the output, once it is there.
  std::string LineAfter(const std::string& prefix) const {
    while (waitpid(pid_, nullptr, WNOHANG) == 0) {
      std::istringstream lines(Output());
      for (std::string line; std::getline(lines, line);) {
        if (line.rfind(prefix, 0) == 0 && !lines.eof()) return line.substr(prefix.size());
      }
      usleep(10000);
    }
    ADD_FAILURE() << Output();
    return "";
  }

 private:
  const std::string output_;
  pid_t pid_ = -1;
};

class ProgramTest : public testing::Test {
 protected:
  ProgramTest() {
    // Keeps gRPC up between tests, see ServerTest.
    static const bool kept = (grpc_init(), true);
    EXPECT_TRUE(kept);
  }
  std::vector<std::string> ServeArguments() const {
    return {"serve",
            "--pool",
            dir_.Path("pool"),
            "--capacity",
            "1GiB",
            "--listen",
            "127.0.0.1:0",
            "--listen",
            "unix:" + dir_.Path("socket"),
            "--metrics-listen",
            "127.0.0.1:0"};
  }
  // Runs to the end; the exit code.
  int Run(const std::vector<std::string>& arguments, std::string* output,
          const std::vector<std::string>& environment = {}) {
    Program program(arguments, dir_.Path("output"), environment);
    const int code = program.Wait();
    *output = program.Output();
    return code;
  }

  engine::TempDir dir_;
};

TEST_F(ProgramTest, ServesUntilItIsToldToStop) {
  const sockaddr_un notify = [&] {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    dir_.Path("notify").copy(address.sun_path, sizeof(address.sun_path) - 1);
    return address;
  }();
  const FileDescriptor manager(socket(AF_UNIX, SOCK_DGRAM, 0));
  ASSERT_EQ(bind(manager.get(), reinterpret_cast<const sockaddr*>(&notify), sizeof(notify)), 0);
  Program server(ServeArguments(), dir_.Path("server"), {"NOTIFY_SOCKET=" + dir_.Path("notify")});
  const std::string address = server.LineAfter("listening on 127.0.0.1:");
  EXPECT_EQ(server.LineAfter("listening on unix:"), dir_.Path("socket"));
  EXPECT_THAT(server.LineAfter("metrics on "), StartsWith("127.0.0.1:"));
  EXPECT_THAT(server.LineAfter("pool "), StartsWith(dir_.Path("pool") + " (uid "));
  EXPECT_EQ(server.LineAfter("try: "), "cow list");
  char state[64] = {};
  EXPECT_GT(recv(manager.get(), state, sizeof(state) - 1, 0), 0);
  EXPECT_STREQ(state, "READY=1");
  std::string output;
  EXPECT_EQ(Run({"health", "--address", "127.0.0.1:" + address}, &output), 0);
  EXPECT_EQ(output, "SERVING\n");
  EXPECT_EQ(Run({"health", "--address", "unix:" + dir_.Path("socket")}, &output), 0);
  EXPECT_EQ(Run(ServeArguments(), &output), 1);
  EXPECT_THAT(output, HasSubstr("locked"));
  EXPECT_EQ(Run({"check", "--pool", dir_.Path("pool")}, &output), 1);
  EXPECT_EQ(server.Stop(), 0) << server.Output();
  EXPECT_EQ(Run({"health", "--address", "127.0.0.1:" + address, "--timeout-seconds", "1"}, &output),
            1);
}

// What was answered as flushed over NBD is there after kill -9, over NBD as well.
TEST_F(ProgramTest, ServesNbdAndKeepsWhatWasFlushed) {
  std::vector<std::string> arguments = ServeArguments();
  arguments.insert(arguments.end(), {"--nbd-listen", "127.0.0.1:0"});
  Program server(arguments, dir_.Path("server"));
  EXPECT_NE(server.LineAfter("nbd on 127.0.0.1:"), "0");
  const auto channel =
      grpc::CreateChannel("unix:" + dir_.Path("socket"), grpc::InsecureChannelCredentials());
  const auto datasets = v1::DatasetService::NewStub(channel);
  grpc::ClientContext context;
  v1::CreateDatasetRequest request;
  request.set_name("d");
  request.set_size_bytes(1 << 20);
  v1::CreateDatasetResponse reply;
  ASSERT_TRUE(datasets->CreateDataset(&context, request, &reply).ok());
  const auto attach = [](const Program& program) {
    const int port = std::stoi(program.LineAfter("nbd on 127.0.0.1:"));
    auto client = std::make_unique<engine::NbdClient>(
        engine::NbdClient::ConnectTcp(static_cast<uint16_t>(port)));
    EXPECT_TRUE(client->Go("d"));
    return client;
  };
  auto client = attach(server);
  EXPECT_EQ(client->Write(0, "flushed"), 0u);
  EXPECT_EQ(client->Flush(), 0u);
  EXPECT_EQ(client->Write(20000, "forced", /*FUA*/ 1), 0u);
  server.Signal(SIGKILL);
  server.Wait();
  EXPECT_TRUE(client->AtEnd());
  Program again(arguments, dir_.Path("again"));
  client = attach(again);
  EXPECT_EQ(client->Read(0, 7).data, "flushed");
  EXPECT_EQ(client->Read(20000, 6).data, "forced");
  EXPECT_EQ(again.Stop(), 0) << again.Output();
  EXPECT_TRUE(client->AtEnd());
}

TEST_F(ProgramTest, ChecksAndCountsAPoolThatIsNotServed) {
  std::string output;
  {
    Program server(ServeArguments(), dir_.Path("server"));
    server.LineAfter("try: ");
    Program client({"health", "--address", "unix:" + dir_.Path("socket")}, dir_.Path("client"));
    EXPECT_EQ(client.Wait(), 0);
    EXPECT_EQ(server.Stop(), 0);
  }
  EXPECT_EQ(Run({"check", "--pool", dir_.Path("pool")}, &output), 0);
  EXPECT_THAT(output, StartsWith("ok: "));
  EXPECT_EQ(Run({"inspect", "--pool", dir_.Path("pool")}, &output), 0);
  EXPECT_THAT(output, HasSubstr("pool.datasets\t0\n"));
  EXPECT_EQ(Run({"inspect", "--json", "--pool", dir_.Path("pool")}, &output), 0);
  EXPECT_THAT(output, HasSubstr("\"datasets\": 0"));
}

TEST_F(ProgramTest, SaysWhatItDoesNotKnowOfAPool) {
  const std::string pool = dir_.Path("pool");
  {
    Program server(ServeArguments(), dir_.Path("server"));
    server.LineAfter("try: ");
    EXPECT_EQ(server.Stop(), 0);
  }
  std::string output;
  engine::ChangeSuperblocks(
      pool, [](engine::Superblock* superblock) { superblock->features.read_only_compatible = 2; });
  EXPECT_EQ(Run(ServeArguments(), &output), 1);
  EXPECT_THAT(output, HasSubstr("blocks uses features that this program may only read"));
  EXPECT_EQ(Run({"check", "--pool", pool}, &output), 0);
  engine::ChangeSuperblocks(
      pool, [](engine::Superblock* superblock) { superblock->features = {.incompatible = 4}; });
  for (const auto& arguments :
       {ServeArguments(), {"check", "--pool", pool}, {"inspect", "--pool", pool}}) {
    EXPECT_EQ(Run(arguments, &output), 1);
    EXPECT_THAT(output, HasSubstr("(incompatible mask 0x4): open the pool with a newer version"));
  }
}

TEST_F(ProgramTest, CheckFindsDamageAndRepairsIt) {
  const std::string pool = dir_.Path("pool");
  std::string output;
  {
    Program server(ServeArguments(), dir_.Path("server"));
    server.LineAfter("try: ");
    EXPECT_EQ(server.Stop(), 0);
  }
  {
    const auto meta = engine::MetaStore::Open(pool + "/meta", /*create=*/false,
                                              /*read_only=*/false, engine::MetaStoreOptions());
    ASSERT_TRUE(meta.ok()) << meta.status();
    const auto txn = (*meta)->BeginWrite();
    ASSERT_TRUE(txn.ok()) << txn.status();
    // The bitmap of region 0: all free.
    ASSERT_TRUE((*txn)
                    ->Put(engine::Table::kRegions, std::string(4, '\0'),
                          std::string(engine::kMaxPayloadBytes, '\0'))
                    .ok());
    ASSERT_TRUE((*txn)->Commit().ok());
  }
  EXPECT_EQ(Run({"check", "--pool", pool}, &output), 1);
  EXPECT_EQ(Run({"check", "--plan", "--pool", pool}, &output), 2);
  EXPECT_EQ(Run({"check", "--repair", "--plan", "--pool", pool}, &output), 1);
  EXPECT_THAT(output, HasSubstr("nothing has been changed"));
  EXPECT_EQ(Run({"check", "--repair", "--pool", pool}, &output), 0);
  EXPECT_THAT(output, HasSubstr("repaired: everything is brought back"));
  EXPECT_EQ(Run({"check", "--pool", pool}, &output), 0);
  EXPECT_EQ(Run({"inspect", "--pool", pool}, &output), 0);
  EXPECT_THAT(output, HasSubstr("meta_copies.count\t0\n"));
  {
    std::fstream file(pool + "/meta/data.mdb", std::ios::binary | std::ios::in | std::ios::out);
    file.write(std::string(8192, '\0').data(), 8192);
  }
  EXPECT_EQ(Run({"check", "--pool", pool}, &output), 1);
  EXPECT_THAT(output, HasSubstr("page structure is damaged"));
  EXPECT_EQ(Run(ServeArguments(), &output), 1);
  EXPECT_THAT(output, HasSubstr("page structure is damaged"));
  EXPECT_EQ(Run({"check", "--repair", "--pool", pool}, &output), 3);
}

TEST_F(ProgramTest, FlagsComeFromEnvironmentAndFileToo) {
  const std::string pool = dir_.Path("other");
  Program server({"serve", "--metrics-listen", "off"}, dir_.Path("server"),
                 {"COWSHED_POOL=" + pool, "COWSHED_CAPACITY=1GiB", "COWSHED_LISTEN=127.0.0.1:0"});
  EXPECT_THAT(server.LineAfter("pool "), StartsWith(pool));
  EXPECT_EQ(server.Stop(), 0);
  std::ofstream(dir_.Path("config"))
      << "[serve]\npool=\"" << pool << "\"\nlisten=\"127.0.0.1:0\"\nmetrics-listen=\"off\"\n";
  Program again({"--config", dir_.Path("config"), "serve"}, dir_.Path("server"));
  EXPECT_THAT(again.LineAfter("pool "), StartsWith(pool));
  EXPECT_EQ(again.Stop(), 0);
}

TEST_F(ProgramTest, SecondSignalIsNotNeeded) {
  Program server(ServeArguments(), dir_.Path("server"), {"COWSHED_LOG_FORMAT=json"});
  server.LineAfter("try: ");
  EXPECT_EQ(server.Stop(), 0);
  EXPECT_THAT(server.Output(),
              HasSubstr("\"level\":\"info\",\"message\":\"Terminated: stopping\""));
}

TEST_F(ProgramTest, HangupReadsPolicyAndCertificateAgain) {
  const Authority authority;
  const auto place = [&](const std::string& name, const std::string& text) {
    std::ofstream(dir_.Path(name)) << text;
    return dir_.Path(name);
  };
  const Certificate certificate = authority.Sign("cowshed.test");
  auto arguments = ServeArguments();
  for (const auto& argument :
       {std::string("--tls-certificate"), place("pem", certificate.pem), std::string("--tls-key"),
        place("key", certificate.key_pem), std::string("--policy"),
        place("policy", R"({"grants": [{"who": ["unix"], "role": "READER"}]})")}) {
    arguments.push_back(argument);
  }
  Program server(arguments, dir_.Path("server"));
  server.LineAfter("try: ");
  const auto datasets = v1::DatasetService::NewStub(
      grpc::CreateChannel("unix:" + dir_.Path("socket"), grpc::InsecureChannelCredentials()));
  const auto create = [&] {
    v1::CreateDatasetRequest request;
    request.set_name("a");
    request.set_size_bytes(4096);
    v1::CreateDatasetResponse reply;
    grpc::ClientContext context;
    return datasets->CreateDataset(&context, request, &reply).error_code();
  };
  EXPECT_EQ(create(), grpc::StatusCode::PERMISSION_DENIED);
  place("policy", "{ broken");
  place("pem", "broken");
  server.Signal(SIGHUP);
  server.WaitFor("error policy not reloaded, the one in force stays: " + dir_.Path("policy"));
  server.WaitFor("error certificate not reloaded, the one in force stays: " + dir_.Path("pem"));
  EXPECT_EQ(create(), grpc::StatusCode::PERMISSION_DENIED);
  place("policy", R"({"grants": [{"who": ["unix"], "role": "OPERATOR"}]})");
  place("pem", certificate.pem);
  server.Signal(SIGHUP);
  server.WaitFor("info policy reloaded");
  server.WaitFor("info certificate reloaded");
  EXPECT_EQ(create(), grpc::StatusCode::OK);
  EXPECT_EQ(server.Stop(), 0);
}

TEST_F(ProgramTest, NoSecretIsEverLogged) {
  const Authority authority;
  const Certificate certificate = authority.Sign("cowshed.test");
  std::ofstream(dir_.Path("pem")) << certificate.pem;
  std::ofstream(dir_.Path("key")) << certificate.key_pem;
  for (const std::string format : {"text", "json"}) {
    auto arguments = ServeArguments();
    for (const auto& argument :
         {std::string("--log-level"), std::string("trace"), std::string("--log-format"), format,
          std::string("--tls-certificate"), dir_.Path("pem"), std::string("--tls-key"),
          dir_.Path("key"), std::string("--audit-log"), dir_.Path("audit-" + format)}) {
      arguments.push_back(argument);
    }
    Program server(arguments, dir_.Path("server"));
    server.LineAfter("try: ");
    const auto channel =
        grpc::CreateChannel("unix:" + dir_.Path("socket"), grpc::InsecureChannelCredentials());
    const auto datasets = v1::DatasetService::NewStub(channel);
    const auto data = v1::DataService::NewStub(channel);
    const std::string bytes = "BYTES-OF-A-DATASET";
    std::vector<std::string> secrets = {bytes};
    for (int i = 0; i < 20; ++i) {
      v1::CreateDatasetRequest create;
      create.set_name(format + std::to_string(i));
      create.set_size_bytes(1 << 20);
      v1::CreateDatasetResponse created;
      EXPECT_TRUE(
          datasets->CreateDataset(std::make_unique<grpc::ClientContext>().get(), create, &created)
              .ok());
      v1::WriteRangeRequest write;
      write.set_dataset(create.name());
      write.set_offset_bytes(i % 2 == 0 ? 0 : 2 << 20);  // every other one is refused
      write.set_data(bytes);
      v1::WriteRangeResponse written;
      data->WriteRange(std::make_unique<grpc::ClientContext>().get(), write, &written);
      v1::ListDatasetsRequest list;
      list.set_page_size(1);
      v1::ListDatasetsResponse page;
      datasets->ListDatasets(std::make_unique<grpc::ClientContext>().get(), list, &page);
      if (i > 0) secrets.push_back(page.next_page_token());
      list.set_page_token(page.next_page_token() + "x");
      datasets->ListDatasets(std::make_unique<grpc::ClientContext>().get(), list, &page);
    }
    server.Signal(SIGHUP);
    server.WaitFor("certificate reloaded");
    EXPECT_EQ(server.Stop(), 0);
    std::istringstream key(certificate.key_pem);
    for (std::string line; std::getline(key, line);) secrets.push_back(line);
    std::ifstream secret_file(dir_.Path("pool/token.secret"), std::ios::binary);
    std::ostringstream secret;
    secret << secret_file.rdbuf();
    ASSERT_EQ(secret.str().size(), kSecretBytes);
    secrets.push_back(secret.str());
    secrets.push_back(absl::BytesToHexString(secret.str()));
    secrets.push_back(absl::Base64Escape(secret.str()));
    std::ostringstream logged;
    logged << server.Output() << std::ifstream(dir_.Path("audit-" + format)).rdbuf();
    EXPECT_THAT(logged.str(), HasSubstr("CreateDataset"));
    for (const auto& text : secrets) {
      ASSERT_GE(text.size(), 8u);
      EXPECT_EQ(logged.str().find(text), std::string::npos) << text;
    }
  }
}

TEST_F(ProgramTest, OpenDoorsAreRefusedByName) {
  std::string output;
  auto arguments = ServeArguments();
  arguments.insert(arguments.end(), {"--listen", "0.0.0.0:0"});
  EXPECT_EQ(Run(arguments, &output), 1);
  EXPECT_THAT(output, HasSubstr("--insecure"));
  arguments.emplace_back("--insecure");
  Program server(arguments, dir_.Path("server"));
  server.WaitFor("everybody who can connect may do everything");
  server.LineAfter("try: ");
  EXPECT_EQ(server.Stop(), 0);
  EXPECT_EQ(Run({"serve", "--unix-mode", "rw"}, &output), 2);
  arguments = ServeArguments();
  arguments.insert(arguments.end(), {"--policy", dir_.Path("none")});
  EXPECT_EQ(Run(arguments, &output), 1);
  EXPECT_THAT(output, HasSubstr(dir_.Path("none")));
}

TEST_F(ProgramTest, UsageErrorsExitWith2) {
  std::string output;
  EXPECT_EQ(Run({}, &output), 2);
  EXPECT_EQ(Run({"serve", "--no-such-flag"}, &output), 2);
  EXPECT_EQ(Run({"serve", "--workers", "0"}, &output), 2);
  EXPECT_EQ(Run({"version"}, &output, {"COWSHED_FAILPOINTS=nonsense"}), 2);
  EXPECT_EQ(Run({"--help"}, &output), 0);
  EXPECT_EQ(Run({"version"}, &output), 0);
  EXPECT_EQ(output, std::string("cowshed ") + COWSHED_VERSION + "\n");
  EXPECT_EQ(Run({"check", "--pool", dir_.Path("none")}, &output), 1);
}

}  // namespace
}  // namespace cowshed::service

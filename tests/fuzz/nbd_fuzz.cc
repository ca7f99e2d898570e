// SPDX-License-Identifier: Apache-2.0
//
// NBD under a fuzzer: its parsers, and whole connections through the real code of the session over
// a small pool.
//
// Model       An input is a client: it says hello, and then steps of which each is an option or a
//             request, well-formed with drawn fields, or bytes as they are. The server's side runs
//             on the fuzzer's thread; another one takes what it answers.
// Invariants  The connection ends when its client has gone; attachments end with it; what is
// decoded
//             keeps its bounds; after every kInputsPerCheck inputs the pool passes its own check.
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

#include "engine/attachments.h"
#include "service/nbd/handshake.h"
#include "service/nbd/transmission.h"
#include "spdlog/spdlog.h"
#include "tests/fuzz/byte_source.h"
#include "tests/support/nbd_client.h"
#include "tests/support/temp_pool.h"

namespace cowshed::fuzz {
namespace {

using engine::Be16;
using engine::Be32;
using engine::Be64;
using engine::NbdClient;
namespace nbd = service::nbd;

constexpr int kInputsPerCheck = 256;
constexpr int kStepsMax = 24;
constexpr uint64_t kSize = 1 << 20;

void Demand(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "LOSS: %s\n", what);
  std::abort();
}

service::Limits SmallLimits() {
  service::Limits limits;
  limits.control_workers = 1;
  limits.data_workers = 1;
  limits.nbd_requests_max = 8;
  limits.nbd_memory_bytes = 1 << 20;
  return limits;
}

// What connections need of a server.
struct Service {
  Service()
      : context(*pool, SmallLimits(), /*certificates=*/false, service::Policy::Of({}),
                /*secret=*/"", /*audit_log=*/nullptr, stats),
        workers(2, 0, stats),
        memory(1 << 20) {
    spdlog::set_level(spdlog::level::off);
    bool made = pool.Create("a", kSize).ok() && pool.Snapshot("a@s").ok();
    made = made && pool.Clone("a@s", "c").ok() && pool.Snapshot("c@t").ok();
    Demand(made, "the pool can be furnished");
  }
  ~Service() {
    workers.Stop();
    context.control.Stop();
    context.callbacks.WaitForNone();
  }

  engine::TempPool pool;
  metrics::ServiceStats stats;
  service::ServiceContext context;
  service::Executor workers;
  nbd::Memory memory;
  nbd::Departures departures;
};

std::string DrawName(ByteSource& source) {
  static constexpr std::array<const char*, 10> kNames = {
      "a", "a@s", "c", "c?shared", "c?read-only", "c@t", "a?shared&read-only", "", "nothing", "a@"};
  const uint8_t choice = source.Take();
  if (choice < 200) return kNames[choice % kNames.size()];
  return std::string(source.Bytes(choice % 32));
}

std::string DrawOption(ByteSource& source) {
  static constexpr std::array<const char*, 7> kQueries = {"base:allocation",
                                                          "base:",
                                                          "cowshed:",
                                                          "cowshed:changed-since:@s",
                                                          "cowshed:changed-since:a@s",
                                                          "cowshed:changed-since:",
                                                          "qemu:dirty-bitmap:x"};
  const uint32_t option = source.Take() % 12;
  std::string data;
  if (option == 1) data = DrawName(source);
  if (option == 6 || option == 7) {
    data = NbdClient::NameAndInfos(DrawName(source), {source.Take(), source.Take()});
  } else if (option == 9 || option == 10) {
    std::vector<std::string> queries(source.Take() % 4);
    for (auto& query : queries) query = kQueries[source.Take() % kQueries.size()];
    data = NbdClient::NameAndQueries(DrawName(source), queries);
  }
  const uint8_t spoil = source.Take();  // a length that lies, now and then
  const uint32_t lie = spoil > 240 ? spoil - 240 : 0;
  return "IHAVEOPT" + Be32(option) + Be32(static_cast<uint32_t>(data.size()) + lie) + data;
}

std::string DrawRequest(ByteSource& source) {
  const uint16_t command = source.Take() % 9;
  const uint16_t flags = source.Take() & 31;
  const uint8_t wild = source.Take();
  uint64_t offset = source.Number<uint32_t>() % (kSize + 1);
  uint32_t length = source.Number<uint16_t>() * (wild % 16 == 1 ? 65537u : 1u);
  if (wild == 255) offset = source.Number<uint64_t>();
  std::string payload;
  if (command == 1) {
    length %= 70000;
    payload = std::string(length, static_cast<char>(source.Take()));
    if (wild == 254) payload.resize(length / 2);
  }
  return Be32(0x25609513) + Be16(flags) + Be16(command) + Be64(wild) + Be64(offset) + Be32(length) +
         payload;
}

std::string Script(ByteSource& source) {
  const uint8_t hello = source.Take();
  std::string script = Be32(hello < 240 ? 3 : hello % 8);
  if (hello % 2 == 0) script += "IHAVEOPT" + Be32(8) + Be32(0);
  bool attached = false;
  for (int i = 0; i < kStepsMax && !source.empty(); ++i) {
    const uint8_t kind = source.Take();
    if (kind >= 250) {
      script += source.Bytes(kind % 8 * 9);
    } else if (kind >= 235 && !attached) {
      script += DrawOption(source);
    } else if (attached) {
      script += DrawRequest(source);
    } else if (kind % 3 == 0) {
      const std::string data = NbdClient::NameAndInfos(DrawName(source));
      script += "IHAVEOPT" + Be32(7) + Be32(static_cast<uint32_t>(data.size())) + data;
      attached = true;
    } else {
      script += DrawOption(source);
    }
  }
  return script;
}

void Serve(Service& service, int fd) {
  nbd::Client client;
  client.peer = service::Peer{.kind = service::Peer::Kind::kUnix};
  client.from = "unix";
  client.holder = "fuzzer";
  const auto waker = std::make_shared<nbd::Waker>();
  nbd::Handshake handshake(service.context, service.departures, nullptr, client,
                           nbd::MakePlainStream(service::FileDescriptor(fd)), waker);
  auto session = handshake.Run();
  if (!session.ok()) return;
  const auto transmission = std::make_shared<nbd::Transmission>(
      service.context, service.workers, service.memory, waker, *std::move(session));
  transmission->Run().IgnoreError();
}

void TryConnection(ByteSource source) {
  static std::unique_ptr<Service> service;
  static int inputs = 0;
  if (service == nullptr) {
    service = std::make_unique<Service>();
    std::atexit([] { service.reset(); });
  }
  const std::string script = Script(source);
  int pair[2];
  Demand(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0, "a socket");
  int flags = 0;  // the client's end may block
  Demand(ioctl(pair[0], FIONBIO, &flags) == 0, "a socket that blocks");
  std::thread takes([&] {
    std::array<char, 65536> bytes;
    while (recv(pair[0], bytes.data(), bytes.size(), 0) > 0) {
    }
  });
  std::thread sends([&] {
    for (size_t sent = 0; sent < script.size();) {
      const ssize_t count = send(pair[0], script.data() + sent, script.size() - sent, MSG_NOSIGNAL);
      if (count <= 0) break;
      sent += static_cast<size_t>(count);
    }
    shutdown(pair[0], SHUT_WR);
  });
  Serve(*service, pair[1]);
  sends.join();
  takes.join();
  close(pair[0]);
  service->context.callbacks.WaitForNone();
  Demand(service->pool->attachments().Count() == 0, "attachments end with their connection");
  if (++inputs % kInputsPerCheck == 0) {
    const auto report = service->pool->Check();
    Demand(report.ok() && report->findings.empty(), "the pool passes its own check");
  }
}

// Parsers alone: far more inputs than connections allow.
void TryParsers(ByteSource source) {
  const std::string bytes(source.Rest());
  const auto all = std::as_bytes(std::span(bytes));
  if (const auto info = nbd::DecodeInfoRequest(all); info.ok()) {
    Demand(info->name.size() <= nbd::kStringBytesMax, "a name keeps its bound");
    Demand(NbdClient::NameAndInfos(info->name, info->infos) == bytes, "infos are all there is");
  }
  if (const auto meta = nbd::DecodeMetaRequest(all); meta.ok()) {
    Demand(NbdClient::NameAndQueries(meta->name, meta->queries) == bytes, "so are queries");
  }
  if (const auto head = nbd::DecodeOptionHead(all); head.ok()) {
    Demand("IHAVEOPT" + Be32(head->option) + Be32(head->data_bytes) == bytes, "so is a head");
  }
  if (const auto name = nbd::ParseExportName(bytes); name.ok()) {
    Demand(bytes.compare(0, name->volume.size(), name->volume) == 0, "a name begins as it does");
  }
  if (all.size() < nbd::kRequestBytes) return;
  const auto request = nbd::DecodeRequest(all.first(nbd::kRequestBytes));
  if (!request.ok()) return;
  const nbd::ExportRules rules = {kSize, bytes.size() % 2 == 0, bytes.size() % 3 == 0, true};
  if (nbd::Judge(*request, rules)) return;
  Demand(request->command <= 7, "only commands there are pass");
  const bool ranged = request->command != 3;
  Demand(!ranged || request->offset_bytes + request->length_bytes <= kSize, "ranges lie within");
}

}  // namespace
}  // namespace cowshed::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  cowshed::fuzz::ByteSource source(data, size);
  if (source.Take() % 4 == 0) {
    cowshed::fuzz::TryParsers(source);
  } else {
    cowshed::fuzz::TryConnection(source);
  }
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
//
// The program `cowshed`: serve, check, inspect, backup, health, version. Flags come from the
// command line, then from the environment (COWSHED_ and the flag's name in capitals), then from a
// file.
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "engine/base/failpoints.h"
#include "service/commands.h"
#include "service/log.h"
#include "spdlog/spdlog.h"

namespace cowshed::service {
namespace {

constexpr int kUsageError = 2;
constexpr uint64_t kMaxThreads = 1024;
constexpr uint64_t kMaxMs = uint64_t{1} << 40;

std::string DefaultPool() {
  const char* const home = std::getenv("HOME");
  if (geteuid() == 0 || home == nullptr) return "/var/lib/cowshed";
  return std::string(home) + "/.local/state/cowshed";
}

void AddBytes(CLI::App& app, const std::string& flag, uint64_t& value, const std::string& help) {
  app.add_option(flag, value, help)->transform(CLI::AsSizeValue(false))->capture_default_str();
}

void AddMilliseconds(CLI::App& app, const std::string& flag, std::chrono::milliseconds& value,
                     const std::string& help) {
  app.add_option_function<int64_t>(
         flag, [&value](int64_t count) { value = std::chrono::milliseconds(count); }, help)
      ->check(CLI::Range(uint64_t{1}, kMaxMs).description(""))
      ->default_str(std::to_string(value.count()));
}

template <typename T>
void AddCount(CLI::App& app, const std::string& flag, T& value, uint64_t max,
              const std::string& help) {
  app.add_option(flag, value, help)
      ->check(CLI::Range(uint64_t{1}, max).description(""))
      ->capture_default_str();
}

void AddPool(CLI::App& app, engine::PoolOptions& pool) {
  pool.directory = DefaultPool();
  app.add_option("--pool", pool.directory, "Directory of the pool")->capture_default_str();
  app.add_option("--blocks", pool.blocks_path,
                 "Data file or block device of the pool, if not `blocks` in its directory");
}

void AddPoolKnobs(CLI::App& app, engine::PoolOptions& pool) {
  AddPool(app, pool);
  AddBytes(app, "--capacity", pool.capacity_bytes,
           "Most bytes a new pool takes of the host, e.g. 100GiB; 0: what is free there");
  app.add_flag("!--no-create", pool.create_if_missing, "Fail where there is no pool");
  AddBytes(app, "--meta-reserve", pool.meta_reserve_bytes,
           "Bytes of metadata kept allocated so that a full host can still delete");
  AddBytes(app, "--blocks-reserve", pool.blocks_reserve_bytes,
           "Bytes of data kept back for discards; at least 1/32 of the capacity");
  AddBytes(
      app, "--intent-log", pool.intent_log_max_bytes,
      "Most bytes of the ring for durable writes, made with the first; 0: they wait for a txg");
  AddMilliseconds(app, "--txg-interval-ms", pool.txg_interval,
                  "Longest time an unflushed write stays volatile");
  AddBytes(app, "--txg-dirty", pool.txg_dirty_bytes, "Bytes of writes that close a txg");
  AddBytes(app, "--dirty-max", pool.dirty_max_bytes,
           "Bytes of writes in memory beyond which writers wait");
  AddMilliseconds(app, "--sync-target-ms", pool.sync_target,
                  "How long a sync may take before the dirty limit shrinks");
  AddMilliseconds(app, "--write-wait-ms", pool.write_wait_max,
                  "How long a write waits for space before it is refused");
  AddBytes(app, "--node-cache", pool.node_cache_bytes, "Bytes of nodes kept in memory");
  AddCount(app, "--livelist-max-entries", pool.livelist_max_entries, uint64_t{1} << 32,
           "Blocks in a sublist before the next one starts");
  AddCount(app, "--operations-kept-ms", pool.operations_kept_ms, kMaxMs,
           "How long finished operations can be asked for");
  AddCount(app, "--requests-kept-ms", pool.requests_kept_ms, kMaxMs,
           "How long a request_id is remembered");
  app.add_option_function<uint64_t>(
         "--meta-copy-interval-ms",
         [&pool](uint64_t count) { pool.meta_copy_interval = std::chrono::milliseconds(count); },
         "How old the newest copy of the metadata in the pool may get; 0: none are made")
      ->check(CLI::Range(uint64_t{0}, kMaxMs).description(""))
      ->default_str(std::to_string(pool.meta_copy_interval.count()));
  app.add_flag("!--no-punch", pool.punch_holes, "Do not give freed space back to the host");
}

void AddProtection(CLI::App& app, ServeOptions& options) {
  app.add_option("--policy", options.policy,
                 "File that says who may do what (docs/security.md); SIGHUP reads it again");
  app.add_flag("--insecure", options.insecure,
               "Listen without TLS where other machines can connect, too");
  app.add_option("--unix-mode", options.unix_mode, "Mode of unix sockets, octal")
      ->check([](const std::string& text) {
        const bool octal = text.find_first_not_of("01234567") == std::string::npos;
        return octal && !text.empty() && text.size() <= 4 ? "" : "an octal mode such as 0660";
      })
      ->capture_default_str();
  app.add_option("--unix-allow-uid", options.unix_allow_uids,
                 "User who may do everything on a unix socket; without: whoever may open it")
      ->delimiter(',');
  app.add_option("--audit-log", options.audit.path,
                 "File of JSON lines: all calls that change something, and all that are denied");
  AddBytes(app, "--audit-log-bytes", options.audit.file_bytes,
           "Size at which the audit log goes on in a new file");
  AddCount(app, "--audit-log-files", options.audit.files, 10000,
           "Old files of the audit log that are kept");
}

void AddServer(CLI::App& app, ServeOptions& options) {
  options.listen = {"127.0.0.1:7420"};
  options.metrics_listen = "127.0.0.1:9742";
  app.add_option("--listen", options.listen,
                 "Where to serve gRPC: HOST:PORT or unix:PATH, repeatable; port 0: any")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--metrics-listen", options.metrics_listen,
                 "Where to serve metrics: HOST:PORT; off: nowhere")
      ->capture_default_str();
  Limits& limits = options.limits;
  AddCount(app, "--workers", limits.data_workers, kMaxThreads,
           "Threads for calls that read and write bytes");
  AddCount(app, "--control-workers", limits.control_workers, kMaxThreads,
           "Threads for all other calls");
  AddCount(app, "--queue-max", limits.queue_max, 1 << 20,
           "Calls that wait for a thread before more are refused");
  AddCount(app, "--data-queue-max", limits.data_queue_max, 1 << 20,
           "The same for calls that read and write bytes: each may take 1 MiB of memory");
  AddCount(app, "--max-data-streams", limits.streams_max, 1 << 16,
           "Open Read, Write and Diff streams");
  AddCount(app, "--max-connections", limits.connections_max, 1 << 20, "Open client connections");
  AddMilliseconds(app, "--stall-timeout-ms", limits.stall_timeout,
                  "A client that takes nothing of its stream for that long is cut");
  AddMilliseconds(app, "--idle-timeout-ms", limits.idle_timeout,
                  "A Write whose client sends nothing for that long is cut");
  AddMilliseconds(app, "--handshake-timeout-ms", limits.handshake_timeout,
                  "A TCP connection that is no HTTP/2 after that long is closed");
  AddMilliseconds(app, "--connection-idle-ms", limits.connection_idle,
                  "A connection without a call for that long is closed");
  AddBytes(app, "--rpc-memory", limits.rpc_memory_bytes,
           "Most bytes that connections and requests on their way may take together");
  AddMilliseconds(app, "--drain-timeout-ms", limits.drain_timeout,
                  "How long calls under way may take when the server stops");
  app.add_option("--tls-certificate", options.tls.certificate, "PEM file: TLS on TCP listeners");
  app.add_option("--tls-key", options.tls.key, "PEM file: the certificate's key");
  app.add_option("--tls-client-ca", options.tls.client_ca,
                 "PEM file: TCP clients must show a certificate of this authority");
  app.add_option("--admin", options.admins, "Name in a client certificate: may do everything")
      ->delimiter(',');
  app.add_option("--reader", options.readers, "Name in a client certificate: may change nothing")
      ->delimiter(',');
  AddProtection(app, options);
}

void AddNbd(CLI::App& app, ServeOptions& options) {
  app.add_option("--nbd-listen", options.nbd_listen,
                 "Where to serve datasets as block devices over NBD: unix:PATH or HOST:PORT, "
                 "repeatable; without: nowhere")
      ->delimiter(',');
  Limits& limits = options.limits;
  AddCount(app, "--nbd-max-connections", limits.nbd_connections_max, 1 << 14,
           "Open NBD connections");
  AddCount(app, "--nbd-workers", limits.nbd_workers, kMaxThreads,
           "Threads for NBD requests that wait for the disk");
  AddCount(app, "--nbd-max-requests", limits.nbd_requests_max, 1 << 16,
           "Unanswered requests of an NBD connection before no more are read");
  AddBytes(app, "--nbd-memory", limits.nbd_memory_bytes,
           "Most bytes that replies to NBD clients may take together");
}

// Gives each flag its variable: --metrics-listen is COWSHED_METRICS_LISTEN.
void AddEnvironment(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    if (option->get_lnames().empty() || option->get_lnames()[0] == "help") continue;
    std::string name = "COWSHED_" + option->get_lnames()[0];
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) {
      return c == '-' ? '_' : static_cast<char>(std::toupper(c));
    });
    option->envname(name);
  }
}

void AddCheck(CLI::App& command, CheckOptions& check) {
  AddPool(command, check.pool);
  CLI::Option* const repair =
      command.add_flag("--repair", check.repair, "Repair what is damaged; says what it does");
  command.add_flag("--plan", check.plan, "Say what a repair would do, and change nothing")
      ->needs(repair);
  command
      .add_flag("--from-copy", check.from_copy,
                "Go back to the newest copy of the metadata in the pool")
      ->needs(repair);
  command
      .add_flag("--drop-intent-log", check.drop_log,
                "Give up what only the intent log holds, should it keep the pool from opening")
      ->needs(repair);
}

absl::Status ArmFailpoints() {
  const char* const points = std::getenv("COWSHED_FAILPOINTS");
  return points == nullptr ? absl::OkStatus() : engine::Failpoints::Arm(points);
}

int Main(int argc, char** argv) {
  CLI::App app("Cowshed: a storage service for datasets that are cloned and thrown away");
  app.require_subcommand(1);
  app.fallthrough();
  app.set_config("--config", "", "File of flags; those of a command below [its name]");
  std::string log_format = "text";
  std::string log_level = "info";
  app.add_option("--log-format", log_format, "text or json")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  app.add_option("--log-level", log_level, "trace, debug, info, warning, error, critical or off")
      ->check(CLI::IsMember({"trace", "debug", "info", "warning", "error", "critical", "off"}))
      ->capture_default_str();

  ServeOptions serve;
  CLI::App* const serve_app = app.add_subcommand("serve", "Serve a pool");
  AddPoolKnobs(*serve_app, serve.pool);
  AddServer(*serve_app, serve);
  AddNbd(*serve_app, serve);
  CheckOptions check;
  CLI::App* const check_app =
      app.add_subcommand("check", "Check a pool that is not served; exit 1 if it is damaged");
  AddCheck(*check_app, check);
  engine::PoolOptions inspected;
  bool json = false;
  CLI::App* const inspect_app =
      app.add_subcommand("inspect", "Count what a pool that is not served holds");
  AddPool(*inspect_app, inspected);
  inspect_app->add_flag("--json", json, "One JSON document instead of lines");
  engine::PoolOptions copied;
  std::string directory, served;
  CLI::App* const backup_app =
      app.add_subcommand("backup", "Copy a pool to a directory, as a pool of its own");
  AddPool(*backup_app, copied);
  backup_app->add_option("--address", served,
                         "The server of the pool, where it is served: HOST:PORT or unix:PATH");
  backup_app->add_option("directory", directory, "Empty or absent; on the server's host")
      ->required();
  std::string address = "127.0.0.1:7420";
  int timeout_seconds = 5;
  CLI::App* const health_app =
      app.add_subcommand("health", "Ask a server whether it serves; exit 1 if not");
  health_app->add_option("--address", address, "Where: HOST:PORT or unix:PATH")
      ->capture_default_str();
  AddCount(*health_app, "--timeout-seconds", timeout_seconds, 3600,
           "How long to wait for the answer");
  app.add_subcommand("version", "Print the version");
  for (CLI::App* command : {&app, serve_app, check_app, inspect_app, backup_app, health_app}) {
    AddEnvironment(*command);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsageError;
  }
  SetUpLog(log_format, log_level);
  if (const absl::Status armed = ArmFailpoints(); !armed.ok()) {
    spdlog::error("COWSHED_FAILPOINTS: {}", std::string(armed.message()));
    return kUsageError;
  }
  if (serve_app->parsed()) return Serve(serve);
  if (check_app->parsed()) return Check(check);
  if (inspect_app->parsed()) return Inspect(inspected, json);
  if (backup_app->parsed()) {
    return served.empty() ? Backup(copied, directory) : BackupServed(served, directory);
  }
  if (health_app->parsed()) return Health(address, timeout_seconds);
  std::printf("cowshed %s\n", COWSHED_VERSION);
  return 0;
}

}  // namespace
}  // namespace cowshed::service

int main(int argc, char** argv) { return cowshed::service::Main(argc, argv); }

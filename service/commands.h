// SPDX-License-Identifier: Apache-2.0
//
// The commands of the program `cowshed`. Each returns the program's exit code: 0 for done, 1 for
// refused, failed or found wanting. main.cc parses the command line into their options.
//
// Threads     Called once, on the main thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/options.h"
#include "service/server.h"

namespace cowshed::service {

struct ServeOptions {
  engine::PoolOptions pool;
  std::vector<std::string> listen;
  std::vector<std::string> nbd_listen;  // empty: NBD is not served
  std::string metrics_listen;           // HOST:PORT; empty or `off`: no metrics
  Limits limits;
  TlsPaths tls;
  std::vector<std::string> admins, readers;  // names in client certificates
  std::vector<uint32_t> unix_allow_uids;     // empty: whoever may open the socket
  std::string policy;                        // path; empty: what the flags above say
  std::string unix_mode = "0660";            // octal
  bool insecure = false;
  AuditLog::Options audit;
};

// Serves until SIGTERM or SIGINT, then stops in order; a second signal kills.
int Serve(const ServeOptions& options);

struct CheckOptions {
  engine::PoolOptions pool;
  bool repair = false;     // what is damaged is repaired
  bool plan = false;       // with `repair`: only says what it would do
  bool from_copy = false;  // with `repair`: to the newest copy of the metadata, damaged or not
  bool drop_log = false;   // with `repair`: without what only the intent log holds
};

// Recomputes all invariants of a pool that nobody serves, prints what it finds and, if asked to,
// repairs it. 0: clean, or repaired wholly; 1: damage is there, or some remains; 3: cannot be
// repaired, for there is nothing to stand on.
int Check(const CheckOptions& options);

// Recounts what a pool that nobody serves holds, from its records instead of its counters.
int Inspect(const engine::PoolOptions& options, bool json);

// Copies a pool that nobody serves to `directory`, as a pool of its own.
int Backup(const engine::PoolOptions& options, const std::string& directory);

// Has the server at `address` copy its pool to `directory` on its host, and waits for that.
int BackupServed(const std::string& address, const std::string& directory);

// Asks the server at `address` whether it serves.
int Health(const std::string& address, int timeout_seconds);

}  // namespace cowshed::service

// SPDX-License-Identifier: Apache-2.0
//
// The NBD server over one pool: listens, and serves each connection on a thread of its own.
//
// Model       A connection is a handshake, then a transmission (their headers say the rest). On TCP
//             it must be encrypted where the server has certificates.
// Leases      Connections over one unix socket of one process are one holder: they share the writer
//             lease. On TCP each connection is its own: nothing tells whose it is.
// Stopping    No new connections; requests that come are answered ESHUTDOWN; those in flight get
//             drain_timeout. What was answered as flushed is durable, as always.
// Threads     Start, Stop and BeginStop from one thread; Install from any one. One thread listens,
//             one per connection, and some workers.
// Ownership   Borrows the service's context, which outlives it and all callbacks of the pool.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/mutex.h"
#include "service/context.h"
#include "service/executor.h"
#include "service/listener.h"
#include "service/nbd/departures.h"
#include "service/nbd/exports.h"
#include "service/nbd/memory.h"
#include "service/nbd/tls_stream.h"
#include "service/nbd/waker.h"

namespace cowshed::service::nbd {

class NbdServer {
 public:
  // Listens on `listen` (`unix:PATH` or `HOST:PORT` each), without accepting yet.
  static absl::StatusOr<std::unique_ptr<NbdServer>> Listen(ServiceContext& context,
                                                           const std::vector<std::string>& listen,
                                                           const ListenOptions& sockets,
                                                           const TlsOptions& tls);
  ~NbdServer() { Stop(); }

  absl::Status Start();
  // Says to all connections that the server stops, without waiting for them.
  void BeginStop() ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits for them. Idempotent.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

  // Connections to come use other certificates. REQUIRES: it has some.
  absl::Status Install(const TlsOptions& tls) { return tls_->Install(tls); }
  bool encrypts() const { return tls_ != nullptr; }
  // With the ports chosen.
  const std::vector<std::string>& addresses() const { return addresses_; }

 private:
  struct Running {
    std::shared_ptr<Waker> waker;
    std::thread thread;
  };

  explicit NbdServer(ServiceContext& context);

  // On the listener's thread.
  void Accept(Connection connection) ABSL_LOCKS_EXCLUDED(mutex_);
  // On the connection's.
  void Serve(uint64_t number, Connection connection, const std::shared_ptr<Waker>& waker);
  absl::Status Converse(Client& client, FileDescriptor socket, bool local,
                        const std::shared_ptr<Waker>& waker);
  void Forget(uint64_t number) ABSL_LOCKS_EXCLUDED(mutex_);
  void JoinEnded() ABSL_LOCKS_EXCLUDED(mutex_);

  ServiceContext& context_;
  std::vector<std::string> addresses_;
  std::unique_ptr<TlsServer> tls_;
  Memory memory_;
  Departures departures_;
  Executor workers_;
  std::unique_ptr<Listener> listener_;

  engine::Mutex mutex_{engine::LockRank::kNbdServer};
  engine::CondVar none_;
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<uint64_t, Running> running_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> ended_ ABSL_GUARDED_BY(mutex_);  // to be joined
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace cowshed::service::nbd

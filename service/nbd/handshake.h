// SPDX-License-Identifier: Apache-2.0
//
// The first part of a connection: greeting and options, until the client attaches an export or
// goes. Fixed newstyle.
//
// Model       One option after another, each read to its end and answered before the next. On a
//             connection that must be encrypted, nothing but STARTTLS and ABORT is heard before it
//             is; then all that was settled in the clear is forgotten.
// Bounds      Time over all, number of options, bytes of an option. Past the first or the second
//             the connection ends; an option that is too long is answered so, if it is not absurd.
// Errors      Run: CANCELLED when the client went or is asked to, DEADLINE_EXCEEDED,
//             INVALID_ARGUMENT for what is no NBD, UNAVAILABLE for TLS and for a socket that
//             failed.
// Threads     The connection's own.
// Ownership   Owns the stream until it hands it on in the session; the waker is shared.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "service/context.h"
#include "service/nbd/exports.h"
#include "service/nbd/meta_context.h"
#include "service/nbd/stream.h"
#include "service/nbd/tls_stream.h"
#include "service/nbd/waker.h"
#include "service/nbd/wire.h"

namespace cowshed::service::nbd {

// What a handshake comes to.
struct Session {
  std::unique_ptr<Stream> stream;
  Export exported;
  bool structured = false;
  std::vector<MetaContext> contexts;
};

class Handshake {
 public:
  static constexpr uint32_t kOptionsMax = 1024;
  static constexpr uint32_t kOptionBytesMax = 64 << 10;        // more is answered "too big"
  static constexpr uint32_t kSkippedOptionBytesMax = 1 << 20;  // still more ends the connection

  // `tls`: null where there is none to be had. `client` becomes who he proves to be under TLS.
  Handshake(ServiceContext& context, Departures& departures, TlsServer* tls, Client& client,
            std::unique_ptr<Stream> stream, std::shared_ptr<Waker> waker);

  absl::StatusOr<Session> Run();

 private:
  using Bytes = std::span<const std::byte>;

  // Answers one option; sets session_ if it was the last one.
  absl::Status Answer(uint32_t option, Bytes data);
  absl::Status AnswerExportName(Bytes data);
  absl::Status AnswerList(Bytes data);
  absl::Status AnswerStartTls(Bytes data);
  absl::Status AnswerInfo(uint32_t option, Bytes data);
  absl::Status AnswerStructuredReply(Bytes data);
  absl::Status AnswerMetaContext(uint32_t option, Bytes data);
  absl::Status SendInfos(uint32_t option, const ExportInfo& info,
                         const std::vector<uint16_t>& wanted);
  absl::StatusOr<Export> Attach(const std::string& name);
  // DF is about structured replies.
  uint16_t FlagsOf(const ExportInfo& info) const;
  // Leaves for transmission.
  void Settle(const std::string& name, Export exported);

  absl::Status Receive(std::span<std::byte> into);
  absl::Status Skip(uint32_t size_bytes);
  absl::Status Send(std::string_view bytes);
  absl::Status Reply(uint32_t option, OptionReply type, std::string_view data = {});
  absl::Status ReplyError(uint32_t option, const absl::Status& status);
  absl::Status Wait(short events);

  ServiceContext& context_;
  TlsServer* const tls_;
  Client& client_;
  Exports exports_;
  std::unique_ptr<Stream> stream_;
  const std::shared_ptr<Waker> waker_;
  const Clock::time_point deadline_;

  bool encrypted_ = false;
  bool zeroes_ = true;  // the client wants the padding of old
  bool structured_ = false;
  std::string contexts_of_;  // the export that the contexts were settled for
  std::vector<MetaContext> contexts_;
  std::optional<Session> session_;
};

}  // namespace cowshed::service::nbd

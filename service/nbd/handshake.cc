// SPDX-License-Identifier: Apache-2.0
#include "service/nbd/handshake.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "service/nbd/errors.h"
#include "service/nbd/request_rules.h"

namespace cowshed::service::nbd {
namespace {

absl::Status Gone() { return absl::CancelledError("the client has gone"); }

// What a negative count of a stream means.
absl::Status Failed(ssize_t count) {
  if (count == -EPIPE || count == -ECONNRESET) return Gone();
  return absl::UnavailableError(strerror(static_cast<int>(-count)));
}

std::string TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

constexpr uint32_t Number(Option option) { return static_cast<uint32_t>(option); }

}  // namespace

Handshake::Handshake(ServiceContext& context, Departures& departures, TlsServer* tls,
                     Client& client, std::unique_ptr<Stream> stream, std::shared_ptr<Waker> waker)
    : context_(context),
      tls_(tls),
      client_(client),
      exports_(context, departures, client),
      stream_(std::move(stream)),
      waker_(std::move(waker)),
      deadline_(Clock::now() + context.limits.handshake_timeout) {}

absl::StatusOr<Session> Handshake::Run() {
  RETURN_IF_ERROR(Send(EncodeGreeting()));
  std::array<std::byte, kClientFlagsBytes> flags;
  RETURN_IF_ERROR(Receive(flags));
  const auto low = static_cast<uint16_t>(flags[3]);
  if (flags[0] != std::byte{0} || flags[1] != std::byte{0} || flags[2] != std::byte{0} ||
      (low & ~(kFixedNewstyle | kNoZeroes)) != 0) {
    return absl::InvalidArgumentError("the client has flags that NBD has not");
  }
  zeroes_ = (low & kNoZeroes) == 0;
  std::vector<std::byte> data;
  for (uint32_t i = 0; i < kOptionsMax; ++i) {
    std::array<std::byte, kOptionHeadBytes> bytes;
    RETURN_IF_ERROR(Receive(bytes));
    ASSIGN_OR_RETURN(const OptionHead head, DecodeOptionHead(bytes));
    if (head.data_bytes > kOptionBytesMax) {
      RETURN_IF_ERROR(Skip(head.data_bytes));
      RETURN_IF_ERROR(Reply(head.option, OptionReply::kTooBig, "the option is too long"));
      continue;
    }
    data.resize(head.data_bytes);
    RETURN_IF_ERROR(Receive(data));
    RETURN_IF_ERROR(Answer(head.option, data));
    if (session_) return *std::move(session_);
  }
  return absl::InvalidArgumentError(engine::StrCat("more than ", kOptionsMax, " options"));
}

absl::Status Handshake::Answer(uint32_t option, Bytes data) {
  if (option == Number(Option::kAbort)) {
    RETURN_IF_ERROR(Reply(option, OptionReply::kAck));
    return Gone();
  }
  if (option == Number(Option::kStartTls)) return AnswerStartTls(data);
  if (tls_ != nullptr && !encrypted_) {
    // EXPORT_NAME has no way to be refused but this.
    if (option == Number(Option::kExportName)) {
      return absl::InvalidArgumentError("the client attaches without the encryption demanded");
    }
    return Reply(option, OptionReply::kTlsRequired, "this server demands STARTTLS first");
  }
  switch (static_cast<Option>(option)) {
    case Option::kExportName:
      return AnswerExportName(data);
    case Option::kList:
      return AnswerList(data);
    case Option::kInfo:
    case Option::kGo:
      return AnswerInfo(option, data);
    case Option::kStructuredReply:
      return AnswerStructuredReply(data);
    case Option::kListMetaContext:
    case Option::kSetMetaContext:
      return AnswerMetaContext(option, data);
    default:
      return Reply(option, OptionReply::kUnsupported, "the server does not know this option");
  }
}

absl::StatusOr<Export> Handshake::Attach(const std::string& name) {
  return exports_.Attach(name, [waker = std::weak_ptr<Waker>(waker_),
                                grace = context_.limits.drain_timeout](const absl::Status& why) {
    if (const auto alive = waker.lock()) alive->End(why, Clock::now() + grace);
  });
}

uint16_t Handshake::FlagsOf(const ExportInfo& info) const {
  return static_cast<uint16_t>(structured_ ? info.flags : info.flags & ~export_flags::kSendDf);
}

void Handshake::Settle(const std::string& name, Export exported) {
  Session& session = session_.emplace();
  session.stream = std::move(stream_);
  session.exported = std::move(exported);
  session.structured = structured_;
  if (name == contexts_of_) session.contexts = std::move(contexts_);
}

absl::Status Handshake::AnswerExportName(Bytes data) {
  const std::string name = TextOf(data);
  auto exported = Attach(name);
  if (!exported.ok()) {
    return absl::CancelledError(exported.status().message());
  }
  RETURN_IF_ERROR(Send(EncodeExport(exported->info.size_bytes, FlagsOf(exported->info), zeroes_)));
  Settle(name, *std::move(exported));
  return absl::OkStatus();
}

absl::Status Handshake::AnswerList(Bytes data) {
  const uint32_t option = Number(Option::kList);
  if (!data.empty()) return Reply(option, OptionReply::kInvalid, "LIST has no data");
  const auto names = exports_.List();
  if (!names.ok()) return ReplyError(option, names.status());
  std::string replies;
  for (const std::string& name : *names) {
    replies += EncodeOptionReply(option, OptionReply::kServer, EncodeServer(name));
  }
  return Send(replies + EncodeOptionReply(option, OptionReply::kAck));
}

absl::Status Handshake::AnswerStartTls(Bytes data) {
  const uint32_t option = Number(Option::kStartTls);
  if (!data.empty() || encrypted_) {
    return Reply(option, OptionReply::kInvalid,
                 encrypted_ ? "TLS has begun already" : "STARTTLS has no data");
  }
  if (tls_ == nullptr) {
    return Reply(option, OptionReply::kUnsupported, "this server has no TLS here");
  }
  RETURN_IF_ERROR(Reply(option, OptionReply::kAck));
  ASSIGN_OR_RETURN(TlsConnection connection, tls_->Accept(std::move(stream_), *waker_, deadline_));
  stream_ = std::move(connection.stream);
  encrypted_ = true;
  structured_ = false;
  contexts_.clear();
  contexts_of_.clear();
  client_.peer = context_.access.TcpPeer(connection.names);
  if (!connection.names.empty()) {
    client_.text = engine::StrCat("cert:", connection.names.front(), " ", client_.from);
  }
  return absl::OkStatus();
}

absl::Status Handshake::AnswerInfo(uint32_t option, Bytes data) {
  const auto request = DecodeInfoRequest(data);
  if (!request.ok()) return ReplyError(option, request.status());
  if (option == Number(Option::kInfo)) {
    const auto info = exports_.Look(request->name);
    if (!info.ok()) return ReplyError(option, info.status());
    RETURN_IF_ERROR(SendInfos(option, *info, request->infos));
    return absl::OkStatus();
  }
  auto exported = Attach(request->name);
  if (!exported.ok()) return ReplyError(option, exported.status());
  RETURN_IF_ERROR(SendInfos(option, exported->info, request->infos));
  Settle(request->name, *std::move(exported));
  return absl::OkStatus();
}

absl::Status Handshake::SendInfos(uint32_t option, const ExportInfo& info,
                                  const std::vector<uint16_t>& wanted) {
  const auto wants = [&](Info kind) {
    return std::find(wanted.begin(), wanted.end(), static_cast<uint16_t>(kind)) != wanted.end();
  };
  std::string replies;
  const auto add = [&](const std::string& data) {
    replies += EncodeOptionReply(option, OptionReply::kInfo, data);
  };
  add(EncodeInfoExport(info.size_bytes, FlagsOf(info)));
  if (wants(Info::kName)) add(EncodeInfoText(Info::kName, info.name));
  if (wants(Info::kDescription)) {
    const bool snapshot = info.name.find('@') != std::string::npos;
    add(EncodeInfoText(Info::kDescription, engine::StrCat(snapshot ? "snapshot" : "dataset",
                                                          " of Cowshed, uid ", info.uid)));
  }
  // Unasked, too: any size will do, this one is the best.
  add(EncodeInfoBlockSize(1, info.block_bytes, kPayloadBytesMax));
  return Send(replies + EncodeOptionReply(option, OptionReply::kAck));
}

absl::Status Handshake::AnswerStructuredReply(Bytes data) {
  const uint32_t option = Number(Option::kStructuredReply);
  if (!data.empty()) return Reply(option, OptionReply::kInvalid, "STRUCTURED_REPLY has no data");
  if (structured_) return Reply(option, OptionReply::kInvalid, "replies are structured already");
  structured_ = true;
  return Reply(option, OptionReply::kAck);
}

absl::Status Handshake::AnswerMetaContext(uint32_t option, Bytes data) {
  const bool set = option == Number(Option::kSetMetaContext);
  if (set) {
    contexts_.clear();
    contexts_of_.clear();
  }
  if (!structured_) {
    return Reply(option, OptionReply::kInvalid, "metadata contexts need structured replies");
  }
  const auto request = DecodeMetaRequest(data);
  if (!request.ok()) return ReplyError(option, request.status());
  const auto info = exports_.Look(request->name);
  if (!info.ok()) return ReplyError(option, info.status());
  std::vector<MetaContext> found =
      FindContexts(context_.pool, exports_, *info, request->queries, !set);
  std::string replies;
  for (const MetaContext& context : found) {
    // Only those that are set have a number.
    replies += EncodeOptionReply(option, OptionReply::kMetaContext,
                                 EncodeMetaContext(set ? context.id : 0, context.name));
  }
  if (set) {
    contexts_of_ = request->name;
    contexts_ = std::move(found);
  }
  return Send(replies + EncodeOptionReply(option, OptionReply::kAck));
}

// --- the socket ---

absl::Status Handshake::Wait(short events) {
  switch (WaitFor(stream_->fd(), events, *waker_, deadline_)) {
    case Woken::kReady:
      return absl::OkStatus();
    case Woken::kEnding:
      return absl::CancelledError("the connection is to end");
    case Woken::kTimeout:
      break;
  }
  return absl::DeadlineExceededError("the handshake took too long");
}

absl::Status Handshake::Receive(std::span<std::byte> into) {
  while (!into.empty()) {
    const ssize_t count = stream_->Receive(into);
    if (count == 0) return Gone();
    if (count == -EAGAIN) {
      RETURN_IF_ERROR(Wait(POLLIN));
    } else if (count < 0) {
      return Failed(count);
    } else {
      into = into.subspan(static_cast<size_t>(count));
    }
  }
  return absl::OkStatus();
}

absl::Status Handshake::Skip(uint32_t size_bytes) {
  if (size_bytes > kSkippedOptionBytesMax) {
    return absl::InvalidArgumentError(engine::StrCat("an option of ", size_bytes, " bytes"));
  }
  std::array<std::byte, 4096> bytes;
  while (size_bytes > 0) {
    const auto part = std::min<uint32_t>(size_bytes, bytes.size());
    RETURN_IF_ERROR(Receive(std::span(bytes).first(part)));
    size_bytes -= part;
  }
  return absl::OkStatus();
}

absl::Status Handshake::Send(std::string_view bytes) {
  while (!bytes.empty()) {
    const iovec part = {const_cast<char*>(bytes.data()), bytes.size()};
    const ssize_t count = stream_->Send({&part, 1});
    if (count == -EAGAIN) {
      RETURN_IF_ERROR(Wait(stream_->send_wants_input() ? POLLIN : POLLOUT));
    } else if (count < 0) {
      return Failed(count);
    } else {
      bytes.remove_prefix(static_cast<size_t>(count));
    }
  }
  return absl::OkStatus();
}

absl::Status Handshake::Reply(uint32_t option, OptionReply type, std::string_view data) {
  return Send(EncodeOptionReply(option, type, data));
}

absl::Status Handshake::ReplyError(uint32_t option, const absl::Status& status) {
  // It may quote the client, whose names may be as long as a string of the protocol may be.
  return Reply(option, OptionReplyOf(status),
               engine::StdView(status.message()).substr(0, kStringBytesMax));
}

}  // namespace cowshed::service::nbd

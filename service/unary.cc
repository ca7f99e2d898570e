// SPDX-License-Identifier: Apache-2.0
#include "service/unary.h"

#include "engine/base/strings.h"
#include "service/digest.h"

namespace cowshed::service {
namespace {

// Finds room for the request.
absl::Status Admit(ServiceContext& context, const google::protobuf::Message& request,
                   std::shared_ptr<const void>* memory) {
  const size_t size_bytes = request.ByteSizeLong();
  if (size_bytes <= RequestMemory::kSmallRequestBytes) return absl::OkStatus();
  if (size_bytes > kMaxRequestBytes) {
    return Error(
        absl::StatusCode::kInvalidArgument, v1::MESSAGE_TOO_LARGE,
        engine::StrCat("a request of ", size_bytes, " bytes, at most ", kMaxRequestBytes),
        {{"limit", std::to_string(kMaxRequestBytes)}, {"size_bytes", std::to_string(size_bytes)}});
  }
  *memory = context.request_memory.Take(size_bytes);
  return *memory == nullptr ? Busy() : absl::OkStatus();
}

}  // namespace

absl::Status Busy() {
  return Error(absl::StatusCode::kResourceExhausted, v1::SERVER_BUSY,
               "the queue of requests is full; try again");
}

grpc::ServerUnaryReactor* BeginHere(ServiceContext& context, grpc::CallbackServerContext* rpc,
                                    Effect effect, const google::protobuf::Message& request,
                                    absl::FunctionRef<void(const Call&)> work) {
  grpc::ServerUnaryReactor* reactor = rpc->DefaultReactor();
  Call call{context, rpc, reactor, "", nullptr};
  auto caller = context.access.Admit(*rpc, request.GetDescriptor()->name(), effect);
  if (context.stopping) {
    call.Finish(Stopping());
  } else if (!caller.ok()) {
    call.Finish(caller.status());
  } else {
    call.caller = *std::move(caller);
    const absl::Status fits = Admit(context, request, &call.memory);
    if (!fits.ok()) {
      call.Finish(fits);
      return reactor;
    }
    work(call);
  }
  return reactor;
}

grpc::ServerUnaryReactor* Begin(ServiceContext& context, grpc::CallbackServerContext* rpc,
                                Executor& executor, Effect effect,
                                const google::protobuf::Message& request,
                                absl::AnyInvocable<void(const Call&)> work) {
  return BeginHere(context, rpc, effect, request, [&](const Call& admitted) {
    const bool taken = executor.TrySubmit([call = admitted, work = std::move(work)]() mutable {
      if (call.rpc->IsCancelled()) return call.Finish(absl::CancelledError());
      work(call);
    });
    if (!taken) admitted.Finish(Busy());
  });
}

engine::Idempotency MakeRequestKey(const std::string& caller,
                                   const google::protobuf::Message& request,
                                   const std::string& request_id,
                                   std::function<std::string(const engine::Outcome&)> encode) {
  if (request_id.empty()) return std::nullopt;
  const std::unique_ptr<google::protobuf::Message> contents(request.New());
  contents->CopyFrom(request);
  const auto* descriptor = contents->GetDescriptor();
  contents->GetReflection()->ClearField(contents.get(), descriptor->FindFieldByName("request_id"));
  engine::RequestKey key;
  // Lengths first: no caller can be named so that his keys collide with another's.
  key.key = engine::StrCat(caller.size(), ":", caller, " ", descriptor->name(), " ", request_id);
  key.fingerprint = Fingerprint(DeterministicBytes(*contents));
  key.encode = std::move(encode);
  return key;
}

}  // namespace cowshed::service

// SPDX-License-Identifier: Apache-2.0
#include "service/unary.h"

#include <utility>

#include "engine/base/strings.h"
#include "service/digest.h"
#include "service/redact.h"

namespace cowshed::service {
namespace {

absl::Status FindRoom(ServiceContext& context, const google::protobuf::Message& request,
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

void Call::Finish(const absl::Status& status, bool replayed) const {
  context.Audit(caller, rule, status, &request, reply, replayed);
  if (status.ok()) Redact(rights(), reply);
  reactor->Finish(context.ToGrpc(Redacted(rights(), status)));
}

grpc::ServerUnaryReactor* BeginHere(ServiceContext& context, grpc::CallbackServerContext* rpc,
                                    const google::protobuf::Message* request,
                                    google::protobuf::Message* reply,
                                    absl::FunctionRef<void(const Call&)> work) {
  grpc::ServerUnaryReactor* reactor = rpc->DefaultReactor();
  const MethodRule& rule = RuleOf(request->GetDescriptor());
  Admission admission = context.access.Admit(*rpc, rule, request);
  Call call{context, rpc, reactor, rule, *request, reply, std::move(admission.caller), nullptr};
  if (!admission.status.ok()) {
    call.Finish(admission.status);
  } else if (context.stopping) {
    call.Finish(Stopping());
  } else {
    const absl::Status fits = FindRoom(context, *request, &call.memory);
    if (fits.ok()) {
      work(call);
    } else {
      call.Finish(fits);
    }
  }
  return reactor;
}

void Enqueue(const Call& call, Executor& executor, absl::AnyInvocable<void(const Call&)> work) {
  const bool taken = executor.TrySubmit([call, work = std::move(work)]() mutable {
    if (call.rpc->IsCancelled()) return call.Finish(absl::CancelledError());
    work(call);
  });
  if (!taken) call.Finish(Busy());
}

grpc::ServerUnaryReactor* Begin(ServiceContext& context, grpc::CallbackServerContext* rpc,
                                Executor& executor, const google::protobuf::Message* request,
                                google::protobuf::Message* reply,
                                absl::AnyInvocable<void(const Call&)> work) {
  return BeginHere(context, rpc, request, reply,
                   [&](const Call& admitted) { Enqueue(admitted, executor, std::move(work)); });
}

engine::Idempotency MakeRequestKey(const Call& call,
                                   std::function<std::string(const engine::Outcome&)> encode) {
  const auto* const descriptor = call.request.GetDescriptor();
  const auto* const reflection = call.request.GetReflection();
  const auto* const validate_only = descriptor->FindFieldByName("validate_only");
  if (validate_only != nullptr && reflection->GetBool(call.request, validate_only)) {
    return std::nullopt;
  }
  const auto* const id_field = descriptor->FindFieldByName("request_id");
  const std::string request_id = reflection->GetString(call.request, id_field);
  if (request_id.empty()) return std::nullopt;
  const std::unique_ptr<google::protobuf::Message> contents(call.request.New());
  contents->CopyFrom(call.request);
  reflection->ClearField(contents.get(), id_field);
  const std::string& caller = call.caller.name;
  engine::RequestKey key;
  // Lengths first: no caller can be named so that his keys collide with another's.
  key.key = engine::StrCat(caller.size(), ":", caller, " ", descriptor->name(), " ", request_id);
  key.fingerprint = Fingerprint(DeterministicBytes(*contents));
  key.encode = std::move(encode);
  return key;
}

}  // namespace cowshed::service

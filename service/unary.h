// SPDX-License-Identifier: Apache-2.0
//
// How a unary RPC runs, written once: admit the caller, hand over, do it, answer once. A handler is
// then one line that names what differs.
//
//   Lifecycle   Parse(request) -> a method of Pool -> Fill(outcome, reply), each found by its type;
//               with request_id made idempotent. Handed over to the pool, which calls back when the
//               txg is durable: that callback answers, or a worker where many wait. None for a
//               few: each passage to another thread and back costs some 20 us of a call's 200.
//   Query       a function (request, reply) or (request, reply, call) -> Status, run by a worker.
//   Deferred    a function (request, reply, done) that calls done(status) once, when it likes.
//
// Threads     Handlers run on gRPC's threads and never block. Request and reply live until the call
//             is finished, so workers use them freely before that and never after.
// Cost        Query, Deferred: one queue passage; a call whose client has gone before its turn is
//             not begun.
#pragma once

#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "engine/base/status_macros.h"
#include "engine/pool.h"
#include "google/protobuf/message.h"
#include "grpcpp/support/server_callback.h"
#include "service/context.h"
#include "service/convert.h"
#include "service/parse.h"
#include "service/visible.h"

namespace cowshed::service {

using Done = absl::AnyInvocable<void(absl::Status)>;

// A unary call on its way: what every step needs of it.
struct Call {
  ServiceContext& context;
  grpc::CallbackServerContext* rpc;
  grpc::ServerUnaryReactor* reactor;
  const MethodRule& rule;
  const google::protobuf::Message& request;
  google::protobuf::Message* reply;
  Caller caller;
  std::shared_ptr<const void> memory;  // what a large request takes of RequestMemory

  const Rights& rights() const { return *caller.rights; }
  // Answers, without names that the caller may not read, and leaves a line in the audit log. Done
  // last. `replayed`: with the reply of an earlier one.
  void Finish(const absl::Status& status, bool replayed = false) const;
};

// Starts a call: admits the caller and the size of the request (MESSAGE_TOO_LARGE, SERVER_BUSY) and
// runs `work` on this thread, or answers why not.
grpc::ServerUnaryReactor* BeginHere(ServiceContext& context, grpc::CallbackServerContext* rpc,
                                    const google::protobuf::Message* request,
                                    google::protobuf::Message* reply,
                                    absl::FunctionRef<void(const Call&)> work);
// Queues `work` of a call that was admitted for a worker, or answers that the queue is full.
void Enqueue(const Call& call, Executor& executor, absl::AnyInvocable<void(const Call&)> work);
// Both.
grpc::ServerUnaryReactor* Begin(ServiceContext& context, grpc::CallbackServerContext* rpc,
                                Executor& executor, const google::protobuf::Message* request,
                                google::protobuf::Message* reply,
                                absl::AnyInvocable<void(const Call&)> work);

// The key under which the reply of a call is kept; nothing without a request_id, nor where the call
// only asks what would happen (validate_only): nothing is done that a repeat could do twice.
engine::Idempotency MakeRequestKey(const Call& call,
                                   std::function<std::string(const engine::Outcome&)> encode);

template <typename Request, typename Reply, typename Run>
grpc::ServerUnaryReactor* Deferred(ServiceContext& context, grpc::CallbackServerContext* rpc,
                                   Executor& executor, const Request* request, Reply* reply,
                                   Run run) {
  return Begin(context, rpc, executor, request, reply,
               [request, reply, run = std::move(run)](const Call& call) {
                 run(*request, reply, [call](const absl::Status& status) { call.Finish(status); });
               });
}

template <typename Request, typename Reply, typename Run>
grpc::ServerUnaryReactor* Query(ServiceContext& context, grpc::CallbackServerContext* rpc,
                                Executor& executor, const Request* request, Reply* reply, Run run) {
  return Begin(context, rpc, executor, request, reply,
               [request, reply, run = std::move(run)](const Call& call) {
                 if constexpr (std::is_invocable_v<Run, const Request&, Reply*, const Call&>) {
                   call.Finish(run(*request, reply, call));
                 } else {
                   call.Finish(run(*request, reply));
                 }
               });
}

// A page of `list` (of what the caller may read; a member function of Pool); `add` gives the next
// message of the reply to fill.
template <typename Info, typename Request, typename Reply, typename Item>
grpc::ServerUnaryReactor* ListPage(
    ServiceContext& context, grpc::CallbackServerContext* rpc, const Request* request, Reply* reply,
    absl::StatusOr<engine::Page<Info>> (engine::Pool::*list)(const engine::ListArgs&),
    Item* (Reply::*add)()) {
  return Query(
      context, rpc, context.control, request, reply,
      [&context, list, add](const Request& from, Reply* to, const Call& call) -> absl::Status {
        ASSIGN_OR_RETURN(const auto args, ParsePage(from, context.tokens));
        ASSIGN_OR_RETURN(const auto page,
                         ListVisible<Info>(call.rights(), args, [&](const auto& these) {
                           return (context.pool.*list)(these);
                         }));
        for (const auto& item : page.items) Fill(item, (to->*add)());
        to->set_next_page_token(context.tokens.SealPosition(from, page.next));
        return absl::OkStatus();
      });
}

// Whether what a request does not name matters to the rights of its caller.
inline bool LooksUp(const Call& call) { return call.rights().everywhere() < call.rule.role; }

struct NothingToLookUp {
  absl::Status operator()(const Call&, const void*) const { return absl::OkStatus(); }
};

// As above, of a call whose reply is made of its outcome alone.
template <typename Reply>
engine::Idempotency KeyOf(const Call& call) {
  return MakeRequestKey(call, [&tokens = call.context.tokens](const engine::Outcome& outcome) {
    Reply stored;
    Fill(outcome, tokens, &stored);
    return stored.SerializeAsString();
  });
}

// For the pool: answers a lifecycle call, perhaps with the reply stored for an earlier one.
template <typename Reply>
auto AnswerOf(const Call& call, Reply* reply) {
  return call.context.Counted([call, reply](const absl::StatusOr<engine::Outcome>& outcome) {
    if (!outcome.ok()) return call.Finish(outcome.status());
    const bool replayed = !outcome->replayed.empty();
    if (!replayed) {
      Fill(*outcome, call.context.tokens, reply);
    } else if (!reply->ParseFromString(outcome->replayed)) {
      return call.Finish(absl::InternalError("the reply kept for this request_id is unreadable"));
    }
    call.Finish(absl::OkStatus(), replayed);
  });
}

// `verb`: a member function of Pool that takes what Parse makes of the request (or the elements of
// the tuple it makes), then Idempotency and OutcomeCallback. `look`: a function (call, args*) ->
// Status that looks up what the request does not name, and whether the caller may act on that; run
// by a worker, for callers who may not act everywhere.
template <typename Request, typename Reply, typename Verb, typename Look = NothingToLookUp>
grpc::ServerUnaryReactor* Lifecycle(ServiceContext& context, grpc::CallbackServerContext* rpc,
                                    const Request* request, Reply* reply, Verb verb,
                                    Look look = {}) {
  const auto work = [request, reply, verb, look](const Call& call) {
    if (static_cast<size_t>(call.context.callbacks.count()) >= call.context.limits.lifecycle_max) {
      return call.Finish(Busy());
    }
    auto args = Parse(*request);
    if (!args.ok()) return call.Finish(args.status());
    if (LooksUp(call)) {
      if (const absl::Status seen = look(call, &*args); !seen.ok()) return call.Finish(seen);
    }
    const auto start = [&](auto&&... arg) {
      (call.context.pool.*verb)(std::move(arg)..., KeyOf<Reply>(call), AnswerOf(call, reply));
    };
    if constexpr (requires { std::tuple_size<std::decay_t<decltype(*args)>>::value; }) {
      std::apply(start, *std::move(args));
    } else {
      start(*std::move(args));
    }
  };
  return BeginHere(context, rpc, request, reply, [&](const Call& call) {
    if (!std::is_same_v<Look, NothingToLookUp> && LooksUp(call)) {
      Enqueue(call, context.control, work);
    } else {
      work(call);
    }
  });
}

}  // namespace cowshed::service

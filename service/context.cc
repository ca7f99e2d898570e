// SPDX-License-Identifier: Apache-2.0
#include "service/context.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "service/digest.h"
#include "service/parse.h"
#include "service/secret.h"

namespace cowshed::service {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// The value of a field, if `message` has one of that name and type.
template <typename T>
T FieldOf(const Message& message, const char* name) {
  const FieldDescriptor* field = message.GetDescriptor()->FindFieldByName(name);
  if (field == nullptr || field->is_repeated()) return {};
  const auto* reflection = message.GetReflection();
  const auto type = field->cpp_type();
  if constexpr (std::is_same_v<T, std::string>) {
    if (type == FieldDescriptor::CPPTYPE_STRING) return reflection->GetString(message, field);
  } else if constexpr (std::is_same_v<T, bool>) {
    if (type == FieldDescriptor::CPPTYPE_BOOL) return reflection->GetBool(message, field);
  } else {
    if (type == FieldDescriptor::CPPTYPE_UINT64) return reflection->GetUInt64(message, field);
  }
  return {};
}

}  // namespace

void Callbacks::Add(int count) {
  engine::MutexLock lock(mutex_);
  count_ += count;
  if (count_ == 0) none_.NotifyAll();
}

int Callbacks::count() const {
  engine::MutexLock lock(mutex_);
  return count_;
}

void Callbacks::WaitForNone() {
  engine::MutexLock lock(mutex_);
  while (count_ > 0) none_.Wait(mutex_);
}

ServiceContext::ServiceContext(engine::Pool& the_pool, const Limits& the_limits, bool certificates,
                               Policy policy, const std::string& secret,
                               std::unique_ptr<AuditLog> audit, metrics::ServiceStats& the_stats)
    : pool(the_pool),
      stats(the_stats),
      limits(the_limits),
      boot_id(RandomHex(16)),
      start_time_ms(NowMs()),
      access(certificates, std::move(policy)),
      tokens(secret.empty() ? NewSecret() : secret),
      audit_log(std::move(audit)),
      streams(the_limits.streams_max, stats),
      request_memory(the_limits.request_memory_bytes),
      control(the_limits.control_workers, the_limits.queue_max, stats),
      data(the_limits.data_workers, the_limits.data_queue_max, stats) {}

void ServiceContext::Audit(const Caller& caller, const MethodRule& rule, const absl::Status& status,
                           const Message* request, const Message* reply, bool replayed) {
  const bool denied = absl::IsPermissionDenied(status) || absl::IsUnauthenticated(status);
  if (denied) stats.calls_denied.fetch_add(1, std::memory_order_relaxed);
  if (audit_log == nullptr || (rule.effect == Effect::kReads && !denied)) return;
  AuditRecord record;
  record.who = caller.name;
  record.peer = caller.peer;
  record.method = rule.method;
  record.code = absl::StatusCodeToString(status.code());
  record.reason = ReasonOf(status);
  record.replayed = replayed;
  if (request != nullptr) {
    record.names = NamesIn(rule, *request);
    record.request_id = FieldOf<std::string>(*request, "request_id");
    record.validate_only = FieldOf<bool>(*request, "validate_only");
    if (record.names.empty()) {
      std::string operation = FieldOf<std::string>(*request, "operation");
      if (!operation.empty()) record.names.push_back(std::move(operation));
    }
  }
  if (reply != nullptr && status.ok()) {
    record.txg =
        std::max(FieldOf<uint64_t>(*reply, "txg"), FieldOf<uint64_t>(*reply, "flushed_txg"));
  }
  audit_log->Write(record);
}

absl::Status ServiceContext::CheckBootId(const std::string& expected) const {
  if (expected.empty() || expected == boot_id) return absl::OkStatus();
  return Error(absl::StatusCode::kAborted, v1::SERVER_RESTARTED,
               "the server was restarted: writes that were not flushed may be lost",
               {{"boot_id", boot_id}});
}

absl::Status Busy() {
  return Error(absl::StatusCode::kResourceExhausted, v1::SERVER_BUSY,
               "the queue of requests is full; try again");
}

absl::Status Stopping() {
  return Error(absl::StatusCode::kUnavailable, v1::SERVER_STOPPING, "the server is stopping");
}

}  // namespace cowshed::service

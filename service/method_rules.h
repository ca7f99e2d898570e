// SPDX-License-Identifier: Apache-2.0
//
// What each method needs of its caller: one table, method_rules.cc. A new RPC is one line there;
// until it has one a test fails, and no server starts.
//
// Model       A rule names the least role that a caller must have anywhere, or everywhere if the
//             method acts on the pool as a whole, and the fields of the request that hold names,
//             each with the role needed over what it names. What a request does not name (the
//             origin of a promote, the target of an operation) is looked up by its handler.
// Threads     Immutable: thread-safe.
// Cost        RuleOf is a lookup in a small map; MayCall one walk per field.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "google/protobuf/message.h"
#include "service/policy.h"

namespace cowshed::service {

// How far the role must reach.
enum class Reach { kAnywhere, kEverywhere };
// Whether the method changes anything; what does is audited.
enum class Effect { kReads, kChanges };

// A field of a request, "range.dataset" for one of a message in it. Empty ones are passed over.
struct NameField {
  const char* path;
  Role role;
};

struct MethodRule {
  const char* method;  // unique among all services; its request is cowshed.v1.<method>Request
  Effect effect;
  Role role;
  std::vector<NameField> names = {};
  Reach reach = Reach::kAnywhere;
  const char* everywhere_if = nullptr;  // a flag of the request that makes its reach kEverywhere
};

const std::vector<MethodRule>& MethodRules();
// The rule for the method that takes `request`. REQUIRES: there is one.
const MethodRule& RuleOf(const google::protobuf::Descriptor* request);
template <typename Request>
const MethodRule& RuleOf() {
  static const MethodRule& rule = RuleOf(Request::descriptor());
  return rule;
}

// All names in the fields of `rule`, in their order.
std::vector<std::string> NamesIn(const MethodRule& rule, const google::protobuf::Message& request);

// PERMISSION_DENIED unless `rights` cover the call. Depends on the request alone, never on what
// exists: a refusal tells nothing. Null: a stream that has not said yet what it is about.
absl::Status MayCall(const Rights& rights, const MethodRule& rule,
                     const google::protobuf::Message* request);
// The refusal of a call on something that a handler has looked up, or that is not there.
absl::Status Denied(const Rights& rights, const MethodRule& rule, const std::string& name);

}  // namespace cowshed::service

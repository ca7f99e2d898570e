// SPDX-License-Identifier: Apache-2.0
//
// Looks into the pool on behalf of a caller who may not read everything.
//
// Model       A list that the caller has narrowed himself (to a prefix, an origin, a dataset that
// he
//             may read) loses the objects he may not read. One that he has not is made of his own
//             prefixes, one after another: others' names are neither read nor part of a position.
//             A page may come out short, or empty with a `next`.
// Threads     Free functions, thread-safe.
// Cost        As the list itself; nothing where the caller may read everything.
#pragma once

#include <algorithm>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "engine/attachments.h"
#include "engine/pool.h"
#include "service/method_rules.h"
#include "service/policy.h"

namespace cowshed::service {

// The operation `name`, if the caller has `role` over its target. PERMISSION_DENIED otherwise, and
// also if there is none, unless he may read everything.
absl::StatusOr<engine::OperationInfo> SeeOperation(engine::Pool& pool, const Rights& rights,
                                                   const MethodRule& rule, const std::string& name,
                                                   Role role);

// Turns a list over everything into one over the first of the caller's prefixes that is not done
// with. False: there is none left. `SealPrefix` makes of its page's `next` a position to go on at.
bool OpenPrefix(const Rights& rights, engine::ListArgs* args);
std::string SealPrefix(const Rights& rights, const std::string& prefix, const std::string& next);

inline const std::string& NameOf(const engine::DatasetInfo& info) { return info.name; }
inline const std::string& NameOf(const engine::SnapshotInfo& info) { return info.name; }
inline const std::string& NameOf(const engine::HoldInfo& info) { return info.snapshot; }
inline const std::string& NameOf(const engine::AttachmentInfo& info) { return info.name; }
inline const std::string& NameOf(const engine::OperationInfo& info) { return info.target; }

template <typename Info>
absl::StatusOr<engine::Page<Info>> ListVisible(
    const Rights& rights, engine::ListArgs args,
    absl::FunctionRef<absl::StatusOr<engine::Page<Info>>(const engine::ListArgs&)> list) {
  if (!rights.limited()) return list(args);
  const bool by_name = !std::is_same_v<Info, engine::OperationInfo>;
  if (by_name && args.prefix.empty() && args.origin.empty() && args.parent.empty()) {
    if (!OpenPrefix(rights, &args)) return engine::Page<Info>();
    auto page = list(args);
    if (page.ok()) page->next = SealPrefix(rights, args.prefix, page->next);
    return page;
  }
  auto page = list(args);
  if (!page.ok()) return page;
  auto& items = page->items;
  const auto hidden = [&](const Info& info) { return rights.On(NameOf(info)) < READER; };
  items.erase(std::remove_if(items.begin(), items.end(), hidden), items.end());
  return page;
}

}  // namespace cowshed::service

// SPDX-License-Identifier: Apache-2.0
#include "engine/refusals.h"

#include <string>

#include "engine/base/strings.h"
#include "engine/errors.h"

namespace cowshed::engine {

absl::Status Suspended(std::string_view why) {
  return MakeError(absl::StatusCode::kUnavailable, "POOL_SUSPENDED",
                   "the pool takes no changes until the server is restarted: " + std::string(why));
}

absl::Status ReadOnly() {
  return MakeError(absl::StatusCode::kUnavailable, "POOL_SUSPENDED",
                   "the pool is open for reading only");
}

absl::Status MetadataFull() {
  return MakeError(absl::StatusCode::kResourceExhausted, "POOL_FULL",
                   "the pool's metadata has no room left for this: destroy something",
                   {{"resource", "metadata"}});
}

absl::Status Stopping() {
  return MakeError(absl::StatusCode::kUnavailable, "SERVER_STOPPING", "the pool is being closed");
}

absl::Status WithDamage(const absl::Status& why, uint64_t damaged_regions) {
  if (damaged_regions == 0 || !absl::IsResourceExhausted(why)) return why;
  return absl::DataLossError(StrCat("the bitmaps of ", damaged_regions,
                                    " regions are damaged, and no other space is left: stop the "
                                    "server and run `cowshed check --repair`"));
}

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
#include "engine/store/features.h"

#include "absl/strings/str_cat.h"
#include "engine/base/strings.h"

namespace cowshed::engine {
namespace {

std::string Mask(uint64_t bits) { return StrCat("0x", absl::Hex(bits)); }

}  // namespace

absl::Status CheckReadable(uint32_t version, const FeatureMasks& features, std::string_view what) {
  if (version == 0 || version > kFormatVersion) {
    return absl::FailedPreconditionError(
        StrCat(what, " has format version ", version, ", this program knows 1 to ", kFormatVersion,
               ": open the pool with the version of the program that wrote it, or a newer one"));
  }
  if (const uint64_t unknown = features.incompatible & ~kKnownFeatures.incompatible; unknown != 0) {
    return absl::FailedPreconditionError(
        StrCat(what, " uses features that this program does not know (incompatible mask ",
               Mask(unknown), "): open the pool with a newer version of the program"));
  }
  return absl::OkStatus();
}

absl::Status CheckWritable(const FeatureMasks& features, std::string_view what) {
  const uint64_t unknown = features.read_only_compatible & ~kKnownFeatures.read_only_compatible;
  if (unknown == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      StrCat(what, " uses features that this program may only read (read-only-compatible mask ",
             Mask(unknown), "): serve the pool with a newer version of the program; this one can ",
             "only check and inspect it"));
}

}  // namespace cowshed::engine

// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/service_fuzzer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return cowshed::fuzz::FuzzService("cowshed.v1.AttachmentService", data, size);
}

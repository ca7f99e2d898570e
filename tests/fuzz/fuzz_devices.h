// SPDX-License-Identifier: Apache-2.0
//
// Devices that come back: each holds an attachment, ends it when it is cut, and attaches again.
//
// Threads     Externally synchronised, but for being cut.
// Ownership   Borrows the pool, which outlives it.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/attachments.h"
#include "engine/base/mutex.h"
#include "engine/pool.h"

namespace cowshed::fuzz {

class FuzzDevices {
 public:
  explicit FuzzDevices(engine::Pool& pool) : pool_(pool) {}

  void Attach(const std::string& name) {
    auto device = std::make_shared<Device>();
    engine::AttachArgs args;
    args.name = name;
    args.holder = args.client = args.protocol = "fuzz";
    args.cut = [device](const absl::Status&) {
      std::unique_ptr<engine::Attachment> ended;
      const engine::MutexLock lock(device->mutex);
      ended = std::move(device->attachment);
    };
    auto attached = pool_.attachments().Attach(args);
    if (!attached.ok()) return;  // it is not there, or attached already
    const engine::MutexLock lock(device->mutex);
    device->attachment = *std::move(attached);
    devices_.push_back(device);
  }
  // Ends all.
  void Clear() {
    for (const auto& device : std::exchange(devices_, {})) {
      std::unique_ptr<engine::Attachment> ended;
      const engine::MutexLock lock(device->mutex);
      ended = std::move(device->attachment);
    }
  }

 private:
  struct Device {
    engine::Mutex mutex{engine::LockRank::kNbdConnection};
    std::unique_ptr<engine::Attachment> attachment ABSL_GUARDED_BY(mutex);
  };

  engine::Pool& pool_;
  std::vector<std::shared_ptr<Device>> devices_;
};

}  // namespace cowshed::fuzz

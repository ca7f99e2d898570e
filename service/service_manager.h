// SPDX-License-Identifier: Apache-2.0
//
// Tells systemd (Type=notify) how the program is.
//
// Threads     Thread-safe.
#pragma once

#include <string_view>

namespace cowshed::service {

// Sends `state` ("READY=1", "STOPPING=1") to the socket in NOTIFY_SOCKET; nothing without one.
void NotifyServiceManager(std::string_view state);

}  // namespace cowshed::service
